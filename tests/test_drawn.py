"""Curves as HTML: the same places, words and marks as the figure has."""

from __future__ import annotations

import re
from html import unescape

import pytest

from kvcore.advice.vary import tensor_parallel_curves
from kvcore.texts.words import Language, words
from kvcore.views import drawn
from kvcore.views import plotting as draw
from kvcore.views.charts import DASHES, LengthMark, concurrency_chart, curve_lengths, with_length_marks
from tests import present_plans

EN = words(Language.ENGLISH)


def figure(*data: draw.Figure, **layout: object) -> draw.Figure:
    """Both axes from 1 to 100: a share of a half is 10."""
    axes = {
        "xaxis": draw.log_axis(1, 100, "tokens", tickvals=[1, 10], ticktext=["one", "ten"]),
        "yaxis": draw.log_axis(1, 100, "requests", tickvals=[10], ticktext=["10"]),
    }
    return draw.figure(data, 100, (1, 2, 3, 4), **{"shapes": [], "annotations": [], **axes, **layout})


def line(xs: list[float], ys: list[float], dash: str = "", **more: object) -> draw.Figure:
    return draw.scatter("lines", xs, ys, line=draw.stroke("#123456", 2, dash), **more)


def columns(html: str) -> list[str]:
    return [unescape(said) for said in re.findall(r'data-said="([^"]*)"', html)]


class TestPlaces:
    def test_logarithms_are_shares_of_the_plot(self) -> None:
        scale = drawn.Scale((0, 2), (0, 2))
        assert scale.at(10, 10) == (0.5, 0.5)
        assert scale.at(1, 100) == (0, 0)
        assert scale.at_logarithms(2, 0) == (1, 1)

    def test_nothing_stands_below_every_axis(self) -> None:
        assert drawn.Scale((0, 2), (0, 2)).at(1, 0).y > 10

    def test_a_level_line_is_cut_out_at_its_height_and_width(self) -> None:
        html = drawn.html(figure(line([1, 100], [10, 10])), "x")
        above = "0.00% calc(50.00% - 1.00px),100.00% calc(50.00% - 1.00px)"
        below = "100.00% calc(50.00% + 1.00px),0.00% calc(50.00% + 1.00px)"
        assert f"clip-path:polygon({above},{below})" in html

    def test_a_steep_line_is_cut_higher(self) -> None:
        html = drawn.html(figure(line([1, 10], [100, 1])), "x")
        assert float(re.search(r"\+ ([\d.]+)px", html)[1]) == pytest.approx((1 + 1) ** 0.5, abs=0.01)

    def test_one_point_is_no_line(self) -> None:
        assert "clip-path" not in drawn.html(figure(line([1], [10])), "x")

    def test_margins_and_height_are_those_of_the_figure(self) -> None:
        html = drawn.html(figure(), "x")
        assert "height:100px" in html
        assert "inset:3px 2px 4px 1px" in html


class TestWords:
    def test_all_text_is_escaped(self) -> None:
        note = draw.note(0, 0, "<b><i>&</b>", xanchor="left", yanchor="top", xshift=0, yshift=0)
        hover = line([1, 10], [10, 10], text=["<script>", '"'], hovertemplate="%{text}<extra></extra>")
        html = drawn.html(figure(hover, annotations=[note]), '<"')
        assert 'aria-label="&lt;&quot;"' in html
        assert "<b>&lt;i&gt;&amp;</b>" in html
        assert "<script" not in html
        assert columns(html) == ["<script>", '"']

    def test_ticks_and_titles_are_named(self) -> None:
        html = drawn.html(figure(), "x")
        for text in ("one", "ten", "10", "tokens", "requests"):
            assert f">{text}</span>" in html

    def test_a_column_says_what_all_lines_say_from_the_highest_to_the_lowest(self) -> None:
        low = line([1, 10], [2, 1], text=["two", "one"], hovertemplate="%{x:,}: %{text}<extra></extra>")
        high = line([10], [90], text=["ninety"], hovertemplate="%{text}")
        assert columns(drawn.html(figure(low, high), "x")) == ["1: two", "ninety\n10: one"]

    def test_columns_fill_the_plot(self) -> None:
        one = line([1, 10, 100], [2, 1, 1], text=["a", "b", "c"], hovertemplate="%{text}")
        html = drawn.html(figure(one), "x")
        sizes = [float(size) for size in re.findall(r"kv-column[^>]*--size:([\d.]+)", html)]
        assert sizes == [0.25, 0.5, 0.25]


class TestLooks:
    def test_a_dashed_line_is_drawn_in_strokes(self) -> None:
        html = drawn.html(figure(line([1, 10], [1, 1], "dash")), "x")
        assert "repeating-linear-gradient(90deg,#123456 0px 6px,transparent 6px 12px)" in html

    def test_every_dash_of_the_charts_has_strokes(self) -> None:
        assert set(DASHES) <= set(drawn.DASHES)

    @pytest.mark.parametrize(
        ("trace", "said"),
        [
            ({"mode": "text", "x": [], "y": []}, "mode 'text'"),
            ({"mode": "lines", "x": [], "y": [], "fill": "tozeroy", "fillcolor": "red"}, "fill 'tozeroy'"),
            ({"mode": "markers", "x": [1], "y": [1], "marker": {"symbol": "star"}}, "symbol 'star'"),
        ],
    )
    def test_what_it_cannot_draw_is_refused(self, trace: draw.Figure, said: str) -> None:
        with pytest.raises(ValueError, match=said):
            drawn.html(figure(trace), "x")


class TestCurves:
    def test_every_point_of_the_figure_is_said(self) -> None:
        plan = present_plans.fits()
        chart = concurrency_chart(plan, tensor_parallel_curves(plan, curve_lengths(plan)), EN)
        html = drawn.html(chart, "x")
        said = "\n".join(columns(html))
        for trace in chart["data"]:
            for x, text in zip(trace["x"], trace.get("text", ()), strict=False):
                assert (f"{text} requests of {x:,} tokens" in said) or text in said
        assert len(columns(html)) == len(
            {x for trace in chart["data"] if "text" in trace for x in trace["x"]}
        )

    def test_percentiles_of_a_log_are_marked_and_named(self) -> None:
        plan = present_plans.fits()
        chart = concurrency_chart(plan, tensor_parallel_curves(plan, curve_lengths(plan)), EN)
        marks = [LengthMark("P50", 1000, 50.0), LengthMark("P99", 4000, 12.5)]
        html = drawn.html(with_length_marks(chart, marks), "x")
        assert html.count('class="kv-triangle"') == 2
        assert re.findall(r'kv-mark-name"[^>]*><b>(P\d\d)</b>', html) == ["P50", "P99"]
        assert "P99: 4,000 → " in "\n".join(columns(html))
