"""The names of a link's parameters, and values of a link that could not be used."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

from msgspec import Struct

from kvcore.base.errors import KvPlannerError, shorten
from kvcore.flags import FLAGS

LANGUAGE: Final = "lang"
SHORT: Final[Mapping[str, str]] = {short: name for name, flag in FLAGS.items() for short in flag.short}
"""The engine's short flags. Source: vllm/engine/arg_utils.py:EngineArgs.add_cli_args (0.33.0)."""
_NOT_OURS: Final = frozenset((LANGUAGE, "embed", "embed_options"))
"""The language of the pages, and parameters of Streamlit."""
_APART: Final = ("utm_", "pin.")
"""Prefixes of parameters that newsletters add, and of pinned scenarios."""


class Repair(Struct, frozen=True, kw_only=True):
    """A value of a link that could not be used, and the value used instead ("" for the default)."""

    field: str
    given: str
    used: str
    error: KvPlannerError

    @classmethod
    def of(cls, field: str, given: str, error: KvPlannerError, used: str = "") -> Repair:
        """A repair with name and text shortened for a page."""
        return cls(field=shorten(field, 60), given=shorten(given, 60), used=used, error=error)


def full_name(name: str) -> str:
    """The field of a parameter; names of environment variables stay as they are.

    Example:
        >>> full_name("tp"), full_name("--max-model-len"), full_name("env.VLLM_USE_V1")
        ('tensor_parallel_size', 'max_model_len', 'env.VLLM_USE_V1')
    """
    if name.startswith("env."):
        return name
    plain = name.lstrip("-").replace("-", "_")
    return SHORT.get(plain, plain)


def is_ours(name: str, beside: Container[str] = ()) -> bool:
    """Whether a parameter belongs to the scenario; `beside` are names that a page keeps in the same link.

    Example:
        >>> is_ours("tp"), is_ours("utm_source"), is_ours("lang"), is_ours("wanted", beside=("wanted",))
        (True, False, False, False)
    """
    return name not in _NOT_OURS and name not in beside and not name.startswith(_APART)


def full_names(
    params: Mapping[str, str], beside: Container[str] = ()
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The parameters of the scenario by their full names, and the names that give a field another value again.

    The full spelling takes precedence over a short one.

    Example:
        >>> full_names({"tp": "4", "tensor_parallel_size": "8", "lang": "zh"})
        ({'tensor_parallel_size': '8'}, ('tp',))
    """
    ours = {name: value for name, value in params.items() if is_ours(name, beside)}
    found = {name: value for name, value in ours.items() if full_name(name) == name}
    again = []
    for name, value in ours.items():
        if found.setdefault(full_name(name), value) != value:
            again.append(name)
    return found, tuple(again)
