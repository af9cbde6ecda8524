"""The Accuracy page."""
