"""Where every number comes from: the derivation as quantities, the table of all numbers, and one request's share."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kvcore.cache.capacity import CachePlan, plan_cache
from kvcore.errors import KvPlannerError
from kvcore.memory.parts import given_grade
from kvcore.planning import Plan
from kvcore.present.palette import OVERESTIMATED, UNACCOUNTED
from kvcore.present.text import Words, concurrency_text, count, gib_text, msg
from kvcore.quantity import Grade, Quantity, Scope, Unit, format_bytes
from kvcore.units import GB

_ELEMENT_BYTES: Final = {"bfloat16": 2, "float16": 2, "float32": 4, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
_AMPLE_BYTES: Final = 1 << 50
_PLANNER: Final = "vllm/v1/core/kv_cache_utils.py"
_CHECK: Final = "vllm/v1/core/kv_cache_planning.py:check_enough_kv_cache_memory (0.33.0)"
_LONGEST: Final = (
    "vllm/v1/core/kv_cache_planning.py:estimate_max_model_len (0.33.0): the largest length whose request fits, by "
    "bisection"
)
_PAGES: Final = "vllm/v1/core/kv_cache_planning.py:get_kv_cache_config_from_groups (0.33.0)"
_LEAST_GIGABYTES: Final = 0.01
"""Smaller sizes are not asked for in GB."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """The KV plan's figures with their derivation."""

    blocks: Quantity
    bytes_per_block: Quantity
    tokens: Quantity
    bytes_per_token: Quantity
    request_fixed: Quantity
    needed: Quantity
    concurrency: Quantity
    longest: Quantity


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberRow:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestShare:
    """What one request of the planned length takes on one rank, and how many such the pool holds."""

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
    """On all ranks of a replica."""


def figures(plan: Plan) -> Figures:
    """The KV plan's figures; zeros where there is no pool."""
    cache, resolved = plan.cache, plan.resolved
    available = (
        plan.memory.available_kv
        if plan.memory is not None
        else _plain("available_kv", plan.available_kv_bytes or 0, Unit.BYTES, grade=given_kv_grade(plan))
    )
    block_size = _plain("block_size", resolved.block_size)
    per_token = _bytes_per_token(plan, any_cache(plan))
    per_block = _bytes_per_block(cache)
    blocks = Quantity(
        name="blocks",
        value=cache.num_blocks if cache else 0,
        unit=Unit.BLOCKS,
        scope=Scope.PER_REPLICA,
        formula="⌊{available_kv} / {bytes_per_block}⌋" if _is_floor(cache, available) else "",
        inputs=(available, per_block),
        source=f"{_PLANNER}:get_num_blocks",
    )
    tokens = Quantity(
        name="tokens",
        value=cache.tokens if cache else 0,
        unit=Unit.TOKENS,
        scope=Scope.PER_REPLICA,
        formula="{blocks} × {block_size}" if cache and cache.tokens == cache.num_blocks * resolved.block_size else "",
        inputs=(blocks, block_size),
        source=_PLANNER,
    )  # fmt: skip
    length = _plain("max_model_len", resolved.max_model_len, Unit.TOKENS)
    request_blocks = sum(group.blocks_per_request for group in cache.groups) if cache else 0
    blocks_per_request = Quantity(
        name="blocks_per_request",
        value=request_blocks,
        unit=Unit.BLOCKS,
        formula="⌈{max_model_len} / {block_size}⌉" if cache and len(cache.groups) == 1 else "",
        inputs=(length, block_size),
    )
    needed_bytes = cache.needed_bytes if cache else 0
    fixed_bytes = cache.request_fixed_bytes if cache else 0
    needed = Quantity(
        name="needed",
        value=needed_bytes,
        unit=Unit.BYTES,
        formula="{blocks_per_request} × {bytes_per_block}"
        if cache and needed_bytes == request_blocks * cache.bytes_per_block
        else "",
        inputs=(blocks_per_request, per_block),
        grade=Grade.EXACT,
        source=_CHECK,
    )
    is_quotient = bool(
        cache
        and request_blocks
        and abs(cache.num_blocks / request_blocks - cache.max_concurrency) < 1e-9 * cache.max_concurrency
    )
    return Figures(
        blocks=blocks,
        bytes_per_block=per_block,
        tokens=tokens,
        bytes_per_token=per_token,
        request_fixed=Quantity(
            name="request_fixed",
            value=fixed_bytes,
            unit=Unit.BYTES,
            formula="{needed} − {max_model_len} × {bytes_per_token}"
            if per_token.value and fixed_bytes == needed_bytes - resolved.max_model_len * per_token.value
            else "",
            inputs=(needed, length, per_token),
            grade=Grade.EXACT,
            source="vllm/v1/kv_cache_interface.py",
        ),
        needed=needed,
        concurrency=Quantity(
            name="concurrency",
            value=cache.max_concurrency if cache else 0,
            unit=Unit.REQUESTS,
            scope=Scope.PER_REPLICA,
            formula="{blocks} / {blocks_per_request}" if is_quotient else "",
            inputs=(blocks, blocks_per_request),
            source=f"{_PLANNER}:get_max_concurrency_for_kv_cache_config",
        ),
        longest=Quantity(
            name="longest",
            value=cache.longest_request_tokens if cache else 0,
            unit=Unit.TOKENS,
            scope=Scope.PER_REPLICA,
            source=_LONGEST,
        ),
    )


def _is_floor(cache: CachePlan | None, available: Quantity) -> bool:
    """Whether the blocks are those of this memory: another stage or a flag may decide."""
    if cache is None or not cache.bytes_per_block:
        return False
    return cache.num_blocks == int(available.value) // cache.bytes_per_block


def _bytes_per_block(cache: CachePlan | None) -> Quantity:
    """A block holds one page of each layer of a group; groups of a pool share its blocks."""
    value = cache.bytes_per_block if cache else 0
    group = max(cache.groups, key=lambda group: group.layers) if cache and cache.groups else None
    is_product = group is not None and group.layers * group.page_size_bytes == value
    return Quantity(
        name="bytes_per_block",
        value=value,
        unit=Unit.BYTES,
        formula="{layers} × {page_size_bytes}" if is_product else "",
        inputs=(
            _plain("layers", group.layers if group else 0),
            _plain("page_size_bytes", group.page_size_bytes if group else 0, Unit.BYTES),
        ),
        grade=Grade.EXACT,
        source=_PAGES,
    )


def any_cache(plan: Plan) -> CachePlan | None:
    """The KV plan, or without memory for one, that of a card as large as need be: for what one request takes."""
    if plan.cache is not None and plan.cache.num_blocks > 0:
        return plan.cache
    try:
        return plan_cache(
            plan.specs, (_AMPLE_BYTES,) * len(plan.specs), plan.resolved, plan.scenario.parallel
        )
    except KvPlannerError:
        return None


def bytes_per_token_in_all(plan: Plan) -> float:
    """Bytes per further token of one request on all ranks of a replica, copies of KV heads included."""
    return sum(stage.bytes_per_token for stage in _stages(plan)) * plan.scenario.parallel.tensor_parallel_size


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


def _bytes_per_token(plan: Plan, cache: CachePlan | None) -> Quantity:
    architecture, resolved = plan.architecture, plan.resolved
    value = cache.bytes_per_token if cache else 0.0
    if cache is None or len(cache.groups) != 1:
        return _plain("bytes_per_token", value, Unit.BYTES)
    group = cache.groups[0]
    element_bytes = _ELEMENT_BYTES.get(resolved.kv_cache_dtype, 0)
    heads = max(1, architecture.num_kv_heads // plan.scenario.parallel.tensor_parallel_size)
    if 2 * group.layers * heads * architecture.head_dim * element_bytes == value:
        inputs = {
            "layers": group.layers, "kv_heads": heads, "head_dim": architecture.head_dim,
            "element_bytes": element_bytes,
        }  # fmt: skip
        formula = "2 × {layers} × {kv_heads} × {head_dim} × {element_bytes}"
    else:
        inputs = {
            "layers": group.layers, "page_size_bytes": group.page_size_bytes, "block_size": group.block_size,
        }  # fmt: skip
        is_quotient = group.layers * group.page_size_bytes / group.block_size == value
        formula = "{layers} × {page_size_bytes} / {block_size}" if is_quotient else ""
    return Quantity(
        name="bytes_per_token",
        value=value,
        unit=Unit.BYTES,
        formula=formula,
        inputs=tuple(_plain(name, number) for name, number in inputs.items()),
        grade=Grade.EXACT,
        source="vllm/v1/kv_cache_interface.py",
    )


def _plain(name: str, value: float, unit: Unit = Unit.NONE, grade: Grade = Grade.EXACT) -> Quantity:
    return Quantity(name=name, value=value, unit=unit, grade=grade)


def quantities(plan: Plan, numbers: Figures, t: Words) -> Iterator[tuple[str, Quantity]]:
    """Every figure of the plan in the order of its derivation, with its name in the reader's language."""
    memory = plan.memory
    if memory is not None:
        yield t("Memory of the card"), memory.total
        yield t("Budget: utilization × memory"), memory.budget
        yield t("System"), memory.system
        yield t("Framework"), memory.framework
        yield t("Weights"), memory.weights
        for part in memory.weights.inputs:
            if part.name == "dropped_head":
                yield t("Output head that the pooling runner drops"), part
        yield t("Activations"), memory.activations
        yield t("CUDA graphs"), memory.cuda_graphs
        if memory.unaccounted.value:
            yield t("Left by the parts"), memory.remainder
            yield t(UNACCOUNTED.label if memory.unaccounted.value > 0 else OVERESTIMATED), memory.unaccounted
        yield t("Available for the KV cache"), memory.available_kv
        yield t("KV cache"), memory.kv_cache
        yield t("Unused"), memory.unused
    if plan.cache is not None:
        yield t("KV per token"), numbers.bytes_per_token
        yield t("Bytes of a block"), numbers.bytes_per_block
        yield t("Blocks"), numbers.blocks
        yield t("KV cache tokens"), numbers.tokens
        yield t("Fixed part of a request"), numbers.request_fixed
        yield t("One request of the full length"), numbers.needed
        yield t("Requests at once"), numbers.concurrency
        yield t("Longest single request"), numbers.longest


def number_rows(plan: Plan, numbers: Figures, t: Words) -> tuple[NumberRow, ...]:
    """The table of all numbers: value, formula with today's numbers, grade, source, interval."""
    return tuple(
        NumberRow(
            label=label,
            value=_value_text(quantity),
            gigabytes=_gigabytes_text(quantity),
            scope=t(SCOPES[quantity.scope]),
            formula=quantity.symbolic,
            substituted=quantity.substituted,
            grade=t(GRADES[quantity.grade]),
            source=quantity.source,
            interval=_interval_text(quantity, t),
        )
        for label, quantity in quantities(plan, numbers, t)
    )


def numbers_csv(plan: Plan, numbers: Figures, t: Words) -> str:
    """The same table for a spreadsheet: raw values, units and bounds."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        (
            "name",
            "label",
            "value",
            "unit",
            "scope",
            "formula",
            "substituted",
            "grade",
            "source",
            "low",
            "high",
        )
    )
    for label, quantity in quantities(plan, numbers, t):
        low, high = quantity.interval or ("", "")
        writer.writerow(
            (quantity.name, label, quantity.value, quantity.unit.value, quantity.scope.value, quantity.symbolic,
             quantity.substituted, quantity.grade.value, quantity.source, low, high)
        )  # fmt: skip
    return out.getvalue()


def given_kv_grade(plan: Plan) -> Grade:
    """How well a KV memory is known that is given to be planned in."""
    return given_grade(plan.scenario.measured.origin("available_kv_gib"), Grade.FITTED)


def request_share(plan: Plan) -> RequestShare | None:
    """One request of the planned length on one rank, also where no pool holds it; None for a model without a cache."""
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
        blocks=sum(group.blocks_per_request for group in cache.groups),
        block_size=block_size,
        last_block_tokens=(length % block_size or block_size) if block_size else 0,
        concurrency=cache.max_concurrency if plan.cache is cache else 0.0,
        ranks=plan.scenario.parallel.ranks_per_replica,
        needed_bytes_in_all=needed_bytes_in_all(plan),
    )


def _value_text(quantity: Quantity) -> str:
    if quantity.unit is Unit.REQUESTS:
        return concurrency_text(quantity.value)
    if quantity.unit in (Unit.TOKENS, Unit.BLOCKS):
        return count(quantity.value)
    return format_bytes(quantity.value) if quantity.unit is Unit.BYTES else quantity.text


def _gigabytes_text(quantity: Quantity) -> str:
    size = quantity.value / GB
    return f"{size:,.4g}" if quantity.unit is Unit.BYTES and abs(size) >= _LEAST_GIGABYTES else ""


def _interval_text(quantity: Quantity, t: Words) -> str:
    if quantity.interval is None:
        return ""
    low, high = quantity.interval
    if quantity.unit is Unit.BYTES:
        return t("{low} to {high}", low=gib_text(low), high=gib_text(high))
    return t("{low} to {high}", low=f"{low:,.4g}", high=f"{high:,.4g}")
