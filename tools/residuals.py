"""Fitted constants: which ones a start rests on, what published starts say of them, and what is left without one.

Every fitted constant enters its part linearly, so that a residual divided by the constant's coefficient is what that
start would add to it. A refit adds the median over publications of their own medians; leaving a publication out of it
moves a prediction by that step times the start's own coefficient.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from kvcore.base.quantity import Grade
from kvcore.base.units import gib
from kvcore.engine.protocol import Setting
from kvcore.engine.rank_memory import RankMemory
from kvcore.engine.setting import setting_of
from kvcore.engines.registry import card_of, engine_of, view_of
from kvcore.memory.activations import ACTIVATIONS, sampler_rows
from kvcore.memory.budget import rank_memory
from kvcore.memory.framework import fitted_tables, overhead_rows
from kvcore.memory.graphs import (
    GRAPHS,
    captured_graphs,
    counts_estimate,
    driver_factors,
    estimated_graphs,
    graph_count,
    graph_rate,
)
from kvcore.memory.weights import WeightBytes
from kvcore.model.families import read_architecture
from kvcore.wire.request import scenario_from_request

STARTS: Final = Path(__file__).resolve().parents[1] / "benchmarks" / "data" / "starts.jsonl"
NO_WEIGHTS: Final = WeightBytes(parameters=0, buffers=0, loading=0)
FITTED: Final = "fit:"
"""Prefix of the source of a fitted constant."""
PARTS: Final = ("activations", "framework", "cuda_graphs", "available_kv")


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """A start as the project sees it."""

    setting: Setting
    memory: RankMemory


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """A fitted constant that a part rests on."""

    constant: str
    coefficient: float
    """GiB that the part grows by when the constant grows by one unit."""
    value: float = math.inf
    """The constant, where a refit may not take more from it than that: nothing takes less than no memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Residual:
    """The residual of one start, assigned to one constant."""

    part: str
    constant: str
    group: str
    label: str
    predicted_gib: float
    measured_gib: float
    coefficient: float
    """GiB that the part grows by when the constant grows by one unit."""
    share: float = 1.0
    """Share of the residual for this constant: several constants of a part share it by the least change of all."""

    @property
    def gib(self) -> float:
        """measured − predicted."""
        return self.measured_gib - self.predicted_gib

    @property
    def step(self) -> float:
        """Change of the constant that explains this start."""
        return self.share * self.gib / self.coefficient


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """Change of one part of a start when its own publication is left out."""

    change_gib: float | None
    """None: a constant that this publication took part in rests on no other one."""


def read_starts(path: Path) -> Iterator[dict[str, Any]]:
    """The starts, each with its config."""
    configs = {}
    with path.with_name("start_configs.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            entry = json.loads(line)
            configs[entry["config"]] = entry["json"]
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            start = json.loads(line)
            start["request"]["config"] = configs[start["config"]]
            yield start


def predict(start: Mapping[str, Any]) -> Predicted:
    """The worst rank of a start, with its measured weights."""
    scenario = scenario_from_request(start["request"])
    scenario = replace(
        scenario, measured=replace(scenario.measured, weights_gib=start["measured"].get("weights_gib"))
    )
    architecture = read_architecture(scenario.config)
    accelerator = card_of(scenario)
    resolved = engine_of(scenario).resolve(scenario, architecture, view_of(accelerator))
    stages = range(scenario.parallel.pipeline_parallel_size)
    memories = [
        rank_memory(
            scenario=scenario,
            architecture=architecture,
            resolved=resolved,
            accelerator=accelerator,
            weights=NO_WEIGHTS,
            stage=stage,
        )
        for stage in stages
    ]
    worst = min(stages, key=lambda stage: memories[stage].available_kv.value)
    return Predicted(
        setting=setting_of(scenario, architecture, resolved, accelerator, worst), memory=memories[worst]
    )


def uses_of(seen: Predicted) -> dict[str, tuple[Use, ...]]:
    """The fitted constants of each part; of the KV memory, those of the parts inside its budget."""
    activations, framework = activation_uses(seen), framework_uses(seen.setting)
    inside = (*activations, *framework, *counted_uses(seen.setting))
    if seen.memory.available_kv.grade is Grade.EXACT:
        inside = ()
    return {
        "activations": activations,
        "framework": framework,
        "cuda_graphs": graph_uses(seen.setting),
        "available_kv": tuple(dataclasses.replace(use, coefficient=-use.coefficient) for use in inside),
    }


def activation_uses(seen: Predicted) -> tuple[Use, ...]:
    """The constant of the phase that makes the peak; some phases are arithmetic alone."""
    setting, tables = seen.setting, ACTIVATIONS.load()
    phases = {part.name: part.value for part in seen.memory.activations.inputs if part.name != "kept"}
    peak = max(phases, key=lambda name: phases[name])
    tokens = setting.resolved.max_num_batched_tokens
    match peak:
        case "layers":
            size = tokens * setting.architecture.hidden_size * setting.element_bytes
            return (Use(constant="activations body hidden_vectors", coefficient=gib(size)),)
        case "encoder":
            share = phases[peak] / (tables.encoder.sharded_vectors + tables.encoder.whole_vectors)
            return (Use(constant="activations encoder vectors", coefficient=gib(share)),)
        case "sampling":
            row = sampler_rows(setting)[0]
            if not row.source.startswith(FITTED):
                return ()
            rows = min(setting.resolved.max_num_seqs, tokens)
            name = f"activations bytes_per_logit {setting.runner} since {row.since}"
            return (Use(constant=name, coefficient=gib(rows * setting.architecture.vocab_size)),)
    return ()


def framework_uses(setting: Setting) -> tuple[Use, ...]:
    """The rows of the framework's tables."""
    found = overhead_rows(setting)[0]
    rows = (found[table] for table in fitted_tables(setting))
    return tuple(Use(constant=f"framework gib: {row.source}", coefficient=1.0, value=row.gib) for row in rows)


def graph_uses(setting: Setting) -> tuple[Use, ...]:
    """The rate of captured graphs."""
    count = graph_count(setting)
    if not count:
        return ()
    name = f"graphs bytes_per_graph_and_layer {graph_rate(setting).kind or setting.runner}"
    return (Use(constant=name, coefficient=gib(count * setting.layers * driver_factors(setting)[0])),)


def counted_uses(setting: Setting) -> tuple[Use, ...]:
    """The constants of the graph memory that the engine takes off the budget."""
    if not counts_estimate(setting):
        return ()
    if setting.runner != "v2":
        return graph_uses(setting)
    share = GRAPHS.load().estimate.v2_share
    rates = tuple(
        dataclasses.replace(use, coefficient=share * use.coefficient) for use in graph_uses(setting)
    )
    return (*rates, *share_uses(setting))


def share_uses(setting: Setting) -> tuple[Use, ...]:
    """The share of the graphs that the V2 runner's estimate finds."""
    captured = captured_graphs(setting)
    size = captured.count * setting.layers * captured.bytes_per_graph_and_layer
    return (Use(constant="graphs estimate v2_share", coefficient=gib(size)),) if size else ()


def residuals_of(start: Mapping[str, Any]) -> Iterator[Residual]:
    """The residuals of a start for the constants of its activations, framework and graphs.

    A start that prints no parts says something of their sum: budget − weights − KV cache, booked as framework, and as
    the share of the V2 runner's estimate where that is in it.
    """
    seen = predict(start)
    setting, memory, measured = seen.setting, seen.memory, start["measured"]
    base = {
        "group": start["group"],
        "label": f"{start['config']} {setting.resolved.version} {setting.accelerator.name}",
    }

    def of(part: str, uses: Sequence[Use], predicted_gib: float, measured_gib: float) -> Iterator[Residual]:
        for use in uses:
            yield Residual(
                part=part,
                constant=use.constant,
                coefficient=use.coefficient,
                share=use.coefficient**2 / sum(other.coefficient**2 for other in uses),
                predicted_gib=predicted_gib,
                measured_gib=measured_gib,
                **base,
            )

    checks = start["checks"]
    if "activations" in checks:
        peak = gib(memory.activations.value)
        yield from of("activations", activation_uses(seen), peak, measured["peak_activation_gib"])
    if "framework" in checks:
        framework = gib(memory.framework.value)
        yield from of("framework", framework_uses(setting), framework, measured["non_torch_gib"])
    elif "kv_gib" in checks and "weights_gib" in measured:
        uses = framework_uses(setting)
        if setting.runner == "v2" and counts_estimate(setting):
            uses += share_uses(setting)
        yield from of("sum", uses, -gib(memory.available_kv.value), -measured["available_kv_gib"])
    if "graphs" in checks and measured["cuda_graph_gib"] > 0:
        graphs = gib(memory.cuda_graphs.value)
        yield from of("graphs", graph_uses(setting), graphs, measured["cuda_graph_gib"])
    if "cuda_graph_estimate_gib" in measured:
        estimated = gib(estimated_graphs(setting).bytes_of(setting.layers))
        name = f"graphs estimate, as a share of the prediction: {setting.runner}"
        share = Use(constant=name, coefficient=estimated)
        yield from of("estimate", (share,), estimated, measured["cuda_graph_estimate_gib"])


def by_constant(residuals: Iterable[Residual]) -> dict[str, list[Residual]]:
    """Residuals of each constant."""
    found: dict[str, list[Residual]] = defaultdict(list)
    for item in residuals:
        found[item.constant].append(item)
    return dict(found)


def balanced(items: Iterable[Residual]) -> float:
    """The median over publications of the median step of each: one campaign counts once."""
    steps: dict[str, list[float]] = defaultdict(list)
    for item in items:
        steps[item.group].append(item.step)
    return statistics.median(statistics.median(values) for values in steps.values())


def leave_out(uses: Iterable[Use], group: str, residuals: Mapping[str, Sequence[Residual]]) -> LeftOut | None:
    """The change of a part when its constants are refitted without the publication `group`.

    None where that publication took part in none of them, so that the prediction is left as it is. A constant that no
    start of the record informs was fitted on others, nobody knows whose: it counts as of one source.
    """
    change, took_part = 0.0, False
    for use in uses:
        items = residuals.get(use.constant, ())
        others = [item for item in items if item.group != group]
        if not others:
            return LeftOut(change_gib=None)
        if len(others) < len(items):
            took_part = True
            change += max(balanced(others), -use.value) * use.coefficient
    return LeftOut(change_gib=change) if took_part else None
