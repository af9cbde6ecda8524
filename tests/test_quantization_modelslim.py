"""ModelSlim's checkpoints: bytes by hand from vllm-ascend's parameters, its side file, what is published, refusals."""

from typing import Any

import pytest

from kvcore import catalogue
from kvcore.base.errors import KvPlannerError
from kvcore.base.units import gib
from kvcore.engines.registry import engine_of
from kvcore.model.config import ModelConfig, condensed
from kvcore.model.quantization import read_quantization
from kvcore.model.quantization.formats import ExpertsShape, LinearShape
from kvcore.model.quantization.modelslim import MODELSLIM, ModelSlimFormat
from kvcore.planning import Plan, plan
from kvcore.wire.request import scenario_from_request

QWEN3 = dict(catalogue.find_model("Qwen/Qwen3-8B").config.raw)
CARD = "Ascend-910B3-64GB"
LAYER = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
)


def description(kind: str = "W8A8", down: str = "FLOAT", **facts: Any) -> dict[str, Any]:
    """As ModelSlim writes it for Qwen3-8B, the down projections in `down`."""
    names = {f"model.layers.{layer}.{name}.weight": kind for layer in range(36) for name in LAYER}
    downs = {f"model.layers.{layer}.mlp.down_proj.weight": down for layer in range(36)}
    ends = {"model.embed_tokens.weight": "FLOAT", "lm_head.weight": "FLOAT", "model.norm.weight": "FLOAT"}
    return {"model_quant_type": kind, **ends, **names, **downs, **facts}


def planned(**fields: Any) -> Plan:
    base = {"config": QWEN3, "engine": "vllm-ascend", "accelerator": CARD, "max_model_len": 8192}
    return plan(scenario_from_request({**base, **fields}))


def refusal(**fields: Any) -> KvPlannerError:
    with pytest.raises(KvPlannerError) as raised:
        planned(**fields)
    return raised.value


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("W8A8", 1024 * 4096 + 1024 * (4 + 4 + 2 + 2) + 4096 * 3 * 2 + 2 + 1),
        ("W8A8_DYNAMIC", 1024 * 4096 + 1024 * (2 + 2 + 4)),
        ("W8A16", 1024 * 4096 + 1024 * (2 + 2)),
        ("W4A8_DYNAMIC", 1024 * 4096 // 2 + 1024 * (4 + 2 + 4) + 1024 * 4096 // 256 * (2 + 2)),
    ],
)
def test_a_linear_layer_by_hand(kind: str, expected: int) -> None:
    """vllm_ascend/quantization/methods (0.23.0), bfloat16: scales, offsets, biases, and kept copies."""
    shape = LinearShape(in_features=4096, outputs=(1024,), element_bytes=2)
    assert ModelSlimFormat(type=MODELSLIM.load().type[kind]).linear_bytes(shape) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("W8A8_DYNAMIC", 3 * 2048 * 768 + 1536 * (2 + 2 + 4) + 2048 * (2 + 2)),
        ("W4A8_DYNAMIC", 3 * 2048 * 768 // 2 + 1536 * (8 * 8 + 4 + 4) + 2048 * (3 * 8 + 4 + 4)),
        ("W4A16", 3 * 2048 * 768 // 2 + 1536 * 64 * (2 + 2) + 2048 * 24 * (2 + 2)),
    ],
)
def test_experts_by_hand(kind: str, expected: int) -> None:
    shape = ExpertsShape(num_experts=16, hidden_size=2048, intermediate_size=768, element_bytes=2)
    assert ModelSlimFormat(type=MODELSLIM.load().type[kind]).experts_bytes(shape) == 16 * expected


def test_the_side_file_names_the_modules_in_16_bits() -> None:
    """Qwen3-8B: down projections of 36 × 12,288 × 4,096 weights cost one more byte each, less what int8 keeps."""
    all_int8, with_float = (
        planned(hf_quant_config=description(down=down), quantization="ascend").weights.parameters
        for down in ("W8A8", "FLOAT")
    )
    assert with_float - all_int8 == 36 * (12_288 * 4096 - 4096 * 12 - 12_288 * 6 - 3)
    assert planned(hf_quant_config=description()).quantization.method == "ascend"


def test_a_group_size_of_the_side_file() -> None:
    sizes = [
        planned(
            hf_quant_config=description("W4A8_DYNAMIC", "W4A8_DYNAMIC", group_size=size)
        ).weights.parameters
        for size in (256, 128)
    ]
    assert sizes[1] - sizes[0] == sum(
        36 * rows * inputs // 256 * 4
        for rows, inputs in ((4096, 4096), (2 * 1024, 4096), (4096, 4096), (2 * 12_288, 4096), (4096, 12_288))
    )


def test_a_c8_cache_is_stored_in_int8() -> None:
    plain, c8 = (planned(hf_quant_config=description(**facts)) for facts in ({}, {"kv_cache_type": "C8"}))
    assert plain.cache is not None
    assert c8.cache is not None
    assert plain.cache.bytes_per_token == 2 * c8.cache.bytes_per_token


@pytest.mark.parametrize(
    ("ranks", "replicas", "tokens", "printed_gib"),
    [(1, 16, 23_552, 31.76), (2, 8, 45_056, 27.17), (4, 4, 39_936, 24.26)],
)
def test_published_weights_of_deepseek_v4_flash(
    ranks: int, replicas: int, tokens: int, printed_gib: float
) -> None:
    """W8A8 with MTP on 16 dies of 910C, 0.23.0rc1: github.com/pajaysi/vllm-ascend-hbm-planner."""
    found = planned(
        config=dict(catalogue.find_model("deepseek-ai/DeepSeek-V4-Flash").config.raw), quantization="ascend",
        engine_version="0.23.0", accelerator="Ascend-910C-64GB", tensor_parallel_size=ranks,
        data_parallel_size=replicas, enable_expert_parallel=True, max_num_batched_tokens=tokens,
        speculative_config={"method": "mtp", "num_speculative_tokens": 1},
        env={"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"},
    )  # fmt: skip
    assert gib(found.loaded_weights.value) == pytest.approx(printed_gib, rel=0.018)
    assert found.loaded_weights.interval is not None
    low, high = found.loaded_weights.interval
    assert gib(low) <= printed_gib <= gib(high)


@pytest.mark.parametrize(
    "model",
    ["Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-Next-80B-A3B-Instruct", "deepseek-ai/DeepSeek-V3.1",
     "deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5", "moonshotai/Kimi-K2-Instruct"],
)  # fmt: skip
def test_without_its_side_file_a_published_conversion_is_taken_and_said_to_be_unsure(model: str) -> None:
    config = catalogue.find_model(model).config
    found = read_quantization(config, "ascend")
    assert (found.method, found.spread) == ("ascend", 0.03)


MIXTURE = {
    "model_type": "minimax_m2", "architectures": ["MiniMaxM2ForCausalLM"], "hidden_size": 3072,
    "intermediate_size": 1536, "num_hidden_layers": 2, "num_attention_heads": 48, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 200064, "num_local_experts": 256, "num_experts_per_tok": 8,
    "max_position_embeddings": 196608, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
EXPERTS = 2 * 256 * 3 * 3072 * 1536


@pytest.mark.parametrize(
    ("name", "expert_bytes"),
    [
        ("Eco-Tech/Some-M2-w8a8-QuaRot", 1.0),
        ("Some-M2-W4A8", 0.5),
        ("Some-M2-w4a16", 0.625),
        ("Some-M2", 1.0),
    ],
)
def test_a_model_that_nothing_is_published_of_is_taken_by_the_scheme_in_its_name(
    name: str, expert_bytes: float
) -> None:
    """Experts decide: 2 layers of 256, three matrices of 3072 × 1536 each, with their scales on top."""
    found = planned(
        config=MIXTURE, model=name, quantization="ascend", engine_version="0.23.0", accelerator="Ascend-910C-64GB",
        max_model_len=4096,
    )  # fmt: skip
    others = 2 * 2 * 200064 * 3072 + 2 * 3072 * (48 * 128 * 2 + 2 * 8 * 128)
    assert found.loaded_weights.value == pytest.approx(EXPERTS * expert_bytes + others, rel=0.08)
    assert "modelslim-checkpoint-assumed" in [notice.code for notice in found.notices]
    assert found.loaded_weights.interval is not None
    low, high = found.loaded_weights.interval
    assert high - low == pytest.approx(2 * 0.08 * found.loaded_weights.value, rel=0.01)


@pytest.mark.parametrize(
    ("version", "name", "flag", "method"),
    [
        ("0.23.0", "Eco-Tech/Some-M2-W8A8", None, "ascend"),
        ("0.13.0", "Eco-Tech/Some-M2-W8A8", None, "unquantized"),
        ("0.23.0", "Eco-Tech/Some-M2", None, "unquantized"),
        ("0.23.0", "Eco-Tech/Some-M2", "ascend", "ascend"),
    ],
)
def test_a_name_with_a_scheme_is_found_as_the_plugin_finds_the_side_file(
    version: str, name: str, flag: str | None, method: str
) -> None:
    """vllm_ascend/quantization/utils.py:maybe_auto_detect_quantization, from 0.17 on."""
    config = {key: value for key, value in MIXTURE.items() if key != "quantization_config"}
    found = scenario_from_request(
        {
            "config": config,
            "model": name,
            "quantization": flag,
            "engine": "vllm-ascend",
            "engine_version": version,
        }
    )
    assert engine_of(found).storage(found).method == method


def test_a_model_published_in_4_bits_is_converted_to_no_more() -> None:
    groups = {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}}
    int4 = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    config = ModelConfig.from_mapping({**MIXTURE, "quantization_config": int4})
    assert read_quantization(config, "ascend").detail.startswith("W4A8")
    assert read_quantization(config, "ascend", "w8a8").detail.startswith("W8A8")


def test_the_scheme_may_stand_in_the_config() -> None:
    config = ModelConfig.from_mapping({**MIXTURE, "quantize": "w4a8_dynamic"})
    assert read_quantization(config, "ascend").detail.startswith("W4A8")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"hf_quant_config": description(), "quantization": "fp8"}, "quantization-mismatch"),
        ({"hf_quant_config": description(), "config": {**QWEN3, "quantization_config": {"quant_method": "fp8"}}},
         "quantization-mismatch"),
        ({"hf_quant_config": description("W9A9")}, "unknown-quantization"),
        ({"quantization": "ascend", "engine": "vllm", "accelerator": "H100-80GB"}, "quantization-not-on-platform"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(fields: dict[str, Any], code: str) -> None:
    assert refusal(**fields).code == code


def test_attention_and_states_of_qwen3_5_stay_in_16_bits() -> None:
    """vllm-ascend issue 10122: Eco-Tech/Qwen3.6-27B-w8a8 prints 18.8 GiB on each of two 310P3."""
    request = {
        "model": "Qwen/Qwen3.6-27B", "engine": "vllm-ascend", "engine_version": "0.21.0rc1", "dtype": "float16",
        "quantization": "ascend", "tensor_parallel_size": 2, "max_model_len": 8192, "enable_prefix_caching": False,
        "accelerator": {"memory_gib": 43.24, "vendor": "huawei", "name": "Ascend 310P3"},
    }  # fmt: skip
    weights = plan(scenario_from_request(request)).loaded_weights
    assert weights.interval is not None
    low, high = weights.interval
    assert low <= 18.8 * 2**30 <= high


def test_a_description_is_kept_without_entries_that_change_nothing() -> None:
    """DeepSeek-V3 names 58 × 256 × 3 weights of experts with two more tensors each: over a hundred thousand."""
    whole = description() | {
        f"model.layers.3.mlp.experts.{expert}.{name}": "W8A8_DYNAMIC"
        for expert in range(256)
        for name in ("up_proj.weight", "up_proj.weight_scale", "up_proj.weight_offset")
    }
    kept = condensed(whole)
    assert kept == description() | {"model.layers.3.mlp.experts.0.up_proj.weight": "W8A8_DYNAMIC"}
    assert condensed({"quantization": {"a.weight_scale": 1}}) == {"quantization": {"a.weight_scale": 1}}
