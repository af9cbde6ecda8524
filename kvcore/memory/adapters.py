"""LoRA: the buffers that the engine allocates for adapters beside the weights, whatever the adapters touch."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from kvcore.engine.partition import stage_layers, units_per_rank
from kvcore.memory.weights import by_identity
from kvcore.model.architecture import Architecture, Experts, Layer, Linear, Split
from kvcore.scenario import Parallel

ADAPTER_ELEMENT_BYTES: Final = 2
"""Adapters take the model's 16-bit dtype. Source: vllm/config/lora.py:LoRAConfig.lora_dtype (0.32.0)."""


@lru_cache(maxsize=4096)
def lora_bytes(
    architecture: Architecture, parallel: Parallel, stage: int, max_loras: int, max_lora_rank: int
) -> int:
    """Bytes of the LoRA buffers on a rank of pipeline stage `stage`.

    max_loras × rank × Σ over adapted layers of (inputs + outputs) elements. A column layer keeps A whole for each of
    its fused parts and cuts B; a row layer cuts A and keeps B whole. Embedding and output embedding are whole.

    Source: vllm/lora/layers (0.32.0).
    """
    indices = stage_layers(architecture.num_layers, parallel.pipeline_parallel_size, stage)
    layers = [architecture.layers[index] for index in indices]
    elements = sum(count * _layer_elements(layer, parallel) for layer, count in by_identity(layers))
    table = architecture.vocab_size + architecture.hidden_size
    elements += table * (stage == 0) + table * (stage == parallel.pipeline_parallel_size - 1)
    return max_loras * max_lora_rank * elements * ADAPTER_ELEMENT_BYTES


def _layer_elements(layer: Layer, parallel: Parallel) -> int:
    """Elements for each rank of an adapter and each adapter, in one decoder layer."""
    total = 0
    for module in layer.modules:
        match module:
            case Linear():
                total += _linear_elements(module, parallel.tensor_parallel_size)
            case Experts():
                total += _experts_elements(module, parallel)
            case _:
                continue
    return total


def _linear_elements(linear: Linear, ranks: int) -> int:
    is_column = linear.split is Split.COLUMN
    outputs = sum(
        output.width
        * (units_per_rank(output.units, ranks, replicable=output.replicable) if is_column else output.units)
        for output in linear.outputs
    )
    inputs = linear.in_features // ranks if linear.split is Split.ROW else linear.in_features
    return inputs * len(linear.outputs) + outputs


def _experts_elements(experts: Experts, parallel: Parallel) -> int:
    """w13 and w2 of all experts; under expert parallelism whole experts are dealt out."""
    ranks = parallel.tensor_parallel_size
    slices = 2 if experts.gated else 1
    if parallel.enable_expert_parallel:
        count, width = (
            -(-experts.num_experts // (ranks * parallel.data_parallel_size)),
            experts.intermediate_size,
        )
    else:
        count, width = experts.num_experts, experts.intermediate_size // ranks
    return count * (slices + 1) * (experts.hidden_size + width)
