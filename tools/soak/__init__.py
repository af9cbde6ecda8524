"""Many visitors at once on a server of our own, over the app's own protocol: `python -m tools.soak`."""
