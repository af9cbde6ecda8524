"""CUDA graphs (ACL graphs on Ascend): what they take, and what the engine takes off the budget for them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

from packaging.version import Version

from kvcore.memory.setting import Setting
from kvcore.memory.tables import GraphRate, graph_tables
from kvcore.quantity import Grade, Quantity, Unit
from kvcore.units import GIB, MIB

V2_ESTIMATES: Final = Version("0.29.0")
"""Before, the V2 runner answered 0.

Source: vllm/v1/worker/gpu/model_runner.py:profile_cudagraph_memory (0.28.0, 0.32.0).
"""


def cuda_graph_bytes(setting: Setting) -> Quantity:
    """Bytes that captured graphs really take on one rank: graphs × layers × a rate by kind of layer.

    Every size is captured piecewise; in full those that a pure decode batch can have.

    Source: vllm/v1/worker/gpu_model_runner.py:GPUModelRunner.capture_model (0.19.0).
    """
    count = graph_count(setting)
    rate = graph_rate(graph_kind(setting))
    base = card_bytes(setting) if count else 0
    value = int(count * setting.layers * rate.bytes_per_graph_and_layer) + base
    spread = rate.spread_share * value
    return Quantity(
        name="cuda_graphs",
        value=value,
        unit=Unit.BYTES,
        formula="{graphs} × {layers} × {bytes_per_graph_and_layer} + {base}",
        inputs=(
            Quantity(name="graphs", value=count),
            Quantity(name="layers", value=setting.layers, unit=Unit.LAYERS),
            Quantity(
                name="bytes_per_graph_and_layer",
                value=rate.bytes_per_graph_and_layer,
                unit=Unit.BYTES,
                grade=Grade.FITTED,
            ),
            Quantity(name="base", value=base, unit=Unit.BYTES, grade=Grade.FITTED),
        ),
        grade=Grade.FITTED if count else Grade.EXACT,
        source=rate.source,
        interval=(value - spread, value + spread),
    )


def counted_graph_bytes(setting: Setting, actual: Quantity) -> Quantity:
    """Bytes that the engine's own estimate takes off the budget: 0 before 0.20; a given figure stands for both.

    Source: vllm/v1/worker/gpu_model_runner.py:GPUModelRunner.profile_cudagraph_memory (0.18.1, 0.20.2).
    """
    if actual.grade is Grade.MEASURED and counts_estimate(setting):
        return replace(actual, name="counted_graphs")
    tables = graph_tables()
    value = spread = 0.0
    count = graph_count(setting)
    if count and counts_estimate(setting):
        rate = graph_rate(graph_kind(setting))
        value = count * setting.layers * rate.bytes_per_graph_and_layer
        if setting.runner == "v2":
            value *= tables.estimate.v2_share
        if setting.resolved.attention_backend == "FLASHINFER":
            value += tables.flashinfer_workspace.mib * MIB
        spread = tables.estimate.spread_share * value
    return Quantity(
        name="counted_graphs",
        value=int(value),
        unit=Unit.BYTES,
        formula="{graphs} × {layers} × {bytes_per_graph_and_layer}" if value else "",
        inputs=actual.inputs[:3] if value else (),
        grade=Grade.FITTED if value else Grade.EXACT,
        source=tables.estimate.source,
        interval=(value - spread, value + spread),
    )


def counts_estimate(setting: Setting) -> bool:
    """Whether this version and runner take graphs off the budget."""
    if setting.runner == "v0":
        return False
    if setting.runner == "v2" and setting.resolved.version < V2_ESTIMATES:
        return False
    asked = setting.scenario.env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS")
    match setting.switches.graph_estimate:
        case "counted":
            return asked != "0"
        case "when-asked":
            return asked == "1"
    return False


def graph_count(setting: Setting) -> int:
    """Captured graphs: each size piecewise, and in full those of at most max_num_seqs requests."""
    resolved = setting.resolved
    sizes = resolved.cudagraph_capture_sizes
    widest = resolved.max_num_seqs * (1 + resolved.num_speculative_tokens)
    count = len(sizes) if "PIECEWISE" in resolved.cudagraph_modes else 0
    if "FULL" in resolved.cudagraph_modes:
        count += sum(size <= widest for size in sizes)
    return count


def card_bytes(setting: Setting) -> int:
    """What graphs take more on this card, whatever their number."""
    capability = ".".join(map(str, setting.accelerator.compute_capability or ()))
    for row in graph_tables().card:
        if row.capability == capability and row.since <= setting.resolved.version < row.below:
            return int(row.gib * GIB)
    return 0


def graph_kind(setting: Setting) -> str:
    """Which rate holds: ascend, latent, experts or dense."""
    if setting.runner == "ascend":
        return "ascend"
    if setting.architecture.is_mla:
        return "latent"
    return "dense" if setting.architecture.moe is None else "experts"


@lru_cache(maxsize=16)
def graph_rate(kind: str) -> GraphRate:
    """The rate of a kind of layer."""
    return next(rate for rate in graph_tables().rates if rate.kind == kind)
