"""Two bars on one GiB axis: predicted of a GPU, and taken by a start. A plain dict in Plotly's JSON schema."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from kvcore.evidence.calibration import Comparison, PartComparison
from kvcore.planning import Plan
from kvcore.texts.palette import CAPACITY, OUTLINE, PARTS, Part
from kvcore.texts.words import Words, gib_text
from kvcore.units import GIB, gib

Figure: TypeAlias = dict[str, Any]

HEIGHT: Final = 190
FAINT: Final = 0.3
"""Opacity of a part that the log does not give: drawn as predicted."""


def comparison_bar(comparison: Comparison, planned: Plan, t: Words) -> Figure:
    """Predicted above measured, the same colours, the card's total as a line.

    A part that the log does not give stands in the lower bar as predicted, faint.
    """
    known = _by_name(comparison)
    rows = {"measured": t("Measured"), "predicted": t("Predicted")}
    data: list[Figure] = []
    ends = dict.fromkeys(rows, 0.0)
    for part in PARTS:
        compared = known.get(part.name)
        if compared is None:
            continue
        sizes = {"predicted": compared.predicted_gib, "measured": compared.measured_gib}
        for row, label in rows.items():
            size = sizes[row]
            is_faint = size is None
            width = max(0.0, compared.predicted_gib if size is None else size)
            if width > 0:
                data.append(_segment(part, label, ends[row], width, is_faint, t))
            ends[row] += width
    total = gib(planned.memory.total.value) if planned.memory is not None else max(ends.values())
    end = max(total, *ends.values())
    return {
        "data": data,
        "layout": {
            "barmode": "overlay",
            "bargap": 0.25,
            "height": HEIGHT,
            "margin": {"l": 4, "r": 4, "t": 24, "b": 44},
            "showlegend": False,
            "dragmode": False,
            "hoverlabel": {"align": "left"},
            "uniformtext": {"minsize": 11, "mode": "hide"},
            "xaxis": {
                "range": [0, end * 1.01],
                "fixedrange": True,
                "showgrid": False,
                "zeroline": False,
                "ticks": "outside",
                "title": {"text": t("GiB of one {card}", card=planned.accelerator.name), "standoff": 6},
            },
            "yaxis": {
                "fixedrange": True,
                "automargin": True,
                "categoryarray": list(rows.values()),
                "ticks": "",
            },
            "shapes": [
                {
                    "type": "line",
                    "xref": "x",
                    "yref": "paper",
                    "x0": total,
                    "x1": total,
                    "y0": -0.05,
                    "y1": 1.05,
                    "line": {"color": CAPACITY, "width": 3},
                }
            ],
            "annotations": [
                {
                    "x": total,
                    "y": 1.05,
                    "xref": "x",
                    "yref": "paper",
                    "xanchor": "right",
                    "yanchor": "bottom",
                    "showarrow": False,
                    "text": t("card {size}", size=gib_text(total * GIB)),
                    "font": {"size": 12},
                }
            ],
        },
    }


def compared_parts(comparison: Comparison) -> tuple[Part, ...]:
    """The parts of both bars, in the order of the bar."""
    known = _by_name(comparison)
    return tuple(part for part in PARTS if part.name in known)


def _by_name(comparison: Comparison) -> dict[str, PartComparison]:
    """The compared parts by their names in the palette, where memory for the KV cache is the cache itself."""
    return {"kv_cache" if part.part == "available_kv" else part.part: part for part in comparison.parts}


def _segment(part: Part, row: str, start: float, width: float, is_faint: bool, t: Words) -> Figure:
    label, size = t(part.label), gib_text(width * GIB)
    name = (
        t("{part} {size}, not in the log: as predicted", part=label, size=size)
        if is_faint
        else f"{label} {size}"
    )
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
        "name": label,
        "x": [width],
        "base": [start],
        "y": [row],
        "opacity": FAINT if is_faint else 1,
        "marker": marker,
        "text": ["" if is_faint else f"{label}<br>{size}"],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"color": part.text_color, "size": 13},
        "hovertemplate": f"{name}<extra></extra>",
    }
