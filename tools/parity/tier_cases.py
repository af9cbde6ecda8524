"""Cases of tiers in the host's memory for `tiers.py`, and kvcore's answer to each."""

from __future__ import annotations

from typing import Any

from kvcore.base.units import GIB
from kvcore.host.tier import region_row_bytes

FIRST = (0, 27)
"""The first release whose connector takes plain numbers."""


def _case(
    bytes_per_block: int, ranks: int, asked_gib: int, chunk: int = 1, *, alike: bool = False
) -> dict[str, Any]:
    return {
        "bytes_per_block": bytes_per_block, "ranks": ranks, "asked_bytes": asked_gib * GIB, "blocks_per_chunk": chunk,
        "is_replicated": alike,
    }  # fmt: skip


CASES = {
    "heads on four ranks": _case(64 * 16 * 2 * 2 * 128 * 2, 4, 200),
    "heads of one rank": _case(36 * 16 * 2 * 8 * 128 * 2, 1, 40),
    "latent vectors once": _case(61 * 64 * 576 * 2, 8, 200, alike=True),
    "latent vectors of each rank": _case(61 * 64 * 576 * 2, 8, 200),
    "vectors with an indexer": _case(78 * 64 * 656 + 21 * 64 * 132, 8, 100),
    "a row that is no whole page": _case(1_000_001, 3, 7),
    "chunks of four blocks": _case(1_048_576, 2, 64, 4),
    "less than a chunk": _case(1 << 30, 8, 4),
}


def answer(case: dict[str, Any]) -> dict[str, int]:
    """kvcore's figures of a case."""
    copies = 1 if case["is_replicated"] else case["ranks"]
    row = region_row_bytes(case["bytes_per_block"], copies, case["blocks_per_chunk"])
    return {"blocks": case["asked_bytes"] // row, "row_bytes": row}


def applies(release: str) -> bool:
    """Whether a release's connector can be asked."""
    return tuple(map(int, release.split(".")[:2])) >= FIRST


def disagrees(row: dict[str, Any], case: dict[str, Any] | None = None) -> bool:
    """Whether a release's answer is another than kvcore's."""
    own = answer(CASES[row["case"]] if case is None else case)
    return any(row[name] != value for name, value in own.items())
