"""The scenario that a start-up log is about: from the log where it says so, from the current one where it does not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kvcore import catalogue
from kvcore.catalogue.accelerators import Accelerator
from kvcore.catalogue.models import ModelEntry
from kvcore.engine.rooms import find_engine
from kvcore.errors import CatalogueError, KvPlannerError, ScenarioError
from kvcore.evidence.log.reader import request_from
from kvcore.evidence.log.startup import LogScenario, StartupLog
from kvcore.planning import plan
from kvcore.quantity import Grade
from kvcore.scenario import PARALLEL, Measured, Scenario
from kvcore.scenario.request import scenario_from_request

SAME_MEMORY_GIB: Final = 0.006
"""Two totals that differ by less are one: logs print two decimals."""
SAME_CARD_SHARE: Final = 0.01
"""A total so near the current card's is that card with another driver."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recognized:
    """A log's scenario, and which parts of it the log does not name and the current scenario lent."""

    scenario: Scenario
    borrowed: tuple[str, ...] = ()
    """Of `model`, `accelerator`, `engine`, `engine_version` and `flags`."""
    unknown_model: str = ""
    """A model that the log names and the catalogue does not have."""


def scenario_from_log(log: StartupLog, current: Scenario | None = None) -> Recognized:
    """What to plan so that the plan can be compared with the log; nothing in it is measured.

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
    given = request_from(log)
    entry = find_logged_model(log.model)
    if entry is None and current is None:
        if log.model is None:
            raise ScenarioError("missing-field", field="model")
        catalogue.find_model(log.model)
    borrowed = []
    request = {**given.as_request(), "model": entry.id if entry is not None else None}
    if entry is None and current is not None:
        request |= {"model": current.model, "config": dict(current.config.raw)}
    scenario = scenario_from_request({name: value for name, value in request.items() if value is not None})
    if current is None:
        return Recognized(scenario=with_logged_graphs(scenario, log))
    if entry is None:
        scenario = replace(
            scenario, model=current.model, config=current.config, checkpoint=current.checkpoint
        )
        borrowed.append("model")
    card = _card(given, scenario.accelerator, current.accelerator)
    if scenario.accelerator is None and card is not None:
        borrowed.append("accelerator")
    scenario = replace(scenario, accelerator=card)
    lent = card if card is current.accelerator else None
    if lent is not None and log.version is None and not find_engine(scenario.engine).runs_on(lent):
        scenario = replace(scenario, engine=current.engine)
        borrowed.append("engine")
    if log.version is None and current.engine == scenario.engine:
        scenario = replace(scenario, engine_version=current.engine_version)
        borrowed.append("engine_version")
    if not log.flag_lines:
        scenario = _over(current, scenario, given)
        borrowed.append("flags")
    return Recognized(
        scenario=with_logged_graphs(scenario, log),
        borrowed=tuple(borrowed),
        unknown_model=log.model if entry is None and log.model not in (None, scenario.model) else "",
    )


def find_logged_model(name: str | None) -> ModelEntry | None:
    """The catalogue's model of that id, or the only one whose name is the last part of that path."""
    if name is None:
        return None
    try:
        return catalogue.find_model(name)
    except CatalogueError:
        last = name.rstrip("/").rsplit("/", 1)[-1].lower()
        same = [known for known in catalogue.model_ids() if known.rsplit("/", 1)[-1].lower() == last]
        return catalogue.find_model(same[0]) if len(same) == 1 else None


def _card(given: LogScenario, read: Accelerator | None, current: Accelerator | None) -> Accelerator | None:
    """The card of the log; the current one when the log gives only a total that is its own, or nothing."""
    total = given.accelerator_memory_gib
    if current is None or (given.accelerator_name is not None and read is not None):
        return read
    if total is None or not find_engine(given.engine).measures_memory:
        return read or current
    if abs(total - current.memory_gib) <= SAME_MEMORY_GIB:
        return current
    if abs(total - current.memory_gib) <= SAME_CARD_SHARE * current.memory_gib:
        return replace(current, memory_gib=total, memory_grade=Grade.MEASURED, source="")
    return read


def _over(current: Scenario, read: Scenario, given: LogScenario) -> Scenario:
    """The current flags under what the log shows."""
    known = given.flags.values.keys()
    parallel = {name: getattr(read.parallel, name) for name in known & PARALLEL}
    plain = {name: getattr(read, name) for name in known - PARALLEL}
    return replace(
        current,
        model=read.model,
        config=read.config,
        checkpoint=read.checkpoint,
        accelerator=read.accelerator,
        engine=read.engine,
        engine_version=read.engine_version,
        parallel=replace(current.parallel, **parallel),
        env={**current.env, **read.env},
        measured=Measured(),
        **plain,
    )


def with_logged_graphs(scenario: Scenario, log: StartupLog) -> Scenario:
    """`scenario` with the sizes and the mode that the log's engine resolved, where its plan would capture others.

    Flags of the person that lead to the same stay as they are. What cannot be planned so stays as it is.
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
