"""Variables that a text uses and nothing defines: they stay in it as marks, so that no value is ever guessed.

A mark is a name between two private characters. Whatever reads a text later (a shell, an argument list) carries it
along; what still has a mark at the end is named as undefined.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

OPENING: Final = "\ue000"
CLOSING: Final = "\ue001"
LONGEST_NAME: Final = 80

_MARK: Final = re.compile(rf"{OPENING}([^{OPENING}{CLOSING}]{{0,{LONGEST_NAME}}}){CLOSING}")
_MARKS: Final = str.maketrans("", "", OPENING + CLOSING)


def unmarked(text: str) -> str:
    """A stranger's text without the private characters, so that it has no marks of its own."""
    return text.translate(_MARKS) if OPENING in text or CLOSING in text else text


def mark(name: str) -> str:
    """The mark of an undefined variable.

    Example:
        >>> names_in("--port " + mark("PORT"))
        ('PORT',)
    """
    return f"{OPENING}{unmarked(' '.join(name.split()))[:LONGEST_NAME]}{CLOSING}"


_PLACEHOLDER: Final = re.compile(r"\$(?:\{([A-Z][A-Z0-9_]{1,79})\}|([A-Z][A-Z0-9_]{1,79}))")


def placeholders_marked(text: str) -> str:
    """A text that no shell reads with its `$NAME` as marks: what a tool such as envsubst is to fill in first.

    Example:
        >>> names_in(placeholders_marked("--model=${MODEL_ID}"))
        ('MODEL_ID',)
    """
    return _PLACEHOLDER.sub(lambda found: mark(found[1] or found[2]), text) if "$" in text else text


def has_mark(text: str) -> bool:
    """Whether some variable in `text` is undefined."""
    return OPENING in text


def is_mark(text: str) -> bool:
    """Whether `text` is nothing but undefined variables."""
    return has_mark(text) and not _MARK.sub("", text).strip()


def names_in(*texts: str) -> tuple[str, ...]:
    """Names of the undefined variables of texts, each once."""
    return tuple(dict.fromkeys(name for text in texts for name in _MARK.findall(text)))


def shown(text: str) -> str:
    """A text for people: undefined variables as `${NAME}`."""
    return _MARK.sub(lambda found: "${" + found[1] + "}", text)


def joined(names: Iterable[str]) -> str:
    """Names as a list for people."""
    return ", ".join(names)
