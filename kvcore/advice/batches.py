"""The largest --max-num-batched-tokens that still starts, by how cards are cut and how long a request may be."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError
from kvcore.evidence.carry import carried_over
from kvcore.planning import Verdict
from kvcore.planning.numbers import numbers
from kvcore.scenario import Parallel, Scenario

STEP: Final = 1024
LARGEST: Final = 131_072
STARTS: Final = (Verdict.FITS, Verdict.TIGHT)


class LargestBatch(Struct, frozen=True, kw_only=True):
    """One cut of the cards at one length."""

    parallel: Parallel
    max_model_len: int
    tokens: int
    """A multiple of STEP up to LARGEST; 0 where not even the smallest starts."""
    scenario: Scenario
    """With that batch; the smallest that was tried where none starts."""
    is_tight: bool


def largest_batches(
    base: Scenario, cuts: Sequence[Parallel], lengths: Sequence[int]
) -> Iterator[LargestBatch]:
    """For each of `cuts` at each of `lengths`: activations grow with the batch, so every smaller one starts too.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> base = scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "Ascend-910B4-32GB"})
        >>> [found] = largest_batches(base, [base.parallel], [32768])
        >>> found.tokens % STEP, found.scenario.max_num_batched_tokens == found.tokens
        (0, True)
    """
    for parallel in cuts:
        for length in lengths:
            cut = replace(base, parallel=parallel, max_model_len=length)
            yield _largest(base, cut, length)


def _largest(base: Scenario, cut: Scenario, length: int) -> LargestBatch:
    def at(tokens: int) -> Scenario:
        return carried_over(base, replace(cut, max_num_batched_tokens=tokens))

    batches = range(LARGEST, 0, -STEP)
    index = bisect_left(batches, True, key=lambda tokens: _verdict(at(tokens)) in STARTS)
    tokens = batches[index] if index < len(batches) else 0
    found = at(tokens or STEP)
    return LargestBatch(
        parallel=cut.parallel,
        max_model_len=length,
        tokens=tokens,
        scenario=found,
        is_tight=tokens > 0 and _verdict(found) is Verdict.TIGHT,
    )


def _verdict(scenario: Scenario) -> Verdict | None:
    """None where the engine refuses it."""
    try:
        return numbers(scenario).verdict
    except KvPlannerError:
        return None
