"""Every figure lies in its own interval, whatever was measured; bar, cards, chart, table and JSON say the same."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvcore.advice.vary import concurrency_curve
from kvcore.base.errors import EngineRefusalError
from kvcore.base.numbers import count
from kvcore.base.parts import SUMMED
from kvcore.base.units import GIB, gib
from kvcore.base.words import Language, words
from kvcore.charts import summary
from kvcore.charts.curves import curve_lengths
from kvcore.charts.memory_bar import budget_end_gib, difference_name, memory_bar, overlap, segments
from kvcore.contract.result import result_of
from kvcore.evidence.carry import carried_over
from kvcore.explain import numbers
from kvcore.planning import Plan, Verdict, plan
from kvcore.scenario import Measured, Origin
from kvcore.wire.request import scenario_from_request
from tests import present_plans

EN = words(Language.ENGLISH)
FIELDS = (
    "weights_gib",
    "peak_activation_gib",
    "non_torch_gib",
    "cuda_graph_gib",
    "system_gib",
    "available_kv_gib",
)
DEPLOYMENTS: tuple[dict[str, Any], ...] = (
    {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB"},
    {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "tensor_parallel_size": 2},
    {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "pipeline_parallel_size": 3},
    {"model": "Qwen/Qwen3-8B", "accelerator": "L40S-48GB", "engine_version": "0.8.5", "env": {"VLLM_USE_V1": "0"}},
    {"model": "deepseek-ai/DeepSeek-V3", "accelerator": "H200-141GB", "tensor_parallel_size": 8},
    {"model": "google/gemma-3-27b-it", "accelerator": "A100-80GB"},
    {"model": "Qwen/Qwen3-8B", "accelerator": "Ascend-910B3-64GB"},
    {"model": "Qwen/Qwen3-8B", "accelerator": "Ascend-910B3-64GB", "engine": "vllm-mindspore"},
    {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "num_gpu_blocks_override": 2000},
    {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "kv_cache_memory_bytes": 12 * GIB},
)  # fmt: skip

LOWEST = {"non_torch_gib": -20.0, "cuda_graph_gib": -20.0, "available_kv_gib": -20.0}
"""What logs print below zero: the engine's own differences."""
parts_of_a_start = st.fixed_dictionaries(
    {}, optional={name: st.floats(LOWEST.get(name, 0.0), 90) for name in FIELDS}
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A deployment with any calibration: parts measured, fitted, carried over from another one, or none."""
    request = {
        **draw(st.sampled_from(DEPLOYMENTS)),
        "max_model_len": draw(st.sampled_from((512, 4096, 8192))),
    }
    given_parts = draw(parts_of_a_start)
    names = sorted(given_parts)
    marks = {name: draw(st.sampled_from(Origin)) for name in names}
    measured = Measured(
        **given_parts,
        fitted=tuple(name for name in FIELDS if marks.get(name) is Origin.FITTED),
        carried=tuple(name for name in FIELDS if marks.get(name) is Origin.CARRIED),
    )
    scenario = replace(scenario_from_request(request), measured=measured)
    if draw(st.booleans()):
        other = replace(scenario, gpu_memory_utilization=draw(st.sampled_from((0.5, 0.8, 0.95))))
        scenario = carried_over(scenario, other)
    try:
        return plan(scenario)
    except EngineRefusalError:
        return plan(replace(scenario, measured=Measured()))


def numbers_in(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", text)]


@settings(deadline=None, max_examples=60)
@given(plans())
def test_every_figure_lies_in_its_interval_and_parts_sum_to_the_whole(planned: Plan) -> None:
    memory = planned.memory
    assert memory is not None
    for quantity in (
        *memory.total.walk(),
        *memory.remainder.walk(),
        *(planned.cache.figures.longest.walk() if planned.cache is not None else ()),
    ):
        check(quantity)
    for name in (*SUMMED, "available_kv", "counted_graphs", "budget"):
        check(getattr(memory, name))
    assert sum(getattr(memory, name).value for name in SUMMED) == memory.total.value
    answer = result_of(planned)
    parts = dict(answer["per_rank_gib"])
    total = parts.pop("total")
    assert sum(parts.values()) == pytest.approx(total, abs=5e-6)  # each is rounded to six decimals
    for name, (low, high) in answer["interval_gib"].items():
        value = total if name == "total" else parts[name]
        assert low <= value <= high, name


def check(quantity: Any) -> None:
    if quantity.interval is not None:
        low, high = quantity.interval
        assert low <= quantity.value <= high, quantity


@settings(deadline=None, max_examples=60)
@given(plans())
def test_bar_cards_band_and_table_say_the_same(planned: Plan) -> None:
    memory = planned.memory
    assert memory is not None
    drawn = segments(planned)
    ends = [segment.start + segment.size for segment in drawn]
    for before, after in zip(ends[:-1], drawn[1:], strict=True):
        assert after.start == pytest.approx(before, abs=1e-6)
    overrun = gib(max(0.0, -memory.unused.value))
    # What a log prints below zero has no width, so the others go that much further.
    below = [
        min(0.0, getattr(memory, name).value) for name in SUMMED if name not in ("unaccounted", "unused")
    ]
    least = gib(memory.total.value - sum(below)) + overrun
    # Graphs below zero are drawn by what the engine counts of them, so the sum goes further by that estimate too.
    assert ends[-1] == pytest.approx(least, abs=1e-6) or (memory.cuda_graphs.value < 0 and ends[-1] > least)
    curve = concurrency_curve(planned, curve_lengths(planned))
    for low, value, high in zip(curve.low, curve.concurrency, curve.high, strict=True):
        assert low <= value <= high
    card = summary.cards(planned, curve, EN)[0]
    if planned.cache is not None and planned.cache.fits:
        at = curve.lengths.index(planned.resolved.max_model_len)
        assert curve.concurrency[at] == pytest.approx(planned.cache.max_concurrency)
        bounds = numbers_in(card.note.rpartition(", ")[2]) if "–" in card.note else []
        if bounds:
            assert bounds[0] <= numbers_in(card.value)[0] <= bounds[1]
    row = next(row for row in numbers.number_rows(planned, EN) if row.label == "KV cache")
    ends_of = memory.kv_cache.interval
    reads_same = ends_of is not None and math.isclose(*ends_of, rel_tol=numbers.SAME)
    assert (row.interval == "") == (ends_of is None or reads_same)


def given_kv(available_gib: float, **fields: Any) -> Plan:
    return present_plans.request(measured={"available_kv_gib": available_gib}, **fields)


class TestGivenKvMemory:
    """Qwen3-8B on an H100: the parts leave 53 GiB."""

    MODEL = "Qwen/Qwen3-8B"

    def test_it_is_as_sure_as_a_log_prints_and_no_surer(self) -> None:
        planned = given_kv(20.0, model=self.MODEL)
        assert planned.memory is not None
        assert planned.memory.available_kv.interval == (19.995 * GIB, 20.005 * GIB)
        low, high = result_of(planned)["interval_gib"]["kv_cache"]
        assert 19.98 < low <= 20 <= high < 20.006
        curve = concurrency_curve(planned, (8192,))
        assert curve.low[0] == pytest.approx(curve.high[0], rel=1e-3)
        card = summary.cards(planned, curve, EN)[0]
        assert card.note == f"of {count(planned.resolved.max_model_len)} tokens"

    def test_what_the_parts_leave_beyond_it_is_drawn_and_named(self) -> None:
        planned = given_kv(20.0, model=self.MODEL)
        memory = planned.memory
        assert memory is not None
        difference = gib(memory.remainder.value) - 20
        assert difference > 25
        (drawn,) = [segment for segment in segments(planned) if segment.part.name == "unaccounted"]
        assert drawn.size == pytest.approx(difference, abs=1e-6)
        kv = next(segment for segment in segments(planned) if segment.part.name == "kv_cache")
        assert kv.start == pytest.approx(drawn.start + drawn.size)
        assert kv.start + kv.size == pytest.approx(budget_end_gib(planned), abs=0.01)
        (bar,) = memory_bar(planned, EN).bars
        assert "Unaccounted for" in [piece.said[0] for piece in bar.pieces if piece.said]
        assert "kv-memory-below-parts" in [notice.code for notice in planned.notices]
        assert result_of(planned)["per_rank_gib"]["unaccounted"] == pytest.approx(difference, abs=1e-6)

    def test_one_that_is_larger_takes_its_place_from_the_estimates(self) -> None:
        planned = given_kv(60.0, model=self.MODEL)
        memory = planned.memory
        assert memory is not None
        difference = 60 - gib(memory.remainder.value)
        assert difference > 4
        reaching = overlap(planned)
        assert reaching is not None
        assert reaching.size == pytest.approx(difference)
        kv = next(segment for segment in segments(planned) if segment.part.name == "kv_cache")
        assert kv.start == pytest.approx(reaching.start)
        assert kv.start + kv.size == pytest.approx(budget_end_gib(planned), abs=0.01)
        assert difference_name(planned) == "Parts estimated too high"
        assert "kv-memory-above-parts" in [notice.code for notice in planned.notices]

    def test_one_near_the_estimate_is_no_warning(self) -> None:
        left = present_plans.request(model=self.MODEL).memory
        assert left is not None
        planned = given_kv(gib(left.available_kv.value) - 0.1, model=self.MODEL)
        assert not [notice for notice in planned.notices if notice.code.startswith("kv-memory")]

    def test_one_carried_over_is_no_surer_than_what_the_parts_leave_there(self) -> None:
        measured = {"available_kv_gib": 20.0, "carried": ["available_kv_gib"]}
        planned = present_plans.request(model=self.MODEL, measured=measured)
        assert planned.memory is not None
        low, high = planned.memory.available_kv.interval or (0.0, 0.0)
        left = planned.memory.remainder
        assert left.interval is not None
        assert gib(low) == pytest.approx(20, abs=1)
        assert high == left.interval[1]

    def test_one_carried_over_where_the_parts_leave_nothing_is_tight(self) -> None:
        measured = {"available_kv_gib": 20.0, "carried": ["available_kv_gib"]}
        fields: dict[str, Any] = {"model": "Qwen/Qwen3-32B", "accelerator": "RTX-4090-24GB"}
        assert present_plans.request(**fields, measured=measured).verdict is Verdict.TIGHT
        own = {"available_kv_gib": 20.0}
        assert present_plans.request(**fields, measured=own).verdict is Verdict.FITS

    def test_a_flag_that_sets_the_memory_leaves_nothing_to_account_for(self) -> None:
        planned = given_kv(20.0, model=self.MODEL, kv_cache_memory_bytes=8 * GIB)
        assert planned.memory is not None
        assert planned.memory.unaccounted.value == 0
