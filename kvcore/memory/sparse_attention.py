"""Memory that sparse latent attention takes while the model is built: the choice of its indexer, FlashMLA's workspace.

Both count as loaded, and the workspace is the one that experts and the indexer use later.
"""

from __future__ import annotations

from typing import Final

from kvcore.base.units import ceil_div
from kvcore.engine import stage_layers
from kvcore.engine.protocol import Resolved
from kvcore.engine.switches import AttentionBackend, SparseQueries, Switches
from kvcore.memory.weights import allocated_bytes, loading_split_bytes
from kvcore.model.architecture import Architecture, caches_of
from kvcore.model.caches import CompressedLatent, LatentWindow, Mla
from kvcore.scenario import Parallel

INDEX_BYTES: Final = 4
QUERY_BYTES: Final = 2
PACKED: Final = "fp8_ds_mla"
KERNEL_HEADS: Final = 64
"""Source: vllm/v1/attention/backends/mla/flashmla_sparse.py:FlashMLASparseImpl.prefill_padding (0.31.0, 0.33.0)."""
LONG_TOKENS: Final = 256 * 1024
GATHERED_REQUESTS: Final = 4
"""Prefills that are gathered at once.

Source: vllm/models/deepseek_v4/nvidia/flashmla.py:DeepseekV4FlashMLASparseImpl.PREFILL_CHUNK_SIZE (0.22.0).
"""


def choice_bytes(architecture: Architecture, parallel: Parallel, resolved: Resolved, stage: int) -> int:
    """The tokens that indexers choose: a row of every batched token, and a copy of each group of layers that share it.

    Source: vllm/model_executor/models/deepseek_v2.py:DeepseekV2Model (0.11.0, 0.33.0),
    vllm/v1/attention/backends/mla/index_group.py:SparseMLAIndexGroupBuilder.register_layer (0.30.0, 0.33.0).
    """
    choice = architecture.token_choice
    if choice is None:
        return 0
    batch, split = resolved.max_num_batched_tokens, loading_split_bytes(resolved)
    total = allocated_bytes(batch * choice.topk * INDEX_BYTES, split)
    if not choice.groups or not resolved.switches.sparse_groups:
        return total
    rows = batch
    if choice.is_of_decodes:
        rows = min(batch, resolved.max_num_seqs * (1 + resolved.num_speculative_tokens))
    layers = stage_layers(architecture.num_layers, parallel, stage)
    begun = [choice.groups[index] for index in layers]
    groups = sum(begun) + (choice.is_of_decodes and not begun[0])
    return total + groups * allocated_bytes((rows + 1) * choice.topk * INDEX_BYTES, split)


def reserved_bytes(architecture: Architecture, parallel: Parallel, resolved: Resolved) -> int:
    """The workspace that FlashMLA's sparse kernel reserves: queries of the batch, and of a packed cache a part
    unpacked: 5 × max_model_len latents of 16 bits an element, since 0.32 twice that length above 256K tokens.

    Source: vllm/v1/attention/backends/mla/flashmla_sparse.py:FlashMLASparseImpl.__init__ (0.13.0, 0.18.1, 0.33.0).
    """
    if resolved.attention_backend != AttentionBackend.FLASHMLA_SPARSE:
        return 0
    latent = next((cache for cache in caches_of(architecture) if isinstance(cache, Mla)), None)
    if latent is None or architecture.token_choice is None:
        return 0
    switches, is_packed = resolved.switches, resolved.kv_cache_dtype == PACKED
    width = latent.kv_lora_rank + latent.qk_rope_head_dim
    heads = ceil_div(architecture.num_attention_heads, parallel.tensor_parallel_size)
    elements = resolved.max_num_batched_tokens * _query_elements(switches, latent, heads, is_packed=is_packed)
    if is_packed:
        is_long = resolved.max_model_len > LONG_TOKENS
        times = switches.sparse_reserve_long if is_long else switches.sparse_reserve
        elements += times * resolved.max_model_len * width
    return allocated_bytes(elements * QUERY_BYTES, loading_split_bytes(resolved))


def _query_elements(switches: Switches, latent: Mla, heads: int, *, is_packed: bool) -> int:
    kind, rank = switches.sparse_queries, latent.kv_lora_rank
    if kind is SparseQueries.NONE:
        return 0
    width, padded = rank + latent.qk_rope_head_dim, ceil_div(heads, KERNEL_HEADS) * KERNEL_HEADS
    if kind is SparseQueries.HEADS:
        return heads * width
    if not is_packed:
        return padded * width
    return heads * width + (kind is SparseQueries.OUTPUTS) * (padded * (width + rank) + heads * rank)


def stream_attention_bytes(architecture: Architecture, parallel: Parallel, resolved: Resolved) -> int:
    """Bytes a layer of DeepSeek-V4 keeps for the batch in the profile run: residual streams, their mix, queries, and
    queries and outputs padded to the kernel's heads. 0 for others.

    batch × ((streams + 1) × hidden + (heads / tp + 2 × padded) × head size) elements of 16 bits

    Source: vllm/models/deepseek_v4/attention.py:DeepseekV4MultiHeadLatentAttentionWrapper.forward (0.22.0, 0.27.1),
    _fused_qnorm_rope_kv_insert (0.22.0), nvidia/flashmla.py:get_padded_num_q_heads (0.22.0: 64 or 128).
    """
    if not any(isinstance(cache, LatentWindow) for cache in caches_of(architecture)):
        return 0
    heads = ceil_div(architecture.num_attention_heads, parallel.tensor_parallel_size)
    padded = ceil_div(heads, KERNEL_HEADS) * KERNEL_HEADS
    copies = heads + padded + (padded if padded > heads else 0)
    elements = (architecture.residual_streams + 1) * architecture.hidden_size + copies * architecture.head_dim
    return resolved.max_num_batched_tokens * elements * QUERY_BYTES


def gathered_bytes(architecture: Architecture, resolved: Resolved) -> int:
    """The workspace in which DeepSeek-V4's attention gathers latents of four prefills; 0 for others.

    4 × (max_model_len / least ratio + window + batch) × head size elements of 16 bits

    Source: vllm/models/deepseek_v4/nvidia/flashmla.py:DeepseekV4FlashMLASparseImpl.forward_mqa (0.22.0).
    """
    caches = caches_of(architecture)
    ratios = [cache.tokens_per_state for cache in caches if isinstance(cache, CompressedLatent)]
    windows = [cache.sliding_window for cache in caches if isinstance(cache, LatentWindow)]
    if not ratios or not windows:
        return 0
    latents = ceil_div(resolved.max_model_len, min(ratios)) + max(windows) + resolved.max_num_batched_tokens
    return GATHERED_REQUESTS * latents * architecture.head_dim * QUERY_BYTES
