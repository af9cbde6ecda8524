"""Which storage formats a release takes on which card, against what the engine's sources say."""

from __future__ import annotations

from typing import Any

import pytest
from packaging.version import Version

from kvcore.advice.fixes import fixes
from kvcore.catalogue import find_model
from kvcore.engine.vllm.storage import METHODS, storage_of
from kvcore.errors import CatalogueError, EngineRefusalError
from kvcore.planning import plan
from kvcore.scenario.request import scenario_from_request

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


@pytest.mark.parametrize(("version", "code"), [("0.13.0", "quantization-not-on-platform"), ("0.23.0", "")])
def test_ascend_takes_fp8_late(version: str, code: str) -> None:
    """NPUPlatform.supported_quantization: ascend and compressed-tensors in 0.13, fp8 as well in 0.23."""
    asked = {"accelerator": "Ascend-910B4-32GB", "engine": "vllm-ascend", "engine_version": version}
    assert refusal_of(**asked, quantization="fp8") == code
    assert refusal_of(**asked) == ""


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
    assert storage_of(asked).method == method


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
