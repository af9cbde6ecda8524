"""The planned start as files and commands: what runs it, watches it and loads it."""
