"""How fast a deployment decodes at most: each step reads weights and keys from the card's memory, and multiplies.

One bound is the card's bandwidth, the other its operations a second.
"""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

from kvcore.base.units import GB
from kvcore.cache.spec import FULL_KINDS
from kvcore.engine.setting import DTYPE_BYTES
from kvcore.memory.weights import Rank, counted_layers
from kvcore.model import architecture as arch
from kvcore.model.caches import BlockIndexer, CompressedLatent, LatentWindow, PooledKeys, SparseIndexer
from kvcore.model.quantization import NOT_QUANTIZED, Quantization
from kvcore.planning import Plan

COMPUTES_IN_16_BITS: Final = frozenset({"awq", "gptq", "auto-round", "bitsandbytes", "gguf"})
"""Methods that store weights in fewer bits and multiply with 16.

Source: vllm/model_executor/layers/quantization/awq_marlin.py, gptq_marlin.py, bitsandbytes.py, gguf.py (0.32.0).
"""
COMPUTES_IN_FP8: Final = frozenset({"fp8"})
"""Source: vllm/model_executor/layers/quantization/fp8.py (0.32.0)."""
_TERA: Final = 1e12


def token_flops(plan: Plan) -> float:
    """Operations of one token in the matrices of one rank of the worst stage, at least.

    2 × elements, of the experts those that one token needs. Attention and the output layer are left out: the latter
    runs only for tokens that are sampled.

    Example:
        >>> from kvcore.planning import plan
        >>> from kvcore.wire.request import scenario_from_request
        >>> dense = plan(scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB"}))
        >>> round(token_flops(dense) / 1e9, 1)
        13.9
    """
    parallel = plan.scenario.parallel
    rank = Rank(quantization=Quantization(), parallel=parallel, dtype_bytes=2)
    elements = 0.0
    for layer, _, times in counted_layers(plan.architecture, rank.quantization, parallel, plan.stage):
        elements += times * sum(_elements(rank, module) for module in layer.modules)
    return 2 * elements


def _elements(rank: Rank, module: arch.Module) -> float:
    if isinstance(module, arch.Experts):
        stored = sum(rank.tensor_bytes(module, module.name)) / rank.dtype_bytes
        return stored * module.top_k / module.num_experts
    if isinstance(module, arch.Linear):
        rank_in, rank_out = rank.linear_share(module)
        return rank_in * sum(rank_out)
    return 0.0


def peak_flops(plan: Plan) -> float:
    """Operations a second of the card, in the numbers that the model computes with; infinite where not known.

    Example:
        >>> from kvcore.planning import plan
        >>> from kvcore.wire.request import scenario_from_request
        >>> dense = plan(scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB"}))
        >>> peak_flops(dense)
        989000000000000.0
    """
    card, method = plan.accelerator, plan.quantization.method
    if method == NOT_QUANTIZED or method in COMPUTES_IN_16_BITS:
        peak = card.dense_tflops
    else:
        peak = card.fp8_dense_tflops if method in COMPUTES_IN_FP8 else None
    return peak * _TERA if peak else math.inf


class DecodeBound(Struct, frozen=True, kw_only=True):
    """An upper bound, for one replica. Computing, communication and scheduling come on top of the reading."""

    requests: int
    weight_bytes: int
    """Read by one rank in one step, at least."""
    kv_bytes: int
    """Bytes of all requests' keys and values, read by one rank in one step, at least."""
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
        tables = tuple(module for module in shared if isinstance(module, arch.VocabEmbedding))[:1]
        read += sum(_read(rank, module, module.name) for module in (*architecture.last, *tables))
    return int(read)


def _read(rank: Rank, module: arch.Module, name: str) -> float:
    size = sum(rank.tensor_bytes(module, name))
    return size * module.top_k / module.num_experts if isinstance(module, arch.Experts) else size


def _read_kv_bytes_per_token(plan: Plan) -> float:
    """Counts layers that read their whole cache in every step: not windows, states, and what an indexer picks from."""
    caches = {type(cache) for layer in plan.architecture.layers for cache in layer.caches}
    picks = {SparseIndexer, BlockIndexer, PooledKeys, CompressedLatent, LatentWindow}
    if caches & picks:
        return 0.0
    return sum(
        spec.layers * spec.page_size_bytes / spec.block_size
        for spec in plan.specs[plan.stage]
        if spec.kind in FULL_KINDS
    )
