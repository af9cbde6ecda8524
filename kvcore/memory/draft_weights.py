"""Weight bytes of a draft on one rank."""

from __future__ import annotations

from collections import Counter

from kvcore.kept import kept
from kvcore.memory.allocator import allocated_bytes
from kvcore.memory.weights import DTYPE_BYTES, Rank, by_identity, layer_buffer_bytes
from kvcore.model.families.eagle import Draft
from kvcore.scenario import Parallel


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
    for layer, count in by_identity(list(draft.layers)):
        kept = (size for module in layer.loading for size in rank.tensor_bytes(module, module.name))
        total += count * sum(allocated_bytes(size, max_split_bytes) for size in kept)
        total += count * layer_buffer_bytes(layer, parallel)
    return total


def draft_parameter_bytes(draft: Draft, parallel: Parallel, dtype: str) -> int:
    """Bytes of a draft's own parameters on one rank, scales of its caches with them."""
    tensors = draft_tensors(draft, parallel, dtype)
    scales = sum(draft.quantization.scale_bytes(cache) for layer in draft.layers for cache in layer.caches)
    return scales + sum(size * count for size, count in tensors.items())


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
