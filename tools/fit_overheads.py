"""Refit the overhead constants of kvcore/memory/*.toml on published starts, and say how far they carry.

    python tools/fit_overheads.py [benchmarks/data/starts.jsonl] [--rows] [--constant PART]

Each line of the input is one start: `request` in the contract's fields, `config` naming a line of
start_configs.jsonl beside it, `measured` in GiB, `checks` naming the parts that may fairly be compared, `group` the
publication that it comes from. Each part is predicted with the constants as they are. Every fitted constant enters
its part linearly, so that a residual divided by the constant's coefficient is what that start would add to it; the
proposal adds the median over publications of their own medians. Beside it stands the leave-one-publication-out
residual: what the other publications' constant leaves unexplained, the half-width that holds 80 % of it, and what share
of the prediction that is.
Nothing is written: constants are changed by hand, with their source.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kvcore import catalogue
from kvcore.engine.defaults import resolve
from kvcore.memory.activations import sampler_row
from kvcore.memory.budget import rank_memory
from kvcore.memory.framework import find_overhead_of
from kvcore.memory.graphs import driver_factor, estimated_graphs, graph_count, graph_kind
from kvcore.memory.parts import RankMemory
from kvcore.memory.setting import Setting, setting_of
from kvcore.memory.weights import WeightBytes
from kvcore.model.families import read_architecture
from kvcore.plan import ASSUMED_ACCELERATOR
from kvcore.request import scenario_from_request
from kvcore.units import GIB, gib

STARTS: Final = Path(__file__).parent.parent / "benchmarks" / "data" / "starts.jsonl"
NO_WEIGHTS: Final = WeightBytes(parameters=0, buffers=0, loading=0)
COVERED: Final = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class Residual:
    """What one start says about one constant."""

    part: str
    constant: str
    group: str
    label: str
    predicted_gib: float
    measured_gib: float
    coefficient: float
    """GiB that the part grows by when the constant grows by one unit."""

    @property
    def gib(self) -> float:
        """measured − predicted."""
        return self.measured_gib - self.predicted_gib

    @property
    def step(self) -> float:
        """What this start would add to the constant."""
        return self.gib / self.coefficient


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """A start as the project sees it."""

    setting: Setting
    memory: RankMemory


def main() -> None:
    """Read starts, print one line for each constant, and how well intervals cover."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("starts", nargs="?", type=Path, default=STARTS)
    parser.add_argument("--rows", action="store_true", help="also print every residual")
    parser.add_argument("--constant", default="", help="only constants whose name contains this")
    arguments = parser.parse_args()
    starts = list(read_starts(arguments.starts))
    residuals = [item for start in starts for item in residuals_of(start)]
    by_constant: dict[str, list[Residual]] = defaultdict(list)
    for item in residuals:
        if arguments.constant in item.constant:
            by_constant[item.constant].append(item)
    print(f"{'constant':72s} {'n':>3s} {'from':>4s} {'add':>12s} {'left out, 80 %':>15s}")
    for constant, items in sorted(by_constant.items()):
        groups = {item.group for item in items}
        held_out = [abs(value) for value in left_out(items)]
        width = f"{quantile(held_out, COVERED):.3f} GiB"
        if all(item.predicted_gib > 0 for item in items):
            shares = [value / item.predicted_gib for value, item in zip(held_out, items, strict=True)]
            width += f" {quantile(shares, COVERED):4.0%}"
        print(
            f"{constant[:72]:72s} {len(items):3d} {len(groups):4d} {balanced(items):+12.4g} "
            f"{width if len(groups) > 1 else 'one source':>15s}"
        )
        if arguments.rows:
            for item in items:
                print(
                    f"    {item.label[:60]:60s} {item.predicted_gib:7.2f} {item.measured_gib:7.2f} {item.gib:+6.2f}"
                )
    covered = [is_covered(start) for start in starts if "kv_gib" in start["checks"]]
    print(
        f"\nintervals hold {sum(covered)} of {len(covered)} measured KV figures ({sum(covered) / len(covered):.0%})"
    )


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


def predict(start: dict[str, Any]) -> Predicted:
    """The worst rank of a start, with its measured weights."""
    scenario = scenario_from_request(start["request"])
    scenario = replace(
        scenario, measured=replace(scenario.measured, weights_gib=start["measured"].get("weights_gib"))
    )
    architecture = read_architecture(scenario.config)
    accelerator = scenario.accelerator or catalogue.find_accelerator(ASSUMED_ACCELERATOR)
    resolved = resolve(scenario, architecture, accelerator)
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


def residuals_of(start: dict[str, Any]) -> Iterator[Residual]:
    """What a start says about the constants of its activations, framework and graphs.

    A start that prints no parts says something of their sum: budget − weights − KV cache, booked as framework.
    """
    seen = predict(start)
    setting, memory, measured = seen.setting, seen.memory, start["measured"]
    resolved = setting.resolved
    base = {
        "group": start["group"],
        "label": f"{start['config']} {resolved.version} {setting.accelerator.name}",
    }
    sampler = sampler_row(setting.runner, resolved.version)
    rows = min(resolved.max_num_seqs, resolved.max_num_batched_tokens)
    if "activations" in start["checks"]:
        yield Residual(
            part="activations",
            constant=f"activations bytes_per_logit {sampler.runner} since {sampler.since}",
            predicted_gib=gib(memory.activations.value),
            measured_gib=measured["peak_activation_gib"],
            coefficient=gib(rows * setting.architecture.vocab_size),
            **base,
        )
    framework = find_overhead_of("non_torch", setting)
    name = f"framework gib: {framework.source}"
    if "framework" in start["checks"]:
        yield Residual(
            part="framework",
            constant=name,
            predicted_gib=gib(memory.framework.value),
            measured_gib=measured["non_torch_gib"],
            coefficient=1.0,
            **base,
        )
    elif "kv_gib" in start["checks"] and "weights_gib" in measured:
        yield Residual(
            part="sum",
            constant=f"{name} (from the sum of overheads)",
            predicted_gib=-gib(memory.available_kv.value),
            measured_gib=-measured["available_kv_gib"],
            coefficient=1.0,
            **base,
        )
    if "graphs" in start["checks"] and measured["cuda_graph_gib"] > 0:
        yield Residual(
            part="graphs",
            constant=f"graphs bytes_per_graph_and_layer {graph_kind(setting)}",
            predicted_gib=gib(memory.cuda_graphs.value),
            measured_gib=measured["cuda_graph_gib"],
            coefficient=gib(max(1, graph_count(setting) * setting.layers) * driver_factor(setting)),
            **base,
        )
    if "cuda_graph_estimate_gib" in measured:
        estimated = gib(estimated_graphs(setting).bytes_of(setting.layers))
        yield Residual(
            part="estimate",
            constant=f"graphs estimate, as a share of the prediction: {setting.runner}",
            predicted_gib=estimated,
            measured_gib=measured["cuda_graph_estimate_gib"],
            coefficient=estimated,
            **base,
        )


def balanced(items: Iterable[Residual]) -> float:
    """The median over publications of the median step of each: one campaign counts once."""
    steps: dict[str, list[float]] = defaultdict(list)
    for item in items:
        steps[item.group].append(item.step)
    return statistics.median(statistics.median(values) for values in steps.values())


def left_out(items: list[Residual]) -> Iterator[float]:
    """Residuals in GiB when a publication's own starts have no say in the constant."""
    for item in items:
        others = [other for other in items if other.group != item.group]
        yield item.gib - (balanced(others) * item.coefficient if others else 0.0)


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def is_covered(start: dict[str, Any]) -> bool:
    """Whether the interval of the KV memory, given the weights, holds what the engine printed."""
    if "weights_gib" not in start["measured"]:
        return True
    interval = predict(start).memory.available_kv.interval
    return interval is not None and interval[0] <= start["measured"]["available_kv_gib"] * GIB <= interval[1]


if __name__ == "__main__":
    main()
