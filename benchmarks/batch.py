"""Plans a second of `python -m kvcore plan --jsonl`, JSON included.

Baseline: reading and writing the same JSON without planning anything.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from kvcore import catalogue
from kvcore.contract.result import answer
from kvcore.model.config import SharedConfigs
from kvcore.planning import Batch

ROUNDS = 3


def requests() -> list[str]:
    """One request per bundled model and tensor parallel size, on three cards."""
    return [
        json.dumps(
            {
                "id": f"{model}/{card}/{size}",
                "model": model,
                "accelerator": card,
                "tensor_parallel_size": size,
            }
        )
        for model in catalogue.model_ids()
        for card in ("H100-80GB", "RTX-4090-24GB", "H200-141GB")
        for size in (1, 2, 4, 8)
    ]


def answered(lines: list[str]) -> list[dict[str, Any]]:
    """The answers of one batch."""
    configs, batch = SharedConfigs(), Batch()
    return [answer(line, configs.read, batch) for line in lines]


def seconds(work: Callable[[], object]) -> float:
    """The fastest of three runs, after one that warms the caches that a batch warms by itself."""
    work()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Prints plans a second, cold and warm, and the ratio to the JSON alone."""
    lines = requests()
    start = time.perf_counter()
    answers = answered(lines)
    cold = time.perf_counter() - start
    fitting = [
        line for line, got in zip(lines, answers, strict=True) if got.get("verdict") in ("fits", "tight")
    ]
    outcomes = [got.get("verdict") or got["error"]["code"] for got in answers]
    counts = {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}
    plain = seconds(lambda: [json.dumps(json.loads(line) | answers[0]) for line in lines])
    warm = seconds(lambda: [json.dumps(found) for found in answered(lines)])
    fits = seconds(lambda: [json.dumps(found) for found in answered(fitting)])
    print(f"batch: {len(lines)} requests: {counts}")
    print(f"  first pass, each model read once       {len(lines) / cold:8,.0f} plans/s")
    print(
        f"  all, with fixes where it fails         {len(lines) / warm:8,.0f} plans/s  {warm / plain:6.1f} × JSON"
    )
    share, rate = len(fitting) / len(lines), len(fitting) / fits
    print(
        f"  only those that fit                    {rate:8,.0f} plans/s  {fits / plain / share:6.1f} × JSON"
    )


if __name__ == "__main__":
    main()
