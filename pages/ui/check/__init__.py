"""The Check page."""
