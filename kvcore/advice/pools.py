"""Prompts and answers on servers of their own: how many of the planned servers a traffic needs at the least, and what
its requests move between the two pools."""

from __future__ import annotations

import math
from typing import Any

from msgspec import Struct

from kvcore.advice.roofline import decode_bound, peak_flops, token_flops
from kvcore.base.units import GB, rounded
from kvcore.engine.records import Role
from kvcore.planning import Plan
from kvcore.workload.limits import requests_at


class PoolNeed(Struct, frozen=True, kw_only=True):
    """Replicas of the pool that a plan's server belongs to."""

    role: Role
    replicas: int | None
    """At the least: the cards' own limits, and nothing lost to waiting. None where they are not known, or one replica
    holds no request."""
    seconds: float | None
    """Of a prompt, or between two tokens of an answer, at the least."""
    moved_bytes_per_second: float
    """Of each rank of all replicas together: what prompts leave for answers."""
    links: float | None
    """How many links at `link_gb_s` that fills; None where it is not stated."""


def pool_need(
    planned: Plan, per_second: float, prompt_tokens: float, answer_tokens: float
) -> PoolNeed | None:
    """What so many requests a second of that mean length need; None for a server that serves both parts.

    A prompt takes its tokens' operations at the card's peak; a step of decoding reads the weights and the caches of all
    requests that one replica holds at once. A replica of data parallel size n has n engines.

    Example:
        >>> from kvcore.planning import plan
        >>> from kvcore.wire.request import scenario_from_request
        >>> said = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}
        >>> asked = {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "kv_transfer_config": said}
        >>> found = pool_need(plan(scenario_from_request({**asked, "max_model_len": 32768})), 40, 4000, 300)
        >>> round(found.seconds, 4), found.replicas
        (0.0562, 3)
    """
    role = planned.resolved.engine.transfer(planned.scenario).role
    if role not in (Role.PRODUCER, Role.CONSUMER) or planned.cache is None:
        return None
    engines = planned.scenario.parallel.data_parallel_size
    seconds, busy = (_prompt if role is Role.PRODUCER else _answer)(planned, prompt_tokens, answer_tokens)
    figures = planned.cache.figures
    per_request = figures.bytes_per_token.value * prompt_tokens + figures.request_fixed.value
    moved, link = per_second * per_request, planned.scenario.link_gb_s
    return PoolNeed(
        role=role,
        replicas=None if busy is None else max(1, math.ceil(per_second * busy / engines - 1e-9)),
        seconds=seconds,
        moved_bytes_per_second=moved,
        links=None if link is None else moved / (link * GB),
    )


def _prompt(planned: Plan, prompt_tokens: float, _: float) -> tuple[float | None, float | None]:
    """Seconds of a prompt, for which an engine serves no other."""
    peak = peak_flops(planned)
    if math.isinf(peak):
        return None, None
    seconds = prompt_tokens * token_flops(planned) / peak
    return seconds, seconds


def _answer(planned: Plan, prompt_tokens: float, answer_tokens: float) -> tuple[float | None, float | None]:
    """Seconds between two tokens where an engine is full, and an engine's time for one whole answer."""
    (fitting,) = requests_at(planned, (max(1, math.ceil(prompt_tokens + answer_tokens)),))
    at_once = int(min(fitting, planned.resolved.max_num_seqs))
    context = round(prompt_tokens + answer_tokens / 2)
    bound = decode_bound(planned, at_once, context) if at_once else None
    if bound is None:
        return None, None
    return bound.seconds_per_token, answer_tokens / bound.tokens_per_second


def pool_report(found: PoolNeed) -> dict[str, Any]:
    """The need as JSON."""
    return {
        "role": found.role.value,
        "replicas": found.replicas,
        "seconds": None if found.seconds is None else rounded(found.seconds),
        "moved_bytes_per_second": int(found.moved_bytes_per_second),
        "links": None if found.links is None else rounded(found.links),
    }


def pool_line(found: PoolNeed) -> str:
    """The need for a terminal."""
    pool = "prompts" if found.role is Role.PRODUCER else "answers"
    replicas = "unknown" if found.replicas is None else f"at least {found.replicas:,}"
    moved = f"{found.moved_bytes_per_second / GB:.3g} GB/s a rank move between the pools"
    links = "" if found.links is None else f", {found.links:.2g} of a link"
    return f"replicas of the pool for {pool}: {replicas}; {moved}{links}"
