"""Hosts that share their memory with the card: what is left of it for the operating system."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.base.units import GIB
from kvcore.base.words import Language, words
from kvcore.charts import summary
from kvcore.host.unified import floor_bytes
from kvcore.planning import Plan, Tightness, Verdict, plan
from kvcore.planning.numbers import numbers
from kvcore.wire.request import scenario_from_request

GEMMA = {"model": "google/gemma-4-26B-A4B", "accelerator": "GB10-128GB", "engine_version": "0.23.0"}


def planned(**asked: Any) -> Plan:
    return plan(scenario_from_request(asked))


def told(found: Plan) -> dict[str, dict[str, str]]:
    return {one.code: dict(one.params) for one in found.notices if one.code.startswith("unified-memory")}


def test_a_start_that_hangs_its_host_is_told_and_the_share_that_it_is_told_is_enough() -> None:
    """github.com/vllm-project/vllm/issues/46307: at 0.70 some 112 of 119 GiB are in use and the host hangs."""
    found = planned(**GEMMA, gpu_memory_utilization=0.7)
    said = told(found)["unified-memory-host"]
    assert (said["cached"], said["floor"]) == ("48.5 GiB", "12.2 GiB")
    again = planned(**GEMMA, gpu_memory_utilization=float(said["share"]))
    assert again.verdict in (Verdict.FITS, Verdict.TIGHT)
    assert not told(again)


def test_where_no_share_is_enough_none_is_told() -> None:
    asked = {"model": "Qwen/Qwen3-32B", "accelerator": "GB10-128GB", "max_model_len": 40_960}
    assert list(told(planned(**asked))) == ["unified-memory-small"]


@pytest.mark.parametrize("accelerator", ["GH200-96GB", "H100-80GB"])
def test_cards_with_memory_of_their_own_are_not(accelerator: str) -> None:
    assert not told(planned(model="Qwen/Qwen3-8B", accelerator=accelerator))


def test_surroundings_say_that_a_host_shares_its_memory() -> None:
    card = {"memory_gib": 96.0, "vendor": "amd", "name": "Radeon 8060S"}
    asked = {"model": "Qwen/Qwen3-8B", "accelerator": card}
    assert not told(planned(**asked))
    assert told(planned(**asked, surroundings={"host": "unified"}))


@pytest.mark.parametrize(("total_gib", "floor_gib"), [(121.63, 12.163), (61.34, 8.0), (7.43, 1.8575)])
def test_the_floor_is_a_part_of_the_memory(total_gib: float, floor_gib: float) -> None:
    assert floor_bytes(total_gib * GIB) / GIB == pytest.approx(floor_gib)


def test_a_given_kv_memory_says_that_the_start_was_made() -> None:
    assert not told(planned(**GEMMA, measured={"available_kv_gib": 20.0}))


def test_a_start_that_may_hang_its_host_is_tight_and_says_why() -> None:
    found = planned(**GEMMA, gpu_memory_utilization=0.7)
    assert (found.verdict, found.tight_by) == (Verdict.TIGHT, Tightness.HOST)
    assert "host and card share their memory" in summary.verdict_sentence(found, words(Language.ENGLISH)).text
    assert numbers(found.scenario).tight_by is Tightness.HOST


def test_a_small_share_takes_what_was_measured() -> None:
    """github.com/llamastash/llamastash/pull/63: 0.5B at 0.15 has 15.1 GiB of KV cache; 0.92 froze it."""
    asked = {"model": "Qwen/Qwen2.5-0.5B-Instruct", "accelerator": "GB10-128GB", "engine_version": "0.28.0"}
    found = planned(**asked, gpu_memory_utilization=0.15)
    assert found.verdict is Verdict.FITS
    assert (found.available_kv_bytes or 0) / GIB == pytest.approx(15.1, rel=0.05)
    assert planned(**asked).tight_by is Tightness.HOST


def test_memory_that_the_firmware_keeps_is_not_free() -> None:
    """github.com/kyuz0/amd-strix-halo-vllm-toolboxes/pull/63: 57.38 of 124.0 GiB free, 0.8 (99.2 GiB) is refused."""
    card = {"memory_gib": 124.0, "vendor": "amd", "name": "Strix Halo"}
    found = planned(
        model="Qwen/Qwen3-8B", accelerator=card, gpu_memory_utilization=0.8, engine_version="0.25.0",
        surroundings={"host": "unified", "taken_gib": 66.62},
    )  # fmt: skip
    said = {one.code: dict(one.params) for one in found.notices}["free-memory-below-utilization"]
    assert said["wanted"] == "99.20"
    assert float(said["free"]) == pytest.approx(57.38, abs=1.5)
    assert found.tight_by is Tightness.START


def test_a_tier_takes_the_same_memory() -> None:
    asked = {"model": "Qwen/Qwen3-8B", "accelerator": "GB10-128GB", "gpu_memory_utilization": 0.6}
    assert planned(**asked).verdict is Verdict.FITS
    assert planned(**asked, kv_offloading_size=60).tight_by is Tightness.HOST


@pytest.mark.parametrize(
    ("card", "version", "is_told"),
    [
        ("GB10-128GB", "0.11.0", True),
        ("GB10-128GB", "0.13.0", False),
        ("GB10-128GB", "0.33.0", False),
        ("H100-80GB", "0.11.0", False),
    ],
)
def test_what_a_release_takes_for_free_memory(card: str, version: str, is_told: bool) -> None:
    """vllm/utils/mem_utils.py (0.13.0: capabilities 8.7, 11.0, 12.1; 0.20.0: every integrated card)."""
    found = planned(
        model="Qwen/Qwen3-8B", accelerator=card, engine_version=version, gpu_memory_utilization=0.5
    )
    assert ("unified-reads-free" in {one.code for one in found.notices}) is is_told
