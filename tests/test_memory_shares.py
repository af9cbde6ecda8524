"""What tensor parallelism divides: against arithmetic by hand, and against the bytes that the plan counts."""

from typing import Any

import pytest

from kvcore.base.errors import EngineRefusalError
from kvcore.memory.shares import WeightShares, weight_shares
from kvcore.memory.stages import loaded_architecture
from kvcore.model.architecture import Experts, Linear, Output, Parameter, VocabEmbedding, elements
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request
from tests.derivation_plans import KINDS, planned


def shares(kind: str) -> WeightShares:
    plan = planned(kind)
    architecture = loaded_architecture(plan.architecture, plan.scenario, plan.resolved)
    return weight_shares(architecture, plan.quantization, plan.scenario.parallel, plan.resolved, plan.stage)


@pytest.mark.parametrize("kind", KINDS)
def test_the_shares_are_the_parameters_of_the_plan(kind: str) -> None:
    assert shares(kind).per_rank == planned(kind).weights.parameters


def test_qwen3_32b_by_hand() -> None:
    # 64 layers of qkv (64 + 2 × 8 heads of 128), o, gate, up, down, two norms, norms of q and k; embedding, head, norm.
    layer = 5120 * 80 * 128 + 64 * 128 * 5120 + 3 * 5120 * 25600 + 2 * 5120 + 2 * 128
    count = 64 * layer + 2 * 151936 * 5120 + 5120
    norms = 64 * (2 * 5120 + 2 * 128) + 5120
    found = shares("dense")
    assert count == 32_762_123_264
    assert (found.count, found.whole, found.replicated) == (count, 2 * count, 2 * norms)
    assert found.divided == 2 * (count - norms)
    assert found.otherwise == 0
    assert found.per_rank == count - norms + 2 * norms


def test_one_rank_holds_everything() -> None:
    found = shares("fits")
    assert (found.divided, found.replicated, found.otherwise) == (found.whole, 0, 0)


def test_latent_attention_replicates_its_down_projections() -> None:
    # 61 layers of 7168 × (1536 + 512 + 64) numbers in fp8, with one float32 scale for each 128 × 128.
    down = 61 * 7168 * (1536 + 512 + 64)
    assert shares("latent").replicated > down


def test_copied_heads_are_neither_divided_nor_replicated() -> None:
    # 4 KV heads on 8 ranks: of each layer's qkv a rank holds 64 / 8 + 1 + 1 heads of 128.
    assert shares("copied heads").otherwise == 94 * 4096 * (8 + 2) * 128 * 2


def test_experts_dealt_over_more_ranks() -> None:
    # 128 experts over 4 × 2 ranks: 16 on each, three matrices of 4096 × 1536 in 94 layers.
    assert shares("expert parallel").otherwise == 94 * 16 * 3 * 4096 * 1536 * 2


def test_elements() -> None:
    linear = Linear(name="x", in_features=3, outputs=(Output(units=4, width=5),), bias=True)
    assert elements(linear) == 4 * 5 * 3 + 4 * 5
    assert elements(Parameter(name="x", replicated=3, sharded=4)) == 12
    assert elements(VocabEmbedding(name="x", num_embeddings=10, embedding_dim=4, bias=True)) == 50
    gated = Experts(name="x", num_experts=2, hidden_size=3, intermediate_size=4, bias=True)
    assert elements(gated) == 2 * (3 * 3 * 4 + 2 * 4 + 3)


MOE = "Qwen/Qwen3-235B-A22B-FP8"  # experts of 1536 features, blocks of 128 × 128
SHARED = "Qwen/Qwen3.5-35B-A3B-FP8"  # a shared expert of 512 features
QWEN2_72B = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 8192, "intermediate_size": 29568,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 152064,
    "max_position_embeddings": 32768, "torch_dtype": "float16", "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
}  # fmt: skip


def refused(**asked: Any) -> str:
    """The message of a refusal for cut blocks; "" where the engine would go on."""
    request = {"accelerator": "H200-141GB", "max_model_len": 4096, "tensor_parallel_size": 8, **asked}
    try:
        plan(scenario_from_request(request))
    except EngineRefusalError as error:
        return (
            str(error)
            if (error.code, error.field) == ("weight-block-cut", "tensor_parallel_size")
            else error.code
        )
    return ""


def test_experts_before_blocks_were_refined() -> None:
    """1536 / 8 = 192 features: engines before 0.29 print "The output_size of gate's and up's weight = 192 is not
    divisible by weight quantization block_n = 128"; from 0.29 on blocks of 64 are made of those of 128."""
    for version in ("0.9.2", "0.11.0", "0.28.0"):
        assert "mlp.experts on each rank are 192 features, not a multiple of the 128" in refused(
            model=MOE, engine_version=version
        )
    assert refused(model=MOE, engine_version="0.29.0") == ""


def test_whole_experts_are_not_cut() -> None:
    assert refused(model=MOE, engine_version="0.11.0", enable_expert_parallel=True) == ""
    assert refused(model=MOE, engine_version="0.11.0", tensor_parallel_size=4) == ""  # 384 = 3 × 128


@pytest.mark.parametrize(("version", "size", "side"), [("0.32.0", 8, "inputs"), ("0.32.0", 4, "")])
def test_linear_layers(version: str, size: int, side: str) -> None:
    """512 / 8 = 64 inputs of the shared expert's down projection; 512 / 4 = 128."""
    said = refused(model=SHARED, engine_version=version, tensor_parallel_size=size)
    assert (
        said.startswith(f"The {side} of mlp.shared_expert.down_proj on each rank are 64")
        if side
        else not said
    )


def test_fused_projections_may_end_within_a_block_since_0_14() -> None:
    """Eight KV heads of 64, made up: eight ranks keep one of them, 64 rows, half a block."""
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 16384,
        "num_hidden_layers": 4, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "vocab_size": 151936, "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128],
                                "activation_scheme": "dynamic"},
    }  # fmt: skip
    assert "self_attn.qkv_proj on each rank are 64 features" in refused(
        config=config, engine_version="0.13.0"
    )
    assert refused(config=config, engine_version="0.14.1") == ""


def test_groups_of_integers() -> None:
    """29568 / 8 = 3696 inputs are 28.9 groups of 128; 29568 / 3 would be whole ones, but heads do not divide."""
    assert "mlp.down_proj on each rank are 3696 features" in refused(
        config=QWEN2_72B, engine_version="0.19.0"
    )
    assert refused(config=QWEN2_72B, engine_version="0.19.0", tensor_parallel_size=1) == ""
    gptq = {**QWEN2_72B, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}
    assert refused(config=gptq, engine_version="0.32.0") == ""
    row = {**QWEN2_72B, "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": -1}}
    assert refused(config=row, engine_version="0.19.0") == ""


def test_blocks_made_while_loading_fit_any_shape() -> None:
    asked = {"model": "Qwen/Qwen3.5-35B-A3B", "engine_version": "0.32.0"}
    assert refused(**asked, quantization="fp8_per_block") == ""


def test_other_engines_are_not_judged() -> None:
    asked = {
        "model": SHARED,
        "engine": "vllm-ascend",
        "engine_version": "0.23.0",
        "accelerator": "Ascend-910C-64GB",
    }
    # Its own methods refuse the format, whatever the shapes.
    assert refused(**asked) == "npu-format-attributes"


def test_a_format_known_by_name_leaves_open_how_shared_experts_are_stored() -> None:
    """Its recipe starts it with whole experts on 4 and 8 ranks, of which each would have 160 and 80 of the 640 features
    of the shared one; without expert parallelism the same recipe calls 128-wide blocks incompatible with 8 ranks."""
    asked = {"model": "Qwen/Qwen3.8-Flash-Next-FP8", "accelerator": "H200-141GB", "tensor_parallel_size": 8}
    assert plan(scenario_from_request({**asked, "enable_expert_parallel": True})).weights.parameters
    with pytest.raises(EngineRefusalError) as refused:
        plan(scenario_from_request(asked))
    assert refused.value.code == "weight-block-cut"


def test_a_layer_of_less_than_a_block_is_surely_not_stored_in_blocks() -> None:
    """Ling 3.0 gates its 32 heads one by one; its recipe starts the FP8 checkpoint on 2 and 4 ranks."""
    asked = {
        "model": "inclusionAI/Ling-3.0-flash-fp8",
        "accelerator": "H200-141GB",
        "tensor_parallel_size": 2,
    }
    assert plan(scenario_from_request(asked)).weights.parameters
