"""Which storage formats a release takes on which card, against what the engine's sources say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from packaging.version import Version

from kvcore.advice.fixes import fixes, refusal_fixes
from kvcore.base.errors import CatalogueError, EngineRefusalError
from kvcore.catalogue import find_model
from kvcore.engines.registry import engine_of
from kvcore.engines.vllm.storage import METHODS
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request

LLAMA = {"model": "meta-llama/Llama-3.1-8B-Instruct", "max_model_len": 4096}


def refusal_of(**asked: Any) -> str:
    try:
        plan(scenario_from_request(LLAMA | asked))
    except EngineRefusalError as error:
        return error.code
    return ""


@pytest.mark.parametrize(
    ("accelerator", "version", "method", "code"),
    [
        ("T4-16GB", "0.13.0", "fp8", "quantization-not-on-card"),  # Fp8Config.get_min_capability: 80
        ("T4-16GB", "0.33.0", "fp8", ""),  # 75
        ("V100-32GB", "0.33.0", "fp8", "quantization-not-on-card"),
        ("V100-32GB", "0.27.1", "bitsandbytes", ""),  # 70
        ("A100-80GB", "0.19.0", "mxfp8", "quantization-not-on-card"),  # 100
        ("A100-80GB", "0.33.0", "mxfp8", ""),  # 80
        ("H100-80GB", "0.18.0", "mxfp8", "quantization-not-in-release"),
        ("H100-80GB", "0.19.0", "fp8_per_tensor", "quantization-not-in-release"),
        ("H100-80GB", "0.23.0", "fp8_per_channel", "quantization-not-in-release"),
        ("H100-80GB", "0.24.0", "fp8_per_channel", ""),
        ("MI300X-192GB", "0.16.0", "bitsandbytes", "quantization-not-on-platform"),
        ("MI300X-192GB", "0.17.1", "bitsandbytes", ""),
        ("MI300X-192GB", "0.33.0", "experts_int8", "quantization-not-on-platform"),
        ("MI300X-192GB", "0.8.5", "fp8", ""),
        ("Max-1550-64GB", "0.33.0", "bitsandbytes", "quantization-not-on-platform"),
        ("Gaudi3-128GB", "0.33.0", "bitsandbytes", ""),
    ],
)
def test_methods(accelerator: str, version: str, method: str, code: str) -> None:
    assert refusal_of(accelerator=accelerator, engine_version=version, quantization=method) == code


@pytest.mark.parametrize(
    ("accelerator", "version", "code"),
    [
        ("V100-32GB", "0.33.0", "quantization-not-on-card"),  # TorchAOConfig.get_min_capability: 75
        ("T4-16GB", "0.8.5", ""),
        ("MI300X-192GB", "0.10.1", "quantization-not-on-platform"),
        ("MI300X-192GB", "0.10.2", ""),
        ("Max-1550-64GB", "0.33.0", "quantization-not-on-platform"),
    ],
)
def test_torchao(accelerator: str, version: str, code: str) -> None:
    written = {"_type": "Int8WeightOnlyConfig", "_version": 1, "_data": {}}
    declared = {"quant_method": "torchao", "quant_type": {"default": written}}
    config = {**find_model(LLAMA["model"]).config.root.raw, "quantization_config": declared}
    asked = {"config": config, "accelerator": accelerator, "engine_version": version}
    assert refusal_of(**asked, dtype="half") == code


def test_the_words_are_the_engine_s() -> None:
    with pytest.raises(EngineRefusalError) as refused:
        plan(
            scenario_from_request(
                LLAMA | {"accelerator": "V100-32GB", "engine_version": "0.33.0", "quantization": "fp8"}
            )
        )
    assert str(refused.value).startswith(
        "The quantization method fp8 is not supported for the current GPU. Minimum capability: 75. Current "
        "capability: 70."
    )


def test_a_development_build_is_not_refused() -> None:
    asked = {"accelerator": "H100-80GB", "quantization": "fp8_per_tensor"}
    assert refusal_of(**asked, engine_version="0.19.1rc1.dev10") == ""


def test_a_plugin_is_named_where_the_format_left_the_engine() -> None:
    def codes(version: str) -> set[str]:
        asked = LLAMA | {"accelerator": "L4-24GB", "engine_version": version, "quantization": "bitsandbytes"}
        return {notice.code for notice in plan(scenario_from_request(asked)).notices}

    assert "quantization-needs-package" not in codes("0.27.1")
    assert "quantization-needs-package" in codes("0.28.0")


@pytest.mark.parametrize(
    ("accelerator", "version", "model", "code"),
    [
        ("H100-80GB", "0.31.0", "Qwen/Qwen3-8B", "nvfp4-kv-unsupported"),
        ("H100-80GB", "0.32.0", "Qwen/Qwen3-8B", ""),
        ("B200-180GB", "0.31.0", "Qwen/Qwen3-8B", ""),
        ("MI300X-192GB", "0.33.0", "Qwen/Qwen3-8B", "nvfp4-kv-unsupported"),
        ("H100-80GB", "0.33.0", "openai/gpt-oss-20b", "nvfp4-kv-unsupported"),  # heads of 64
        ("B200-180GB", "0.33.0", "deepseek-ai/DeepSeek-V2-Lite", "nvfp4-kv-unsupported"),  # MLA
    ],
)
def test_nvfp4_keys_and_values(accelerator: str, version: str, model: str, code: str) -> None:
    asked = {"accelerator": accelerator, "engine_version": version, "kv_cache_dtype": "nvfp4"}
    assert refusal_of(model=model, **asked) == code


@pytest.mark.parametrize(
    ("accelerator", "version", "model", "dtype", "code"),
    [
        ("MI300X-192GB", "0.33.0", "Qwen/Qwen3.5-4B", "octave_k3v3", ""),
        ("MI300X-192GB", "0.32.0", "Qwen/Qwen3.5-4B", "octave_k3v3", "flag-not-in-release"),
        ("H100-80GB", "0.33.0", "Qwen/Qwen3.5-4B", "octave_k3v4", "octave-kv-unsupported"),
        ("MI300X-192GB", "0.33.0", "Qwen/Qwen3-8B", "octave_k3v4", "octave-kv-unsupported"),  # heads of 128
        ("MI355X-288GB", "0.33.0", "Qwen/Qwen3-8B", "ultraquant_4bit", ""),
        ("H100-80GB", "0.33.0", "Qwen/Qwen3-8B", "ultraquant_4bit", "octave-kv-unsupported"),
        ("H100-80GB", "0.20.0", "Qwen/Qwen3-8B", "turboquant_4bit_nc", ""),
        ("H100-80GB", "0.19.1", "Qwen/Qwen3-8B", "turboquant_4bit_nc", "flag-not-in-release"),
    ],
)
def test_packed_keys_and_values(accelerator: str, version: str, model: str, dtype: str, code: str) -> None:
    asked = {"accelerator": accelerator, "engine_version": version, "kv_cache_dtype": dtype}
    assert refusal_of(model=model, **asked) == code


@pytest.mark.parametrize(
    ("accelerator", "version", "code"),
    [
        ("A100-80GB", "0.33.0", "sparse-attention-unsupported"),
        ("H200-141GB", "0.11.0", ""),
        ("RTX-PRO-6000-96GB", "0.23.0", "sparse-attention-unsupported"),
        ("RTX-PRO-6000-96GB", "0.24.0", ""),
        ("MI300X-192GB", "0.33.0", ""),
    ],
)
def test_sparse_attention(accelerator: str, version: str, code: str) -> None:
    asked = {"model": "deepseek-ai/DeepSeek-V3.2", "tensor_parallel_size": 8}
    assert refusal_of(accelerator=accelerator, engine_version=version, **asked) == code


@pytest.mark.parametrize(
    ("version", "block_size", "code"),
    [
        ("0.11.0", 256, "block-size-not-in-release"),
        ("0.11.1", 256, ""),
        ("0.17.1", 48, "block-size-not-in-release"),
        ("0.18.0", 48, ""),
        ("0.33.0", 17, "block-size-not-in-kernels"),
        ("0.17.1", 8, "block-size-not-in-kernels"),
    ],
)
def test_block_sizes(version: str, block_size: int, code: str) -> None:
    assert refusal_of(accelerator="A100-80GB", engine_version=version, block_size=block_size) == code


def test_fixes_offer_no_format_that_the_card_has_not() -> None:
    """A model of 16 GiB on a V100 of 16 GB: fp8 weights would do, but the card has no kernel for them."""
    asked = LLAMA | {"accelerator": "V100-16GB", "engine_version": "0.33.0", "max_model_len": 8192}
    broken = plan(scenario_from_request(asked))
    assert all(fix.value != "fp8" for fix in fixes(broken))


def test_the_file_is_read_strictly() -> None:
    with pytest.raises(CatalogueError):
        METHODS.read({"since": {"fp8": "0.8.5"}})
    known = METHODS.load()
    assert known.least_capability("modelopt", Version("0.26.0")) == 89
    assert known.least_capability("something_else", Version("0.26.0")) == 0


ON_ASCEND = {"accelerator": "Ascend-910B3-64GB", "engine": "vllm-ascend", "max_model_len": 4096}
ASCEND_950 = {"name": "Ascend 950PR", "vendor": "huawei", "memory_gib": 112.0}
LIGHT_310P = "Ascend-310P3-Duo-48GB"


def compressed(weights: dict[str, Any], inputs: dict[str, Any] | None, packing: str) -> dict[str, Any]:
    """A config of LLM Compressor with one group for all linear layers."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": packing, "config_groups": {"group_0": group}}


INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False, "strategy": "channel"}
INT4 = {
    "num_bits": 4,
    "type": "int",
    "symmetric": True,
    "dynamic": False,
    "strategy": "group",
    "group_size": 128,
}
BY_TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token"}
FLOAT8 = INT8 | {"type": "float"}
FLOAT_BY_TOKEN = BY_TOKEN | {"type": "float"}


@pytest.mark.parametrize(
    ("model", "version", "flags", "code"),
    [
        # supported_quantization: ascend alone, then compressed-tensors, then fp8 from 0.21.0rc1 on.
        ("Qwen/Qwen3-32B-FP8", "0.11.0", {}, "quantization-not-on-platform"),
        ("Qwen/Qwen3-32B-FP8", "0.20.2rc1", {}, "quantization-not-on-platform"),
        # Issues 14467 and 12685: no attribute 'o_groups', on Ascend 950 as well.
        ("Qwen/Qwen3-32B-FP8", "0.21.0rc1", {}, "npu-format-attributes"),
        ("Qwen/Qwen3-32B-FP8", "0.23.0", {}, "npu-format-attributes"),
        ("Qwen/Qwen3-32B-FP8", None, {}, "npu-format-attributes"),
        ("Qwen/Qwen3-32B-FP8", "0.23.0", {"accelerator": ASCEND_950}, "npu-format-attributes"),
        ("deepseek-ai/DeepSeek-V3", "0.23.0", {"tensor_parallel_size": 16}, "npu-format-attributes"),
        ("Qwen/Qwen3-32B", "0.23.0", {"quantization": "fp8"}, "npu-format-attributes"),
        # AscendFp8Config of 0.27.1rc1: blocks alone.
        ("Qwen/Qwen3-32B-FP8", "0.27.1rc1", {"tensor_parallel_size": 4}, ""),
        ("Qwen/Qwen3-32B", "0.27.1rc1", {"quantization": "fp8"}, "npu-format-blocks"),
        # supported_models.md of 0.23.0: native weights of DeepSeek-V4 on Ascend 950 products.
        ("deepseek-ai/DeepSeek-V4-Flash", "0.23.0", {"tensor_parallel_size": 8}, "npu-format-chip"),
        (
            "deepseek-ai/DeepSeek-V4-Flash",
            "0.23.0",
            {"tensor_parallel_size": 8, "accelerator": ASCEND_950},
            "",
        ),
        (
            "deepseek-ai/DeepSeek-V4-Flash",
            "0.23.0",
            {"tensor_parallel_size": 8, "quantization": "ascend"},
            "",
        ),
        # faqs.md: Ascend 910 and Ascend 910 Pro B are NOT supported yet.
        ("Qwen/Qwen3-8B", "0.23.0", {"accelerator": "Ascend-910A-32GB"}, "npu-chip-unsupported"),
        ("Qwen/Qwen3-8B", "0.9.1", {"accelerator": "Ascend-910A-32GB"}, "npu-chip-unsupported"),
        (
            "Qwen/Qwen3-0.6B",
            None,
            {"accelerator": "Ascend-910A-32GB", "engine": "vllm-mindspore"},
            "",
        ),
    ],
)
def test_what_vllm_ascend_lists_it_need_not_have_methods_for(
    model: str, version: str | None, flags: dict[str, Any], code: str
) -> None:
    asked = ON_ASCEND | {"model": model, "engine_version": version} | flags
    assert refusal_of(**asked) == code


@pytest.mark.parametrize(
    ("section", "version", "card", "code"),
    [
        (compressed(INT8, BY_TOKEN, "int-quantized"), "0.11.0", None, "quantization-not-on-platform"),
        (compressed(INT8, BY_TOKEN, "int-quantized"), "0.12.0rc1", None, ""),
        (compressed(INT8, BY_TOKEN, "int-quantized"), "0.23.0", None, ""),
        (compressed(INT8, BY_TOKEN, "int-quantized"), "0.23.0", LIGHT_310P, "npu-format-chip"),
        # register_scheme("W4A16", "moe") is the only one of W4A16.
        (compressed(INT4, None, "pack-quantized"), "0.23.0", None, "npu-no-scheme"),
        (compressed(INT8, None, "pack-quantized"), "0.23.0", None, "npu-no-scheme"),
        (compressed(FLOAT8, FLOAT_BY_TOKEN, "float-quantized"), "0.21.0rc1", None, "npu-no-scheme"),
        (compressed(FLOAT8, FLOAT_BY_TOKEN, "float-quantized"), "0.23.0", None, "npu-format-chip"),
        (compressed(FLOAT8, FLOAT_BY_TOKEN, "float-quantized"), "0.23.0", ASCEND_950, ""),
        (
            compressed(INT8 | {"strategy": "tensor"}, BY_TOKEN, "int-quantized"),
            "0.23.0",
            None,
            "npu-no-scheme",
        ),
    ],
)
def test_which_groups_of_compressed_tensors_vllm_ascend_has_methods_for(
    section: dict[str, Any], version: str, card: object, code: str
) -> None:
    config = json.loads(find_model("Qwen/Qwen3-8B").config.text)
    asked = ON_ASCEND | {"model": "a/b", "config": config | {"quantization_config": section}}
    asked |= {"engine_version": version, "dtype": "float16"}
    assert refusal_of(**asked | ({} if card is None else {"accelerator": card})) == code


def test_fp8_blocks_are_kept_in_16_bits_from_0_27_on() -> None:
    """fp8_block.py of 0.27.1rc1: on every other generation the matrix is kept in the model's dtype."""
    asked = ON_ASCEND | {"tensor_parallel_size": 4, "engine_version": "0.27.1rc1"}
    blocks = plan(scenario_from_request(asked | {"model": "Qwen/Qwen3-32B-FP8"}))
    plain = plan(scenario_from_request(asked | {"model": "Qwen/Qwen3-32B"}))
    assert blocks.loaded_weights.value == plain.loaded_weights.value
    assert "fp8-kept-in-16-bits" in {one.code for one in blocks.notices}
    new = plan(scenario_from_request(asked | {"model": "Qwen/Qwen3-32B-FP8", "accelerator": ASCEND_950}))
    assert new.loaded_weights.value < 0.6 * plain.loaded_weights.value


@pytest.mark.parametrize(
    ("flags", "fix"),
    [
        ({"model": "Qwen/Qwen3-32B-FP8", "tensor_parallel_size": 2}, ("quantization", "ascend")),
        ({"model": "deepseek-ai/DeepSeek-V4-Flash", "tensor_parallel_size": 8}, ("quantization", "ascend")),
        (
            {"model": "Qwen/Qwen3-32B", "tensor_parallel_size": 2, "quantization": "fp8"},
            ("quantization", None),
        ),
        ({"model": "Qwen/Qwen3-8B", "accelerator": "Ascend-910A-32GB"}, ("accelerator", "Ascend-910B4-32GB")),
    ],
)
def test_the_way_out_of_a_refusal_on_ascend(flags: dict[str, Any], fix: tuple[str, object]) -> None:
    scenario = scenario_from_request(ON_ASCEND | flags)
    with pytest.raises(EngineRefusalError) as refused:
        plan(scenario)
    found = refusal_fixes(scenario, refused.value)
    assert (found[0].field, found[0].value) == fix


@pytest.mark.parametrize(
    ("engine", "version", "model", "method"),
    [
        ("vllm-ascend", "0.17.0rc1", "MiniMaxAI/MiniMax-M2.5", "unquantized"),
        ("vllm-ascend", "0.23.0", "MiniMaxAI/MiniMax-M2.5", "unquantized"),
        ("vllm-ascend", "0.16.0rc1", "MiniMaxAI/MiniMax-M2.5", "fp8"),
        ("vllm-ascend", "0.23.0", "Qwen/Qwen3-8B-FP8", "fp8"),
        ("vllm", "0.23.0", "MiniMaxAI/MiniMax-M2.5", "fp8"),
    ],
)
def test_vllm_ascend_unpacks_minimax_m2(engine: str, version: str, model: str, method: str) -> None:
    """vllm_ascend/patch/platform/patch_minimax_m2_config.py:_disable_fp8 (0.17.0rc1, 0.18.0, 0.23.0)."""
    config = dict(find_model(model).config.raw)
    asked = scenario_from_request({"config": config, "engine": engine, "engine_version": version})
    assert engine_of(asked).storage(asked).method == method


def test_a_start_of_minimax_m2_is_not_refused_for_its_format() -> None:
    """62 layers of 256 experts, three matrices of 1536 × 3072 each: all but 2 % of what 8 ranks store, in 16 bits."""
    found = plan(
        scenario_from_request({
            "model": "MiniMaxAI/MiniMax-M2.5", "engine": "vllm-ascend", "engine_version": "0.18.0",
            "accelerator": {"memory_gib": 61.27, "vendor": "huawei", "name": "Ascend 910C 64GB"},
            "tensor_parallel_size": 8, "enable_expert_parallel": True, "max_model_len": 2048,
        })
    )  # fmt: skip
    experts = 62 * 256 // 8 * 3 * 1536 * 3072 * 2
    assert experts < found.weights.total < 1.03 * experts
