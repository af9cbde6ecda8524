"""Evidence of real starts: logs, plans calibrated with them, and the accuracy of plans."""
