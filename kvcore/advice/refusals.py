"""Single changes after which the engine takes a deployment that it refuses before it looks at memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from kvcore import catalogue
from kvcore.advice.fixes import FIXED
from kvcore.engine.rooms import find_engine
from kvcore.engine.vllm.versions import find_release, vllm_releases
from kvcore.errors import EngineRefusalError, KvPlannerError
from kvcore.evidence.carry import carried_over
from kvcore.planning import Plan, plan
from kvcore.scenario import AUTO, Scenario

Value: TypeAlias = int | str | bool | None
"""None leaves the flag out."""

SIZES: Final = (1, 2, 4, 8, 16, 32)
"""Tensor parallel sizes that are tried, the nearest first."""

AS_MUCH: Final = 0.95
"""Of the memory: boards of one size differ by some percent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """One field, the value it takes, and the plan that comes of it: it starts."""

    field: str
    value: Value
    plan: Plan


def refusal_fixes(scenario: Scenario, refused: EngineRefusalError) -> tuple[Accepted, ...]:
    """Every single change that lets the deployment start, that of the refused field first; empty when none does.

    Example:
        >>> from kvcore.scenario.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-235B-A22B-FP8", "accelerator": "H200-141GB", "engine_version": "0.11.0",
        ...          "tensor_parallel_size": 8, "max_model_len": 4096}
        >>> scenario = scenario_from_request(asked)
        >>> try:
        ...     _ = plan(scenario)
        ... except EngineRefusalError as refused:
        ...     [(one.field, one.value) for one in refusal_fixes(scenario, refused)]
        [('tensor_parallel_size', 4), ('enable_expert_parallel', True), ('engine_version', '0.29.0')]
    """
    found = [
        accepted
        for field, changed in _accepted_changes(scenario).items()
        if (accepted := _first_accepted(field, changed)) is not None
    ]
    return tuple(sorted(found, key=lambda one: one.field != refused.field))


_Changes: TypeAlias = Iterable[tuple[Value, Scenario]]


def _first_accepted(field: str, changes: _Changes) -> Accepted | None:
    for value, changed in changes:
        try:
            candidate = plan(changed)
        except KvPlannerError:
            continue
        if candidate.verdict in FIXED:
            return Accepted(field=field, value=value, plan=candidate)
    return None


def _accepted_changes(scenario: Scenario) -> dict[str, _Changes]:
    """The settings that can make the engine take it, with their values in the order in which they are tried."""
    return {
        "tensor_parallel_size": _sizes(scenario),
        "enable_expert_parallel": _whole_experts(scenario),
        "engine_version": _releases(scenario),
        "kv_cache_dtype": _left_out(scenario, "kv_cache_dtype", AUTO),
        "quantization": _left_out(scenario, "quantization", None),
        "block_size": _left_out(scenario, "block_size", None),
        "max_num_batched_tokens": _left_out(scenario, "max_num_batched_tokens", None),
        "dtype": _left_out(scenario, "dtype", AUTO),
        "mamba_cache_mode": _left_out(scenario, "mamba_cache_mode", None),
        "mamba_block_size": _left_out(scenario, "mamba_block_size", None),
        "mamba_ssm_cache_dtype": _left_out(scenario, "mamba_ssm_cache_dtype", AUTO),
        "accelerator": _cards(scenario),
    }


def _sizes(scenario: Scenario) -> _Changes:
    parallel = scenario.parallel
    now = parallel.tensor_parallel_size
    others = (size for size in SIZES if size != now)
    for size in sorted(others, key=lambda size: (max(size, now) / min(size, now), size > now)):
        wider = replace(parallel, tensor_parallel_size=size)
        yield size, carried_over(scenario, replace(scenario, parallel=wider))


def _whole_experts(scenario: Scenario) -> _Changes:
    if not scenario.parallel.enable_expert_parallel:
        whole = replace(scenario.parallel, enable_expert_parallel=True)
        yield True, carried_over(scenario, replace(scenario, parallel=whole))


def _releases(scenario: Scenario) -> _Changes:
    """The nearest release that does, later ones before earlier ones; none for a plug-in, which runs on few."""
    if find_engine(scenario.engine).releases or scenario.engine_version is None:
        return
    now = find_release(scenario.engine, scenario.engine_version).version
    known = vllm_releases()
    for release in (
        *(each for each in known if each > now),
        *(each for each in reversed(known) if each < now),
    ):
        yield str(release), replace(scenario, engine_version=str(release))


def _left_out(scenario: Scenario, field: str, default: Value) -> Iterator[tuple[Value, Scenario]]:
    if getattr(scenario, field) != default:
        yield default, replace(scenario, **{field: default})  # type: ignore[arg-type]


def _cards(scenario: Scenario) -> _Changes:
    """Cards of the same vendor with as much memory, the smallest first."""
    now = scenario.accelerator
    if now is None:
        return
    others = (
        card
        for card in catalogue.load_accelerators()
        if card.vendor is now.vendor
        and card.id != now.id
        and not card.is_integrated
        and card.memory_gib >= AS_MUCH * now.memory_gib
    )
    for card in sorted(others, key=lambda card: (card.memory_gib, card.id)):
        yield card.id, carried_over(scenario, replace(scenario, accelerator=card))
