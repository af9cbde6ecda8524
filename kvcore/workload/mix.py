"""The lengths that a deployment is to serve: from a request log, or from percentiles."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from kvcore.kept import Keeper, kept
from kvcore.units import round_up
from kvcore.workload.histogram import LengthHistogram
from kvcore.workload.quantiles import LengthQuantiles, Percentiles
from kvcore.workload.records import RequestLog

PERCENT: Final = 99
"""Of the requests; the rest is refused, or its answers are cut short."""
ROUND_TO: Final = 256
"""A length that people recognise, and a multiple of every block size in use on attention-only models."""
CELLS: Final = 512
"""Different lengths that are distinguished when batches are drawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mix(Keeper):
    """What the requests take and need, as distributions."""

    taken: LengthHistogram
    """Prompt and answer together, when the answer ends."""
    needed: LengthHistogram
    """The max_model_len that serves a request in full."""
    quantiles: LengthQuantiles
    running_tokens: float
    """What a running request takes on average, at a random step of a random answer; 0 where it is not known."""
    is_from_percentiles: bool

    @property
    def recommended_max_model_len(self) -> int:
        """The smallest multiple of 256 that serves 99 % of the requests in full.

        Example:
            >>> from kvcore.workload.records import read_request_log
            >>> log = read_request_log(b'{"prompt_tokens": %d, "max_tokens": 512}' % n for n in range(101, 1201))
            >>> mix_of_log(log).recommended_max_model_len
            1792
        """
        return round_up(max(1, self.needed.percentile_tokens(PERCENT)), ROUND_TO)

    @kept
    def taken_at(self, limit_tokens: int) -> LengthHistogram:
        """What requests take under a limit: the engine stops an answer there."""
        return self.taken.clipped(limit_tokens).coarsened(CELLS)


def mix_of_log(log: RequestLog) -> Mix:
    """The mix of a request log, exact up to the approximation of prompts that had no counts."""
    return Mix(
        taken=log.taken,
        needed=log.needed,
        quantiles=LengthQuantiles(
            prompt=Percentiles.of(log.prompts),
            answer=Percentiles.of(log.completions),
            taken=Percentiles.of(log.taken),
            needed=Percentiles.of(log.needed),
        ),
        running_tokens=log.running_tokens,
        is_from_percentiles=False,
    )


@lru_cache(maxsize=32)
def mix_of_quantiles(quantiles: LengthQuantiles) -> Mix:
    """A mix with these percentiles: log-normal between them."""
    answers = quantiles.answer.histogram()
    prompt = quantiles.prompt.histogram().mean_tokens
    squares = sum(
        length * length * count for length, count in zip(answers.lengths, answers.counts, strict=True)
    )
    steps = sum(length * count for length, count in zip(answers.lengths, answers.counts, strict=True))
    return Mix(
        taken=quantiles.taken.histogram(),
        needed=quantiles.needed.histogram(),
        quantiles=quantiles,
        running_tokens=prompt + (squares / steps + 1) / 2 if quantiles.answer.p50 and steps else 0.0,
        is_from_percentiles=True,
    )
