"""What loading puts on one rank: weights, a draft, adapter slots, less what stays in the host's memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.engine.resolved import CardView, Resolved
from kvcore.engine.rooms import find_engine
from kvcore.engine.vllm.classes import End
from kvcore.engine.vllm.versions import switches_of
from kvcore.memory.allocator import allocated_bytes
from kvcore.memory.draft_weights import draft_bytes
from kvcore.memory.encoder_profile import loaded_architecture, takes_images_or_video
from kvcore.memory.expert_kernels import expert_kernel_bytes
from kvcore.memory.lora import Slots, lora_bytes
from kvcore.memory.offload import offloaded_bytes
from kvcore.memory.stages import on_every_stage, stores
from kvcore.memory.weights import DTYPE_BYTES, Rank, WeightBytes, loading_split_bytes, weight_bytes
from kvcore.model.architecture import Architecture, VocabEmbedding
from kvcore.model.families.eagle import Draft
from kvcore.model.quantization import Quantization
from kvcore.quantity import Grade, Quantity, Unit
from kvcore.scenario import Parallel, Runner, Scenario
from kvcore.units import GIB


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
    parallel = scenario.parallel
    loaded = loaded_architecture(architecture, scenario, resolved.version)
    weights = weight_bytes(loaded, quantization, parallel, resolved, stage)
    rearranged = expert_kernel_bytes(
        scenario=scenario,
        architecture=loaded,
        quantization=quantization,
        resolved=resolved,
        card=card,
        stage=stage,
    )
    added = rearranged + deepstack_bytes(architecture, scenario, resolved)
    if added:
        weights = replace(weights, loading=weights.loading + added)
    copies = find_engine(scenario.engine).memory.table_copies_in(resolved.version)
    if copies:
        copied = copies * plain_table_bytes(architecture, DTYPE_BYTES[resolved.dtype])
        weights = replace(weights, buffers=weights.buffers + copied)
    if draft is not None and stage == parallel.pipeline_parallel_size - 1:
        drafts = draft_bytes(draft, parallel, resolved.dtype, loading_split_bytes(resolved))
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
            resolved.version,
            resolved.dtype,
            stage,
            slots,
        )
        weights = replace(weights, adapters=adapters)
    if scenario.cpu_offload_gb:
        limit = int(scenario.cpu_offload_gb * GIB)
        offloaded = offloaded_bytes(
            loaded, quantization, parallel, resolved.version, resolved.dtype, stage, limit
        )
        weights = replace(weights, offloaded=offloaded)
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
    if switches_of(resolved.version).skips_encoders and not takes_images_or_video(architecture, scenario):
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
    everywhere = on_every_stage(architecture, parallel, resolved.version)
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


PARTS = (
    ("parameters", Grade.EXACT),
    ("buffers", Grade.EXACT),
    ("loading", Grade.DERIVED),
    ("drafts", Grade.EXACT),
    ("adapters", Grade.EXACT),
    ("offloaded", Grade.EXACT),
    ("dropped_head", Grade.EXACT),
)
SUBTRACTED = ("offloaded", "dropped_head")


ASSUMED_CLASS_SPREAD: Final = 0.05
"""Of the weights of a class that is taken for a plain decoder: beyond it the checkpoint's size is said to differ."""


def loaded_quantity(weights: WeightBytes) -> Quantity:
    """`weights.total` with its parts; those that are nothing are left out."""
    parts = []
    for name, grade in PARTS:
        value = getattr(weights, name)
        if not value and name in ("drafts", "adapters", *SUBTRACTED):
            continue
        is_own_assumed = weights.is_assumed or (name == "parameters" and weights.spread > 0)
        is_assumed = is_own_assumed or (name == "drafts" and weights.draft_is_assumed)
        grade = Grade.ASSUMED if is_assumed else grade
        parts.append(Quantity(name=name, value=value, unit=Unit.BYTES, grade=grade))
    added = " + ".join(f"{{{part.name}}}" for part in parts if part.name not in SUBTRACTED)
    taken = "".join(f" − {{{part.name}}}" for part in parts if part.name in SUBTRACTED)
    share = max(weights.spread, ASSUMED_CLASS_SPREAD if weights.is_assumed else 0.0)
    spread = share * weights.total
    return Quantity(
        name="weights",
        value=weights.total,
        unit=Unit.BYTES,
        grade=Grade.ASSUMED if share else Grade.DERIVED,
        interval=(weights.total - spread, weights.total + spread) if share else None,
        formula=added + taken,
        inputs=tuple(parts),
        source="vllm/v1/worker/gpu_model_runner.py:GPUModelRunner.load_model (0.32.0)",
    )
