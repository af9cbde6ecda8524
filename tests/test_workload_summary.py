"""Text and charts of the Workload page: sentences by state, shares that add up, downloads without formulas."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kvcore.base.words import Language, Words, words
from kvcore.charts.length_histogram import bin_edges, binned, is_wide, length_histogram, marked_limits
from kvcore.charts.summary import Outcome
from kvcore.charts.workload_summary import (
    advice_lines,
    choice_rows,
    choices_csv,
    conversation_sentence,
    histogram_csv,
    left_out_note,
    mix_sentence,
    prefix_sentence,
    sentence,
    steady_figures,
    turn_rows,
)
from kvcore.planning import Plan
from kvcore.workload.histogram import LengthHistogram
from kvcore.workload.limits import Conversation, limit_choice, limit_choices, prefix_sharing
from kvcore.workload.mix import Mix
from tests import present_plans
from tests.test_workload_mix import mix_of

EN, ZH = words(Language.ENGLISH), words(Language.CHINESE)
SERVICE = mix_of(*((800 + n % 401, 100, 512) for n in range(4010)))
"""P99 of 1,196 + 512 = 1,708, so 1,792."""


def said(plan: Plan, now: int, mix: Mix = SERVICE) -> tuple[Outcome, str]:
    found = sentence(
        mix,
        limit_choice(plan.scenario, mix, mix.recommended_max_model_len),
        limit_choice(plan.scenario, mix, now),
        EN,
    )
    return found.outcome, found.text


class TestSentence:
    """163,840 tokens in 10,240 blocks of 16: 1,792 tokens take 112 blocks, 91.4 requests."""

    @pytest.mark.parametrize(
        ("now", "outcome", "text"),
        [
            (8192, Outcome.FITS, "at max_model_len 1,792 this deployment fits 91 of that length at once; "
                                 "your 8,192 fits 20"),
            (1792, Outcome.FITS, "your 1,792 is right, and fits 91 of that length at once"),
            (1709, Outcome.FITS, "your 1,709 is enough"),
            (1612, Outcome.CAUTION, "25\N{NO-BREAK SPACE}% of them exceed your 1,612"),
            (50_000, Outcome.CAUTION, "with your 50,000 it does not start"),
        ],
    )  # fmt: skip
    def test_the_sentence_at_the_present_limit(self, now: int, outcome: Outcome, text: str) -> None:
        found = said(present_plans.rule_of_thumb(), now)
        assert found[0] is outcome
        assert found[1].startswith("99 % of the requests need 1,708 tokens")
        assert text in found[1]

    def test_nothing_fits(self) -> None:
        assert said(present_plans.too_big(), 8192)[0] is Outcome.FAILS

    def test_a_limit_does_not_make_short_requests_shorter(self) -> None:
        base = present_plans.rule_of_thumb().scenario
        short, long = (limit_choice(base, SERVICE, limit) for limit in (1792, 8192))
        assert "under either limit" in mix_sentence(short, long, EN)
        assert "either" not in mix_sentence(short, short, EN)

    @pytest.mark.parametrize(
        ("version", "words_"),
        [("0.19.0", "refuses"), ("0.33.0", "stops the answer"), ("0.30.0", "up to vLLM 0.28")],
    )
    def test_requests_over_the_limit_end_as_in_that_version(self, version: str, words_: str) -> None:
        plan = present_plans.request(engine_version=version)
        assert words_ in left_out_note(limit_choice(plan.scenario, SERVICE, 2048), EN)


class TestTable:
    def choices(self) -> tuple:
        return limit_choices(present_plans.rule_of_thumb(), SERVICE, 2048)

    def test_marks_and_figures(self) -> None:
        rows = {row.limit: row for row in choice_rows(self.choices(), 1792, 8192, 2048, EN)}
        assert rows["1,792"].marks == ("recommended",)
        assert rows["8,192"].marks == ("now",)
        assert (rows["2,048"].worst_case, rows["2,048"].left_out) == ("80", "0\N{NO-BREAK SPACE}%")
        assert rows["1,024"].left_out == "100\N{NO-BREAK SPACE}%"

    def test_no_cell_of_a_download_is_a_formula(self) -> None:
        for text in (choices_csv(self.choices()), histogram_csv(SERVICE)):
            rows = list(csv.reader(io.StringIO(text)))
            assert len({len(row) for row in rows}) == 1
            assert not [cell for row in rows for cell in row if cell[:1] in "=+-@\t\r" and cell]
        assert histogram_csv(SERVICE).splitlines()[1] == "900,10,0"


class TestHistogram:
    @given(st.lists(st.integers(1, 100_000), min_size=1, max_size=80), st.booleans())
    def test_shares_sum_to_one_and_no_length_is_lost(self, values: list[int], is_log: bool) -> None:
        edges = bin_edges(min(values), max(values), is_log=is_log)
        assert list(edges) == sorted(set(edges))
        assert len(edges) > 1
        assert edges[0] <= min(values)
        assert edges[-1] >= max(values)
        assert len(edges) <= 103
        shares = binned(LengthHistogram.from_lengths(values), edges).shares
        assert sum(shares) == pytest.approx(1)
        assert min(shares) >= 0

    def test_the_axis_follows_the_data(self) -> None:
        narrow = mix_of(*((800 + n, 100, None) for n in range(400)))
        assert not is_wide(narrow, [1536])
        assert is_wide(narrow, [40_960])
        assert is_wide(mix_of((100, 10, None), (100, 10, None), (20_000, 10, None)), [512])

    def test_limits_are_marked_and_equal_ones_share_a_line(self) -> None:
        limits = marked_limits(1792, 1792, 8192, EN)
        assert [(limit.name, limit.tokens) for limit in limits] == [
            ("tried / recommended", 1792),
            ("now", 8192),
        ]
        chart = length_histogram(SERVICE, 1792, limits, EN)
        assert [shape["x0"] for shape in chart["layout"]["shapes"]] == [1792, 8192]
        assert [trace["name"] for trace in chart["data"]] == ["needed", "taken"]

    def test_requests_over_a_limit_are_hatched(self) -> None:
        chart = length_histogram(SERVICE, 1600, marked_limits(1600, 1792, 8192, EN), EN)
        out = next(trace for trace in chart["data"] if trace["name"] == "ignored")
        assert min(x for x in out["x"] if x is not None) == 1600
        assert out["fillpattern"]["shape"] == "/"

    @pytest.mark.parametrize("limit", [1, 1 << 24])
    def test_odd_limits_can_be_drawn(self, limit: int) -> None:
        chart = length_histogram(SERVICE, limit, marked_limits(limit, 1792, 8192, EN), EN)
        left, right = chart["layout"]["xaxis"]["range"]
        assert left < right


class TestPanels:
    def test_figures_of_the_steady_state(self) -> None:
        """Every request 1,024 tokens, 64 of 10,239 blocks, one token an answer: 159.98 fit, less half."""
        mix = mix_of(*((1023, 1, None) for _ in range(5)))
        plan = present_plans.rule_of_thumb()
        choice = limit_choice(replace(plan.scenario, max_num_batched_tokens=1 << 20), mix, 8192)
        running, most, preempted = steady_figures(choice, EN)
        assert running.value == "159"
        assert (most.value, preempted.value) == ("any", "0")

    def test_turns(self) -> None:
        """500 + 2 × 500 = 1,500 tokens take 94 blocks: 108.94 at once."""
        chat = Conversation(system_tokens=500, user_tokens=100, answer_tokens=400)
        choice = limit_choice(present_plans.rule_of_thumb().scenario, SERVICE, 2048)
        rows = turn_rows(chat, choice, (2, 8), EN)
        assert (rows[0].taken, rows[0].new, rows[0].requests, rows[0].fits) == (
            "1,500",
            "100",
            "108",
            "fits",
        )
        assert (rows[1].taken, rows[1].requests, rows[1].fits) == ("4,500", "—", "beyond the limit")
        assert "Up to turn 3" in conversation_sentence(chat, 2048, EN)

    def test_prefix(self) -> None:
        found = prefix_sharing(present_plans.rule_of_thumb(), 500, 1000)
        assert found is not None
        assert prefix_sentence(found, EN) == (
            "31 blocks are stored once instead of in every request: 162 requests at once become 319."
        )

    @pytest.mark.parametrize("t", [EN, ZH])
    def test_advice_has_todays_numbers(self, t: Words) -> None:
        plan = present_plans.rule_of_thumb()
        best = limit_choice(plan.scenario, SERVICE, 1792)
        lines = dict(advice_lines(plan, SERVICE, best, t))
        assert "1,792" in lines["--max-model-len"]
        assert "1,536" in lines["max_tokens"]
        assert not [text for text in lines.values() if "{" in text]
