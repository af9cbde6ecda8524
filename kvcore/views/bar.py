"""Bars of memory: one card with what is missing, several cards on one GiB axis, as dicts in Plotly's JSON schema.

Text takes its colour from the theme unless it stands on a colour of ours; every colour reads on white and on black.
The page draws the legend.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Final

from kvcore.advice.vary import Variant
from kvcore.planning import Plan, Verdict
from kvcore.texts import palette
from kvcore.texts.words import Words, gib_text
from kvcore.units import GIB, gib
from kvcore.views import plotting as draw

BAR_HEIGHT: Final = 168
EXTRA_ROW: Final = 30
"""Of the name of a narrow shortage, above the two lines of notes."""
NARROW: Final = 0.15
"""A shortage of a smaller share of the bar is named above it."""
ROW_PIXELS: Final = 44
FRAME_PIXELS: Final = 62
NAMED_FROM: Final = 0.11
"""A segment of a smaller share of the axis has no text of its own: the legend names its colour."""
NAMED_FROM_CUT: Final = 0.2
"""The same for one that the hatching cuts: its text does not shrink with what is seen of it."""
SHORT_BAR: Final = 0.6
"""Behind a bar of a smaller share of the axis there is room for a label."""
NAME_LETTERS: Final = 16
"""Of one line of a bar's name: leaves a phone room for the bars."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """A stretch of the bar, in GiB; what is missing is one that is hatched."""

    start: float
    size: float
    """As drawn."""

    @property
    def end(self) -> float:
        """Where it ends."""
        return self.start + self.size


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment(Stretch):
    """A part of the bar."""

    part: palette.Part
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
    sizes = {
        part.name: max(0.0, gib(getattr(memory, part.name).value))
        for part in (*palette.PARTS, palette.UNACCOUNTED)
    }
    counted = counted_graphs_gib(plan)
    looks = {part.name: part for part in palette.PARTS}
    inside = [(looks[name], sizes[name]) for name in ("framework", "weights", "activations")]
    inside.append((looks["cuda_graphs"], counted))
    outside = sizes["cuda_graphs"] - counted
    unused, later = sizes["unused"], gib(memory.after_pool.value) if plan.cache is not None else 0.0
    later = min(unused, later)
    cut = -gib(min(0.0, memory.unaccounted.value))
    drawn = [(looks["system"], sizes["system"], sizes["system"])]
    for part, size in reversed(inside):
        taken = min(cut, size)
        cut -= taken
        drawn.insert(1, (part, size - taken, size))
    drawn.append((palette.UNACCOUNTED, sizes["unaccounted"], sizes["unaccounted"]))
    drawn += [
        (looks["kv_cache"], sizes["kv_cache"], sizes["kv_cache"]),
        (looks["cuda_graphs"], outside, outside),
        (palette.AFTER_POOL, later, later),
        (looks["unused"], unused - later, unused),
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
    kv = next((segment for segment in segments(plan) if segment.part.name == "kv_cache"), None)
    return None if kv is None else Stretch(start=kv.start, size=-gib(memory.unaccounted.value))


def difference_name(plan: Plan) -> str:
    """What the bar and the tables call the difference of a given KV memory from the other parts; "" without one."""
    memory = plan.memory
    if memory is None or not memory.unaccounted.value:
        return ""
    return palette.UNACCOUNTED.label if memory.unaccounted.value > 0 else palette.OVERESTIMATED


def budget_end_gib(plan: Plan) -> float:
    """Where the budget ends on the bar: it begins after what the engine does not count."""
    return gib(plan.memory.system.value + plan.memory.budget.value) if plan.memory is not None else 0.0


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


def memory_bar(plan: Plan, t: Words, explained: Collection[str] | None = None) -> draw.Figure:
    """One card's memory as a stacked bar, with the lines of budget and capacity; what is missing is hatched.

    With `explained` only the parts of these names are coloured and named; "budget" stands for its line, and the
    shortage comes with the KV cache.
    """
    memory = plan.memory
    if memory is None:
        return {"data": [], "layout": {"height": BAR_HEIGHT}}
    total, budget = gib(memory.total.value), budget_end_gib(plan)
    missing = shortage(plan) if explained is None or "kv_cache" in explained else None
    end, under = end_gib(plan, missing), overlap(plan)
    data: list[draw.Figure] = []
    for segment in segments(plan):
        covering = missing or (under if under is not None and segment.start < under.end else None)
        owner = "unused" if segment.part is palette.AFTER_POOL else segment.part.name
        if explained is None or owner in explained:
            data += _named_pieces(segment, covering, t)
        else:
            data.append(
                draw.bar("?", segment.start, segment.size, 0, draw.filled(palette.UNEXPLAINED), "", width=1)
            )
    shapes = [draw.upright(total, draw.stroke(palette.CAPACITY, 3, "solid"), 0.08, layer="above")]
    notes = [_line_note(total, t("card {size}", size=gib_text(memory.total.value)), 1.36, end)]
    if explained is None or "budget" in explained:
        # Along the top of the bar, from where to where the budget is measured.
        span = draw.rule(
            (gib(memory.system.value), budget),
            (1.05, 1.05),
            draw.stroke(palette.BUDGET, 2),
            yref="paper",
            layer="above",
        )
        shapes[:0] = [draw.upright(budget, draw.stroke(palette.BUDGET, 2, "dash"), 0.08, layer="above"), span]
        notes.insert(0, _line_note(budget, budget_label(plan, t), 1.06, end))
    labelled: list[tuple[Stretch, str]] = []
    if under is not None and explained is None:
        data.append(overlap_trace(under, 0, 1, t))
        if missing is None:
            labelled.append((under, t("parts estimated {size} too high", size=gib_text(under.size * GIB))))
    if missing is not None:
        data.append(_missing_trace(missing, 0, 1, "rgba(255,255,255,0.15)"))
        labelled.append((missing, t("{size} missing", size=gib_text(missing.size * GIB))))
    notes += [_shortage_note(stretch, label, end) for stretch, label in labelled]
    extra = EXTRA_ROW * any(stretch.size < NARROW * end for stretch, _ in labelled)
    return draw.bars(
        data,
        BAR_HEIGHT + extra,
        (4, 4, 48 + extra, 46),
        smallest=11,
        bargap=0,
        xaxis=gib_axis(end * 1.01, plan, t, ticklen=4, nticks=9),
        yaxis=draw.axis(visible=False, range=[-0.52, 0.52]),
        shapes=shapes,
        annotations=notes,
    )


def gib_axis(end: float, plan: Plan, t: Words, **more: int) -> draw.Figure:
    """From nothing to `end` GiB of one card."""
    title = t("GiB of one {card}", card=plan.accelerator.name)
    return draw.axis(title, range=[0, end], showgrid=False, zeroline=False, ticks="outside", **more)


def _named_pieces(segment: Segment, missing: Stretch | None, t: Words) -> list[draw.Figure]:
    """The segment with its name on the part that the shortage does not cover."""
    start, end = segment.start, segment.end
    if missing is None or end <= missing.start:
        return [_piece(segment, start, segment.size, t, named=True)]
    if segment.part.name in ("unused", "kv_cache") and missing.end < end:
        cut = min(end, max(start, missing.end))
        pieces = [(start, cut, False), (cut, end, True)]
    else:
        cut = max(start, missing.start)
        pieces = [(start, cut, True), (cut, end, False)]
    return [
        _piece(segment, left, right - left, t, named=named) for left, right, named in pieces if right > left
    ]


def _piece(segment: Segment, start: float, width: float, t: Words, *, named: bool) -> draw.Figure:
    part, label, size = segment.part, t(segment.part.label), gib_text(segment.figure * GIB)
    said = f"{label}<br>{size}" if named else ""
    return draw.part_bar(part, label, start, width, 0, said, f"{label} {size}", 13, width=1)


def _missing_trace(missing: Stretch, row: int, width: float, ground: str) -> draw.Figure:
    return draw.bar("missing", missing.start, missing.size, row, draw.missing_marker(ground), "", width=width)


def overlap_trace(reaching: Stretch, row: int, width: float, t: Words) -> draw.Figure:
    """The hatching over a given KV memory that the estimated parts reach into."""
    name = t(palette.OVERESTIMATED)
    pattern = draw.hatching("-", palette.UNACCOUNTED.color, "rgba(255,255,255,0.15)", 7, 0.35)
    marker = draw.filled("rgba(204,121,167,0.35)", palette.OUTLINE, 2, pattern)
    hover = f"{name} {gib_text(reaching.size * GIB)}"
    return draw.bar(name, reaching.start, reaching.size, row, marker, hover, width=width)


def _shortage_note(missing: Stretch, label: str, end: float) -> draw.Figure:
    """On a wide shortage; above a narrow one."""
    middle = missing.start + missing.size / 2
    if missing.size < NARROW * end:
        place = {"y": 1.68, "yref": "paper", "yanchor": "bottom", "xanchor": _anchor(middle / end)}
    else:
        place = {"yanchor": "middle", "xanchor": "center"}
    return _framed(middle, 0, label, 13, 3) | place


def _framed(x: float, y: float, text: str, size: int, pad: int) -> draw.Figure:
    looks = draw.grounded(palette.WARNING_GROUND, palette.WARNING_TEXT, size, pad)
    return draw.note(x, y, f"<b>{text}</b>", bordercolor=palette.CAPACITY, borderwidth=1) | looks


def _anchor(share: float) -> str:
    return "right" if share > 0.5 else "left"


def _line_note(position: float, text: str, height: float, end: float) -> draw.Figure:
    return draw.note(position, height, text, yref="paper", xanchor=_anchor(position / end), yanchor="bottom")


def small_multiples(named: Sequence[tuple[str, Variant]], t: Words) -> draw.Figure:
    """One GPU of each deployment as a stacked bar with its capacity as a line; past it stands what is missing."""
    plans = [variant.plan for _, variant in named]
    planned = [(row, plan, shortage(plan)) for row, plan in enumerate(plans) if plan is not None]
    end = max((end_gib(plan, missing) for _, plan, missing in planned), default=1.0)
    data: list[draw.Figure] = []
    shapes: list[draw.Figure] = []
    notes: list[draw.Figure] = []
    for row, plan, missing in planned:
        hidden_from = math.inf if missing is None else missing.start
        data += [_sized_piece(segment, row, end, hidden_from, t) for segment in segments(plan)]
        reaching = overlap(plan)
        if reaching is not None:
            data.append(overlap_trace(reaching, row, 0.8, t))
        if missing is not None:
            data.append(_missing_trace(missing, row, 0.8, "rgba(255,255,255,0.55)"))
            label = t("OOM {size}", size=gib_text(-missing.size * GIB, signed=True))
            notes.append(_framed(missing.end, row, label, 12, 2) | _behind_or_at_the_end(missing.end, end))
        total = gib(plan.memory.total.value) if plan.memory is not None else 0.0
        shapes.append(
            draw.rule(
                (total, total), (row - 0.48, row + 0.48), draw.stroke(palette.CAPACITY, 3), layer="above"
            )
        )
    refused = [row for row, plan in enumerate(plans) if plan is None]
    at_left = {"xref": "paper", "xanchor": "left"}
    notes += [_framed(0.01, row, t("refused by the engine"), 12, 2) | at_left for row in refused]
    return draw.bars(
        data,
        FRAME_PIXELS + ROW_PIXELS * len(named),
        (4, 8, 6, 46),
        smallest=10,
        bargap=0.2,
        shapes=shapes,
        annotations=notes,
        xaxis=draw.axis(t("GiB of one GPU"), range=[0, end * 1.02], zeroline=False, ticks="outside"),
        yaxis=draw.axis(
            range=[len(named) - 0.5, -0.5],
            automargin=True,
            showgrid=False,
            zeroline=False,
            ticks="",
            tickfont={"size": 13},
            tickvals=list(range(len(named))),
            ticktext=[
                "<br>".join(wrap(name, NAME_LETTERS, break_long_words=False, break_on_hyphens=False)[:3])
                for name, _ in named
            ],
        ),
    )


def _sized_piece(segment: Segment, row: int, end: float, hidden_from: float, t: Words) -> draw.Figure:
    part, label, size = segment.part, t(segment.part.label), gib_text(segment.figure * GIB)
    # The hatching of what is missing covers the rest.
    seen = min(segment.size, hidden_from - segment.start)
    is_whole = seen == segment.size
    said = size if seen >= (NAMED_FROM if is_whole else NAMED_FROM_CUT) * end else ""
    place = {"width": 0.8, "insidetextanchor": "middle" if is_whole else "start"}
    return draw.part_bar(part, label, segment.start, segment.size, row, said, f"{label} {size}", 12, **place)


def _behind_or_at_the_end(bar_end: float, end: float) -> draw.Figure:
    """Behind a short bar, at the end of a long one: never over the names next to the axis."""
    is_short = bar_end < SHORT_BAR * end
    return {"xanchor": "left", "xshift": 4} if is_short else {"xanchor": "right", "xshift": -4}
