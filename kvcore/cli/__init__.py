"""The command line: `python -m kvcore`, one function a command."""
