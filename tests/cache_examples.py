"""Flags and specs that the tests of the cache room share."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from kvcore.cache.spec import CacheKind, LayerSpec
from kvcore.engine.resolved import Resolved
from kvcore.scenario import Engine


def flags(engine_version: str = "0.32.0", **changes: Any) -> Resolved:
    """Resolved flags of a plain start, with `changes`."""
    values: dict[str, Any] = {
        "engine": Engine.VLLM,
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
    return Resolved(**(values | changes))


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
