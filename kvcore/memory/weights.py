"""Weight bytes of one rank: a fold over the architecture's modules, in integers.

`parameters` is what summing the model's parameters gives; "Model loading took" prints parameters, buffers and
what loading adds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from kvcore.engine.partition import divided, heads_per_rank, stage_layers, units_per_rank
from kvcore.engine.resolved import Resolved
from kvcore.model.architecture import (
    Architecture,
    Experts,
    Layer,
    Linear,
    Module,
    Parameter,
    RotaryTable,
    Split,
    VocabEmbedding,
)
from kvcore.model.cache_state import ChunkedLocal, FullAttention, Mla, SlidingWindow
from kvcore.model.quantization import Quantization
from kvcore.scenario import Parallel
from kvcore.units import ceil_div, round_up

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

ATTENTION_SCALE_BYTES: Final = 16
"""Four float32 scales per attention layer. Source: vllm/model_executor/layers/attention (0.32)."""

EXPERT_MAP_BYTES: Final = 4
"""int32 per expert of the model. Source: vllm/model_executor/layers/fused_moe/expert_map_manager.py (0.32)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightBytes:
    """Bytes of one rank of one pipeline stage."""

    parameters: int
    """Every parameter once."""
    buffers: int
    """Rope tables, attention scales, expert maps."""
    loading: int
    """What loading adds to what the checkpoint holds."""

    @property
    def total(self) -> int:
        """What "Model loading took" prints."""
        return self.parameters + self.buffers + self.loading


def weight_bytes(
    architecture: Architecture, quantization: Quantization, parallel: Parallel, resolved: Resolved, stage: int
) -> WeightBytes:
    """Weight bytes of one rank of pipeline stage `stage`.

    Raises EngineRefusalError when the tensor parallel size does not divide what it cuts.

    Source: docs of the formulas beside each module; vllm/model_executor/models (0.32).
    """
    return _weight_bytes(architecture, quantization, parallel, resolved.dtype, stage)


@lru_cache(maxsize=8192)
def _weight_bytes(
    architecture: Architecture, quantization: Quantization, parallel: Parallel, dtype: str, stage: int
) -> WeightBytes:
    heads_per_rank(architecture.num_attention_heads, parallel.tensor_parallel_size)
    rank = Rank(quantization=quantization, parallel=parallel, dtype_bytes=DTYPE_BYTES[dtype])
    indices = stage_layers(architecture.num_layers, parallel.pipeline_parallel_size, stage)
    parameters = loading = 0
    for layer, prefix, count in counted_layers(architecture, quantization, indices):
        parameters += count * rank.modules_bytes(layer.modules, prefix)
        loading += count * (
            rank.experts_loading_bytes(layer.modules, prefix) + rank.modules_bytes(layer.loading, prefix)
        )
    parameters += rank.modules_bytes(architecture.every, "")
    is_first, is_last = stage == 0, stage == parallel.pipeline_parallel_size - 1
    if is_first:
        parameters += rank.modules_bytes(architecture.first, "")
    if is_last:
        parameters += rank.modules_bytes(architecture.last, "")
        if architecture.tied_embeddings and not is_first:
            tied = [module for module in architecture.first if isinstance(module, VocabEmbedding)]
            parameters += rank.modules_bytes(tied[:1], "")
    layers = [architecture.layers[index] for index in indices]
    scales = sum(
        count * quantization.scale_bytes(cache) for layer, count in by_identity(layers) for cache in layer.caches
    )
    buffers = sum(rank.table_bytes(table) for table in architecture.rotary_tables)
    buffers += sum(layer_buffer_bytes(layer, parallel) * count for layer, count in by_identity(layers))
    return WeightBytes(parameters=parameters + scales, buffers=buffers, loading=loading - scales)


def counted_layers(
    architecture: Architecture, quantization: Quantization, indices: range
) -> Iterable[tuple[Layer, str, int]]:
    """The layers of a stage with their name prefix and how many are alike."""
    prefix = architecture.layer_prefix
    if quantization.depends_on_layer:
        return [(architecture.layers[index], f"{prefix}.{index}.", 1) for index in indices]
    layers = [architecture.layers[index] for index in indices]
    return [(layer, f"{prefix}.0.", count) for layer, count in by_identity(layers)]


def by_identity(layers: list[Layer]) -> list[tuple[Layer, int]]:
    """Distinct layer objects with their counts, in order of first use."""
    counts = Counter(map(id, layers))
    objects = {id(layer): layer for layer in layers}
    return [(objects[key], count) for key, count in counts.items()]


def layer_buffer_bytes(layer: Layer, parallel: Parallel) -> int:
    """Buffers of one decoder layer: attention scales, and the expert map under expert parallelism."""
    attention = sum(
        isinstance(cache, FullAttention | SlidingWindow | ChunkedLocal | Mla) for cache in layer.caches
    )
    experts = sum(module.num_experts for module in layer.modules if isinstance(module, Experts))
    return ATTENTION_SCALE_BYTES * attention + (
        EXPERT_MAP_BYTES * experts if expert_ranks(parallel) > 1 else 0
    )


def expert_ranks(parallel: Parallel) -> int:
    """Ranks that whole experts are dealt over: 1 without expert parallelism."""
    if not parallel.enable_expert_parallel:
        return 1
    return parallel.tensor_parallel_size * parallel.data_parallel_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """One rank as the fold sees it."""

    quantization: Quantization
    parallel: Parallel
    dtype_bytes: int

    def modules_bytes(self, modules: Iterable[Module], prefix: str) -> int:
        """Parameter bytes of `modules` on this rank."""
        return sum(self.module_bytes(module, prefix + module.name) for module in modules)

    def module_bytes(self, module: Module, name: str) -> int:
        """Parameter bytes of one module on this rank."""
        match module:
            case Linear():
                return self.linear_bytes(module, name)
            case Parameter():
                sharded = divided(module.sharded, self._ranks) if module.sharded > 1 else 1
                return module.replicated * sharded * self._bytes_of(module.dtype)
            case Experts():
                return self.experts_bytes(module, name)
            case VocabEmbedding():
                return self.vocab_bytes(module, name)

    def linear_bytes(self, linear: Linear, name: str) -> int:
        """Weight, scales and bias: column biases are divided, row biases are whole on each rank."""
        element = self._bytes_of(linear.dtype)
        rank_in = (
            divided(linear.in_features, self._ranks) if linear.split is Split.ROW else linear.in_features
        )
        is_column = linear.split is Split.COLUMN
        rank_out = tuple(
            output.width
            * (
                units_per_rank(output.units, self._ranks, replicable=output.replicable)
                if is_column
                else output.units
            )
            for output in linear.outputs
        )
        bias = sum(rank_out) * element if linear.bias else 0
        return self.quantization.linear_bytes(linear, rank_in, rank_out, element, name) + bias

    def experts_bytes(self, experts: Experts, name: str) -> int:
        """All experts, each 1/tp wide, or under expert parallelism this rank's share of whole experts."""
        count, width, sharing = self.experts_share(experts)
        return self.quantization.experts_bytes(experts, count, width, self.dtype_bytes, name, sharing)

    def experts_loading_bytes(self, modules: Iterable[Module], prefix: str) -> int:
        """What loading adds to the routed experts among `modules` on this rank."""
        return sum(
            self.quantization.experts_loading_bytes(
                experts, count, width, self.dtype_bytes, prefix + experts.name, sharing
            )
            for experts in modules
            if isinstance(experts, Experts)
            for count, width, sharing in (self.experts_share(experts),)
        )

    def experts_share(self, experts: Experts) -> tuple[int, int, int]:
        """Experts on this rank, features of each, and how many ranks share one expert."""
        if self.parallel.enable_expert_parallel:
            return ceil_div(experts.num_experts, expert_ranks(self.parallel)), experts.intermediate_size, 1
        return experts.num_experts, divided(experts.intermediate_size, self._ranks), self._ranks

    def vocab_bytes(self, table: VocabEmbedding, name: str) -> int:
        """The padded vocabulary divided over the ranks.

        Source: vllm/model_executor/layers/vocab_parallel_embedding.py:pad_vocab_size (0.32).
        """
        element = self._bytes_of(table.dtype)
        rows = divided(round_up(table.num_embeddings, table.padding), self._ranks)
        bias = rows * element if table.bias else 0
        return self.quantization.vocab_bytes(table, rows, element, name) + bias

    def table_bytes(self, table: RotaryTable) -> int:
        """One cos/sin table: rows × rotary_dim."""
        return table.max_positions * table.rotary_dim * self._bytes_of(table.dtype)

    @property
    def _ranks(self) -> int:
        return self.parallel.tensor_parallel_size

    def _bytes_of(self, dtype: str) -> int:
        return DTYPE_BYTES[dtype] if dtype else self.dtype_bytes
