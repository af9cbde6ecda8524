"""HiCache: pools of each rank in the host's memory that mirror those on its card, and what a start needs for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kvcore.base.errors import Notice, notice
from kvcore.base.quantity import Quantity, Unit, given
from kvcore.base.units import GIB
from kvcore.engines.sglang.arguments import V0_5_11, V0_5_18, V0_5_21, engine_refuses
from kvcore.engines.sglang.cells import NARROW
from kvcore.engines.sglang.pools import Pools
from kvcore.engines.sglang.start import Start
from kvcore.engines.sglang.tables import sglang_release
from kvcore.host.pinned import of_the_host, pinned_bytes, power_of_two
from kvcore.host.tier import Tier

HICACHE: Final = "HiCache"
SWITCH: Final = "enable_hierarchical_cache"
RATIO: Final = "hicache_ratio"
SIZE: Final = "hicache_size"
DEFAULT_RATIO: Final = 2.0
"""Source: srt/server_args.py:ServerArgs.hicache_ratio (0.4.10, 0.5.13), mem_cache/kv_cache_builder.py (0.5.23)."""
FITTED_SHARE: Final = 0.8
SLACK_SHARE: Final = 0.05
GIGA: Final = 10**9
"""What `--hicache-size` counts in. Source: mem_cache/memory_pool_host.py:HostKVCache.__init__ (0.4.10, 0.5.13)."""
KEPT_FREE_BYTES: Final = 10 * GIB
"""Source: mem_cache/memory_pool_host.py: ten_gb (0.5.9), HICACHE_HOST_MEMORY_RESERVE_BYTES (0.5.11, 0.5.23)."""
SOURCE: Final = (
    "mem_cache/memory_pool_host.py:HostKVCache.__init__ (0.4.10, 0.5.9, 0.5.13), mem_cache/pool_host/base.py: "
    "HostKVCache (0.5.18, 0.5.23)"
)
PINNED: Final = (
    "mem_cache/memory_pool_host.py:MHATokenToKVPoolHost.init_kv_buffer: torch.empty(pin_memory=True) (0.4.10, "
    "0.5.3.post3); torch ATen/core/CachingHostAllocator.h"
)
V0_5_6: Final = sglang_release("0.5.6.post2")
V0_5_9: Final = sglang_release("0.5.9")
FIELD: Final = "server_args"


def is_asked(start: Start) -> bool:
    """Whether a start has the hierarchical cache."""
    return bool(start.arguments.raw.get(SWITCH))


def is_counted(start: Start) -> bool:
    """Whether the pools of the model are mirrored one by one as counted here: one pool of keys and values, or latents.

    Pools of windows, states and drafts are mirrored in ways of their own, or refused, from release to release.
    """
    shape, arguments = start.shape, start.arguments
    has_windows = bool(shape.windows) and arguments.has_window_pool
    is_other = (
        shape.is_hybrid or has_windows or shape.compressed is not None or shape.block_indexer is not None
    )
    is_narrow = start.kv_dtype in (*NARROW, "mxfp8")
    is_early = bool(shape.index_width) and start.version < V0_5_9
    has_draft = bool(arguments.algorithm) and start.version >= V0_5_11
    has_two_widths = shape.latent is None and shape.heads.key != shape.heads.value
    return not (is_other or is_narrow or is_early or has_draft or has_two_widths)


def check_hicache(start: Start) -> None:
    """Raises EngineRefusalError in the engine's words where prefixes are kept in the host's memory and nowhere else.

    Source: srt/server_args.py:ServerArgs (0.5.3.post3, 0.5.18).
    """
    if (
        is_asked(start)
        and start.arguments.disable_radix_cache
        and start.version >= sglang_release("0.5.3.post3")
    ):
        raise engine_refuses(
            "The arguments enable-hierarchical-cache and disable-radix-cache are mutually exclusive and cannot be "
            "used at the same time. Please use only one of them.",
            "enable_prefix_caching",
            False,
        )


def host_tokens(
    device_tokens: int, ratio: float, size_gb: float, row_bytes: float, page: int, *, pads: bool
) -> int:
    """Tokens of a rank's pool in the host's memory: of its size in 10^9 bytes, or so many times those on the card.

    Whole pages; `pads`: and one page more, as releases from 0.5.6 have it.

    Example:
        >>> host_tokens(100_000, 2.0, 0, 147_456, 64, pads=True)
        200064
        >>> host_tokens(100_000, 2.0, 100, 147_456, 64, pads=False)
        678144
    """
    tokens = int(size_gb * GIGA // row_bytes) if size_gb > 0 else int(device_tokens * ratio)
    return (tokens // page + (1 if pads else 0)) * page


def mirrored_bytes(ranks: int, pools: Sequence[tuple[int, float]]) -> float:
    """Bytes of the pools of all ranks; `pools`: tokens and bytes of a token of one rank of each stage."""
    return ranks * sum(tokens * row for tokens, row in pools)


def fitted_ratio(machine_bytes: float, ranks: int, device_bytes: float) -> float:
    """The ratio that is filled in where neither it nor a size is set: no more than the machine has for each rank.

    `machine_bytes`: all of the machine; what of it is free at the start is less. `device_bytes`: the pools of a rank.

    Source: mem_cache/hicache_auto_size.py:auto_size_hicache, arg_groups/fields/memory.py:hicache_host_memory_fraction
    (0.5.21, 0.5.23).

    Example:
        >>> round(fitted_ratio(1024 * GIB, 8, 60 * GIB), 4), round(fitted_ratio(490 * GIB, 8, 60 * GIB), 3)
        (1.6055, 0.76)
    """
    budget = (machine_bytes - KEPT_FREE_BYTES) // ranks * FITTED_SHARE
    return min(DEFAULT_RATIO, max(0.0, budget * (1 - SLACK_SHARE) / device_bytes))


def hicache_tier(start: Start, pools: Pools, machine_gib: float | None) -> Tier | None:
    """What the hierarchical cache takes of the host for one replica; None where it is not asked for, or not counted.

    Raises EngineRefusalError in the engine's words for a pool that is no larger than the one on the card.
    """
    if not is_asked(start) or not is_counted(start) or not pools.tokens:
        return None
    arguments, sizing = start.arguments, start.sizing
    ratio, size = arguments.raw.get(RATIO), arguments.raw.get(SIZE) or 0
    page, pads = arguments.page_size, start.version >= V0_5_6
    rows = [sizing.host_rows(stage) for stage in sizing.stages]
    if ratio is None:
        ratio, own = DEFAULT_RATIO, max(row.built for row in rows) * (pools.tokens + page)
        if start.version >= V0_5_21 and machine_gib is not None:
            here = arguments.tp_size * arguments.pp_size // int(arguments.raw.get("nnodes") or 1)
            ratio = fitted_ratio(machine_gib * GIB, max(1, here), own)
            if ratio <= 0:
                raise engine_refuses(
                    "No host memory is left for HiCache after the 10 GiB reserve; set --hicache-ratio or "
                    "--hicache-size explicitly.",
                    "node_memory_gib",
                    machine_gib,
                )
    counts = [host_tokens(pools.tokens, ratio, size, row.sized, page, pads=pads) for row in rows]
    if start.version >= V0_5_18:
        counts = [min(counts)] * len(counts)
    if min(counts) <= pools.tokens and start.version < V0_5_18:
        raise engine_refuses(
            "The host memory should be larger than the device memory with the current protocol",
            FIELD,
            size or ratio,
        )
    ranks = arguments.attention_ranks
    taken = _taken(ranks, counts, [row.built for row in rows], is_pinned=not pads)
    return Tier(
        connector=HICACHE,
        taken=taken,
        asked_bytes=int(size * GIGA) * ranks * len(rows) if size > 0 else None,
        blocks=min(counts) // page,
        tokens=min(counts),
        most_tokens=min(counts),
        bytes_per_token=ranks * sum(row.built for row in rows),
        copies=ranks if start.shape.latent is not None else 1,
        kept_free_bytes=KEPT_FREE_BYTES,
    )


def _taken(ranks: int, counts: Sequence[int], rows: Sequence[float], *, is_pinned: bool) -> Quantity:
    """Bytes of the pools; `is_pinned`: each rank's is one tensor that torch pins, rounded up to a power of two.

    Source: mem_cache/memory_pool_host.py:MHATokenToKVPoolHost.init_kv_buffer: torch.empty(pin_memory=True) (0.4.10,
    0.5.3.post3), alloc_with_host_register: cudaHostRegister (0.5.6.post2, 0.5.9).
    """
    if is_pinned:
        tensors = tuple(
            (given("tensors", 1), given("pinned_tensor", power_of_two(int(count * row)), Unit.BYTES))
            for count, row in zip(counts, rows, strict=True)
        )
        return of_the_host("host_tier", pinned_bytes, given("ranks", ranks), tensors, source=PINNED)
    parts = tuple(
        (given("tokens", count, Unit.TOKENS), given("bytes_per_token", row, Unit.BYTES))
        for count, row in zip(counts, rows, strict=True)
    )
    return of_the_host("host_tier", mirrored_bytes, given("ranks", ranks), parts, source=SOURCE)


def hicache_notices(start: Start) -> tuple[Notice, ...]:
    """What people get wrong: a size that every rank takes, settings without the switch, pools that are not counted."""
    raw: Any = start.arguments.raw
    if not is_asked(start):
        unread = next((name for name in (SIZE, RATIO) if raw.get(name)), None)
        return () if unread is None else (notice("hicache-not-asked", f"{FIELD}.{unread}"),)
    if not is_counted(start):
        return (notice("hicache-not-counted", f"{FIELD}.{SWITCH}"),)
    size, ranks = raw.get(SIZE) or 0, start.arguments.tp_size * start.arguments.pp_size
    if size > 0 and ranks > 1:
        said = {"value": f"{size:g}", "ranks": ranks, "total": f"{size * ranks:g}"}
        return (notice("hicache-size-per-rank", f"{FIELD}.{SIZE}", **said),)
    return ()
