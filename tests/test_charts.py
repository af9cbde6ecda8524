"""The memory bar and the chart of lengths, as data: what they show adds up, and says what it is."""

import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvcore.advice.vary import ConcurrencyCurve, tensor_parallel_curves
from kvcore.base.numbers import gib_text
from kvcore.base.parts import PARTS
from kvcore.base.units import gib
from kvcore.base.words import Language, words
from kvcore.charts.curves import LengthMark, concurrency_chart, curve_lengths, with_length_marks
from kvcore.charts.heat import FAINT
from kvcore.charts.memory_bar import budget_end_gib, counted_graphs_gib, memory_bar, segments, shortage
from kvcore.charts.stack import BUDGET, CAPACITY, MISSING, SPAN, Piece
from kvcore.planning import Plan
from tests import present_plans

EN, ZH = words(Language.ENGLISH), words(Language.CHINESE)
PLANS = [present_plans.fits, present_plans.too_long, present_plans.too_big, present_plans.rule_of_thumb]


def pieces(plan: Plan) -> tuple[Piece, ...]:
    (drawn,) = memory_bar(plan, EN).bars
    return drawn.pieces


def across(plan: Plan) -> dict[str, Piece]:
    (drawn,) = memory_bar(plan, EN).bars
    return {piece.look: piece for piece in drawn.across}


def words_at_the_bar(plan: Plan) -> list[str]:
    stack = memory_bar(plan, EN)
    return [note.text for note in (*stack.notes, *(note for bar in stack.bars for note in bar.notes))]


def chart(plan: Plan) -> dict:
    return concurrency_chart(plan, tensor_parallel_curves(plan, curve_lengths(plan)), EN)


def notes(figure: dict) -> str:
    return "\n".join(note["text"] for note in figure["layout"]["annotations"])


class TestMemoryBar:
    @pytest.mark.parametrize("make", [present_plans.fits, present_plans.rule_of_thumb])
    def test_the_parts_fill_the_card_without_gaps(self, make) -> None:
        plan = make()
        drawn = pieces(plan)
        assert sum(piece.size for piece in drawn) == pytest.approx(gib(plan.memory.total.value))
        position = 0.0
        for piece in drawn:
            assert piece.start == pytest.approx(position)
            position += piece.size

    def test_names_and_sizes_stand_on_the_parts(self) -> None:
        assert ("Weights", "61.0 GiB") in [piece.said for piece in pieces(present_plans.fits())]

    def test_a_shortage_is_hatched_and_labelled_in_gib(self) -> None:
        plan = present_plans.too_big()
        missing = shortage(plan)
        assert missing.size == pytest.approx(-gib(plan.memory.available_kv.value))
        assert missing.start == pytest.approx(budget_end_gib(plan))
        (hatched,) = [piece for piece in pieces(plan) if piece.look == MISSING]
        assert (hatched.start, hatched.size) == (missing.start, missing.size)
        assert f"{missing.size:.1f} GiB missing" in words_at_the_bar(plan)

    def test_a_name_does_not_stand_under_the_hatching(self) -> None:
        plan = present_plans.too_big()
        start = shortage(plan).start
        under = [piece for piece in pieces(plan) if piece.look != MISSING and piece.start >= start]
        assert under
        assert [piece.said for piece in under] == [()] * len(under)

    def test_a_context_too_long_is_short_of_what_one_request_lacks(self) -> None:
        plan = present_plans.too_long()
        missing = shortage(plan)
        assert missing.size == pytest.approx(gib(plan.cache.needed_bytes - plan.memory.available_kv.value))

    def test_a_plan_that_fits_misses_nothing(self) -> None:
        assert shortage(present_plans.fits()) is None

    def test_budget_and_capacity_are_two_lines(self) -> None:
        plan = present_plans.fits()
        lines = across(plan)
        assert lines[BUDGET].start == pytest.approx(budget_end_gib(plan))
        assert lines[CAPACITY].start == pytest.approx(gib(plan.memory.total.value))
        assert [text.split()[0] for text in words_at_the_bar(plan)] == ["card", "budget"]

    def test_the_budget_is_as_long_as_the_span_that_its_label_names(self) -> None:
        plan = present_plans.fits()
        span = across(plan)[SPAN]
        assert span.size == pytest.approx(gib(plan.memory.budget.value))
        assert span.start == pytest.approx(gib(plan.memory.system.value))
        assert f"budget {gib_text(plan.memory.budget.value)}, not counting System" in words_at_the_bar(plan)

    @pytest.mark.parametrize("version", ["0.33.0", "0.32.0", "0.28.0", "0.19.0", "0.11.0"])
    @pytest.mark.parametrize("size", [1, 2, 8])
    def test_the_kv_cache_ends_at_the_budget_in_every_version(self, version: str, size: int) -> None:
        plan = present_plans.request(engine_version=version, tensor_parallel_size=size)
        kv = next(segment for segment in segments(plan) if segment.part.name == "kv_cache")
        # Less than one block is left over: 4 MiB.
        assert kv.start + kv.size == pytest.approx(budget_end_gib(plan), abs=0.0045)

    def test_graphs_that_are_not_counted_stand_past_the_budget(self) -> None:
        plan = present_plans.request(engine_version="0.19.0")
        assert counted_graphs_gib(plan) == 0
        graphs = [segment for segment in segments(plan) if segment.part.name == "cuda_graphs"]
        assert [round(segment.start, 1) for segment in graphs] == [round(budget_end_gib(plan), 1)]

    def test_neighbours_differ_in_colour_and_every_part_has_its_own(self) -> None:
        assert len({part.color for part in PARTS}) == len(PARTS)

    def test_text_of_the_parts_is_legible(self) -> None:
        for part in PARTS[:-1]:
            assert contrast(part.color, part.text_color) >= 4.5, part.name

    def test_it_has_a_unit_on_its_axis_in_both_languages(self) -> None:
        for words_of in (EN, ZH):
            assert "GiB" in memory_bar(present_plans.fits(), words_of).axis


class TestConcurrencyChart:
    def test_one_line_per_size_that_the_engine_takes(self) -> None:
        names = {trace["name"] for trace in chart(present_plans.fits())["data"]}
        assert {"TP 1", "TP 2", "TP 4", "TP 8"} <= names
        assert "TP 3" not in names

    def test_the_present_line_is_told_by_more_than_colour(self) -> None:
        lines = {
            t["name"]: t["line"] for t in chart(present_plans.fits())["data"] if t["name"].startswith("TP")
        }
        assert lines["TP 1"]["dash"] == "solid"
        assert lines["TP 1"]["width"] > lines["TP 2"]["width"]
        others = [line["dash"] for name, line in lines.items() if name != "TP 1"]
        assert len(set(others)) == len(others)

    def test_the_operating_point_lies_on_the_line(self) -> None:
        plan = present_plans.fits()
        data = chart(plan)["data"]
        point = next(trace for trace in data if trace["name"] == "now")
        line = next(trace for trace in data if trace["name"] == "TP 1")
        assert point["x"] == [8192]
        assert line["y"][line["x"].index(8192)] == pytest.approx(point["y"][0])
        assert point["y"][0] == pytest.approx(plan.cache.max_concurrency)

    def test_the_zone_below_one_is_hatched_and_labelled(self) -> None:
        figure = chart(present_plans.fits())
        zone = next(trace for trace in figure["data"] if trace["name"] == "oom")
        assert max(zone["y"]) == 1
        assert zone["fillpattern"]["shape"] == "/"
        assert "not even one request fits" in notes(figure)

    def test_the_band_contains_the_line(self) -> None:
        figure = chart(present_plans.fits())
        band = next(trace for trace in figure["data"] if trace["name"] == "interval")
        line = next(trace for trace in figure["data"] if trace["name"] == "TP 1")
        half = len(band["y"]) // 2
        high, low = band["y"][:half], band["y"][half:][::-1]
        for below, value, above in zip(low, line["y"], high, strict=True):
            assert below <= value <= above
        assert any(below < above for below, above in zip(low, high, strict=True))

    def test_limits_are_drawn_and_named(self) -> None:
        plan = present_plans.fits()
        figure = chart(plan)
        assert f"max_num_seqs {plan.resolved.max_num_seqs:,}" in notes(figure)
        assert "model limit 40K" in notes(figure)
        assert any(shape["x0"] == shape["x1"] == 40960 for shape in figure["layout"]["shapes"])

    @pytest.mark.parametrize(("seats", "side"), [(4096, "top"), (64, "bottom")])
    def test_near_the_top_the_seats_are_named_below_their_line(self, seats: int, side: str) -> None:
        """The name of the model's limit stands at the top: the two ran into each other."""
        figure = chart(present_plans.request(tensor_parallel_size=1, max_model_len=8192, max_num_seqs=seats))
        (name,) = (
            note for note in figure["layout"]["annotations"] if f"max_num_seqs {seats:,}" in note["text"]
        )
        assert name["yanchor"] == side

    def test_lines_that_end_together_share_a_name(self) -> None:
        plan = present_plans.fits()
        lengths = curve_lengths(plan)

        def curve(size: int, at_end: float) -> ConcurrencyCurve:
            values = tuple(at_end * lengths[-1] / length for length in lengths)
            return ConcurrencyCurve(
                tensor_parallel_size=size, lengths=lengths, concurrency=values, low=values, high=values
            )

        figure = concurrency_chart(plan, (curve(1, 1.0), curve(8, 30.0), curve(16, 31.0)), EN)
        assert "TP 8, 16" in notes(figure)
        assert "TP 1" in notes(figure)

    def test_a_size_without_kv_memory_has_no_line(self) -> None:
        names = {trace["name"] for trace in chart(present_plans.too_big())["data"]}
        assert "TP 1" not in names
        assert "now" not in names
        assert "TP 4" in names

    def test_the_planned_length_and_the_limit_are_on_the_curve(self) -> None:
        assert {8192, 40960, 512} <= set(curve_lengths(present_plans.fits()))

    def test_where_not_one_request_fits_the_point_is_named_above_the_words_of_the_zone(self) -> None:
        """On a phone both stand at one place, and one covered the other."""
        notes = chart(present_plans.too_long())["layout"]["annotations"]
        (now,) = (note for note in notes if "now: 0." in note["text"])
        (zone,) = (note for note in notes if "OOM at start" in note["text"])
        assert (now["yanchor"], zone["yanchor"]) == ("bottom", "top")
        assert now["y"] >= 0 > zone["y"]

    def test_where_max_num_seqs_is_the_bound_the_point_says_what_runs_and_covers_no_name(self) -> None:
        plan = present_plans.request(tensor_parallel_size=1, max_model_len=8192, max_num_seqs=3)
        assert 3 < plan.cache.max_concurrency < 6
        figure = chart(plan)
        assert f"now: 3, room for {plan.cache.max_concurrency:.2f}" in notes(figure)
        (name,) = (note for note in figure["layout"]["annotations"] if note["text"] == "max_num_seqs 3")
        assert (name["xanchor"], name["x"]) == ("left", figure["layout"]["xaxis"]["range"][0])

    def test_positions_of_notes_are_logarithms(self) -> None:
        figure = chart(present_plans.fits())
        left, right = figure["layout"]["xaxis"]["range"]
        assert all(left <= note["x"] <= right for note in figure["layout"]["annotations"])


@pytest.mark.parametrize("make", PLANS)
@pytest.mark.parametrize("t", [EN, ZH])
def test_figures_are_plain_finite_json(make, t) -> None:
    plan = make()
    figure = concurrency_chart(plan, tensor_parallel_curves(plan, curve_lengths(plan)), t)
    assert json.loads(json.dumps(figure, allow_nan=False)) == figure
    assert figure["layout"]["showlegend"] is False


def contrast(one: str, other: str) -> float:
    """WCAG contrast ratio of two hex colours."""

    def luminance(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def on_ground(color: str, ground: str) -> str:
    """A translucent colour of CSS on an opaque hex one."""
    *parts, alpha = (float(part) for part in re.findall(r"[\d.]+", color))
    under = (int(ground[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(
        f"{round(top * alpha + low * (1 - alpha)):02x}" for top, low in zip(parts, under, strict=True)
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_s_texts_are_legible_on_the_grounds_of_cells(scheme: str) -> None:
    """In light style.css replaces Streamlit's grey; in dark Streamlit's own colour stands."""
    page = tomllib.loads(Path(".streamlit/config.toml").read_text("utf-8"))["theme"][scheme][
        "backgroundColor"
    ]
    grey = r'text\[style\*="rgb\(128, 132, 149\)"\] \{ fill: (#\w{6}) !important; \}'
    found = re.search(grey, Path("pages/ui/shared/style.css").read_text("utf-8"))
    assert found is not None
    text = found[1] if scheme == "light" else "#E6EAF1"
    for ground in (FAINT, "rgba(0,0,0,0)"):
        assert contrast(on_ground(ground, page), text) >= 4.5, ground


def test_contrast_itself() -> None:
    assert math.isclose(contrast("#000000", "#FFFFFF"), 21.0)


def test_percentiles_of_requests_stand_on_the_chart() -> None:
    chart: dict[str, Any] = {"data": [{"name": "line"}], "layout": {}}
    marks = [LengthMark("P50", 1000, 90.0), LengthMark("P95", 1660, 60.0), LengthMark("P99", 1700, 58.0)]
    drawn = with_length_marks(chart, marks)
    (trace,) = drawn["data"][1:]
    assert (trace["x"], trace["y"]) == ([1000, 1660, 1700], [90.0, 60.0, 58.0])
    assert trace["text"] == ["<b>P50</b>", "", "<b>P99</b>"]
    assert chart["data"] == [{"name": "line"}]


def test_without_marks_the_chart_stays_as_it_is() -> None:
    chart: dict[str, Any] = {"data": [], "layout": {}}
    assert with_length_marks(chart, [LengthMark("P50", 1000, 0.0)]) is chart
