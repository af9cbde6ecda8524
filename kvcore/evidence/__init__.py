"""What real starts say: logs read, plans calibrated with them, and how accurate plans have been."""
