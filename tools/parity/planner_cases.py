"""Cache specs for the planners of older releases: layers of a rank of each pipeline stage, lengths and memory."""

from __future__ import annotations

from typing import Any

Layers = dict[str, Any]


def full(layers: int, heads: int, size: int, dtype: str = "bfloat16", block: int = 16) -> Layers:
    return _layers("FullAttentionSpec", layers, heads, size, dtype, block)


def window(layers: int, heads: int, size: int, tokens: int, block: int = 16) -> Layers:
    return _layers("SlidingWindowSpec", layers, heads, size, "bfloat16", block) | {"sliding_window": tokens}


def chunk(layers: int, heads: int, size: int, tokens: int) -> Layers:
    return _layers("ChunkedLocalAttentionSpec", layers, heads, size, "bfloat16", 16) | {
        "attention_chunk_size": tokens
    }


def latent(layers: int, size: int = 576, dtype: str = "bfloat16", block: int = 64) -> Layers:
    """Vectors of the attention itself name their format, those of an indexer do not."""
    named = {"cache_dtype_str": "auto"} if dtype == "bfloat16" else {}
    return _layers("MLAAttentionSpec", layers, 1, size, dtype, block) | named


def state(layers: int, page: int, length: int) -> Layers:
    """A recurrent state, padded to the attention page; without prefix caching one block lasts a request."""
    return {
        "kind": "MambaSpec",
        "layers": layers,
        "block_size": length,
        "state": [[3, 1024], [32, 64, 64]],
        "page_size_padded": page,
    }


def _layers(kind: str, layers: int, heads: int, size: int, dtype: str, block: int) -> Layers:
    return {
        "kind": kind,
        "layers": layers,
        "block_size": block,
        "num_kv_heads": heads,
        "head_size": size,
        "dtype": dtype,
    }


def _case(
    *stages: list[Layers], length: int, batch: int = 8192, gib: float = 20.0, **flags: Any
) -> dict[str, Any]:
    case: dict[str, Any] = {"stages": list(stages), "max_model_len": length, "max_num_batched_tokens": batch}
    return case | {"available_gib": gib} | flags


GEMMA_3_27B = [window(52, 16, 128, 1024), full(10, 16, 128)]
GPT_OSS_120B = [window(18, 8, 64, 128), full(18, 8, 64)]

CASES: dict[str, dict[str, Any]] = {
    "dense": _case([full(64, 8, 128)], length=40960),
    "dense, length not a multiple of the block": _case([full(64, 8, 128)], length=40001),
    "dense, fp8, four ranks": _case([full(64, 2, 128, "uint8")], length=40960),
    "dense, exactly enough": _case([full(32, 8, 128)], length=131072, gib=16.0),
    "dense, too long": _case([full(64, 8, 128)], length=131072, gib=10.0),
    "dense, decode context parallel": _case(
        [full(64, 1, 128)], length=131072, decode_context_parallel_size=2
    ),
    "latent": _case([latent(61)], length=32768),
    "latent and indexer": _case([latent(61), latent(61, 132, "uint8")], length=131072, gib=40.0),
    "draft with the target's page": _case([full(32, 8, 128), full(1, 8, 128)], length=131072),
    "draft with a page of its own": _case([full(64, 2, 128), full(28, 1, 128)], length=32768),
    "windows and full 5:1, short": _case(GEMMA_3_27B, length=8192),
    "windows and full 5:1, long": _case(GEMMA_3_27B, length=131072, gib=60.0),
    "windows and full 5:1, too long": _case(GEMMA_3_27B, length=131072, gib=5.0),
    "windows and full 1:1, short": _case(GPT_OSS_120B, length=16384),
    "windows and full 1:1, long": _case(GPT_OSS_120B, length=131072),
    "windows and full 1:1, small batch": _case(
        GPT_OSS_120B, length=131072, batch=2048, max_concurrent_batches=1
    ),
    "only windows": _case([window(32, 8, 128, 4096)], length=32768),
    "windows 27 and full 3": _case([window(27, 4, 128, 512), full(3, 4, 128)], length=32768),
    "windows 13 and full 12": _case([window(13, 8, 64, 128), full(12, 8, 64)], length=32768),
    "chunks and full 3:1": _case([chunk(36, 2, 128, 8192), full(12, 2, 128)], length=131072),
    "states and full 3:1": _case([state(36, 1114112, 262144), full(12, 2, 256, block=544)], length=262144),
    "states and full 6:1": _case([state(24, 4259840, 8192), full(4, 8, 128, block=1040)], length=8192),
    "two stages, 41 and 40 layers": _case([full(41, 4, 128)], [full(40, 4, 128)], length=32768),
    "two stages, windows and full": _case(
        [window(26, 8, 128, 1024), full(5, 8, 128)], [window(26, 8, 128, 1024), full(5, 8, 128)], length=32768
    ),
}
