"""Which models their publisher documents YaRN for, and with which factor."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from kvcore.model.rope import Yarn

_FILE = Path(__file__).with_name("yarn.toml")


def documented_yarn(model: str) -> Yarn | None:
    """The stretched rope that the card of `model` names; None where none is documented.

    Example:
        >>> documented_yarn("Qwen/Qwen3-32B").max_model_len, documented_yarn("Qwen/Qwen3-0.6B")
        (131072, None)
    """
    return documented().get(model)


@cache
def documented() -> Mapping[str, Yarn]:
    """All of them, by the name of the model."""
    found: dict[str, Yarn] = {}
    for series in tomllib.loads(_FILE.read_text("utf-8"))["series"]:
        yarn = Yarn(
            factor=float(series["factor"]),
            original_max_position_embeddings=int(series["original_max_position_embeddings"]),
        )
        found |= dict.fromkeys(series["models"], yarn)
    return found
