"""What a start printed, or the command that starts it -> what it says: untrusted text, bounded in work."""
