"""Whole numbers as people, commands and logs write them: 32768, 32k, 1.5K."""

from __future__ import annotations

import re
from typing import Final

from kvcore.flags.registry import Flag

_WHOLE: Final = re.compile(r"-?\d{1,18}")
_HUMAN: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([kKmMgG])")
_FACTORS: Final = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}
"""Source: vllm/engine/arg_utils.py:human_readable_int (0.9.2)."""


def read_whole(text: str, flag: Flag) -> int | None:
    """The number between the bounds of `flag` that a text says as its parser takes it; None where it says none.

    Example:
        >>> from kvcore.flags.registry import FLAGS
        >>> [read_whole(text, FLAGS["max_model_len"]) for text in ("32k", "32K", "auto", "1e30", "0")]
        [32000, 32768, -1, None, None]
        >>> read_whole("32k", FLAGS["max_num_seqs"])
    """
    if flag.auto is not None and text in ("auto", str(flag.auto)):
        return flag.auto
    human = _HUMAN.fullmatch(text) if flag.human else None
    if human is not None:
        text = str(int(float(human[1]) * _FACTORS[human[2]]))
    if _WHOLE.fullmatch(text) is None:
        return None
    low, high = flag.bounds
    return int(text) if low <= int(text) <= high else None
