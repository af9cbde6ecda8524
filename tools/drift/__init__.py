"""The drift watch: newer releases of the engines on the package index, and their news for the tables.

python -m tools.drift            # or make drift; docs/drift.md is the chore
"""
