"""How tensor parallelism cuts the parameters of a pipeline stage: what is divided, and what every rank stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvcore.engine.partition import stage_layers
from kvcore.engine.resolved import Resolved
from kvcore.memory.stages import on_every_stage, stage_modules
from kvcore.memory.weights import DTYPE_BYTES, Rank, by_identity, counted_layers
from kvcore.model.architecture import Architecture, Module, elements
from kvcore.model.quantization import Quantization
from kvcore.scenario import Parallel


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightShares:
    """The parameters of one pipeline stage. Bytes, but for their number."""

    count: int
    """How many numbers the stage has, scales of a storage format apart."""
    whole: int
    """On a single rank without tensor parallelism."""
    divided: int
    """Of `whole`, what each of the tensor parallel ranks stores an equal part of."""
    replicated: int
    """Of `whole`, what every rank stores all of."""
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
    for module, name, times in _modules(architecture, quantization, parallel, resolved, stage):
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
    scales = _scale_bytes(architecture, quantization, parallel, stage)
    return WeightShares(
        count=count,
        whole=whole + scales,
        divided=divided,
        replicated=replicated + scales,
        otherwise=otherwise,
        ranks=ranks,
    )


def _modules(
    architecture: Architecture, quantization: Quantization, parallel: Parallel, resolved: Resolved, stage: int
) -> Iterator[tuple[Module, str, int]]:
    indices = stage_layers(architecture.num_layers, parallel.pipeline_parallel_size, stage)
    for layer, prefix, times in counted_layers(architecture, quantization, indices):
        for module in layer.modules:
            yield module, prefix + module.name, times
    everywhere = on_every_stage(architecture, parallel, resolved.version)
    for module in stage_modules(architecture, parallel, stage, everywhere):
        yield module, module.name, 1


def _scale_bytes(
    architecture: Architecture, quantization: Quantization, parallel: Parallel, stage: int
) -> int:
    indices = stage_layers(architecture.num_layers, parallel.pipeline_parallel_size, stage)
    layers = [architecture.layers[index] for index in indices]
    return sum(
        times * quantization.scale_bytes(cache)
        for layer, times in by_identity(layers)
        for cache in layer.caches
    )
