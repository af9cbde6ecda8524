"""Logs of starts, and commands that start a server, read into flags, figures and failures; all untrusted text."""
