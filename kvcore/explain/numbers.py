"""The origin of every number: the derivation as quantities, the table of all numbers, and one request's share."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from kvcore.base.errors import KvPlannerError
from kvcore.base.numbers import concurrency_text, count, gib_text, in_gigabytes, real_minus
from kvcore.base.parts import (
    ACTIVATIONS,
    AFTER_POOL,
    CUDA_GRAPHS,
    FRAMEWORK,
    KV_CACHE,
    OVERESTIMATED,
    SYSTEM,
    UNACCOUNTED,
    UNUSED,
    WEIGHTS,
)
from kvcore.base.quantity import Grade, Quantity, Scope, Unit, explained, given
from kvcore.base.term import added
from kvcore.base.units import GB
from kvcore.base.words import Words, msg
from kvcore.cache.capacity import CachePlan, plan_cache
from kvcore.planning import Plan

_AMPLE_BYTES: Final = 1 << 50
_LEAST_GIGABYTES: Final = 0.01
"""Smaller sizes are not shown in GB."""
SAME: Final = 1e-3
"""Ends of an interval that are closer than this share read the same."""

GRADES: Final = {
    Grade.EXACT: msg("exact"),
    Grade.DERIVED: msg("derived"),
    Grade.MEASURED: msg("given"),
    Grade.FITTED: msg("fitted"),
    Grade.ASSUMED: msg("assumed"),
}
SCOPES: Final = {
    Scope.PER_RANK: msg("per GPU"),
    Scope.PER_REPLICA: msg("per replica"),
    Scope.TOTAL: msg("in all"),
}
HOST_LABELS: Final = {
    "host_tier": msg("Tier"),
    "host_buffers": msg("Buffers of the connector"),
    "host_weights": msg("Weights left to the host"),
    "host_tables": msg("Tables of n-grams"),
    "host_workers": msg("Workers"),
    "host_servers": msg("API servers"),
    "host_items": msg("Images and video"),
    "host_asleep": msg("Weights while asleep"),
}
"""Parts of the host's memory by the quantity."""


class NumberRow(Struct, frozen=True, kw_only=True):
    """One line of the table of all numbers, as text."""

    label: str
    value: str
    gigabytes: str
    scope: str
    formula: str
    substituted: str
    grade: str
    source: str
    interval: str


class RequestShare(Struct, frozen=True, kw_only=True):
    """Memory of one request of the planned length on one rank, and how many such fit in the pool."""

    tokens: int
    fixed_bytes: int
    per_token_bytes: float
    needed_bytes: int
    pool_bytes: float
    blocks: int
    block_size: int
    """Tokens of a block; 0 where the groups have blocks of several sizes."""
    last_block_tokens: int
    concurrency: float
    ranks: int
    needed_bytes_in_all: int
    """Bytes of the request on all ranks of a replica."""


def any_cache(plan: Plan) -> CachePlan | None:
    """The KV plan; without memory for one, the plan on a card that is large enough, for the size of a request."""
    if plan.cache is not None and plan.cache.num_blocks > 0:
        return plan.cache
    try:
        return plan_cache(
            plan.specs, (_AMPLE_BYTES,) * len(plan.specs), plan.resolved, plan.scenario.parallel
        )
    except KvPlannerError:
        return None


def bytes_per_token_in_all(plan: Plan) -> Quantity:
    """Bytes per further token of one request on all ranks of a replica, copies of KV heads included."""
    return explained(
        "bytes_per_token_in_all",
        bytes_of_all_ranks,
        tuple(stage.figures.bytes_per_token for stage in _stages(plan)),
        given("tensor_parallel_size", plan.scenario.parallel.tensor_parallel_size),
        scope=Scope.PER_REPLICA,
        source="vllm/v1/kv_cache_interface.py (0.33.0)",
    )


def bytes_of_all_ranks(stages: tuple[float, ...], tensor_parallel_size: int) -> float:
    """Bytes on all ranks, from those of a rank of each stage."""
    return added(stages) * tensor_parallel_size


def needed_bytes_in_all(plan: Plan) -> int:
    """Bytes of one request of the planned length on all ranks of a replica."""
    return sum(stage.needed_bytes for stage in _stages(plan)) * plan.scenario.parallel.tensor_parallel_size


def _stages(plan: Plan) -> tuple[CachePlan, ...]:
    """The KV plan of each pipeline stage by itself, on cards as large as need be."""
    if len(plan.specs) == 1:
        whole = any_cache(plan)
        return () if whole is None else (whole,)
    try:
        return tuple(
            plan_cache((specs,), (_AMPLE_BYTES,), plan.resolved, plan.scenario.parallel)
            for specs in plan.specs
        )
    except KvPlannerError:
        return ()


def quantities(plan: Plan, t: Words) -> Iterator[tuple[str, Quantity]]:
    """Every figure of the plan in the order of its derivation, with its name in the reader's language."""
    memory = plan.memory
    if memory is not None:
        yield t("Memory of the card"), memory.total
        yield t("Budget: utilization × memory"), memory.budget
        yield t(SYSTEM.label), memory.system
        yield t(FRAMEWORK.label), memory.framework
        yield t(WEIGHTS.label), memory.weights
        for part in memory.weights.inputs:
            if part.name == "dropped_head":
                yield t("Output head that the pooling runner drops"), part
            if part.name == "loading" and part.rule is not None:
                yield (
                    t("Loading: the card's kernel keeps the experts in other sizes than they are counted in"),
                    part,
                )
        yield t(ACTIVATIONS.label), memory.activations
        yield t(CUDA_GRAPHS.label), memory.cuda_graphs
        if memory.unaccounted.value:
            yield t("Left by the parts"), memory.remainder
            yield t(UNACCOUNTED.label if memory.unaccounted.value > 0 else OVERESTIMATED), memory.unaccounted
        yield t(KV_CACHE.given_label), memory.available_kv
        yield t(KV_CACHE.label), memory.kv_cache
        yield t(UNUSED.label), memory.unused
        yield t(AFTER_POOL.label), memory.after_pool
    if plan.cache is not None:
        figures = plan.cache.figures
        yield t("KV per token"), figures.bytes_per_token
        yield t("Bytes of a block"), figures.bytes_per_block
        yield t("Blocks"), figures.blocks
        yield t("KV cache tokens"), figures.tokens
        yield t("Fixed part of a request"), figures.request_fixed
        yield t("Blocks of one request of the full length"), figures.blocks_per_request
        yield t("One request of the full length"), figures.needed
        yield t("Requests at once"), figures.concurrency
        yield t("Longest single request"), figures.longest
    if plan.host is not None:
        host = plan.host
        for part in (*host.parts, *host.processes):
            yield t("Host: {part}", part=t(HOST_LABELS[part.name])), part
        if host.queues is not None:
            yield t("Host: queues in /dev/shm, at the most"), host.queues
        yield t("Host: page cache while weights are read"), host.cached


def number_rows(plan: Plan, t: Words) -> tuple[NumberRow, ...]:
    """The table of all numbers: value, formula with today's numbers, grade, source, interval."""
    return tuple(
        NumberRow(
            label=label,
            value=_value_text(quantity),
            gigabytes=_gigabytes_text(quantity),
            scope=_scope_text(quantity.scope, plan, t),
            formula=quantity.formula,
            substituted=quantity.substituted,
            grade=t(GRADES[quantity.grade]),
            source=quantity.source,
            interval=_interval_text(quantity, t),
        )
        for label, quantity in quantities(plan, t)
    )


def numbers_csv(plan: Plan, t: Words) -> str:
    """The same table for a spreadsheet: raw values, units and bounds."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow("name label value unit scope formula substituted grade source low high".split())
    for label, quantity in quantities(plan, t):
        low, high = quantity.interval or ("", "")
        writer.writerow(
            (quantity.name, label, quantity.value, quantity.unit.value, quantity.scope.value, quantity.formula,
             quantity.substituted, quantity.grade.value, quantity.source, low, high)
        )  # fmt: skip
    return out.getvalue()


def request_share(plan: Plan) -> RequestShare | None:
    """One request of the planned length on one rank, also where it fits in no pool; None for a model without a
    cache.
    """
    cache = any_cache(plan)
    if cache is None or not cache.groups:
        return None
    sizes = {group.block_size for group in cache.groups}
    block_size = sizes.pop() if len(sizes) == 1 else 0
    length = plan.resolved.max_model_len
    return RequestShare(
        tokens=length,
        fixed_bytes=cache.request_fixed_bytes,
        per_token_bytes=cache.bytes_per_token,
        needed_bytes=cache.needed_bytes,
        pool_bytes=max(0, plan.available_kv_bytes or 0),
        blocks=int(cache.figures.blocks_per_request.value),
        block_size=block_size,
        last_block_tokens=(length % block_size or block_size) if block_size else 0,
        concurrency=cache.max_concurrency if plan.cache is cache else 0.0,
        ranks=plan.scenario.parallel.ranks_per_replica,
        needed_bytes_in_all=needed_bytes_in_all(plan),
    )


def _scope_text(scope: Scope, plan: Plan, t: Words) -> str:
    """The scope of a figure; with several pipeline stages it names the stage."""
    if scope is Scope.PER_RANK and plan.scenario.parallel.pipeline_parallel_size > 1:
        return t("per GPU of stage {stage}", stage=str(plan.stage + 1))
    return t(SCOPES[scope])


def _value_text(quantity: Quantity) -> str:
    if quantity.unit is Unit.REQUESTS:
        return concurrency_text(quantity.value)
    if quantity.unit in (Unit.TOKENS, Unit.BLOCKS):
        return count(quantity.value)
    return real_minus(quantity.text)


def _gigabytes_text(quantity: Quantity) -> str:
    is_shown = quantity.unit is Unit.BYTES and abs(quantity.value) >= _LEAST_GIGABYTES * GB
    return in_gigabytes(quantity.value) if is_shown else ""


def _interval_text(quantity: Quantity, t: Words) -> str:
    if quantity.interval is None:
        return ""
    low, high = quantity.interval
    if math.isclose(low, high, rel_tol=SAME):
        return ""
    if quantity.unit is Unit.BYTES:
        return t("{low} to {high}", low=gib_text(low), high=gib_text(high))
    return t("{low} to {high}", low=f"{low:,.4g}", high=f"{high:,.4g}")
