"""Several engines on one card: what each release counts of the others."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.base.errors import ScenarioError
from kvcore.base.units import GIB
from kvcore.contract.result import planned_result
from kvcore.planning import Plan, Verdict, plan
from kvcore.wire.request import scenario_from_request

TINY = "TinyLlama/TinyLlama-1.1B-Chat-v1.0"


def planned(**asked: Any) -> Plan:
    return plan(scenario_from_request({"model": TINY, "accelerator": "L40S-48GB", **asked}))


def told(found: Plan) -> dict[str, dict[str, Any]]:
    return {one.code: dict(one.params) for one in found.notices}


def test_v1_up_to_0_9_0_takes_off_what_others_hold() -> None:
    """github.com/vllm-project/vllm/issues/14376: with 0.2 for both the second fails, with 0.3 it starts."""
    asked = {"engine_version": "0.8.5", "env": {"VLLM_USE_V1": "1"}, "other_engines": f"{TINY} 0.2"}
    second = planned(**asked, gpu_memory_utilization=0.2)
    assert second.verdict is Verdict.NO_KV_MEMORY
    fraction = float(told(second)["fraction-counts-others"]["fraction"])
    assert fraction == pytest.approx(0.41, abs=0.02)
    for share in (0.3, fraction):
        assert planned(**asked, gpu_memory_utilization=share).verdict in (Verdict.FITS, Verdict.TIGHT)


@pytest.mark.parametrize(("share", "starts"), [(0.3, True), (0.45, False)])
def test_since_0_9_2_as_much_as_the_fraction_must_be_free(share: float, starts: bool) -> None:
    """Three engines of 0.3 of the card go; a third of 0.45 finds 0.4 free, whatever it needs."""
    others = f"{TINY} 0.3; {TINY} 0.3"
    found = planned(engine_version="0.11.0", gpu_memory_utilization=share, other_engines=others)
    assert (found.verdict in (Verdict.FITS, Verdict.TIGHT)) is starts or found.memory.stops_at_start  # type: ignore[union-attr]
    assert ("free-memory-below-utilization" in told(found)) is not starts
    if not starts:
        lower = float(told(found)["fraction-beside-others"]["fraction"])
        again = planned(engine_version="0.11.0", gpu_memory_utilization=lower, other_engines=others)
        assert "free-memory-below-utilization" not in told(again)


def test_the_free_memory_that_a_second_engine_finds() -> None:
    """github.com/ovg-project/kvcached/issues/29: 59.32 of 79.15 GiB free, 0.9 wanted."""
    card = {"memory_gib": 79.15, "vendor": "nvidia", "name": "NVIDIA A100-SXM4-80GB"}
    found = planned(
        accelerator=card, engine_version="0.9.2", gpu_memory_utilization=0.9, other_engines="19.3 GiB"
    )
    said = told(found)["free-memory-below-utilization"]
    assert said["total"] == "79.15"
    assert float(said["wanted"]) == pytest.approx(71.24, abs=0.02)
    assert float(said["free"]) == pytest.approx(59.32, abs=0.5)


def test_given_kv_memory_does_not_spare_the_check() -> None:
    """github.com/llamastash/llamastash/issues/80 (0.28.0): request_memory() before kv_cache_memory_bytes is read."""
    asked = {"engine_version": "0.28.0", "kv_cache_memory_bytes": 4 * GIB, "other_engines": "24 GiB"}
    found = planned(**asked)
    fraction = float(told(found)["fraction-beside-given-kv"]["fraction"])
    again = planned(**asked, gpu_memory_utilization=fraction)
    assert not {"fraction-beside-given-kv", "free-memory-below-utilization"} & told(again).keys()
    assert again.available_kv_bytes == 4 * GIB


def test_the_order_of_start_decides() -> None:
    """The larger one finds its fraction free only where it is first."""
    asked = {"engine_version": "0.33.0", "gpu_memory_utilization": 0.6}
    first = planned(**asked, other_engines=f"this; {TINY} 0.3")
    last = planned(**asked, other_engines=f"{TINY} 0.5")
    assert [one.is_refused for one in first.engines] == [False, False]
    assert [one.is_refused for one in last.engines] == [False, True]
    after = planned(**asked, other_engines=f"this; {TINY} 0.5")
    assert told(after)["other-engine-does-not-start"]["name"] == TINY


def test_a_fraction_is_taken_whatever_the_model_needs() -> None:
    """github.com/linagora/openrag/issues/1012: 0.3 of an L4 is 7.2 GB, for 1.2 GB of weights; a context on top."""
    found = planned(
        accelerator="L4-24GB", model="Qwen/Qwen3-0.6B", gpu_memory_utilization=0.3, other_engines="4 GiB"
    )
    own = next(one for one in found.engines if one.is_this)
    assert 0.3 * 22 <= own.taken_bytes / GIB <= 0.3 * 22.5 + 1.2


def test_all_engines_stand_in_the_result_in_the_order_of_start() -> None:
    others = f"3 GiB; this; {TINY} 0.3 kv=2GiB"
    found = planned_result(planned(gpu_memory_utilization=0.4, other_engines=others))
    engines = found["engines"]
    assert [one["name"] for one in engines] == ["3 GiB", TINY, TINY]
    assert [one["this"] for one in engines] == [False, True, False]
    assert 2 < engines[2]["gib"] < 7
    assert "engines" not in planned_result(planned())


def test_engines_that_together_exceed_the_card_are_told() -> None:
    found = planned(gpu_memory_utilization=0.5, other_engines="this; 30 GiB")
    assert "engines-exceed-card" in told(found)


@pytest.mark.parametrize(
    "text", ["", "; ;", "30 GB", "x" * 300, "a 1.5", "this; this", "1 GiB;" * 9, "a 0.3 0.4"]
)
def test_a_list_that_cannot_be_read_is_named(text: str) -> None:
    if not text.strip("; "):
        assert len(planned(other_engines=text).engines) == 1
        return
    with pytest.raises(ScenarioError) as refused:
        planned(other_engines=text)
    assert refused.value.code in ("other-engines-unreadable", "other-engine-unknown")
    assert refused.value.field == "other_engines"


def test_a_model_that_nobody_knows_is_asked_for_its_memory() -> None:
    with pytest.raises(ScenarioError, match="no model nobody/knows"):
        planned(other_engines="nobody/knows 0.3")


def test_ascend_took_off_what_others_hold_until_0_18() -> None:
    """vllm_ascend/worker/worker_v1.py (0.13.0) against worker.py (0.18.0)."""
    asked = {"model": "Qwen/Qwen3-0.6B", "accelerator": "Ascend-910B3-64GB", "gpu_memory_utilization": 0.4}
    kv = {
        version: [
            planned(**asked, engine_version=version, other_engines=others).available_kv_bytes or 0
            for others in (None, "10 GiB")
        ]
        for version in ("0.13.0", "0.18.0")
    }
    assert kv["0.13.0"][0] - kv["0.13.0"][1] == pytest.approx(10 * GIB, rel=1e-3)
    assert kv["0.18.0"][0] == kv["0.18.0"][1]
