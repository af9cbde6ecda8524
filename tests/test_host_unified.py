"""Hosts that share their memory with the card: what is left of it for the operating system."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.base.units import GIB
from kvcore.host.unified import floor_bytes
from kvcore.planning import Plan, Verdict, plan
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
