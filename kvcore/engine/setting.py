"""A setting: everything that the overheads of one rank depend on, gathered once."""

from __future__ import annotations

from typing import Final

from kvcore.base.kept import kept
from kvcore.catalogue.accelerators import Accelerator, Interconnect
from kvcore.engine import stage_layers
from kvcore.engine.overheads import Overheads
from kvcore.engine.protocol import Engine, Resolved, Setting
from kvcore.model.architecture import Architecture, caches_of
from kvcore.model.caches import SparseIndexer
from kvcore.scenario import Host, Link, Scenario

DTYPE_BYTES: Final = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "uint8": 1,
    "int8": 1,
    "int32": 4,
    "int64": 8,
}


def setting_of(
    scenario: Scenario, architecture: Architecture, resolved: Resolved, accelerator: Accelerator, stage: int
) -> Setting:
    """The setting of a rank of pipeline stage `stage`."""
    parallel = scenario.parallel
    engine, quantization = resolved.engine, resolved.engine.storage(scenario)
    ranks = joined_ranks(engine, scenario, architecture)
    return Setting(
        scenario=scenario,
        architecture=architecture,
        resolved=resolved,
        accelerator=accelerator,
        parallel=parallel,
        switches=engine.switches(resolved.version),
        is_first=stage == 0,
        is_last=stage == parallel.pipeline_parallel_size - 1,
        runner=model_runner(resolved),
        links=links_of(scenario, accelerator, ranks),
        element_bytes=DTYPE_BYTES[resolved.dtype],
        storage=f"{quantization.method} {quantization.detail}".lower(),
        layers=len(stage_layers(architecture.num_layers, parallel, stage)),
        ranks=ranks,
    )


def own_overheads(setting: Setting) -> Overheads | None:
    """The constants of the setting's engine; None where those of `kvcore.memory` apply, by the runner."""
    return setting.engine.facts.overheads


def model_runner(resolved: Resolved) -> str:
    """The model runner whose overheads apply: v0, v1 or v2; the engine's name where it has its own."""
    if resolved.engine.facts.overheads is not None:
        return resolved.engine.name
    if resolved.is_v0:
        return "v0"
    return "v2" if resolved.use_v2_model_runner else "v1"


def joined_ranks(engine: Engine, scenario: Scenario, architecture: Architecture) -> int:
    """Ranks that one start joins: TP, and for a mixture of experts its data parallel replicas too, whose experts
    exchange tokens. Engines that count their communicators by group are asked for TP alone.

    Source: vllm/distributed/parallel_state.py:initialize_model_parallel (0.11.0, 0.33.0), vllm/v1/engine/core.py:
    run_engine_core, where replicas of other models are starts of their own (0.33.0).
    """
    parallel = scenario.parallel
    is_apart = architecture.moe is None or engine.facts.overheads is not None
    groups = parallel.prefill_context_parallel_size if is_apart else parallel.expert_groups
    return parallel.tensor_parallel_size * groups


def links_of(scenario: Scenario, accelerator: Accelerator, ranks: int) -> tuple[str, ...]:
    """How the `ranks` that one start joins may reach each other, the likeliest first; one where that is known.

    single or unified (memory shared with the processor) for one rank, else a `Link`. Cards on boards that are sold
    with NVLink, xGMI or HCCS are joined by it, but not in every pod; cards in slots are not, whatever bridge there is
    to buy: without P2P unless it is said.
    """
    surroundings = scenario.surroundings
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
