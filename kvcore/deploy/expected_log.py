"""The lines that a planned start should print, in the words of its engine version."""

from __future__ import annotations

from kvcore.engine.vllm.versions import switches_of
from kvcore.planning import Plan
from kvcore.units import gib


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
    switches = switches_of(resolved.version)
    lines = [f"Model loading took {weights} GiB"]
    if switches.logs_available_memory:
        lines.append(f"Available KV cache memory: {gib(plan.available_kv_bytes):.2f} GiB")
    size = f"GPU KV cache size: {cache.tokens:,} tokens"
    if switches.logs_capacity_in_one_line:
        return (*lines, f"{size}, {concurrency}")
    return (*lines, size, concurrency)
