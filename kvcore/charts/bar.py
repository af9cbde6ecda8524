"""What the bar of one card's memory shows: its parts from left to right, the budget, what is missing, in GiB."""

from __future__ import annotations

from msgspec import Struct

from kvcore.base.numbers import gib_text
from kvcore.base.parts import (
    AFTER_POOL,
    BUDGETED,
    CUDA_GRAPHS,
    KV_CACHE,
    OVERESTIMATED,
    PARTS,
    SYSTEM,
    UNACCOUNTED,
    UNUSED,
    Part,
)
from kvcore.base.units import gib
from kvcore.base.words import Words
from kvcore.planning import Plan, Verdict


class Stretch(Struct, frozen=True, kw_only=True):
    """A stretch of the bar, in GiB; what is missing is one that is hatched."""

    start: float
    size: float
    """As drawn."""

    @property
    def end(self) -> float:
        """Where it ends."""
        return self.start + self.size


class Segment(Stretch, frozen=True, kw_only=True):
    """A part of the bar."""

    part: Part
    figure: float
    """As named: more than drawn where a given KV memory takes the place of what is estimated."""


def segments(plan: Plan) -> tuple[Segment, ...]:
    """The parts of the worst rank from left to right; a negative part has no width.

    What of the CUDA graphs the engine does not take out of its budget stands to the right of the KV cache, past the
    line: so the KV cache ends at the budget in every version. A given KV memory that is smaller than what the parts
    leave has a part of its own before it; one that is larger takes its place from the last of them (`overlap`). What
    the start takes after the KV cache is the beginning of what is unused.
    """
    memory = plan.memory
    if memory is None:
        return ()
    sizes = {part: max(0.0, gib(getattr(memory, part.name).value)) for part in (*PARTS, UNACCOUNTED)}
    counted = counted_graphs_gib(plan)
    inside = [(part, counted if part is CUDA_GRAPHS else sizes[part]) for part in BUDGETED]
    outside = sizes[CUDA_GRAPHS] - counted
    unused, later = sizes[UNUSED], gib(memory.after_pool.value) if plan.cache is not None else 0.0
    later = min(unused, later)
    cut = -gib(min(0.0, memory.unaccounted.value))
    drawn = [(SYSTEM, sizes[SYSTEM], sizes[SYSTEM])]
    for part, size in reversed(inside):
        taken = min(cut, size)
        cut -= taken
        drawn.insert(1, (part, size - taken, size))
    drawn.append((UNACCOUNTED, sizes[UNACCOUNTED], sizes[UNACCOUNTED]))
    drawn += [
        (KV_CACHE, sizes[KV_CACHE], sizes[KV_CACHE]),
        (CUDA_GRAPHS, outside, outside),
        (AFTER_POOL, later, later),
        (UNUSED, unused - later, unused),
    ]
    placed, position = [], 0.0
    for part, size, figure in drawn:
        placed.append(Segment(part=part, start=position, size=size, figure=figure))
        position += size
    return tuple(segment for segment in placed if segment.size > 0)


def counted_graphs_gib(plan: Plan) -> float:
    """What this engine version takes off the budget for CUDA graphs before it sizes the KV cache, in GiB."""
    memory = plan.memory
    if memory is None:
        return 0.0
    others = memory.framework.value + memory.weights.value + memory.activations.value + memory.remainder.value
    return gib(min(max(0.0, memory.budget.value - others), memory.cuda_graphs.value))


def overlap(plan: Plan) -> Stretch | None:
    """Where the estimated parts reach into a given KV memory, in GiB: so much they are too high for it."""
    memory = plan.memory
    if memory is None or memory.unaccounted.value >= 0:
        return None
    kv = next((segment for segment in segments(plan) if segment.part is KV_CACHE), None)
    return None if kv is None else Stretch(start=kv.start, size=-gib(memory.unaccounted.value))


def difference_name(plan: Plan) -> str:
    """What the bar and the tables call the difference of a given KV memory from the other parts; "" without one."""
    memory = plan.memory
    if memory is None or not memory.unaccounted.value:
        return ""
    return UNACCOUNTED.label if memory.unaccounted.value > 0 else OVERESTIMATED


def budget_end_gib(plan: Plan) -> float:
    """Where the budget ends on the bar: it begins after what the engine does not count."""
    return gib(plan.memory.system.value + plan.memory.budget.value) if plan.memory is not None else 0.0


def memory_title(plan: Plan, t: Words) -> str:
    """What the parts are of: one GPU, and of which pipeline stage where there are several."""
    stages = plan.scenario.parallel.pipeline_parallel_size
    if stages == 1:
        return t("Memory of one GPU")
    return t(
        "Memory of one GPU of pipeline stage {stage} of {stages}",
        stage=str(plan.stage + 1),
        stages=str(stages),
    )


def budget_label(plan: Plan, t: Words) -> str:
    """The budget in words, and where it begins where the axis says more than it."""
    if plan.memory is None:
        return ""
    size = gib_text(plan.memory.budget.value)
    if not plan.memory.system.value:
        return t("budget {size}", size=size)
    return t("budget {size} after System", size=size)


def shortage(plan: Plan) -> Stretch | None:
    """What is missing: for the parts themselves, or for one request of the asked length."""
    memory, cache = plan.memory, plan.cache
    if memory is None:
        return None
    if memory.available_kv.value <= 0:
        size = -gib(memory.available_kv.value)
        return Stretch(start=budget_end_gib(plan), size=size) if size else None
    if cache is not None and not cache.fits and plan.verdict in (Verdict.CONTEXT_TOO_LONG, Verdict.TIGHT):
        return Stretch(start=budget_end_gib(plan), size=gib(cache.needed_bytes - memory.available_kv.value))
    if memory.unused.value < 0:
        return Stretch(start=gib(memory.total.value), size=-gib(memory.unused.value))
    return None


def end_gib(plan: Plan, missing: Stretch | None) -> float:
    """Where the bar ends: the card, or what goes past it."""
    total = gib(plan.memory.total.value) if plan.memory is not None else 0.0
    ends = [segment.end for segment in segments(plan)]
    return max(total, *ends, missing.end if missing is not None else 0.0)
