"""The scenario of a start-up log: read from the log, and borrowed from the current scenario where it is silent."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from kvcore import catalogue
from kvcore.base.errors import CatalogueError, KvPlannerError, Notice, ScenarioError, notice
from kvcore.base.quantity import Grade
from kvcore.catalogue.accelerators import Accelerator
from kvcore.catalogue.models import ModelEntry
from kvcore.catalogue.names import recognized
from kvcore.engine.overheads import written_gb
from kvcore.engine.switches import V1Engine
from kvcore.engines.registry import card_of, engine_of, find_engine
from kvcore.evidence.log.arguments import LogFlags
from kvcore.evidence.log.reader import StartupLog, measured_from, release_of, value_of
from kvcore.flags import fields_of
from kvcore.planning import plan
from kvcore.scenario import PARALLEL, Measured, Scenario, SpeculativeConfig, nested
from kvcore.scenario import value_of as field_value
from kvcore.wire.request import scenario_from_request, with_surroundings

SAME_MEMORY_GIB: Final = 0.006
"""Largest difference of two equal totals: logs print two decimals."""
TAKEN: Final = "surroundings.taken_gib"
SAME_CARD_SHARE: Final = 0.01
"""Largest share by which a total differs from the same card's under another driver."""
_IDENTITY: Final = ("model", "config", "checkpoint", "accelerator", "engine", "engine_version")
"""Fields that a log tells even without a line of arguments."""


def request_from(log: StartupLog) -> dict[str, Any]:
    """The contract's JSON request of a log's start, to compare its plan with the log.

    Fields that the log does not show are left out; nothing is given as measured.

    Example:
        >>> from kvcore.evidence.log.reader import read_log
        >>> log = read_log("non-default args: {'model': 'Qwen/Qwen3-8B', 'max_model_len': 8192}")
        >>> request_from(log)
        {'model': 'Qwen/Qwen3-8B', 'engine': 'vllm', 'max_model_len': 8192}
    """
    env, release = dict(log.env), release_of(log.version)
    engine = find_engine(log.engine)
    without_v0 = next(
        host for _, host in engine.releases() if engine.switches(host).v1_engine is V1Engine.ONLY
    )
    if log.is_v0 and release is not None and release < without_v0.release[:2]:
        env["VLLM_USE_V1"] = "0"
    settled = {said.field: said.cases[0] for said in log.surroundings if len(said.cases) == 1}
    around = {
        name.partition(".")[2]: case for name, case in settled.items() if name.startswith("surroundings.")
    }
    env |= {name.partition(".")[2]: case for name, case in settled.items() if name.startswith("env.")}
    card = {"memory_gib": logged_memory_gib(log), "vendor": log.vendor, "name": log.card_name}
    request = {
        "model": log.model,
        "engine": log.engine,
        "engine_version": log.version,
        "accelerator": _known(card) if card["memory_gib"] or card["name"] else None,
        **{name: _plain(value) for name, value in logged_flags(log).values.items()},
        "env": env or None,
        "surroundings": around or None,
    }
    return _known(request)


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    """A flag's value as JSON has it."""
    if isinstance(value, SpeculativeConfig):
        return _known(asdict(value))
    if isinstance(value, Mapping):
        return nested(value)
    return list(value) if isinstance(value, tuple) else value


def logged_memory_gib(log: StartupLog) -> float | None:
    """The memory of the card in GiB: from the start's lines, its failure, or the variables that declare it."""
    total = value_of(log.worst_rank.total_gib)
    if total is None and log.failure is not None:
        total = log.failure.number("total_gib")
    variables = find_engine(log.engine).facts.memory_variables
    if total is None and variables is not None:
        total = written_gb(log.env.get(variables.total, ""))
    return total


def logged_flags(log: StartupLog) -> LogFlags:
    """The flags, with values that the log shows only as resolved, such as the context length."""
    flags, figures = log.flags, log.figures

    def whole(name: str) -> int | None:
        reading = figures.known.get(name)
        return None if reading is None else int(reading.value)

    found = {
        "max_model_len": flags.max_model_len or whole("model_len") or whole("concurrency_for_len"),
        "gpu_memory_utilization": flags.gpu_memory_utilization or value_of(figures.utilization) or None,
        "max_num_batched_tokens": flags.max_num_batched_tokens or whole("batched_tokens"),
        "decode_context_parallel_size": flags.decode_context_parallel_size or whole("context_parallel"),
    }
    return LogFlags(**{**flags.values, **found})


class Recognized(Struct, frozen=True, kw_only=True):
    """A log's scenario, and the parts of it that were borrowed from the current scenario."""

    scenario: Scenario
    borrowed: tuple[str, ...] = ()
    """Some of `model`, `accelerator`, `engine`, `engine_version`, `flags` and `surroundings`."""
    unknown_model: str = ""
    """The model in the log, where the catalogue does not have it."""


def scenario_from_log(log: StartupLog, current: Scenario | None = None) -> Recognized:
    """The scenario to plan for a comparison with the log; nothing in it is measured.

    Without any line of engine arguments the flags are those of `current`. A model given by a path is looked up by its
    last part. Raises ScenarioError `missing-field` or CatalogueError `unknown-model` when nothing names the model, and
    what `scenario_from_request` raises for flags that cannot be.

    Example:
        >>> from kvcore.evidence.log.reader import read_log
        >>> log = read_log("non-default args: {'model': '/models/Qwen3-8B', 'max_model_len': 8192}")
        >>> found = scenario_from_log(log)
        >>> found.scenario.model, found.scenario.max_model_len, found.borrowed
        ('Qwen/Qwen3-8B', 8192, ())
    """
    entry = find_logged_model(log.model)
    if entry is None and current is None:
        if log.model is None:
            raise ScenarioError("missing-field", field="model")
        catalogue.find_model(log.model)
    borrowed = []
    request = request_from(log)
    if entry is not None:
        request |= {"model": entry.id}
    elif current is not None:
        request |= {"model": current.model, "config": dict(current.config.raw)}
    scenario = scenario_from_request(request)
    if current is None:
        return Recognized(scenario=with_logged_graphs(with_logged_surroundings(scenario, log), log))
    if entry is None:
        scenario = replace(
            scenario, model=current.model, config=current.config, checkpoint=current.checkpoint
        )
        borrowed.append("model")
    card = _card(log, scenario.accelerator, current.accelerator)
    engine = engine_of(scenario)
    if card is not None and engine.facts.releases and not engine.runs_on(card):
        # Its own lines tell a plug-in: the current card is not the log's.
        card = card_of(scenario)
    elif scenario.accelerator is None and card is not None:
        borrowed.append("accelerator")
    scenario = replace(scenario, accelerator=card)
    lent = card if card is current.accelerator else None
    if lent is not None and log.version is None and not engine_of(scenario).runs_on(lent):
        scenario = replace(scenario, engine=current.engine)
        borrowed.append("engine")
    if log.version is None and current.engine == scenario.engine:
        scenario = replace(scenario, engine_version=current.engine_version)
        borrowed.append("engine_version")
    if not log.flag_lines:
        # The current flags, where the log does not show them.
        known = logged_flags(log).values.keys()
        parallel = {name: getattr(scenario.parallel, name) for name in known & PARALLEL}
        changes = {name: getattr(scenario, name) for name in (*_IDENTITY, *(known - PARALLEL))}
        changes["parallel"] = replace(current.parallel, **parallel)
        env = {**current.env, **scenario.env}
        scenario = replace(current, env=env, measured=Measured(), **changes)
        borrowed.append("flags")
    scenario = with_logged_surroundings(replace(scenario, surroundings=current.surroundings), log)
    said = {
        flag.name
        for flag in fields_of("surroundings").values()
        if field_value(scenario, flag.name) is not None
    }
    shown = {one.field for one in log.surroundings} | ({TAKEN} if log.taken_gib is not None else set())
    if said - shown:
        borrowed.append("surroundings")
    return Recognized(
        scenario=with_logged_graphs(scenario, log),
        borrowed=tuple(borrowed),
        unknown_model=log.model if entry is None and log.model not in (None, scenario.model) else "",
    )


def find_logged_model(name: str | None) -> ModelEntry | None:
    """The catalogue's model that a log names: by its id, or by a path or name that means one model alone."""
    if name is None:
        return None
    try:
        named = recognized(name, any_owner=True)
    except CatalogueError:
        return None
    return None if named is None else catalogue.bundled_model(named.model)


def _card(log: StartupLog, read: Accelerator | None, current: Accelerator | None) -> Accelerator | None:
    """The card of the log; the current card where the log gives only the same total, or nothing."""
    total = logged_memory_gib(log)
    if current is None or (log.card_name is not None and read is not None):
        return read
    if total is None or find_engine(log.engine).facts.memory_variables is not None:
        return read or current
    if abs(total - current.memory_gib) <= SAME_MEMORY_GIB:
        return current
    if abs(total - current.memory_gib) <= SAME_CARD_SHARE * current.memory_gib:
        return dataclasses.replace(current, memory_gib=total, memory_grade=Grade.MEASURED, source="")
    return read


def with_logged_graphs(scenario: Scenario, log: StartupLog) -> Scenario:
    """`scenario` with the graph sizes and mode that the log's engine resolved, where its plan has others.

    Flags that lead to the same graphs stay; so does a scenario that could not be planned with the log's graphs.
    """
    graphs = log.graphs
    if graphs is None or scenario.enforce_eager:
        return scenario
    try:
        resolved = plan(scenario).resolved
        changed = scenario
        if graphs.mode not in (None, resolved.cudagraph_mode):
            changed = replace(changed, cudagraph_mode=graphs.mode)
        if graphs.sizes != resolved.cudagraph_capture_sizes:
            changed = replace(changed, max_cudagraph_capture_size=None, cudagraph_capture_sizes=graphs.sizes)
        plan(changed)
    except KvPlannerError:
        return scenario
    return changed


def with_logged_surroundings(scenario: Scenario, log: StartupLog) -> Scenario:
    """`scenario` with the surroundings that the log shows, where they are unknown or differ.

    Surroundings that the log leaves open stay unknown.
    """
    around: dict[str, str | float | None] = {}
    env = dict(scenario.env)
    for said in log.surroundings:
        head, _, key = said.field.partition(".")
        now, case = field_value(scenario, said.field), said.settled(scenario.accelerator)
        if now is not None and said.allows(now):
            continue
        if head == "surroundings":
            around[key] = case
        elif case is not None:
            env[key] = case
    if _takes_more(scenario, log):
        around["taken_gib"] = None
    if log.taken_gib is not None:
        around["taken_gib"] = log.taken_gib
    return with_surroundings(replace(scenario, env=env), around)


def contradictions(scenario: Scenario, log: StartupLog) -> tuple[Notice, ...]:
    """Chosen surroundings that the log contradicts; `with_logged_surroundings` takes the log's.

    Example:
        >>> from kvcore.evidence.log.reader import read_log
        >>> log = read_log("vLLM API server version 0.19.0\\nUsing 'pin_memory=False' as WSL is detected")
        >>> chosen = scenario_from_request({"model": "Qwen/Qwen3-8B", "surroundings": {"host": "linux"}})
        >>> contradictions(chosen, log)[0].params
        {'logged': 'wsl', 'line': '2', 'chosen': 'linux'}
    """
    chosen = ((said, field_value(scenario, said.field)) for said in log.surroundings)
    found = [
        notice(
            "log-contradicts-surrounding",
            said.field,
            logged=", ".join(said.cases),
            line=said.line_number,
            chosen=now,
        )
        for said, now in chosen
        if now is not None and not said.allows(now)
    ]
    free, taken = log.worst_rank.free_gib, scenario.surroundings.taken_gib
    if free is not None and _takes_more(scenario, log):
        logged = f"≤ {measured_from(log).system_gib:g}"
        found.append(
            notice(
                "log-contradicts-surrounding",
                TAKEN,
                logged=logged,
                line=free.line_number,
                chosen=f"{taken:g}",
            )
        )
    return tuple(found)


def _takes_more(scenario: Scenario, log: StartupLog) -> bool:
    """Whether the scenario says that more memory was in use before the start than the log shows missing."""
    taken, missing = scenario.surroundings.taken_gib, measured_from(log).system_gib
    return taken is not None and missing is not None and taken > missing + SAME_MEMORY_GIB
