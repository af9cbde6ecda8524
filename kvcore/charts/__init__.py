"""Figures of a plan as data for charts, tables and sentences."""
