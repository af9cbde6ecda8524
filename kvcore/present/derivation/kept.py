"""What a layer keeps of a request: of every token, or only a part however long the request grows."""

from __future__ import annotations

from typing import Final

from kvcore.cache.capacity import CachePlan
from kvcore.cache.spec import (
    WINDOW_KINDS,
    CacheKind,
    Demand,
    LayerSpec,
    blocks_per_request,
    demand_of,
    grows_with_length,
)
from kvcore.model.cache_state import Mla
from kvcore.planning import Plan
from kvcore.present.derivation.equation import given
from kvcore.quantity import Grade, Quantity, Unit

SPECS: Final = "vllm/v1/kv_cache_interface.py (0.33.0)"


def stage_specs(plan: Plan) -> tuple[LayerSpec, ...]:
    """The cache specs of the stage with the most bytes per block, which the figures are those of."""
    return max(plan.specs, key=lambda specs: sum(spec.layers * spec.page_size_bytes for spec in specs))


def growing_specs(plan: Plan) -> tuple[LayerSpec, ...]:
    demand = demand_of_plan(plan)
    return tuple(spec for spec in stage_specs(plan) if grows_with_length(spec, demand))


def demand_of_plan(plan: Plan) -> Demand:
    return demand_of(plan.resolved, plan.scenario.parallel)


def latent_state(plan: Plan) -> Mla | None:
    layers = dict.fromkeys(plan.architecture.layers)
    return next((cache for layer in layers for cache in layer.caches if isinstance(cache, Mla)), None)


def fixed_part(plan: Plan, cache: CachePlan) -> tuple[Quantity, ...]:
    """What layers that do not grow keep of a request: blocks of each kind, and their bytes together."""
    if not cache.request_fixed_bytes or not cache.bytes_per_block:
        return ()
    demand, length = demand_of_plan(plan), plan.resolved.max_model_len
    shown = dict.fromkeys(
        _bounded(spec, demand, length) for spec in stage_specs(plan) if not grows_with_length(spec, demand)
    )
    count = cache.request_fixed_bytes // cache.bytes_per_block
    blocks = "{fixed_blocks}"
    each: tuple[Quantity, ...] = (given("fixed_blocks", count),)
    if len(shown) == 1:
        (one,) = shown
        groups = count // int(one.value)
        if groups * one.value == count:
            blocks, each = f"{{fixed_groups}} × {{{one.name}}}", (given("fixed_groups", groups), one)
    fixed = Quantity(
        name="request_fixed",
        value=cache.request_fixed_bytes,
        unit=Unit.BYTES,
        formula=f"{blocks} × {{bytes_per_block}}",
        inputs=(*each, given("bytes_per_block", cache.bytes_per_block, Unit.BYTES)),
        grade=Grade.EXACT,
        source=SPECS,
    )
    return (*shown, fixed)


def _bounded(spec: LayerSpec, demand: Demand, length: int) -> Quantity:
    """Blocks that one layer which does not grow keeps of a request."""
    value = blocks_per_request(spec, length, demand)
    size, flight = given("block_size", spec.block_size), given("in_flight_tokens", demand.in_flight_tokens)
    asked = given("max_model_len", length)
    name, formula = "state_blocks", ""
    inputs: tuple[Quantity, ...] = ()
    if spec.kind in WINDOW_KINDS:
        name, formula = (
            "window_blocks",
            ("⌈min({sliding_window} − 1 + {in_flight_tokens}, {max_model_len}) / {block_size}⌉ + 1"),
        )
        inputs = (given("sliding_window", spec.sliding_window), flight, asked, size)
    elif spec.kind is CacheKind.CHUNKED_LOCAL_ATTENTION:
        name, formula = (
            "window_blocks",
            ("⌈min({sliding_window} + {in_flight_tokens}, {max_model_len}) / {block_size}⌉"),
        )
        inputs = (given("sliding_window", spec.attention_chunk_size), flight, asked, size)
    elif spec.kind is CacheKind.CROSS_ATTENTION:
        name = "encoder_blocks"
    return Quantity(
        name=name, value=value, unit=Unit.BLOCKS, formula=formula, inputs=inputs, grade=Grade.EXACT, source=SPECS
    )  # fmt: skip
