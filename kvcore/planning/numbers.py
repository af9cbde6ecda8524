"""numbers(scenario) -> Numbers: a plan without its explanations, on one card or on one after another."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError
from kvcore.base.quantity import Quantity
from kvcore.cache.capacity import Pool, pool_planner
from kvcore.cache.spec import LayerSpec
from kvcore.catalogue.accelerators import Accelerator
from kvcore.engine import partitioned
from kvcore.engine.cards import CardView, without_card
from kvcore.engine.protocol import Resolved
from kvcore.engine.setting import model_runner, setting_of
from kvcore.engines.registry import view_of
from kvcore.host.unified import is_unified
from kvcore.memory.activations import counts_multiprocessors
from kvcore.memory.loaded import loaded_quantity
from kvcore.memory.spending import Spending, budget_on, traits_of
from kvcore.memory.weights import WeightBytes
from kvcore.planning import (
    LOW,
    Layout,
    Plan,
    Tightness,
    Verdict,
    begin,
    judged,
    lay_out,
    load_weights,
    plan,
    resolve_flags,
)
from kvcore.planning.verdict import KvMemory, is_empty, tightness
from kvcore.scenario import Parallel, Scenario

T = TypeVar("T")


class Numbers(Struct, frozen=True, kw_only=True):
    """A plan without its explanations."""

    parallel: Parallel
    resolved: Resolved
    specs: tuple[tuple[LayerSpec, ...], ...]
    """The cache specs of a rank of each pipeline stage."""
    weights_bytes: float
    """The worst rank's, as "Model loading took" prints it."""
    stage_kv: tuple[KvMemory, ...] = ()
    """KV memory of a rank of each pipeline stage; empty where it is not known, or the weights do not fit."""
    pool: Pool | None = None
    verdict: Verdict = Verdict.WEIGHTS_DO_NOT_FIT
    tight_by: Tightness | None = None
    """Why the plan is tight; None of a plan that is not."""


def numbers(scenario: Scenario) -> Numbers:
    """The numbers of `plan(scenario)`, for a part of the work. Raises what `plan` raises.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB"})
        >>> numbers(asked).pool.tokens == plan(asked).cache.tokens
        True
    """
    if scenario.accelerator is None:
        return numbers_of(plan(scenario))
    return OnCards(scenario).numbers(scenario.accelerator)


def numbers_of(planned: Plan) -> Numbers:
    """The numbers of a plan that is there already."""
    return Numbers(
        parallel=planned.scenario.parallel,
        resolved=planned.resolved,
        specs=planned.specs,
        weights_bytes=planned.loaded_weights.value,
        stage_kv=() if planned.verdict is Verdict.WEIGHTS_DO_NOT_FIT else planned.stage_kv,
        pool=planned.cache,
        verdict=planned.verdict,
        tight_by=planned.tight_by,
    )


class Prepared(Struct, frozen=True, kw_only=True):
    """Everything that is known before the memory of a card is looked at, on one pipeline stage."""

    layout: Layout
    weights: Quantity
    """The first stage's."""
    failed: Numbers
    """The numbers where the weights do not fit."""
    is_plain: bool
    """Whether cards with equal traits spend the same."""
    counts_chip: bool
    """Whether the start takes memory for each multiprocessor."""


class OnCards:
    """Plans one scenario on one card after another. Each stage is worked out once for what it sees of a card.

    A card's view is all that flags, layout and weights see of it; its traits are all that its memory sees but its size.
    """

    def __init__(self, scenario: Scenario) -> None:
        """The card of `scenario` does not count. Raises as `begin` does."""
        self.scenario = without_card(scenario)
        self._begun = begin(self.scenario)
        self.scenario = partitioned(self.scenario, self._begun.architecture.num_layers)
        self._known: dict[Hashable, object] = {}

    def _once(self, key: Hashable, find: Callable[[], T]) -> T:
        """The result of `find`, worked out once for `key`; so is a refusal."""
        found = self._known.get(key)
        if found is None:
            try:
                found = find()
            except KvPlannerError as error:
                found = error
            self._known[key] = found
        if isinstance(found, KvPlannerError):
            raise found.with_traceback(None)
        return found  # type: ignore[return-value]

    def numbers(self, accelerator: Accelerator) -> Numbers:
        """The numbers of the plan on a card. Raises EngineRefusalError."""
        view = view_of(accelerator)
        prepared = self._once(view, lambda: self._prepared(view))
        if not prepared.is_plain or is_unified(accelerator, self.scenario):
            return numbers_of(plan(replace(self.scenario, accelerator=accelerator)))
        resolved = prepared.failed.resolved
        budget = budget_on(accelerator, resolved)
        if prepared.weights.bounds[LOW] > budget.most:
            return prepared.failed
        is_joined = self.scenario.parallel.ranks > 1
        traits = traits_of(accelerator, resolved.engine, is_joined, prepared.counts_chip)
        return self._once((id(prepared), traits, budget), lambda: self._judged(prepared, traits, accelerator))

    def _is_plain(self, resolved: Resolved) -> bool:
        """`Prepared.is_plain`: on one stage, on V1, with a given length and a memory that is profiled."""
        scenario = self.scenario
        return (
            not resolved.is_v0
            and not resolved.max_model_len_auto
            and scenario.parallel.pipeline_parallel_size == 1
            and scenario.num_gpu_blocks_override is None
            and scenario.kv_cache_memory_bytes is None
            and scenario.other_engines is None
            and scenario.node_memory_gib is None
            and scenario.shm_gib is None
            and not scenario.measured.values()
            and resolved.engine.follows_vllm
        )

    def _prepared(self, card: CardView) -> Prepared:
        scenario, begun = self.scenario, self._begun
        resolved = replace(resolve_flags(scenario, begun, card), notices=())
        layout = self._once(resolved, lambda: lay_out(scenario, begun, resolved))
        weights = load_weights(scenario, begun, layout, card)
        return self._once((id(layout), weights), lambda: self._loaded(layout, weights[0]))

    def _loaded(self, layout: Layout, weights: WeightBytes) -> Prepared:
        loaded = loaded_quantity(weights)
        failed = Numbers(
            parallel=self.scenario.parallel,
            resolved=layout.resolved,
            specs=layout.specs,
            weights_bytes=loaded.value,
        )
        resolved = layout.resolved
        return Prepared(
            layout=layout,
            weights=loaded,
            failed=failed,
            is_plain=self._is_plain(resolved),
            counts_chip=counts_multiprocessors(resolved.engine, model_runner(resolved), resolved.version),
        )

    def _judged(self, prepared: Prepared, traits: Hashable, accelerator: Accelerator) -> Numbers:
        layout, resolved = prepared.layout, prepared.failed.resolved
        left = self._once((id(prepared), traits), lambda: self._spending(prepared, accelerator)).left_on(
            accelerator
        )
        planned = self._once(
            id(layout), lambda: pool_planner(layout.specs[0], resolved, self.scenario.parallel)
        )
        kv, (low, high) = left.kv, left.kv.bounds
        pool = planned(kv.value) if kv.value > 0 else None
        has_room = pool is None or left.room >= pool.num_blocks * pool.bytes_per_block
        verdict = judged(
            resolved,
            pool,
            weights_fit=True,
            least=(int(low),),
            most=(int(high),),
            planned=lambda available: planned(available[0]),
            has_room=has_room and not left.stops_at_start,
            is_empty=is_empty(kv, self.scenario),
        )
        found = replace(prepared.failed, stage_kv=(kv,), pool=pool, verdict=verdict)
        if verdict is not Verdict.TIGHT:
            return found
        why = tightness(pool, resolved, stops_at_start=left.stops_at_start, has_room=has_room)
        return replace(found, tight_by=why)

    def _spending(self, prepared: Prepared, accelerator: Accelerator) -> Spending:
        architecture, resolved = self._begun.architecture, prepared.layout.resolved
        setting = setting_of(self.scenario, architecture, resolved, accelerator, 0)
        return Spending(setting, prepared.weights)
