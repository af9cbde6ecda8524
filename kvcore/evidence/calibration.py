"""Predicted against measured: a start-up log compared with a plan, part by part, and the plan corrected by the log.

Likely causes of differences are coded notices, derived from the rest of the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore import catalogue
from kvcore.base.errors import CatalogueError, KvPlannerError, Notice, notice
from kvcore.base.numbers import gib_text
from kvcore.base.parts import ACTIVATIONS, COMPARED, FRAMEWORK, WEIGHTS
from kvcore.base.units import GIB, gib
from kvcore.engines.registry import engine_of
from kvcore.evidence.log.reader import StartupLog, measured_from, release_of
from kvcore.evidence.recognized import logged_flags, logged_memory_gib
from kvcore.memory.activations import restart_gain_bytes
from kvcore.planning import Plan, plan
from kvcore.scenario import Measured, Origin, value_of

PRINTED_HALF_GIB: Final = 0.006
"""Logs print two decimals."""
SAME_SHARE: Final = 0.01
SAME_GIB: Final = 0.05
"""A part without an interval is as predicted within this difference, or within SAME_SHARE if that is more."""
LARGEST_ROUNDING_GIB: Final = 0.5
"""Most that a log's parts may miss of its budget; more means that they are not of one start."""
PRINTED_SUM_GIB: Final = 0.03
"""Most that six figures of two decimals may miss of their sum."""
LARGEST_UNREPORTED_GIB: Final = 2.0
"""Most that may be added to the predicted activations where the log does not give them."""
OTHER_PROCESS_GIB: Final = 0.3
"""Least memory of a CUDA context of another process."""
DISPLAY_GIB: Final = (0.1, 2.0)
"""Memory of a desktop on the card that draws it."""
DRIVER_GIB: Final = 0.02
"""Difference of a board's totals above which the driver is another."""
_DESKTOP_CARD: Final = re.compile(r"GeForce|RTX|Quadro|TITAN|Radeon", re.IGNORECASE)
_PATCHED: Final = re.compile(r"dev|rc|\+|post|[a-f0-9]{7,}", re.IGNORECASE)
"""Marks of a version that is no release: 0.11.2.dev278+g55c6a5c."""


SAME_TIER: Final = 1e-3
"""Share of a tier that a log's two decimals may hide."""


class PartComparison(Struct, frozen=True, kw_only=True):
    """One part of a rank, in GiB; `measured_gib` is None where the log does not give it."""

    part: str
    predicted_gib: float
    measured_gib: float | None
    interval_gib: tuple[float, float] | None
    causes: tuple[Notice, ...] = ()

    @property
    def difference_gib(self) -> float | None:
        """Measured less predicted."""
        return None if self.measured_gib is None else self.measured_gib - self.predicted_gib

    @property
    def is_inside(self) -> bool | None:
        """Whether the measured figure lies in the 80 % interval; for a part without one, whether it is the same."""
        if self.measured_gib is None:
            return None
        low, high = self.interval_gib or (self.predicted_gib, self.predicted_gib)
        slack = PRINTED_HALF_GIB
        if self.interval_gib is None:
            slack = max(SAME_GIB, SAME_SHARE * abs(self.predicted_gib))
        return low - slack <= self.measured_gib <= high + slack


class FigureComparison(Struct, frozen=True, kw_only=True):
    """A figure that the engine prints for the whole replica."""

    figure: str
    """`kv_tokens` or `max_concurrency`."""
    predicted: float | None
    measured: float
    from_measured_kv: float | None
    """The figure computed from the KV memory in the log, which tests the KV plan alone."""


class Comparison(Struct, frozen=True, kw_only=True):
    """A log against a plan."""

    parts: tuple[PartComparison, ...]
    figures: tuple[FigureComparison, ...]
    notices: tuple[Notice, ...]
    """Doubts about the comparison: another version, other flags."""
    names_card: bool = True
    """Whether the log names the card or its memory; else the plan's card is assumed."""
    graphs_in_budget: bool = False
    """Whether graphs are taken off the KV cache; else they are captured after it was sized."""

    @property
    def measured_parts(self) -> tuple[PartComparison, ...]:
        """The parts that the log gives."""
        return tuple(part for part in self.parts if part.measured_gib is not None)

    @property
    def largest(self) -> PartComparison | None:
        """The part outside its interval that is furthest from the prediction; None when all are inside.

        Parts that are taken off the KV memory come first, then the KV memory itself, then graphs captured later.
        """
        outside = [part for part in self.measured_parts if part.is_inside is False]
        later = () if self.graphs_in_budget else ("cuda_graphs",)
        causing = [part for part in outside if part.part not in ("available_kv", *later)]
        causing = causing or [part for part in outside if part.part not in later] or outside
        return max(causing, key=lambda part: abs(part.difference_gib or 0.0), default=None)


def compare(log: StartupLog, planned: Plan) -> Comparison:
    """The parts of the worst rank as predicted and as measured, with likely causes of differences."""
    measured, memory = measured_from(log), planned.memory
    parts: list[PartComparison] = []
    for one in COMPARED:
        if one is WEIGHTS:
            quantity = planned.loaded_weights
        elif memory is not None:
            quantity = getattr(memory, one.estimate)
        else:
            continue
        interval = quantity.interval
        parts.append(
            PartComparison(
                part=one.estimate,
                predicted_gib=gib(quantity.value),
                measured_gib=getattr(measured, one.field),
                interval_gib=None if interval is None else (gib(interval[0]), gib(interval[1])),
            )
        )
    return Comparison(
        parts=tuple(replace(part, causes=_causes(log, planned, part, parts)) for part in parts),
        figures=_figures(log, planned, measured),
        notices=(*_doubts(log, planned), *_tier_doubts(log, planned)),
        names_card=_names_card(log),
        graphs_in_budget=log.charges_graph_estimate,
    )


def _names_card(log: StartupLog) -> bool:
    return logged_memory_gib(log) is not None or log.card_name is not None


class _Case(Struct, frozen=True, kw_only=True):
    """A part that is not as predicted."""

    log: StartupLog
    planned: Plan
    gib: float
    """Measured less predicted."""

    @property
    def is_eager(self) -> bool:
        return bool(self.log.flags.enforce_eager and not self.planned.resolved.enforce_eager)

    @property
    def has_sizes(self) -> bool:
        return not self.is_eager and self.log.graphs is not None

    @property
    def draws_a_desktop(self) -> bool:
        low, high = DISPLAY_GIB
        card = f"{self.log.card_name or ''} {self.planned.accelerator.name}"
        return low <= self.gib <= high and _DESKTOP_CARD.search(card) is not None

    @property
    def was_compiled_before(self) -> bool:
        """Whether it takes less by half or more of what a first start keeps for compiling."""
        memory = self.planned.memory
        gain = 0.0 if memory is None else gib(restart_gain_bytes(memory.activations))
        return gain > 0.0 and self.gib <= -gain / 2


_CAUSES: Final[Mapping[str, tuple[tuple[str, Callable[[_Case], object]], ...]]] = {
    "system": (
        ("cause-display", lambda case: case.draws_a_desktop),
        ("cause-other-process", lambda case: case.gib >= OTHER_PROCESS_GIB),
        ("cause-driver-context", lambda case: case.gib < OTHER_PROCESS_GIB),
    ),
    "framework": (
        ("cause-communication", lambda case: case.planned.scenario.parallel.ranks_per_replica > 1),
        ("cause-process-while-profiling", lambda case: case.gib >= OTHER_PROCESS_GIB),
    ),
    "weights": (
        ("cause-extra-weights", lambda case: case.planned.scenario.speculative_config is not None
         or case.planned.scenario.enable_lora),
        ("cause-quantized", lambda case: case.log.resolved_quantization
         and not case.planned.quantization.method),
        ("cause-other-weights", lambda _case: True),
    ),
    "activations": (
        ("cause-encoder", lambda case: case.planned.architecture.is_multimodal),
        ("cause-batched-tokens", lambda case: case.log.flags.max_num_batched_tokens is None
         and case.log.figures.batched_tokens is None),
        ("cause-eager", lambda case: case.is_eager),
        ("cause-compiled-before", lambda case: case.was_compiled_before),
        ("cause-kernels", lambda _case: True),
    ),
    "cuda_graphs": (
        ("cause-eager", lambda case: case.is_eager),
        ("cause-capture-sizes", lambda case: not case.is_eager and case.log.graphs is None),
        ("cause-graph-pool", lambda case: case.has_sizes and case.log.charges_graph_estimate),
        ("cause-kernels", lambda case: case.has_sizes and not case.log.charges_graph_estimate),
    ),
    "available_kv": (
        ("cause-process-while-profiling", lambda case: any(
            failure.code == "start-profiling-disturbed" for failure in case.log.failures)),
    ),
}  # fmt: skip
"""Likely causes for each part and their conditions, the likeliest first."""


def _causes(
    log: StartupLog, planned: Plan, part: PartComparison, parts: list[PartComparison]
) -> tuple[Notice, ...]:
    """Likely causes of a part outside its interval; inside it, only that kernels were there, which the interval has."""
    if part.difference_gib is None:
        return ()
    case = _Case(log=log, planned=planned, gib=part.difference_gib)
    if part.is_inside:
        is_restart = part.part == ACTIVATIONS.estimate and case.was_compiled_before
        return (Notice(code="cause-compiled-before"),) if is_restart else ()
    method = {"method": log.resolved_quantization or ""}
    found = [
        Notice(code=code, params=method if code == "cause-quantized" else {})
        for code, may_be in _CAUSES[part.part]
        if may_be(case)
    ]
    if part.part == "available_kv":
        # Another part took a good share of what the KV memory lacks, or has in addition. Graphs count only in releases
        # that take them off the budget: in others they are captured later.
        names = ["weights", "activations", "framework", *["cuda_graphs"] * log.charges_graph_estimate]
        taken = {other.part: other.difference_gib or 0.0 for other in parts}
        found += [
            Notice(code=f"cause-follows-{name}")
            for name in names
            if taken[name] * case.gib < 0 and abs(taken[name]) >= abs(case.gib) / 4
        ]
    if _PATCHED.search(log.version or ""):
        found.append(Notice(code="cause-patched-build", params={"version": log.version or ""}))
    return tuple(found) or (Notice(code="cause-unknown"),)


def differing_flags(log: StartupLog, planned: Plan) -> tuple[str, ...]:
    """Flags whose values in the log and in the plan differ, by their contract names."""
    scenario, resolved = planned.scenario, planned.resolved
    found = []
    for name, logged in logged_flags(log).values.items():
        if logged == -1:
            continue
        set_here = value_of(scenario, name)
        here = getattr(resolved, name, None) if set_here in (None, "auto") else set_here
        if here is not None and "auto" not in (logged, here) and logged != here:
            found.append(name)
    return tuple(found)


def _tier_doubts(log: StartupLog, planned: Plan) -> Iterator[Notice]:
    """`log-tier-differs` or `log-tier-not-planned` for a tier in /dev/shm, whose file the log names with its size."""
    logged = log.figures.host_tier_gib
    if logged is None:
        return
    shared = 0 if planned.host is None else planned.host.shm_bytes_per_engine
    if not shared:
        yield notice("log-tier-not-planned", logged=gib_text(logged.value * GIB))
    elif abs(logged.value * GIB - shared) > SAME_TIER * shared:
        said = {"logged": gib_text(logged.value * GIB), "planned": gib_text(shared)}
        yield notice("log-tier-differs", **said)


def _doubts(log: StartupLog, planned: Plan) -> Iterator[Notice]:
    logged, here = release_of(log.version), release_of(planned.resolved.engine_version)
    if logged is not None and here is not None and logged != here:
        params = {"logged": log.version or "", "planned": planned.resolved.engine_version}
        yield Notice(code="cause-other-version", params=params)
    if flags := differing_flags(log, planned):
        yield Notice(code="cause-other-flags", params={"fields": ", ".join(flags)})
    total = log.worst_rank.total_gib
    if not _names_card(log):
        name = {"name": planned.accelerator.name}
        is_named = planned.memory is not None
        yield Notice(code="cause-unnamed-card", params=name) if is_named else Notice(code="cause-no-card")
    with suppress(CatalogueError):
        known = catalogue.find_accelerator(planned.accelerator.id).memory_gib
        if total is not None and abs(total.value - known) > DRIVER_GIB:
            params = {"logged": f"{total.value:.2f}", "known": f"{known:.2f}"}
            yield Notice(code="cause-driver", params=params)


def _figures(log: StartupLog, planned: Plan, measured: Measured) -> tuple[FigureComparison, ...]:
    given = None
    if measured.available_kv_gib is not None:
        only_cache = Measured(available_kv_gib=measured.available_kv_gib)
        with suppress(KvPlannerError):
            given = plan(replace(planned.scenario, measured=only_cache)).cache
    return tuple(
        FigureComparison(
            figure=figure,
            predicted=None if planned.cache is None else getattr(planned.cache, attribute),
            measured=reading.value,
            from_measured_kv=None if given is None else getattr(given, attribute),
        )
        for figure, attribute in (("kv_tokens", "tokens"), ("max_concurrency", "max_concurrency"))
        if (reading := log.figures.known.get(figure)) is not None
    )


def calibrated(log: StartupLog, planned: Plan) -> Measured:
    """The log's parts as overrides for `planned.scenario`, in GiB, such that its KV memory comes out as measured.

    KV memory itself is not fixed, so that it follows the length and the utilization. The rest that the log does not
    assign goes into the activations, or into the framework when the activations are measured; where the engine takes
    its estimate of the graphs off the budget, that is their cost. The part with the rest is fitted, unless the log
    prints it and the rest is within rounding. The KV memory is given as it is only where the parts do not add up to the
    log's own budget, or no card is known.
    """
    found = _parts_of(log, planned)
    if found.peak_activation_gib is None:
        return found
    return replace(found, batched_tokens=planned.resolved.max_num_batched_tokens)


def _parts_of(log: StartupLog, planned: Plan) -> Measured:
    measured = measured_from(log)
    available = measured.available_kv_gib
    if available is not None:
        measured = replace(measured, available_kv_gib=max(0.0, available))
    parts = replace(measured, available_kv_gib=None)
    estimate = log.worst_rank.cuda_graph_estimate_gib
    if log.charges_graph_estimate and estimate is not None:
        parts = replace(parts, cuda_graph_gib=estimate.value)
    scenario = planned.scenario
    if planned.memory is None:
        return measured
    is_measured = engine_of(scenario).measures_memory_in(planned.resolved.version)
    is_profiled = is_measured and scenario.kv_cache_memory_bytes is None
    if available is None or not is_profiled:
        return parts
    corrected = None
    with suppress(KvPlannerError):
        corrected = plan(replace(scenario, measured=parts)).memory
    if corrected is None:
        return measured
    rest_gib = gib(corrected.available_kv.value) - available
    parts_are_reported = measured.peak_activation_gib is not None
    limit_gib = LARGEST_ROUNDING_GIB if parts_are_reported else LARGEST_UNREPORTED_GIB
    takers = [(ACTIVATIONS.field, corrected.activations), (FRAMEWORK.field, corrected.framework)]
    for field, part in reversed(takers) if parts_are_reported else takers:
        absorbed_gib = gib(part.value) + rest_gib
        if absorbed_gib >= 0 and abs(rest_gib) <= limit_gib:
            absorbed: dict[str, Any] = {field: round(absorbed_gib, 4)}
            closed = replace(parts, **absorbed)
            is_printed = getattr(parts, field) is not None and abs(rest_gib) <= PRINTED_SUM_GIB
            return closed if is_printed else closed.with_origin((field,), Origin.FITTED)
    return measured


def with_measurements(log: StartupLog, planned: Plan) -> Plan:
    """`planned` with the log's own parts in place of the predicted ones; `planned` where the log measured none."""
    measured = calibrated(log, planned)
    if measured != Measured():
        with suppress(KvPlannerError):
            return plan(replace(planned.scenario, measured=measured))
    return planned


def fields_by_origin(measured: Measured) -> dict[Origin, tuple[str, ...]]:
    """The given parts by their origin, each in the order of the memory bar.

    Example:
        >>> given = Measured(weights_gib=15.27, non_torch_gib=0.1, fitted=("non_torch_gib",))
        >>> {origin.value: parts for origin, parts in fields_by_origin(given).items()}
        {'measured': ('weights',), 'fitted': ('framework',)}
    """
    given = [(one.estimate, one.field) for one in COMPARED if getattr(measured, one.field) is not None]
    found = {
        origin: tuple(part for part, field in given if measured.origin(field) is origin) for origin in Origin
    }
    return {origin: parts for origin, parts in found.items() if parts}


def measured_values(measured: Measured) -> dict[str, Any]:
    """The contract's `measured`: the given parts, and those of them that are fitted or carried over.

    Example:
        >>> measured_values(Measured(peak_activation_gib=1.9, fitted=("peak_activation_gib",)))
        {'peak_activation_gib': 1.9, 'fitted': ['peak_activation_gib']}
    """
    lists = {"fitted": list(measured.fitted), "carried": list(measured.carried)}
    marks: dict[str, Any] = {**lists, "batched_tokens": measured.batched_tokens}
    return {**measured.values(), **{name: mark for name, mark in marks.items() if mark}}
