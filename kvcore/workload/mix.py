"""The lengths that a deployment is to serve, from a request log or from percentiles, and the report about them.

The report is what `python -m kvcore workload` prints: length statistics and the max_model_len that they need.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from kvcore.base.errors import Notice
from kvcore.base.kept import Keeper, kept
from kvcore.base.units import round_up
from kvcore.workload.histogram import JointHistogram, LengthHistogram
from kvcore.workload.records import RequestLog
from kvcore.workload.traffic import LengthQuantiles, Percentiles, Traffic

PERCENT: Final = 99
"""Share of the requests to serve in full; others are refused or their answers cut."""
ROUND_TO: Final = 256
"""A round length, and a multiple of all block sizes in use on attention-only models."""
STATISTICS: Final = (50, 90, 95, 99)
"""Percentiles of the report."""
SHOWN_MODELS: Final = 32
TABLE_MODELS: Final = 4
FEWEST_TIMES: Final = 20
MOST_SAME: Final = 0.5
"""Share of requests with the time of an earlier one above which the times are doubted."""
CELLS: Final = 512
"""Different lengths of whole requests."""
STEADY_CELLS: Final = 256
"""Different pairs of prompt and answer in the steady state."""
JOINT_CELLS: Final = 40
"""Equally likely prompts, and answers, that stand for percentiles together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mix(Keeper):
    """Distributions of the tokens that requests take and need."""

    traffic: Traffic
    is_from_percentiles: bool = False

    @property
    def taken(self) -> LengthHistogram:
        """Prompt and answer together, when the answer ends."""
        return self.traffic.taken

    @property
    def needed(self) -> LengthHistogram:
        """The max_model_len that serves a request in full."""
        return self.traffic.needed

    @property
    def running_tokens(self) -> float:
        """Mean tokens of a running request, at a random step of a random answer; 0 if unknown."""
        return self.traffic.joint.running_tokens

    @property
    @kept
    def quantiles(self) -> LengthQuantiles:
        """P50, P95 and P99 of each length."""
        parts = (self.traffic.prompts, self.traffic.answers, self.taken, self.needed)
        prompt, answer, taken, needed = map(Percentiles.of, parts)
        return LengthQuantiles(prompt=prompt, answer=answer, taken=taken, needed=needed)

    @property
    def recommended_max_model_len(self) -> int:
        """The smallest multiple of 256 that serves 99 % of the requests in full.

        Example:
            >>> from kvcore.workload.logs import read_request_log
            >>> log = read_request_log(b'{"prompt_tokens": %d, "max_tokens": 512}' % n for n in range(101, 1201))
            >>> Mix(traffic=log.traffic).recommended_max_model_len
            1792
        """
        return round_up(recommended_tokens(self.traffic), ROUND_TO)

    @property
    @kept
    def joint_cells(self) -> tuple[tuple[int, int, int], ...]:
        """Prompt, answer and number of requests, in at most STEADY_CELLS cells."""
        return tuple(self.traffic.joint.binned(STEADY_CELLS)[0].items)

    @kept
    def taken_at(self, limit_tokens: int) -> LengthHistogram:
        """Tokens of requests under a limit, where the engine stops an answer."""
        return self.taken.clipped(limit_tokens).coarsened(CELLS)


@lru_cache(maxsize=32)
def mix_of_quantiles(quantiles: LengthQuantiles) -> Mix:
    """A mix with these percentiles: log-normal between them, prompts and answers independent of each other."""
    prompts, answers = quantiles.prompt.histogram(), quantiles.answer.histogram()
    joint = {
        (prompt, answer): times * number
        for prompt, times in quantiles.prompt.histogram(JOINT_CELLS).items
        for answer, number in quantiles.answer.histogram(JOINT_CELLS).items
    }
    traffic = Traffic(
        prompts=prompts,
        answers=answers if quantiles.answer.p99 else LengthHistogram.from_lengths(()),
        max_tokens=LengthHistogram.from_lengths(()),
        taken=quantiles.taken.histogram(),
        needed=quantiles.needed.histogram(),
        joint=JointHistogram.from_counts(joint),
    )
    return Mix(traffic=traffic, is_from_percentiles=True)


def recommended_tokens(traffic: Traffic, max_tokens: int | None = None) -> int:
    """The max_model_len that 99 % of the requests need, in tokens: what `--max-model-len` must be at least.

    It is the P99 of prompt + max_tokens, of each request its own (`needed_tokens` says what stands for a max_tokens
    that is not stated). With `max_tokens`, which all clients are to ask for, it is the P99 of the prompts + that.

    Example:
        >>> from kvcore.workload.traffic import traffic_of_counts
        >>> stated = traffic_of_counts({(1178, 459, 512): 1})
        >>> recommended_tokens(stated), recommended_tokens(stated, 1000)
        (1690, 2178)
    """
    if max_tokens is not None:
        return traffic.prompts.percentile_tokens(PERCENT) + max(1, max_tokens)
    return max(1, traffic.needed.percentile_tokens(PERCENT))


def longest_answer_tokens(traffic: Traffic) -> int:
    """The P99 of the max_tokens that requests state; where none states it, of the answers."""
    known = traffic.max_tokens if traffic.max_tokens.lengths else traffic.answers
    return known.percentile_tokens(PERCENT)


def workload_report(log: RequestLog, max_tokens: int | None = None) -> dict[str, Any]:
    """The statistics as JSON; null for parts that the log does not have. Clients are to ask for `max_tokens`.

    Example:
        >>> from kvcore.workload.logs import read_request_log
        >>> log = read_request_log([b'{"usage": {"prompt_tokens": 900, "completion_tokens": 80}}'])
        >>> report = workload_report(log, max_tokens=512)
        >>> report["recommended_max_model_len"], report["p99_total"], report["counted_by"]
        (1412, 980, 'usage')
    """
    traffic = log.traffic
    return {
        "requests": traffic.requests,
        "broken_lines": log.unusable,
        "counted_by": log.counted_by,
        "prompt": length_statistics(traffic.prompts),
        "output": length_statistics(traffic.answers),
        "total": length_statistics(traffic.taken),
        "max_tokens": longest_answer_tokens(traffic) if max_tokens is None else max_tokens,
        "without_max_tokens": traffic.without_max_tokens,
        "recommended_max_model_len": recommended_tokens(traffic, max_tokens),
        "p99_total": traffic.taken.percentile_tokens(PERCENT),
        "lengths_off": traffic.error,
        "arrivals": arrivals_report(log),
        "models": [{"model": name or None, "requests": number} for name, number in log.models[:SHOWN_MODELS]],
        "not_asked": log.not_asked,
        "failed": log.failed,
        "other_kinds": log.other_kinds,
        "warnings": [
            {"code": one.code, "message": one.message, "next_step": one.next_step} for one in notices_of(log)
        ],
    }


def arrivals_report(log: RequestLog) -> dict[str, Any] | None:
    """When the requests came, as JSON; None for a log without times.

    Example:
        >>> from kvcore.workload.logs import read_request_log
        >>> lines = (b'{"created": %d, "prompt_tokens": 9}' % second for second in (1, 3, 5))
        >>> found = arrivals_report(read_request_log(lines))
        >>> found["per_second"], found["busiest_minute"]
        (0.75, 3)
    """
    found = log.timeline
    if not len(found):
        return None
    return {
        "timed": len(found),
        "untimed": found.untimed + found.odd,
        "left_out": found.left_out,
        "span_seconds": found.span_seconds,
        "per_second": found.per_second,
        "busiest_minute": found.busiest_minute,
        "out_of_order": found.out_of_order,
        "same_time": found.same_time,
    }


def notices_of(log: RequestLog) -> tuple[Notice, ...]:
    """Doubts about the lengths and the times of a log."""
    found, times = [], log.timeline
    if log.cut_tokens:
        found.append(Notice(code="request-log-cut", params={"tokens": str(log.cut_tokens)}))
    if times.odd:
        found.append(Notice(code="request-log-odd-times", params={"requests": f"{times.odd:,}"}))
    if len(times) >= FEWEST_TIMES and times.same_time > MOST_SAME * len(times):
        found.append(Notice(code="request-log-same-times", params={"requests": f"{times.same_time:,}"}))
    return tuple(found)


def length_statistics(histogram: LengthHistogram) -> dict[str, int] | None:
    """Percentiles and maximum of a length, by nearest rank; None without any.

    Example:
        >>> length_statistics(LengthHistogram.from_lengths([100, 300]))
        {'p50': 100, 'p90': 300, 'p95': 300, 'p99': 300, 'max': 300}
    """
    if not histogram.lengths:
        return None
    found = {f"p{percent}": histogram.percentile_tokens(percent) for percent in STATISTICS}
    return found | {"max": histogram.longest_tokens}


def workload_table(report: dict[str, Any], log: RequestLog) -> str:
    """The report as text, with the lines that could not be used and what was not counted."""
    columns = (*(f"p{percent}" for percent in STATISTICS), "max")
    lines = ["tokens".ljust(12) + "".join(name.rjust(12) for name in columns)]
    for name in ("prompt", "output", "total"):
        found = report[name]
        if found is not None:
            lines.append(name.ljust(12) + "".join(f"{found[column]:>12,}" for column in columns))
    wanted = report["recommended_max_model_len"]
    rounded = round_up(wanted, ROUND_TO)
    lines.append(
        f"--max-model-len {wanted}  (P99 of prompt + max_tokens; the page rounds it up to {rounded}; "
        f"P99 of prompt and answer together: {report['p99_total']})"
    )
    lines.append(f"{report['requests']:,} requests, lengths counted by: {report['counted_by']}")
    missing = report["without_max_tokens"]
    if missing and missing < report["requests"]:
        lines.append(
            f"{missing:,} requests state no max_tokens: their own answers, or 1 token, count in its place"
        )
    if log.traffic.error:
        lines.append(f"lengths are right to {100 * log.traffic.error:.2g} %, never too short")
    if log.unusable:
        reasons = ", ".join(f"{reason.value} {count:,}" for reason, count in log.reasons)
        first = ", ".join(map(str, log.unusable_lines))
        lines.append(f"{log.unusable:,} lines could not be used ({reasons}), the first: {first}")
    lines += [f"{one.message}; {one.next_step}" for one in notices_of(log)]
    if log.other_kinds:
        lines.append(
            f"{log.other_kinds:,} records are of embeddings, tools, agents or chains and are in no figure"
        )
    arrivals = report["arrivals"]
    if arrivals is not None and arrivals["per_second"] is not None:
        lines.append(
            f"{arrivals['per_second']:.3g} requests a second on average over {arrivals['span_seconds']:,.0f} s; "
            f"{arrivals['busiest_minute']:,} in the busiest minute"
        )
    if len(log.models) > 1:
        named = ", ".join(f"{name or 'others'} {number:,}" for name, number in log.models[:TABLE_MODELS])
        lines.append(f"models: {named}; --only model=NAME reads one")
    if log.not_asked:
        lines.append(f"{log.not_asked:,} requests were not asked for and are in no figure")
    if log.failed:
        lines.append(f"{log.failed:,} requests failed and are in no figure")
    if log.not_counted:
        lines.append(f"{log.not_counted:,} images or audio are in no figure")
    return "\n".join(lines)
