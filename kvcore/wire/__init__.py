"""Scenarios from outside: the JSON request (`request.py`) and the link (`link.py`)."""
