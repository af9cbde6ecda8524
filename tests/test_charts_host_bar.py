"""The bars of the host's memory and of all engines of a card."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.base.units import GIB
from kvcore.base.words import Language, words
from kvcore.charts.host_bar import engines_bar, host_bar, host_parts, host_sentences
from kvcore.planning import Plan, plan
from kvcore.wire.request import scenario_from_request

ENGLISH = words(Language.ENGLISH)


def planned(**asked: Any) -> Plan:
    return plan(scenario_from_request({"model": "Qwen/Qwen3-32B", "accelerator": "H200-141GB", **asked}))


def test_the_parts_fill_the_machine_s_memory() -> None:
    found = planned(kv_offloading_size=200, cpu_offload_gb=8, node_memory_gib=1000, data_parallel_size=2)
    parts = host_parts(found, ENGLISH)
    assert [part.label for part in parts] == [
        "Tier",
        "Weights left to the host",
        "Workers",
        "API servers",
        "Free",
    ]
    assert sum(part.size_bytes for part in parts) == pytest.approx(1000 * GIB)
    assert found.host is not None
    assert sum(part.size_bytes for part in parts[:2]) == found.host.bytes_per_node


def test_a_tier_says_what_it_holds_and_how_fast_it_can_be() -> None:
    """200 GiB of four ranks, 50 GiB a rank over 63 GB/s; 262,144 bytes a token over all ranks."""
    said = " ".join(host_sentences(planned(kv_offloading_size=200, tensor_parallel_size=4), ENGLISH))
    assert "holds 819,200 tokens" in said
    assert "256.00 KiB a token" in said
    assert "0.85 s to fill" in said


def test_no_bar_where_nothing_is_asked_of_the_host_and_the_card_is_not_shared() -> None:
    found = planned()
    assert host_bar(found, ENGLISH) is None
    assert engines_bar(found, ENGLISH) is None


def test_all_engines_and_what_is_free_are_the_card() -> None:
    found = planned(
        model="Qwen/Qwen3-8B", gpu_memory_utilization=0.5, other_engines="Qwen/Qwen3-0.6B 0.2; this; 3 GiB"
    )
    bar = engines_bar(found, ENGLISH)
    assert bar is not None
    pieces = bar.bars[0].pieces
    assert [piece.said[0] for piece in pieces] == ["Qwen3-0.6B", "Qwen3-8B", "Other processes", "Free"]
    assert found.memory is not None
    assert sum(piece.size for piece in pieces) == pytest.approx(found.memory.total.value / GIB)


def test_an_engine_that_does_not_start_is_named_without_a_size() -> None:
    found = planned(
        model="Qwen/Qwen3-8B", gpu_memory_utilization=0.7, other_engines="this; Qwen/Qwen3-0.6B 0.5"
    )
    bar = engines_bar(found, ENGLISH)
    assert bar is not None
    assert bar.bars[0].pieces[1].said == ("Qwen3-0.6B", "does not start")
