"""Goals of latency: engines behind a router, the fewest that keep a goal, and how much more they carry."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from msgspec.structs import replace
from packaging.version import Version

from kvcore import plan
from kvcore.base.errors import ScenarioError, WorkloadError
from kvcore.charts.goal_figures import GoalFigures, goal_report, reaching
from kvcore.charts.replay_figures import ReplayFigures
from kvcore.cli import main
from kvcore.replay.clock import BoundClock, FittedClock, HeldOut, UserClock
from kvcore.replay.goals import Choice, Goal, at, best_of, carried, interval, searching
from kvcore.replay.routing import Routing, routed
from kvcore.replay.series import ended, replayed
from kvcore.replay.settings import Settings, rules_of, settings_of
from kvcore.replay.trace import TraceRequest, random_arrivals
from kvcore.replay.work import check_work, expected_seconds

SETTINGS = Settings(
    num_blocks=2001, max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=4096,
    rules=rules_of(Version("0.32.0")),
)  # fmt: skip
CLOCK = UserClock(prefill_tokens_per_second=10_000, decode_tokens_per_second=50)
HELD_OUT = HeldOut(requests=9, ttft=0.03, tpot=0.02, ttft_p95=0.06, tpot_p95=-0.02)
FITTED = FittedClock(a=0.012, b=60e-6, c=2e-8, held_out=HELD_OUT)
TRACE = random_arrivals([(500, 100, 3), (1500, 50, 1)], per_second=8, requests=300)
GOAL = Goal(ttft=1.0, tpot=0.05)


def test_one_engine_is_what_a_replay_of_it_gives() -> None:
    alone, found = replayed(TRACE, SETTINGS, FITTED), ended(routed(TRACE, SETTINGS, FITTED, 1))
    assert alone.ttft is not None
    assert alone.tpot is not None
    assert at(found.ttfts, 95) == pytest.approx(alone.ttft.p95)
    assert at(found.tpots, 95) == pytest.approx(alone.tpot.p95)
    assert (found.steps, found.preemptions) == (alone.steps, alone.preemptions)


@pytest.mark.parametrize("routing", Routing)
def test_all_requests_are_answered_whatever_the_routing(routing: Routing) -> None:
    found = ended(routed(TRACE, SETTINGS, CLOCK, 3, routing))
    assert len(found.ttfts) == len(TRACE)
    assert found.is_whole


def test_least_loaded_avoids_the_engine_with_the_long_answer() -> None:
    # One answer of 1,000 tokens, then short ones, one at a time: in turn, every second one runs beside it.
    long = TraceRequest(id="long", arrival=0, prompt=(("l", 64),), answer_tokens=1000)
    short = [
        TraceRequest(id=f"{n}", arrival=1 + n, prompt=((f"s{n}", 64),), answer_tokens=5) for n in range(8)
    ]
    costly = FittedClock(a=0.01, b=0.005, c=0, held_out=HELD_OUT)
    turns, least = (
        ended(routed((long, *short), SETTINGS, costly, 2, how))
        for how in (Routing.ROUND_ROBIN, Routing.LEAST_LOADED)
    )
    assert sum(least.ttfts) < sum(turns.ttfts)


def test_a_prefix_is_found_where_it_was_served() -> None:
    # Two conversations of four turns each, apart in time: each stays on the engine that has its history.
    turns = [
        TraceRequest(
            id=f"{name}{turn}", arrival=10.0 * turn + at_once, answer_tokens=4,
            prompt=tuple((f"{name}{n}", 512) for n in range(turn + 1)),
        )
        for turn in range(4)
        for at_once, name in enumerate(("a", "b", "c"))
    ]  # fmt: skip
    aware, in_turn = (
        ended(routed(sorted(turns, key=lambda one: one.arrival), SETTINGS, CLOCK, 2, how))
        for how in (Routing.PREFIX_AWARE, Routing.ROUND_ROBIN)
    )
    assert sum(aware.ttfts) < sum(in_turn.ttfts)


def test_one_engine_fewer_misses_the_goal() -> None:
    choice = Choice(tensor_parallel_size=1, settings=SETTINGS, clock=FITTED)
    trace = random_arrivals([(500, 100, 1)], per_second=40, requests=400)
    search, (answer,) = ended(searching(trace, Goal(ttft=0.5, tpot=0.03), [choice], Routing.ROUND_ROBIN))
    assert answer.engines is not None
    assert answer.engines > 1
    assert answer.low is not None
    assert answer.high is not None
    assert answer.low <= answer.engines <= answer.high
    fewer = ended(routed(trace, SETTINGS, FITTED, answer.engines - 1))
    assert not search.goal.is_met(fewer)
    assert search.goal.is_met(ended(routed(trace, SETTINGS, FITTED, answer.engines)))
    factor, _ = ended(search.headroom(answer))
    assert factor >= 1


def test_a_goal_that_no_number_keeps_has_no_answer() -> None:
    choice = Choice(tensor_parallel_size=1, settings=SETTINGS, clock=CLOCK)
    _, (answer,) = ended(searching(TRACE[:50], Goal(tpot=0.001), [choice], Routing.ROUND_ROBIN))
    assert answer.engines is None
    assert best_of([answer]) is None


def test_a_bound_says_nothing_of_latency() -> None:
    bound = BoundClock(weight_bytes=1, kv_bytes_per_token=1, bandwidth=1)
    choice = Choice(tensor_parallel_size=1, settings=SETTINGS, clock=bound)
    with pytest.raises(WorkloadError) as refused:
        ended(searching(TRACE, GOAL, [choice], Routing.ROUND_ROBIN))
    assert refused.value.code == "goal-without-clock"


@pytest.mark.parametrize(
    "wrong", [{"ttft": 0}, {"tpot": -1}, {}, {"ttft": 1, "percent": 100}, {"ttft": math.nan}]
)
def test_impossible_goals_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ScenarioError):
        Goal(**wrong)


def test_intervals_widen_with_the_clock_and_with_few_requests() -> None:
    values = [float(number) for number in range(1, 1001)]
    narrow, wide = interval(values, 95, 0.0), interval(values, 95, 0.1)
    few = interval(values[::50], 95, 0.0)
    assert narrow is not None
    assert wide is not None
    assert few is not None
    assert wide[0] < narrow[0] <= 950 <= narrow[1] < wide[1]
    assert few[1] - few[0] > narrow[1] - narrow[0]


def test_a_clock_of_another_size_is_scaled_by_what_the_cards_can_do() -> None:
    here = BoundClock(
        weight_bytes=16e9, kv_bytes_per_token=1e5, bandwidth=1e12, flops_per_token=16e9, peak_flops=1e14
    )
    there = replace(here, weight_bytes=8e9, kv_bytes_per_token=5e4, flops_per_token=8e9)
    found = carried(FITTED, here, there)
    assert isinstance(found, FittedClock)
    assert (found.a, found.b, found.c) == pytest.approx((0.006, 30e-6, 1e-8))
    assert carried(CLOCK, here, there) is None


def test_work_is_refused_by_seconds_before_it_begins() -> None:
    idle = [
        TraceRequest(id=f"{n}", arrival=100.0 * n, prompt=(("a", 100),), answer_tokens=50)
        for n in range(1000)
    ]
    # Ten days with a request every 100 seconds: few steps, though long by its own clock.
    assert expected_seconds(idle, SETTINGS, CLOCK) < 2
    check_work(idle, SETTINGS, CLOCK)
    busy = [replace(one, answer_tokens=3_000_000) for one in idle]
    with pytest.raises(WorkloadError) as refused:
        check_work(busy, SETTINGS, UserClock(prefill_tokens_per_second=1e4, decode_tokens_per_second=1e6))
    assert refused.value.code == "replay-too-much-work"


SMALL = {"model": "Qwen/Qwen3-8B", "accelerator": "L40S-48GB", "max_model_len": 4096}


def test_an_answer_has_settings_cost_and_a_threshold() -> None:
    planned = plan(**SMALL)
    found = ended(reaching(planned, TRACE, GOAL, FITTED))
    report = goal_report(found, planned, price=2.0)
    assert report["replicas"] >= 1
    assert report["cost_per_day"] == report["gpus"] * 48
    assert {one["max_num_seqs"] for one in report["answers"]} > {128}
    assert "vllm:kv_cache_usage_perc" in report["scale_out_above"]
    # Other sizes have a clock that nobody measured: they are shown, and are not the best while one is measured.
    assert report["best"]["clock"] == "fitted"
    assert "scaled" in {one["clock"] for one in report["answers"]}


def test_what_is_not_replayed_is_refused_by_field() -> None:
    cases = {
        "kv_transfer_config": {"kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"}},
        "data_parallel_size": {"data_parallel_size": 2},
        "kv_offloading_size": {"kv_offloading_size": 8},
    }
    for field, given in cases.items():
        with pytest.raises(WorkloadError) as refused:
            settings_of(plan(**SMALL, **given))
        assert (refused.value.code, refused.value.field) == ("replay-unsupported", field)
    with pytest.raises(WorkloadError) as refused:
        settings_of(plan(model="Qwen/Qwen3-Embedding-8B", accelerator="L40S-48GB", max_model_len=4096))
    assert refused.value.field == "runner"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rows = (
        {
            "created": 1_760_000_000 + at / 4,
            "usage": {"prompt_tokens": 400 + at % 50, "completion_tokens": 60},
        }
        for at in range(200)
    )
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return path


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(SMALL), "utf-8")
    return path


def test_the_command_says_what_runs_at_once(
    log: Path, request_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["workload", str(log), "--request", str(request_file), "--against", str(log), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    low, high = report["capacity"]["interval"]
    assert low < report["capacity"]["running"] < high
    assert report["capacity"]["max_num_seqs"] >= 1
    assert report["capacity"]["found_tokens"] == 0
    assert report["against"]["ratios"]["prompt"]["p50"] == 1


def test_the_command_answers_a_goal(
    log: Path, request_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = ["--prefill-tokens-per-second", "8000", "--decode-tokens-per-second", "40"]
    given = ["workload", str(log), "--request", str(request_file), "--goal", "ttft=2,tpot=0.05"]
    assert main([*given, *rates, "--by-hour", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["goal"]
    assert found["replicas"] == 1
    assert [row["replicas"] for row in found["hours"]] == [1]
    assert main(given) != 0
    assert "benchmark" in capsys.readouterr().err


def test_whole_numbers_are_exact_in_a_link() -> None:
    text = "0123abcd_1_240_1_12345678_0.25_3.5_0_0_0_1_0_16_0_0"
    found = ReplayFigures.decode(text)
    assert (found.usable_blocks, found.encode()) == (12_345_678, text)


@pytest.mark.parametrize(
    "text",
    ["", "0123abcd", "0123abcd_1_2", "x123abcd_95_2_0.05_3_2_4_3_1.5_0.4_0.03_0.25_150_0", "_" * 14,
     "0123abcd_95_2_0.05_3_2_4_3_1.5_0.4_0.03_0.25_150_-1", "0123abcd_95_2_0.05_inf_2_4_3_1.5_0.4_0.03_0.25_150_0",
     "0123abcd_nan_2_0.05_3_2_4_3_1.5_0.4_0.03_0.25_150_0", "0123abcd_9e99_2_0.05_3_2_4_3_1.5_0.4_0.03_0.25_150_0"],
)  # fmt: skip
def test_an_answer_that_the_page_has_not_written_is_refused(text: str) -> None:
    with pytest.raises(ScenarioError):
        GoalFigures.decode(text)
