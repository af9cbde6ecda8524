"""Limits of machines and containers against what a start takes of the host."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.advice.fixes import refusal_fixes
from kvcore.base.errors import EngineRefusalError, ScenarioError
from kvcore.base.units import GIB
from kvcore.base.words import Language, words
from kvcore.contract.host import host_part
from kvcore.explain.numbers import number_rows
from kvcore.host.limits import container_findings
from kvcore.planning import Plan, plan
from kvcore.wire.request import scenario_from_request

QWEN: dict[str, Any] = {"model": "Qwen/Qwen3-32B", "accelerator": "H200-141GB", "tensor_parallel_size": 4}


def planned(**asked: Any) -> Plan:
    return plan(scenario_from_request({**QWEN, **asked}))


def findings(found: Plan, memory_gib: float | None = None, shm_gib: float | None = None) -> dict[str, str]:
    said = container_findings(found.scenario, found.resolved, found.host, memory_gib, shm_gib)
    return {one.code: one.message for one in said}


@pytest.mark.parametrize(
    ("version", "shm_gib", "words"),
    [
        ("0.26.0", 0.0625, None),
        ("0.27.0", 100, r"\[Errno 14\] Bad address"),
        ("0.28.0", 100, r"Insufficient space in /dev/shm: 204800 MiB required, 102400 MiB free"),
        ("0.33.0", 100, "Insufficient space in /dev/shm for CPU KV offload shared region"),
        ("0.33.0", 256, None),
    ],
)
def test_a_tier_that_shared_memory_has_no_room_for_is_refused_in_the_engine_s_words(
    version: str, shm_gib: float, words: str | None
) -> None:
    """github.com/vllm-project/vllm/pull/52496 prints the words of 0.28."""
    asked = {"kv_offloading_size": 200, "engine_version": version, "shm_gib": shm_gib}
    if words is None:
        assert planned(**asked).host is not None
        return
    with pytest.raises(EngineRefusalError, match=words) as refused:
        planned(**asked)
    assert refused.value.field == "shm_gib"
    again = planned(**{**asked, "shm_gib": float(dict(refused.value.params)["needed"])})
    assert again.host is not None


@pytest.mark.parametrize(
    ("version", "ranks", "refused"), [("0.26.0", 4, False), ("0.27.0", 4, True), ("0.33.0", 1, False)]
)
def test_queues_of_several_ranks_need_more_than_containers_give(
    version: str, ranks: int, refused: bool
) -> None:
    """ShmRingBuffer: ten chunks of 24 MiB of each rank's answers, and Docker gives 64 MiB."""
    found = planned(engine_version=version, tensor_parallel_size=ranks)
    said = findings(found, shm_gib=0.0625)
    assert bool(said) is refused
    if refused:
        assert "240 MiB required, 64 MiB free" in said["shm-insufficient"]
    assert not findings(found, shm_gib=1)


def test_a_memory_limit_below_the_tier_is_found() -> None:
    found = planned(kv_offloading_size=200, engine_version="0.33.0")
    assert list(findings(found, memory_gib=128)) == ["limit-below-host-memory"]
    assert list(findings(found, memory_gib=205)) == ["limit-tight"]
    limits = (host_part(found) or {})["limits"]
    assert not findings(found, limits["memory_bytes"] / GIB, limits["shm_bytes"] / GIB)


def test_a_tier_larger_than_the_machine_is_refused_with_one_that_fits() -> None:
    asked = {"kv_offloading_size": 1200, "engine_version": "0.33.0", "node_memory_gib": 1000}
    with pytest.raises(ScenarioError) as refused:
        planned(**asked)
    assert refused.value.code == "host-memory-short"
    again = planned(**{**asked, "kv_offloading_size": int(dict(refused.value.params)["fitting"])})
    assert "host-memory-tight" not in {one.code for one in again.notices}


def test_replicas_ask_for_the_size_again() -> None:
    """Two replicas on one machine: 2 × 400 GiB of 700."""
    with pytest.raises(ScenarioError, match="800"):
        planned(kv_offloading_size=400, data_parallel_size=2, engine_version="0.33.0", node_memory_gib=700)


def test_what_the_processes_take_has_an_interval_and_says_that_nobody_measured_it() -> None:
    found = host_part(planned(kv_offloading_size=100)) or {}
    workers = next(part for part in found["processes"] if part["name"] == "host_workers")
    assert workers["interval"] == [4 * 4 * GIB, 4 * 9 * GIB]
    assert workers["grade"] == "assumed"
    assert found["limits"]["memory_bytes_least"] < found["limits"]["memory_bytes"]


def test_the_page_cache_holds_the_checkpoint_once_for_all_ranks() -> None:
    """Qwen3-32B has 65.5 GB of weights in its index."""
    found = host_part(planned(kv_offloading_size=100)) or {}
    assert found["reclaimable"]["bytes"] == pytest.approx(65_524_246_528, rel=0.02)


def test_a_server_asleep_keeps_its_weights_in_the_host() -> None:
    found = host_part(planned(enable_sleep_mode=True)) or {}
    asleep = next(part for part in found["processes"] if part["name"] == "host_asleep")
    low, high = asleep["interval"]
    assert low == pytest.approx(65.5e9, rel=0.02)
    assert high == 2 * low
    assert found["bytes_per_engine"] == 0
    told = {one.code: dict(one.params) for one in planned(enable_sleep_mode=True).notices}
    assert told["asleep-keeps"]["moved"] == "62.0 GiB"


def test_a_variable_bounds_the_rounding_of_pinned_weights() -> None:
    """Qwen3-32B's parameters of a rank, pinned one by one, take a tenth more; torch 2.13 can be told not to round."""
    asked = {"cpu_offload_gb": 8, "engine_version": "0.33.0"}
    rounded = planned(**asked)
    exact = planned(**asked, env={"PYTORCH_ALLOC_CONF": "pinned_max_round_threshold_mb:1"})
    assert rounded.host is not None
    assert exact.host is not None
    assert 1.05 < rounded.host.bytes_per_engine / exact.host.bytes_per_engine < 1.15
    assert "pinned-rounding-avoidable" in {one.code for one in rounded.notices}
    assert "pinned-rounding-avoidable" not in {one.code for one in exact.notices}
    assert "pinned-rounding-avoidable" not in {
        one.code for one in planned(**{**asked, "engine_version": "0.26.0"}).notices
    }


def test_a_refusal_of_shared_memory_is_fixed_by_a_larger_one() -> None:
    asked = scenario_from_request(
        {**QWEN, "kv_offloading_size": 200, "engine_version": "0.33.0", "shm_gib": 64}
    )
    with pytest.raises(EngineRefusalError) as refused:
        plan(asked)
    first = refusal_fixes(asked, refused.value)[0]
    assert (first.field, first.value) == ("shm_gib", 256)
    assert first.plan.host is not None


def test_a_flag_that_its_release_reads_too_late_is_fixed_by_leaving_the_groups() -> None:
    asked = scenario_from_request({**QWEN, "kv_offloading_size": 200, "engine_version": "0.20.0"})
    with pytest.raises(EngineRefusalError) as refused:
        plan(asked)
    fixes = [(one.field, one.value) for one in refusal_fixes(asked, refused.value)]
    assert fixes[0] == ("disable_hybrid_kv_cache_manager", True)
    assert ("engine_version", "0.21.0") in fixes


def test_every_part_of_the_host_stands_among_all_numbers() -> None:
    """With its formula, and the page cache of a checkpoint whole, whatever of it is left to the host."""
    asked = {
        "model": "Qwen/Qwen3-32B",
        "accelerator": "H200-141GB",
        "tensor_parallel_size": 2,
        "max_model_len": 8192,
    }
    rows = {
        row.label: row
        for row in number_rows(
            plan(scenario_from_request({**asked, "cpu_offload_gb": 8, "kv_offloading_size": 200})),
            words(Language.ENGLISH),
        )
    }
    assert rows["Host: Tier"].formula == "blocks × row_bytes"
    assert rows["Host: Workers"].interval
    whole = float(rows["Host: page cache while weights are read"].value.split()[0])
    plain = plan(scenario_from_request({**asked, "kv_offloading_size": 200})).host
    assert plain is not None
    assert whole == pytest.approx(plain.cached.value / GIB, rel=0.01)
    assert {"Host: Weights left to the host", "Host: queues in /dev/shm, at the most"} <= rows.keys()
