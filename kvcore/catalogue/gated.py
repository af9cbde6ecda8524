"""Which repositories of the Hub ask for an account that has accepted their terms."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("gated.toml")


def is_gated(model: str) -> bool:
    """Whether a download of `model` needs a token, as far as the table knows.

    Example:
        >>> is_gated("meta-llama/Llama-3.3-70B-Instruct"), is_gated("Qwen/Qwen3-32B")
        (True, False)
    """
    return any(fnmatchcase(model.lower(), pattern) for pattern in _patterns())


@cache
def _patterns() -> tuple[str, ...]:
    patterns: list[str] = tomllib.loads(_FILE.read_text("utf-8"))["patterns"]
    return tuple(pattern.lower() for pattern in patterns)
