"""The Workload page."""
