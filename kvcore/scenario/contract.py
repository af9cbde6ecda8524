"""A Plan becomes the JSON result that scripts, scorers and CI read. See docs/contract.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvcore.deploy.launch import launch_command
from kvcore.errors import KvPlannerError, Notice
from kvcore.memory.parts import RankMemory
from kvcore.planning import Plan, Verdict
from kvcore.units import rounded_gib

if TYPE_CHECKING:
    from kvcore.advice.fixes import Fix

PARTS: Final = (
    "total",
    "system",
    "framework",
    "weights",
    "activations",
    "cuda_graphs",
    "kv_cache",
    "unused",
)
"""Of one rank; all but the first sum to it, with `unaccounted` where the KV memory is given."""
UNACCOUNTED: Final = "unaccounted"


def result_of(plan: Plan, request_id: object = None, fixes: tuple[Fix, ...] = ()) -> dict[str, Any]:
    """The contract's result for one plan; figures that need an unknown card are null."""
    resolved, memory, cache = plan.resolved, plan.memory, plan.cache
    given = plan.scenario.measured
    parts: dict[str, float | None] = dict.fromkeys(PARTS)
    parts["weights"] = rounded_gib(plan.loaded_weights.value)
    interval = None
    if memory is not None:
        own = (UNACCOUNTED,) if given.available_kv_gib is not None else ()
        parts = {name: rounded_gib(getattr(memory, name).value) for name in (*PARTS, *own)}
        interval = _intervals(memory)
    kv: dict[str, Any] = {
        "available_bytes": None if plan.available_kv_bytes is None else plan.available_kv_bytes
    }
    if cache is not None:
        figures = cache.figures
        kv |= {
            "bytes_per_token": figures.bytes_per_token.value,
            "num_blocks": figures.blocks.value,
            "tokens": figures.tokens.value,
            "max_concurrency": figures.concurrency.value,
            "groups": [
                {
                    "kind": group.kind.value,
                    "layers": group.layers,
                    "block_size": group.block_size,
                    "page_size_bytes": group.page_size_bytes,
                    "blocks_per_request": group.blocks_per_request,
                }
                for group in cache.groups
            ],
            "request_fixed_bytes": figures.request_fixed.value,
            "longest_request_tokens": figures.longest.value,
        }
    origins = {part: given.origin(part).value for part in given.values()}
    return {
        "id": request_id,
        "status": "ok",
        "verdict": plan.verdict.value,
        "resolved": {
            "max_model_len": resolved.max_model_len,
            "max_num_seqs": resolved.max_num_seqs,
            "max_num_batched_tokens": resolved.max_num_batched_tokens,
            "block_size": resolved.block_size,
            "dtype": resolved.dtype,
            "kv_cache_dtype": resolved.kv_cache_dtype,
            "max_cudagraph_capture_size": max(resolved.cudagraph_capture_sizes, default=0),
            "cudagraph_mode": resolved.cudagraph_mode.value,
            "mamba_cache_mode": resolved.mamba_cache_mode,
            "gpu_memory_utilization": resolved.gpu_memory_utilization,
            "engine_version": resolved.engine_version,
        },
        "per_rank_gib": parts,
        "interval_gib": interval,
        **({"origins": origins} if origins else {}),
        "kv": kv,
        "weights_bytes_per_rank": plan.parameter_bytes_per_rank,
        "warnings": [notice_json(notice) for notice in plan.notices],
        "fixes": [{"field": fix.field, "value": fix.value, "verdict": fix.verdict.value} for fix in fixes],
        "launch": launch_command(plan),
    }


def _intervals(memory: RankMemory) -> dict[str, list[float]]:
    """The 80 % intervals, in GiB, of all parts that have one, and of the KV cache also where a flag fixes it."""
    pool = memory.kv_cache
    quantities = ((name, getattr(memory, name)) for name in (*PARTS, UNACCOUNTED))
    bounds = {name: quantity.interval for name, quantity in quantities if quantity.interval is not None}
    bounds["kv_cache"] = pool.interval or (pool.value, pool.value)
    return {name: [rounded_gib(low), rounded_gib(high)] for name, (low, high) in bounds.items()}


def needs_fixes(plan: Plan) -> bool:
    """Whether a result should carry fixes."""
    return plan.verdict not in (Verdict.FITS, Verdict.TIGHT)


def notice_json(notice: Notice) -> dict[str, str]:
    """A warning as the contract writes it."""
    return {
        "code": notice.code,
        "field": notice.field,
        "message": notice.message,
        "next_step": notice.next_step,
    }


def error_of(error: KvPlannerError, request_id: object = None) -> dict[str, Any]:
    """The contract's result for a request that cannot be planned."""
    return {
        "id": request_id,
        "status": "error",
        "error": {
            "code": error.code,
            "field": error.field,
            "message": str(error),
            "next_step": error.next_step,
        },
    }
