"""How an engine that follows no other is watched: its metrics, alerts, load test and lines of a start."""

from __future__ import annotations

import pytest

from kvcore.deploy import going_live as live
from kvcore.deploy.first_requests import metrics_command
from kvcore.planning import Plan, plan
from kvcore.wire.request import scenario_from_request


def planned(model: str = "Qwen/Qwen3-8B", version: str = "0.5.23", **fields: object) -> Plan:
    request = {"model": model, "accelerator": "H100-80GB", "engine": "sglang", "engine_version": version}
    return plan(scenario_from_request(request | fields))


def test_metrics_are_grepped_under_its_own_names() -> None:
    command = metrics_command(planned())
    assert "^sglang:(" in command
    assert "token_usage" in command
    assert "vllm" not in command


@pytest.mark.parametrize(("version", "has_retracted"), [("0.5.6.post2", False), ("0.5.9", True)])
def test_alerts_read_metrics_that_the_release_has(version: str, has_retracted: bool) -> None:
    found = planned(version=version)
    load = live.default_load(found)
    rules = live.alert_rules(found, live.thresholds(found, load))
    assert ("num_retracted_requests_total" in rules) is has_retracted
    assert "vllm" not in rules.lower()
    assert "--max-running-requests" in rules
    assert '"title": "SGLang ' + version in live.dashboard(found, live.thresholds(found, load))


@pytest.mark.parametrize(
    ("version", "program"), [("0.5.13", "sglang.bench_serving"), ("0.5.18", "sglang.benchmark.serving")]
)
def test_the_load_test_is_its_own(version: str, program: str) -> None:
    found = planned(version=version)
    command = live.load_test(found, live.default_load(found)).command
    assert command.startswith(f"python -m {program}")
    assert "--backend sglang" in command
    assert "--random-range-ratio 1" in command
    assert "percentile" not in command


def test_lines_of_a_start_carry_the_plans_figures() -> None:
    """36 layers of 8 heads with 128 elements of 2 bytes: 73,728 bytes of keys a token, as many of values."""
    found = planned()
    assert found.cache is not None
    weights, pool, last = live.expected_log_lines(found)
    gib = (found.cache.tokens + 1) * 73_728 / (1 << 30)
    assert weights.startswith("mem usage=15.")
    assert pool == f"#tokens: {found.cache.tokens}, K size: {gib:.2f} GB, V size: {gib:.2f} GB"
    assert last.startswith(f"max_total_num_tokens={found.cache.tokens}, chunked_prefill_size=8192,")
    windows = "\n".join(live.expected_log_lines(planned("openai/gpt-oss-20b")))
    assert "swa_layer_tokens=" in windows
