"""Labels of controls, and texts from outside as labels: Streamlit reads labels and options as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import streamlit as st

from kvcore.base.errors import KvPlannerError
from kvcore.base.words import Words, listed, sentences
from kvcore.engine.protocol import Engine
from kvcore.flags import Flag, explained

_WORD: Final = re.compile(r"[A-Za-z0-9]+([_.-][A-Za-z0-9]+)*")
"""A word without meaning in Markdown."""
ID: Final = re.compile(r"[\w./ -]{1,200}", re.ASCII)
"""A name that may stand in code marks."""
_MARKS: Final = re.compile(r"([!-/:-@\[-`{-~])")
"""ASCII punctuation, all of which may be escaped. Source: CommonMark 0.31.2, 2.4 Backslash escapes."""


def plain(text: object) -> str:
    """A label that shows `text` as it is.

    Example:
        >>> plain("fp8_e4m3"), plain(8), plain("*x*") == r"\\*x\\*"
        ('fp8_e4m3', '8', True)
    """
    said = str(text)
    return said if _WORD.fullmatch(said) else _MARKS.sub(r"\\\1", said)


def code(error: KvPlannerError) -> None:
    """The code of an error and its field, for those who search for them, in small print."""
    names = [f"`{name}`" for name in (error.code, error.field) if ID.fullmatch(name)]
    st.caption(f":small[{' '.join(names)}]")


def label_of(flag: Flag, t: Words, engine: Engine | None = None) -> str:
    """The label of a control, as `engine` names what it sets."""
    own = None if engine is None else engine.own_name(flag.name)
    return t(own.label) if own is not None and own.label else t(flag.label)


def help_of(flag: Flag, t: Words, engine: Engine | None = None) -> str | None:
    """The help of a control: the flag in the spelling of `engine`, and its meaning.

    Example:
        >>> from kvcore.base.words import Language, words
        >>> from kvcore.flags import FLAGS
        >>> help_of(FLAGS["block_size"], words(Language.ENGLISH))
        '`--block-size`: Tokens in one block of the KV cache.'
    """
    own = None if engine is None else engine.own_name(flag.name)
    if own is not None:
        said = t(own.help) if own.help else sentences(t, map(t, explained(flag)[:1]))
        return t("`{flag}`: {meaning}", flag=own.spelling, meaning=said) if said else f"`{own.spelling}`"
    said = sentences(t, map(t, explained(flag)))
    if not flag.cli or said.startswith("`"):
        return said or None
    return t("`{flag}`: {meaning}", flag=flag.spelling, meaning=said) if said else f"`{flag.spelling}`"


def upload(label: str, types: Sequence[str], t: Words, largest_mib: int | None = None) -> str:
    """The label of an upload with the accepted types and size, which Streamlit would say in English only.

    Example:
        >>> from kvcore.base.words import Language, words
        >>> upload("Or upload it", ("txt", "log"), words(Language.ENGLISH), 50)
        'Or upload it (txt, log; up to 50 MiB)'
    """
    names = listed(t, types)
    if largest_mib is None:
        return t("{label} ({types})", label=label, types=names)
    return t("{label} ({types}; up to {size} MiB)", label=label, types=names, size=str(largest_mib))
