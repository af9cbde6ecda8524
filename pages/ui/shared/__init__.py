"""What every page shows alike."""
