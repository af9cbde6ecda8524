"""What `python -m kvcore workload` prints: length statistics of request logs and the max_model_len that they need."""

from __future__ import annotations

from typing import Any

from kvcore.units import rounded
from kvcore.workload.histogram import LengthHistogram
from kvcore.workload.mix import mix_of_log
from kvcore.workload.records import RequestLog

PERCENTS = (50, 90, 95, 99)


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
        **{f"p{percent}": histogram.percentile_tokens(percent) for percent in PERCENTS},
        "max": histogram.longest_tokens,
    }


def workload_table(report: dict[str, Any]) -> str:
    """The same for people."""
    columns = ("count", "mean", *(f"p{percent}" for percent in PERCENTS), "max")
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
