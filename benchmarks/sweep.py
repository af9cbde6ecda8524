"""The whole catalogue on every accelerator at tensor parallel sizes 1, 2, 4 and 8.

Baseline: planning each cell by itself, on a sample of them.
"""

from __future__ import annotations

import random
import time

from kvcore import catalogue
from kvcore.advice.sweep import SIZES, plan_cell, sweep
from kvcore.charts.matrix import json_lines
from kvcore.library import sweep_side_by_side
from kvcore.wire.request import scenario_from_request

SAMPLE = 5000


def main() -> None:
    """Prints the seconds of a first and of a second sweep, with JSON, and the ratio to the baseline."""
    models, cards = catalogue.load_models(), catalogue.load_accelerators()
    base = scenario_from_request({"model": models[0].id})
    times, found = [], {}
    for _ in range(2):
        start = time.perf_counter()
        found = {swept.model: swept.cells for swept in sweep(base, models, cards)}
        times.append(time.perf_counter() - start)
    rows = sum(map(len, found.values()))
    start = time.perf_counter()
    for swept in sweep(base, models, cards):
        "\n".join(json_lines(swept))
    with_json = time.perf_counter() - start
    start = time.perf_counter()
    shared_out = sum(len(swept.cells) for swept in sweep_side_by_side(0))
    side_by_side = time.perf_counter() - start
    assert shared_out == rows
    chosen = random.Random(0)
    sample = [(chosen.choice(models), chosen.choice(cards), chosen.choice(SIZES)) for _ in range(SAMPLE)]
    start = time.perf_counter()
    cells = [plan_cell(base, entry, card, size) for entry, card, size in sample]
    alone = (time.perf_counter() - start) / SAMPLE * rows
    places = [cards.index(card) * len(SIZES) + SIZES.index(size) for _, card, size in sample]
    differ = sum(
        cell != found[entry.id][place]
        for cell, (entry, _, _), place in zip(cells, sample, places, strict=True)
    )
    print(f"sweep: {rows:,} cells; of {SAMPLE:,} planned alone {differ} differ")
    print(f"  first, every model read once   {times[0]:6.2f} s")
    print(
        f"  again                          {times[1]:6.2f} s   {alone / times[1]:5.0f} × faster than cell by cell"
    )
    print(f"  again, with JSON               {with_json:6.2f} s")
    gain = times[0] / side_by_side
    print(f"  a process on each CPU, first   {side_by_side:6.2f} s   {gain:5.2f} × as fast as in one")


if __name__ == "__main__":
    main()
