"""What one layer keeps of a request between two steps, as the model's config declares it: not yet per rank.

`kvcore.cache.states` turns these into pages on one rank of one engine version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, kw_only=True, slots=True)
class FullAttention:
    """Keys and values of every token. `num_kv_heads` of the whole model, before tensor parallelism."""

    num_kv_heads: int
    head_size: int
    head_size_v: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SlidingWindow:
    """Keys and values of the last `sliding_window` tokens."""

    num_kv_heads: int
    head_size: int
    head_size_v: int
    sliding_window: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkedLocal:
    """Keys and values of the current chunk of `attention_chunk_size` tokens (Llama 4)."""

    num_kv_heads: int
    head_size: int
    head_size_v: int
    attention_chunk_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Mla:
    """One latent vector per token, the same on every tensor parallel rank (DeepSeek)."""

    kv_lora_rank: int
    qk_rope_head_dim: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseIndexer:
    """The key cache of a sparse-attention indexer (DeepSeek-V3.2), with the `Mla` of the same layer."""

    index_head_dim: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockIndexer:
    """The keys by which attention picks whole blocks (MiniMax M3), with the `FullAttention` of the same layer.

    Sixteen bits an element, whatever the dtype of the cache; one head, on every tensor parallel rank.
    """

    index_head_dim: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StateShape:
    """One recurrent state tensor: the product of `replicated` sizes and of `sharded` sizes divided by TP.

    `dtype` is a torch name, or "" for the one that `mamba_cache_dtype` resolves to: the model's.
    """

    sharded: int
    replicated: int
    dtype: str = ""
    is_ssm: bool = False
    """The state itself, whose dtype `mamba_ssm_cache_dtype` sets, and no rows of a convolution."""
    sharded_per_speculative_token: int = 0
    """By how much one speculative token lengthens `sharded` (convolution rows)."""
    sharded_per_group: int = 0
    """How much of `sharded` belongs to each of the `replicable_groups` (Mamba 2: 2 × state size × rows)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecurrentState:
    """A state of constant size: Mamba 1 and 2, gated delta net, KDA, linear attention, short convolution.

    `kind` is the engine's own spelling: mamba1, mamba2, gdn_attention, kda, linear_attention, short_conv.
    `heads` must be divisible by the tensor parallel size; `replicable_groups` are state groups (Mamba 2's
    `n_groups`) that are replicated when they are not.
    """

    kind: str
    shapes: tuple[StateShape, ...]
    heads: int
    replicable_groups: int = 0
    chunk_size: int = 2048
    """Tokens that the kernel scans at a time; where a config names none, the engine takes this many.

    Source: vllm/config/model.py:ModelConfig.get_mamba_chunk_size (0.11.2 to 0.27.1).
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class CrossAttention:
    """Keys and values of the encoder's output (Whisper)."""

    num_kv_heads: int
    head_size: int
    encoder_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressedLatent:
    """Latent vectors that stand for `tokens_per_state` tokens each (DeepSeek-V4's compressed caches and indexers).

    `state_bytes` is one stored vector in its packed layout; pages are rounded up to `page_alignment` bytes.
    """

    tokens_per_state: int
    state_bytes: int
    page_alignment: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentWindow:
    """Latent vectors or compressor states of the last `sliding_window` tokens, in blocks of their own size."""

    sliding_window: int
    state_bytes: int
    page_alignment: int
    block_size: int


CacheState: TypeAlias = (
    FullAttention
    | SlidingWindow
    | ChunkedLocal
    | Mla
    | SparseIndexer
    | BlockIndexer
    | RecurrentState
    | CrossAttention
    | CompressedLatent
    | LatentWindow
)
