"""Parameters: all that the documents explain, their defaults by version, and their effect on a plan."""

from __future__ import annotations

import pytest

from kvcore.explain.reference import defaults_by_version, effects, matching, value_text
from kvcore.texts import PARAMETERS, Parameter, Source, Trial
from kvcore.texts.words import Language, words
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
            engine="vllm-mindspore", accelerator="Ascend-910B3-64GB", tensor_parallel_size=4
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
