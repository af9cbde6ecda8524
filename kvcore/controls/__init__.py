"""What a control of a form offers for a scenario, and the scenario after a person has changed it."""
