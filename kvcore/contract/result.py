"""A request as text -> the JSON result that scripts, scorers and CI read. See docs/contract.md."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from kvcore.base.errors import KvPlannerError, defect
from kvcore.base.parts import KV_CACHE, PARTS, UNACCOUNTED, WEIGHTS
from kvcore.base.quantity import Quantity
from kvcore.base.units import rounded_gib
from kvcore.base.untrusted import utf8_text
from kvcore.contract.host import engines_part, host_part, transfer_part
from kvcore.deploy.shell import launch_command
from kvcore.engine.rank_memory import RankMemory
from kvcore.model.config import ModelConfig
from kvcore.planning import Batch, Plan, Verdict, plan
from kvcore.wire.request import ReadConfig, from_hub, id_of, parse_request, scenario_from_request

if TYPE_CHECKING:
    from kvcore.advice.fixes import Fix
    from kvcore.advice.target import Served

RANK_PARTS: Final = ("total", *(part.name for part in PARTS))
"""Parts of one rank: all but the first sum to it, with `unaccounted` where the KV memory is given."""
RESOLVED: Final = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "dtype", "kv_cache_dtype",
    "max_cudagraph_capture_size", "cudagraph_mode", "mamba_cache_mode", "gpu_memory_utilization", "engine_version",
)  # fmt: skip
POOL: Final = ("bytes_per_token", "num_blocks", "tokens", "max_concurrency")
"""Figures of the cache in a result."""
GROUP: Final = ("kind", "layers", "block_size", "page_size_bytes", "blocks_per_request")
SERVES: Final = ("wanted", "per_replica", "replicas", "total", "enough")
MESSAGE: Final = ("code", "field", "message", "next_step")


def answer(
    given: str | bytes, read_config: ReadConfig = ModelConfig.from_mapping, batch: Batch | None = None
) -> dict[str, Any]:
    """The contract's result for one request as text; a bad request is a result too, and so is a defect.

    `read_config` is the method of one `SharedConfigs` for all requests of a batch, and `batch` plans them.

    Example:
        >>> answer(b"\\xff")["error"]["code"]
        'not-utf8'
    """
    request_id: object = None
    try:
        request = parse_request(utf8_text(given) if isinstance(given, bytes) else given)
        request_id = id_of(request)
        scenario = scenario_from_request(request, from_hub, read_config)
        return planned_result(plan(scenario, batch), request_id)
    except Exception as error:  # the last net: one request must not end a batch
        return error_of(error if isinstance(error, KvPlannerError) else defect(error), request_id)


def planned_result(planned: Plan, request_id: object = None) -> dict[str, Any]:
    """The contract's result for one plan, with fixes where it does not fit, or serves fewer than are wanted: each
    holds when it is sent back alone.
    """
    fits = planned.verdict is Verdict.FITS
    if fits and planned.scenario.wanted is None:
        return result_of(planned, request_id)
    from kvcore.advice.fixes import falls_short, fixes

    helps = not fits or falls_short(planned)
    return result_of(planned, request_id, fixes(planned, carries_measured=False) if helps else ())


def result_of(plan: Plan, request_id: object = None, fixes: tuple[Fix, ...] = ()) -> dict[str, Any]:
    """The contract's result for one plan; figures that need an unknown card are null."""
    resolved, memory, cache = plan.resolved, plan.memory, plan.cache
    given, target = plan.scenario.measured, _served(plan)
    parts: dict[str, float | None] = dict.fromkeys(RANK_PARTS)
    parts[WEIGHTS.name] = rounded_gib(plan.loaded_weights.value)
    if memory is not None:
        own = (UNACCOUNTED.name,) if given.available_kv_gib is not None else ()
        parts = {name: rounded_gib(getattr(memory, name).value) for name in (*RANK_PARTS, *own)}
    kv: dict[str, Any] = {"available_bytes": plan.available_kv_bytes}
    if cache is not None:
        kv |= _facts(cache, POOL)
        if not cache.groups:  # nothing is kept of a request, so that the cache holds neither one nor none
            kv["max_concurrency"] = None
        kv["groups"] = [_facts(group, GROUP) for group in cache.groups]
        kv["request_fixed_bytes"] = cache.request_fixed_bytes
        kv["longest_request_tokens"] = cache.longest_request_tokens
    own_flags, own_figures = resolved.engine.own_result(resolved, cache)
    kv |= own_figures
    origins = {part: given.origin(part).value for part in given.values()}
    return {
        "id": request_id,
        "status": "ok",
        "verdict": plan.verdict.value,
        "resolved": _facts(resolved, RESOLVED) | own_flags,
        "per_rank_gib": parts,
        **({"pipeline_stage": plan.stage + 1} if len(plan.specs) > 1 else {}),
        "after_pool_gib": None if memory is None else _with_interval(memory.after_pool),
        "interval_gib": None if memory is None else _intervals(memory),
        "assumed_surroundings": plan.surroundings.assumed,
        **({"origins": origins} if origins else {}),
        "kv": kv,
        **({"host": host} if (host := host_part(plan)) is not None else {}),
        **({"transfer": moved} if (moved := transfer_part(plan)) is not None else {}),
        **({"engines": engines} if (engines := engines_part(plan)) else {}),
        "weights_bytes_per_rank": plan.parameter_bytes_per_rank,
        "warnings": [_facts(notice, MESSAGE) for notice in plan.notices],
        **({} if target is None else {"serves": _facts(target, SERVES)}),
        "fixes": [_fix(fix) for fix in fixes],
        "launch": launch_command(plan),
    }


def _served(plan: Plan) -> Served | None:
    """What it serves of its target, which most plans do not have."""
    if plan.scenario.wanted is None:
        return None
    from kvcore.advice.target import served

    return served(plan)


def _fix(fix: Fix) -> dict[str, Any]:
    """A change and its verdict, with what it serves where there is a target."""
    target = fix.serves if fix.scenario.wanted is not None else None
    return _facts(fix, ("field", "value", "verdict")) | (
        {} if target is None else {"serves": _facts(target, SERVES)}
    )


def _intervals(memory: RankMemory) -> dict[str, list[float]]:
    """The 80 % intervals, in GiB, of all parts that have one, and of the KV cache also where a flag fixes it."""
    pool = memory.kv_cache
    quantities = ((name, getattr(memory, name)) for name in (*RANK_PARTS, UNACCOUNTED.name))
    bounds = {name: quantity.interval for name, quantity in quantities if quantity.interval is not None}
    bounds[KV_CACHE.name] = pool.interval or (pool.value, pool.value)
    return {name: [rounded_gib(low), rounded_gib(high)] for name, (low, high) in bounds.items()}


def _with_interval(quantity: Quantity) -> dict[str, Any]:
    return {"value": rounded_gib(quantity.value), "interval": [rounded_gib(end) for end in quantity.bounds]}


def error_of(error: KvPlannerError, request_id: object = None) -> dict[str, Any]:
    """The contract's result for a request that cannot be planned."""
    return {"id": request_id, "status": "error", "error": _facts(error, MESSAGE)}


def _facts(owner: object, names: tuple[str, ...]) -> dict[str, Any]:
    """The attributes `names` of `owner` as JSON values."""
    return {name: value.value if isinstance(value := getattr(owner, name), Enum) else value for name in names}
