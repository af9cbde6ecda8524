"""The KV cache: pages, blocks and groups of layers, and how many requests they have room for."""
