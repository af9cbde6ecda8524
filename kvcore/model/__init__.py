"""A config.json read into layers, and the storage formats of checkpoints."""
