"""Cases for vllm-ascend's specs and planner: a request for kvcore, and the layers of a rank as they are built."""

from __future__ import annotations

from typing import Any

Layers = dict[str, Any]
DSV3 = {"rank": 512, "rope": 64}


def attention(layers: int, heads: int, size: int, window: int | None = None) -> Layers:
    return {"kind": "attention", "layers": layers, "heads": heads, "size": size, "window": window}


def latent(layers: int, index: int | None = None) -> Layers:
    found = {"kind": "latent", "layers": layers, **DSV3}
    return found if index is None else found | {"index": index}


def delta(ranks: int, v_heads: int = 32, dtype: str = "bfloat16") -> Layers:
    """One layer of Qwen3-Next or 3.5: 16 heads of keys, all of 128."""
    heads = {"k_heads": 16, "v_heads": v_heads, "k_size": 128, "v_size": 128, "rows": 4}
    return {"kind": "state", "layers": 1, "ranks": ranks, "dtype": dtype} | heads


def compressed(ratio: int, *, draft: bool = False) -> Layers:
    sizes = {"size": 512, "index": 128, "window": 128}
    return {"kind": "compressed", "layers": 1, "ratio": ratio, "draft": draft} | sizes


def case(
    model: str, model_type: str, *stages: list[Layers], length: int, gib: float, ranks: int = 1, **flags: Any
) -> dict[str, Any]:
    """`since` is the oldest vLLM that has the class; `plain` drops the checkpoint's quantization."""
    own = (
        "block_size",
        "prefix_caching",
        "speculative_tokens",
        "mamba_cache_mode",
        "max_num_batched_tokens",
        "since",
        "below",
    )
    request = {"model": model, "tensor_parallel_size": ranks, "max_model_len": length}
    if len(stages) > 1:
        request["pipeline_parallel_size"] = len(stages)
    batch = flags.get("max_num_batched_tokens", 8192)
    request["max_num_batched_tokens"] = batch
    for name, field in (("block_size", "block_size"), ("prefix_caching", "enable_prefix_caching")):
        if name in flags:
            request[field] = flags[name]
    if "speculative_tokens" in flags:
        draft = {"method": "mtp", "num_speculative_tokens": flags["speculative_tokens"]}
        request["speculative_config"] = draft
    assert not flags.keys() - {*own}
    return {
        "request": request, "model_type": model_type, "stages": list(stages), "max_model_len": length,
        "max_num_batched_tokens": batch, "available_gib": gib, "max_concurrent_batches": 2,
        **{name: value for name, value in flags.items() if name != "max_num_batched_tokens"},
    }  # fmt: skip


NEXT = [each for _ in range(12) for each in (delta(4), delta(4), delta(4), attention(1, 1, 256))]
FLASH = [compressed(ratio) for ratio in (0, 0, *(ratio for _ in range(20) for ratio in (4, 128)), 4)]
GEMMA = [each for index in range(62) for each in [attention(1, 4, 128, None if index % 6 == 5 else 1024)]]

CASES: dict[str, dict[str, Any]] = {
    "dense": case("Qwen/Qwen3-8B", "qwen3", [attention(36, 8, 128)], length=32768, gib=20.0),
    "dense, blocks of 64 asked": case(
        "Qwen/Qwen3-8B", "qwen3", [attention(36, 8, 128)], length=10000, gib=9.96614, block_size=64
    ),
    "dense, too long": case("Qwen/Qwen3-8B", "qwen3", [attention(36, 8, 128)], length=40960, gib=5.0),
    "dense, two stages": case(
        "Qwen/Qwen3-8B", "qwen3", [attention(18, 4, 128)], [attention(18, 4, 128)], length=40960, gib=9.5, ranks=2
    ),
    "windows and full 5:1": case("google/gemma-3-27b-it", "gemma3", GEMMA, length=32768, gib=18.0, ranks=4),
    "windows and full 5:1, too long": case(
        "google/gemma-3-27b-it", "gemma3", GEMMA, length=131072, gib=4.0, ranks=4
    ),
    "latent": case("deepseek-ai/DeepSeek-V3", "deepseek_v3", [latent(61)], length=32768, gib=12.0, ranks=8),
    "latent and indexer": case(
        "deepseek-ai/DeepSeek-V3.2", "deepseek_v32", [latent(61, 128)], length=131072, gib=25.82821, ranks=16,
        since="0.11.0",
    ),
    "states and full 3:1": case(
        "Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3_next", NEXT, length=32768, gib=9.11406, ranks=4,
        prefix_caching=False, since="0.10.2",
    ),
    "states and full 3:1, too long": case(
        "Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3_next", NEXT, length=262144, gib=0.8, ranks=4,
        prefix_caching=False, since="0.10.2",
    ),
    "states and full 3:1, prefixes": case(
        "Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3_next", NEXT, length=32768, gib=9.11406, ranks=4,
        prefix_caching=True, mamba_cache_mode="align", since="0.17.0",
    ),
    "compressed": case(
        "deepseek-ai/DeepSeek-V4-Flash", "deepseek_v4", FLASH, length=65536, gib=16.04, since="0.23.0"
    ),
    "compressed and a draft": case(
        "deepseek-ai/DeepSeek-V4-Flash", "deepseek_v4", [*FLASH, compressed(0, draft=True)], length=524288,
        gib=16.04, max_num_batched_tokens=23552, speculative_tokens=1, since="0.23.0",
    ),
    "compressed and a draft, blocks of 64": case(
        "deepseek-ai/DeepSeek-V4-Flash", "deepseek_v4", [*FLASH, compressed(0, draft=True)], length=131072,
        gib=20.0, max_num_batched_tokens=4096, speculative_tokens=1, block_size=64, since="0.23.0",
    ),
    "compressed and a draft, blocks of 16 asked": case(
        "deepseek-ai/DeepSeek-V4-Flash", "deepseek_v4", [*FLASH, compressed(0, draft=True)], length=131072,
        gib=20.0, max_num_batched_tokens=4096, speculative_tokens=1, block_size=16, since="0.23.0",
    ),
    "compressed and a draft, too long": case(
        "deepseek-ai/DeepSeek-V4-Flash", "deepseek_v4", [*FLASH, compressed(0, draft=True)], length=1048576,
        gib=16.04, max_num_batched_tokens=23552, speculative_tokens=1, since="0.23.0",
    ),
}  # fmt: skip
