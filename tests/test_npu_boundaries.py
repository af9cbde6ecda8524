"""Published starts of vllm-ascend at the edge: what started is never refused, what failed is never said to fit."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvcore.base.units import GIB
from kvcore.planning import Plan, Verdict, plan
from kvcore.wire.request import scenario_from_request

DATA = tomllib.loads((Path(__file__).parent / "data" / "npu_boundaries.toml").read_text(encoding="utf-8"))
STEPS, STARTS = DATA["steps"], DATA["start"]
STARTED = (Verdict.FITS, Verdict.TIGHT)


def stepped(edge: dict[str, int], tokens: int) -> Plan:
    own = {name: value for name, value in edge.items() if name not in ("starts", "fails")}
    return plan(scenario_from_request(STEPS["request"] | own | {"max_num_batched_tokens": tokens}))


def label(edge: dict[str, int]) -> str:
    return f"{edge['max_model_len']}-TP{edge['tensor_parallel_size']}"


@pytest.mark.parametrize("edge", STEPS["edges"], ids=label)
def test_the_largest_step_that_started_is_not_refused(edge: dict[str, int]) -> None:
    assert stepped(edge, edge["starts"]).verdict in STARTED


@pytest.mark.parametrize("edge", STEPS["edges"], ids=label)
def test_the_next_larger_step_is_not_said_to_fit(edge: dict[str, int]) -> None:
    assert stepped(edge, edge["fails"]).verdict is not Verdict.FITS


@pytest.mark.parametrize("edge", STEPS["edges"], ids=label)
def test_the_figures_by_themselves_part_what_started_from_what_did_not(edge: dict[str, int]) -> None:
    """What is left for the KV cache against what one request wants, without any interval."""
    for tokens, starts in ((edge["starts"], True), (edge["fails"], False)):
        found = stepped(edge, tokens)
        assert found.cache is not None
        assert found.available_kv_bytes is not None
        assert (found.available_kv_bytes >= found.cache.needed_bytes) is starts


@pytest.mark.parametrize("edge", STEPS["edges"], ids=label)
def test_a_step_well_beyond_the_edge_is_refused_and_one_well_below_is_not_called_tight(
    edge: dict[str, int],
) -> None:
    assert stepped(edge, 2 * edge["fails"]).verdict not in STARTED
    assert stepped(edge, edge["starts"] // 4).verdict is Verdict.FITS


def test_the_memory_that_one_request_wants_is_what_the_engine_said() -> None:
    edge = next(one for one in STEPS["edges"] if one["fails"] == 47_104)
    cache = stepped(edge, edge["fails"]).cache
    assert cache is not None
    assert round(cache.needed_bytes / GIB, 2) == 17.26


@pytest.mark.parametrize("start", STARTS, ids=[start["source"].split("/")[-1][:40] for start in STARTS])
def test_single_starts_end_as_published(start: dict[str, Any]) -> None:
    found = plan(scenario_from_request(start["request"]))
    if start["starts"]:
        assert found.verdict in STARTED
    else:
        assert found.verdict is not Verdict.FITS
    if "tokens" in start:
        assert found.cache is not None
        assert found.cache.tokens == pytest.approx(start["tokens"], rel=0.02)
