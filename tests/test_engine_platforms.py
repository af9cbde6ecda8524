"""Flags on vllm-ascend: block sizes, chunked prefill, refusals in its own words."""

from typing import Any

import pytest

from kvcore import catalogue
from kvcore.advice.fixes import fixes
from kvcore.base.errors import EngineRefusalError
from kvcore.controls.offers import known_precisions, weight_precisions
from kvcore.planning import Plan, plan
from kvcore.wire.request import scenario_from_request

BIG = {"name": "Ascend 910B 64GB", "memory_gib": 60.96, "vendor": "huawei"}
SMALL = {"name": "Ascend 310P3 (Atlas 300I Duo, one chip)", "memory_gib": 43.24, "vendor": "huawei"}
W8A8 = {"model_quant_type": "W8A8", "model.layers.0.self_attn.q_proj.weight": "W8A8"}
"""The beginning of a side file."""
NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct"


def planned(model: str = "Qwen/Qwen3-8B", version: str = "0.23.0", **fields: Any) -> Plan:
    request = {"model": model, "engine": "vllm-ascend", "engine_version": version, "accelerator": BIG}
    return plan(scenario_from_request(request | fields))


@pytest.mark.parametrize("version", ["0.9.1", "0.11.0", "0.13.0", "0.18.0", "0.23.0"])
def test_a_block_has_128_tokens_whatever_is_asked(version: str) -> None:
    """ "Block size is set to 128 if prefix cache or chunked prefill is enabled." """
    one = planned(version=version, block_size=64)
    assert one.resolved.block_size == 128
    assert "block-size-not-kept" in {notice.code for notice in one.notices}


def test_without_prefixes_and_cut_prompts_another_block_size_is_kept() -> None:
    flags = {"enable_prefix_caching": False, "enable_chunked_prefill": False, "max_model_len": 4096}
    assert planned(block_size=64, max_num_batched_tokens=8192, **flags).resolved.block_size == 64


def test_two_releases_do_not_cut_the_prompts_of_plain_text_models() -> None:
    """0.9.1: "Non-MLA LLMs forcibly disable the chunked prefill", max_num_batched_tokens is raised to max_model_len."""
    cut, whole = (planned(version=version, max_model_len=32_768) for version in ("0.11.0", "0.9.1"))
    assert (cut.resolved.enable_chunked_prefill, whole.resolved.enable_chunked_prefill) == (True, False)
    assert cut.resolved.max_num_batched_tokens < whole.resolved.max_num_batched_tokens == 32_768
    lowered = planned(version="0.9.1", max_model_len=32_768, max_num_batched_tokens=2048)
    assert lowered.resolved.max_num_batched_tokens == 32_768


def test_a_310p_has_no_bfloat16() -> None:
    with pytest.raises(EngineRefusalError) as refusal:
        planned(accelerator=SMALL, dtype="bfloat16")
    assert (refusal.value.code, refusal.value.field) == ("bfloat16-not-on-npu", "dtype")
    codes = [
        {notice.code for notice in planned(accelerator=SMALL, dtype=dtype).notices}
        for dtype in ("auto", "float16")
    ]
    assert ["npu-needs-float16" in each for each in codes] == [True, False]
    assert "npu-needs-float16" not in {notice.code for notice in planned().notices}


@pytest.mark.parametrize(
    ("model", "version", "flags", "code"),
    [
        (NEXT, "0.13.0", {"enable_prefix_caching": True}, "state-prefix-caching-unsupported"),
        (
            "nvidia/Nemotron-H-56B-Base-8K",
            "0.13.0",
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
            "state-speculation-unsupported",
        ),
        (
            "deepseek-ai/DeepSeek-V3",
            "0.23.0",
            {
                "quantization": "ascend",
                "pipeline_parallel_size": 2,
                "speculative_config": {"method": "mtp", "num_speculative_tokens": 1},
            },
            "pipelined-mtp-unsupported",
        ),
        ("Qwen/Qwen3-8B", "0.10.2rc1", {"env": {"VLLM_USE_V1": "0"}}, "npu-refuses-first-engine"),
        (
            "Qwen/Qwen3-30B-A3B",
            "0.23.0",
            {"env": {"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"}},
            "npu-refuses-split-experts",
        ),
        (
            "Qwen/Qwen3-8B",
            "0.11.0",
            {"env": {"ASCEND_LAUNCH_BLOCKING": "1"}},
            "npu-refuses-blocking-launches",
        ),
        (
            "Qwen/Qwen2.5-7B-Instruct",
            "0.7.3",
            {"enable_prefix_caching": True, "block_size": 64, "tensor_parallel_size": 4},
            "npu-refuses-cached-blocks",
        ),
        (
            "deepseek-ai/DeepSeek-V2-Lite",
            "0.18.0",
            {"accelerator": SMALL, "dtype": "float16"},
            "npu-refuses-latent-attention",
        ),
        (
            "deepseek-ai/DeepSeek-V3.2",
            "0.23.0",
            {"accelerator": SMALL, "dtype": "float16", "quantization": "ascend"},
            "npu-refuses-sparse-attention",
        ),
    ],
)
def test_what_a_release_refuses_and_another_takes(
    model: str, version: str, flags: dict[str, Any], code: str
) -> None:
    with pytest.raises(EngineRefusalError) as refusal:
        planned(model, version, **{"tensor_parallel_size": 8, **flags})
    assert refusal.value.code == code


@pytest.mark.parametrize(
    ("model", "version", "flags"),
    [
        ("Qwen/Qwen3-8B", "0.9.1", {"env": {"VLLM_USE_V1": "0"}}),
        ("Qwen/Qwen3-30B-A3B", "0.11.0", {"env": {"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"}}),
        (
            "Qwen/Qwen3-30B-A3B",
            "0.23.0",
            {"env": {"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"}, "enable_expert_parallel": True},
        ),
        ("Qwen/Qwen3-8B", "0.23.0", {"env": {"ASCEND_LAUNCH_BLOCKING": "1"}, "enforce_eager": True}),
        ("Qwen/Qwen3-8B", "0.10.2rc1", {"env": {"ASCEND_LAUNCH_BLOCKING": "1"}}),
        ("Qwen/Qwen2.5-7B-Instruct", "0.7.3", {"enable_prefix_caching": True, "block_size": 128}),
        ("Qwen/Qwen2.5-7B-Instruct", "0.7.3", {"enable_prefix_caching": False, "block_size": 64}),
        ("deepseek-ai/DeepSeek-V2-Lite", "0.18.0", {}),
        ("deepseek-ai/DeepSeek-V2-Lite", "0.14.0rc1", {"accelerator": SMALL, "dtype": "float16"}),
    ],
)
def test_what_another_release_flag_or_card_takes(model: str, version: str, flags: dict[str, Any]) -> None:
    assert (
        planned(model, version, **{"tensor_parallel_size": 4, **flags}).resolved.engine.name == "vllm-ascend"
    )


def test_states_are_padded_on_a_310p_and_contiguous_elsewhere() -> None:
    """patch_mamba_config.py and patch_mamba_config_310.py (0.23.0): 32 × 128 × 128 floats of state on one of four ranks
    are keys of 256 in bfloat16 for 1024 tokens; the padded page has room for state and rows in 640."""
    flags = {"tensor_parallel_size": 4, "dtype": "float16", "max_model_len": 32_768, "max_num_seqs": 16}
    big, small = (planned(NEXT, accelerator=card, **flags) for card in (BIG, SMALL))
    blocks = [{spec.block_size for spec in one.specs[0]} - {32_768} for one in (big, small)]
    state, rows = 8 * 128 * 128, 3 * (2 * 16 * 128 + 32 * 128) // 4
    element = 4 if 4 * state == max(blocks[0]) * 512 else 2
    assert blocks[0] == {state * element // 512}
    assert blocks[1] == {-(-(state * element + 2 * rows) // (1024 * 128)) * 128}


def test_a_checkpoint_that_nothing_describes_is_said_to_be_assumed() -> None:
    """`--quantization ascend` stands for a checkpoint of ModelSlim; with its side file nothing is assumed."""
    config = dict(catalogue.find_model("Qwen/Qwen3-8B").config.raw)
    taken = [
        {notice.code for notice in planned("Qwen/Qwen3-8B", **flags).notices}
        for flags in (
            {"quantization": "ascend"},
            {"quantization": "ascend", "config": config, "hf_quant_config": W8A8},
            {},
        )
    ]
    assert ["modelslim-checkpoint-assumed" in codes for codes in taken] == [True, False, False]


@pytest.mark.parametrize(
    ("model", "card", "offered"),
    [
        ("Qwen/Qwen3-8B", "Ascend-910B3-64GB", True),
        ("Qwen/Qwen3-8B", "H100-80GB", False),
        ("google/gemma-3-27b-it", "Ascend-910B3-64GB", True),
    ],
)
def test_modelslim_is_offered_on_ascend_for_every_model(model: str, card: str, offered: bool) -> None:
    scenario = scenario_from_request({"model": model, "accelerator": card})
    assert ("ascend" in weight_precisions(scenario)) is offered
    assert ("ascend" in known_precisions(scenario)) is (card != "H100-80GB")


def test_weights_that_do_not_fit_an_ascend_card_are_offered_in_8_bits() -> None:
    broken = planned("Qwen/Qwen3-32B", max_model_len=32_768)
    assert broken.verdict == "weights-do-not-fit"
    assert ("quantization", "ascend") in [(fix.field, fix.value) for fix in fixes(broken)]
