"""Texts in a file that nobody may see: values of variables and arguments that hold keys, tokens or passwords."""

from __future__ import annotations

import re
from typing import Final

from kvcore.manifests.arguments import is_secret

_PAIR: Final = re.compile(
    r"(?<![\w.-])([A-Za-z_][\w-]{1,80})[\"']?\s{0,4}[:=]\s{0,4}[\"']?([^\s\"',;]{3,4000})"
)
_OPTION: Final = re.compile(
    r"(?<![\w-])(--[A-Za-z][\w-]{1,80})[\"']?[=\s,]{1,40}(?:-\s{1,4})?[\"']?([^\s\"',;]{3,4000})"
)
_NAMED: Final = re.compile(
    r"name:\s{0,4}[\"']?([A-Za-z_]\w{1,80})[\"']?\s{0,200}(?:,\s{0,4})?value:\s{0,4}[\"']?([^\s\"',}]{3,4000})"
)
_SHAPES: Final = re.compile(
    r"(?:hf|ghp|gho|glpat|xox[abp]|sk|nvapi)[_-][A-Za-z0-9_-]{8,}|AKIA[A-Z0-9]{12,}|eyJ[\w-]{10,}\.|"
    r"-----BEGIN|://[^/@\s:]{1,200}:[^/@\s]{1,200}@"
)
_NO_VALUES: Final = re.compile(r"[$<{[(%]|(?:true|false|null|none|yes|no|\d{1,2})$", re.IGNORECASE)
_NO_NAMES: Final = ("key", "keys", "secret-key", "token", "secret")
"""Names that as keys of a file refer to a secret, or to a label, as often as they hold one."""


def secret_values(text: str) -> frozenset[str]:
    """Values in a file that are secrets by the name that they stand under.

    Example:
        >>> sorted(secret_values("HF_TOKEN=abcdef vllm serve m --api-key hidden --max-num-batched-tokens 8192"))
        ['abcdef', 'hidden']
    """
    pairs = [pair for pair in _PAIR.findall(text) if pair[0].lower() not in _NO_NAMES]
    named = (*pairs, *_OPTION.findall(text), *_NAMED.findall(text))
    return frozenset(
        value for name, value in named if is_secret(name.lstrip("-")) and not _NO_VALUES.match(value)
    )


def shows_secret(line: str, secrets: frozenset[str]) -> bool:
    """Whether a line of a file shows one of its secrets, or what is shaped as one."""
    return _SHAPES.search(line) is not None or any(value in line for value in secrets)
