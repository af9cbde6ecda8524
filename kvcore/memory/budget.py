"""The budget of one rank: what the engine may spend, on what it is spent, and what is left for the KV cache."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import Notice
from kvcore.base.kept import kept
from kvcore.base.parts import ACTIVATIONS, CUDA_GRAPHS, FRAMEWORK, SYSTEM, WEIGHTS
from kvcore.base.quantity import Grade, Quantity, explained, figure, given
from kvcore.base.term import left_of, rounded_up
from kvcore.base.units import GIB, gib
from kvcore.catalogue.accelerators import Accelerator
from kvcore.engine import stage_layers
from kvcore.engine.protocol import Resolved, Setting
from kvcore.engine.rank_memory import (
    TOO_LITTLE_FREE,
    Parts,
    RankMemory,
    half_width,
    measured_or,
    rank_parts,
)
from kvcore.engine.setting import setting_of
from kvcore.memory.activations import peak_activation_bytes, restart_gain_bytes
from kvcore.memory.after_pool import after_pool_bytes
from kvcore.memory.framework import (
    budget_kind,
    non_torch_bytes,
    system_bytes,
)
from kvcore.memory.graphs import captured_graphs, counted_graph_bytes, cuda_graph_bytes
from kvcore.memory.intervals import FactorRow, Reach, cell_of, factor_of, interval_of, reach_of
from kvcore.memory.loaded import loaded_quantity
from kvcore.memory.weights import WeightBytes
from kvcore.model.architecture import Architecture, caches_of
from kvcore.model.caches import LatentWindow, Mla, SparseIndexer
from kvcore.scenario import Scenario

ASSUMED_TOTAL_SPREAD: Final = 0.3
"""GiB: how far the total of a card may be off when only the driver tool's figure is published."""
RESTART_GAIN_GIB: Final = 0.1
"""Less is not worth a word."""


def rank_memory(
    *,
    scenario: Scenario,
    architecture: Architecture,
    resolved: Resolved,
    accelerator: Accelerator,
    weights: WeightBytes,
    stage: int,
) -> RankMemory:
    """Where the memory of a rank of pipeline stage `stage` goes, in bytes, as its engine finds it.

    The KV cache of the result is what is available; `with_cache` makes it the blocks that fit.
    """
    setting = setting_of(scenario, architecture, resolved, accelerator, stage)
    engine = resolved.engine
    if not weights.drafts or not engine.loads_drafts_late(resolved):
        return engine.rank_memory(setting, weights_of(setting, weights))
    memory = engine.rank_memory(setting, weights_of(setting, replace(weights, drafts=0)))
    return replace(memory, after_pool=_with_more(memory.after_pool, weights.drafts))


def rank_memories(
    scenario: Scenario,
    architecture: Architecture,
    resolved: Resolved,
    accelerator: Accelerator,
    weights: Sequence[WeightBytes],
) -> tuple[RankMemory, ...]:
    """`rank_memory` of each pipeline stage, whose weights are given in their order.

    A setting takes of its stage where it stands and how many layers it has, so stages alike are worked out once: there
    may be hundreds.
    """
    found: dict[Hashable, RankMemory] = {}

    def memory(stage: int, stored: WeightBytes) -> RankMemory:
        layers = len(stage_layers(architecture.num_layers, scenario.parallel, stage))
        alike = stage == 0, stage == len(weights) - 1, layers, stored
        if alike not in found:
            found[alike] = rank_memory(
                scenario=scenario,
                architecture=architecture,
                resolved=resolved,
                accelerator=accelerator,
                weights=stored,
                stage=stage,
            )
        return found[alike]

    return tuple(memory(stage, stored) for stage, stored in enumerate(weights))


def memory_flags(architecture: Architecture, resolved: Resolved) -> Resolved:
    """The flags as the memory next to the KV cache sees them: without the length, where it does not depend on it.

    It does with encoders, whose items fill a request, with latent caches, and with engines that have own overheads.
    """
    if _grows_with_length(architecture) or resolved.engine.facts.overheads is not None:
        return resolved
    return replace(resolved, max_model_len=0)


@kept
def _grows_with_length(architecture: Architecture) -> bool:
    latent = any(isinstance(cache, Mla | SparseIndexer | LatentWindow) for cache in caches_of(architecture))
    return architecture.is_multimodal or architecture.is_mla or latent


def profiled_memory(setting: Setting, weights: Quantity) -> RankMemory:
    """The parts of one rank where the engine runs its largest step at start and measures it.

    available_kv = utilization × total − weights − activations − framework − counted graphs; all that a
    `--kv-cache-memory-bytes` gives instead. Parts in `scenario.measured` replace predicted ones.

    Source: vllm/v1/worker/gpu_worker.py:Worker.determine_available_memory (0.9.2, 0.19.0, 0.27.1, 0.32.0),
    vllm/worker/worker.py:Worker.determine_num_available_blocks (V0, 0.8.5).
    """
    measured, total = setting.scenario.measured, total_of(setting.accelerator)
    system = measured_or(measured, SYSTEM.field, system_bytes(setting))
    budget = setting_budget(setting, total)
    profiled = profile_of(setting)
    activations, framework, counted = profiled.activations, profiled.framework, profiled.counted_graphs
    remainder = available_of(setting, budget, weights, activations, framework, counted)
    return rank_parts(
        Parts(
            total=total,
            system=system,
            framework=framework,
            weights=weights,
            activations=activations,
            cuda_graphs=profiled.cuda_graphs,
            counted_graphs=counted,
            budget=budget,
            remainder=remainder,
            after_pool=after_pool_bytes(setting, activations, remainder.value),
        ),
        measured,
        (*notices_of(setting, total, system, budget), *restart_notices(setting, activations)),
    )


class Profile(Struct, frozen=True, kw_only=True):
    """Parts that the profile run finds in the budget next to the weights, predicted or measured. All in bytes."""

    framework: Quantity
    activations: Quantity
    cuda_graphs: Quantity
    counted_graphs: Quantity


def profile_of(setting: Setting) -> Profile:
    """The parts of one rank that the profile run finds, those in `scenario.measured` as they are given."""
    captured = captured_graphs(setting)
    predicted = cuda_graph_bytes(setting, captured)
    graphs = measured_or(setting.scenario.measured, CUDA_GRAPHS.field, predicted)
    return Profile(
        framework=measured_framework(setting),
        activations=measured_activations(setting),
        cuda_graphs=graphs,
        counted_graphs=counted_graph_bytes(setting, graphs, captured),
    )


def measured_framework(setting: Setting) -> Quantity:
    """Framework inside the budget of one rank in bytes, as predicted or measured."""
    return measured_or(setting.scenario.measured, FRAMEWORK.field, non_torch_bytes(setting))


def measured_activations(setting: Setting) -> Quantity:
    """Peak of the activations of one rank in bytes, as predicted or measured."""
    peak = setting.engine.reserved(setting, peak_activation_bytes(setting))
    return measured_or(setting.scenario.measured, ACTIVATIONS.field, peak)


def total_of(accelerator: Accelerator) -> Quantity:
    """The memory of a card as torch reports it, in whole bytes."""
    value, spread = int(accelerator.memory_gib * GIB), total_spread_bytes(accelerator) or None
    return figure("total", value, grade=accelerator.memory_grade, source=accelerator.source, spread=spread)


def total_spread_bytes(accelerator: Accelerator) -> float:
    """Bytes that the total of a card may be off."""
    return ASSUMED_TOTAL_SPREAD * GIB if accelerator.memory_grade is Grade.ASSUMED else 0.0


def _with_more(taken: Quantity, more: int) -> Quantity:
    interval = None if taken.interval is None else (taken.interval[0] + more, taken.interval[1] + more)
    return figure(
        taken.name, int(taken.value) + more, grade=taken.grade, source=taken.source, interval=interval
    )


def weights_of(setting: Setting, weights: WeightBytes) -> Quantity:
    """Weights as "Model loading took" prints them, or as they were measured."""
    return measured_or(setting.scenario.measured, WEIGHTS.field, loaded_quantity(weights))


def budget_of(total: Quantity, utilization: float, *, rounds_up: bool) -> Quantity:
    """utilization × total, in whole bytes: rounded up from 0.14.1 on.

    Source: vllm/v1/worker/utils.py:request_memory (0.14.1).
    """
    share = given("gpu_memory_utilization", utilization)
    return explained(
        "budget",
        rounded_budget_bytes if rounds_up else whole_budget_bytes,
        total,
        share,
        grade=total.grade,
        source="vllm/v1/worker/utils.py:request_memory (0.32.0)",
        spread=share.value * half_width(total) or None,
    )


def setting_budget(setting: Setting, total: Quantity) -> Quantity:
    """The budget of a rank, in whole bytes."""
    return budget_of(
        total, setting.resolved.gpu_memory_utilization, rounds_up=setting.switches.rounds_budget_up
    )


def rounded_budget_bytes(total: int, gpu_memory_utilization: float) -> int:
    """Bytes that the engine may spend: rounded up from 0.14.1 on."""
    return rounded_up(total * gpu_memory_utilization)


def whole_budget_bytes(total: int, gpu_memory_utilization: float) -> int:
    """The same below 0.14.1, rounded down."""
    return math.trunc(total * gpu_memory_utilization)


class Remainder(NamedTuple):
    """Bytes that the parts leave of the budget of one rank; a share of them becomes the KV cache."""

    left: int
    share: int
    ends: tuple[float, float]
    """The interval of the available bytes."""

    @property
    def available(self) -> int:
        """Bytes that the KV cache is planned in."""
        return shared_bytes(self.left, self.share)


def available_bytes(budget: int, parts: tuple[int, ...], share: int) -> int:
    """The budget less all parts, divided by `share`."""
    return shared_bytes(left_of(budget, parts), share)


def shared_bytes(left: int, share: int) -> int:
    """One pool's share of what is left, where the engine allots the pool `share` times."""
    return left if share == 1 else left // share


def remainder_of(
    setting: Setting,
    budget_bytes: float,
    weights: Quantity,
    activations: Quantity,
    framework: Quantity,
    counted: Quantity,
) -> Remainder:
    """budget − weights − activations − framework − counted graphs, and how far that may be off.

    Where nobody states the release, the interval spans those of all that may be meant.
    """
    inside = inside_of(setting, weights, activations, framework, counted)
    found = release_remainder(setting, budget_bytes, inside, total_spread_bytes(setting.accelerator))
    low, high = found.ends
    for other in other_settings(setting):
        total, own = total_of(setting.accelerator), profile_of(other)
        inside = inside_of(other, weights, own.activations, own.framework, own.counted_graphs)
        spread = total_spread_bytes(setting.accelerator)
        ends = release_remainder(other, setting_budget(other, total).value, inside, spread).ends
        low, high = min(low, ends[0]), max(high, ends[1])
    return found._replace(ends=(low, high))


def other_settings(setting: Setting) -> Iterator[Setting]:
    """The same rank on each other release that may be meant where nobody states it, with its default utilization.

    Weights and the other flags stay those of the planned release: they differ by little next to the budget.
    """
    for version in setting.engine.other_versions(setting.scenario):
        switches, resolved = setting.engine.switches(version), replace(setting.resolved, version=version)
        if setting.scenario.gpu_memory_utilization is None:
            resolved = replace(resolved, gpu_memory_utilization=switches.gpu_memory_utilization)
        yield replace(setting, resolved=resolved, switches=switches)


class Inside(NamedTuple):
    """Bytes of the parts in the budget of one rank, their uncertainty, and how many times that they may be off."""

    taken: float
    reach: Reach
    factor: FactorRow


def inside_of(
    setting: Setting, weights: Quantity, activations: Quantity, framework: Quantity, counted: Quantity
) -> Inside:
    """The sum of these parts."""
    parts = {
        WEIGHTS.field: weights,
        ACTIVATIONS.field: activations,
        FRAMEWORK.field: framework,
        CUDA_GRAPHS.field: counted,
    }
    taken = sum(part.value for part in parts.values())
    return Inside(taken, reach_of(setting, parts), factor_of(cell_of(setting)))


def release_remainder(
    setting: Setting, budget_bytes: float, inside: Inside, total_spread: float
) -> Remainder:
    """`remainder_of` on the one release of `setting`; `total_spread` is that of its card."""
    left = int(budget_bytes - inside.taken)
    low, high = interval_of(left, inside.reach, inside.factor, total_spread)
    share = setting.engine.pool_share(setting)
    below, above = setting.engine.unsized_bytes(setting)
    return Remainder(left, share, ((low - below) / share, (high + above) / share))


def available_of(
    setting: Setting,
    budget: Quantity,
    weights: Quantity,
    activations: Quantity,
    framework: Quantity,
    counted: Quantity,
) -> Quantity:
    """Bytes left for the KV cache, with the interval that the estimated parts leave it.

    Where nobody states the release, the interval spans those of all that may be meant.
    """
    fixed = setting.scenario.kv_cache_memory_bytes
    if fixed is not None and setting.switches.kv_cache_memory_bytes:
        source = "vllm/config/cache.py:CacheConfig.kv_cache_memory_bytes (0.10.2)"
        return replace(figure("available_kv", fixed, source=source), set_by="--kv-cache-memory-bytes")
    parts = weights, activations, framework, counted
    found = remainder_of(setting, budget.value, *parts)
    return explained(
        "available_kv",
        available_bytes,
        budget,
        parts,
        found.share,
        grade=Grade.ASSUMED if weights.grade is Grade.ASSUMED else Grade.FITTED,
        source="vllm/v1/worker/gpu_worker.py:Worker.determine_available_memory (0.32.0)",
        interval=found.ends,
    )


def checks_free_memory(setting: Setting) -> bool:
    """Whether the engine compares its budget with what is free before it loads anything, and stops where that is less.

    Source: vllm/v1/worker/utils.py:request_memory (0.14.1, 0.33.0), gpu_worker.py:Worker.init_device (0.9.2).
    """
    return budget_kind(setting) != "v0" and setting.switches.checks_free_memory


def notices_of(setting: Setting, total: Quantity, system: Quantity, budget: Quantity) -> tuple[Notice, ...]:
    """`free-memory-below-utilization` where the engine will find less free memory than it may spend."""
    free = total.value - system.value
    if not checks_free_memory(setting) or free >= budget.value:
        return ()
    params = {
        "free": f"{gib(free):.2f}",
        "total": f"{gib(total.value):.2f}",
        "utilization": f"{setting.resolved.gpu_memory_utilization:g}",
        "wanted": f"{gib(budget.value):.2f}",
    }
    return (Notice(code=TOO_LITTLE_FREE, field="gpu_memory_utilization", params=params),)


def restart_notices(setting: Setting, activations: Quantity) -> tuple[Notice, ...]:
    """`restart-leaves-more` where compiling sets the peak of a first start."""
    gain = gib(restart_gain_bytes(activations))
    if gain < RESTART_GAIN_GIB or setting.scenario.kv_cache_memory_bytes is not None:
        return ()
    return (Notice(code="restart-leaves-more", field="available_kv", params={"gain": f"{gain:.2f}"}),)
