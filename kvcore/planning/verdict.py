"""The verdict of a start, from its KV memory, its pool and the least memory that stays free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, Protocol

from kvcore.cache.capacity import Pool, check_state_blocks, least_state_blocks
from kvcore.engine.protocol import Resolved
from kvcore.engines.registry import engine_of
from kvcore.scenario import Scenario

LOW: Final = 0
HIGH: Final = 1


class Verdict(StrEnum):
    """How the start would end, first that applies."""

    WEIGHTS_DO_NOT_FIT = "weights-do-not-fit"
    NO_KV_MEMORY = "no-kv-memory"
    CONTEXT_TOO_LONG = "context-too-long"
    TIGHT = "tight"
    FITS = "fits"


class Tightness(StrEnum):
    """The quantity that may be too little, within the error of the estimate, though the start may well succeed."""

    MISSING = "missing"
    """KV memory for one request of full length, which the figures themselves do not have."""
    STATES = "states"
    """Blocks for the recurrent states of as many requests as run at once."""
    AFTER_POOL = "after-pool"
    """Unused memory for what the start takes after the KV cache."""
    START = "start"
    """Free memory at start for the share of the card that the engine is to spend, which the figures do not have."""
    HOST = "host"
    """Memory for the host, which shares the card's."""
    SPARE = "spare"
    """KV memory beyond one request of full length."""


class KvMemory(Protocol):
    """Bytes that the KV cache of a rank is planned in, with the ends of their interval."""

    @property
    def value(self) -> float:
        """The bytes."""

    @property
    def bounds(self) -> tuple[float, float]:
        """The ends of their 80 % interval."""


def stage_kv_bytes(stage_kv: Sequence[KvMemory], end: int | None = None) -> tuple[int, ...]:
    """KV memory of a rank of each stage in whole bytes; with `end`, the `LOW` or `HIGH` end of its interval."""
    return tuple(int(one.value if end is None else one.bounds[end]) for one in stage_kv)


def tightness(cache: Pool | None, resolved: Resolved, *, stops_at_start: bool, has_room: bool) -> Tightness:
    """Why a plan is tight whose verdict is `TIGHT`.

    `stops_at_start`: the engine finds too little free memory before it loads. `has_room`: enough is free for what comes
    after the pool.
    """
    if stops_at_start:
        return Tightness.START
    if cache is None or not cache.fits:
        return Tightness.MISSING
    if cache.num_blocks < least_state_blocks((group.kind for group in cache.groups), resolved):
        return Tightness.STATES
    return Tightness.SPARE if has_room else Tightness.AFTER_POOL


def leaves_none(value: float, least: float, most: float | None = None) -> bool:
    """Whether there is no KV memory even if the estimate is too low by its full error.

    Surroundings that may add more on the other side do not count: they say that another case is possible, not a
    likelier one. With `most` the ends are those of releases that may all be meant, none of them likelier: their middle
    decides.
    """
    return (2 * value - least if most is None else least + most) <= 0


def is_empty(kv: KvMemory, scenario: Scenario) -> bool:
    """`leaves_none` of the KV memory of a rank."""
    low, high = kv.bounds
    return leaves_none(kv.value, low, high if engine_of(scenario).may_be_other(scenario) else None)


def judged(
    resolved: Resolved,
    cache: Pool | None,
    *,
    weights_fit: bool,
    least: tuple[int, ...],
    most: tuple[int, ...],
    planned: Callable[[tuple[int, ...]], Pool],
    has_room: bool = True,
    counts_states: bool = True,
    is_empty: bool = False,
) -> Verdict:
    """The verdict of a plan and of a cell of a sweep, in the order of the engine's own checks.

    `least` and `most`: the ends of the KV memory of a rank of each pipeline stage in bytes, none where it is known;
    `planned` plans a cache in them. `weights_fit`: the least that they may take is within the most that the budget may
    be. A refusal is only said where the start fails with the most memory too, and no memory at all where that is none
    or `is_empty`; between the two ends it is tight, and so it is without `has_room` for what the start takes after the
    pool or wants free before it loads, or where the check passes and the pool is too small for one request all the
    same.

    Raises EngineRefusalError `state-blocks-too-few`, as the engine does when it captures graphs: after those checks.

    Source: vllm/v1/core/kv_cache_utils.py:_check_enough_kv_cache_memory before vllm/v1/worker/gpu_model_runner.py:
    GPUModelRunner.initialize_kv_cache (0.27.1, 0.32.0).
    """

    def seats(one: Pool) -> int:
        return least_state_blocks((group.kind for group in one.groups), resolved) if counts_states else 0

    def starts(one: Pool) -> bool:
        return one.fits and one.num_blocks >= max(1, seats(one))

    if not weights_fit:
        return Verdict.WEIGHTS_DO_NOT_FIT
    best, is_enough = cache, cache is not None and starts(cache)
    if most and not is_enough:
        if min(most) <= 0:
            return Verdict.NO_KV_MEMORY
        if cache is None or len(most) > 1 or resolved.max_model_len_auto or most[0] >= cache.needed_bytes:
            best = planned(most)
    if best is None or best.num_blocks <= 0:
        return Verdict.NO_KV_MEMORY
    if not is_enough and not starts(best):
        if is_empty:
            return Verdict.NO_KV_MEMORY
        if cache is None or not cache.fits:
            return Verdict.CONTEXT_TOO_LONG
        check_state_blocks(cache, resolved)
    if best is not cache or not has_room or not best.holds_one:
        return Verdict.TIGHT
    needed = max(best.needed_bytes, best.request_bytes, seats(best) * best.bytes_per_block)
    if not least or (len(least) == 1 and least[0] > needed + best.bytes_per_block):
        return Verdict.FITS
    if min(least) <= 0:
        return Verdict.TIGHT
    worst = planned(least)
    return Verdict.FITS if starts(worst) and worst.holds_one else Verdict.TIGHT
