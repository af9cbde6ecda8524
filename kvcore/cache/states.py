"""Cache states on one rank: the model's declarations turned into the engine's cache specs."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import EngineRefusalError
from kvcore.base.kept import kept
from kvcore.base.quantity import Quantity
from kvcore.base.units import ceil_div
from kvcore.cache.kv_formats import (
    LAYER_TOKEN,
    aligned_states,
    index_keys,
    kv_format,
    state_tensor_bytes,
    state_tensors,
)
from kvcore.cache.rules import PlannerRules, hybrid_pages, planner_rules, recurrent_states
from kvcore.cache.spec import CacheKind, LayerSpec
from kvcore.engine import stage_layers, units_per_rank
from kvcore.engine.protocol import Resolved
from kvcore.engine.records import CompressedBlocks
from kvcore.engine.switches import AttentionBackend
from kvcore.model.architecture import Architecture, Layer, by_identity, layer_counts
from kvcore.model.caches import (
    BlockIndexer,
    CacheState,
    ChunkedLocal,
    CompressedLatent,
    CrossAttention,
    FullAttention,
    InputWindow,
    LatentWindow,
    Mla,
    PooledKeys,
    RecurrentState,
    SlidingWindow,
    SparseIndexer,
    TokenRing,
)
from kvcore.model.families.drafts import Draft
from kvcore.scenario import Parallel

LATENT_ROWS: Final = 64
"""Rows that the kernel of quantized latent vectors reads at once; other kernels read one.

Source: vllm/v1/attention/backends/mla/flashmla_sparse.py:FlashMLASparseBackend.customize_spec (0.33.0)."""


INDEX_SCALE_BYTES: Final = 2


class _Placement(Struct, frozen=True, kw_only=True):
    """The settings that turn a declared state into a spec on a rank, the same for all layers of a plan."""

    rules: PlannerRules
    ranks: int
    dtype: str
    state_dtype: str
    ssm_dtype: str
    kv_cache_dtype: str
    narrow_block_keys: bool
    block_size: int
    state_block_size: int
    least_state_page_bytes: int
    """Bytes that pages of recurrent states are padded to; 0 leaves them as they are."""
    least_attention_page_bytes: int
    num_speculative_tokens: int
    exports_states: bool
    has_plain_keys: bool
    """Keys of a sparse indexer are stored in the model's dtype."""
    packs_mx: bool
    """Packed latents are in the layout of Blackwell's own kernel."""
    compressed: CompressedBlocks | None
    """Blocks of compressed caches where they are counted in vectors."""


def aligned_block_size(architecture: Architecture, parallel: Parallel, resolved: Resolved) -> int:
    """Tokens per block: for a hybrid model the attention block that is at least as large as a state's page.

    Raises EngineRefusalError when the tensor parallel size does not divide the states.
    """
    return hybrid_pages(architecture, parallel, resolved).block_size


def rank_layer_specs(
    architecture: Architecture,
    parallel: Parallel,
    resolved: Resolved,
    stage: int,
    draft: Draft | None = None,
) -> tuple[LayerSpec, ...]:
    """The engine's cache specs on a rank of pipeline stage `stage`, equal layers together, in layer order.

    The layers of `draft` come last, on the last stage. Of some storage formats the first and last attention layers of
    the model keep its dtype.

    Raises EngineRefusalError where tensor or context parallelism does not fit the heads.

    Source: vllm/model_executor/layers/attention/attention.py:get_kv_cache_spec (0.32.0) and its relatives.
    """
    _check_context_parallel(architecture, parallel)
    engine = resolved.engine
    placement = _placement(architecture, parallel, resolved)
    indices = stage_layers(architecture.num_layers, parallel, stage)
    alike = _alike(architecture, indices, kv_format(placement.kv_cache_dtype).boundary_layers)
    is_last = stage == parallel.pipeline_parallel_size - 1
    drafts = by_identity(draft.layers) if draft is not None and is_last else ()
    plain = replace(placement, kv_cache_dtype=placement.dtype)
    counts: dict[LayerSpec, int] = {}
    for layer, count, keeps_dtype in alike:
        for state in engine.kept_states(layer.caches, resolved.version):
            spec = _layer_spec(state, plain if keeps_dtype else placement)
            counts[spec] = counts.get(spec, 0) + count
    for layer, count in drafts:
        for state in engine.kept_states(layer.caches, resolved.version):
            spec = _layer_spec(state, placement)
            if placement.compressed is not None:
                spec = dataclasses.replace(spec, is_draft=True)
            counts[spec] = counts.get(spec, 0) + count
    ordered = list(counts)
    if engine.states_last:
        ordered.sort(key=lambda spec: spec.kind is CacheKind.MAMBA)
    return tuple(_counted(spec, counts[spec]) for spec in ordered)


def _alike(architecture: Architecture, indices: range, boundary: int) -> list[tuple[Layer, int, bool]]:
    """The layers with `indices`, equal objects together with their count, and whether they keep the model's dtype: the
    first and last `boundary` attention layers of the model do."""
    keeps: Collection[int] = ()
    if boundary and not recurrent_states(architecture):
        attention = [index for index, layer in enumerate(architecture.layers) if layer.caches]
        keeps = {*attention[:boundary], *attention[-boundary:]}
    if not keeps and len(indices) == architecture.num_layers:
        return [(layer, count, False) for layer, count in layer_counts(architecture)]
    layers = architecture.layers
    by_id = {id(layer): layer for layer in layers}
    counts = Counter((id(layers[index]), index in keeps) for index in indices)
    return [(by_id[layer], count, keeps_dtype) for (layer, keeps_dtype), count in counts.items()]


@lru_cache(maxsize=2048)
def _counted(spec: LayerSpec, layers: int) -> LayerSpec:
    return dataclasses.replace(spec, layers=layers)


def _placement(architecture: Architecture, parallel: Parallel, resolved: Resolved) -> _Placement:
    pages = hybrid_pages(architecture, parallel, resolved)
    states = recurrent_states(architecture)
    return _Placement(
        rules=planner_rules(resolved.version),
        has_plain_keys=resolved.engine.plain_index_keys,
        packs_mx=resolved.attention_backend == AttentionBackend.FLASHMLA_MEGA_ATTN_DSV41,
        compressed=resolved.engine.compressed_blocks(resolved.version),
        ranks=parallel.tensor_parallel_size,
        dtype=resolved.dtype,
        state_dtype=resolved.mamba_cache_dtype or resolved.dtype,
        ssm_dtype=resolved.mamba_ssm_cache_dtype,
        kv_cache_dtype=resolved.kv_cache_dtype,
        narrow_block_keys=resolved.narrow_block_keys,
        block_size=pages.block_size,
        state_block_size=_state_block_size(pages.block_size, resolved, architecture.is_hybrid)
        if states
        else 0,
        least_state_page_bytes=pages.page_size_bytes,
        least_attention_page_bytes=pages.page_size_bytes
        if resolved.engine.has_contiguous_states(resolved)
        else 0,
        num_speculative_tokens=resolved.num_speculative_tokens,
        exports_states=resolved.state_export_tokens > 0,
    )


@kept
def has_states(architecture: Architecture) -> bool:
    """Whether some layer keeps a recurrent state."""
    return bool(recurrent_states(architecture))


def _state_block_size(block_size: int, resolved: Resolved, is_hybrid: bool) -> int:
    """Without prefix caching one state serves a whole request, so its block is max_model_len long.

    Where there is no attention to align with, it is the one that is asked for.
    """
    if resolved.mamba_cache_mode == "none":
        return resolved.max_model_len
    return block_size if is_hybrid else resolved.mamba_block_size or block_size


@lru_cache(maxsize=2048)
def _layer_spec(state: CacheState, at: _Placement) -> LayerSpec:
    """The spec of one layer that declares `state`; `layers` is 1."""
    match state:
        case FullAttention():
            return _attention(CacheKind.FULL_ATTENTION, state, state.head_size_v, at)
        case SlidingWindow():
            spec = _attention(CacheKind.SLIDING_WINDOW, state, state.head_size_v, at)
            return dataclasses.replace(spec, sliding_window=state.sliding_window)
        case ChunkedLocal():
            spec = _attention(CacheKind.CHUNKED_LOCAL_ATTENTION, state, state.head_size_v, at)
            return dataclasses.replace(spec, attention_chunk_size=state.attention_chunk_size)
        case CrossAttention():
            spec = _attention(CacheKind.CROSS_ATTENTION, state, state.head_size, at)
            return dataclasses.replace(spec, encoder_tokens=state.encoder_tokens)
        case Mla():
            parts = (state.kv_lora_rank, state.qk_rope_head_dim, state.index_head_dim)
            size, token = sum(parts), kv_format(at.kv_cache_dtype).latent_vector(*parts)
            rows = LATENT_ROWS if at.kv_cache_dtype.startswith("fp8") else 1
            return dataclasses.replace(
                _latent(size, token, at.kv_cache_dtype, at), stride_alignment=rows * int(token.value)
            )
        case SparseIndexer():
            element = kv_format(at.dtype).key_bits // 8 if at.has_plain_keys else 0
            token = index_keys(state.index_head_dim, element)
            return _latent(int(token.value), token, "uint8", at)
        case BlockIndexer():
            element, dtype = (1, "fp8_e4m3") if at.narrow_block_keys else (2, "bfloat16")
            return _latent(state.index_head_dim, index_keys(state.index_head_dim, element), dtype, at)
        case CompressedLatent() | LatentWindow() if at.compressed is not None:
            return counted_vectors(state, at.block_size, at.kv_cache_dtype, at.compressed)
        case CompressedLatent():
            if at.block_size < state.tokens_per_state:
                raise EngineRefusalError(
                    "block-size-not-in-kernels", field="block_size", value=at.block_size,
                    multiple=state.tokens_per_state,
                )  # fmt: skip
            size, alignment = _packed(state, at)
            made = aligned_states(at.block_size // state.tokens_per_state, size, alignment)
            return dataclasses.replace(
                _latent(size, made, "uint8", at), tokens_per_state=state.tokens_per_state
            )
        case LatentWindow():
            size, alignment = _packed(state, at)
            made = aligned_states(state.block_size, size, alignment)
            return _stored(
                CacheKind.SLIDING_WINDOW_MLA,
                made,
                state.block_size,
                num_kv_heads=1,
                head_size=size,
                sliding_window=state.sliding_window,
                stride_alignment=size if at.packs_mx and state.mx_bytes else 1,
            )
        case PooledKeys():
            made = aligned_states(at.block_size // state.tokens_per_state, state.key_bytes, 1)
            kernel = math.gcd(2 * state.page_keys * state.tokens_per_state, at.block_size)
            is_cut = state.page_keys > 1 and kernel < at.block_size
            return dataclasses.replace(
                _latent(state.key_bytes, made, "uint8", at),
                tokens_per_state=state.tokens_per_state,
                stride_alignment=kernel // state.tokens_per_state * state.key_bytes if is_cut else 1,
            )
        case InputWindow():
            return _inputs(state, at)
        case TokenRing():
            return _ring(state, at)
        case RecurrentState():
            return _recurrent(state, at)


MX_ALIGNMENT: Final = 512
"""Source: vllm/models/deepseek_v41/attention.py:DeepseekV4Attention.kv_page_alignment (0.33.0)."""


def _packed(state: CompressedLatent | LatentWindow, at: _Placement) -> tuple[int, int]:
    """Bytes of one stored vector, and what pages are aligned to."""
    if at.packs_mx and state.mx_bytes:
        return state.mx_bytes, MX_ALIGNMENT
    return state.state_bytes, state.page_alignment


def _stored(kind: CacheKind, made: Quantity, block_size: int, **fields: Any) -> LayerSpec:
    """The spec of a layer whose page stores `made`."""
    return LayerSpec(
        kind=kind, block_size=block_size, page_size_bytes=int(made.value), made_of=made, **fields
    )


def _attention(
    kind: CacheKind,
    state: FullAttention | SlidingWindow | ChunkedLocal | CrossAttention,
    head_size_v: int,
    at: _Placement,
) -> LayerSpec:
    heads = units_per_rank(state.num_kv_heads, at.ranks, replicable=True)
    stored_v = head_size_v if at.rules.value_dimension else state.head_size
    token = kv_format(at.kv_cache_dtype).heads(heads, state.head_size, stored_v)
    return LayerSpec(
        kind=kind,
        block_size=at.block_size,
        page_size_bytes=max(at.block_size * int(token.value), at.least_attention_page_bytes),
        made_of=token,
        num_kv_heads=heads,
        head_size=state.head_size,
        head_size_v=stored_v,
        dtype=at.kv_cache_dtype,
    )


def _latent(size: int, made: Quantity, dtype: str, at: _Placement) -> LayerSpec:
    """`made` is one token of the layer, or all that a page stores."""
    tokens = at.block_size if made.name == LAYER_TOKEN else 1
    return LayerSpec(
        kind=CacheKind.MLA_ATTENTION,
        block_size=at.block_size,
        page_size_bytes=tokens * int(made.value),
        num_kv_heads=1,
        head_size=size,
        dtype=dtype,
        made_of=made,
    )


def _inputs(state: InputWindow, at: _Placement) -> LayerSpec:
    """Source: vllm/models/inkling/nvidia/sconv_swa_attn.py:InklingConvState.get_kv_cache_spec (0.33.0)."""
    heads = units_per_rank(state.num_kv_heads, at.ranks, replicable=False)
    made = aligned_states(state.kernel, heads * state.row_elements * 2, 1)
    return _stored(
        CacheKind.SLIDING_WINDOW,
        made,
        state.kernel,
        num_kv_heads=heads,
        head_size=state.row_elements,
        dtype=at.dtype,
        sliding_window=state.kernel,
    )


def _ring(state: TokenRing, at: _Placement) -> LayerSpec:
    """Source: vllm/models/glm5next/common/attention.py:Glm5NextTailCache.get_kv_cache_spec,
    vllm/models/qwen4_exp/common/qsa_cache.py:QSAKeyStateCache.get_kv_cache_spec,
    vllm/models/step5/nvidia/csa_tail_ring.py:Step5CSATailRing.get_kv_cache_spec (0.33.0)."""
    if state.fills_page_of is not None:
        page = _attention(CacheKind.CIRCULAR_BUFFER, state.fills_page_of, state.fills_page_of.head_size_v, at)
        return dataclasses.replace(page, stride_alignment=state.row_bytes)
    groups = ceil_div(state.tokens_per_group + at.num_speculative_tokens, state.tokens_per_group)
    rows = state.tokens_per_group * (1 << (groups - 1).bit_length() if state.in_powers else groups)
    rows = max(rows, state.least_rows)
    made = aligned_states(rows, state.row_bytes, 1)
    return _stored(CacheKind.CIRCULAR_BUFFER, made, rows, num_kv_heads=1, head_size=state.row_bytes)


def _recurrent(state: RecurrentState, at: _Placement) -> LayerSpec:
    tensors = state_tensor_bytes(state, at.ranks, at.state_dtype, at.num_speculative_tokens, at.ssm_dtype)
    size = sum(tensors)
    return LayerSpec(
        kind=CacheKind.MAMBA,
        block_size=at.state_block_size,
        page_size_bytes=max(size, at.least_state_page_bytes),
        head_size=size,
        dtype=state.kind,
        num_speculative_blocks=at.num_speculative_tokens,
        num_checkpoint_blocks=at.rules.mamba2_checkpoint_blocks
        if state.kind == "mamba2"
        else int(at.exports_states),
        made_of=state_tensors(tensors),
    )


def counted_vectors(
    state: CompressedLatent | LatentWindow, block_size: int, kv_cache_dtype: str, blocks: CompressedBlocks
) -> LayerSpec:
    """The spec of a compressed cache whose blocks are counted in vectors: latents in the model's dtype, keys of an
    indexer in int8 with a scale in float16, states in smaller blocks, nothing aligned.

    Source: vllm_ascend/models/deepseek_v4.py and models/layer/attention/layer.py:get_kv_cache_spec (0.23.0).

    Example:
        >>> latent = CompressedLatent(tokens_per_state=4, state_bytes=584, page_alignment=576, width=512)
        >>> spec = counted_vectors(latent, 128, "bfloat16", CompressedBlocks())
        >>> spec.page_size_bytes, spec.stated_block_size, spec.block_size
        (131072, 128, 512)
    """
    share, tokens, window = 1, 1, 0
    width = state.width * kv_format(kv_cache_dtype).key_bits // 8
    if isinstance(state, CompressedLatent):
        tokens = state.tokens_per_state
        width = state.width + INDEX_SCALE_BYTES if state.is_index else width
    else:
        window = state.sliding_window
    if isinstance(state, LatentWindow) and not state.width:
        width = state.state_bytes
        share = blocks.overlapping_share if state.overlaps else blocks.single_share
    slots = block_size // share
    made = aligned_states(slots, width, 1)
    return _stored(
        CacheKind.SLIDING_WINDOW_MLA if window else CacheKind.MLA_ATTENTION,
        made,
        slots * tokens,
        stated_block_size=slots,
        num_kv_heads=1,
        head_size=width,
        sliding_window=window,
        tokens_per_state=tokens,
    )


def _check_context_parallel(architecture: Architecture, parallel: Parallel) -> None:
    """Source: vllm/config/model.py:verify_with_parallel_config (0.32.0), parallel.py:ParallelConfig (0.33.0)."""
    size, prefill = parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size
    ranks, heads = parallel.tensor_parallel_size, architecture.num_kv_heads
    if size == 1 or (prefill > 1 and size in (prefill, ranks * prefill)):
        return
    code, maximum = "", 0
    if ranks % size:
        code = "context-parallel-division"
    elif not architecture.is_mla and ranks <= heads:
        code = "context-parallel-ranks"
    elif not architecture.is_mla and heads and size > ranks // heads:
        code, maximum = "context-parallel-size", ranks // heads
    if code:
        field = "decode_context_parallel_size"
        raise EngineRefusalError(code, field=field, value=size, ranks=ranks, heads=heads, maximum=maximum)
