"""How fast decoding can be at most: every step has to read weights and keys from the card's memory."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.cache.spec import FULL_KINDS
from kvcore.memory.weights import DTYPE_BYTES, Rank, counted_layers
from kvcore.model.architecture import (
    BlockIndexer,
    CompressedLatent,
    Experts,
    LatentWindow,
    Module,
    SparseIndexer,
    VocabEmbedding,
)
from kvcore.planning import Plan
from kvcore.units import GB


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeBound:
    """An upper bound, for one replica. Computing, communication and scheduling come on top of the reading."""

    requests: int
    weight_bytes: int
    """Read by one rank in one step, at least."""
    kv_bytes: int
    """Of all requests' keys and values, read by one rank in one step, at least."""
    bandwidth_bytes_per_second: float

    @property
    def seconds_per_token(self) -> float:
        """The shortest time between two tokens of one request (TPOT)."""
        return (self.weight_bytes + self.kv_bytes) / self.bandwidth_bytes_per_second

    @property
    def tokens_per_second(self) -> float:
        """The most tokens that all requests together get in a second, one token a step each."""
        return self.requests / self.seconds_per_token


def decode_bound(plan: Plan, requests: int, context_tokens: int) -> DecodeBound | None:
    """The bound for `requests` requests in decode with `context_tokens` in the cache each.

    seconds per token = (weights + requests × context × KV per token) / bandwidth, on one rank of the worst stage.

    None without the card's bandwidth. Counted is what no step can avoid: of the experts those that one token needs,
    of the embedding nothing unless the output layer shares it, of caches that are read in part nothing.
    """
    bandwidth = plan.accelerator.memory_bandwidth_gb_s
    if bandwidth is None:
        return None
    return DecodeBound(
        requests=requests,
        weight_bytes=decode_weight_bytes(plan),
        kv_bytes=int(requests * context_tokens * _read_kv_bytes_per_token(plan)),
        bandwidth_bytes_per_second=bandwidth * GB,
    )


def decode_weight_bytes(plan: Plan) -> int:
    """Bytes of weights that one rank of the worst stage reads for one token, at least."""
    architecture, parallel = plan.architecture, plan.scenario.parallel
    rank = Rank(
        quantization=plan.quantization, parallel=parallel, dtype_bytes=DTYPE_BYTES[plan.resolved.dtype]
    )
    read = 0.0
    for layer, prefix, count in counted_layers(architecture, plan.quantization, parallel, plan.stage):
        read += count * sum(_read(rank, module, prefix + module.name) for module in layer.modules)
    if plan.stage == parallel.pipeline_parallel_size - 1:
        shared = architecture.first if architecture.tied_embeddings else ()
        tables = tuple(module for module in shared if isinstance(module, VocabEmbedding))[:1]
        read += sum(_read(rank, module, module.name) for module in (*architecture.last, *tables))
    return int(read)


def _read(rank: Rank, module: Module, name: str) -> float:
    size = sum(rank.tensor_bytes(module, name))
    return size * module.top_k / module.num_experts if isinstance(module, Experts) else size


def _read_kv_bytes_per_token(plan: Plan) -> float:
    """Of layers that read their whole cache in every step: not of windows, states, and what an indexer picks from."""
    caches = {type(cache) for layer in plan.architecture.layers for cache in layer.caches}
    if caches & {SparseIndexer, BlockIndexer, CompressedLatent, LatentWindow}:
        return 0.0
    return sum(
        spec.layers * spec.page_size_bytes / spec.block_size
        for spec in plan.specs[plan.stage]
        if spec.kind in FULL_KINDS
    )
