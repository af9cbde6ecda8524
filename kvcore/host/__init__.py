"""The host's memory: what a start takes of it, and what a host that shares its memory with the card needs."""
