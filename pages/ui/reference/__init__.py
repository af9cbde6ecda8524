"""The Reference page."""
