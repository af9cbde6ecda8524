"""Text of a visitor, a link or the Hub as a label: Streamlit reads labels and options of controls as Markdown."""

from __future__ import annotations

import re
from typing import Final

_WORD: Final = re.compile(r"[A-Za-z0-9]+([_.-][A-Za-z0-9]+)*")
"""Means nothing in Markdown."""
_MARKS: Final = re.compile(r"([!-/:-@\[-`{-~])")
"""ASCII punctuation, all of which may be escaped. Source: CommonMark 0.31.2, 2.4 Backslash escapes."""


def plain(text: object) -> str:
    """What a label shows as `text`, whatever is in it.

    Example:
        >>> plain("fp8_e4m3"), plain(8), plain("*x*") == r"\\*x\\*"
        ('fp8_e4m3', '8', True)
    """
    said = str(text)
    return said if _WORD.fullmatch(said) else _MARKS.sub(r"\\\1", said)
