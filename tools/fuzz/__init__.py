"""Fuzzing of everything that reads input from strangers: `python -m tools.fuzz --help`.

`targets.py` has a function for each reader, which must answer or raise a coded error; `mutation.py` changes JSON where
it is meaningful; `seeds.py` has what it begins with; `__main__.py` runs atheris, one process a target.
"""
