"""How layers are dealt to pipeline stages and sizes to tensor parallel ranks."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from kvcore.base.errors import EngineRefusalError, shorten
from kvcore.scenario import Parallel, Scenario

PARTITION_VARIABLE: Final = "VLLM_PP_LAYER_PARTITION"


@lru_cache(maxsize=4096)
def stage_layers(num_layers: int, parallel: Parallel, stage: int) -> range:
    """Indices of the decoder layers on one pipeline stage.

    num_layers // stages each; the remainder goes one each to the stages before the last, counted backwards. Where
    `parallel` states the layers of each stage, as it does.

    Source: vllm/distributed/utils.py:get_pp_indices (0.8.5 to 0.33.0).

    Example:
        >>> [len(stage_layers(62, Parallel(pipeline_parallel_size=4), stage)) for stage in range(4)]
        [15, 16, 16, 15]
    """
    stages, stated = parallel.pipeline_parallel_size, parallel.layer_partition
    if num_layers < stages:
        raise EngineRefusalError(
            "too-many-pipeline-stages", "pipeline_parallel_size", stages, layers=num_layers, stages=stages
        )
    counts = list(stated) or [num_layers // stages] * stages
    if not stated:
        for back in range(2, 2 + num_layers % stages):
            counts[-back] += 1
    begin = sum(counts[:stage])
    return range(begin, begin + counts[stage])


def partitioned(scenario: Scenario, num_layers: int) -> Scenario:
    """`scenario` with the layers of each pipeline stage that its environment states.

    Raises EngineRefusalError `layer-partition-unreadable`, `layer-partition-of-other-stages` or
    `layer-partition-of-other-layers`.

    Source: vllm/distributed/utils.py:get_pp_indices (0.8.5 to 0.33.0).

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-32B", "pipeline_parallel_size": 2, "env": {PARTITION_VARIABLE: "40,24"}}
        >>> partitioned(scenario_from_request(asked), 64).parallel.layer_partition
        (40, 24)
    """
    written, parallel = scenario.env.get(PARTITION_VARIABLE), scenario.parallel
    if written is None:
        stated: tuple[int, ...] = ()
    else:
        stated = _partition(written, num_layers, parallel.pipeline_parallel_size)
    if stated == parallel.layer_partition:
        return scenario
    return replace(scenario, parallel=replace(parallel, layer_partition=stated))


def _partition(written: str, num_layers: int, stages: int) -> tuple[int, ...]:
    field = f"env.{PARTITION_VARIABLE}"
    numbers = [part.strip() for part in written.split(",")]
    if not all(part.isascii() and part.isdecimal() and 0 < len(part) < 6 and int(part) for part in numbers):
        raise EngineRefusalError("layer-partition-unreadable", field, shorten(written))
    stated = tuple(map(int, numbers))
    if len(stated) != stages:
        raise EngineRefusalError("layer-partition-of-other-stages", field, len(stated), stages=stages)
    if sum(stated) != num_layers:
        raise EngineRefusalError("layer-partition-of-other-layers", field, sum(stated), layers=num_layers)
    return stated


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
