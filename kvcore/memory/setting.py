"""What the overheads of one rank depend on, gathered once."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, get_args

from msgspec import Struct

from kvcore.base.kept import kept
from kvcore.catalogue.accelerators import Accelerator, Interconnect
from kvcore.engine import stage_layers
from kvcore.engine.memory_rules import MemoryRules, Overheads, RunnerKind
from kvcore.engine.resolved import Resolved
from kvcore.engine.switches import Switches
from kvcore.engines.registry import find_engine
from kvcore.engines.vllm.storage import storage_of
from kvcore.engines.vllm.versions import switches_of
from kvcore.memory.weights import DTYPE_BYTES
from kvcore.model.architecture import Architecture, SparseIndexer, caches_of
from kvcore.scenario import Host, Link, Parallel, Scenario


class Setting(Struct, frozen=True, kw_only=True):
    """One rank of one pipeline stage."""

    scenario: Scenario
    architecture: Architecture
    resolved: Resolved
    accelerator: Accelerator
    parallel: Parallel
    switches: Switches
    is_first: bool
    """Whether this stage embeds tokens and images."""
    is_last: bool
    """Whether this stage makes the logits."""
    runner: str
    """v0, v1, v2, or the engine's own overheads."""
    links: tuple[str, ...]
    """How its ranks may reach each other, the likeliest first."""
    element_bytes: int
    layers: int
    """Decoder layers of this stage."""
    storage: str
    """The storage format of the weights: method and detail, lower case."""
    rules: MemoryRules
    """What is the engine's own."""

    @property
    def link(self) -> str:
        """The likeliest of `links`."""
        return self.links[0]

    @property
    def card_label(self) -> str:
        """What the card is called, for tables that know it by a part of its names."""
        return f"{self.accelerator.id} {self.accelerator.name}"

    @property
    def ranks(self) -> int:
        """Ranks that one start joins."""
        return joined_ranks(self.scenario, self.architecture)

    @property
    def capability(self) -> str:
        """Compute capability with a dot; "" where there is none."""
        return dotted(self.accelerator.compute_capability or ())


def setting_of(
    scenario: Scenario, architecture: Architecture, resolved: Resolved, accelerator: Accelerator, stage: int
) -> Setting:
    """The setting of a rank of pipeline stage `stage`."""
    parallel = scenario.parallel
    quantization = storage_of(scenario)
    return Setting(
        scenario=scenario,
        architecture=architecture,
        resolved=resolved,
        accelerator=accelerator,
        parallel=parallel,
        switches=switches_of(resolved.version),
        is_first=stage == 0,
        is_last=stage == parallel.pipeline_parallel_size - 1,
        runner=_runner(resolved),
        links=links_of(scenario, accelerator, architecture),
        element_bytes=DTYPE_BYTES[resolved.dtype],
        storage=f"{quantization.method} {quantization.detail}".lower(),
        layers=len(stage_layers(architecture.num_layers, parallel.pipeline_parallel_size, stage)),
        rules=find_engine(resolved.engine).memory,
    )


@lru_cache(maxsize=64)
def dotted(capability: tuple[int, ...]) -> str:
    """As the tables write a compute capability."""
    return ".".join(map(str, capability))


_RUNNERS: Final = frozenset(get_args(RunnerKind))


def own_overheads(runner: str) -> Overheads | None:
    """The constants of the engine that `runner` names; None for vLLM's own runners."""
    return None if runner in _RUNNERS else find_engine(runner).overheads


def _runner(resolved: Resolved) -> str:
    own = find_engine(resolved.engine).memory.overheads
    if own or resolved.is_v0:
        return own or "v0"
    return "v2" if resolved.use_v2_model_runner else "v1"


def joined_ranks(scenario: Scenario, architecture: Architecture) -> int:
    """Ranks that one start joins: TP, and for a mixture of experts its data parallel replicas too, whose experts
    exchange tokens. Engines that count their communicators by group are asked for TP alone.

    Source: vllm/distributed/parallel_state.py:initialize_model_parallel (0.11.0, 0.33.0), vllm/v1/engine/core.py:
    run_engine_core, where replicas of other models are starts of their own (0.33.0).
    """
    parallel = scenario.parallel
    is_apart = architecture.moe is None or find_engine(scenario.engine).overheads is not None
    return parallel.tensor_parallel_size * (1 if is_apart else parallel.data_parallel_size)


def links_of(scenario: Scenario, accelerator: Accelerator, architecture: Architecture) -> tuple[str, ...]:
    """How the ranks that one start joins may reach each other, the likeliest first; one where that is known.

    single or unified (memory shared with the processor) for one rank, else a `Link`. Cards on boards that are sold
    with NVLink, xGMI or HCCS are joined by it, but not in every pod; cards in slots are not, whatever bridge there is
    to buy: without P2P unless it is said.
    """
    surroundings, ranks = scenario.surroundings, joined_ranks(scenario, architecture)
    if ranks == 1:
        is_unified = accelerator.is_integrated or surroundings.host is Host.UNIFIED
        return ("unified" if is_unified else "single",)
    if surroundings.link is not None:
        return (surroundings.link,)
    if scenario.env.get("NCCL_P2P_DISABLE") == "1":
        return (Link.PCIE,)
    if ranks > accelerator.devices_per_node:
        return (Link.HOSTS,)
    if accelerator.interconnect is Interconnect.NVLINK:
        return Link.NVLINK, Link.PCIE
    if accelerator.interconnect in (Interconnect.PCIE, Interconnect.NONE):
        return Link.PCIE, Link.PCIE_P2P
    return (Link.NVLINK,)


@kept
def has_indexer(architecture: Architecture) -> bool:
    """Whether some layer has a sparse-attention indexer."""
    return any(isinstance(cache, SparseIndexer) for cache in caches_of(architecture))
