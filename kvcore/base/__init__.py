"""The base of all rooms: units, numbers, coded errors, quantities, the parts of memory, languages, bounds for input."""
