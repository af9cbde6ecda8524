"""What a plan holds of a mix at once, as JSON and as text: `python -m kvcore workload LOG --request plan.json`."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Final

from kvcore.base.units import rounded
from kvcore.planning import Plan
from kvcore.workload.limits import requests_at, steady_of
from kvcore.workload.mix import Mix
from kvcore.workload.recall import Recall, recall_of
from kvcore.workload.steady import PREEMPTED
from kvcore.workload.timeline import Timeline

SHARING: Final = 0.9
"""Share of the requests that begin alike, for a prefix to count as that of all."""


def shared_prefix_tokens(timeline: Timeline) -> int:
    """Tokens at the start of nearly all prompts, by the hashes of the log; 0 without any.

    Example:
        >>> from kvcore.workload.timeline import Timekeeper
        >>> taken = Timekeeper()
        >>> for own in range(20):
        ...     taken.add(float(own), 1200, 7, (1, 2, 100 + own))
        >>> shared_prefix_tokens(taken.timeline())
        1024
    """
    size = timeline.block_tokens
    if size is None:
        return 0
    prompts = [tuple(one.hashes) for one in timeline.arrivals()]
    blocks, least = 0, SHARING * len(prompts)
    while True:
        counted = Counter(prompt[blocks] for prompt in prompts if len(prompt) > blocks)
        common = counted.most_common(1)
        if not common or common[0][1] < least:
            return blocks * size
        blocks += 1


def recalled(timeline: Timeline) -> Recall | None:
    """What prompts of a log begin with that earlier ones had; None where it has no hashes.

    Example:
        >>> from kvcore.workload.timeline import Timekeeper
        >>> taken = Timekeeper()
        >>> for second, blocks in enumerate([(1, 2), (5, 6), (1, 2, 3)]):
        ...     taken.add(float(second), 512 * len(blocks), 7, blocks)
        >>> recalled(taken.timeline()).prompts
        ((), (), ((2, 1024),))
    """
    size = timeline.block_tokens
    return (
        None if size is None else recall_of(((one.hashes, one.hashes) for one in timeline.arrivals()), size)
    )


def capacity_report(
    planned: Plan, mix: Mix, shared_tokens: int = 0, recall: Recall | None = None
) -> dict[str, Any] | None:
    """How many requests of a mix run at once while others wait, with the 80 % interval; None without a pool.

    `max_num_seqs` is the largest with at most 0.05 preemptions a request; where any number is, that of the plan.
    `at_admission` is the engine's own count: requests of the mean length, each with the most that it may take.
    `found_tokens` of a prompt are those of single earlier ones that the pool still has when so many run.
    """
    caches = planned.resolved.enable_prefix_caching
    steady = steady_of(planned, mix, shared_tokens if caches else 0, recall if caches else None)
    if steady is None:
        return None
    resolved = planned.resolved
    running, reach, most = steady.running(resolved.max_num_seqs), steady.reach(), steady.most_seats()
    mean = mix.taken_at(resolved.max_model_len).mean_tokens
    (at_mean,) = requests_at(planned, (max(1, math.ceil(mean)),))
    return {
        "running": rounded(running),
        "interval": [rounded(running * (1 - reach)), rounded(running * (1 + reach))],
        "max_num_seqs": resolved.max_num_seqs if most is None else most,
        "any_max_num_seqs": most is None,
        "preemptions_per_request": rounded(steady.preemptions(resolved.max_num_seqs)),
        "at_admission": None if math.isinf(at_mean) else rounded(at_mean),
        "admission_binds": steady.admission_binds,
        "shared_tokens": shared_tokens if caches else 0,
        "found_tokens": rounded(steady.found_tokens(running)),
    }


def capacity_table(found: dict[str, Any] | None) -> str:
    """The same as text."""
    if found is None:
        return "the engine has no cache for these requests with this plan"
    low, high = found["interval"]
    seats = "any number" if found["any_max_num_seqs"] else f"{found['max_num_seqs']:,}"
    lines = [
        f"running at once: {found['running']:,.1f} ({low:,.0f} to {high:,.0f} in 80 % of such mixes) while others wait",
        f"--max-num-seqs {seats}: at most {PREEMPTED:g} preemptions a request",
    ]
    if found["admission_binds"] and found["at_admission"] is not None:
        lines.append(
            f"by the engine's own count {found['at_admission']:,.1f} of mean length, each at its worst on admission"
        )
    if found["shared_tokens"]:
        lines.append(f"{found['shared_tokens']:,} tokens at the start of all prompts are stored once")
    if found["found_tokens"] >= 1:
        lines.append(f"{found['found_tokens']:,.0f} more tokens of a prompt are found of single earlier ones")
    return "\n".join(lines)
