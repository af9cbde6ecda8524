"""The parts that a model is composed of: attention, experts, the pattern of its layers, recurrent states."""
