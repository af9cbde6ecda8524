"""What `--cpu-offload-gb` keeps in the host's memory."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from kvcore.engine.partition import stage_layers
from kvcore.engine.vllm.versions import switches_of
from kvcore.kept import kept
from kvcore.memory.weights import DTYPE_BYTES, Rank
from kvcore.model.architecture import Architecture
from kvcore.model.quantization import Quantization
from kvcore.scenario import Parallel


@kept
def offloaded_bytes(
    architecture: Architecture,
    quantization: Quantization,
    parallel: Parallel,
    version: Version,
    dtype: str,
    stage: int,
    limit_bytes: int,
) -> int:
    """Bytes of parameters that a rank of pipeline stage `stage` leaves in the host's memory.

    Whole parameters of the decoder layers, in their order, until `limit_bytes` are reached or passed; embedding,
    lm_head and last norm stay on the card.

    Source: vllm/model_executor/models/utils.py:maybe_offload_to_cpu (0.11.0), model_executor/offloader/uva.py (0.32.0).
    """
    moved = 0
    for size in offloadable_tensors(architecture, quantization, parallel, version, dtype, stage):
        if moved >= limit_bytes:
            break
        moved += size
    return moved


def offloadable_tensors(
    architecture: Architecture,
    quantization: Quantization,
    parallel: Parallel,
    version: Version,
    dtype: str,
    stage: int,
) -> Iterator[int]:
    """Sizes of the parameters that may be offloaded, in the order in which they are."""
    rank = Rank(quantization=quantization, parallel=parallel, dtype_bytes=DTYPE_BYTES[dtype])
    if switches_of(version).offloads_encoders and architecture.is_multimodal:
        for module in architecture.every:
            yield from rank.tensor_bytes(module, module.name)
    for index in stage_layers(architecture.num_layers, parallel.pipeline_parallel_size, stage):
        for module in architecture.layers[index].modules:
            yield from rank.tensor_bytes(module, f"{architecture.layer_prefix}.{index}.{module.name}")
