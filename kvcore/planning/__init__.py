"""plan(scenario) -> Plan: the one fold over model, engine, memory and cache.

Its stages are named in their order: begin, flags, layout, weights, memory, cache, verdict. `kvcore.planning.numbers`
runs the same stages for numbers alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator
from typing import Final, NamedTuple

from msgspec import Struct, msgpack
from msgspec.structs import replace

from kvcore.base.errors import Notice, notice, shorten
from kvcore.base.parts import KV_CACHE, PARTS
from kvcore.base.quantity import Quantity
from kvcore.base.units import gib
from kvcore.cache.capacity import CachePlan, least_state_blocks, plan_cache
from kvcore.cache.spec import LayerSpec
from kvcore.cache.states import aligned_block_size, has_states, rank_layer_specs
from kvcore.catalogue.accelerators import Accelerator, Vendor
from kvcore.engine import heads_per_rank, partitioned
from kvcore.engine.cards import CardView, without_card
from kvcore.engine.protocol import Resolved
from kvcore.engine.rank_memory import RankMemory
from kvcore.engines.registry import card_of, engine_of, planned_release, view_of
from kvcore.host.connectors import check_tier, tier_notices
from kvcore.host.limits import check_limits, limit_notices, sleep_notices
from kvcore.host.moved import moved_notices, moved_request
from kvcore.host.taken import HostMemory, host_memory
from kvcore.host.unified import free_notices, unified_notices
from kvcore.memory.budget import memory_flags, rank_memories
from kvcore.memory.loaded import checkpoint_notices, loaded_bytes, uncounted_bytes
from kvcore.memory.shares import check_weight_shapes
from kvcore.memory.surroundings import OtherSurroundings
from kvcore.memory.weights import WeightBytes
from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.model.families.drafts import Draft
from kvcore.model.overrides import read_overrides
from kvcore.model.quantization import NOT_QUANTIZED, Quantization
from kvcore.planning.neighbours import Share, beside, engines_on_card, neighbour_notices
from kvcore.planning.origin import as_known, is_format_by_name, origin_notices
from kvcore.planning.verdict import (
    HIGH,
    LOW,
    Tightness,
    Verdict,
    is_empty,
    judged,
    leaves_none,
    stage_kv_bytes,
    tightness,
)
from kvcore.scenario import Origin, Parallel, Scenario

__all__ = [
    "HIGH",
    "LOW",
    "Batch",
    "Plan",
    "Tightness",
    "Verdict",
    "check",
    "judged",
    "leaves_none",
    "plan",
    "stage_kv_bytes",
]

MOST_LOADED: Final = 256
"""Loaded models that a batch keeps; one takes some 50 KB."""
_WITHOUT_STARTS: Final = (Vendor.INTEL, Vendor.OTHER)
"""Vendors of whose cards no start is published that the overheads could be fitted to."""
_FORMAT_IN_NAME: Final = re.compile(
    r"(?:^|[-_./])(awq|gptq|int4|int8|w4a16|w8a8|nvfp4|mxfp4|fp8|bnb|gguf|4bit|8bit)(?=$|[-_./])",
    re.IGNORECASE,
)
"""Formats that a name promises; where neither config nor flag confirms it, a side file may be missing."""


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
    """Where no card is named, that of the card which is assumed."""
    tight_by: Tightness | None
    """Why it is tight; None for a plan that is not."""
    memory: RankMemory | None
    """The worst rank's."""
    cache: CachePlan | None
    """None too where the weights do not fit."""
    available_kv_bytes: int | None
    """Bytes that the KV cache is planned in, on the worst rank; negative when short."""
    stage_kv: tuple[Quantity, ...]
    """The same of a rank of each pipeline stage, with its interval; empty where it is None."""
    weights: WeightBytes
    """The worst rank's."""
    loaded_weights: Quantity
    """The figure that "Model loading took" prints on the worst rank; known without a card."""
    surroundings: OtherSurroundings
    """The worst rank's memory in other surroundings."""
    stage: int
    """The pipeline stage that the worst rank belongs to: the one that decides how many blocks there are, without a
    cache the one with the least memory for it. All that is said of a rank is said of it."""
    specs: tuple[tuple[LayerSpec, ...], ...]
    """The cache specs of a rank of each pipeline stage."""
    notices: tuple[Notice, ...]
    host: HostMemory | None = None
    """What the server takes of its host's memory; None where nothing asks for any, or how much is not known."""
    engines: tuple[Share, ...] = ()
    """All engines of the card in the order of start; empty where it is alone."""

    def __reduce__(self) -> tuple[Callable[[Scenario], Plan], tuple[Scenario]]:
        """A copy, or what another process has, is planned from the same scenario: it is equal, and small."""
        return plan, (self.scenario,)

    def __eq__(self, other: object) -> bool:
        """Whether both say the same of the same scenario; what is read of its config is compared by the config."""
        if not isinstance(other, Plan):
            return NotImplemented
        return self is other or (
            self.scenario == other.scenario
            and all(getattr(self, name) == getattr(other, name) for name in _FOUND)
        )

    def __hash__(self) -> int:
        """That of its scenario: equal scenarios have equal plans."""
        return hash(self.scenario)

    def __repr__(self) -> str:
        """Three lines: verdict and capacity, what is served on what, the parts of a rank's memory in GiB."""
        cache, memory, resolved = self.cache, self.memory, self.resolved
        room = (
            ""
            if cache is None
            else f": {cache.max_concurrency:.2f} at once, {cache.tokens:,} tokens of cache"
        )
        parts = "memory unknown: no card is named"
        if memory is not None:
            sizes = ((part.name, getattr(memory, part.name).value) for part in PARTS)
            parts = ", ".join(f"{name} {gib(size):.2f}" for name, size in sizes) + " GiB"
        card, cut = self.accelerator.id, self.scenario.parallel
        engine = f"{resolved.engine.name} {resolved.engine_version}"
        return (
            f"Plan: {self.verdict.value} at {resolved.max_model_len:,} tokens{room}\n"
            f"  {shorten(self.scenario.model)} on {cut.ranks} × {card}, {engine}\n"
            f"  {parts}"
        )

    @property
    def missing_bytes(self) -> float:
        """Memory that the start lacks on the worst rank: for its parts, or for one request of full length; 0 where all
        fits."""
        memory, cache = self.memory, self.cache
        available = self.available_kv_bytes if memory is None else memory.available_kv.value
        if available is not None and available <= 0:
            return -available
        short = self.verdict in (Verdict.CONTEXT_TOO_LONG, Verdict.TIGHT)
        if cache is not None and available is not None and short and not cache.fits:
            return cache.needed_bytes - available
        if cache is not None and available is not None and lacks_states(self.scenario, self.resolved, cache):
            return self.resolved.max_num_seqs * cache.bytes_per_block - available
        return max(0.0, -memory.unused.value) if memory is not None else 0.0

    @property
    def parameter_bytes_per_rank(self) -> int:
        """Bytes of parameters, each once, on the worst rank."""
        return self.weights.parameters


_FOUND: Final = tuple(
    name
    for name in Plan.__struct_fields__
    if name not in ("scenario", "architecture", "quantization", "surroundings")
)
"""What a plan found out: all but what it was made of, and what is compared by identity."""


class Loaded(NamedTuple):
    """A model on its ranks, before its KV cache is cut into blocks; all but the layout for a rank of each stage."""

    layout: Layout
    weights: tuple[WeightBytes, ...]
    memories: tuple[RankMemory, ...]
    surroundings: tuple[OtherSurroundings, ...]


class Batch:
    """Plans one deployment after another. Layout, weights and memory are worked out once for all of the same flags.

    The length is not one of them, but for models whose layout or memory depends on it.
    """

    def __init__(self, most: int = MOST_LOADED) -> None:
        """Keeps at most so many loaded models."""
        self._most = most
        self._loaded: dict[Hashable, tuple[Begun, Loaded]] = {}

    def plan(self, scenario: Scenario) -> Plan:
        """`plan` of one deployment."""
        return plan(scenario, self)

    def loaded(
        self, scenario: Scenario, begun: Begun, resolved: Resolved, load: Callable[[], Loaded]
    ) -> Loaded:
        """The result of `load`, or that of an earlier deployment with the same flags."""
        try:
            inputs = msgpack.encode(replace(scenario, config=None, max_model_len=None))
        except (OverflowError, TypeError, ValueError):
            # A number that MessagePack has no place for, in the settings of a connector.
            return load()
        flags = replace(_without_length(scenario, begun.architecture, resolved), notices=())
        key = id(begun.architecture), inputs, flags
        found = self._loaded.get(key)
        if found is None:
            if len(self._loaded) >= self._most:
                self._loaded.clear()
            # The architecture is kept so that no other one gets its id.
            found = self._loaded[key] = begun, load()
        return found[1]


def _without_length(scenario: Scenario, architecture: Architecture, resolved: Resolved) -> Resolved:
    """`resolved` with no length, where neither layout nor memory depends on it."""
    if scenario.speculative_config is not None or has_states(architecture):
        return resolved
    return memory_flags(architecture, resolved)


def plan(scenario: Scenario, batch: Batch | None = None) -> Plan:
    """The memory plan of one deployment, next to others of `batch`.

    Raises ModelError for a config that cannot be read exactly, EngineRefusalError for what the engine refuses
    before it looks at memory. A deployment that does not fit is a result, with its verdict.
    """
    accelerator = card_of(scenario)
    card = view_of(accelerator, scenario.accelerator is None)
    begun = begin(scenario)
    scenario = partitioned(scenario, begun.architecture.num_layers)
    resolved = resolve_flags(scenario, begun, card)
    around, before = beside(scenario, plan)

    def load() -> Loaded:
        layout = lay_out(scenario, begun, resolved)
        weights = load_weights(scenario, begun, layout, card)
        memories = plan_memory(around, begun, layout.resolved, accelerator, weights)
        others = (
            OtherSurroundings(
                scenario=around,
                architecture=begun.architecture,
                resolved=layout.resolved,
                accelerator=accelerator,
                stage=stage,
                memory=memory,
            )
            for stage, memory in enumerate(memories)
        )
        return Loaded(layout, weights, memories, tuple(others))

    loaded = load() if batch is None else batch.loaded(scenario, begun, resolved, load)
    layout, weights, memories, surroundings = loaded
    layout = replace(layout, resolved=replace(resolved, block_size=layout.resolved.block_size))
    cache = plan_pool(layout, scenario.parallel, memories)
    resolved = layout.resolved
    if cache is not None and cache.max_model_len != resolved.max_model_len:
        resolved = replace(resolved, max_model_len=cache.max_model_len)
    resolved = resolved.engine.with_pool(resolved, cache)
    available = tuple(int(memory.available_kv.value) for memory in memories)
    worst = cache.stage if cache is not None and cache.groups else available.index(min(available))
    memory = memories[worst].with_cache(
        None if cache is None else cache.figures.pool,
        available[worst],
        graphs=resolved.engine.graph_api,
        is_fixed=resolved.num_gpu_blocks_override is not None,
    )
    stage_kv = tuple(one.available_kv for one in memories)
    verdict = _verdict(memory, cache, layout.specs, resolved, scenario, stage_kv)
    tight_by = _tightness(memory, cache, resolved, scenario) if verdict is Verdict.TIGHT else None
    is_known = scenario.accelerator is not None or scenario.measured.available_kv_gib is not None
    if verdict is Verdict.WEIGHTS_DO_NOT_FIT or not is_known:
        cache = None
    host = host_memory(
        scenario,
        begun.architecture,
        begun.quantization,
        resolved,
        accelerator,
        cache,
        memory.weights.value,
    )
    check_limits(scenario, resolved, host)
    shared = _shared(scenario, memory, cache, host)
    if shared and verdict is Verdict.FITS:
        verdict, tight_by = Verdict.TIGHT, Tightness.HOST
    planned = Plan(
        scenario=scenario,
        accelerator=accelerator,
        architecture=begun.architecture,
        quantization=begun.quantization,
        resolved=resolved,
        verdict=verdict,
        tight_by=tight_by,
        memory=None if scenario.accelerator is None else memory,
        cache=cache,
        available_kv_bytes=available[worst] if is_known else None,
        stage_kv=stage_kv if is_known else (),
        weights=weights[worst],
        loaded_weights=memory.weights,
        surroundings=surroundings[worst],
        stage=worst,
        specs=layout.specs,
        notices=tuple(_notices(scenario, begun, resolved, memory, layout.draft, cache, host, shared)),
        host=host,
    )
    if scenario.other_engines is None:
        return planned
    engines = engines_on_card(planned, before, plan)
    told = tuple(neighbour_notices(planned, engines))
    return replace(planned, engines=engines, notices=(*planned.notices, *told))


def check(scenario: Scenario) -> None:
    """Raises what `plan` raises before it looks at the memory of a card, for a part of the work."""
    accelerator = card_of(scenario)
    card = view_of(accelerator, scenario.accelerator is None)
    begun = begin(scenario)
    scenario = partitioned(scenario, begun.architecture.num_layers)
    load_weights(scenario, begun, lay_out(scenario, begun, resolve_flags(scenario, begun, card)), card)


class Begun(Struct, frozen=True, kw_only=True):
    """The model as the engine would load it."""

    architecture: Architecture
    quantization: Quantization


class Layout(Struct, frozen=True, kw_only=True):
    """The flags with the block size that the model's caches need, and the caches."""

    resolved: Resolved
    specs: tuple[tuple[LayerSpec, ...], ...]
    """The cache specs of a rank of each pipeline stage."""
    draft: Draft | None
    """The draft that speculative decoding loads in addition to the model."""


def begin(scenario: Scenario) -> Begun:
    """The model of `scenario`, read and stored as asked.

    Raises ModelError for a config that cannot be read exactly, EngineRefusalError for heads that cannot be cut so.
    """
    engine = engine_of(scenario)
    architecture = engine.stored_architecture(scenario, read_architecture(config_in_force(scenario)))
    quantization = as_known(scenario, engine.storage(scenario))
    heads_per_rank(architecture.num_attention_heads, scenario.parallel.tensor_parallel_size)
    return Begun(architecture=architecture, quantization=quantization)


def config_in_force(scenario: Scenario) -> ModelConfig:
    """The config as the engine reads it, with the rope that `--hf-overrides` stretches as the release spells it."""
    if scenario.hf_overrides is None:
        return scenario.config
    yarn = read_overrides(scenario.hf_overrides).yarn
    return (
        scenario.config if yarn is None else yarn.config(scenario.config, planned_release(scenario).version)
    )


def resolve_flags(scenario: Scenario, begun: Begun, card: CardView) -> Resolved:
    """Every flag filled in. Raises EngineRefusalError."""
    engine = engine_of(scenario)
    engine.check_names(scenario)
    return engine.resolve(scenario, begun.architecture, card)


def lay_out(scenario: Scenario, begun: Begun, resolved: Resolved) -> Layout:
    """The caches of the model under these flags. Raises EngineRefusalError."""
    architecture, quantization, parallel = begun.architecture, begun.quantization, scenario.parallel
    check_tier(scenario, resolved)
    block_size = aligned_block_size(architecture, parallel, resolved)
    if block_size != resolved.block_size:
        resolved = replace(resolved, block_size=block_size)
    resolved.engine.check_block(resolved)
    if resolved.engine.checks_weight_shapes:
        by_name = is_format_by_name(scenario)
        check_weight_shapes(architecture, quantization, parallel, resolved.switches, by_name=by_name)
    stages = range(parallel.pipeline_parallel_size)
    speculative = scenario.speculative_config
    draft = resolved.engine.draft(speculative, architecture, quantization, parallel, resolved.max_model_len)
    specs = tuple(rank_layer_specs(architecture, parallel, resolved, stage, draft) for stage in stages)
    return Layout(resolved=resolved, specs=specs, draft=draft)


def load_weights(scenario: Scenario, begun: Begun, layout: Layout, card: CardView) -> tuple[WeightBytes, ...]:
    """The weights of a rank of each pipeline stage. Raises EngineRefusalError."""
    scenario = without_card(scenario)
    architecture, quantization, resolved = begun.architecture, begun.quantization, layout.resolved
    weights = tuple(
        loaded_bytes(
            scenario=scenario,
            architecture=architecture,
            quantization=quantization,
            resolved=resolved,
            card=card,
            draft=layout.draft,
            stage=stage,
        )
        for stage in range(scenario.parallel.pipeline_parallel_size)
    )
    uncounted = uncounted_bytes(scenario, architecture, quantization, resolved)
    if uncounted:
        weights = tuple(replace(part, loading=part.loading + uncounted) for part in weights)
    return weights


def plan_memory(
    scenario: Scenario,
    begun: Begun,
    resolved: Resolved,
    accelerator: Accelerator,
    weights: tuple[WeightBytes, ...],
) -> tuple[RankMemory, ...]:
    """The memory of a rank of each pipeline stage, before its KV cache is cut into blocks."""
    flags = memory_flags(begun.architecture, resolved)
    return rank_memories(scenario, begun.architecture, flags, accelerator, weights)


def plan_pool(layout: Layout, parallel: Parallel, memories: tuple[RankMemory, ...]) -> CachePlan | None:
    """The KV cache in the memory of a rank of each pipeline stage; None where there is none.

    Raises EngineRefusalError.
    """
    kv = tuple(memory.available_kv for memory in memories)
    available = stage_kv_bytes(kv)
    if min(available) <= 0:
        return None
    return plan_cache(layout.specs, available, layout.resolved, parallel, kv, of_deciding_stage=True)


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
        measured.origin(KV_CACHE.field) is Origin.MEASURED or scenario.accelerator is None
    )
    is_sure = is_exact or any(one.interval is None for one in stage_kv)
    if lacks_states(scenario, resolved, cache):
        return Verdict.NO_KV_MEMORY
    return judged(
        resolved,
        cache,
        weights_fit=only_cache
        or (not memory.lacks_weights and memory.weights.bounds[LOW] <= memory.budget.bounds[HIGH]),
        least=() if is_sure else stage_kv_bytes(stage_kv, LOW),
        most=() if is_sure else stage_kv_bytes(stage_kv, HIGH),
        planned=lambda available: plan_cache(specs, available, resolved, scenario.parallel),
        has_room=only_cache or (memory.least_room >= 0 and not memory.stops_at_start),
        counts_states=not only_cache,
        is_empty=not is_sure and any(is_empty(one, scenario) for one in stage_kv),
    )


def lacks_states(scenario: Scenario, resolved: Resolved, cache: CachePlan | None) -> bool:
    """Whether a given KV memory has fewer blocks than sequences whose states it is to keep, though it holds a request.

    The engine refuses the start when it captures graphs; what was given is planned all the same. How many sequences
    run is only known with the card, unless it is said.
    """
    is_given = scenario.measured.available_kv_gib is not None
    is_known = scenario.accelerator is not None or scenario.max_num_seqs is not None
    if cache is None or not is_given or not is_known or not cache.fits:
        return False
    return cache.num_blocks < least_state_blocks((group.kind for group in cache.groups), resolved)


def _tightness(
    memory: RankMemory, cache: CachePlan | None, resolved: Resolved, scenario: Scenario
) -> Tightness:
    """`tightness` of a plan whose verdict is `TIGHT`; a given KV memory is not looked for on an unnamed card."""
    is_given = scenario.measured.available_kv_gib is not None
    is_open = is_given and scenario.accelerator is None
    return tightness(
        cache,
        resolved,
        stops_at_start=memory.stops_at_start and not is_given,
        has_room=is_open or memory.least_room >= 0,
    )


def _shared(
    scenario: Scenario, memory: RankMemory, cache: CachePlan | None, host: HostMemory | None
) -> tuple[Notice, ...]:
    """`unified_notices` of a card that is known."""
    if scenario.accelerator is None or cache is None:
        return ()
    asked = 0 if host is None else host.bytes_per_node
    return unified_notices(scenario.accelerator, scenario, memory, cache.needed_bytes, asked)


def _notices(
    scenario: Scenario,
    begun: Begun,
    resolved: Resolved,
    memory: RankMemory,
    draft: Draft | None,
    cache: CachePlan | None,
    host: HostMemory | None,
    shared: tuple[Notice, ...],
) -> Iterator[Notice]:
    """Everything a person should know of the plan, in the order of its stages."""
    architecture, quantization = begun.architecture, begun.quantization
    yield from origin_notices(scenario)
    yield from architecture.notices
    yield from resolved.notices
    if cache is not None and lacks_states(scenario, resolved, cache):
        said = {"value": resolved.max_num_seqs, "blocks": cache.num_blocks}
        yield notice("state-blocks-too-few", "max_num_seqs", **said)
    yield from memory.notices
    yield from tier_notices(scenario, resolved, () if host is None else host.tiers)
    yield from limit_notices(scenario, resolved, host)
    yield from moved_notices(moved_request(scenario, resolved, cache), scenario)
    if scenario.accelerator is not None:
        yield from sleep_notices(scenario, memory)
    yield from shared
    if scenario.accelerator is not None:
        yield from free_notices(scenario.accelerator, scenario, resolved.version)
    if scenario.accelerator is not None and scenario.accelerator.vendor in _WITHOUT_STARTS:
        yield notice("overheads-of-another-vendor", "accelerator")
    if scenario.accelerator is not None and resolved.engine.other_versions(scenario):
        yield notice("release-not-stated", "engine_version", used=resolved.engine.assumed_version(scenario))
    yield from _batch_notices(scenario, resolved)
    yield from resolved.engine.draft_notices(scenario.speculative_config, draft)
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
    variables = resolved.engine.variables_in(resolved.version)
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
