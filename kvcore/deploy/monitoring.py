"""What ops load into Prometheus and Grafana: alert rules and a dashboard for the metrics that the version exports.

Built as data and written by a real writer. Names of models are in neither: Prometheus and Grafana read templates in
annotations and titles, so what the series say of themselves (`model_name`) is used instead.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final

import yaml

from kvcore.advice.decode_bound import decode_bound
from kvcore.engine.vllm.metrics import exported_metrics
from kvcore.planning import Plan

HIGHEST_USAGE: Final = 0.95
LOWEST_USAGE: Final = 0.5
FIRST_TOKEN_SECONDS: Final = 2.0
"""What the post-mortem of 2024 asked of a whole answer, which no long answer can keep; it suits the first token."""
LATENCY_STEPS: Final = (2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)
"""Bounds of the engine's latency buckets in seconds: a threshold between two of them would be a guess.

Source: vllm/v1/metrics/loggers.py (0.11.0), vllm/v1/metrics/buckets.py:REQUEST_LATENCY_BUCKETS (0.33.0).
"""
UNKNOWN_SECONDS: Final = 50.0
"""Where the bandwidth of the card is not known."""
SLACK: Final = 3
"""How many times the bandwidth bound a latency may take before it alarms: an assumption, to be set by the load test."""
V0_LONGEST_SECONDS: Final = 60.0
"""The last bucket of the V0 engine: nothing above it could ever alarm. Source: vllm/engine/metrics.py (0.6.6)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """When to alarm."""

    kv_cache_usage: float
    """Above it there is no room for one more request of the full length."""
    waiting_requests: int
    """What 150 % of the target leaves in the queue."""
    request_seconds: float
    first_token_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What the deployment is meant to carry, per replica."""

    requests: int
    prompt_tokens: int
    answer_tokens: int


def default_load(plan: Plan) -> Load:
    """As many requests of the full length as the plan has room for: an answer of 512 tokens, or of a quarter
    if shorter.
    """
    length = plan.resolved.max_model_len
    held = plan.cache.max_concurrency if plan.cache is not None else 0.0
    answer = max(1, min(512, length // 4))
    return Load(
        requests=max(1, min(plan.resolved.max_num_seqs, math.floor(min(held, 1 << 20)))),
        prompt_tokens=max(1, length - answer),
        answer_tokens=answer,
    )


def thresholds(plan: Plan, load: Load) -> Thresholds:
    """Thresholds from the plan.

    KV usage: 1 − 1 / concurrency, within 0.5 and 0.95. Queue: half the target. Latency: three times the bandwidth
    bound for the answer, up to the next bucket.
    """
    held = plan.cache.max_concurrency if plan.cache is not None else 0.0
    usage = 1 - 1 / held if held > 1 else LOWEST_USAGE
    return Thresholds(
        kv_cache_usage=round(min(HIGHEST_USAGE, max(LOWEST_USAGE, usage)), 2),
        waiting_requests=max(1, math.ceil(load.requests / 2)),
        request_seconds=_request_seconds(plan, load),
        first_token_seconds=FIRST_TOKEN_SECONDS,
    )


def _request_seconds(plan: Plan, load: Load) -> float:
    bound = decode_bound(plan, load.requests, load.prompt_tokens)
    if bound is None:
        return UNKNOWN_SECONDS
    wanted = SLACK * bound.seconds_per_token * load.answer_tokens + FIRST_TOKEN_SECONDS
    steps = [step for step in LATENCY_STEPS if not plan.resolved.is_v0 or step < V0_LONGEST_SECONDS]
    return next((step for step in steps if step >= wanted), steps[-1])


def metric_name(plan: Plan, role: str) -> str:
    """The metric of the planned version for `role`."""
    return exported_metrics(plan.resolved.version, plan.resolved.is_v0)[role].name


def _percentile(metric: str, share: float, selector: str = "") -> str:
    return f"histogram_quantile({share:g}, sum by (le, model_name) (rate({metric}_bucket{selector}[5m])))"


def alert_rules(plan: Plan, limits: Thresholds) -> str:
    """A Prometheus rule file."""
    usage, waiting = metric_name(plan, "kv_cache_usage"), metric_name(plan, "waiting")
    running, preemptions = metric_name(plan, "running"), metric_name(plan, "preemptions")
    latency, first = metric_name(plan, "request_latency"), metric_name(plan, "first_token")
    seats = plan.resolved.max_num_seqs
    rules = (
        _rule("VllmKvCacheNearlyFull", f"max by (model_name) ({usage}) > {limits.kv_cache_usage:g}", "5m", "warning",
              "KV cache nearly full: less room than one request of the full length takes"),
        _rule("VllmPreempting", f"sum by (model_name) (rate({preemptions}[5m])) > 0", "5m", "warning",
              "Requests are preempted: their tokens are computed a second time"),
        _rule("VllmQueueGrowing", f"sum by (model_name) ({waiting}) > {limits.waiting_requests}", "2m", "warning",
              "More requests wait than a load of 150 % of the target leaves in the queue"),
        _rule("VllmSeatsTaken", f"max by (model_name) ({running}) >= {seats}", "10m", "info",
              "As many requests run as --max-num-seqs allows"),
        _rule("VllmFirstTokenSlow", f"{_percentile(first, 0.99)} > {limits.first_token_seconds:g}", "10m", "warning",
              "p99 of the time to the first token is too long"),
        _rule("VllmRequestsSlow", f"{_percentile(latency, 0.99)} > {limits.request_seconds:g}", "10m", "warning",
              "p99 of the time of whole requests is too long"),
        _rule("VllmGone", f"absent({running})", "2m", "critical", "No engine is scraped"),
    )  # fmt: skip
    return _yaml({"groups": [{"name": "vllm", "rules": list(rules)}]})


def _rule(name: str, expression: str, duration: str, severity: str, summary: str) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expression,
        "for": duration,
        "labels": {"severity": severity},
        "annotations": {"summary": summary},
    }


def _yaml(document: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False, width=110, allow_unicode=True)
    return text


PANEL_WIDTH: Final = 12
PANEL_HEIGHT: Final = 8


def dashboard(plan: Plan, limits: Thresholds) -> str:
    """A Grafana dashboard to import, with a choice of the data source and the model."""
    of = '{model_name=~"$model_name"}'
    usage, waiting = metric_name(plan, "kv_cache_usage"), metric_name(plan, "waiting")
    running, preemptions = metric_name(plan, "running"), metric_name(plan, "preemptions")
    latency, first = metric_name(plan, "request_latency"), metric_name(plan, "first_token")
    gap = metric_name(plan, "output_token")
    prompt, generated = metric_name(plan, "prompt_tokens"), metric_name(plan, "generation_tokens")
    per_model, each = "by (model_name)", "{{model_name}}"
    panels = [
        ("KV cache usage", "percentunit", limits.kv_cache_usage, ((each, f"max {per_model} ({usage}{of})"),)),
        ("Requests", "short", float(plan.resolved.max_num_seqs), (
            ("running", f"sum({running}{of})"), ("waiting", f"sum({waiting}{of})"))),
        ("Preemptions per second", "short", None, (
            (each, f"sum {per_model} (rate({preemptions}{of}[5m]))"),)),
        ("Tokens per second", "short", None, (
            ("answers", f"sum(rate({generated}{of}[1m]))"), ("prompts", f"sum(rate({prompt}{of}[1m]))"))),
        ("Time to the first token", "s", limits.first_token_seconds, _percentiles(first, of)),
        ("Time between tokens", "s", None, _percentiles(gap, of)),
        ("Time of a request", "s", limits.request_seconds, _percentiles(latency, of)),
    ]  # fmt: skip
    metrics = exported_metrics(plan.resolved.version, plan.resolved.is_v0)
    if "prefix_cache_hits" in metrics:
        hits, queries = metric_name(plan, "prefix_cache_hits"), metric_name(plan, "prefix_cache_queries")
        rate = f"sum(rate({hits}{of}[5m])) / sum(rate({queries}{of}[5m]))"
        panels.append(("Prompt tokens found in the prefix cache", "percentunit", None, (("hits", rate),)))
    document = {
        "title": f"vLLM {plan.resolved.version}",
        "uid": None,
        "tags": ["vllm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source_variable(), _model_variable(running)]},
        "panels": [_panel(index, *panel) for index, panel in enumerate(panels)],
    }
    return json.dumps(document, indent=2)


def _percentiles(metric: str, selector: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"p{share * 100:g}", _percentile(metric, share, selector)) for share in (0.5, 0.95, 0.99))


_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def _panel(
    index: int, title: str, unit: str, limit: float | None, targets: tuple[tuple[str, str], ...]
) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if limit is not None:
        steps.append({"color": "red", "value": limit})
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": title,
        "datasource": _SOURCE,
        "gridPos": {
            "h": PANEL_HEIGHT,
            "w": PANEL_WIDTH,
            "x": index % 2 * PANEL_WIDTH,
            "y": index // 2 * PANEL_HEIGHT,
        },
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "min": 0,
                "thresholds": {"mode": "absolute", "steps": steps},
                "custom": {"thresholdsStyle": {"mode": "line" if limit is not None else "off"}},
            },
            "overrides": [],
        },
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": _SOURCE, "expr": expression, "legendFormat": name}
            for place, (name, expression) in enumerate(targets)
        ],
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}


def _model_variable(metric: str) -> dict[str, Any]:
    return {
        "name": "model_name",
        "type": "query",
        "label": "Model",
        "datasource": _SOURCE,
        "query": f"label_values({metric}, model_name)",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }
