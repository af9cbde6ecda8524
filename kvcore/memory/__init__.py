"""The bytes of one rank: weights, activations, graphs, framework, and what is left for the KV cache."""
