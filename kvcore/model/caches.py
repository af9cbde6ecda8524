"""The cache states that a layer keeps of a request: keys and values, latent vectors, recurrent states.

They are of the whole model and not yet per rank: `kvcore.cache.states` turns them into pages on one rank of one engine
version.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct


class KeysAndValues(Struct, frozen=True, kw_only=True):
    """`num_kv_heads` of the whole model, before tensor parallelism."""

    num_kv_heads: int
    head_size: int
    head_size_v: int


class FullAttention(KeysAndValues, frozen=True, kw_only=True):
    """Keys and values of every token."""


class SlidingWindow(KeysAndValues, frozen=True, kw_only=True):
    """Keys and values of the last `sliding_window` tokens."""

    sliding_window: int


class ChunkedLocal(KeysAndValues, frozen=True, kw_only=True):
    """Keys and values of the current chunk of `attention_chunk_size` tokens (Llama 4)."""

    attention_chunk_size: int


class Mla(Struct, frozen=True, kw_only=True):
    """One latent vector per token, the same on every tensor parallel rank (DeepSeek)."""

    kv_lora_rank: int
    qk_rope_head_dim: int
    index_head_dim: int = 0
    """Width of an indexer's keys, where an engine stores them behind the vector."""


class SparseIndexer(Struct, frozen=True, kw_only=True):
    """The key cache of a sparse-attention indexer (DeepSeek-V3.2), with the `Mla` of the same layer."""

    index_head_dim: int


class BlockIndexer(Struct, frozen=True, kw_only=True):
    """The keys by which attention picks whole blocks (MiniMax M3), with the `FullAttention` of the same layer.

    Sixteen bits an element, whatever the dtype of the cache, unless `indexer_kv_dtype` says fp8; one head, on every
    tensor parallel rank.
    """

    index_head_dim: int


class PooledKeys(Struct, frozen=True, kw_only=True):
    """The keys by which an indexer picks groups of `tokens_per_state` tokens, one of `key_bytes` a group, on every
    tensor parallel rank (GLM-5.3-Flash, Qwen4-Exp), with the attention of the same layer."""

    tokens_per_state: int
    key_bytes: int
    page_keys: int = 1
    """The fewest in a page of the kernel; blocks of a hybrid model are a multiple of them."""


class TokenRing(Struct, frozen=True, kw_only=True):
    """The rows of tokens whose group is not whole yet, with those of the drafts that are not settled: whole groups in
    one block a request, however long it is.

    `in_powers`: as many groups as the next power of two; `least_rows` of one at least.
    """

    tokens_per_group: int
    row_bytes: int
    in_powers: bool = False
    least_rows: int = 1
    fills_page_of: FullAttention | None = None
    """As many rows as a page of these keys and values has room for, whole rows in every block (Step 5)."""


class InputWindow(Struct, frozen=True, kw_only=True):
    """The last inputs of the short convolutions around attention, `row_elements` a KV head and token in 16 bits, in
    blocks as long as the kernel (Inkling)."""

    num_kv_heads: int
    row_elements: int
    kernel: int


class StateShape(Struct, frozen=True, kw_only=True):
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


class RecurrentState(Struct, frozen=True, kw_only=True):
    """A state of constant size: Mamba 1 and 2, gated delta net, KDA, linear attention, short convolution.

    `kind` is the engine's own spelling: mamba1, mamba2, gdn_attention, kda, linear_attention, short_conv. Ranks divide
    `heads`; `replicable_groups` are state groups (Mamba 2's `n_groups`) that are replicated when they do not.
    """

    kind: str
    shapes: tuple[StateShape, ...]
    heads: int
    replicable_groups: int = 0
    chunk_size: int = 2048
    """Tokens that the kernel scans at a time; where a config names none, the engine takes this many.

    Source: vllm/config/model.py:ModelConfig.get_mamba_chunk_size (0.11.2 to 0.27.1).
    """

    exported_head_size: int = 0
    """Key size of heads whose kernel can export states inside a prefill; 0 where none can."""
    is_whole: bool = False
    """The same on every tensor parallel rank."""


class CrossAttention(Struct, frozen=True, kw_only=True):
    """Keys and values of the encoder's output (Whisper)."""

    num_kv_heads: int
    head_size: int
    encoder_tokens: int


class CompressedLatent(Struct, frozen=True, kw_only=True):
    """Latent vectors that stand for `tokens_per_state` tokens each (DeepSeek-V4's compressed caches and indexers).

    `state_bytes` is one stored vector in its packed layout; pages are rounded up to `page_alignment` bytes.
    """

    tokens_per_state: int
    state_bytes: int
    page_alignment: int
    width: int = 0
    """Elements of a vector, for platforms that do not pack it."""
    mx_bytes: int = 0
    """One stored vector in the layout of Blackwell's own kernel, 0 where it has none."""
    is_index: bool = False
    """Keys by which an indexer picks tokens, and no latent vector."""


class LatentWindow(Struct, frozen=True, kw_only=True):
    """Latent vectors or compressor states of the last `sliding_window` tokens, in blocks of their own size."""

    sliding_window: int
    state_bytes: int
    page_alignment: int
    block_size: int
    width: int = 0
    """Elements of a latent vector, for platforms that do not pack it; 0 for states."""
    mx_bytes: int = 0
    """One stored vector in the layout of Blackwell's own kernel, 0 where it has none."""
    overlaps: bool = False
    """The states of a compressor that looks at two windows."""


AttentionState: TypeAlias = FullAttention | SlidingWindow | ChunkedLocal | CrossAttention
LatentState: TypeAlias = Mla | SparseIndexer | BlockIndexer | PooledKeys | CompressedLatent | LatentWindow
CacheState: TypeAlias = AttentionState | LatentState | InputWindow | TokenRing | RecurrentState
