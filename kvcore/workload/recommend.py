"""The max_model_len that a workload needs: P99 of the prompts plus what an answer may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvcore.units import round_up
from kvcore.workload.histogram import LengthHistogram
from kvcore.workload.records import RequestLog

PERCENT: Final = 99
"""Of the prompts; the rest is refused or truncated by the client."""
ROUND_TO: Final = 256
"""A length that people recognise, and a multiple of every block size in use on attention-only models."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Percentiles of the prompt, and the room for an answer, in tokens."""

    p50_prompt_tokens: int
    p95_prompt_tokens: int
    p99_prompt_tokens: int
    max_tokens: int

    @property
    def recommended_max_model_len(self) -> int:
        """P99 prompt + max_tokens, rounded up to a multiple of 256.

        Source: the out-of-memory post-mortem that this product grew from ("P99 prompt length + max_tokens").

        Example:
            >>> Lengths(p50_prompt_tokens=900, p95_prompt_tokens=1150, p99_prompt_tokens=1200,
            ...         max_tokens=512).recommended_max_model_len
            1792
        """
        return round_up(max(1, self.p99_prompt_tokens + self.max_tokens), ROUND_TO)


def lengths_of(log: RequestLog) -> Lengths:
    """Percentiles of a request log. Room for the answer: the largest max_tokens asked for, else the P99 answer."""
    answers: LengthHistogram = log.completions
    room = log.max_tokens.longest_tokens or answers.percentile_tokens(PERCENT)
    return Lengths(
        p50_prompt_tokens=log.prompts.percentile_tokens(50),
        p95_prompt_tokens=log.prompts.percentile_tokens(95),
        p99_prompt_tokens=log.prompts.percentile_tokens(PERCENT),
        max_tokens=room,
    )
