"""A target of requests at once: what a deployment serves of it, the changes that reach it, and the words of both."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcore.advice.fixes import falls_short, fewer_gpus, fixes
from kvcore.advice.target import Served, served
from kvcore.advice.vary import concurrency_curve
from kvcore.base.words import Language, words
from kvcore.charts.curves import curve_lengths
from kvcore.charts.summary import Outcome, fix_label, fix_text, low_end_line, pair_label, verdict_sentence
from kvcore.contract.result import answer
from kvcore.deploy.going_live import default_load
from kvcore.planning import Plan, Verdict, plan
from kvcore.wire.link import decode, encode
from kvcore.wire.request import scenario_from_request

EN, ZH = words(Language.ENGLISH), words(Language.CHINESE)
FORTY = {
    "model": "openai/gpt-oss-120b", "accelerator": "H100-80GB", "tensor_parallel_size": 2, "max_model_len": 131000,
    "wanted": 40,
}  # fmt: skip


def planned(**changes: Any) -> Plan:
    return plan(scenario_from_request(FORTY | changes))


def test_fourteen_of_forty_is_no_success() -> None:
    short = planned()
    assert (short.verdict, falls_short(short)) == (Verdict.FITS, True)
    sentence = verdict_sentence(short, EN)
    assert sentence.outcome is Outcome.CAUTION
    assert sentence.text == "Fits, but serves 14 of 40 requests of 131,000 tokens at once"
    assert verdict_sentence(short, ZH).outcome is Outcome.CAUTION
    assert {"40", "14"} <= set(re.findall(r"\d+", verdict_sentence(short, ZH).text))


def test_the_target_changes_no_number() -> None:
    without = {name: value for name, value in FORTY.items() if name != "wanted"}
    told, untold = (json.loads(json.dumps(answer(json.dumps(asked)))) for asked in (FORTY, without))
    assert "serves" not in untold
    assert untold["fixes"] == []
    assert {**told, "serves": None, "fixes": []} == {**untold, "serves": None}


def test_the_result_says_what_is_served_and_which_changes_serve_all() -> None:
    found = answer(json.dumps(FORTY))
    assert found["serves"] == {"wanted": 40, "per_replica": 14, "replicas": 1, "total": 14, "enough": False}
    assert found["fixes"]
    for fix in found["fixes"]:
        assert fix["serves"]["enough"]
        assert fix["serves"]["total"] == fix["serves"]["per_replica"] * fix["serves"]["replicas"] >= 40


@settings(max_examples=25, deadline=None)
@given(
    model=st.sampled_from(("Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "google/gemma-3-12b-it")),
    card=st.sampled_from(("L40S-48GB", "H100-80GB", "RTX-4090-24GB")),
    size=st.sampled_from((1, 2, 4)),
    length=st.sampled_from((512, 8192, 32768)),
    wanted=st.integers(1, 3000),
)
def test_a_promised_change_serves_the_target_when_it_is_sent_back(
    model: str, card: str, size: int, length: int, wanted: int
) -> None:
    asked = {
        "model": model, "accelerator": card, "tensor_parallel_size": size, "max_model_len": length, "wanted": wanted,
    }  # fmt: skip
    first = plan(scenario_from_request(asked))
    for fix in fixes(first) if falls_short(first) or first.verdict is not Verdict.FITS else ():
        again = served(plan(scenario_from_request(asked | {fix.field: fix.value})))
        assert again is not None
        assert again.enough, (fix.field, fix.value)


def test_replicas_are_the_fewest_that_serve_the_target() -> None:
    asked = {
        "model": "Qwen/Qwen3-32B",
        "accelerator": "H100-80GB",
        "tensor_parallel_size": 2,
        "max_model_len": 32768,
    }
    one = plan(scenario_from_request(asked | {"wanted": 40}))
    target = served(one)
    assert target is not None
    (fix,) = (fix for fix in fixes(one) if fix.field == "data_parallel_size")
    assert fix.value == target.replicas_needed == -(-40 // target.per_replica)
    assert fix_label(fix, EN) == f"{fix.value} replicas"
    assert fix_text(fix_label(fix, EN), fix, EN) == (
        f"{fix.value} replicas: serves {fix.value * target.per_replica} on {2 * fix.value} GPUs"
    )


def test_seats_below_the_target_are_raised_first() -> None:
    asked = {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "max_model_len": 128, "wanted": 2000}
    first, *_ = fixes(plan(scenario_from_request(asked)))
    assert (first.field, first.value) == ("max_num_seqs", 2000)
    assert fix_label(first, EN) == "Up to 2000 sequences at once"


def test_the_total_over_replicas_stands_beside_each() -> None:
    sentence = verdict_sentence(planned(data_parallel_size=3), EN)
    assert sentence.outcome is Outcome.FITS
    assert sentence.text == (
        "Fits and serves 40 requests of 131,000 tokens at once: room for 63 (21 on each of 3 replicas)"
    )


def test_nothing_is_served_by_what_does_not_start() -> None:
    found = served(planned(accelerator="RTX-4090-24GB"))
    assert found == Served(wanted=40, per_replica=0, replicas=1)
    assert found.replicas_needed is None


@pytest.mark.parametrize("text", ["0", "1000000001", "forty", "4.5"])
def test_a_target_that_is_no_count_of_requests_is_named(text: str) -> None:
    found = decode({"model": "Qwen/Qwen3-8B", "wanted": text})
    assert [repair.field for repair in found.repairs] == ["wanted"]
    assert found.scenario.wanted is None
    assert answer(json.dumps({"model": "Qwen/Qwen3-8B", "wanted": text}))["error"]["field"] == "wanted"


def test_links_keep_the_target() -> None:
    assert decode(encode(scenario_from_request(FORTY))).scenario.wanted == 40


def test_an_embedder_serves_as_many_as_may_run() -> None:
    found = served(plan(scenario_from_request({"model": "Qwen/Qwen3-Embedding-8B", "accelerator": "H100-80GB",
                                               "runner": "pooling", "max_num_seqs": 64, "wanted": 100})))  # fmt: skip
    assert found is not None
    assert found.per_replica <= 64
    assert not found.enough


def test_going_live_loads_a_replica_with_its_share_of_the_target() -> None:
    assert default_load(planned(data_parallel_size=3)).requests == 14


def test_two_changes_that_need_fewer_gpus_than_one_are_named() -> None:
    """One change takes eight GPUs or six; four do with fp8 keys and values, or with a little more of each card."""
    short = planned()
    found = fixes(short)
    pairs = fewer_gpus(short, found)
    said = [fix_text(pair_label(one, EN), one.second, EN) for one in pairs]
    assert said[0].startswith("Tensor parallel size 4 + KV cache dtype fp8 (less exact): serves ")
    for one in pairs:
        sent = FORTY | dict(one.changes)
        again = served(plan(scenario_from_request(sent)))
        assert again is not None
        assert again.enough
        assert sent["tensor_parallel_size"] == 4
        assert f"serves {again.total} on 4 GPUs" in fix_text("", one.second, EN)
    assert min(one.scenario.parallel.ranks for one in found if one.field != "accelerator") > 4


def test_where_a_single_change_needs_no_further_gpu_no_pair_is_named() -> None:
    short = planned(wanted=16)
    found = fixes(short)
    assert "kv_cache_dtype" in {one.field for one in found}
    assert fewer_gpus(short, found) == ()
    enough = planned(wanted=None)
    assert fewer_gpus(enough, fixes(enough)) == ()


def test_a_target_that_the_lower_end_misses_is_called_close() -> None:
    def line(**changes: Any) -> str:
        found = planned(**changes)
        return low_end_line(found, concurrency_curve(found, curve_lengths(found)), EN)

    close = {"tensor_parallel_size": 4, "gpu_memory_utilization": 0.93}
    assert line(**close, wanted=40) == (
        "It is close: at the lower end of its 80 % interval it serves 39 of 40."
    )
    assert line(**close, wanted=30) == line(**close, wanted=50) == line(**close, wanted=None) == ""
