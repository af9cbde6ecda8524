"""What pages share: the session's state, the shell around a page, controls and parts of pages."""
