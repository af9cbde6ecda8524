"""What every room stands on: units, coded errors, quantities, bounds for what strangers send."""
