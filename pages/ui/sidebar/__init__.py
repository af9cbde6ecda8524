"""The sidebar: the scenario."""
