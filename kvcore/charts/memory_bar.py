"""The bars of memory: one card's parts, budget and shortage, or several cards on one GiB axis. The page draws the
legend."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct

from kvcore.advice.vary import Variant
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
from kvcore.base.units import GIB, gib
from kvcore.base.words import Words
from kvcore.charts import stack
from kvcore.charts.stack import Bar, Note, Piece, Stack
from kvcore.planning import Plan, Verdict

NARROW: Final = 0.3
"""A shortage that takes a smaller share of the bar is named above it: on a phone its name is wider than the shortage.
"""
MARGIN: Final = 1.01
"""The axis ends so much past the longest bar: the line at its end has a width."""


def memory_bar(plan: Plan, t: Words, explained: Collection[str] | None = None) -> Stack:
    """One card's memory as a stacked bar, with lines for budget and capacity; what is missing is hatched.

    With `explained` only the parts of these names are coloured and named; "budget" stands for its line, and the
    shortage comes with the KV cache.
    """
    memory = plan.memory
    if memory is None:
        return Stack(bars=(), end=1.0, axis="")
    total, budget = gib(memory.total.value), budget_end_gib(plan)
    missing = shortage(plan) if explained is None or KV_CACHE.name in explained else None
    end, under = end_gib(plan, missing), overlap(plan)
    pieces: list[Piece] = []
    for segment in segments(plan):
        covering = missing or (under if under is not None and segment.start < under.end else None)
        owner = UNUSED.name if segment.part is AFTER_POOL else segment.part.name
        if explained is None or owner in explained:
            pieces += _named_pieces(segment, covering, t)
        else:
            pieces.append(Piece(look=stack.UNEXPLAINED, start=segment.start, size=segment.size))
    notes = [Note(at=total, text=t("card {size}", size=gib_text(memory.total.value)))]
    across = [Piece(look=stack.CAPACITY, start=total, size=0.0)]
    if explained is None or "budget" in explained:
        notes.append(Note(at=budget, text=budget_label(plan, t)))
        system = gib(memory.system.value)
        across += [
            Piece(look=stack.BUDGET, start=budget, size=0.0),
            # Along the top of the bar, from where to where the budget is measured.
            Piece(look=stack.SPAN, start=system, size=budget - system),
        ]
    labels: list[tuple[Stretch, str]] = []
    if under is not None and explained is None:
        pieces.append(_overlapping(under, t))
        if missing is None:
            labels.append((under, t("parts estimated {size} too high", size=gib_text(under.size * GIB))))
    if missing is not None:
        label = t("{size} missing", size=gib_text(missing.size * GIB))
        pieces.append(Piece(look=stack.MISSING, start=missing.start, size=missing.size, title=label))
        labels.append((missing, label))
    on_it: list[Note] = []
    for stretch, label in labels:
        note = Note(at=stretch.start + stretch.size / 2, text=label, is_warning=True)
        (notes if stretch.size < NARROW * end else on_it).append(note)
    bar = Bar(pieces=tuple(pieces), across=tuple(across), notes=tuple(on_it))
    return Stack(bars=(bar,), end=end * MARGIN, axis=axis_title(plan, t), notes=tuple(notes))


def axis_title(plan: Plan, t: Words) -> str:
    """The title of the axis: GiB of one card, and of which pipeline stage."""
    stages, card = plan.scenario.parallel.pipeline_parallel_size, t.card(plan.accelerator.name)
    if stages == 1:
        return t("GiB of one {card}", card=card)
    return t(
        "GiB of one {card} of pipeline stage {stage} of {stages}, the one that decides",
        card=card,
        stage=str(plan.stage + 1),
        stages=str(stages),
    )


def part_piece(part: Part, start: float, size: float, said: tuple[str, ...], title: str) -> Piece:
    """A part of memory in its colour and pattern."""
    return Piece(look=f"kv-{part.name}", start=start, size=size, said=said, title=title)


def _named_pieces(
    segment: Segment, missing: Stretch | None, t: Words, *, is_sized: bool = False
) -> list[Piece]:
    """The pieces of a segment, named where the shortage does not cover it; with the size alone for `is_sized`."""
    start, end, name = segment.start, segment.end, t(segment.part.label)
    size = gib_text(segment.figure * GIB)
    said, title = (size,) if is_sized else (name, size), f"{name} {size}"
    if missing is None or end <= missing.start:
        return [part_piece(segment.part, start, segment.size, said, title)]
    if segment.part in (UNUSED, KV_CACHE) and missing.end < end:
        cut = min(end, max(start, missing.end))
        cuts = [(start, cut, ()), (cut, end, said)]
    else:
        cut = max(start, missing.start)
        cuts = [(start, cut, said), (cut, end, ())]
    return [
        part_piece(segment.part, left, right - left, text, title)
        for left, right, text in cuts
        if right > left
    ]


def _overlapping(reaching: Stretch, t: Words) -> Piece:
    """The hatching where the estimated parts reach into a given KV memory."""
    title = f"{t(OVERESTIMATED)} {gib_text(reaching.size * GIB)}"
    return Piece(look=stack.OVERLAP, start=reaching.start, size=reaching.size, title=title)


def small_multiples(named: Sequence[tuple[str, Variant]], t: Words) -> Stack:
    """One GPU of each deployment as a stacked bar; a line marks its capacity, and past it stands what is missing."""
    plans = [variant.plan for _, variant in named]
    end = max((end_gib(plan, shortage(plan)) for plan in plans if plan is not None), default=1.0)
    bars = []
    for name, variant in named:
        plan = variant.plan
        if plan is None:
            refused = Note(at=0.0, text=t("refused by the engine"), is_warning=True)
            bars.append(Bar(name=name, notes=(refused,)))
            continue
        missing, reaching = shortage(plan), overlap(plan)
        pieces = [
            piece for segment in segments(plan) for piece in _named_pieces(segment, missing, t, is_sized=True)
        ]
        above: tuple[Note, ...] = ()
        if reaching is not None:
            pieces.append(_overlapping(reaching, t))
        if missing is not None:
            size = gib_text(-missing.size * GIB, signed=True)
            label = size if plan.verdict is Verdict.TIGHT else t("OOM {size}", size=size)
            pieces.append(Piece(look=stack.MISSING, start=missing.start, size=missing.size, title=label))
            above = (Note(at=missing.end, text=label, is_warning=True),)
        total = gib(plan.memory.total.value) if plan.memory is not None else 0.0
        line = Piece(look=stack.CAPACITY, start=total, size=0.0)
        bars.append(Bar(name=name, pieces=tuple(pieces), across=(line,), above=above))
    return Stack(bars=tuple(bars), end=end * MARGIN, axis=t("GiB of one GPU"))


class Stretch(Struct, frozen=True, kw_only=True):
    """A stretch of the bar, in GiB; a shortage is one that is hatched."""

    start: float
    size: float
    """The drawn width."""

    @property
    def end(self) -> float:
        """The end, in GiB."""
        return self.start + self.size


class Segment(Stretch, frozen=True, kw_only=True):
    """One part of memory on the bar."""

    part: Part
    figure: float
    """The size that its label says: more than drawn where a given KV memory covers an estimate."""


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
    """CUDA graphs that this engine version takes off the budget before it sizes the KV cache, in GiB."""
    memory = plan.memory
    if memory is None:
        return 0.0
    others = memory.framework.value + memory.weights.value + memory.activations.value + memory.remainder.value
    return gib(min(max(0.0, memory.budget.value - others), memory.cuda_graphs.value))


def overlap(plan: Plan) -> Stretch | None:
    """The stretch, in GiB, by which the estimated parts reach into a given KV memory; None where they do not."""
    memory = plan.memory
    if memory is None or memory.unaccounted.value >= 0:
        return None
    kv = next((segment for segment in segments(plan) if segment.part is KV_CACHE), None)
    return None if kv is None else Stretch(start=kv.start, size=-gib(memory.unaccounted.value))


def difference_name(plan: Plan) -> str:
    """The label of the difference between a given KV memory and what the other parts leave; "" without one."""
    memory = plan.memory
    if memory is None or not memory.unaccounted.value:
        return ""
    return UNACCOUNTED.label if memory.unaccounted.value > 0 else OVERESTIMATED


def budget_end_gib(plan: Plan) -> float:
    """The end of the budget on the bar, in GiB: it begins after System, which the engine does not count."""
    return gib(plan.memory.system.value + plan.memory.budget.value) if plan.memory is not None else 0.0


def memory_title(plan: Plan, t: Words) -> str:
    """The title of the bar: one GPU, and of which pipeline stage."""
    stages = plan.scenario.parallel.pipeline_parallel_size
    if stages == 1:
        return t("Memory of one GPU")
    return t(
        "Memory of one GPU of pipeline stage {stage} of {stages}",
        stage=str(plan.stage + 1),
        stages=str(stages),
    )


def budget_label(plan: Plan, t: Words) -> str:
    """The budget as text, and that it begins after System where that is not empty."""
    if plan.memory is None:
        return ""
    size = gib_text(plan.memory.budget.value)
    if not plan.memory.system.value:
        return t("budget {size}", size=size)
    return t("budget {size}, not counting System", size=size)


def shortage(plan: Plan) -> Stretch | None:
    """The missing memory: of the parts themselves, or of one request of the asked length; None where all fits."""
    memory, size = plan.memory, gib(plan.missing_bytes)
    if memory is None or not size:
        return None
    is_past_the_card = size == -gib(memory.unused.value)
    return Stretch(start=gib(memory.total.value) if is_past_the_card else budget_end_gib(plan), size=size)


def end_gib(plan: Plan, missing: Stretch | None) -> float:
    """The end of the bar in GiB: the card's memory, or the end of what exceeds it."""
    total = gib(plan.memory.total.value) if plan.memory is not None else 0.0
    ends = [segment.end for segment in segments(plan)]
    return max(total, *ends, missing.end if missing is not None else 0.0)
