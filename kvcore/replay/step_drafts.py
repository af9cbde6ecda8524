"""Speculative decoding of a replay: how a case states it, and what of it can be replayed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from kvcore.base.errors import WorkloadError, invalid
from kvcore.replay.settings import Drafts, Settings


class _Method(NamedTuple):
    """What the scheduler knows of a method.

    Source: vllm/config/vllm.py:VllmConfig.num_lookahead_tokens; vllm/config/speculative.py:SpeculativeConfig.use_eagle,
    uses_draft_model, max_num_new_slots_for_drafting, EagleModelTypes, NgramGPUTypes (0.32.0).
    """

    writes_ahead: bool
    drops_last_block: bool
    slots: int
    may_be_async: bool


_HIDDEN_STATES: Final = _Method(True, True, 0, True)
METHODS: Final = {
    "eagle": _HIDDEN_STATES,
    "eagle3": _HIDDEN_STATES,
    "mtp": _HIDDEN_STATES,
    "draft_model": _Method(True, False, 1, True),
    "ngram": _Method(False, False, 0, False),
    "suffix": _Method(False, False, 0, False),
    "medusa": _Method(False, False, 0, False),
    "ngram_gpu": _Method(False, False, 0, True),
}
MAX_DRAFTS: Final = 64
MAX_PATTERN: Final = 4096


def with_drafts(settings: Settings, case: Mapping[str, Any]) -> Settings:
    """The settings of a case with its `speculative_config`.

    It is an object with `method`, `num_speculative_tokens` and `accepted_tokens`, a list of how many drafts are
    accepted, for one verifying step of a request after the other, over and over; and `proposed_tokens`, the same for
    how many drafts a step finds, where it is not always all of them.

    Raises WorkloadError `replay-unsupported`, field `speculative_config`, for what is not replayed.
    """
    stated = case.get("speculative_config")
    if not stated:
        return settings
    where = "speculative_config"
    if not isinstance(stated, dict):
        raise invalid(where, None, "it is an object with method and num_speculative_tokens")
    method = METHODS.get(stated["method"]) if isinstance(stated.get("method"), str) else None
    if method is None or settings.groups or not settings.rules.replays_drafts:
        raise WorkloadError("replay-unsupported", field=where)
    if settings.async_scheduling and not method.may_be_async:
        raise invalid(f"{where}.method", stated["method"], "the engine has no async_scheduling with it")
    tokens = stated.get("num_speculative_tokens")
    if type(tokens) is not int or not 1 <= tokens <= MAX_DRAFTS:
        raise invalid(f"{where}.num_speculative_tokens", tokens, f"it must be from 1 to {MAX_DRAFTS}")
    proposed: tuple[int, ...] = ()
    if not settings.async_scheduling and stated.get("proposed_tokens") is not None:
        proposed = _pattern(stated, "proposed_tokens", tokens, where)
    return replace(
        settings,
        drafts=Drafts(
            tokens=tokens,
            accepted=_pattern(stated, "accepted_tokens", tokens, where),
            proposed=proposed,
            writes_ahead=method.writes_ahead,
            drops_last_block=method.drops_last_block,
            slots=method.slots,
        ),
    )


def _pattern(stated: Mapping[str, Any], name: str, most: int, where: str) -> tuple[int, ...]:
    given = stated.get(name)
    if (
        not isinstance(given, list)
        or not 1 <= len(given) <= MAX_PATTERN
        or any(type(number) is not int or not 0 <= number <= most for number in given)
    ):
        raise invalid(f"{where}.{name}", None, f"it must be a list of numbers from 0 to {most}")
    return tuple(given)
