"""Why a start may have taken more or less than predicted. Each cause is a coded notice: words in `kvcore.errors`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kvcore import catalogue
from kvcore.errors import CatalogueError, Notice
from kvcore.evidence.log.reader import StartupLog, release_of
from kvcore.evidence.recognized import request_from
from kvcore.memory.activations import restart_gain_bytes
from kvcore.planning import Plan
from kvcore.scenario import value_of

OTHER_PROCESS_GIB: Final = 0.3
"""A CUDA context of another process takes at least that."""
DISPLAY_GIB: Final = (0.1, 2.0)
"""What a desktop takes of the card that draws it."""
DRIVER_GIB: Final = 0.02
"""Totals of one board under two drivers differ by more than that."""
_DESKTOP_CARD: Final = re.compile(r"GeForce|RTX|Quadro|TITAN|Radeon", re.IGNORECASE)
_PATCHED: Final = re.compile(r"dev|rc|\+|post|[a-f0-9]{7,}", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Measured less predicted, of one part."""

    gib: float
    predicted_gib: float
    is_inside: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Causes:
    """Likely causes, the likeliest first."""

    parts: Mapping[str, tuple[Notice, ...]]
    notices: tuple[Notice, ...]
    """Of the comparison as a whole."""


def likely_causes(log: StartupLog, planned: Plan, differences: Mapping[str, Difference]) -> Causes:
    """Causes for every part outside its interval, derived from what else the log says."""
    parts: dict[str, tuple[Notice, ...]] = {}
    for name, difference in differences.items():
        if difference.is_inside:
            continue
        finder = _FINDERS.get(name)
        found = list(finder(log, planned, difference)) if finder is not None else []
        if name == "available_kv":
            found += _consequences(differences, graphs_in_budget=log.charges_graph_estimate)
        if is_patched(log.version):
            found.append(Notice(code="cause-patched-build", params={"version": log.version or ""}))
        parts[name] = tuple(found) or (Notice(code="cause-unknown"),)
    return Causes(parts=parts, notices=tuple(_doubts(log, planned)))


def is_patched(version: str | None) -> bool:
    """Whether a version is not a release.

    Example:
        >>> is_patched("0.11.2.dev278+g55c6a5c"), is_patched("0.19.0"), is_patched(None)
        (True, False, False)
    """
    return version is not None and _PATCHED.search(version) is not None


def differing_flags(log: StartupLog, planned: Plan) -> tuple[str, ...]:
    """Flags that the log shows and the plan has otherwise, by their contract names."""
    scenario, resolved = planned.scenario, planned.resolved
    found = []
    for name, logged in request_from(log).flags.values.items():
        if logged == -1:
            continue
        set_here = value_of(scenario, name)
        here = getattr(resolved, name, None) if set_here in (None, "auto") else set_here
        if here is not None and "auto" not in (logged, here) and logged != here:
            found.append(name)
    return tuple(found)


def _system(log: StartupLog, planned: Plan, difference: Difference) -> Iterator[Notice]:
    low, high = DISPLAY_GIB
    card = f"{log.card_name or ''} {planned.accelerator.name}"
    if low <= difference.gib <= high and _DESKTOP_CARD.search(card):
        yield Notice(code="cause-display")
    if difference.gib >= OTHER_PROCESS_GIB:
        yield Notice(code="cause-other-process")
    if difference.gib < 0 or difference.gib < OTHER_PROCESS_GIB:
        yield Notice(code="cause-driver-context")


def _framework(log: StartupLog, planned: Plan, difference: Difference) -> Iterator[Notice]:
    if planned.scenario.parallel.ranks_per_replica > 1:
        yield Notice(code="cause-communication")
    if difference.gib >= OTHER_PROCESS_GIB:
        yield Notice(code="cause-process-while-profiling")


def _weights(log: StartupLog, planned: Plan, difference: Difference) -> Iterator[Notice]:
    scenario = planned.scenario
    if scenario.speculative_config is not None or scenario.enable_lora:
        yield Notice(code="cause-extra-weights")
    if log.resolved_quantization and not planned.quantization.method:
        yield Notice(code="cause-quantized", params={"method": log.resolved_quantization})
    yield Notice(code="cause-other-weights")


def _activations(log: StartupLog, planned: Plan, difference: Difference) -> Iterator[Notice]:
    if planned.architecture.is_multimodal:
        yield Notice(code="cause-encoder")
    if log.flags.max_num_batched_tokens is None and log.figures.batched_tokens is None:
        yield Notice(code="cause-batched-tokens")
    if log.flags.enforce_eager and not planned.resolved.enforce_eager:
        yield Notice(code="cause-eager")
    memory = planned.memory
    if difference.gib < 0 and memory is not None and restart_gain_bytes(memory.activations):
        yield Notice(code="cause-compiled-before")
    yield Notice(code="cause-kernels")


def _graphs(log: StartupLog, planned: Plan, difference: Difference) -> Iterator[Notice]:
    if log.flags.enforce_eager and not planned.resolved.enforce_eager:
        yield Notice(code="cause-eager")
    elif log.graphs is None:
        yield Notice(code="cause-capture-sizes")
    else:
        yield Notice(code="cause-graph-pool" if log.charges_graph_estimate else "cause-kernels")


def _available(log: StartupLog, planned: Plan, difference: Difference) -> Iterator[Notice]:
    if any(failure.code == "start-profiling-disturbed" for failure in log.failures):
        yield Notice(code="cause-process-while-profiling")


_FINDERS: Final = {
    "system": _system,
    "framework": _framework,
    "weights": _weights,
    "activations": _activations,
    "cuda_graphs": _graphs,
    "available_kv": _available,
}


def _consequences(differences: Mapping[str, Difference], *, graphs_in_budget: bool) -> list[Notice]:
    """Parts whose difference is a good share of what the KV memory lacks or has in addition.

    Graphs are one of them only in the releases that take them off the budget: in others they are captured later.
    """
    kv = differences["available_kv"].gib
    same = [
        name
        for name in ("weights", "activations", "framework", *(("cuda_graphs",) if graphs_in_budget else ()))
        if name in differences
        and differences[name].gib * kv < 0
        and abs(differences[name].gib) >= abs(kv) / 4
    ]
    return [Notice(code=f"cause-follows-{name}") for name in same]


def _doubts(log: StartupLog, planned: Plan) -> Iterator[Notice]:
    logged, here = release_of(log.version), release_of(planned.resolved.engine_version)
    if logged is not None and here is not None and logged != here:
        params = {"logged": log.version or "", "planned": planned.resolved.engine_version}
        yield Notice(code="cause-other-version", params=params)
    if flags := differing_flags(log, planned):
        yield Notice(code="cause-other-flags", params={"fields": ", ".join(flags)})
    total = log.worst_rank.total_gib
    if total is None and log.card_name is None:
        yield Notice(code="cause-unnamed-card", params={"name": planned.accelerator.name})
    known = _catalogue_total_gib(planned)
    if total is not None and known is not None and abs(total.value - known) > DRIVER_GIB:
        params = {"logged": f"{total.value:.2f}", "known": f"{known:.2f}"}
        yield Notice(code="cause-driver", params=params)


def _catalogue_total_gib(planned: Plan) -> float | None:
    try:
        return catalogue.find_accelerator(planned.accelerator.id).memory_gib
    except CatalogueError:
        return None
