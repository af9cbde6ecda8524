"""Whether tensor parallelism leaves the blocks and groups of quantized weights whole: the engine stops where not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from packaging.version import Version

from kvcore.engine.partition import heads_per_rank
from kvcore.engine.vllm.versions import switches_of
from kvcore.errors import EngineRefusalError
from kvcore.kept import kept
from kvcore.memory.weights import Rank, counted_layers
from kvcore.model.architecture import Architecture, Experts, Linear, Module, Split
from kvcore.model.quantization import NOT_QUANTIZED, Quantization
from kvcore.model.quantization.formats import Misfit, Side
from kvcore.scenario import Parallel

FUSED_METHODS: Final = frozenset({"fp8", "deepseek_v4_fp8"})

_SIDES: Final = {Split.COLUMN: Side.OUTPUTS, Split.ROW: Side.INPUTS}


def check_weight_shapes(
    architecture: Architecture, quantization: Quantization, parallel: Parallel, version: Version
) -> None:
    """Refuses weights of which a rank would store a part of a block or group.

    Raises EngineRefusalError `weight-block-cut`.

    Source: that of `linear_misfit` and `experts_misfit` of each format.
    """
    if quantization.method == NOT_QUANTIZED:
        return
    switches = switches_of(version)
    rules = Rules(
        refines=switches.refines_expert_blocks,
        checks_fused=switches.fused_blocks_whole or quantization.method not in FUSED_METHODS,
    )
    found = _first_misfit(architecture, quantization, parallel, rules)
    if found is None:
        return
    name, misfit = found
    raise EngineRefusalError(
        "weight-block-cut",
        field="tensor_parallel_size",
        name=name,
        features=misfit.features,
        side=misfit.side,
        multiple=misfit.multiple,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What a release looks at."""

    refines: bool
    """Blocks of experts are cut where the experts are."""
    checks_fused: bool
    """Fused projections have to be whole blocks as well."""


@kept
def _first_misfit(
    architecture: Architecture, quantization: Quantization, parallel: Parallel, rules: Rules
) -> tuple[str, Misfit] | None:
    heads_per_rank(architecture.num_attention_heads, parallel.tensor_parallel_size)
    rank = Rank(quantization=quantization, parallel=parallel, dtype_bytes=0)
    for layer, prefix, _ in counted_layers(architecture, quantization, range(architecture.num_layers)):
        for module in layer.modules:
            misfit = _misfit(rank, module, prefix + module.name, rules)
            if misfit is not None:
                return module.name, misfit
    return None


def _misfit(rank: Rank, module: Module, name: str, rules: Rules) -> Misfit | None:
    if isinstance(module, Linear):
        if module.split is Split.COLUMN and len(module.outputs) > 1 and not rules.checks_fused:
            return None
        cut = _SIDES.get(module.split) if rank.linear_ranks(module) > 1 else None
        return rank.quantization.linear_misfit(module, *rank.linear_share(module), name, cut)
    if isinstance(module, Experts):
        _, width, sharing = rank.experts_share(module)
        return rank.quantization.experts_misfit(
            module, width, name, is_cut=sharing > 1, refines=rules.refines
        )
    return None
