"""The base of every room: units, numbers, coded errors, quantities, the parts of memory, languages, bounds for input."""
