"""What kernels pad: by the arithmetic of each kernel, and printed weights."""

from typing import Any

import pytest

from kvcore.base.units import gib
from kvcore.memory.loaded import loaded_quantity
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request

B200, RTX_5080 = {"memory_gib": 178.35, "name": "B200"}, {"memory_gib": 15.92, "name": "RTX 5080 16GB"}
RTX_3090, H100 = {"memory_gib": 23.56, "name": "RTX 3090"}, {"memory_gib": 79.19, "name": "H100 80GB"}
MI355X = {"memory_gib": 287.98, "vendor": "amd", "name": "MI355X"}
B60 = {"memory_gib": 23.9, "vendor": "intel", "name": "Arc Pro B60"}

MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": {"group_0": {
    "weights": {"num_bits": 4, "type": "float", "group_size": 16},
    "input_activations": {"num_bits": 4, "type": "float", "group_size": 16}, "targets": ["Linear"]}}}  # fmt: skip
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip
MIXTURE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
    "intermediate_size": 6144, "moe_intermediate_size": 704, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 1, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip


def weight_bytes(
    config: dict[str, Any] | None, accelerator: dict[str, Any], version: str, **fields: Any
) -> int:
    """What loading takes on one rank."""
    own = {} if config is None else {"config": config}
    asked = {"model": "a model", "accelerator": accelerator, "engine_version": version, **own, **fields}
    return int(loaded_quantity(plan(scenario_from_request(asked)).weights).value)


@pytest.mark.parametrize(
    ("model", "card", "version", "ranks", "printed_gib"),
    [("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", RTX_5080, "0.13.0", 2, 9.8291),
     ("openai/gpt-oss-20b", B60, "0.21.0", 1, 12.87)],
)  # fmt: skip
def test_published_starts(
    model: str, card: dict[str, Any], version: str, ranks: int, printed_gib: float
) -> None:
    """ "Model loading took", as published."""
    fields = {"model": model, "tensor_parallel_size": ranks, "max_model_len": 1024, "max_num_seqs": 1}
    assert gib(weight_bytes(None, card, version, **fields)) == pytest.approx(printed_gib, rel=0.005)


def test_rows_on_rocm_are_moved_apart() -> None:
    """256 bytes a row: a layer has 6144 + 28672 rows of 4096 bytes, 4096 of 4096 and 4096 of 14336."""
    config = {**LLAMA, "quantization_config": BLOCKS}
    fields = {"env": {"VLLM_ROCM_FP8_PADDING": "0"}}
    padded, plain = weight_bytes(config, MI355X, "0.20.2"), weight_bytes(config, MI355X, "0.20.2", **fields)
    assert padded - plain == 2 * 256 * (6144 + 28672 + 4096 + 4096)
    cut = {"tensor_parallel_size": 4}
    assert weight_bytes(config, MI355X, "0.20.2", **cut) - weight_bytes(
        config, MI355X, "0.20.2", **cut, **fields
    ) == 2 * 256 * (1536 + 7168 + 4096 + 4096)


def test_marlin_pads_experts_of_8_bits_before_ada() -> None:
    """704 / 2 = 352 features an expert are stored as 384; Hopper runs them as they are."""
    config = {**MIXTURE, "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
    cut = {"tensor_parallel_size": 2, "max_model_len": 1024}
    before, after = (weight_bytes(config, RTX_3090, version, **cut) for version in ("0.23.0", "0.25.1"))
    assert after - before == pytest.approx(128 * 3 * 2048 * (384 - 352), rel=0.001)
    on_hopper = [weight_bytes(config, H100, version, **cut) for version in ("0.23.0", "0.25.1")]
    assert on_hopper[0] == on_hopper[1]


def test_nvfp4_experts_with_a_gate_on_datacenter_blackwell() -> None:
    """704 / 4 = 176 features are stored as 192 from 0.27 on: half a byte a weight and a sixteenth of scale."""
    config = {**MIXTURE, "quantization_config": MODELOPT}
    cut = {"tensor_parallel_size": 4, "max_model_len": 1024}
    before, after = (weight_bytes(config, B200, version, **cut) for version in ("0.25.1", "0.27.1"))
    assert after - before == pytest.approx(128 * 3 * 2048 * (192 - 176) * 9 / 16, rel=0.001)
