"""The pre-run of vllm-mindspore on an NPU of 64 GB."""

from __future__ import annotations

from math import prod
from typing import Final

from kvcore.base.quantity import Unit, explained, given
from kvcore.base.term import left_of
from kvcore.base.units import GIB, MIB
from kvcore.engine.setting import DTYPE_BYTES
from kvcore.evidence.prerun import (
    LEVEL_VARIABLE,
    VARIABLES,
    PreRun,
    PreRunResult,
    documented_bytes_per_token,
    out_of_memory_remedies,
)
from kvcore.explain.documents.recomputed import Recomputed, bytes_of, cache_of, number, planned, whole_tokens
from kvcore.explain.reference import LATENT_POOL_GIB
from kvcore.scenario import Parallel

NAMED: Final = {"more": 2, "lower-share": 3, "shorter": 2}
"""How many values of each remedy the guide names."""
PEAK_MB: Final = 29614
"""Of the guide's log line."""


def figures() -> dict[str, Recomputed]:
    """Of the pre-run on an NPU of 64 GB."""
    final, prerun = planned("pre-run"), PreRun()
    config = final.scenario.config.raw
    cache = cache_of(final)
    result = PreRunResult(prerun=prerun, peak_gb=PEAK_MB * MIB / GIB, bytes_per_token=cache.bytes_per_token)
    shape = final.architecture
    by_heads = documented_bytes_per_token(
        shape.num_layers, shape.num_attention_heads, int(config["v_head_dim"])
    )
    eight = given("pool", LATENT_POOL_GIB * GIB, Unit.BYTES)
    token, latent = (
        given("token", by_heads, Unit.BYTES),
        given("token", cache.bytes_per_token, Unit.BYTES),
    )
    total = given("total", prerun.total_gb * GIB, Unit.BYTES)
    share, model = (
        given("share", prerun.gpu_memory_utilization),
        given("model", prerun.model_gb * GIB, Unit.BYTES),
    )
    budget = explained("budget", prod, (total, share))
    pool = explained("pool", pool_bytes, total, share, model)
    peak = given("peak", result.peak_gb * GIB, Unit.BYTES)
    weights = explained("weights", left_of, peak, (pool,))
    return {
        "total": Recomputed(bytes_of("total", VARIABLES.default_total_gb * GIB)),
        "system": Recomputed(bytes_of("system", VARIABLES.system_gib * GIB)),
        "framework": Recomputed(bytes_of("framework", VARIABLES.framework_gib * GIB)),
        "model-share": Recomputed(bytes_of("model", VARIABLES.default_model_gb * GIB)),
        "share": Recomputed(number("share", final.resolved.gpu_memory_utilization)),
        "seats": Recomputed(number("seats", final.resolved.max_num_seqs)),
        "length": Recomputed(number("length", prerun.max_model_len, unit=Unit.TOKENS)),
        "batch": Recomputed(number("batch", prerun.step_tokens, unit=Unit.TOKENS)),
        "pre-run-seats": Recomputed(number("seats", prerun.requests)),
        "log-level": Recomputed(number("level", int(prerun.exports[LEVEL_VARIABLE]))),
        "log-peak": Recomputed(bytes_of("peak", peak.value)),
        "bytes": Recomputed(number("bytes", DTYPE_BYTES[final.resolved.dtype])),
        **_remedies(prerun),
        "budget": Recomputed(budget),
        "pool": Recomputed(pool),
        "weights": Recomputed(weights),
        "model-weights": Recomputed(None, final.loaded_weights),
        "final-pool": Recomputed(
            explained("final", left_of, budget, (weights,)),
            bytes_of("final", result.final_kv_gb * GIB),
        ),
        "token": Recomputed(bytes_of("token", by_heads), bytes_of("token", cache.bytes_per_token)),
        "eight-gib": Recomputed(bytes_of("pool", eight.value)),
        "tokens-of-eight": Recomputed(
            explained("tokens", whole_tokens, eight, token, unit=Unit.TOKENS),
            explained("tokens", whole_tokens, eight, latent, unit=Unit.TOKENS),
        ),
        "final-share": Recomputed(None, bytes_of("share", result.final_model_gb * GIB)),
        "final-tokens": Recomputed(None, number("tokens", result.final_tokens, unit=Unit.TOKENS)),
        "final-seats": Recomputed(None, number("seats", result.max_num_seqs)),
        "final-batch": Recomputed(None, number("batch", result.max_num_batched_tokens, unit=Unit.TOKENS)),
    }  # fmt: skip


def pool_bytes(total: float, share: float, model: float) -> float:
    """The guide's KV cache: the share of the NPU that the model leaves."""
    return total * share - model


def _remedies(prerun: PreRun) -> dict[str, Recomputed]:
    """What the guide changes after an out-of-memory."""
    tried = {one.field: one.values for one in out_of_memory_remedies(prerun, Parallel())}
    names = {VARIABLES.model: "more", "gpu_memory_utilization": "lower-share", "max_model_len": "shorter"}
    return {
        f"{name}-{place}": Recomputed(
            bytes_of(name, float(value) * GIB) if name == "more" else number(name, float(value))
        )
        for field, name in names.items()
        for place, value in enumerate(tried[field][: NAMED[name]], 1)
    }
