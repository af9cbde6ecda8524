"""Parameters: all that the documents explain, their defaults by version, and their effect on a plan."""

from __future__ import annotations

import re

import pytest

from kvcore.base.words import Language, words
from kvcore.explain.reference import (
    POST_MORTEM,
    RULE_OF_THUMB,
    defaults_by_version,
    effects,
    facts,
    matching,
    truth,
    value_text,
)
from kvcore.planning import Verdict, plan
from kvcore.texts import CORRECTIONS, PARAMETERS, Parameter, Source, Trial
from kvcore.wire import link
from tests import present_plans

T, ZH = words(Language.ENGLISH), words(Language.CHINESE)
DOCUMENTS = {
    Source.ASCEND_TUNING: (
            "ASCEND_TOTAL_MEMORY_GB", "vLLM_MODEL_MEMORY_USE_GB", "--gpu-memory-utilization", "--max-num-seqs",
            "--max-model-len", "--max-num-batched-tokens", "GLOG_v"),
    Source.RULE_OF_THUMB: ("--dtype",),
    Source.PARAMETERS: (
            "--tensor-parallel-size", "--pipeline-parallel-size", "--quantization", "--enforce-eager",
            "--gpu-memory-utilization", "--max-model-len", "max_tokens", "--enable-prefix-caching",
            "--use-v2-block-manager", "--enable-chunked-prefill", "--max-num-batched-tokens", "--speculative-mode",
            "--num-speculative-tokens", "--ngram-prompt-lookup-max"),
    Source.POST_MORTEM: ("--max-model-len", "--gpu-memory-utilization", "--tensor-parallel-size", "--block-size",
            "--max-num-seqs", "max_tokens"),
}  # fmt: skip


def parameter(flag: str) -> Parameter:
    return PARAMETERS[flag]


@pytest.mark.parametrize(("document", "flags"), DOCUMENTS.items())
def test_every_parameter_of_the_documents_is_there(document: Source, flags: tuple[str, ...]) -> None:
    assert {one.flag for one in PARAMETERS.values() if document in one.sources} >= set(flags)


def test_no_flag_is_there_twice() -> None:
    assert len({one.flag for one in PARAMETERS.values()}) == len(PARAMETERS)


def test_field_and_trial_come_together() -> None:
    assert all((one.field is None) == (one.trial is None) for one in PARAMETERS.values())


@pytest.mark.parametrize("flag", [one.flag for one in PARAMETERS.values() if one.trial is not None])
def test_every_trial_marks_the_present_value(flag: str) -> None:
    plan = present_plans.request(tensor_parallel_size=2)
    if flag.endswith("_GB"):
        assert effects(plan, parameter(flag), T) == ()
        plan = present_plans.request(
            engine="vllm-mindspore",
            engine_version="0.4.0",
            accelerator="Ascend-910B3-64GB",
            tensor_parallel_size=4,
        )
    found = effects(plan, parameter(flag), T)
    assert len(found) >= 2
    assert [effect.plan for effect in found if effect.is_present] == [plan]


def test_the_length_divides_the_pool_and_does_not_change_it() -> None:
    found = effects(present_plans.request(tensor_parallel_size=2), parameter("--max-model-len"), T)
    assert {effect.tokens for effect in found} == {found[0].tokens}
    by_length = {effect.value: effect.concurrency for effect in found}
    assert by_length[4096] == pytest.approx(2 * by_length[8192])


def test_fp8_doubles_the_tokens() -> None:
    auto, fp8 = effects(present_plans.request(tensor_parallel_size=2), parameter("--kv-cache-dtype"), T)
    assert fp8.tokens // 16 == pytest.approx(2 * auto.tokens // 16, abs=1)


def test_more_utilization_never_holds_less() -> None:
    found = effects(present_plans.request(tensor_parallel_size=2), parameter("--gpu-memory-utilization"), T)
    assert [effect.tokens for effect in found] == sorted(effect.tokens for effect in found)


def test_what_the_engine_refuses_is_kept_as_such() -> None:
    plan = present_plans.request(accelerator="V100-SXM2-32GB", tensor_parallel_size=8, dtype="float16")
    found = {effect.label: effect for effect in effects(plan, parameter("--dtype"), T)}
    assert found["bfloat16"].plan is None
    assert found["bfloat16"].refusal is not None
    assert found["bfloat16"].concurrency == 0


def test_a_start_that_fails_holds_nothing() -> None:
    found = effects(present_plans.fits(), parameter("--max-model-len"), T)
    longest = found[-1]
    assert longest.value == 40960
    assert longest.concurrency == 0


def test_defaults_are_those_of_the_engine() -> None:
    runs = defaults_by_version(present_plans.fits())
    # vllm/config/cache.py (0.19.1, 0.20.2); arg_utils.py: 1,024 and 8,192 on an H100 from V1 on
    assert [(run.value, run.first, run.last) for run in runs["gpu_memory_utilization"]] == [
        (0.9, "0.6.6", "0.19.1"), (0.92, "0.20.0", "0.33.0")
    ]  # fmt: skip
    assert [(run.value, run.first) for run in runs["max_num_seqs"]] == [(256, "0.6.6"), (1024, "0.8.0")]
    assert [run.value for run in runs["max_model_len"]] == [40960]


def test_a_default_is_that_of_the_present_length() -> None:
    # V0 turns chunked prefill on above 32,768 tokens alone: vllm/engine/arg_utils.py (0.6.6). Qwen3-32B has 40,960.
    at_8192 = defaults_by_version(present_plans.request(max_model_len=8192, tensor_parallel_size=2))
    at_40960 = defaults_by_version(present_plans.request(max_model_len=40960, tensor_parallel_size=2))
    assert [(run.value, run.first) for run in at_8192["enable_chunked_prefill"]] == [
        (False, "0.6.6"),
        (True, "0.8.0"),
    ]
    assert [(run.value, run.first) for run in at_40960["enable_chunked_prefill"]] == [(True, "0.6.6")]
    assert [run.value for run in at_8192["max_model_len"]] == [40960]


def test_search_knows_both_spellings_and_both_languages() -> None:
    assert [one.flag for one in matching(PARAMETERS.values(), "max_model_len max-num", T)] != []
    assert parameter("--block-size") in matching(PARAMETERS.values(), "block_size", T)
    assert parameter("--tensor-parallel-size") in matching(PARAMETERS.values(), "整除", ZH)
    assert matching(PARAMETERS.values(), "no such words", T) == ()
    assert matching(PARAMETERS.values(), "", T) == tuple(PARAMETERS.values())


def test_values_as_people_read_them() -> None:
    assert [value_text(value, T) for value in (None, True, 8192, 0.9, "fp8")] == [
        "none",
        "on",
        "8,192",
        "0.9",
        "fp8",
    ]


def test_all_trials_are_used() -> None:
    assert {one.trial for one in PARAMETERS.values() if one.trial} == set(Trial)


KNOWN = facts(present_plans.fits())


def said(name: str, language: Language = Language.ENGLISH) -> str:
    correction = CORRECTIONS[name]
    return truth(correction, KNOWN, words(language))


def test_the_hidden_size_counts_eight_times_too_much() -> None:
    # 80 × 2 × 8192 × 8192 × 2 bytes = 20 GiB; with 8 heads of 128 instead of 64: 2.5 GiB
    assert "8 times too much" in said("hidden_size")
    assert "takes 2.5 GiB, not 20 GiB" in said("hidden_size")


def test_the_script_prints_the_batch() -> None:
    assert "prints 160 GiB: 20 GiB for each request" in said("batch")


def test_the_last_block() -> None:
    assert round(100 * (16 * 64 - 1000) / (16 * 64), 1) == 2.3
    assert 40 / 64 == 0.625
    assert "62.5 %" in said("last_block")
    assert "2.3 %" in said("last_block")


def test_blocks_are_handed_out() -> None:
    assert "takes 94 blocks" in said("reserve")  # 1,500 / 16


def test_the_model_was_made_for_4096() -> None:
    assert "4,096" in said("model_limit")


def test_latent_attention() -> None:
    # (512 + 64) × 2 bytes × 61 layers = 70,272; 61 × 128 × 128 × 2 = 1,998,848; 2^33 / 70,272
    assert "68.6 KiB per token, not 1,952 KiB" in said("latent")
    assert "122,238 tokens" in said("latent") or "122,237 tokens" in said("latent")


def test_metrics_are_those_of_the_version() -> None:
    assert "vllm:e2e_request_latency_seconds" in said("latency_metric")
    assert "vllm:kv_cache_usage_perc" in said("gpu_alarm")
    old = facts(present_plans.request(engine_version="0.8.5"))
    assert old["gpu_alarm"] == {"metric": "vllm:gpu_cache_usage_perc"}


@pytest.mark.parametrize("language", Language)
def test_every_parameter_is_filled_in(language: Language) -> None:
    for correction in CORRECTIONS.values():
        text = said(correction.name, language)
        assert text
        assert not re.search(r"\{\w+\}", text), text


def test_the_rule_of_thumb_loads_with_its_assumptions() -> None:
    decoded = link.decode({name: str(value) for name, value in RULE_OF_THUMB.items()})
    assert decoded.repairs == ()
    planned = plan(decoded.scenario)
    assert planned.cache is not None
    assert (planned.cache.tokens, planned.cache.max_concurrency) == (163_840, 20.0)


def test_the_post_mortem_loads() -> None:
    decoded = link.decode({name: str(value) for name, value in POST_MORTEM.items()})
    assert decoded.repairs == ()
    planned = plan(decoded.scenario)
    assert planned.resolved.max_model_len == 8192
    assert planned.verdict is Verdict.FITS
