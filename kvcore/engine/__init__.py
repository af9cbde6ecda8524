"""How layers are dealt to pipeline stages and sizes to tensor parallel ranks."""

from __future__ import annotations

from functools import lru_cache

from kvcore.base.errors import EngineRefusalError


@lru_cache(maxsize=4096)
def stage_layers(num_layers: int, pipeline_parallel_size: int, stage: int) -> range:
    """Indices of the decoder layers on one pipeline stage.

    num_layers // stages each; the remainder goes one each to the stages before the last, counted backwards.

    Source: vllm/distributed/utils.py:get_pp_indices (0.8.5 to 0.32).

    Example:
        >>> [len(stage_layers(62, 4, stage)) for stage in range(4)]
        [15, 16, 16, 15]
    """
    stages = pipeline_parallel_size
    if num_layers < stages:
        raise EngineRefusalError(
            "too-many-pipeline-stages", "pipeline_parallel_size", stages, layers=num_layers, stages=stages
        )
    counts = [num_layers // stages] * stages
    for back in range(2, 2 + num_layers % stages):
        counts[-back] += 1
    begin = sum(counts[:stage])
    return range(begin, begin + counts[stage])


def divided(size: int, ranks: int, replicas: int = 1) -> int:
    """`size` / `ranks`, which must divide it; `replicas`: how many data parallel ones the ranks are of.

    Source: vllm/distributed/utils.py:divide (0.32).

    Example:
        >>> divided(4096, 8)
        512
    """
    if size % ranks:
        field, value = ("data_parallel_size", replicas) if replicas > 1 else ("tensor_parallel_size", ranks)
        raise EngineRefusalError("size-not-divisible", field, value, size=size, ranks=ranks)
    return size // ranks


def heads_per_rank(num_heads: int, ranks: int) -> int:
    """Attention heads on one rank.

    Source: vllm/config/model.py:verify_with_parallel_config (0.32).
    """
    if num_heads % ranks:
        raise EngineRefusalError(
            "heads-not-divisible", "tensor_parallel_size", ranks, heads=num_heads, ranks=ranks
        )
    return num_heads // ranks


def units_per_rank(units: int, ranks: int, *, replicable: bool = False) -> int:
    """Units of one rank; with fewer replicable units (KV heads) than ranks, each rank keeps one whole unit.

    A model without such units (an attention-free one has no heads) has none on any rank.

    Source: vllm/model_executor/layers/linear.py:QKVParallelLinear (0.32).

    Example:
        >>> units_per_rank(8, 4, replicable=True), units_per_rank(2, 8, replicable=True)
        (2, 1)
    """
    if replicable and 0 < units < ranks:
        divided(ranks, units)
        return 1
    return divided(units, ranks)
