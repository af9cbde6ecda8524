"""Timings, printed as ratios against a named baseline taken in the same run. Never asserted anywhere."""
