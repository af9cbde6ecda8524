"""The version of this program, stated only here: the package, the API and the tools for agents read it."""

from typing import Final

VERSION: Final = "0.2.0.dev0"
