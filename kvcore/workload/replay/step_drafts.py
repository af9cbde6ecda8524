"""Speculative decoding of a replay: how a case states it, and what of it can be replayed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from kvcore.errors import WorkloadError, invalid
from kvcore.workload.replay.settings import Drafts, Settings

METHODS: Final = frozenset({"eagle", "eagle3", "mtp"})
MAX_DRAFTS: Final = 64
MAX_PATTERN: Final = 4096


def with_drafts(settings: Settings, case: Mapping[str, Any]) -> Settings:
    """The settings of a case with its `speculative_config`.

    It is an object with `method`, `num_speculative_tokens` and `accepted_tokens`, a list of how many drafts are
    accepted, for one verifying step of a request after the other, over and over.

    Raises WorkloadError `replay-unsupported`, field `speculative_config`, for what is not replayed.
    """
    stated = case.get("speculative_config")
    if not stated:
        return settings
    where = "speculative_config"
    if not isinstance(stated, dict):
        raise invalid(where, None, "it is an object with method and num_speculative_tokens")
    if stated.get("method") not in METHODS or settings.groups or not settings.rules.replays_drafts:
        raise WorkloadError("replay-unsupported", field=where)
    tokens = stated.get("num_speculative_tokens")
    if type(tokens) is not int or not 1 <= tokens <= MAX_DRAFTS:
        raise invalid(f"{where}.num_speculative_tokens", tokens, f"it must be from 1 to {MAX_DRAFTS}")
    accepted = stated.get("accepted_tokens")
    if (
        not isinstance(accepted, list)
        or not 1 <= len(accepted) <= MAX_PATTERN
        or any(type(number) is not int or not 0 <= number <= tokens for number in accepted)
    ):
        raise invalid(f"{where}.accepted_tokens", None, f"it must be a list of numbers from 0 to {tokens}")
    return replace(settings, drafts=Drafts(tokens=tokens, accepted=tuple(accepted)))
