"""The drift watch: newer releases of the engines on the package index, and what the tables must learn of them.

python -m tools.drift            # or make drift; docs/drift.md is the chore
"""
