"""The lines that a planned start should print, in the words of its engine version."""

from __future__ import annotations

from typing import Final

from packaging.version import Version

from kvcore.planning import Plan
from kvcore.units import gib

AVAILABLE_LINE: Final = Version("0.9.2")
"""First version that prints "Available KV cache memory". Source: vllm/v1/worker/gpu_worker.py (0.9.2)."""
MERGED_LINE: Final = Version("0.28.0")
"""Size and concurrency on one line. Source: vllm/v1/core/kv_cache_utils.py (0.28.0)."""
DEVICE_PREFIX: Final = Version("0.30.0")


def expected_log_lines(plan: Plan) -> tuple[str, ...]:
    """What to look for at start, to check the plan against; empty where the start fails or the card is unknown.

    Figures are the predicted ones: weights exact, KV memory within the interval of the plan.
    Source: docs of the log reader (kvcore/evidence/log/line_formats.toml).
    """
    cache, resolved = plan.cache, plan.resolved
    if cache is None or plan.available_kv_bytes is None or not cache.fits:
        return ()
    weights = f"{gib(plan.loaded_weights.value):.2f}"
    concurrency = (
        f"Maximum concurrency for {resolved.max_model_len:,} tokens per request: {cache.max_concurrency:.2f}x"
    )
    if resolved.is_v0:
        return (
            f"Loading model weights took {weights} GiB",
            f"# cuda blocks: {cache.num_blocks}, # CPU blocks: ...",
            concurrency,
        )
    lines = [f"Model loading took {weights} GiB"]
    if resolved.version >= AVAILABLE_LINE:
        lines.append(f"Available KV cache memory: {gib(plan.available_kv_bytes):.2f} GiB")
    size = f"GPU KV cache size: {cache.tokens:,} tokens"
    if resolved.version >= MERGED_LINE:
        return (*lines, f"{size}, {concurrency}")
    return (*lines, size, concurrency)
