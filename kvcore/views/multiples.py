"""Small multiples of the Compare page: one bar for each deployment on one GiB axis; names of settings and values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from kvcore.advice.vary import Variant, Varied
from kvcore.errors import KvPlannerError
from kvcore.planning import Plan, Verdict
from kvcore.scenario import Parallel, SpeculativeConfig
from kvcore.texts.palette import CAPACITY, OUTLINE, WARNING_GROUND, WARNING_TEXT
from kvcore.texts.words import DASH, Words, concurrency_text, count, gib_text, msg
from kvcore.units import GIB, gib
from kvcore.views.bar import Segment, overlap, overlap_trace, segments, shortage
from kvcore.views.summary import waiting_seats

Figure: TypeAlias = dict[str, Any]

ROW_PIXELS: Final = 44
FRAME_PIXELS: Final = 62
NAMED_FROM: Final = 0.11
"""A segment of a smaller share of the axis has no text of its own: the legend names its colour."""
NAMED_FROM_CUT: Final = 0.2
"""The same for one that the hatching cuts: its text does not shrink with what is seen of it."""
SHORT_BAR: Final = 0.6
"""Behind a bar of a smaller share of the axis there is room for a label."""

VARIED_NAMES: Final[Mapping[Varied, str]] = {
    Varied.TENSOR_PARALLEL: "TP",
    Varied.PIPELINE_PARALLEL: "PP",
    Varied.DATA_PARALLEL: "DP",
    Varied.SPLIT: msg("TP, DP or DCP"),
    Varied.KV_CACHE_DTYPE: msg("KV cache dtype"),
    Varied.QUANTIZATION: msg("Weight precision"),
    Varied.ACCELERATOR: msg("Accelerator"),
    Varied.UTILIZATION: msg("Utilization"),
    Varied.LENGTH: msg("Context length"),
    Varied.BLOCK_SIZE: msg("Block size"),
    Varied.EAGER: msg("CUDA graphs"),
    Varied.SPECULATIVE: msg("Speculative decoding"),
}
_VERDICTS: Final[Mapping[Verdict, str]] = {
    Verdict.FITS: msg("✔ fits"),
    Verdict.TIGHT: msg("▲ tight"),
    Verdict.CONTEXT_TOO_LONG: msg("▲ context too long"),
    Verdict.NO_KV_MEMORY: msg("✖ no memory for the KV cache"),
    Verdict.WEIGHTS_DO_NOT_FIT: msg("✖ weights do not fit"),
}


def verdict_word(variant: Variant, t: Words) -> str:
    """The verdict as a sign and a word."""
    return t(_VERDICTS[variant.plan.verdict]) if variant.plan is not None else t("✖ refused")


def refusal_text(error: KvPlannerError | None, t: Words) -> str:
    """Why the engine refuses a position; "" where it does not."""
    return "" if error is None else t.error(error)


def position_name(varied: Varied, variant: Variant, t: Words) -> str:
    """One value of a setting as buttons and axes name it."""
    value = variant.value
    match varied:
        case Varied.TENSOR_PARALLEL | Varied.PIPELINE_PARALLEL | Varied.DATA_PARALLEL:
            return f"{VARIED_NAMES[varied]} {value}"
        case Varied.SPLIT if isinstance(value, Parallel):
            return split_name(value)
        case Varied.ACCELERATOR if variant.scenario.accelerator is not None:
            return variant.scenario.accelerator.name
        case Varied.LENGTH if isinstance(value, int):
            return t("{tokens} tokens", tokens=count(value))
        case Varied.UTILIZATION:
            return f"{value:g}"
        case Varied.BLOCK_SIZE:
            return t("default") if value is None else t("{size} tokens", size=str(value))
        case Varied.EAGER:
            return t("eager, no graphs") if value else t("with graphs")
        case Varied.SPECULATIVE if isinstance(value, SpeculativeConfig):
            return f"{value.method} × {value.num_speculative_tokens or 1}"
        case Varied.SPECULATIVE:
            return t("none")
        case _:
            return "auto" if value is None else str(value)


def split_name(parallel: Parallel) -> str:
    """How GPUs are cut: `TP 4 × DP 2, DCP 2, EP`."""
    name = f"TP {parallel.tensor_parallel_size}"
    if parallel.data_parallel_size > 1:
        name += f" × DP {parallel.data_parallel_size}"
    if parallel.pipeline_parallel_size > 1:
        name += f" × PP {parallel.pipeline_parallel_size}"
    if parallel.decode_context_parallel_size > 1:
        name += f", DCP {parallel.decode_context_parallel_size}"
    return name + (", EP" if parallel.enable_expert_parallel else "")


def small_multiples(named: Sequence[tuple[str, Variant]], t: Words) -> Figure:
    """One GPU of each deployment as a stacked bar with its capacity as a line; past it stands what is missing."""
    planned = [(row, variant.plan) for row, (_, variant) in enumerate(named) if variant.plan is not None]
    end = max((_end_gib(plan) for _, plan in planned), default=1.0)
    data: list[Figure] = []
    shapes: list[Figure] = []
    notes: list[Figure] = []
    for row, plan in planned:
        missing = shortage(plan)
        hidden_from = math.inf if missing is None else missing.start
        data += [_segment_trace(segment, row, end, hidden_from, t) for segment in segments(plan)]
        reaching = overlap(plan)
        if reaching is not None:
            data.append(overlap_trace(reaching, row, 0.8, t))
        if missing is not None:
            data.append(_missing_trace(missing.start, missing.size, row))
            label = t("OOM {size}", size=gib_text(-missing.size * GIB, signed=True))
            notes.append(_missing_note(missing.start + missing.size, row, label, end))
        total = gib(plan.memory.total.value) if plan.memory is not None else 0.0
        shapes.append(_capacity(total, row))
    for row, (_, variant) in enumerate(named):
        if variant.plan is None:
            notes.append(_refused_note(row, t("refused by the engine")))
    return {
        "data": data,
        "layout": {
            "barmode": "overlay",
            "bargap": 0.2,
            "height": FRAME_PIXELS + ROW_PIXELS * len(named),
            "margin": {"l": 4, "r": 8, "t": 6, "b": 46},
            "showlegend": False,
            "dragmode": False,
            "hoverlabel": {"align": "left"},
            "uniformtext": {"minsize": 10, "mode": "hide"},
            "shapes": shapes,
            "annotations": notes,
            "xaxis": {
                "range": [0, end * 1.02],
                "fixedrange": True,
                "zeroline": False,
                "ticks": "outside",
                "title": {"text": t("GiB of one GPU"), "standoff": 6},
            },
            "yaxis": {
                "range": [len(named) - 0.5, -0.5],
                "fixedrange": True,
                "automargin": True,
                "showgrid": False,
                "zeroline": False,
                "ticks": "",
                "tickfont": {"size": 13},
                "tickvals": list(range(len(named))),
                "ticktext": [_wrapped(name) for name, _ in named],
            },
        },
    }


def _end_gib(plan: Plan) -> float:
    ends = [segment.start + segment.size for segment in segments(plan)]
    missing = shortage(plan)
    if missing is not None:
        ends.append(missing.start + missing.size)
    return max([gib(plan.memory.total.value) if plan.memory is not None else 0.0, *ends])


def _wrapped(name: str) -> str:
    """A name on short lines, so that a phone has room for the bars."""
    lines = [""]
    for word in name.split(" "):
        joined = f"{lines[-1]} {word}".strip()
        if len(joined) <= 16 or not lines[-1]:
            lines[-1] = joined
        else:
            lines.append(word)
    return "<br>".join(lines[:3])


def _segment_trace(segment: Segment, row: int, end: float, hidden_from: float, t: Words) -> Figure:
    part, size = segment.part, gib_text(segment.figure * GIB)
    # The hatching of what is missing covers the rest.
    seen = min(segment.size, hidden_from - segment.start)
    is_whole = seen == segment.size
    marker: Figure = {"color": part.color, "line": {"color": OUTLINE, "width": 1}}
    if part.pattern:
        marker["pattern"] = {
            "shape": part.pattern,
            "fgcolor": "rgba(60,60,60,0.55)",
            "bgcolor": part.color,
            "size": 7,
            "solidity": 0.18,
        }
    return {
        "type": "bar",
        "orientation": "h",
        "name": t(part.label),
        "x": [segment.size],
        "base": [segment.start],
        "y": [row],
        "width": 0.8,
        "marker": marker,
        "text": [size if seen >= (NAMED_FROM if is_whole else NAMED_FROM_CUT) * end else ""],
        "textposition": "inside",
        "insidetextanchor": "middle" if is_whole else "start",
        "textangle": 0,
        "textfont": {"color": part.text_color, "size": 12},
        "hovertemplate": f"{t(part.label)} {size}<extra></extra>",
    }


def _missing_trace(start: float, size: float, row: int) -> Figure:
    return {
        "type": "bar",
        "orientation": "h",
        "name": "missing",
        "x": [size],
        "base": [start],
        "y": [row],
        "width": 0.8,
        "marker": {
            "color": "rgba(213,94,0,0.22)",
            "line": {"color": CAPACITY, "width": 2},
            "pattern": {
                "shape": "/",
                "fgcolor": CAPACITY,
                "bgcolor": "rgba(255,255,255,0.55)",
                "size": 9,
                "solidity": 0.35,
            },
        },
        "hoverinfo": "skip",
    }


def _missing_note(bar_end: float, row: int, text: str, end: float) -> Figure:
    """Behind a short bar, at the end of a long one: never over the names next to the axis."""
    is_short = bar_end < SHORT_BAR * end
    place: Figure = {"xanchor": "left", "xshift": 4} if is_short else {"xanchor": "right", "xshift": -4}
    return _note(bar_end, row, text) | place


def _note(x: float, row: int, text: str) -> Figure:
    return {
        "x": x,
        "y": row,
        "xref": "x",
        "yref": "y",
        "text": f"<b>{text}</b>",
        "showarrow": False,
        "bgcolor": WARNING_GROUND,
        "bordercolor": CAPACITY,
        "borderwidth": 1,
        "borderpad": 2,
        "font": {"color": WARNING_TEXT, "size": 12},
    }


def _refused_note(row: int, text: str) -> Figure:
    note = _note(0, row, text)
    return note | {"xref": "paper", "xanchor": "left", "x": 0.01}


def _capacity(total_gib: float, row: int) -> Figure:
    return {
        "type": "line",
        "xref": "x",
        "yref": "y",
        "x0": total_gib,
        "x1": total_gib,
        "y0": row - 0.48,
        "y1": row + 0.48,
        "line": {"color": CAPACITY, "width": 3},
        "layer": "above",
    }


def seats_note(variant: Variant, t: Words) -> str:
    """How many run at once where `max_num_seqs` admits fewer requests than fit in the KV cache; "" elsewhere."""
    seats = waiting_seats(variant.plan) if variant.plan is not None and variant.starts else None
    return "" if seats is None else t("max_num_seqs runs {seats}", seats=count(seats))


def figures_of(variant: Variant) -> tuple[str, ...]:
    """The cells of the table after the verdict: requests, tokens, GPUs, replicas, requests on all, for each GPU."""
    cache = variant.plan.cache if variant.plan is not None else None
    starts = variant.starts
    return (
        concurrency_text(variant.max_concurrency) if starts else DASH,
        count(cache.tokens) if cache is not None and cache.num_blocks > 0 else DASH,
        str(variant.gpus),
        str(variant.replicas),
        concurrency_text(variant.all_requests) if starts else DASH,
        concurrency_text(variant.requests_per_gpu) if starts else DASH,
    )
