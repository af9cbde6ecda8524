"""Names after each other, with the comma of the language."""

from __future__ import annotations

from collections.abc import Iterable

from kvcore.present.text import Language, Words


def listed(t: Words, names: Iterable[str]) -> str:
    """Names as one list.

    Example:
        >>> from kvcore.present.text import words
        >>> listed(words(Language.ENGLISH), ("a", "b")), listed(words(Language.CHINESE), ("甲", "乙"))
        ('a, b', '甲、乙')
    """
    return ("、" if t.language is Language.CHINESE else ", ").join(names)
