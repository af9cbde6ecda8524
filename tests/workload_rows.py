"""The same requests for every database, and their cells as computed in Python."""

from __future__ import annotations

import random
from collections import Counter

from kvcore.workload.database.cells import BITS, Cells
from kvcore.workload.histogram import MAX_TOKENS, rounded_up

EDGES = (
    1,
    2,
    127,
    128,
    129,
    130,
    255,
    256,
    257,
    1023,
    1024,
    1025,
    131_072,
    131_073,
    MAX_TOKENS - 1,
    MAX_TOKENS,
)
UNUSABLE = ((0, 5), (-3, 5), (None, 5), (MAX_TOKENS + 1, 5), (700, -1), (700, MAX_TOKENS + 1))
Row = tuple[int | None, int | None]


def rows(number: int = 2000) -> list[Row]:
    """Requests as people send them, all edges of bins, requests without an answer, and rows that tell nothing."""
    chosen = random.Random(13)
    usual = [
        (min(MAX_TOKENS, 1 + int(chosen.lognormvariate(6.8, 1.2))), int(chosen.expovariate(1 / 300)))
        for _ in range(number)
    ]
    edges = [(length, length) for length in EDGES] + [(length, None) for length in EDGES]
    return [*usual, *edges, (9, 0), *UNUSABLE]


def cells_of(given: list[Row]) -> Cells:
    """The expected answer of every database."""
    counts: Counter[tuple[int, int]] = Counter()
    unusable = 0
    for prompt, answer in given:
        if prompt is None or not 1 <= prompt <= MAX_TOKENS or not 0 <= (answer or 0) <= MAX_TOKENS:
            unusable += 1
        else:
            counts[rounded_up(prompt, BITS), -1 if answer is None else rounded_up(answer, BITS)] += 1
    found = ((prompt, None if answer < 0 else answer, n) for (prompt, answer), n in sorted(counts.items()))
    return Cells(counts=tuple(found), unusable=unusable)
