"""The scenario that a start-up log is about: from the log where it says so, from the current one where it does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from kvcore import catalogue
from kvcore.catalogue.accelerators import Accelerator, Vendor
from kvcore.catalogue.models import ModelEntry
from kvcore.engine.protocol import Engine, written_gb
from kvcore.engine.rooms import find_engine
from kvcore.engine.vllm.versions import first_without_v0
from kvcore.errors import CatalogueError, KvPlannerError, ScenarioError
from kvcore.evidence.log.arguments import LogFlags
from kvcore.evidence.log.figures import Figures
from kvcore.evidence.log.reader import StartupLog, release_of, value_of
from kvcore.planning import plan
from kvcore.quantity import Grade
from kvcore.scenario import PARALLEL, Measured, Scenario, SpeculativeConfig
from kvcore.scenario.request import scenario_from_request

SAME_MEMORY_GIB: Final = 0.006
"""Two totals that differ by less are one: logs print two decimals."""
SAME_CARD_SHARE: Final = 0.01
"""A total so near the current card's is that card with another driver."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogScenario:
    """What to plan so that the plan can be compared with the log. Field names are the contract's."""

    model: str | None
    engine: str
    engine_version: str | None
    accelerator_memory_gib: float | None
    accelerator_name: str | None
    accelerator_vendor: str | None
    flags: LogFlags
    env: Mapping[str, str]
    measured: Measured

    def as_request(self) -> dict[str, object]:
        """The contract's JSON request; what the log does not show is left out.

        Example:
            >>> LogScenario(model="Qwen/Qwen3-8B", engine="vllm", engine_version="0.19.0",
            ...             accelerator_memory_gib=79.19, accelerator_name=None, accelerator_vendor=None,
            ...             flags=LogFlags(max_model_len=8192), env={}, measured=Measured()).as_request()
            {'model': 'Qwen/Qwen3-8B', 'engine': 'vllm', 'engine_version': '0.19.0', \
'accelerator': {'memory_gib': 79.19}, 'max_model_len': 8192}
        """
        accelerator = {
            "memory_gib": self.accelerator_memory_gib,
            "vendor": self.accelerator_vendor,
            "name": self.accelerator_name,
        }
        has_card = self.accelerator_memory_gib or self.accelerator_name
        request = {
            "model": self.model,
            "engine": self.engine,
            "engine_version": self.engine_version,
            "accelerator": _known(accelerator) if has_card else None,
            **{name: _plain(value) for name, value in self.flags.values.items()},
            "env": dict(self.env) or None,
            "measured": dict(self.measured.values()) or None,
        }
        return _known(request)


def _plain(value: object) -> object:
    """A flag's value as JSON has it."""
    if isinstance(value, SpeculativeConfig):
        return _known({entry.name: getattr(value, entry.name) for entry in fields(value)})
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _known(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def request_from(log: StartupLog, measured: Measured | None = None) -> LogScenario:
    """What to plan so that the plan can be compared with the log.

    Flags that the log shows only as resolved (the context length, the tokens of a step) are taken over as given.
    `measured` replaces predicted parts; without it everything is predicted.

    Example:
        >>> from kvcore.evidence.log.reader import read_log
        >>> log = read_log("non-default args: {'model': 'Qwen/Qwen3-8B', 'max_model_len': 8192}")
        >>> request_from(log).as_request()
        {'model': 'Qwen/Qwen3-8B', 'engine': 'vllm', 'max_model_len': 8192}
    """
    engine, release = find_engine(log.engine), release_of(log.version)
    env = dict(log.env)
    if log.is_v0 and release is not None and release < first_without_v0().release[:2]:
        env["VLLM_USE_V1"] = "0"
    total = value_of(log.worst_rank.total_gib)
    if total is None and log.failure is not None:
        total = log.failure.number("total_gib")
    if total is None and engine.memory_variables is not None:
        total = written_gb(env.get(engine.memory_variables.total, ""))
    return LogScenario(
        model=log.model,
        engine=log.engine,
        engine_version=log.version,
        accelerator_memory_gib=total,
        accelerator_name=log.card_name,
        accelerator_vendor=_vendor(engine, log.card_name or ""),
        flags=_completed(log.flags, log.figures),
        env=env,
        measured=measured or Measured(),
    )


def _vendor(engine: Engine, card_name: str) -> str | None:
    if len(engine.vendors) == 1:
        return engine.vendors[0]
    if card_name.startswith("Ascend"):
        return Vendor.HUAWEI
    return Vendor.NVIDIA if "NVIDIA" in card_name else None


def _completed(flags: LogFlags, figures: Figures) -> LogFlags:
    """Flags, with what only the engine's figures tell."""

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
