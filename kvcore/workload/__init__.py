"""Logs of requests read into length statistics, and the limits that they need."""
