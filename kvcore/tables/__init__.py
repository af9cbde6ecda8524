"""TOML tables read into typed records, row by engine release."""
