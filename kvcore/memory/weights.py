"""Weight bytes of one rank: a fold over the architecture's modules, in integers.

`parameters` is what summing the model's parameters gives; "Model loading took" prints parameters, buffers and
what loading adds. That is a difference of allocated bytes, in which a block of PyTorch's caching allocator that is not
split counts whole: a model whose matrices are no multiples of 2 MiB loads a little larger than its parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from kvcore.base.kept import kept
from kvcore.base.units import MIB, ceil_div, round_up
from kvcore.engine import divided, heads_per_rank, stage_layers, units_per_rank
from kvcore.engine.protocol import Resolved
from kvcore.engine.records import End
from kvcore.engine.setting import DTYPE_BYTES
from kvcore.memory.stages import on_every_stage, stage_modules
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
    by_identity,
)
from kvcore.model.caches import ChunkedLocal, FullAttention, Mla, SlidingWindow
from kvcore.model.quantization import Quantization
from kvcore.model.quantization.formats import ExpertsShape, LinearShape
from kvcore.scenario import Parallel

ATTENTION_SCALE_BYTES: Final = 16
"""Four float32 scales per attention layer. Source: vllm/model_executor/layers/attention (0.32)."""

MIN_BLOCK_BYTES: Final = 512
SMALL_BYTES: Final = 1 * MIB
"""Up to here tensors share small segments; a remainder above it is split off and used again."""
SHARED_SEGMENT_BYTES: Final = 20 * MIB
"""Tensors above SMALL_BYTES and below OWN_SEGMENT_BYTES share segments of this size."""
OWN_SEGMENT_BYTES: Final = 10 * MIB
"""From here on a tensor has a segment of its own, a multiple of SEGMENT_STEP_BYTES."""
SEGMENT_STEP_BYTES: Final = 2 * MIB
"""Source of all five: pytorch c10/cuda/CUDACachingAllocator.cpp (2.3 to 2.11), kMinBlockSize and following."""

EXPERT_MAP_BYTES: Final = 4
"""int32 per expert of the model. Source: vllm/model_executor/layers/fused_moe/expert_map_manager.py (0.32)."""


def allocated_bytes(tensor_bytes: int, max_split_bytes: int | None = None) -> int:
    """Bytes that the allocator counts for one tensor of `tensor_bytes`.

    Blocks are multiples of 512 bytes. A segment of its own is rounded up to 2 MiB; what is left over counts too when
    it is at most 1 MiB, or when the tensor is at least `max_split_bytes`. Of a shared segment the last tensor takes
    such a rest; here every tensor in it takes an equal share.

    Source: pytorch c10/cuda/CUDACachingAllocator.cpp:should_split, get_allocation_size (2.3 to 2.11).

    Example:
        >>> allocated_bytes(135_790_592) - 135_790_592, allocated_bytes(25_690_112) - 25_690_112
        (524288, 0)
    """
    if tensor_bytes <= 0:
        return 0
    block = round_up(tensor_bytes, MIN_BLOCK_BYTES)
    if block <= SMALL_BYTES:
        return block
    if block < OWN_SEGMENT_BYTES:
        count = SHARED_SEGMENT_BYTES // block
        rest = SHARED_SEGMENT_BYTES - count * block
        return block + (rest // count if rest <= SMALL_BYTES else 0)
    rest = round_up(block, SEGMENT_STEP_BYTES) - block
    is_whole = rest <= SMALL_BYTES or (max_split_bytes is not None and block >= max_split_bytes)
    return block + (rest if is_whole else 0)


class WeightBytes(Struct, frozen=True, kw_only=True):
    """Bytes of one rank of one pipeline stage."""

    parameters: int
    """Every parameter once."""
    buffers: int
    """Rope tables, attention scales, expert maps."""
    loading: int
    """Bytes that loading adds: repacked formats, and the rests of memory blocks that the allocator does not cut off."""

    experts_kernel: int = 0
    """The part of `loading` that a kernel adds by storing the experts otherwise; negative: it saves."""
    experts_kernel_source: str = ""
    drafts: int = 0
    """Bytes that speculative decoding loads in addition to the model."""
    draft_is_assumed: bool = False
    is_assumed: bool = False
    """No family reads the model's class."""
    unsure: int = 0
    """Bytes of parameters that a rank would not store if tensors of unknown names were divided."""
    spread: float = 0.0
    """Share that the bytes of the storage format may be off by either way."""
    adapters: int = 0
    """LoRA slots."""
    offloaded: int = 0
    """Parameters that stay in the host's memory."""
    dropped_head: int = 0
    """The output head, where the pooling runner does without."""

    @property
    def total(self) -> int:
        """The figure that "Model loading took" prints."""
        loaded = self.parameters + self.buffers + self.loading + self.drafts + self.adapters
        return loaded - self.offloaded - self.dropped_head


def weight_bytes(
    architecture: Architecture, quantization: Quantization, parallel: Parallel, resolved: Resolved, stage: int
) -> WeightBytes:
    """Weight bytes of one rank of pipeline stage `stage`.

    Raises EngineRefusalError when the tensor parallel size does not divide what it cuts, and for pipeline stages of a
    class that is not cut into them.

    Source: docs of the formulas beside each module; vllm/model_executor/models (0.32).
    """
    max_split_bytes = loading_split_bytes(resolved)
    dtype_bytes = DTYPE_BYTES[resolved.dtype]
    everywhere = on_every_stage(resolved.engine, architecture, parallel, resolved.version)
    return _weight_bytes(
        architecture, quantization, parallel, dtype_bytes, stage, max_split_bytes, everywhere
    )


def loading_split_bytes(resolved: Resolved) -> int | None:
    """The size from which the allocator cuts no blocks while weights are loaded; None where it always does."""
    return resolved.switches.loading_split_mib * MIB or None


@kept
def _weight_bytes(
    architecture: Architecture,
    quantization: Quantization,
    parallel: Parallel,
    dtype_bytes: int,
    stage: int,
    max_split_bytes: int | None,
    everywhere: frozenset[End],
) -> WeightBytes:
    heads_per_rank(architecture.num_attention_heads, parallel.tensor_parallel_size)
    rank = Rank(quantization=quantization, parallel=parallel, dtype_bytes=dtype_bytes)
    tensors: Counter[int] = Counter()
    loading = unsure = 0
    for module, name, count in counted_modules(architecture, quantization, parallel, stage, everywhere):
        sizes = rank.tensor_bytes(module, name)
        for size in sizes:
            tensors[size] += count
        if isinstance(module, Parameter) and module.is_unsure:
            unsure += count * (sum(sizes) - ceil_div(sum(sizes), parallel.tensor_parallel_size))
        if isinstance(module, Experts):
            loading += count * rank.experts_loading_bytes(module, name)
    for layer, prefix, count in counted_layers(architecture, quantization, parallel, stage):
        for module in layer.loading:
            size = sum(rank.tensor_bytes(module, prefix + module.name))
            loading += count * allocated_bytes(size, max_split_bytes)
    loading += sum(count * (allocated_bytes(size, max_split_bytes) - size) for size, count in tensors.items())
    layers = stage_of(architecture, parallel, stage)
    scales = scale_bytes(layers, quantization)
    buffers = sum(rank.table_bytes(table) for table in architecture.rotary_tables)
    buffers += sum(layer_buffer_bytes(layer, parallel) * count for layer, count in by_identity(layers))
    return WeightBytes(
        parameters=scales + sum(size * count for size, count in tensors.items()),
        buffers=buffers,
        loading=loading - scales,
        is_assumed=architecture.is_assumed,
        unsure=unsure,
        spread=quantization.spread,
    )


def stage_of(architecture: Architecture, parallel: Parallel, stage: int) -> tuple[Layer, ...]:
    """The decoder layers of a pipeline stage."""
    indices = stage_layers(architecture.num_layers, parallel, stage)
    return architecture.layers[indices.start : indices.stop]


def counted_modules(
    architecture: Architecture,
    quantization: Quantization,
    parallel: Parallel,
    stage: int,
    everywhere: frozenset[End],
) -> Iterator[tuple[Module, str, int]]:
    """Every module of a pipeline stage with its name, and how many are alike; `everywhere` is of `on_every_stage`."""
    for layer, prefix, count in counted_layers(architecture, quantization, parallel, stage):
        for module, alike in by_identity(layer.modules):
            yield module, prefix + module.name, count * alike
    for module, count in by_identity(stage_modules(architecture, parallel, stage, everywhere)):
        yield module, module.name, count


def counted_layers(
    architecture: Architecture, quantization: Quantization, parallel: Parallel, stage: int
) -> Iterable[tuple[Layer, str, int]]:
    """The layers of a stage with their name prefix and how many are alike, stored in the same formats."""
    prefix = architecture.layer_prefix
    if not quantization.depends_on_layer:
        layers = stage_of(architecture, parallel, stage)
        return [(layer, f"{prefix}.0.", count) for layer, count in by_identity(layers)]
    indices = stage_layers(architecture.num_layers, parallel, stage)
    alike = _stored_alike(architecture, quantization, indices.start, indices.stop)
    return [(architecture.layers[index], f"{prefix}.{index}.", count) for index, count in alike]


@kept
def _stored_alike(
    architecture: Architecture, quantization: Quantization, start: int, stop: int
) -> tuple[tuple[int, int], ...]:
    """The first layer of each kind and storage from `start` to before `stop`, and how many are like it."""
    counts: dict[Hashable, list[int]] = {}
    for index in range(start, stop):
        layer, prefix = architecture.layers[index], f"{architecture.layer_prefix}.{index}."
        formats = tuple(
            quantization.format_for(module, prefix + module.name)
            for module in (*layer.modules, *layer.loading)
            if not isinstance(module, Parameter)
        )
        counts.setdefault((id(layer), formats), [index, 0])[1] += 1
    return tuple((first, count) for first, count in counts.values())


def scale_bytes(layers: Sequence[Layer], quantization: Quantization) -> int:
    """Bytes that the storage format keeps as parameters of the layers' caches."""
    return sum(
        count * quantization.scale_bytes(cache)
        for layer, count in by_identity(layers)
        for cache in layer.caches
    )


def layer_buffer_bytes(layer: Layer, parallel: Parallel) -> int:
    """Buffers of one decoder layer: attention scales, and the expert map under expert parallelism."""
    attention = sum(
        isinstance(cache, FullAttention | SlidingWindow | ChunkedLocal | Mla) for cache in layer.caches
    )
    experts = sum(module.num_experts for module in layer.modules if isinstance(module, Experts))
    return ATTENTION_SCALE_BYTES * attention + (
        EXPERT_MAP_BYTES * experts if expert_ranks(parallel) > 1 else 0
    )


def weight_and_scales(total_bytes: int, elements: int) -> tuple[int, ...]:
    """A module's bytes as its largest tensor, of half, one or two bytes an element, and the rest.

    Example:
        >>> weight_and_scales(2 * 1024, 1024), weight_and_scales(1024 + 8, 1024)
        ((2048,), (1024, 8))
    """
    for weight in (4 * elements, 2 * elements, elements, elements // 2):
        if weight <= total_bytes:
            return (weight, total_bytes - weight) if total_bytes > weight else (weight,)
    return (total_bytes,)


def expert_ranks(parallel: Parallel) -> int:
    """Ranks that whole experts are sharded over: 1 without expert parallelism."""
    if not parallel.enable_expert_parallel:
        return 1
    return parallel.tensor_parallel_size * parallel.expert_groups


def expert_slices(parallel: Parallel) -> int:
    """Slices that one expert is cut in: 1 under expert parallelism, else TP × DP × PCP, since replicas of a mixture run
    its experts together.

    Source: vllm/model_executor/layers/fused_moe/config.py:FusedMoEParallelConfig.make, flatten_tp_across_dp (0.9.2,
    0.32.0, 0.33.0); vllm_ascend/ops/fused_moe.py:AscendFusedMoE (0.9.1, 0.11.0rc0).

    Example:
        >>> expert_slices(Parallel(tensor_parallel_size=4, data_parallel_size=2))
        8
        >>> expert_slices(Parallel(tensor_parallel_size=4, data_parallel_size=2, enable_expert_parallel=True))
        1
    """
    if parallel.enable_expert_parallel:
        return 1
    return parallel.tensor_parallel_size * parallel.expert_groups


def runs_sequence_parallel_experts(parallel: Parallel) -> bool:
    """Whether tokens are cut over the tensor parallel ranks before the experts.

    Source: vllm/config/parallel.py:use_sequence_parallel_moe (0.11 to 0.32), with the default all-to-all backend.
    """
    return (
        parallel.enable_expert_parallel
        and parallel.tensor_parallel_size > 1
        and parallel.data_parallel_size > 1
    )


class Rank(Struct, frozen=True, kw_only=True):
    """One rank as the fold sees it."""

    quantization: Quantization
    parallel: Parallel
    dtype_bytes: int

    def tensor_bytes(self, module: Module, name: str) -> tuple[int, ...]:
        """Bytes of each tensor of one module on this rank."""
        match module:
            case Linear():
                return self.linear_tensors(module, name)
            case Parameter():
                return (self.parameter_elements(module) * self._bytes_of(module.dtype),)
            case Experts():
                return self.experts_tensors(module, name)
            case VocabEmbedding():
                return self.vocab_tensors(module, name)

    def parameter_elements(self, parameter: Parameter) -> int:
        """Its elements on this rank."""
        if parameter.experts and self.parallel.enable_expert_parallel:
            own = ceil_div(parameter.experts, expert_ranks(self.parallel))
            return ceil_div(parameter.replicated * parameter.sharded * own, parameter.experts)
        if parameter.experts and parameter.sharded > 1:
            slices = expert_slices(self.parallel)
            return parameter.replicated * divided(parameter.sharded, slices, self.parallel.expert_groups)
        sharded = divided(parameter.sharded, self._ranks) if parameter.sharded > 1 else 1
        return parameter.replicated * sharded

    def linear_tensors(self, linear: Linear, name: str) -> tuple[int, ...]:
        """Weight, scales and bias: column biases are divided, row biases are whole on each rank."""
        element = self._bytes_of(linear.dtype)
        rank_in, rank_out = self.linear_share(linear)
        if padding := -sum(rank_out) % linear.row_multiple:
            rank_out = (*rank_out, padding)
        shape = LinearShape(in_features=rank_in, outputs=rank_out, element_bytes=element)
        total = self.quantization.format_for(linear, name).linear_bytes(shape)
        bias = (sum(rank_out) * element,) if linear.bias else ()
        return (*weight_and_scales(total, sum(rank_out) * rank_in), *bias)

    def linear_share(self, linear: Linear) -> tuple[int, tuple[int, ...]]:
        """Input features, and output features of each fused part, on this rank."""
        ranks = self.linear_ranks(linear)
        rank_in = divided(linear.in_features, ranks) if linear.split is Split.ROW else linear.in_features
        if linear.split is not Split.COLUMN:
            return rank_in, tuple(output.units * output.width for output in linear.outputs)
        return rank_in, tuple(
            units_per_rank(output.units, ranks, replicable=output.replicable) * output.width
            for output in linear.outputs
        )

    def linear_ranks(self, linear: Linear) -> int:
        """Ranks that share the layer: 1 where each stores it whole."""
        is_whole = linear.whole_with_expert_ranks and runs_sequence_parallel_experts(self.parallel)
        if is_whole or linear.split is Split.REPLICATED or linear.whole_unless_divided % self._ranks:
            return 1
        return self._ranks

    def experts_tensors(self, experts: Experts, name: str) -> tuple[int, ...]:
        """All experts, each 1/(tp × dp) wide, or under expert parallelism this rank's share of whole experts.

        Gate and up projections of all experts are one tensor, the down projections another.
        """
        total = self.quantization.format_for(experts, name).experts_bytes(self.experts_shape(experts))
        down = total // (3 if experts.gated else 2)
        return (total - down, down)

    def experts_loading_bytes(self, experts: Experts, name: str) -> int:
        """Bytes that loading adds to routed experts on this rank."""
        weights = self.quantization.format_for(experts, name)
        return weights.experts_loading_bytes(self.experts_shape(experts))

    def experts_shape(self, experts: Experts) -> ExpertsShape:
        """The routed experts as this rank stores them."""
        count, width, sharing = self.experts_share(experts)
        return ExpertsShape(
            num_experts=count,
            hidden_size=experts.hidden_size,
            intermediate_size=width,
            element_bytes=self.dtype_bytes,
            gated=experts.gated,
            bias=experts.bias,
            is_cut=sharing > 1,
        )

    def experts_share(self, experts: Experts) -> tuple[int, int, int]:
        """Experts on this rank, features of each, and how many ranks share one expert."""
        if self.parallel.enable_expert_parallel:
            stored = experts.num_experts + self.parallel.num_redundant_experts
            return ceil_div(stored, expert_ranks(self.parallel)), experts.intermediate_size, 1
        slices, replicas = expert_slices(self.parallel), self.parallel.expert_groups
        return experts.num_experts, divided(experts.intermediate_size, slices, replicas), slices

    def vocab_tensors(self, table: VocabEmbedding, name: str) -> tuple[int, ...]:
        """The padded vocabulary divided over the ranks.

        Source: vllm/model_executor/layers/vocab_parallel_embedding.py:pad_vocab_size (0.32).
        """
        element = self._bytes_of(table.dtype)
        rows = divided(round_up(table.num_embeddings, table.padding), self._ranks)
        shape = LinearShape(in_features=table.embedding_dim, outputs=(rows,), element_bytes=element)
        total = self.quantization.format_for(table, name).linear_bytes(shape)
        bias = (rows * element,) if table.bias else ()
        return (*weight_and_scales(total, rows * table.embedding_dim), *bias)

    def table_bytes(self, table: RotaryTable) -> int:
        """One cos/sin table: rows × rotary_dim."""
        return table.max_positions * table.rotary_dim * self._bytes_of(table.dtype)

    @property
    def _ranks(self) -> int:
        return self.parallel.tensor_parallel_size

    def _bytes_of(self, dtype: str) -> int:
        return DTYPE_BYTES[dtype] if dtype else self.dtype_bytes
