"""A trace over time: clocks, readers, figures; expectations by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from kvcore import cli
from kvcore.base.errors import ScenarioError, WorkloadError
from kvcore.base.words import Language, words
from kvcore.charts.replay_figures import bound_clock, comparing, replay_chart, replay_report, variants
from kvcore.replay.clock import BoundClock, FittedClock, HeldOut, UserClock, least_squares
from kvcore.replay.series import Latency, Replay, most_rate, over_replicas, replayed, sped_up, times_carried
from kvcore.replay.settings import Settings, rules_of, settings_of
from kvcore.replay.trace import TraceRequest, random_arrivals, read_trace
from tests import present_plans

RATES = UserClock(prefill_tokens_per_second=1000, decode_tokens_per_second=10)


def settings(**changes: Any) -> Settings:
    """A small engine that is not async."""
    given: dict[str, Any] = {
        "num_blocks": 21, "max_num_seqs": 8, "max_num_batched_tokens": 1000, "max_model_len": 320,
        "rules": rules_of(Version("0.32.0")), "async_scheduling": False,
    } | changes  # fmt: skip
    return Settings(**given)


def request(name: str, arrival: float, prompt: int = 100, answer: int = 3) -> TraceRequest:
    """A request that shares nothing."""
    return TraceRequest(id=name, arrival=arrival, prompt=((name, prompt),), answer_tokens=answer)


def ended(work: Generator[Any, None, Any]) -> Any:
    """Runs the work and returns its result."""
    while True:
        try:
            next(work)
        except StopIteration as stopped:
            return stopped.value


def test_one_request_by_hand() -> None:
    """100 prompt tokens at 1,000 a second and two further tokens at 10 a second: 0.1 s, then 0.1 s each."""
    found = replayed([request("a", 5.0)], settings(), RATES)
    assert found.ttft is not None
    assert found.tpot is not None
    assert (found.ttft.p99, found.tpot.p99, found.seconds) == pytest.approx((0.1, 0.1, 0.3))
    assert (found.steps, found.preemptions, found.first_preemption) == (3, 0, None)
    assert found.peak_usage == 7 / 20
    assert found.mean_running == 1


def test_no_request_waits_for_a_later_one() -> None:
    found = replayed([request("a", 0), request("b", 100)], settings(), RATES)
    assert found.seconds == pytest.approx(100.3)
    assert found.ttft is not None
    assert found.ttft.p99 == pytest.approx(0.1)


def test_preemption_starts_when_answers_outgrow_the_pool() -> None:
    """20 blocks: two requests of 9 blocks fit, and when both grow to 11 one is preempted."""
    trace = [request("a", 0, 144, 30), request("b", 50, 144, 30)]
    calm = replayed(trace, settings(), RATES)
    busy = replayed(sped_up(trace, 1000), settings(), RATES)
    assert (calm.preemptions, busy.preemptions) == (0, 1)
    assert busy.first_preemption is not None
    assert 0 < busy.first_preemption < 3
    assert sum(point.preempted for point in busy.points) == 1
    assert ended(most_rate(trace, settings(), RATES, (1, 2, 1000, 2000))) == 2
    assert ended(most_rate(trace, settings(), RATES, (1000, 2000))) is None


def test_how_many_times_a_traffic_is_carried() -> None:
    """A request takes 7 of the 20 blocks, 0.1 s for its prompt and 2 steps: two copies at once go in, three do not."""
    clock = UserClock(prefill_tokens_per_second=1000, decode_tokens_per_second=100)
    sparse = [request(f"{at}", 10.0 * at) for at in range(12)]
    found = replayed(sparse, settings(), clock)
    assert found.peak_usage == pytest.approx(0.35)
    assert found.keeps_up
    assert ended(times_carried(sparse, settings(), clock, found)) == 2
    crowd = [request(f"{at}", 0.01 * at, answer=40) for at in range(40)]
    found = replayed(crowd, settings(), clock)
    assert not found.keeps_up
    assert ended(times_carried(crowd, settings(), clock, found)) == 0


def test_hits_are_unknown_where_no_text_is() -> None:
    clock = UserClock(prefill_tokens_per_second=1000, decode_tokens_per_second=100)
    log = [
        b'{"created": %d, "prompt_tokens": 100, "completion_tokens": 3}' % (1_760_000_000 + at)
        for at in range(5)
    ]
    assert replayed(read_trace(log), settings(enable_prefix_caching=True), clock).hit_rate is None
    alike = [
        b'{"timestamp": %d, "input_length": 100, "output_length": 3, "hash_ids": [1, 2, 3, 4, 5, 6, %d]}'
        % (at, at + 9)
        for at in (0, 9000)
    ]
    found = replayed(read_trace(alike), settings(enable_prefix_caching=True), clock)
    # The second prompt of 100 tokens begins with the first 96 of the one before: 7 hashes, so 16 tokens each.
    assert found.hit_rate == pytest.approx(96 / 200)


def test_merged_points_keep_sums_and_maxima() -> None:
    trace = random_arrivals([(50, 40, 1)], per_second=0.5, requests=400)
    found = replayed(trace, settings(), RATES)
    assert len(found.points) <= 2 * 480
    busy = sum(point.seconds for point in found.points)
    assert 0 < busy <= found.seconds + 1e-6
    held = sum(point.running for point in found.points)
    assert held == pytest.approx(busy * found.mean_running)


def test_a_bound_gives_no_latency() -> None:
    clock = BoundClock(weight_bytes=1e9, kv_bytes_per_token=1e6, bandwidth=1e12)
    found = replayed([request("a", 0)], settings(), clock)
    assert (found.ttft, found.tpot) == (None, None)
    # 3 steps read 1 GB and the keys and values of 100, 101 and 102 tokens.
    assert found.seconds == pytest.approx((3e9 + 303e6) / 1e12)


def test_a_bound_takes_the_longer_of_reading_and_computing() -> None:
    """One request: a prompt of 100 computes for 100 x 1e10 / 1e13 s = 0.1 s, then each step reads 1 GB in 1 ms."""
    clock = BoundClock(
        weight_bytes=1e9, kv_bytes_per_token=0, bandwidth=1e12, flops_per_token=1e10, peak_flops=1e13
    )
    assert replayed([request("a", 0)], settings(), clock).seconds == pytest.approx(0.1 + 2 * 0.001)


def test_a_plans_bound_computes_its_tokens() -> None:
    """Qwen3-32B over 8 ranks: 64 layers of 5120 x (8192 + 2 x 1024 + 8192) + 3 x 5120 x 25600 elements, twice each."""
    planned = present_plans.request(accelerator="H100-80GB", tensor_parallel_size=8, model="Qwen/Qwen3-32B")
    clock = bound_clock(planned)
    elements = 64 * (5120 * (8192 + 2 * 1024 + 8192) + 3 * 5120 * 25600)
    assert clock.flops_per_token == pytest.approx(2 * elements / 8, rel=0.001)
    assert clock.peak_flops == 989e12


def test_two_replicas_preempt_nothing_where_one_does() -> None:
    """20 blocks: each of the two requests grows to 11 blocks, so that both fit only on two replicas."""
    trace = [request("a", 0, 144, 30), request("b", 0.05, 144, 30)]
    one = ended(over_replicas(trace, settings(), RATES, 1))
    two = ended(over_replicas(trace, settings(), RATES, 2))
    assert (one.preemptions, two.preemptions, len(two.parts)) == (1, 0, 2)
    assert two.peak_usage == 11 / 20
    assert two.mean_running == 1
    # b comes after 0.05 s, computes 144 tokens in 0.144 s and 29 further ones in 0.1 s each.
    assert two.seconds == pytest.approx(0.05 + 0.144 + 2.9)
    assert [len(part.parts) for part in [ended(over_replicas(trace[:1], settings(), RATES, 4))]] == [1]


def test_terms_without_a_fit_take_the_bound() -> None:
    planned = present_plans.fits()
    fit = FittedClock(
        a=1.0, b=0.0, c=0.0, held_out=HeldOut(requests=9, ttft=0.0, tpot=0.0, ttft_p95=0.0, tpot_p95=0.0)
    )
    trace = [request("a", 0, 100, 4)]
    seats = ended(comparing(planned, trace, fit, "max_num_seqs"))
    assert {found.seconds for _, found in seats} == {4.0}
    ranks = ended(comparing(planned, trace, fit, "kv_cache_dtype"))
    assert all(found.seconds < 1 for _, found in ranks)
    assert [name for name, _ in ended(comparing(planned, trace, fit, "replicas"))] == ["1", "2", "4", "8"]


def test_least_squares_are_never_negative() -> None:
    assert min(least_squares([(1.0, float(n), 100.0 * n, 0.0, 1.0 / n) for n in range(1, 20)])) >= 0


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_an_invalid_rate(rate: float) -> None:
    with pytest.raises(ScenarioError):
        UserClock(prefill_tokens_per_second=rate, decode_tokens_per_second=10)


def test_traces_of_several_kinds() -> None:
    azure = (
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
        b"2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.03,110,27"
    )
    first, second = read_trace(azure.splitlines())
    assert (first.prompt_tokens, first.answer_tokens, first.arrival) == (4808, 10, 0)
    assert second.arrival == pytest.approx(0.05, abs=0.001)
    burst = b"Timestamp,Model,Request tokens,Response tokens\n5,ChatGPT,472,18\n45,ChatGPT,1087,0"
    # BurstGPT's requests with an answer of 0 tokens failed.
    assert [one.answer_tokens for one in read_trace(burst.splitlines())] == [18]
    own = b'{"timestamp": 3, "prompt": [["system", 20], ["a", 5]], "completion_tokens": 9}'
    assert read_trace([own])[0].prompt == (("system", 20), ("a", 5))


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"", "request-log-empty"),
        (b"{", "request-log-empty"),
        (b'{"timestamp": 1}', "request-log-fields"),
        (b'{"timestamp": "x", "prompt_tokens": 1, "output_tokens": 1}', "trace-without-times"),
        (b'{"timestamp": NaN, "prompt_tokens": 1, "output_tokens": 1}', "trace-without-times"),
        (b'{"timestamp": 1, "prompt_tokens": -1, "output_tokens": 1}', "request-log-absurd"),
        (b'{"timestamp": 1, "prompt_tokens": 1e400, "output_tokens": 1}', "request-log-absurd"),
        (b'{"timestamp": 1, "prompt": [], "output_tokens": 1}', "trace-unusable"),
        (b'{"timestamp": 1, "prompt": [[1, 2]], "output_tokens": 1}', "trace-unusable"),
        (b'{"timestamp": 1, "prompt": [["a", 2]]}', "trace-unusable"),
        (b'{"prompt": [["a", 2]], "output_tokens": 1}', "trace-unusable"),
        (b"\xff\xfe", "request-log-empty"),
        (b"x" * (2 << 20), "request-log-empty"),
    ],
)
def test_a_broken_trace_is_refused(line: bytes, code: str) -> None:
    with pytest.raises(WorkloadError) as refused:
        read_trace([line])
    assert refused.value.code == code


def test_a_gateway_log_is_a_trace_in_every_format_with_times() -> None:
    """The same 40 requests as a nested usage, a table, and lines behind a container's date: one trace."""
    rows = [(1_760_000_000 + 3 * at, 400 + 7 * at, 20 + at) for at in range(40)]
    nested = [
        json.dumps(
            {"created": time, "usage": {"prompt_tokens": prompt, "completion_tokens": answer}}
        ).encode()
        for time, prompt, answer in rows
    ]
    table = [b"timestamp,input_tokens,output_tokens", *(b"%d,%d,%d" % row for row in rows)]
    pod = [b"2026-11-24T10:00:00.1Z stdout F " + line for line in nested]
    asked = [(3.0 * at, 400 + 7 * at, 20 + at) for at in range(40)]
    for log in (nested, table, pod):
        found = read_trace(line + b"\n" for line in log)
        assert [(one.arrival, one.prompt_tokens, one.answer_tokens) for one in found] == asked


def test_a_plan_is_replayed_with_its_own_settings() -> None:
    planned = present_plans.fits()
    found = settings_of(planned)
    assert planned.cache is not None
    assert (found.num_blocks, found.max_num_seqs) == (planned.cache.num_blocks, planned.resolved.max_num_seqs)
    assert bound_clock(planned).bandwidth > 1e11
    with pytest.raises(WorkloadError) as refused:
        settings_of(present_plans.too_big())
    assert refused.value.code == "replay-no-pool"


def test_a_plan_of_windows_is_replayed_group_by_group() -> None:
    """gpt-oss: every second layer has a window of 128 tokens, so that a long request holds few of their blocks."""
    planned = present_plans.request(model="openai/gpt-oss-20b", engine_version="0.32.0")
    found = settings_of(planned)
    assert sorted((group.kind.value, group.window) for group in found.groups) == [
        ("full_attention", 0), ("sliding_window", 128),
    ]  # fmt: skip
    one = replayed([request("a", 0, 7_000, 400)], found, RATES)
    full, window = 7_399 // 16 + 1, 128 // 16 + 1
    assert one.points[-1].most_used == pytest.approx(full + window, abs=2)
    old = present_plans.request(
        model="Qwen/Qwen3-Next-80B-A3B-Instruct",
        engine_version="0.26.0",
        tensor_parallel_size=4,
        enable_prefix_caching=True,
    )
    with pytest.raises(WorkloadError) as refused:
        settings_of(old)
    assert (refused.value.code, refused.value.field) == ("replay-unsupported", "kv_cache_groups")


def test_figures_of_a_replay() -> None:
    found: Replay = replayed([request("a", 0), request("b", 0.1)], settings(), RATES)
    report = replay_report(found)
    assert json.dumps(report, allow_nan=False)
    assert report["requests"] == 2
    assert report["kv_usage_most"] == 14 / 20
    chart = replay_chart(found, words(Language.ENGLISH))
    assert [trace["name"] for trace in chart["data"]] == ["kv", "running", "waiting", "preempted"]
    assert Latency.of([]) is None
    names = [name for name, _ in variants(present_plans.fits().scenario, "max_num_seqs")]
    assert names == ["16", "32", "64", "128", "256", "512"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, plan = tmp_path / "trace.jsonl", tmp_path / "plan.json"
    trace.write_text('{"timestamp": 0, "prompt_tokens": 900, "completion_tokens": 50}\n' * 3)
    plan.write_text('{"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB"}')
    assert cli.main(["replay", str(trace), "--request", str(plan), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["clock"], report["requests"], report["preemptions"]) == ("bound", 3, 0)
    assert report["reuse"]["curve"] == []
    rates = ("--prefill-tokens-per-second", "20000", "--decode-tokens-per-second", "50")
    assert cli.main(["replay", str(trace), "--request", str(plan), *rates]) == 0
    assert "TTFT" in capsys.readouterr().out
    assert cli.main(["replay", str(trace)]) == 2
