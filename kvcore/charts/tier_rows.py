"""What a tier of each size in the host's memory buys of a trace: rows for a page, a terminal and JSON.

A tier keeps what the pool on the GPUs has too, and forgets the same: what was used longest ago, the end of a request
before its start. So it finds what a cache of its own size finds, and one smaller than the pool finds nothing more.

Source: vllm/v1/kv_offload/cpu/policies/lru.py:LRUCachePolicy.on_request_access (0.33.0), distributed/kv_transfer/
kv_connector/v1/offloading/scheduler.py:_touch (0.29.0): blocks found on the GPU count as used.
"""

from __future__ import annotations

import math
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.advice.roofline import peak_flops, token_flops
from kvcore.base.errors import KvPlannerError
from kvcore.base.units import GIB, ceil_div, rounded
from kvcore.host.tier import Tier
from kvcore.planning import Plan, plan
from kvcore.replay.reuse import Reuse

MOST: Final = 8
PROBE_GIB: Final = 64
"""A tier of that size tells how much of one a token takes: the release counts in proportion."""


class TierRow(Struct, frozen=True, kw_only=True):
    """A tier of one size."""

    asked_gib: float
    """Its flag, over all ranks of the engine."""
    taken_bytes: int
    """What the machine gives for it: releases before 0.27 round it up."""
    tokens: int
    hit_rate: float
    """Share of the prompt tokens that are found on the GPUs or in the tier."""
    spared_tokens: int
    """Prompt tokens of the trace that it finds and the pool does not: they are read, not computed."""
    spared_seconds: float | None
    """The time to compute them at the card's peak, at the least; None where the peak is not known."""
    is_knee: bool
    """The one at the knee of the curve, in whole GiB: beyond it more memory buys little."""


def tier_at(planned: Plan, asked_gib: float) -> tuple[Tier, int] | None:
    """The tier of a plan with so many GiB for it, and what it takes of the machine; None where the release starts
    with none.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "engine_version": "0.33.0"}
        >>> tier_at(plan(scenario_from_request({**asked, "max_model_len": 8192})), 100)[0].tokens
        728176
    """
    asked = replace(planned.scenario, kv_offloading_size=asked_gib, node_memory_gib=None, shm_gib=None)
    try:
        host = plan(asked).host
    except KvPlannerError:
        return None
    if host is None or host.tier is None or not host.tier.tokens:
        return None
    return host.tier, host.bytes_per_node


def tier_rows(planned: Plan, found: Reuse, pool_blocks: int) -> tuple[TierRow, ...]:
    """Tiers of doubling size, from the first that holds more than the pool to the first that forgets nothing, and the
    one at the knee; empty where the release starts with none, or none finds more."""
    probed = tier_at(planned, PROBE_GIB)
    if probed is None or not found.distances or found.distances[-1] <= pool_blocks:
        return ()
    gib_per_block = probed[0].bytes_per_token * found.block_size / GIB
    sizes = _doubling((pool_blocks + 1) * gib_per_block, found.distances[-1] * gib_per_block)
    knee = found.knee_blocks()
    at_knee = float(math.ceil(knee * gib_per_block)) if knee > pool_blocks else 0.0
    asked = sorted({*sizes, at_knee} - {0.0})
    tiers = ((size, tier_at(planned, size)) for size in asked)
    return tuple(
        _row(planned, found, pool_blocks, size, *tier, is_knee=size == at_knee)
        for size, tier in tiers
        if tier is not None
    )


def _doubling(low: float, high: float) -> list[float]:
    """Powers of two from the first not below `low` to the first not below `high`, at most `MOST` of them."""
    first = math.ceil(math.log2(low))
    last = max(first, math.ceil(math.log2(high)))
    return [2.0**power for power in range(last, first - 1, -ceil_div(last - first + 1, MOST))]


def _row(
    planned: Plan, found: Reuse, pool_blocks: int, asked_gib: float, tier: Tier, taken: int, *, is_knee: bool
) -> TierRow:
    rate = found.hit_rate(max(pool_blocks, tier.tokens // found.block_size))
    spared = round((rate - found.hit_rate(pool_blocks)) * found.prompt_tokens)
    peak = peak_flops(planned)
    return TierRow(
        asked_gib=asked_gib,
        taken_bytes=taken,
        tokens=tier.tokens,
        hit_rate=rate,
        spared_tokens=spared,
        spared_seconds=None if math.isinf(peak) else spared * token_flops(planned) / peak,
        is_knee=is_knee,
    )


def knee_gib(rows: tuple[TierRow, ...]) -> float | None:
    """The size at the knee; None where the pool reaches it."""
    return next((row.asked_gib for row in rows if row.is_knee), None)


def tiers_report(rows: tuple[TierRow, ...]) -> list[dict[str, Any]]:
    """The rows as JSON."""
    return [
        {
            "kv_offloading_size": row.asked_gib,
            "bytes_per_node": row.taken_bytes,
            "tokens": row.tokens,
            "hit_rate": rounded(row.hit_rate),
            "spared_tokens": row.spared_tokens,
            "spared_seconds": None if row.spared_seconds is None else rounded(row.spared_seconds),
            "is_knee": row.is_knee,
        }
        for row in rows
    ]


def tiers_table(rows: tuple[TierRow, ...]) -> str:
    """The rows for a terminal."""
    head = f"{'--kv-offloading-size':<24}{'tokens':>14}{'hits':>9}{'prompt tokens spared':>23}"
    return "\n".join(
        [head]
        + [
            f"{row.asked_gib:<24g}{row.tokens:>14,}{100 * row.hit_rate:>7.1f} %{row.spared_tokens:>23,}"
            + ("  knee" if row.is_knee else "")
            for row in rows
        ]
    )
