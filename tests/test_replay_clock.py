"""A clock fitted to benchmarks of a made-up engine, whose steps take known times; and results of three tools."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from packaging.version import Version

from kvcore.base.errors import WorkloadError
from kvcore.charts.replay_figures import fit_report, fit_table
from kvcore.replay.bench import bench_requests, read_bench, step_samples
from kvcore.replay.clock import FittedClock
from kvcore.replay.fitting import fitted_clock
from kvcore.replay.series import replayed
from kvcore.replay.settings import Settings, rules_of
from kvcore.replay.trace import TraceRequest

TRUE = (0.008, 1.5e-5, 2e-8)
"""Seconds of a step, of a token, of a token in the caches."""
Served = list[dict[str, Any]]


def served(
    seed: int,
    rate: float,
    prompt: Callable[[random.Random], int],
    *,
    number: int = 160,
    budget: int = 8192,
    outside: float = 0.0,
    true: tuple[float, float, float] = TRUE,
) -> Served:
    """An engine of a few lines: each step serves who runs, then admits who has come, while its budget lasts."""
    chosen, came, now = random.Random(seed), 0.0, 0.0
    waiting: Served = []
    for _ in range(number):
        came += chosen.expovariate(rate)
        answer = 1 + int(chosen.expovariate(1 / 80))
        waiting.append({"start": came, "prompt": prompt(chosen), "answer": answer, "done": 0, "times": []})
    everyone, running = list(waiting), list[dict[str, Any]]()
    while waiting or running:
        if not running:
            now = max(now, waiting[0]["start"])
        left, work = budget, []
        for one in running:
            tokens = min(left, max(1, one["prompt"] - one["done"]))
            work.append((one, tokens))
            left -= tokens
        while waiting and waiting[0]["start"] <= now and left > 0:
            one = waiting.pop(0)
            running.append(one)
            work.append((one, min(left, one["prompt"])))
            left -= work[-1][1]
        for one, tokens in work:
            one["done"] += tokens
        held = sum(one["done"] for one in running)
        now += true[0] + true[1] * sum(tokens for _, tokens in work) + true[2] * held
        for one, tokens in work:
            if tokens and one["done"] >= one["prompt"]:
                one["times"].append(now + outside)
        running = [one for one in running if len(one["times"]) < one["answer"]]
    return everyone


def of_vllm(rows: Served, off: float = 0.0, seed: int = 1) -> dict[str, Any]:
    """The file of vllm bench serve, with clocks of streams up to `off` seconds apart."""
    chosen = random.Random(seed)
    times = [[time + chosen.random() * off for time in one["times"]] for one in rows]
    return {
        "backend": "vllm",
        "start_times": [one["start"] for one in rows],
        "input_lens": [one["prompt"] for one in rows],
        "output_lens": [one["answer"] for one in rows],
        "ttfts": [found[0] - one["start"] for one, found in zip(rows, times, strict=True)],
        "itls": [[b - a for a, b in pairwise(found)] for found in times],
        "errors": [""] * len(rows),
    }


def engine(budget: int, *, is_async: bool = True) -> Settings:
    return Settings(
        num_blocks=1 << 24, max_num_seqs=1024, max_num_batched_tokens=budget, max_model_len=1 << 20,
        rules=rules_of(Version("0.32.0")), async_scheduling=is_async, enable_prefix_caching=False,
    )  # fmt: skip


def percentiles(values: list[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered[max(0, -(-percent * len(ordered) // 100) - 1)] for percent in (50, 95, 99)]


def replayed_percentiles(
    rows: Served, clock: FittedClock, settings: Settings
) -> tuple[list[float], list[float]]:
    trace = [
        TraceRequest(
            id=str(at),
            arrival=one["start"],
            prompt=((f"own {at}", one["prompt"]),),
            answer_tokens=one["answer"],
        )
        for at, one in enumerate(rows)
    ]
    found = replayed(trace, settings, clock)
    assert found.ttft is not None
    assert found.tpot is not None
    return [found.ttft.p50, found.ttft.p95, found.ttft.p99], [found.tpot.p50, found.tpot.p95, found.tpot.p99]


def true_percentiles(rows: Served) -> tuple[list[float], list[float]]:
    tpots = [(one["times"][-1] - one["times"][0]) / (one["answer"] - 1) for one in rows if one["answer"] > 1]
    return percentiles([one["times"][0] - one["start"] for one in rows]), percentiles(tpots)


def long(chosen: random.Random) -> int:
    del chosen
    return 5000


def mixed(chosen: random.Random) -> int:
    return max(16, int(chosen.lognormvariate(6.8, 1)))


@pytest.mark.parametrize("rate", [2, 5, 9])
@pytest.mark.parametrize(("prompt", "budget"), [(long, 8192), (long, 2048), (mixed, 2048)])
def test_latencies_of_other_traffic_are_right(
    rate: float, prompt: Callable[[random.Random], int], budget: int
) -> None:
    """Fitted to one benchmark, compared on another: TTFT within 5 %, TPOT within 3 %."""
    clock = fitted_clock(of_vllm(served(1, rate, prompt, budget=budget), off=1e-6), engine(budget))
    other = served(2, rate, prompt, budget=budget, number=240)
    for found, true, most in zip(
        replayed_percentiles(other, clock, engine(budget)), true_percentiles(other), (0.05, 0.03), strict=True
    ):
        assert found == pytest.approx(true, rel=most)
    assert max(clock.held_out.ttft, clock.held_out.tpot) < 0.05


@pytest.mark.parametrize("rate", [2, 5, 9])
@pytest.mark.parametrize("budget", [8192, 2048])
def test_streams_that_are_read_two_milliseconds_apart_still_show_the_steps(rate: float, budget: int) -> None:
    """A quarter of a step: tokens of one step come as far apart as a client's loop reads its streams."""
    clock = fitted_clock(of_vllm(served(1, rate, long, budget=budget), off=2e-3), engine(budget))
    other = served(2, rate, long, budget=budget, number=240)
    found, true = replayed_percentiles(other, clock, engine(budget)), true_percentiles(other)
    assert found[0] == pytest.approx(true[0], rel=0.05)
    assert found[1][:2] == pytest.approx(true[1][:2], rel=0.03)
    assert max(clock.held_out.ttft, clock.held_out.tpot) < 0.05


def test_neither_the_order_of_rows_nor_microseconds_matter() -> None:
    """Rows forwards, backwards and mixed; first tokens a microsecond before and after the other tokens of a step."""
    rows = served(3, 4, mixed)
    usual = fitted_clock(of_vllm(rows), engine(8192))
    assert (usual.a, usual.b, usual.c) == pytest.approx(TRUE, rel=0.01)
    for other in (rows[::-1], random.Random(5).sample(rows, len(rows))):
        assert fitted_clock(of_vllm(other), engine(8192)) == usual
    for move in (-1e-6, 1e-6):
        result = of_vllm(rows)
        result["ttfts"] = [ttft + move for ttft in result["ttfts"]]
        result["itls"] = [[gaps[0] - move, *gaps[1:]] if gaps else gaps for gaps in result["itls"]]
        moved = fitted_clock(result, engine(8192))
        assert (moved.a, moved.b, moved.c) == pytest.approx((usual.a, usual.b, usual.c), rel=0.01)


def test_what_a_ttft_has_outside_of_steps_is_told_apart() -> None:
    clock = fitted_clock(of_vllm(served(4, 3, mixed, outside=0.015)), engine(8192))
    assert (clock.a, clock.b) == pytest.approx(TRUE[:2], rel=0.02)
    assert clock.outside == pytest.approx(0.015, rel=0.1)


def test_another_budget_of_the_benchmark_is_found() -> None:
    """The plan says 2,048 tokens a step; the benchmark ran with 8,192."""
    clock = fitted_clock(of_vllm(served(5, 4, long)), engine(2048))
    assert clock.batched_tokens == 8192
    assert (clock.a, clock.b) == pytest.approx(TRUE[:2], rel=0.01)


def test_only_decoding_cannot_be_told_apart() -> None:
    rows = served(6, 4, lambda chosen: 1)
    with pytest.raises(WorkloadError) as caught:
        fitted_clock(of_vllm(rows), engine(8192))
    assert caught.value.code == "bench-all-alike"


def test_failed_requests_and_stalls_of_the_engine_are_left_out() -> None:
    rows = served(7, 4, mixed)
    result = of_vllm(rows)
    usual = fitted_clock(result, engine(8192))
    bad = {
        "start_times": 0.5, "input_lens": 900, "output_lens": 0, "ttfts": 0.0, "itls": [], "errors": "Timeout",
    }  # fmt: skip
    for name, value in bad.items():
        result[name] = [value] * 3 + result[name]
    assert fitted_clock(result, engine(8192)) == usual
    late = max(rows, key=lambda one: one["start"])["times"]
    for one in rows:
        one["times"] = [time + 3 * (time >= late[0] - 5) for time in one["times"]]
    stalled = fitted_clock(of_vllm(rows), engine(8192))
    assert (stalled.a, stalled.b) == pytest.approx((usual.a, usual.b), rel=0.03)


def guidellm(rows: Served) -> str:
    requests = [
        {
            "request_start_time": one["start"], "prompt_tokens": one["prompt"], "output_tokens": one["answer"],
            "time_to_first_token_ms": 1e3 * (one["times"][0] - one["start"]),
            "inter_token_latency_ms": 1e3 * (one["times"][-1] - one["times"][0]) / max(1, one["answer"] - 1),
        }
        for one in rows
    ]  # fmt: skip
    return json.dumps(
        {"benchmarks": [{"requests": {"successful": requests, "errored": [{"prompt_tokens": 7}]}}]}
    )


def aiperf(rows: Served) -> str:
    def line(one: dict[str, Any]) -> str:
        first, last = one["times"][0], one["times"][-1]
        metrics = {
            "input_sequence_length": {"value": one["prompt"], "unit": "tokens"},
            "output_sequence_length": {"value": one["answer"], "unit": "tokens"},
            "time_to_first_token": {"value": 1e3 * (first - one["start"]), "unit": "ms"},
            "inter_token_latency": {"value": 1e3 * (last - first) / max(1, one["answer"] - 1), "unit": "ms"},
        }
        head = {"request_start_ns": int((1_760_000_000 + one["start"]) * 1e9), "benchmark_phase": "profiling"}
        return json.dumps({"metadata": head, "metrics": metrics, "error": None})

    return "\n".join([*map(line, rows), '{"metadata": {}, "error": {"code": 500}, "metrics": {}}', "{cut"])


@pytest.mark.parametrize("write", [guidellm, aiperf])
def test_results_with_means_alone(write: Callable[[Served], str]) -> None:
    """GuideLLM and AIPerf give the mean gap of each answer."""
    rows = served(8, 4, mixed, number=240)
    found = read_bench(write(rows))
    assert (len(found), found[0].gaps) == (240, None)
    clock = fitted_clock(found, engine(8192))
    assert (clock.a, clock.b) == pytest.approx(TRUE[:2], rel=0.03)
    other = served(9, 4, mixed)
    for seen, true, most in zip(
        replayed_percentiles(other, clock, engine(8192)), true_percentiles(other), (0.05, 0.03), strict=True
    ):
        assert seen == pytest.approx(true, rel=most)


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ({}, "bench-fields"),
        ({"itls": [[1]]}, "bench-fields"),
        ({"start_times": "x", "input_lens": 1, "ttfts": 0, "itls": 0}, "bench-fields"),
        ({"backend": "sglang", "input_lens": [5], "ttfts": [1]}, "bench-other-engine"),
        ({"benchmarks": [7, {"requests": []}]}, "bench-fields"),
        ({"records": [{"metrics": 5}]}, "bench-fields"),
    ],
)
def test_other_results_are_refused(result: dict[str, Any], code: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        bench_requests(result)
    assert caught.value.code == code


def test_the_report_states_the_error_on_requests_held_out() -> None:
    clock = fitted_clock(of_vllm(served(10, 4, mixed)), engine(8192))
    report = json.loads(json.dumps(fit_report(clock), allow_nan=False))
    assert report["held_out"]["requests"] == 80
    assert report["step_seconds"]["fixed"] == pytest.approx(0.008, rel=0.01)
    assert "off on 80 held out" in fit_table(clock)


def test_hostile_results_take_bounded_time() -> None:
    """Prompts that would be spread over all steps of all streams."""
    many = 4000
    result = {
        "start_times": [0.0] * many, "input_lens": [1 << 23] * many, "ttfts": [1e-3 * at for at in range(many)],
        "itls": [[1e-3] * 20] * many,
    }  # fmt: skip
    assert len(step_samples(bench_requests(result), 2048)) < 40 * many
