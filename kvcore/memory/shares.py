"""How tensor parallelism cuts the weights of a pipeline stage: what is divided, what every rank stores, and what the
engine refuses to cut: blocks and groups of quantized weights."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import EngineRefusalError
from kvcore.base.kept import kept
from kvcore.engine import heads_per_rank
from kvcore.engine.protocol import Resolved
from kvcore.engine.setting import DTYPE_BYTES
from kvcore.engine.switches import Switches
from kvcore.memory.stages import on_every_stage
from kvcore.memory.weights import (
    Rank,
    counted_layers,
    counted_modules,
    scale_bytes,
    stage_of,
)
from kvcore.model.architecture import Architecture, Experts, Linear, Split, elements
from kvcore.model.quantization import NOT_QUANTIZED, Quantization
from kvcore.model.quantization.formats import LinearShape, Misfit, Side
from kvcore.scenario import Parallel

FUSED_METHODS: Final = frozenset({"fp8", "deepseek_v4_fp8"})

_SIDES: Final = {Split.COLUMN: Side.OUTPUTS, Split.ROW: Side.INPUTS}


class WeightShares(Struct, frozen=True, kw_only=True):
    """The parameters of one pipeline stage. Bytes, but for their number."""

    count: int
    """How many numbers the stage has, scales of a storage format apart."""
    whole: int
    """On a single rank without tensor parallelism."""
    divided: int
    """The part of `whole` that is divided equally over the tensor parallel ranks."""
    replicated: int
    """The part of `whole` that every rank stores in full."""
    otherwise: int
    """On one rank: copied KV heads, padded tables, experts that are sharded over more ranks."""
    ranks: int

    @property
    def per_rank(self) -> int:
        """Parameters of one rank: divided / ranks + replicated + otherwise."""
        return self.divided // self.ranks + self.replicated + self.otherwise


def weight_shares(
    architecture: Architecture, quantization: Quantization, parallel: Parallel, resolved: Resolved, stage: int
) -> WeightShares:
    """The shares of pipeline stage `stage`, tensor by tensor: equal on every rank, 1/tp of the whole, or neither.

    `per_rank` is `WeightBytes.parameters`. Raises EngineRefusalError as `weight_bytes` does.
    """
    dtype_bytes = DTYPE_BYTES[resolved.dtype]
    ranks = parallel.tensor_parallel_size
    rank = Rank(quantization=quantization, parallel=parallel, dtype_bytes=dtype_bytes)
    by_itself = replace(parallel, tensor_parallel_size=1, data_parallel_size=1, enable_expert_parallel=False)
    alone = replace(rank, parallel=by_itself)
    count = whole = divided = replicated = otherwise = 0
    everywhere = on_every_stage(resolved.engine, architecture, parallel, resolved.version)
    for module, name, times in counted_modules(architecture, quantization, parallel, stage, everywhere):
        count += times * elements(module)
        before, after = alone.tensor_bytes(module, name), rank.tensor_bytes(module, name)
        whole += times * sum(before)
        if len(before) != len(after):
            before, after = (sum(before),), (sum(after),)
        for of_stage, of_rank in zip(before, after, strict=True):
            if of_stage == of_rank * ranks:
                divided += times * of_stage
            elif of_stage == of_rank:
                replicated += times * of_stage
            else:
                otherwise += times * of_rank
    scales = scale_bytes(stage_of(architecture, parallel, stage), quantization)
    return WeightShares(
        count=count,
        whole=whole + scales,
        divided=divided,
        replicated=replicated + scales,
        otherwise=otherwise,
        ranks=ranks,
    )


SHARED_EXPERT: Final = "shared_expert"
"""A piece of the names of shared experts."""


def check_weight_shapes(
    architecture: Architecture,
    quantization: Quantization,
    parallel: Parallel,
    switches: Switches,
    *,
    by_name: bool = False,
) -> None:
    """Refuses weights of which a rank would store a part of a block or group.

    `by_name`: the format is known by the checkpoint's name alone, which does not say whether shared experts are stored
    so, where whole experts leave only these to be cut; and a layer that is no whole number of blocks is surely not.

    Raises EngineRefusalError `weight-block-cut`.

    Source: that of `linear_misfit` and `experts_misfit` of each format.
    """
    if quantization.method == NOT_QUANTIZED:
        return
    checks_fused = switches.fused_blocks_whole or quantization.method not in FUSED_METHODS
    refines = switches.refines_expert_blocks
    found = _first_misfit(architecture, quantization, parallel, refines, checks_fused, by_name)
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


@kept
def _first_misfit(
    architecture: Architecture,
    quantization: Quantization,
    parallel: Parallel,
    refines: bool,
    checks_fused: bool,
    by_name: bool,
) -> tuple[str, Misfit] | None:
    """The first misfit. `refines`: blocks of experts are cut where the experts are; `checks_fused`: fused projections
    have to be whole blocks as well; `by_name` as in `check_weight_shapes`."""
    heads_per_rank(architecture.num_attention_heads, parallel.tensor_parallel_size)
    rank = Rank(quantization=quantization, parallel=parallel, dtype_bytes=0)
    whole = replace(parallel, pipeline_parallel_size=1)
    for layer, prefix, _ in counted_layers(architecture, quantization, whole, 0):
        for module in layer.modules:
            name, misfit = prefix + module.name, None
            if isinstance(module, Experts):
                weights = quantization.format_for(module, name)
                misfit = weights.experts_misfit(rank.experts_shape(module), refines=refines)
            elif isinstance(module, Linear) and (
                checks_fused or module.split is not Split.COLUMN or len(module.outputs) < 2
            ):
                cut = _SIDES.get(module.split) if rank.linear_ranks(module) > 1 else None
                rank_in, rank_out = rank.linear_share(module)
                shape = LinearShape(in_features=rank_in, outputs=rank_out, element_bytes=0)
                misfit = quantization.format_for(module, name).linear_misfit(shape, cut)
            if misfit is not None and not (by_name and _is_open(module.name, misfit, parallel)):
                return module.name, misfit
    return None


def _is_open(name: str, misfit: Misfit, parallel: Parallel) -> bool:
    """Whether a layer may be stored in 16 bits by a format that only a name tells."""
    is_shared = SHARED_EXPERT in name and parallel.enable_expert_parallel
    return is_shared or misfit.features * parallel.tensor_parallel_size % misfit.multiple > 0
