"""Lengths from the engine's Prometheus histograms, without a log: intervals of percentiles, and requests at once.

Such a histogram counts requests up to each edge, so a percentile is known only to lie between two edges.
Source of the names: vllm/v1/metrics/loggers.py:PrometheusStatLogger (0.33.0).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from kvcore.base.errors import WorkloadError
from kvcore.workload.histogram import MAX_TOKENS

METRICS: Final[Mapping[str, str]] = {
    "prompt": "vllm:request_prompt_tokens",
    "output": "vllm:request_generation_tokens",
    "max_tokens": "vllm:request_params_max_tokens",
    "latency": "vllm:e2e_request_latency_seconds",
}
"""Histograms that are read, by what they measure."""
PERCENTS: Final = (50, 90, 95, 99)
MAX_TEXT_BYTES: Final = 8 << 20
MAX_ANSWER_BYTES: Final = 4 << 20
TIMEOUT_SECONDS: Final = 20.0
MAX_EDGES: Final = 200
MAX_AMOUNT: Final = 1e30
"""Largest value of a sample: no counter of an engine comes near, and sums stay finite."""
_SAMPLE: Final = re.compile(
    r"^([a-zA-Z_:][\w:]{0,99})(_bucket|_sum|_count)(?:\{([^}]{0,4000})\})?\s+(\S{1,40})(?:\s+-?\d{1,20})?$"
)
_EDGE: Final = re.compile(r'(?:^|,)\s*le="([^"]{1,40})"')


class Buckets(Struct, frozen=True, kw_only=True):
    """One histogram, all its label sets together."""

    edges: tuple[float, ...]
    """Upper edges, rising; the last is infinite."""
    counts: tuple[float, ...]
    """Requests up to and including each edge."""
    total: float
    """Sum of all values."""

    @property
    def requests(self) -> float:
        """How many values were counted."""
        return self.counts[-1]

    @property
    def mean(self) -> float:
        """Exact mean of all values; 0 without any."""
        return self.total / self.requests if self.requests else 0.0

    def interval(self, percent: float) -> tuple[float, float]:
        """The edges between which the percentile lies: above the first, at most the second; infinite beyond the last.

        Example:
            >>> found = Buckets(edges=(100, 1000, math.inf), counts=(60, 100, 100), total=30_000)
            >>> found.interval(50), found.interval(99), found.mean
            ((0.0, 100), (100, 1000), 300.0)
        """
        wanted = percent / 100 * self.requests
        at = next(index for index, count in enumerate(self.counts) if count >= wanted)
        return (self.edges[at - 1] if at else 0.0, self.edges[at])


def read_metrics(text: str) -> dict[str, Buckets]:
    """The histograms of METRICS in a text of `/metrics`. Raises WorkloadError `metrics-none`, `metrics-damaged`.

    Example:
        >>> found = read_metrics('vllm:request_prompt_tokens_bucket{le="100.0"} 3\\n'
        ...                      'vllm:request_prompt_tokens_bucket{le="+Inf"} 4\\n'
        ...                      'vllm:request_prompt_tokens_sum 900')
        >>> found["prompt"].counts, found["prompt"].mean
        ((3.0, 4.0), 225.0)
    """
    edges: dict[str, dict[float, float]] = {}
    sums: dict[str, float] = {}
    names = {metric: name for name, metric in METRICS.items()}
    for line in text[:MAX_TEXT_BYTES].splitlines():
        found = _SAMPLE.match(line.strip()[:5000]) if line.startswith("vllm:") else None
        if found is None or found[1] not in names:
            continue
        name, value = names[found[1]], _amount(found[4])
        if found[2] == "_sum":
            sums[name] = sums.get(name, 0.0) + value
        elif found[2] == "_bucket" and (edge := _EDGE.search(found[3] or "")) is not None:
            counts = edges.setdefault(name, {})
            if len(counts) > MAX_EDGES:
                raise WorkloadError("metrics-damaged", metric=METRICS[name])
            counts[_number(edge[1])] = counts.get(_number(edge[1]), 0.0) + value
    return _buckets(edges, sums)


def _buckets(edges: Mapping[str, Mapping[float, float]], sums: Mapping[str, float]) -> dict[str, Buckets]:
    if "prompt" not in edges:
        raise WorkloadError("metrics-none", metric=METRICS["prompt"])
    found = {}
    for name, counts in edges.items():
        rising = sorted(counts)
        values = tuple(counts[edge] for edge in rising)
        if (
            len(rising) > MAX_EDGES
            or rising[-1] != math.inf
            or list(values) != sorted(values)
            or not values[-1]
        ):
            raise WorkloadError("metrics-damaged", metric=METRICS[name])
        found[name] = Buckets(edges=tuple(rising), counts=values, total=sums.get(name, 0.0))
    return found


def _number(text: str) -> float:
    """An edge."""
    try:
        value = float(text)
    except ValueError:
        raise WorkloadError("metrics-damaged", metric=text[:40]) from None
    if value < 0 or math.isnan(value):
        raise WorkloadError("metrics-damaged", metric=text[:40])
    return value


def _amount(text: str) -> float:
    """A count, or a sum."""
    value = _number(text)
    if value > MAX_AMOUNT:
        raise WorkloadError("metrics-damaged", metric=text[:40])
    return value


def query_server(address: str, window: str) -> dict[str, Buckets]:
    """Reads the histograms from a Prometheus server, over the last `window` (`1d`, `7d`). For the command line only.

    Raises WorkloadError `metrics-unreachable`, `metrics-none`, `metrics-damaged`.
    """
    if re.fullmatch(r"\d{1,4}[smhdwy]", window) is None:
        raise WorkloadError("metrics-window", value=window)
    edges: dict[str, dict[float, float]] = {}
    sums: dict[str, float] = {}
    for name, metric in METRICS.items():
        for result in _query(address, f"sum by (le) (increase({metric}_bucket[{window}]))"):
            edge, value = str(result.get("metric", {}).get("le", "")), result.get("value", [0, "0"])
            edges.setdefault(name, {})[_number(edge)] = _amount(str(value[1]))
        for result in _query(address, f"sum(increase({metric}_sum[{window}]))"):
            sums[name] = _amount(str(result.get("value", [0, "0"])[1]))
    return _buckets({name: counts for name, counts in edges.items() if any(counts.values())}, sums)


def _query(address: str, query: str) -> list[dict[str, Any]]:
    import httpx2

    try:
        with httpx2.Client(timeout=TIMEOUT_SECONDS, follow_redirects=False) as client:
            answer = client.get(f"{address.rstrip('/')}/api/v1/query", params={"query": query})
            answer.raise_for_status()
        if len(answer.content) > MAX_ANSWER_BYTES:
            raise ValueError("the answer is too large")
        found = json.loads(answer.content)["data"]["result"]
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, KeyError, TypeError, RecursionError) as error:
        raise WorkloadError("metrics-unreachable", address=address, reason=str(error)) from None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def metrics_report(found: Mapping[str, Buckets], requests_per_second: float | None = None) -> dict[str, Any]:
    """The intervals as JSON; null above the last edge. With requests per second also the requests at once.

    Little's law: at once = requests per second x mean latency.

    Example:
        >>> prompt = Buckets(edges=(100, 1000, math.inf), counts=(60, 100, 100), total=30_000)
        >>> latency = Buckets(edges=(10, math.inf), counts=(100, 100), total=400)
        >>> report = metrics_report({"prompt": prompt, "latency": latency}, requests_per_second=5)
        >>> report["prompt"]["p99"], report["requests_at_once"]
        ([100, 1000], 20.0)
    """
    lengths = ("prompt", "output", "max_tokens")
    report: dict[str, Any] = {"requests": round(found["prompt"].requests), "counted_by": "prometheus"}
    for name in lengths:
        report[name] = _intervals(found[name]) if name in found else None
    answer = found.get("output", found.get("max_tokens"))
    ends = [found["prompt"].interval(99), answer.interval(99) if answer is not None else (1.0, 1.0)]
    report["recommended_max_model_len"] = [
        _edge(sum(low for low, _ in ends) + 1),
        _edge(sum(high for _, high in ends)),
    ]
    latency = found.get("latency")
    if requests_per_second is not None and latency is not None:
        report["requests_at_once"] = requests_per_second * latency.mean
    return report


def _intervals(buckets: Buckets) -> dict[str, Any]:
    found: dict[str, Any] = {"mean": round(buckets.mean, 3)}
    return found | {
        f"p{percent}": [_edge(edge) for edge in buckets.interval(percent)] for percent in PERCENTS
    }


def _edge(value: float) -> int | None:
    return int(value) if value <= 2 * MAX_TOKENS else None


def metrics_table(report: Mapping[str, Any]) -> str:
    """The report as text."""
    lines = [f"{report['requests']:,} requests; a percentile lies above the first and is at most the second"]
    for name in ("prompt", "output", "max_tokens"):
        if report[name] is not None:
            parts = (f"{key} {_span(report[name][key])}" for key in (f"p{percent}" for percent in PERCENTS))
            lines.append(f"{name.ljust(12)}mean {report[name]['mean']:,.0f}  {'  '.join(parts)}")
    lines.append(f"--max-model-len from {_span(report['recommended_max_model_len'])}")
    if "requests_at_once" in report:
        lines.append(f"{report['requests_at_once']:,.1f} requests at once, by Little's law")
    return "\n".join(lines)


def _span(edges: Iterable[int | None]) -> str:
    return " to ".join("more" if edge is None else f"{edge:,}" for edge in edges)
