"""Caches of engines on other platforms: the same states as vLLM's, stored in their own way."""

from __future__ import annotations

from typing import Final

from kvcore.cache.kv_formats import aligned_states, kv_format
from kvcore.cache.spec import CacheKind, LayerSpec
from kvcore.engine.records import CompressedBlocks
from kvcore.model.caches import CompressedLatent, LatentWindow

INDEX_SCALE_BYTES: Final = 2


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
    return LayerSpec(
        kind=CacheKind.SLIDING_WINDOW_MLA if window else CacheKind.MLA_ATTENTION,
        layers=1,
        block_size=slots * tokens,
        stated_block_size=slots,
        page_size_bytes=int(made.value),
        made_of=made,
        num_kv_heads=1,
        head_size=width,
        sliding_window=window,
        tokens_per_state=tokens,
    )
