"""Histograms, percentiles, and what limits mean for a mix: laws, and figures by hand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from packaging.version import Version

from kvcore.base.errors import WorkloadError
from kvcore.planning import Plan
from kvcore.workload.histogram import MAX_TOKENS, LengthHistogram
from kvcore.workload.limits import (
    ALLOW_LONG,
    limit_choice,
    limit_choices,
    refuses_longer,
    requests_at,
    steady_of,
)
from kvcore.workload.logs import read_request_log
from kvcore.workload.mix import Mix, mix_of_quantiles
from kvcore.workload.traffic import LengthQuantiles, Percentiles, typed_quantiles
from tests import present_plans

LENGTHS = st.lists(st.integers(1, 20_000), min_size=1, max_size=60)
RISING = st.lists(st.integers(1, 200_000), min_size=3, max_size=3).map(sorted)


def mix_of(*requests: tuple[int, int, int | None]) -> Mix:
    """Requests as (prompt, answer, max_tokens)."""
    records = [
        {"prompt_tokens": prompt, "completion_tokens": answer}
        | ({} if wanted is None else {"max_tokens": wanted})
        for prompt, answer, wanted in requests
    ]
    return Mix(traffic=read_request_log(json.dumps(record).encode() for record in records).traffic)


def small(prompts: list[int]) -> Mix:
    return mix_of(*((prompt, 10, None) for prompt in prompts))


class TestHistogram:
    @given(LENGTHS, st.floats(1, 100))
    def test_a_percentile_covers_its_share(self, values: list[int], percent: float) -> None:
        histogram = LengthHistogram.from_lengths(values)
        limit = histogram.percentile_tokens(percent)
        assert sum(v <= limit for v in values) / len(values) >= percent / 100 - 1e-9
        assert histogram.share_above(limit) == pytest.approx(sum(v > limit for v in values) / len(values))

    @given(LENGTHS, st.integers(1, 20_000))
    def test_clipping_keeps_every_request_and_none_longer(self, values: list[int], limit: int) -> None:
        clipped = LengthHistogram.from_lengths(values).clipped(limit)
        assert clipped.requests == len(values)
        assert clipped.longest_tokens <= limit

    @given(LENGTHS, st.integers(1, 50))
    def test_coarsening_rounds_up_by_at_most_a_cell(self, values: list[int], cells: int) -> None:
        histogram = LengthHistogram.from_lengths(values)
        coarse = histogram.coarsened(cells)
        assert coarse.requests == histogram.requests
        assert len(coarse.lengths) <= max(cells, 1)
        assert coarse.longest_tokens == histogram.longest_tokens
        assert 0 <= coarse.mean_tokens - histogram.mean_tokens <= histogram.longest_tokens / cells + 1


class TestPercentiles:
    @given(RISING)
    def test_the_distribution_has_the_given_percentiles(self, values: list[int]) -> None:
        given_ = Percentiles(p50=values[0], p95=values[1], p99=values[2])
        assert Percentiles.of(given_.histogram()) == given_

    @given(RISING, RISING, st.none() | st.integers(1, 100_000))
    def test_a_link_gives_the_same_percentiles_back(
        self, prompt: list[int], answer: list[int], wanted: int | None
    ) -> None:
        found = typed_quantiles(
            Percentiles(p50=prompt[0], p95=prompt[1], p99=prompt[2]),
            Percentiles(p50=answer[0], p95=answer[1], p99=answer[2]),
            wanted,
        )
        again = LengthQuantiles.decode(found.encode())
        assert again == found
        assert Percentiles.of(mix_of_quantiles(again).needed) == found.needed
        assert found.taken.p99 >= max(prompt[2], answer[2])

    @pytest.mark.parametrize(
        "text",
        [
            "banana",
            "1:2:3",
            "3:2:1,1:2:3,1:2:3,1:2:3",
            "1:2:3,1:2:3,1:2:3,1:2:99999999",
            "0:0:0,1:2:3,1:2:3,1:2:3",
            "1:2:3,1:2:3,1:2:3,1:2:3" * 2,
            "１:２:３,1:2:3,1:2:3,1:2:3",
            "=1:2:3,1:2:3,1:2:3,1:2:3",
            "",
        ],
    )
    def test_a_bad_link_is_a_coded_error(self, text: str) -> None:
        with pytest.raises(WorkloadError) as caught:
            LengthQuantiles.decode(text)
        assert caught.value.code == "percentiles-unreadable"

    @pytest.mark.parametrize("values", [(2, 1, 3), (-1, 2, 3), (1, 2, MAX_TOKENS + 1)])
    def test_percentiles_rise(self, values: tuple[int, int, int]) -> None:
        with pytest.raises(WorkloadError) as caught:
            Percentiles(p50=values[0], p95=values[1], p99=values[2])
        assert caught.value.code == "percentiles-order"

    def test_prompt_and_max_tokens_add_up(self) -> None:
        """The post-mortem's service: P99 of 1,200 and max_tokens 512 need 1,712, rounded up to 1,792."""
        found = typed_quantiles(
            Percentiles(p50=1000, p95=1180, p99=1200), Percentiles(p50=120, p95=300, p99=512), 512
        )
        assert found.needed.values == (1512, 1692, 1712)
        assert mix_of_quantiles(found).recommended_max_model_len == 1792


class TestRecommendation:
    def test_the_recommendation_of_the_post_mortem(self) -> None:
        """Customer service: prompts of 800 to 1200 tokens, max_tokens 512, max_model_len 8192 set too large."""
        mix = mix_of(*((800 + n % 401, 90, 512) for n in range(4010)))
        assert mix.quantiles.prompt.values == (1000, 1180, 1196)
        assert mix.needed.percentile_tokens(99) == 1708
        assert mix.recommended_max_model_len == 1792

    def test_without_max_tokens_the_answers_decide(self) -> None:
        mix = mix_of(*((100, n, None) for n in range(1, 101)))
        assert (mix.needed.percentile_tokens(99), mix.recommended_max_model_len) == (199, 256)

    def test_one_client_that_asks_for_much_does_not_move_it(self) -> None:
        mix = mix_of(*((100, 50, 400) for _ in range(199)), (100, 50, 32_000))
        assert mix.recommended_max_model_len == 512

    @given(LENGTHS)
    def test_it_serves_99_percent_and_is_as_short_as_possible(self, prompts: list[int]) -> None:
        mix = small(prompts)
        limit = mix.recommended_max_model_len
        assert limit % 256 == 0
        assert mix.needed.share_above(limit) <= 0.01
        assert limit == 256 or mix.needed.share_above(limit - 256) > 0.01


class TestSteadyState:
    def test_equal_requests_of_one_step_fill_the_pool(self) -> None:
        """The published example stores 20 requests of 8,192 tokens, of which half a request is free on average."""
        scenario = replace(present_plans.rule_of_thumb().scenario, max_num_batched_tokens=1 << 20)
        choice = limit_choice(scenario, mix_of((8191, 1, None)), 8192)
        assert choice.steady is not None
        # One of 10,240 blocks is the null block.
        assert choice.steady.mean_share == pytest.approx(512 / 10_239)
        assert choice.steady.running(1000) == pytest.approx(10_239 / 512 - 0.5)
        assert choice.preemptions == 0

    def test_without_a_pool_there_is_no_steady_state(self) -> None:
        assert steady_of(present_plans.too_big(), small([100])) is None


class TestLimits:
    def test_the_worked_example_by_hand(self) -> None:
        """163,840 tokens in blocks of 16: at 8,192 twenty, at 2,048 eighty; 1,000 tokens take 63 blocks of 10,240."""
        planned = present_plans.rule_of_thumb()
        mix = mix_of(*((900, 100, None) for _ in range(10)))
        found = {choice.limit_tokens: choice for choice in limit_choices(planned, mix, 2048)}
        assert found[8192].worst_case_requests == 20
        assert found[2048].worst_case_requests == 80
        assert found[2048].mean_tokens == 1000
        assert found[2048].mean_requests == pytest.approx(10_240 / 63)
        assert set(found) == {512, 1024, 2048, 8192}
        assert found[512].share_left_out == 1
        assert found[1024].share_left_out == 0

    @given(LENGTHS, st.integers(1, 30_000), st.integers(1, 30_000))
    @settings(max_examples=25, deadline=None)
    def test_a_longer_limit_never_refuses_more_and_never_fits_more(
        self, prompts: list[int], one: int, other: int
    ) -> None:
        mix = small(prompts)
        low, high = sorted((one, other))
        planned = present_plans.rule_of_thumb().scenario
        short, long = (limit_choice(planned, mix, limit) for limit in (low, high))
        assert short.share_left_out >= long.share_left_out
        assert short.mean_tokens <= long.mean_tokens + 1e-9
        if short.starts and long.starts:
            assert short.worst_case_requests >= long.worst_case_requests
            assert short.mean_requests >= long.mean_requests

    @pytest.mark.parametrize("limit", [50_000, 1 << 20])
    def test_beyond_the_model_the_engine_refuses(self, limit: int) -> None:
        choice = limit_choice(present_plans.fits().scenario, small([100]), limit)
        assert not choice.starts
        assert choice.steady is None
        allowed = replace(present_plans.request(tensor_parallel_size=8).scenario, env={ALLOW_LONG: "1"})
        assert limit_choice(allowed, small([100]), 50_000).starts

    def test_a_limit_that_does_not_fit_runs_nothing(self) -> None:
        choice = limit_choice(present_plans.too_big().scenario, small([100]), 2048)
        assert (choice.starts, choice.worst_case_requests, choice.preemptions) == (False, 0.0, None)

    @given(st.lists(st.integers(1, 40_000), min_size=2, max_size=20, unique=True).map(sorted))
    @settings(max_examples=20, deadline=None)
    def test_longer_requests_take_more_of_the_pool(self, lengths: list[int]) -> None:
        planned: Plan = present_plans.fits()
        held = requests_at(planned, tuple(lengths))
        assert list(held) == sorted(held, reverse=True)

    @pytest.mark.parametrize(
        ("version", "refuses"), [("0.8.5", True), ("0.28.0", True), ("0.29.0", None), ("0.32.0", False)]
    )
    def test_versions_that_refuse_long_requests(self, version: str, refuses: bool | None) -> None:
        resolved = present_plans.fits().resolved
        assert refuses_longer(replace(resolved, version=Version(version))) is refuses
