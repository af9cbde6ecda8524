"""Memory of loading on one rank: weights, a draft, adapter slots, less what stays in the host's memory; and how that
compares with the checkpoint's own size."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Final

from msgspec.structs import replace
from packaging.version import Version

from kvcore.base.errors import Notice
from kvcore.base.kept import kept
from kvcore.base.quantity import Grade, Quantity, explained, figure
from kvcore.base.term import added, left_of
from kvcore.base.units import GIB, gib
from kvcore.engine import stage_layers
from kvcore.engine.cards import CardView
from kvcore.engine.protocol import Engine, Resolved
from kvcore.engine.records import End
from kvcore.engine.setting import DTYPE_BYTES
from kvcore.memory.expert_kernels import expert_kernel_bytes, kernel_source
from kvcore.memory.lora import Slots, lora_bytes
from kvcore.memory.padding import padding_bytes
from kvcore.memory.sparse_attention import choice_bytes, reserved_bytes
from kvcore.memory.stages import loaded_architecture, on_every_stage, stores, takes_images_or_video
from kvcore.memory.weights import (
    Rank,
    WeightBytes,
    allocated_bytes,
    layer_buffer_bytes,
    loading_split_bytes,
    scale_bytes,
    weight_bytes,
)
from kvcore.model.architecture import Architecture, Module, VocabEmbedding, by_identity
from kvcore.model.families.drafts import Draft
from kvcore.model.quantization import Quantization
from kvcore.scenario import Parallel, Runner, Scenario

PARTS: Final = {
    "parameters": Grade.EXACT,
    "buffers": Grade.EXACT,
    "loading": Grade.DERIVED,
    "drafts": Grade.EXACT,
    "adapters": Grade.EXACT,
    "offloaded": Grade.EXACT,
    "dropped_head": Grade.EXACT,
}
SUBTRACTED: Final = ("offloaded", "dropped_head")
LEFT_OUT: Final = ("drafts", "adapters", *SUBTRACTED)
"""Parts that are not mentioned where they are nothing."""
ASSUMED_CLASS_SPREAD: Final = 0.05
"""Share of the weights of a class taken for a plain decoder: beyond it the checkpoint's size is said to differ."""
NOTABLE_DIFFERENCE: Final = 0.05
"""Draft layers that are not loaded, or a tied embedding that is stored twice, stay below it in most checkpoints."""


def loaded_bytes(
    *,
    scenario: Scenario,
    architecture: Architecture,
    quantization: Quantization,
    resolved: Resolved,
    card: CardView,
    draft: Draft | None,
    stage: int,
) -> WeightBytes:
    """Everything that "Model loading took" counts on a rank of pipeline stage `stage`.

    Raises EngineRefusalError when the tensor parallel size does not divide what it cuts, and where the model cannot
    have adapters.

    Source: vllm/v1/worker/gpu_model_runner.py:GPUModelRunner.load_model (0.11.0, 0.32.0).
    """
    parallel, version, dtype = scenario.parallel, resolved.version, resolved.dtype
    loaded = loaded_architecture(architecture, scenario, resolved)
    weights = weight_bytes(loaded, quantization, parallel, resolved, stage)
    experts = expert_kernel_bytes(scenario, loaded, quantization, resolved, card, stage)
    rearranged = experts + padding_bytes(scenario, loaded, quantization, resolved, card, stage)
    copies = resolved.engine.table_copies(version)
    rearranged += resolved.engine.kept_stream_bytes(
        architecture, resolved.max_num_batched_tokens, DTYPE_BYTES[dtype]
    )
    rearranged += deepstack_bytes(architecture, scenario, resolved)
    rearranged += choice_bytes(architecture, parallel, resolved, stage)
    rearranged += reserved_bytes(architecture, parallel, resolved)
    weights = replace(
        weights,
        loading=weights.loading + rearranged,
        experts_kernel=experts,
        experts_kernel_source=kernel_source(resolved.version, card.vendor.value, card.number)
        if experts
        else "",
        buffers=weights.buffers + copies * plain_table_bytes(architecture, DTYPE_BYTES[dtype]),
    )
    if draft is not None and stage == parallel.pipeline_parallel_size - 1:
        drafts = draft_bytes(draft, parallel, dtype, loading_split_bytes(resolved))
        weights = replace(weights, drafts=drafts, draft_is_assumed=draft.is_assumed)
    if scenario.enable_lora:
        slots = Slots(
            max_loras=scenario.max_loras,
            max_lora_rank=scenario.max_lora_rank,
            fully_sharded_loras=scenario.fully_sharded_loras,
        )
        adapters = lora_bytes(
            scenario.config,
            architecture,
            quantization,
            parallel,
            resolved.engine,
            version,
            dtype,
            stage,
            slots,
        )
        weights = replace(weights, adapters=adapters)
    if scenario.cpu_offload_gb:
        limit = int(scenario.cpu_offload_gb * GIB)
        moved = offloaded_tensors(
            loaded, quantization, parallel, resolved.engine, version, dtype, stage, limit
        )
        weights = replace(weights, offloaded=sum(moved))
    if resolved.runner is Runner.POOLING:
        dropped = head_bytes(architecture, quantization, parallel, resolved, stage)
        weights = replace(weights, dropped_head=dropped)
    return weights


def deepstack_bytes(architecture: Architecture, scenario: Scenario, resolved: Resolved) -> int:
    """The buffers that carry features of the vision encoder to the first decoder layers, one for each.

    max_num_batched_tokens × hidden size elements.

    Source: vllm/model_executor/models/qwen3_vl.py:Qwen3VLForConditionalGeneration (0.11.0, 0.32.0).
    """
    vision = architecture.vision
    if vision is None or not vision.deepstack_levels:
        return 0
    skips = resolved.switches.skips_encoders
    if skips and not takes_images_or_video(architecture, scenario):
        return 0
    buffer = resolved.max_num_batched_tokens * architecture.hidden_size * DTYPE_BYTES[resolved.dtype]
    return vision.deepstack_levels * allocated_bytes(buffer, loading_split_bytes(resolved))


def head_bytes(
    architecture: Architecture, quantization: Quantization, parallel: Parallel, resolved: Resolved, stage: int
) -> int:
    """Memory of the output head on a rank of pipeline stage `stage`; 0 where it is the embedding, or not there.

    The adapter that makes a pooling model of one that generates deletes it, or since 0.15 does not build it. The
    parameters of the class that the config names still count it. Before 0.13 the adapter overlooks the head of a
    language model inside some multimodal ones; that is not followed.

    Source: vllm/model_executor/models/adapters.py:_create_pooling_model_cls (0.8.5, 0.11.0, 0.13.0, 0.15.1, 0.33.0).
    """
    everywhere = on_every_stage(resolved.engine, architecture, parallel, resolved.version)
    if not stores(End.HEAD, architecture, parallel, stage, everywhere):
        return 0
    rank = Rank(quantization=quantization, parallel=parallel, dtype_bytes=DTYPE_BYTES[resolved.dtype])
    max_split_bytes = loading_split_bytes(resolved)
    return sum(
        allocated_bytes(size, max_split_bytes)
        for module in architecture.last
        if isinstance(module, VocabEmbedding)
        for size in rank.tensor_bytes(module, module.name)
    )


def plain_table_bytes(architecture: Architecture, dtype_bytes: int) -> int:
    """Bytes of the first cos/sin table where it is a plain one; 0 with latent attention, which has its own.

    Source: vllm_ascend/ops/rotary_embedding.py:AscendRotaryEmbedding (0.13.0, 0.23.0).
    """
    tables = [table for table in architecture.rotary_tables if table.is_plain]
    if not tables or architecture.is_mla:
        return 0
    return tables[0].max_positions * tables[0].rotary_dim * dtype_bytes


@lru_cache(maxsize=256)
def loaded_quantity(weights: WeightBytes) -> Quantity:
    """`weights.total` with its parts; those that are nothing are left out."""
    assumed = {"parameters": weights.spread > 0, "drafts": weights.draft_is_assumed}
    parts = []
    for name, grade in PARTS.items():
        value = getattr(weights, name)
        if value or name not in LEFT_OUT:
            is_assumed = weights.is_assumed or assumed.get(name, False)
            parts.append(figure(name, value, grade=Grade.ASSUMED if is_assumed else grade))
    if weights.experts_kernel:
        place = next(place for place, part in enumerate(parts) if part.name == "loading")
        kernel = figure(
            "experts_kernel",
            weights.experts_kernel,
            grade=parts[place].grade,
            source=weights.experts_kernel_source,
        )
        rest = figure("otherwise", weights.loading - weights.experts_kernel, grade=parts[place].grade)
        parts[place] = explained("loading", added, (kernel, rest), source=weights.experts_kernel_source)
    share = max(weights.spread, ASSUMED_CLASS_SPREAD if weights.is_assumed else 0.0)
    found = explained(
        "weights",
        stored_bytes,
        tuple(part for part in parts if part.name not in SUBTRACTED),
        tuple(part for part in parts if part.name in SUBTRACTED),
        grade=Grade.ASSUMED if share else Grade.DERIVED,
        spread=share * weights.total if share else None,
        source="vllm/v1/worker/gpu_model_runner.py:GPUModelRunner.load_model (0.32.0)",
    )
    if found.interval is None or not weights.unsure:
        return found
    low, high = found.interval
    return replace(found, interval=(low - weights.unsure, high))


def stored_bytes(stored: tuple[int, ...], taken: tuple[int, ...]) -> int:
    """All that is stored, without what is taken off again."""
    return left_of(added(stored), taken)


@kept
def draft_bytes(draft: Draft, parallel: Parallel, dtype: str, max_split_bytes: int | None = None) -> int:
    """Bytes that loading a draft adds on a rank of the last pipeline stage.

    Its parameters as the allocator counts them, what loading adds for good, attention scales, and the rope tables
    that it does not share with the model.

    Source: vllm/v1/worker/gpu/spec_decode/eagle/utils.py:load_eagle_model (0.32), vllm/v1/spec_decode/eagle.py (0.11).
    """
    rank = Rank(quantization=draft.quantization, parallel=parallel, dtype_bytes=DTYPE_BYTES[dtype])
    tensors = draft_tensors(draft, parallel, dtype)
    total = sum(count * allocated_bytes(size, max_split_bytes) for size, count in tensors.items())
    total += sum(rank.table_bytes(table) for table in draft.rotary_tables)
    for layer, count in by_identity(draft.layers):
        kept = (size for module in layer.loading for size in rank.tensor_bytes(module, module.name))
        total += count * sum(allocated_bytes(size, max_split_bytes) for size in kept)
        total += count * layer_buffer_bytes(layer, parallel)
    return total


def draft_parameter_bytes(draft: Draft, parallel: Parallel, dtype: str) -> int:
    """Bytes of a draft's own parameters on one rank, scales of its caches with them."""
    tensors = draft_tensors(draft, parallel, dtype)
    return scale_bytes(draft.layers, draft.quantization) + sum(tensors.elements())


def draft_tensors(draft: Draft, parallel: Parallel, dtype: str) -> Counter[int]:
    """How many tensors of each size a draft has of its own on one rank.

    A draft is cut over the ranks like the model, whatever draft_tensor_parallel_size says. With pipeline stages it
    keeps its own embedding.

    Source: vllm/model_executor/models/deepseek_mtp.py, llama_eagle3.py (0.32).
    """
    rank = Rank(quantization=draft.quantization, parallel=parallel, dtype_bytes=DTYPE_BYTES[dtype])
    modules = draft.modules
    if parallel.pipeline_parallel_size > 1 and draft.embedding is not None:
        modules += (draft.embedding,)
    tensors: Counter[int] = Counter()
    for module in modules:
        tensors.update(rank.tensor_bytes(module, module.name))
    for index, layer in enumerate(draft.layers, draft.first_index):
        for module in layer.modules:
            tensors.update(rank.tensor_bytes(module, f"{draft.layer_prefix}.{index}.{module.name}"))
    return tensors


@kept
def offloaded_tensors(
    architecture: Architecture,
    quantization: Quantization,
    parallel: Parallel,
    engine: Engine,
    version: Version,
    dtype: str,
    stage: int,
    limit_bytes: int,
) -> tuple[int, ...]:
    """Bytes of each parameter that a rank of pipeline stage `stage` leaves in the host's memory.

    Whole parameters of the decoder layers, in their order, until `limit_bytes` are reached or passed; embedding,
    lm_head and last norm stay on the card.

    Source: vllm/model_executor/models/utils.py:maybe_offload_to_cpu (0.11.0), model_executor/offloader/uva.py (0.32.0).
    """
    rank = Rank(quantization=quantization, parallel=parallel, dtype_bytes=DTYPE_BYTES[dtype])
    modules: list[tuple[Module, str]] = []
    if engine.switches(version).offloads_encoders and architecture.is_multimodal:
        modules += ((module, module.name) for module in architecture.every)
    for index in stage_layers(architecture.num_layers, parallel, stage):
        prefix = f"{architecture.layer_prefix}.{index}."
        modules += ((module, prefix + module.name) for module in architecture.layers[index].modules)
    moved: list[int] = []
    total = 0
    for size in (size for module, name in modules for size in rank.tensor_bytes(module, name)):
        if total >= limit_bytes:
            break
        moved.append(size)
        total += size
    return tuple(moved)


def uncounted_bytes(
    scenario: Scenario, architecture: Architecture, quantization: Quantization, resolved: Resolved
) -> int:
    """Bytes of the checkpoint that the reader of this family names but does not count; 0 when it counts all.

    The checkpoint's size less what is counted on one rank. Every rank is charged with all of it, because how the
    engine cuts an uncounted part is not known. 0 as well when the size is not known: then only a warning is left.
    """
    stored = scenario.checkpoint.total_size
    if not architecture.uncounted or stored is None:
        return 0
    return max(0, stored - weight_bytes(architecture, quantization, Parallel(), resolved, 0).parameters)


def checkpoint_notices(
    scenario: Scenario, architecture: Architecture, quantization: Quantization, resolved: Resolved
) -> tuple[Notice, ...]:
    """`part-not-counted` or `part-from-checkpoint` for what a reader leaves out; `checkpoint-size-differs` where the
    stored size and the counted one are more than 5 % apart and no flag explains it. Checkpoints of pooling models come
    with or without the head that the engine drops."""
    stored = scenario.checkpoint.total_size
    if architecture.uncounted:
        missing = uncounted_bytes(scenario, architecture, quantization, resolved)
        code = "part-not-counted" if stored is None else "part-from-checkpoint"
        params = {"parts": ", ".join(architecture.uncounted), "size": f"{gib(missing):.2f}"}
        return (Notice(code=code, field="config", params=params),)
    if stored is None or scenario.quantization or scenario.dtype != "auto":
        return ()
    counted = weight_bytes(architecture, quantization, Parallel(), resolved, 0).parameters
    if resolved.runner is Runner.POOLING:
        head = head_bytes(architecture, quantization, Parallel(), resolved, 0)
        counted = min(counted, counted - head, key=lambda size: abs(size - stored))
    if abs(counted / stored - 1) <= NOTABLE_DIFFERENCE:
        return ()
    params = {"counted": f"{gib(counted):.2f}", "stored": f"{gib(stored):.2f}"}
    return (Notice(code="checkpoint-size-differs", field="checkpoint.total_size", params=params),)
