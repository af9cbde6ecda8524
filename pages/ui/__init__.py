"""The parts of the pages: the session's state, the shell around a page, controls, a folder for each page."""
