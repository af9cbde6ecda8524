"""plan(scenario) -> Plan: the one fold over model, engine, memory and cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore import catalogue
from kvcore.base.errors import Notice, notice
from kvcore.base.quantity import Quantity
from kvcore.cache.capacity import CachePlan, Pool, check_state_blocks, least_state_blocks, plan_cache
from kvcore.cache.spec import LayerSpec
from kvcore.cache.states import aligned_block_size, rank_layer_specs
from kvcore.catalogue.accelerators import Accelerator, Vendor
from kvcore.engine import heads_per_rank
from kvcore.engine.resolved import CardView, Resolved, view_of, without_card
from kvcore.engines.registry import find_engine
from kvcore.engines.vllm.draft import draft_notices, read_draft
from kvcore.engines.vllm.recurrent import check_aligned_block
from kvcore.engines.vllm.storage import storage_of
from kvcore.engines.vllm.stored import stored_architecture
from kvcore.engines.vllm.versions import assumed_version, planned_release
from kvcore.memory.budget import rank_memories
from kvcore.memory.loaded import checkpoint_notices, loaded_bytes, uncounted_bytes
from kvcore.memory.parts import RankMemory
from kvcore.memory.shares import check_weight_shapes
from kvcore.memory.unstated import may_be_other, other_versions
from kvcore.memory.weights import WeightBytes
from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.model.families.eagle import Draft
from kvcore.model.quantization import NOT_QUANTIZED, Quantization
from kvcore.model.rope import read_yarn
from kvcore.scenario import Origin, Scenario

ASSUMED_ACCELERATOR: Final = "H100-80GB"
_WITHOUT_STARTS: Final = (Vendor.INTEL, Vendor.OTHER)
"""Vendors of whose cards no start is published that the overheads could be fitted to."""
_FORMAT_IN_NAME: Final = re.compile(
    r"(?:^|[-_./])(awq|gptq|int4|int8|w4a16|w8a8|nvfp4|mxfp4|fp8|bnb|gguf|4bit|8bit)(?=$|[-_./])",
    re.IGNORECASE,
)
"""What a name promises; where neither config nor flag confirms it, a side file may be missing."""


class Verdict(StrEnum):
    """What the start would come to, first that applies."""

    WEIGHTS_DO_NOT_FIT = "weights-do-not-fit"
    NO_KV_MEMORY = "no-kv-memory"
    CONTEXT_TOO_LONG = "context-too-long"
    TIGHT = "tight"
    FITS = "fits"


class Tightness(StrEnum):
    """What may be too little, within the error of the estimate, though the start may well succeed."""

    MISSING = "missing"
    """KV memory for one request of full length, which the figures themselves do not have."""
    STATES = "states"
    """Blocks for the recurrent states of as many requests as run at once."""
    AFTER_POOL = "after-pool"
    """Unused memory for what the start takes after the KV cache."""
    START = "start"
    """Free memory at start for the share of the card that the engine is to spend, which the figures do not have."""
    SPARE = "spare"
    """KV memory beyond one request of full length."""


class Plan(Struct, frozen=True, kw_only=True):
    """Everything a person sees is a view of this.

    `memory` is None when the card is not known; `cache` is None when there is no memory to plan it in.
    """

    scenario: Scenario
    accelerator: Accelerator
    architecture: Architecture
    quantization: Quantization
    resolved: Resolved
    verdict: Verdict
    memory: RankMemory | None
    """Of the worst rank."""
    cache: CachePlan | None
    available_kv_bytes: int | None
    """What the KV cache is planned in, on the worst rank; negative when short."""
    stage_kv: tuple[Quantity, ...]
    """The same of a rank of each pipeline stage, with its interval; empty where it is None."""
    weights: WeightBytes
    """Of the worst rank."""
    loaded_weights: Quantity
    """What "Model loading took" prints on the worst rank; known without a card."""
    stage: int
    """The pipeline stage that the worst rank belongs to: the one that decides how many blocks there are, without a
    cache the one with the least memory for it. All that is said of a rank is said of it."""
    specs: tuple[tuple[LayerSpec, ...], ...]
    """The cache specs of a rank of each pipeline stage."""
    notices: tuple[Notice, ...]

    @property
    def tight_by(self) -> Tightness | None:
        """What makes it tight; None of a plan that is not."""
        if self.verdict is not Verdict.TIGHT:
            return None
        is_given = self.scenario.measured.available_kv_gib is not None
        if self.memory is not None and self.memory.stops_at_start and not is_given:
            return Tightness.START
        if self.cache is None or not self.cache.fits:
            return Tightness.MISSING
        if self.cache.num_blocks < least_state_blocks(
            (group.kind for group in self.cache.groups), self.resolved
        ):
            return Tightness.STATES
        has_room = self.memory is None or self.memory.least_room >= 0
        return Tightness.SPARE if has_room else Tightness.AFTER_POOL

    @property
    def parameter_bytes_per_rank(self) -> int:
        """Bytes of parameters, each once, on the worst rank."""
        return self.weights.parameters


def plan(scenario: Scenario) -> Plan:
    """The memory plan of one deployment.

    Raises ModelError for a config that cannot be read exactly, EngineRefusalError for what the engine refuses
    before it looks at memory. A deployment that does not fit is a result, with its verdict.
    """
    architecture, quantization, accelerator, prepared = _begun(scenario)
    parallel = scenario.parallel
    resolved, specs, weights = prepared.resolved, prepared.specs, prepared.weights
    stages = range(parallel.pipeline_parallel_size)
    memories = rank_memories(scenario, architecture, resolved, accelerator, weights)
    given = scenario.measured.available_kv_gib
    available = tuple(int(memory.available_kv.value) for memory in memories)
    cards_known = scenario.accelerator is not None
    cache = None
    if (cards_known or given is not None) and min(available) > 0:
        kv = tuple(memory.available_kv for memory in memories)
        cache = plan_cache(specs, available, resolved, parallel, kv, of_deciding_stage=True)
        if cache.max_model_len != resolved.max_model_len:
            resolved = replace(resolved, max_model_len=cache.max_model_len)
    if cache is not None and cache.groups:
        worst = cache.stage
    else:
        worst = min(stages, key=lambda stage: available[stage])
    memory = memories[worst].with_cache(
        None if cache is None else cache.figures.pool,
        available[worst],
        graphs=find_engine(scenario.engine).memory.graphs,
        is_fixed=resolved.num_gpu_blocks_override is not None,
    )
    stage_kv = tuple(one.available_kv for one in memories) if cards_known or given is not None else ()
    return Plan(
        scenario=scenario,
        accelerator=accelerator,
        architecture=architecture,
        quantization=quantization,
        resolved=resolved,
        verdict=_verdict(memory, cache, specs, resolved, scenario, stage_kv),
        memory=memory if cards_known else None,
        cache=cache,
        available_kv_bytes=available[worst] if stage_kv else None,
        stage_kv=stage_kv,
        weights=weights[worst],
        loaded_weights=memory.weights,
        stage=worst,
        specs=specs,
        notices=tuple(_notices(scenario, architecture, quantization, resolved, memory, prepared.draft)),
    )


def check(scenario: Scenario) -> None:
    """Raises what `plan` raises before it looks at the memory of a card, for a part of the work."""
    _begun(scenario)


def _begun(scenario: Scenario) -> tuple[Architecture, Quantization, Accelerator, Prepared]:
    architecture = stored_architecture(scenario, read_architecture(config_in_force(scenario)))
    quantization = storage_of(scenario)
    accelerator = scenario.accelerator or catalogue.find_accelerator(ASSUMED_ACCELERATOR)
    heads_per_rank(architecture.num_attention_heads, scenario.parallel.tensor_parallel_size)
    card = view_of(accelerator, scenario.accelerator is None)
    return architecture, quantization, accelerator, prepare(scenario, architecture, quantization, card)


def config_in_force(scenario: Scenario) -> ModelConfig:
    """The config as the engine reads it: that of the checkpoint, with what `--hf-overrides` says instead."""
    if scenario.hf_overrides is None:
        return scenario.config
    return read_yarn(scenario.hf_overrides).config(scenario.config, planned_release(scenario).version)


def _notices(
    scenario: Scenario,
    architecture: Architecture,
    quantization: Quantization,
    resolved: Resolved,
    memory: RankMemory,
    draft: Draft | None,
) -> Iterator[Notice]:
    """What a person should know of the plan, in the order of its steps."""
    yield from architecture.notices
    yield from resolved.notices
    yield from memory.notices
    if scenario.accelerator is not None and scenario.accelerator.vendor in _WITHOUT_STARTS:
        yield notice("overheads-of-another-vendor", "accelerator")
    if scenario.accelerator is not None and other_versions(scenario):
        yield notice("release-not-stated", "engine_version", used=assumed_version(scenario))
    yield from _batch_notices(scenario, resolved)
    yield from draft_notices(scenario.speculative_config, draft)
    promised = _FORMAT_IN_NAME.search(scenario.model)
    if promised is not None and quantization.method == NOT_QUANTIZED and not scenario.quantization:
        yield notice("quantization-not-in-config", "config.quantization_config", format=promised[1])
    yield from checkpoint_notices(scenario, architecture, quantization, resolved)


def _batch_notices(scenario: Scenario, resolved: Resolved) -> tuple[Notice, ...]:
    """Activations that were measured with fewer tokens in a step than this start may compute.

    Where the engine is given its memory they are in the variable for the model, and a pre-run sends one request of the
    full length unless something else is said.
    """
    measured, batch = scenario.measured, scenario.measured.batched_tokens
    variables = find_engine(scenario.engine).variables_in(resolved.version)
    if variables is not None:
        code, is_given = "model-share-of-smaller-batch", variables.model in scenario.env
        if batch is None and scenario.max_num_batched_tokens is not None:
            batch = resolved.max_model_len
    else:
        code, is_given = "activations-of-smaller-batch", measured.peak_activation_gib is not None
    tokens = resolved.max_num_batched_tokens
    if not is_given or batch is None or tokens <= batch:
        return ()
    params = {"measured_tokens": batch, "max_num_batched_tokens": tokens}
    return (notice(code, "max_num_batched_tokens", **params),)


class Prepared(Struct, frozen=True, kw_only=True):
    """What a plan knows before it looks at the memory of a card."""

    resolved: Resolved
    specs: tuple[tuple[LayerSpec, ...], ...]
    """The cache specs of a rank of each pipeline stage."""
    weights: tuple[WeightBytes, ...]
    """Of a rank of each pipeline stage."""
    draft: Draft | None
    """What speculative decoding loads in addition to the model."""


def prepare(
    scenario: Scenario, architecture: Architecture, quantization: Quantization, card: CardView
) -> Prepared:
    """The flags, cache specs and weights of `scenario` on a card, of which they can read nothing but the view.

    Raises EngineRefusalError for what the engine refuses before it looks at memory.
    """
    resolved = find_engine(scenario.engine).resolve(scenario, architecture, card)
    return prepare_resolved(scenario, architecture, quantization, card, resolved)


def prepare_resolved(
    scenario: Scenario,
    architecture: Architecture,
    quantization: Quantization,
    card: CardView,
    resolved: Resolved,
) -> Prepared:
    """`prepare` with the flags as the engine resolved them."""
    laid_out = lay_out(scenario, architecture, quantization, resolved)
    return load(scenario, architecture, quantization, card, laid_out)


def lay_out(
    scenario: Scenario, architecture: Architecture, quantization: Quantization, resolved: Resolved
) -> Prepared:
    """What is the same on all cards with these flags: all but the weights, which it leaves out."""
    parallel = scenario.parallel
    engine = find_engine(scenario.engine)
    block_size = aligned_block_size(architecture, parallel, resolved)
    if block_size != resolved.block_size:
        resolved = replace(resolved, block_size=block_size)
    check_aligned_block(resolved)
    if engine.refusals.checks_weight_shapes:
        check_weight_shapes(architecture, quantization, parallel, resolved.version)
    stages = range(parallel.pipeline_parallel_size)
    speculative = scenario.speculative_config
    draft = read_draft(speculative, architecture, quantization, parallel, resolved.max_model_len)
    specs = tuple(rank_layer_specs(architecture, parallel, resolved, stage, draft) for stage in stages)
    return Prepared(resolved=resolved, specs=specs, weights=(), draft=draft)


def load(
    scenario: Scenario,
    architecture: Architecture,
    quantization: Quantization,
    card: CardView,
    laid_out: Prepared,
) -> Prepared:
    """The same with its weights on a card."""
    scenario, resolved = without_card(scenario), laid_out.resolved
    weights = tuple(
        loaded_bytes(
            scenario=scenario,
            architecture=architecture,
            quantization=quantization,
            resolved=resolved,
            card=card,
            draft=laid_out.draft,
            stage=stage,
        )
        for stage in range(scenario.parallel.pipeline_parallel_size)
    )
    uncounted = uncounted_bytes(scenario, architecture, quantization, resolved)
    if uncounted:
        weights = tuple(replace(part, loading=part.loading + uncounted) for part in weights)
    return replace(laid_out, weights=weights)


def _verdict(
    memory: RankMemory,
    cache: CachePlan | None,
    specs: tuple[tuple[LayerSpec, ...], ...],
    resolved: Resolved,
    scenario: Scenario,
    stage_kv: tuple[Quantity, ...],
) -> Verdict:
    measured = scenario.measured
    only_cache = measured.available_kv_gib is not None
    is_exact = only_cache and (
        measured.origin("available_kv_gib") is Origin.MEASURED or scenario.accelerator is None
    )
    is_sure = is_exact or any(one.interval is None for one in stage_kv)
    return judged(
        resolved,
        cache,
        weights_fit=only_cache or memory.weights.bounds[LOW] <= memory.budget.bounds[HIGH],
        least=() if is_sure else stage_kv_bytes(stage_kv, LOW),
        most=() if is_sure else stage_kv_bytes(stage_kv, HIGH),
        planned=lambda available: plan_cache(specs, available, resolved, scenario.parallel),
        has_room=only_cache or (memory.least_room >= 0 and not memory.stops_at_start),
        counts_states=not only_cache,
        is_empty=not is_sure and any(_leaves_none(one, scenario) for one in stage_kv),
    )


def _leaves_none(available: Quantity, scenario: Scenario) -> bool:
    low, high = available.bounds
    return leaves_none(available.value, low, high if may_be_other(scenario) else None)


def leaves_none(value: float, least: float, most: float | None = None) -> bool:
    """Whether a figure of KV memory is none even where it is as far too low as its lower end says.

    What surroundings may add on the other side is left out: it says that another case is possible, not a likelier one.
    With `most` the ends are those of releases that may all be meant, none of them likelier: their middle says it.
    """
    return (2 * value - least if most is None else least + most) <= 0


def judged(
    resolved: Resolved,
    cache: Pool | None,
    *,
    weights_fit: bool,
    least: tuple[int, ...],
    most: tuple[int, ...],
    planned: Callable[[tuple[int, ...]], Pool],
    has_room: bool = True,
    counts_states: bool = True,
    is_empty: bool = False,
) -> Verdict:
    """The verdict of a plan and of a cell of a sweep, in the order of the engine's own checks.

    `least` and `most`: the ends of the KV memory of a rank of each pipeline stage in bytes, none where it is known;
    `planned` plans a cache in them. `weights_fit`: the least that they may take is within the most that the budget may
    be. A refusal is only said where the start fails with the most memory too, and no memory at all where that is none
    or `is_empty`; between the two ends it is tight, and so it is without `has_room` for what the start takes after the
    pool or wants free before it loads, or where the check passes and the pool is too small for one request all the
    same.

    Raises EngineRefusalError `state-blocks-too-few`, as the engine does when it captures graphs: after those checks.

    Source: vllm/v1/core/kv_cache_utils.py:_check_enough_kv_cache_memory before vllm/v1/worker/gpu_model_runner.py:
    GPUModelRunner.initialize_kv_cache (0.27.1, 0.32.0).
    """

    def seats(one: Pool) -> int:
        return least_state_blocks((group.kind for group in one.groups), resolved) if counts_states else 0

    def starts(one: Pool) -> bool:
        return one.fits and one.num_blocks >= max(1, seats(one))

    if not weights_fit:
        return Verdict.WEIGHTS_DO_NOT_FIT
    best, is_enough = cache, cache is not None and starts(cache)
    if most and not is_enough:
        if min(most) <= 0:
            return Verdict.NO_KV_MEMORY
        if cache is None or len(most) > 1 or resolved.max_model_len_auto or most[0] >= cache.needed_bytes:
            best = planned(most)
    if best is None or best.num_blocks <= 0:
        return Verdict.NO_KV_MEMORY
    if not is_enough and not starts(best):
        if is_empty:
            return Verdict.NO_KV_MEMORY
        if cache is None or not cache.fits:
            return Verdict.CONTEXT_TOO_LONG
        check_state_blocks(cache, resolved)
    if best is not cache or not has_room or not best.holds_one:
        return Verdict.TIGHT
    needed = max(best.needed_bytes, best.request_bytes, seats(best) * best.bytes_per_block)
    if not least or (len(least) == 1 and least[0] > needed + best.bytes_per_block):
        return Verdict.FITS
    if min(least) <= 0:
        return Verdict.TIGHT
    worst = planned(least)
    return Verdict.FITS if starts(worst) and worst.holds_one else Verdict.TIGHT


LOW: Final = 0
HIGH: Final = 1


def stage_kv_bytes(stage_kv: tuple[Quantity, ...], end: int | None = None) -> tuple[int, ...]:
    """The KV memory of a rank of each stage in whole bytes, or with `end` that of `LOW` or `HIGH` of its interval."""
    return tuple(int(one.value if end is None else one.bounds[end]) for one in stage_kv)
