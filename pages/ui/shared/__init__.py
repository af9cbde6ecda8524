"""Modules that all pages share."""
