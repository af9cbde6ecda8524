"""Flags and specs that the tests of the cache room share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packaging.version import Version

from kvcore.cache.spec import CacheKind, LayerSpec
from kvcore.engine.protocol import Resolved
from kvcore.engines.registry import find_engine
from kvcore.model.architecture import Architecture, Layer
from kvcore.model.caches import CacheState, FullAttention


def flags(engine_version: str = "0.32.0", **changes: Any) -> Resolved:
    """Resolved flags of a plain start, with `changes`."""
    values: dict[str, Any] = {
        "engine": "vllm",
        "engine_version": engine_version,
        "version": Version(engine_version),
        "is_v0": False,
        "dtype": "bfloat16",
        "kv_cache_dtype": "bfloat16",
        "max_model_len": 131_072,
        "derived_max_model_len": 0,
        "max_model_len_auto": False,
        "max_num_seqs": 1024,
        "max_num_batched_tokens": 8192,
        "block_size": 16,
        "gpu_memory_utilization": 0.9,
        "enforce_eager": False,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "async_scheduling": True,
        "max_concurrent_batches": 2,
        "use_v2_model_runner": True,
        "hybrid_kv_cache_manager": True,
        "mamba_cache_mode": "none",
        "attention_backend": "FLASH_ATTN",
        "cudagraph_capture_sizes": (),
        "cudagraph_modes": (),
    }
    chosen = values | changes
    return Resolved(**{**chosen, "engine": find_engine(chosen["engine"])})


def full(layers: int, page: int = 65_536, block_size: int = 16, **changes: Any) -> LayerSpec:
    """Full attention; the page is that of 8 heads of 128 in bfloat16 unless given."""
    return LayerSpec(
        kind=CacheKind.FULL_ATTENTION, layers=layers, block_size=block_size, page_size_bytes=page, **changes
    )


def window(layers: int, size: int, page: int = 65_536, block_size: int = 16, **changes: Any) -> LayerSpec:
    """A sliding window of `size` tokens."""
    return LayerSpec(
        kind=CacheKind.SLIDING_WINDOW,
        layers=layers,
        block_size=block_size,
        page_size_bytes=page,
        sliding_window=size,
        **changes,
    )


def latent(layers: int, page: int = 73_728, block_size: int = 64, **changes: Any) -> LayerSpec:
    """Latent vectors; the page is that of 576 bfloat16 elements in blocks of 64 unless given."""
    return LayerSpec(
        kind=CacheKind.MLA_ATTENTION, layers=layers, block_size=block_size, page_size_bytes=page, **changes
    )


def recurrent(layers: int, page: int, block_size: int, **changes: Any) -> LayerSpec:
    """A recurrent state."""
    return LayerSpec(
        kind=CacheKind.MAMBA, layers=layers, block_size=block_size, page_size_bytes=page, **changes
    )


def architecture(layers: Sequence[Layer], **changes: Any) -> Architecture:
    """A model of these layers; 8 KV heads of 128 unless changed."""
    values: dict[str, Any] = {
        "model_type": "example",
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "vocab_size": 128_256,
        "num_attention_heads": 32,
        "num_kv_heads": 8,
        "head_dim": 128,
        "max_model_len": 131_072,
        "dtype": "bfloat16",
        "layers": tuple(layers),
    }
    return Architecture(**(values | changes))


def layer(*caches: CacheState) -> Layer:
    """A layer with these caches and no weights."""
    return Layer(modules=(), caches=caches)


def full_layer(num_kv_heads: int = 8, head_size: int = 128) -> Layer:
    """A layer of full attention."""
    return layer(FullAttention(num_kv_heads=num_kv_heads, head_size=head_size, head_size_v=head_size))
