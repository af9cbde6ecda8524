"""The memory bar: one card as a stacked bar, as a plain dict in Plotly's JSON schema.

Text takes its colour from the theme unless it stands on a colour of ours; every colour reads on white and on black.
The page draws the legend.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kvcore.planning import Plan, Verdict
from kvcore.texts.palette import (
    BUDGET,
    CAPACITY,
    OUTLINE,
    OVERESTIMATED,
    PARTS,
    UNACCOUNTED,
    UNEXPLAINED,
    WARNING_GROUND,
    WARNING_TEXT,
    Part,
)
from kvcore.texts.words import Words, gib_text
from kvcore.units import GIB, gib

Figure: TypeAlias = dict[str, Any]

BAR_HEIGHT: Final = 168
EXTRA_ROW: Final = 30
"""Of the name of a narrow shortage, above the two lines of notes."""
NARROW: Final = 0.15
"""A shortage of a smaller share of the bar is named above it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A part of the bar, in GiB."""

    part: Part
    start: float
    size: float
    """As drawn."""
    figure: float
    """As named: more than drawn where a given KV memory takes the place of what is estimated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shortage:
    """A stretch of the bar that is hatched, in GiB: memory that is needed and is not there."""

    start: float
    size: float


def segments(plan: Plan) -> tuple[Segment, ...]:
    """The parts of the worst rank from left to right; a negative part has no width.

    What of the CUDA graphs the engine does not take out of its budget stands to the right of the KV cache, past the
    line: so the KV cache ends at the budget in every version. A given KV memory that is smaller than what the parts
    leave has a part of its own before it; one that is larger takes its place from the last of them (`overlap`).
    """
    memory = plan.memory
    if memory is None:
        return ()
    sizes = {part.name: max(0.0, gib(getattr(memory, part.name).value)) for part in (*PARTS, UNACCOUNTED)}
    counted = counted_graphs_gib(plan)
    looks = {part.name: part for part in PARTS}
    inside = [(looks[name], sizes[name]) for name in ("framework", "weights", "activations")]
    inside.append((looks["cuda_graphs"], counted))
    after = [
        (looks["kv_cache"], sizes["kv_cache"]),
        (looks["cuda_graphs"], sizes["cuda_graphs"] - counted),
        (looks["unused"], sizes["unused"]),
    ]
    cut = -gib(min(0.0, memory.unaccounted.value))
    drawn = [(looks["system"], sizes["system"], sizes["system"])]
    for part, size in reversed(inside):
        taken = min(cut, size)
        cut -= taken
        drawn.insert(1, (part, size - taken, size))
    drawn.append((UNACCOUNTED, sizes["unaccounted"], sizes["unaccounted"]))
    drawn += [(part, size, size) for part, size in after]
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


def overlap(plan: Plan) -> Shortage | None:
    """Where the estimated parts reach into a given KV memory, in GiB: so much they are too high for it."""
    memory = plan.memory
    if memory is None or memory.unaccounted.value >= 0:
        return None
    kv = next((segment for segment in segments(plan) if segment.part.name == "kv_cache"), None)
    return None if kv is None else Shortage(start=kv.start, size=-gib(memory.unaccounted.value))


def difference_name(plan: Plan) -> str:
    """What the bar and the tables call the difference of a given KV memory from the other parts; "" without one."""
    memory = plan.memory
    if memory is None or not memory.unaccounted.value:
        return ""
    return UNACCOUNTED.label if memory.unaccounted.value > 0 else OVERESTIMATED


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


def shortage(plan: Plan) -> Shortage | None:
    """What is missing: for the parts themselves, or for one request of the asked length."""
    memory, cache = plan.memory, plan.cache
    if memory is None:
        return None
    if memory.available_kv.value <= 0:
        size = -gib(memory.available_kv.value)
        return Shortage(start=budget_end_gib(plan), size=size) if size else None
    if plan.verdict is Verdict.CONTEXT_TOO_LONG and cache is not None:
        return Shortage(start=budget_end_gib(plan), size=gib(cache.needed_bytes - memory.available_kv.value))
    if memory.unused.value < 0:
        return Shortage(start=gib(memory.total.value), size=-gib(memory.unused.value))
    return None


def memory_bar(plan: Plan, t: Words, explained: Collection[str] | None = None) -> Figure:
    """One card's memory as a stacked bar, with the lines of budget and capacity; what is missing is hatched.

    With `explained` only the parts of these names are coloured and named; "budget" stands for its line, and the
    shortage comes with the KV cache.
    """
    memory = plan.memory
    if memory is None:
        return {"data": [], "layout": {"height": BAR_HEIGHT}}
    total, budget = gib(memory.total.value), budget_end_gib(plan)
    missing = shortage(plan) if explained is None or "kv_cache" in explained else None
    end = max(
        total,
        *(segment.start + segment.size for segment in segments(plan)),
        missing.start + missing.size if missing else 0,
    )
    under = overlap(plan)
    data = [
        trace
        for segment in segments(plan)
        for trace in (
            _segment_traces(segment, missing or (under if _reaches(under, segment) else None), t)
            if explained is None or segment.part.name in explained
            else [_unexplained_trace(segment)]
        )
    ]
    shapes = [_line(total, CAPACITY, "solid", 3)]
    notes = [_line_note(total, t("card {size}", size=gib_text(memory.total.value)), 1.36, total / end)]
    if explained is None or "budget" in explained:
        shapes[:0] = [_line(budget, BUDGET, "dash", 2), _span(gib(memory.system.value), budget)]
        label = budget_label(plan, t)
        notes.insert(0, _line_note(budget, label, 1.06, budget / end))
    extra = 0
    reaching = overlap(plan) if explained is None else None
    if reaching is not None:
        data.append(overlap_trace(reaching, 0, 1, t))
        if missing is None:
            extra = EXTRA_ROW if reaching.size < NARROW * end else 0
            label = t("parts estimated {size} too high", size=gib_text(reaching.size * GIB))
            notes.append(_shortage_note(reaching, label, end))
    if missing is not None:
        extra = EXTRA_ROW if missing.size < NARROW * end else 0
        data.append(_shortage_trace(missing))
        label = t("{size} missing", size=gib_text(missing.size * GIB))
        notes.append(_shortage_note(missing, label, end))
    axis = {
        "range": [0, end * 1.01],
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
        "ticks": "outside",
        "ticklen": 4,
        "nticks": 9,
        "title": {"text": t("GiB of one {card}", card=plan.accelerator.name), "standoff": 6},
    }
    layout = {
        "barmode": "overlay",
        "bargap": 0,
        "height": BAR_HEIGHT + extra,
        "margin": {"l": 4, "r": 4, "t": 48 + extra, "b": 46},
        "showlegend": False,
        "xaxis": axis,
        "yaxis": {"visible": False, "fixedrange": True, "range": [-0.52, 0.52]},
        "uniformtext": {"minsize": 11, "mode": "hide"},
        "shapes": shapes,
        "annotations": notes,
        "dragmode": False,
        "hoverlabel": {"align": "left"},
    }
    return {"data": data, "layout": layout}


def _reaches(under: Shortage | None, segment: Segment) -> bool:
    return under is not None and segment.start < under.start + under.size


def _segment_traces(segment: Segment, missing: Shortage | None, t: Words) -> list[Figure]:
    """The segment with its name on the part that the shortage does not cover."""
    start, end = segment.start, segment.start + segment.size
    if missing is None or end <= missing.start:
        return [_segment_trace(segment, start, segment.size, t, named=True)]
    if segment.part.name in ("unused", "kv_cache") and missing.start + missing.size < end:
        cut = min(end, max(start, missing.start + missing.size))
        pieces = [(start, cut, False), (cut, end, True)]
    else:
        cut = max(start, missing.start)
        pieces = [(start, cut, True), (cut, end, False)]
    return [
        _segment_trace(segment, left, right - left, t, named=named)
        for left, right, named in pieces
        if right > left
    ]


def _segment_trace(segment: Segment, start: float, width: float, t: Words, *, named: bool) -> Figure:
    label, size = t(segment.part.label), gib_text(segment.figure * GIB)
    marker: Figure = {"color": segment.part.color, "line": {"color": OUTLINE, "width": 1}}
    if segment.part.pattern:
        marker["pattern"] = {
            "shape": segment.part.pattern,
            "fgcolor": "rgba(60,60,60,0.55)",
            "bgcolor": segment.part.color,
            "size": 7,
            "solidity": 0.18,
        }
    return {
        "type": "bar",
        "orientation": "h",
        "name": label,
        "x": [width],
        "base": [start],
        "y": [0],
        "width": 1,
        "marker": marker,
        "text": [f"{label}<br>{size}" if named else ""],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"color": segment.part.text_color, "size": 13},
        "hovertemplate": f"{label} {size}<extra></extra>",
    }


def _unexplained_trace(segment: Segment) -> Figure:
    """A part that a lesson has not come to yet: grey, without a name."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": "?",
        "x": [segment.size],
        "base": [segment.start],
        "y": [0],
        "width": 1,
        "marker": {"color": UNEXPLAINED, "line": {"color": OUTLINE, "width": 1}},
        "hoverinfo": "skip",
    }


def _shortage_trace(missing: Shortage) -> Figure:
    return {
        "type": "bar",
        "orientation": "h",
        "name": "missing",
        "x": [missing.size],
        "base": [missing.start],
        "y": [0],
        "width": 1,
        "marker": {
            "color": "rgba(213,94,0,0.22)",
            "line": {"color": CAPACITY, "width": 2},
            "pattern": {"shape": "/", "fgcolor": CAPACITY, "bgcolor": "rgba(255,255,255,0.15)", "size": 9,
                        "solidity": 0.35},
        },
        "hoverinfo": "skip",
    }  # fmt: skip


def overlap_trace(reaching: Shortage, row: int, width: float, t: Words) -> Figure:
    """The hatching over a given KV memory that the estimated parts reach into."""
    size = gib_text(reaching.size * GIB)
    return {
        "type": "bar",
        "orientation": "h",
        "name": t(OVERESTIMATED),
        "x": [reaching.size],
        "base": [reaching.start],
        "y": [row],
        "width": width,
        "marker": {
            "color": "rgba(204,121,167,0.35)",
            "line": {"color": OUTLINE, "width": 2},
            "pattern": {"shape": "-", "fgcolor": UNACCOUNTED.color, "bgcolor": "rgba(255,255,255,0.15)", "size": 7,
                        "solidity": 0.35},
        },
        "hovertemplate": f"{t(OVERESTIMATED)} {size}<extra></extra>",
    }  # fmt: skip


def _shortage_note(missing: Shortage, label: str, end: float) -> Figure:
    narrow = missing.size < NARROW * end
    middle = missing.start + missing.size / 2
    above: Figure = {"yref": "paper", "y": 1.68, "yanchor": "bottom", "xanchor": _anchor(middle / end)}
    inside: Figure = {"yref": "y", "y": 0, "yanchor": "middle", "xanchor": "center"}
    return {
        "x": middle,
        "xref": "x",
        "text": f"<b>{label}</b>",
        "showarrow": False,
        "bgcolor": WARNING_GROUND,
        "bordercolor": CAPACITY,
        "borderwidth": 1,
        "borderpad": 3,
        "font": {"color": WARNING_TEXT, "size": 13},
        **(above if narrow else inside),
    }


def _anchor(share: float) -> str:
    return "right" if share > 0.5 else "left"


def _line(position: float, color: str, dash: str, width: int) -> Figure:
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": position,
        "x1": position,
        "y0": -0.08,
        "y1": 1.08,
        "line": {"color": color, "dash": dash, "width": width},
        "layer": "above",
    }


def _span(start: float, end: float) -> Figure:
    """Along the top of the bar, from where to where a length is measured."""
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": start,
        "x1": end,
        "y0": 1.05,
        "y1": 1.05,
        "line": {"color": BUDGET, "width": 2},
        "layer": "above",
    }


def _line_note(position: float, text: str, height: float, share: float) -> Figure:
    return {
        "x": position,
        "y": height,
        "xref": "x",
        "yref": "paper",
        "text": text,
        "showarrow": False,
        "xanchor": _anchor(share),
        "yanchor": "bottom",
        "font": {"size": 12},
    }
