"""Parameters of a link as people type them: `tp=4`, `tensor-parallel-size=4`, `--tensor_parallel_size=4`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvcore.flags.registry import FLAGS
from kvcore.scenario.page_parameters import LANGUAGE, PARAMETERS

SHORT: Final[Mapping[str, str]] = {short: name for name, flag in FLAGS.items() for short in flag.short}
"""The engine's short flags. Source: vllm/engine/arg_utils.py:EngineArgs.add_cli_args (0.33.0)."""
NOT_OURS: Final = frozenset((LANGUAGE, "embed", "embed_options", *PARAMETERS))
"""Parameters that belong to the pages, not to the scenario."""
_APART: Final = ("utm_", "pin.")
"""What newsletters add to an address, and the pinned scenarios."""


def full_name(name: str) -> str:
    """The field that a parameter means; names of environment variables are left as they are.

    Example:
        >>> full_name("tp"), full_name("--max-model-len"), full_name("env.VLLM_USE_V1")
        ('tensor_parallel_size', 'max_model_len', 'env.VLLM_USE_V1')
    """
    if name.startswith("env."):
        return name
    plain = name.lstrip("-").replace("-", "_")
    return SHORT.get(plain, plain)


def is_ours(name: str) -> bool:
    """Whether a parameter is meant for the scenario.

    Example:
        >>> is_ours("tp"), is_ours("utm_source"), is_ours("lang")
        (True, False, False)
    """
    return name not in NOT_OURS and not name.startswith(_APART)


def full_names(params: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The parameters that are meant for the scenario by their full names, and the names that say another value again.

    The full spelling stands against a short one.

    Example:
        >>> full_names({"tp": "4", "tensor_parallel_size": "8", "lang": "zh"})
        ({'tensor_parallel_size': '8'}, ('tp',))
    """
    ours = {name: value for name, value in params.items() if is_ours(name)}
    found = {name: value for name, value in ours.items() if full_name(name) == name}
    again = []
    for name, value in ours.items():
        if found.setdefault(full_name(name), value) != value:
            again.append(name)
    return found, tuple(again)
