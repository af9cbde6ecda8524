"""Values that a control offers for a scenario, the scenario after a change, and the settings in force."""
