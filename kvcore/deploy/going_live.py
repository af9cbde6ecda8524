"""Before and after the first start: checklist, load test, log lines to expect, alert rules and a dashboard.

The files are templates (`templates.yaml`), filled as data and written by a real writer.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from kvcore.advice.roofline import decode_bound
from kvcore.base.numbers import concurrency_text, count, gib_text
from kvcore.base.parts import SUMMED, UNUSED
from kvcore.base.units import ceil_div, gib
from kvcore.base.words import Words
from kvcore.deploy.launch import PORT, launch_words, served_model
from kvcore.deploy.shell import launch_command
from kvcore.deploy.templates import filled, yaml_text
from kvcore.engine.records import MetricRole
from kvcore.planning import Plan, Verdict
from kvcore.texts import CHECKS, Check

HIGHEST_USAGE: Final = 0.95
LOWEST_USAGE: Final = 0.5
FIRST_TOKEN_SECONDS: Final = 2.0
"""The limit that the post-mortem of 2024 set for a whole answer: it suits a first token, not a long answer."""
LATENCY_STEPS: Final = (2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)
"""Bounds of the engine's latency buckets in seconds: a threshold between two of them would be a guess.

Source: vllm/v1/metrics/loggers.py (0.11.0), vllm/v1/metrics/buckets.py:REQUEST_LATENCY_BUCKETS (0.33.0).
"""
UNKNOWN_SECONDS: Final = 50.0
"""Latency threshold where the bandwidth of the card is not known."""
SLACK: Final = 3
"""Times the bandwidth bound at which a latency alarms: an assumption, to be replaced by the load test's result."""
V0_LONGEST_SECONDS: Final = 60.0
"""Last bucket of the V0 engine: a threshold above it never fires. Source: vllm/engine/metrics.py (0.6.6)."""


LAST_BUCKETS: Final = {True: (V0_LONGEST_SECONDS, 10.0), False: (7680.0, 2560.0)}
"""Seconds of a request and of the first token, by whether the engine is V0."""
PANEL_WIDTH: Final = 12
PANEL_HEIGHT: Final = 8
"""Size of the template `panel`."""
GUIDE_SHARE: Final = 0.9
"""Share of the card that the post-mortem allows at the peak."""
COMFORTABLE_SHARE: Final = 0.97
"""Share of the card that may be in use after the start; other processes and fragments need the rest."""
OVERLOAD_PERCENT: Final = 150
SECONDS: Final = 300
ROUNDS_WITHOUT_BOUND: Final = 10
"""Requests per seat where the card's bandwidth is not known."""


class Thresholds(Struct, frozen=True, kw_only=True):
    """When to alarm."""

    kv_cache_usage: float
    """Share of the KV cache above which one more request of the full length does not fit."""
    waiting_requests: int
    """Requests in the queue at 150 % of the target."""
    request_seconds: float
    first_token_seconds: float


class Load(Struct, frozen=True, kw_only=True):
    """Target load of one replica."""

    requests: int
    prompt_tokens: int
    answer_tokens: int
    per_second: float | None = None
    """Requests that arrive in a second; None where nobody says how many."""


def default_load(plan: Plan) -> Load:
    """The replica's share of the target, else as many requests of the full length as fit, with answers of 512 tokens,
    or a quarter of the length if shorter."""
    length, wanted = plan.resolved.max_model_len, plan.scenario.wanted
    held = plan.cache.max_concurrency if plan.cache is not None else 0.0
    seats = max(1, min(plan.resolved.max_num_seqs, math.floor(min(held, 1 << 20))))
    answer = max(1, min(512, length // 4))
    return Load(
        requests=seats if wanted is None else ceil_div(wanted, plan.scenario.parallel.data_parallel_size),
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


def never_fires(plan: Plan, limits: Thresholds) -> bool:
    """Whether a latency threshold is at or above the last bound of the engine's histogram: no quantile exceeds it.

    Source: vllm/engine/metrics.py (0.6.6), vllm/v1/metrics/loggers.py (0.11.0).
    """
    seconds, first = LAST_BUCKETS[plan.resolved.is_v0]
    seconds = (plan.resolved.engine.facts.watching.latency_steps or (seconds,))[-1]
    return limits.request_seconds >= seconds or limits.first_token_seconds >= first


def _request_seconds(plan: Plan, load: Load) -> float:
    bound = decode_bound(plan, load.requests, load.prompt_tokens)
    if bound is None:
        return UNKNOWN_SECONDS
    wanted = SLACK * bound.seconds_per_token * load.answer_tokens + FIRST_TOKEN_SECONDS
    known = plan.resolved.engine.facts.watching.latency_steps or LATENCY_STEPS
    steps = [step for step in known if not plan.resolved.is_v0 or step < V0_LONGEST_SECONDS]
    return next((step for step in steps if step >= wanted), steps[-1])


class LoadTest(Struct, frozen=True, kw_only=True):
    """The command of a load test, and its size."""

    command: str
    requests_at_once: int
    num_prompts: int
    is_sized: bool
    """Whether it lasts at least five minutes, because the card's bandwidth is known."""
    rate_command: str = ""
    """The command that sends 150 % of the target rate; "" where no rate is known."""
    requests_per_second: float = 0.0
    """The rate of that command."""


def target_rate(plan: Plan, load: Load) -> float | None:
    """Requests per second of the target: the stated ones, else by Little's law those that the bandwidth bound lets the
    target's requests at once be; None where the card's bandwidth is not known.

    A real engine is slower than the bound, so that the rate is an upper one until it is stated.
    """
    if load.per_second is not None:
        return load.per_second
    bound = decode_bound(plan, load.requests, load.prompt_tokens)
    return None if bound is None else load.requests / (bound.seconds_per_token * load.answer_tokens)


def load_test(plan: Plan, load: Load) -> LoadTest:
    """A command that keeps 150 % of the target in flight, and one that sends 150 % of the target rate.

    The generator counts requests, not minutes: as many are sent as the bandwidth bound could answer in five minutes, so
    a real engine takes longer, never shorter; at a rate as many as arrive in five minutes.

    Source: vllm/benchmarks/serve.py (0.11.0, 0.33.0).
    """
    at_once = math.ceil(load.requests * OVERLOAD_PERCENT / 100)
    served = min(at_once, plan.resolved.max_num_seqs)
    bound = decode_bound(plan, served, load.prompt_tokens)
    rounds = SECONDS / (bound.seconds_per_token * load.answer_tokens) if bound else ROUNDS_WITHOUT_BOUND
    prompts = max(at_once, math.ceil(served * rounds))
    program = plan.resolved.engine.load_generator(plan.resolved.version)
    flags: dict[str, Any] = {
        "backend": program.backend or ("openai" if program.words[0] == "vllm" else "vllm"),
        "base-url": f"http://localhost:{PORT}",
        "model": served_model(plan),
        "dataset-name": program.dataset,
        "random-input-len": load.prompt_tokens,
        "random-output-len": load.answer_tokens,
        "random-range-ratio": 1,
        "ignore-eos": True,
    }
    reported = {"percentile-metrics": "ttft,tpot,itl,e2el", "metric-percentiles": "50,95,99"}

    def command(**sent: float) -> str:
        limits = {name.replace("_", "-"): value for name, value in sent.items()}
        said = {name: value for name, value in (flags | limits | reported).items() if name in program.flags}
        words = (launch_words(name, value) for name, value in said.items())
        return " \\\n  ".join(map(shlex.join, (program.words, *words))) + "\n"

    target = target_rate(plan, load)
    rate = 0.0 if target is None else float(f"{target * OVERLOAD_PERCENT / 100:.4g}")
    return LoadTest(
        command=command(max_concurrency=at_once, num_prompts=prompts),
        requests_at_once=at_once,
        num_prompts=prompts,
        is_sized=bound is not None,
        rate_command=command(request_rate=rate, num_prompts=math.ceil(rate * SECONDS)) if rate else "",
        requests_per_second=rate,
    )


def _facts(plan: Plan, limits: Thresholds) -> dict[str, Any]:
    """Thresholds, and metric names by role, None for a metric that the planned version does not have."""
    engine = plan.resolved.engine
    metrics, watching = engine.metrics(plan.resolved.version, plan.resolved.is_v0), engine.facts.watching
    return {
        **{role.value: metrics[role].name if role in metrics else None for role in MetricRole},
        "version": plan.resolved.engine_version if watching.has_own_release else plan.resolved.version,
        "prefix": watching.prefix,
        "product": watching.product,
        "alert": watching.prefix.capitalize(),
        "seats_flag": f"--{engine.called('max_num_seqs').replace('_', '-')}",
        "seats": plan.resolved.max_num_seqs,
        "usage_limit": limits.kv_cache_usage,
        "waiting_limit": limits.waiting_requests,
        "request_seconds": limits.request_seconds,
        "first_token_seconds": limits.first_token_seconds,
    }


def alert_rules(plan: Plan, limits: Thresholds) -> str:
    """A Prometheus rule file."""
    return yaml_text(filled("alerts", _facts(plan, limits)))


def dashboard(plan: Plan, limits: Thresholds) -> str:
    """A Grafana dashboard to import, with variables for data source and model."""
    facts = _facts(plan, limits)
    rows = [row for row in filled("panels", facts) if "targets" in row or "histogram" in row]
    panels = [_panel(index, row) for index, row in enumerate(rows)]
    return json.dumps(filled("dashboard", {**facts, "panels": panels}), indent=2)


def _panel(index: int, row: Mapping[str, Any]) -> dict[str, Any]:
    targets = row.get("targets") or {
        f"p{share * 100:g}": f"histogram_quantile({share:g}, sum by (le, model_name) "
        f'(rate({row["histogram"]}_bucket{{model_name=~"$model_name"}}[5m])))'
        for share in (0.5, 0.95, 0.99)
    }
    limit = [{"color": "red", "value": float(row["limit"])}] if "limit" in row else []
    facts = {
        "id": index + 1,
        "title": row["title"],
        "x": index % 2 * PANEL_WIDTH,
        "y": index // 2 * PANEL_HEIGHT,
        "unit": row["unit"],
        "steps": [{"color": "green", "value": None}, *limit],
        "style": "line" if limit else "off",
        "targets": [
            filled("target", {"letter": letter, "expression": expression, "name": name})
            for letter, (name, expression) in zip("ABC", targets.items(), strict=False)
        ],
    }
    panel: dict[str, Any] = filled("panel", facts)
    return panel


class Tick(StrEnum):
    """Whether the plan answers an item."""

    ANSWERED = "answered"
    FAILS = "fails"
    OPEN = "open"


class Item(Struct, frozen=True, kw_only=True):
    """One line of the checklist."""

    name: str
    """Name in checklist.toml."""
    tick: Tick
    title: str
    detail: str


def checklist(plan: Plan, load: Load, limits: Thresholds, t: Words) -> tuple[Item, ...]:
    """The checklist's items in the order of the work."""
    seats, length = plan.resolved.max_num_seqs, plan.resolved.max_model_len
    fitting = plan.cache.max_concurrency if plan.cache is not None and plan.cache.fits else 0.0
    answers = {
        "starts": {Verdict.FITS: Tick.ANSWERED, Verdict.TIGHT: Tick.OPEN}.get(plan.verdict, Tick.FAILS),
        "target": _tick(fitting >= load.requests and seats >= load.requests),
        "longest": _tick(load.prompt_tokens + load.answer_tokens <= length),
    }
    facts = {
        "held": concurrency_text(fitting),
        "tokens": count(length),
        "seats": count(seats),
        "target": count(load.requests),
        "prompt": count(load.prompt_tokens),
        "answer": count(load.answer_tokens),
        "usage": f"{limits.kv_cache_usage * 100:g}",
        "waiting": str(limits.waiting_requests),
        "seconds": f"{limits.request_seconds:g}",
    }
    if plan.memory is not None:
        taken = sum(getattr(plan.memory, part).value for part in SUMMED if part != UNUSED.name)
        share = taken / plan.memory.total.value
        answers["memory"] = (
            Tick.ANSWERED if share <= COMFORTABLE_SHARE else Tick.OPEN if share <= 1 else Tick.FAILS
        )
        facts |= {
            "taken": gib_text(taken),
            "total": gib_text(plan.memory.total.value),
            "guide": gib_text(GUIDE_SHARE * plan.memory.total.value),
            "limit": f"{COMFORTABLE_SHARE * 100:g}",
            "share": f"{share * 100:.0f}",
        }
    hidden = "memory" if plan.memory is None else "memory-unknown"
    return tuple(
        _item(key, check, answers.get(key, Tick.OPEN), facts, t)
        for key, check in CHECKS.items()
        if key != hidden
    )


def _tick(is_met: bool) -> Tick:
    return Tick.ANSWERED if is_met else Tick.FAILS


def _item(name: str, check: Check, tick: Tick, facts: Mapping[str, str], t: Words) -> Item:
    other = {Tick.OPEN: check.open, Tick.FAILS: check.fails}.get(tick)
    return Item(name=name, tick=tick, title=t(check.title), detail=t(other or check.detail, **facts))


def expected_log_lines(plan: Plan) -> tuple[str, ...]:
    """Log lines to expect at the start, with predicted figures; empty where the start fails or the card is unknown.

    Weights are exact, KV memory is within the interval of the plan.
    Source: docs of the log reader (kvcore/evidence/log/line_formats.toml).
    """
    cache, resolved = plan.cache, plan.resolved
    if cache is None or plan.available_kv_bytes is None or not cache.fits:
        return ()
    own = resolved.engine.own_log_lines(resolved, cache)
    if own is not None:
        return (resolved.engine.facts.log.weights_line.format(gib=gib(plan.loaded_weights.value)), *own)
    log = plan.resolved.engine.facts.log
    weights = log.weights_line.format(gib=gib(plan.loaded_weights.value))
    concurrency = (
        f"Maximum concurrency for {resolved.max_model_len:,} tokens per request: {cache.max_concurrency:.2f}x"
    )
    if resolved.is_v0:
        return (
            f"Loading model weights took {gib(plan.loaded_weights.value):.2f} GiB",
            f"# cuda blocks: {cache.num_blocks}, # CPU blocks: ...",
            concurrency,
        )
    switches = resolved.switches
    lines = [weights]
    until = log.available_in_bytes_until
    if until is not None and resolved.version <= until and plan.memory is not None:
        total = int(plan.memory.total.value)
        lines.append(f"Available memory: {int(plan.available_kv_bytes)}, total memory: {total}")
    elif switches.logs_available_memory:
        lines.append(f"Available KV cache memory: {gib(plan.available_kv_bytes):.2f} GiB")
    size = f"GPU KV cache size: {cache.tokens:,} tokens"
    if switches.logs_capacity_in_one_line:
        return (*lines, f"{size}, {concurrency}")
    return (*lines, size, concurrency)


def is_done(item: Item, ticked: Collection[str]) -> bool:
    """Whether the plan answers an item, or a person has ticked one that only the deployment can answer."""
    return item.tick is Tick.ANSWERED or (item.tick is Tick.OPEN and item.name in ticked)


def checklist_markdown(
    plan: Plan, items: Sequence[Item], ticked: Collection[str], load: Load, limits: Thresholds, t: Words
) -> str:
    """The checklist as Markdown, with the command, the load and the thresholds that it is about."""
    boxes = [_box(item, ticked, t) for item in items]
    head = t("Before going live: {model}", model=_plain_name(plan.scenario.model))
    about = t(
        "{requests} {requests:request|requests} at once, prompts of {prompt} and answers of {answer} tokens.",
        requests=count(load.requests),
        prompt=count(load.prompt_tokens),
        answer=count(load.answer_tokens),
    )
    alerts = t(
        "Alerts: KV cache above {usage} %, more than {waiting} waiting, first token above {first} s, request above "
        "{seconds} s.",
        usage=f"{limits.kv_cache_usage * 100:g}",
        waiting=count(limits.waiting_requests),
        first=f"{limits.first_token_seconds:g}",
        seconds=f"{limits.request_seconds:g}",
    )
    command = f"```bash\n{launch_command(plan)}\n```"
    return "\n\n".join((f"# {head}", about, command, "\n".join(boxes), alerts)) + "\n"


def _box(item: Item, ticked: Collection[str], t: Words) -> str:
    box = "x" if is_done(item, ticked) else " "
    by = {Tick.ANSWERED: t("by the plan"), Tick.FAILS: t("fails")}.get(item.tick, "")
    return f"- [{box}] **{item.title}**{f' ({by})' if by else ''}: {item.detail}"


def _plain_name(name: str) -> str:
    """A name without characters that have a meaning in Markdown."""
    return "".join(letter if letter.isalnum() or letter in " ./_-" else "_" for letter in name)
