"""The lengths that a deployment is to serve, from a request log or from percentiles, and the report about them.

The report is what `python -m kvcore workload` prints: length statistics and the max_model_len that they need.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from kvcore.kept import Keeper, kept
from kvcore.units import round_up, rounded
from kvcore.workload.histogram import LengthHistogram, LengthQuantiles, Percentiles
from kvcore.workload.records import RequestLog

PERCENT: Final = 99
"""Of the requests; the rest is refused, or its answers are cut short."""
ROUND_TO: Final = 256
"""A length that people recognise, and a multiple of every block size in use on attention-only models."""
STATISTICS: Final = (50, 90, 95, 99)
"""Percentiles of the report."""
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
    squares = sum(length * length * count for length, count in answers.items)
    steps = sum(length * count for length, count in answers.items)
    return Mix(
        taken=quantiles.taken.histogram(),
        needed=quantiles.needed.histogram(),
        quantiles=quantiles,
        running_tokens=prompt + (squares / steps + 1) / 2 if quantiles.answer.p50 and steps else 0.0,
        is_from_percentiles=True,
    )


def workload_report(log: RequestLog) -> dict[str, Any]:
    """The statistics as JSON; a part that the log does not tell is null.

    Example:
        >>> from kvcore.workload.records import read_request_log
        >>> log = read_request_log([b'{"usage": {"prompt_tokens": 900, "completion_tokens": 80}, "max_tokens": 512}'])
        >>> workload_report(log)["recommended_max_model_len"]
        1536
    """
    mix = mix_of_log(log)
    return {
        "requests": log.prompts.requests,
        "prompt_tokens": length_statistics(log.prompts),
        "completion_tokens": length_statistics(log.completions),
        "max_tokens": length_statistics(log.max_tokens),
        "taken_tokens": length_statistics(log.taken),
        "needed_tokens": length_statistics(log.needed),
        "recommended_max_model_len": mix.recommended_max_model_len,
        "share_left_out": rounded(log.needed.share_above(mix.recommended_max_model_len)),
        "prompts_estimated_from_text": log.estimated,
        "lines_not_usable": {
            "count": log.unusable,
            "first": list(log.unusable_lines),
            "reasons": {reason.value: count for reason, count in log.reasons},
        },
    }


def length_statistics(histogram: LengthHistogram) -> dict[str, float] | None:
    """Number, mean, percentiles and maximum of a length; None without any.

    Example:
        >>> length_statistics(LengthHistogram.from_lengths([100, 300]))
        {'count': 2, 'mean': 200.0, 'p50': 100, 'p90': 300, 'p95': 300, 'p99': 300, 'max': 300}
    """
    if not histogram.lengths:
        return None
    return {
        "count": histogram.requests,
        "mean": rounded(histogram.mean_tokens),
        **{f"p{percent}": histogram.percentile_tokens(percent) for percent in STATISTICS},
        "max": histogram.longest_tokens,
    }


def workload_table(report: dict[str, Any]) -> str:
    """The same for people."""
    columns = ("count", "mean", *(f"p{percent}" for percent in STATISTICS), "max")
    lines = ["tokens".ljust(12) + "".join(name.rjust(12) for name in columns)]
    for name in ("prompt", "completion", "max", "taken", "needed"):
        found = report[f"{name}_tokens"]
        if found is not None:
            lines.append(name.ljust(12) + "".join(f"{found[column]:>12,.0f}" for column in columns))
    lines.append(
        f"--max-model-len {report['recommended_max_model_len']}  (serves 99 % of the requests in full)"
    )
    bad = report["lines_not_usable"]
    if bad["count"]:
        first = ", ".join(map(str, bad["first"]))
        lines.append(f"{bad['count']:,} lines could not be used, the first: {first}")
    estimated = report["prompts_estimated_from_text"]
    if estimated:
        lines.append(f"{estimated:,} prompts were counted from their text, not by a tokenizer")
    return "\n".join(lines)
