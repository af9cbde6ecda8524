"""The curve as HTML: places by hand, texts escaped, what stands under the pointer."""

from __future__ import annotations

import re
from html import unescape
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

import pytest

from kvcore.advice.vary import tensor_parallel_curves
from kvcore.charts import plotting as draw
from kvcore.charts.curves import LengthMark, curve_lengths, curve_said, with_length_marks
from kvcore.charts.figure_html import Said, figure_html
from tests.test_charts import EN, chart, present_plans


def figure(data: list[dict[str, Any]], **layout: Any) -> dict[str, Any]:
    axes = {"xaxis": draw.log_axis(1, 100, "tokens"), "yaxis": draw.log_axis(1, 10_000, "requests")}
    return draw.figure(data, 380, (56, 62, 12, 48), **axes, **layout)


def image(html: str) -> str:
    (found,) = re.findall(r'src="data:image/svg\+xml,([^"]*)"', html)
    return unquote(unescape(found))


def test_lines_stand_at_the_shares_of_their_logarithms() -> None:
    line = draw.scatter("lines", [1, 10, 100], [10_000, 100, 1], line=draw.stroke("#0072B2", 2.5, "dash"))
    drawn = image(figure_html(figure([line]), "a"))
    assert '<polyline points="0,0 500,500 1000,1000" stroke="#0072B2" stroke-width="2.5"' in drawn
    assert 'stroke-dasharray="8 5"' in drawn


def test_marks_and_their_names_stand_beside_the_image() -> None:
    marked = with_length_marks(figure([]), [LengthMark("P50", 10, 100.0)])
    html = figure_html(marked, "a")
    assert re.search(r'kv-triangle" style="left:50%;bottom:50%"><i style="[^"]*"></i><b>P50</b>', html)
    assert "P50" not in image(html)


@pytest.mark.parametrize(
    ("anchors", "moved"),
    [
        (("left", "bottom", 4, 5), "translate(calc(0% + 4px),calc(0% - 5px))"),
        (("right", "top", -4, -2), "translate(calc(-100% + -4px),calc(100% - -2px))"),
    ],
)
def test_a_note_is_moved_by_its_anchor(anchors: tuple[str, str, int, int], moved: str) -> None:
    place = dict(zip(("xanchor", "yanchor", "xshift", "yshift"), anchors, strict=True))
    html = figure_html(figure([], annotations=[draw.note(1.0, 2.0, "<b>now</b>", **place)]), "a")
    assert f'class="kv-plot-note kv-bold" style="left:50%;bottom:50%;transform:{moved}">now<' in html


def test_every_text_is_escaped() -> None:
    sign = "<img src=x onerror=alert(1)>"
    note = draw.note(1.0, 1.0, sign, xanchor="left", yanchor="top", xshift=0, yshift=0)
    html = figure_html(figure([], annotations=[note]), sign, [Said(10, (sign,))])
    assert "<img src=x" not in html
    assert html.count("&lt;img src=x") == 3


def test_under_the_pointer_stands_what_fits_at_each_length() -> None:
    """The stretches cover the frame once; the sentence has the figures that the plan of that length has."""
    plan = present_plans.fits()
    curves = tensor_parallel_curves(plan, curve_lengths(plan))
    said = curve_said(curves, EN)
    html = figure_html(chart(plan), "a", said)
    stretches = [
        (float(left), float(width))
        for left, width in re.findall(r'class="kv-pointed[^"]*" style="left:([\d.]+)%;width:([\d.]+)%', html)
    ]
    assert len(stretches) == len(curve_lengths(plan))
    for (left, width), (after, _) in pairwise(stretches):
        assert left + width == pytest.approx(after, abs=0.01)
    assert sum(width for _, width in stretches) == pytest.approx(100, abs=0.1)
    (now,) = (one for one in said if one.at == plan.resolved.max_model_len)
    size = plan.scenario.parallel.tensor_parallel_size
    assert f"TP {size}: {plan.cache.max_concurrency:.2f}" in now.lines


def test_a_plan_that_says_the_same_is_drawn_the_same() -> None:
    plan = present_plans.fits()
    assert figure_html(chart(plan), "a") == figure_html(chart(present_plans.fits()), "a")
