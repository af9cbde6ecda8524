"""Weight bytes of a rank: by hand, over pipeline stages, tensor ranks and expert ranks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from packaging.version import Version

from kvcore.base.errors import EngineRefusalError
from kvcore.base.units import MIB, gib
from kvcore.catalogue import find_model
from kvcore.engine import stage_layers
from kvcore.engine.protocol import Resolved
from kvcore.memory.weights import SMALL_BYTES, WeightBytes, allocated_bytes, weight_bytes
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.model.quantization import read_quantization
from kvcore.scenario import Parallel
from tests.test_families_decoder import LLAMA, resolved

MIXTRAL = {
    **LLAMA,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
}

DEEPSEEK_MOE = {
    **LLAMA,
    "architectures": ["DeepseekForCausalLM"],
    "model_type": "deepseek",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_hidden_layers": 4,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
}


def weigh(raw: dict, stage: int = 0, **parallel) -> WeightBytes:
    config = ModelConfig.from_mapping(raw)
    return weight_bytes(
        read_architecture(config), read_quantization(config, None), Parallel(**parallel), resolved(), stage
    )


def resolved_at(version: str) -> Resolved:
    return replace(resolved(), version=Version(version), engine_version=version)


class TestByHand:
    def test_llama_3_1_8b(self):
        hidden, kv, mlp, vocab = 4096, 1024, 14336, 128256
        layer = (hidden + 2 * kv) * hidden + hidden * hidden + 3 * mlp * hidden + 2 * hidden
        assert weigh(LLAMA).parameters == 2 * (32 * layer + 2 * vocab * hidden + hidden)

    def test_its_log_line(self):
        # "Model loading took 14.9889 GiB" (vLLM pull request 17122), with a rope table of 131072 x 128 bfloat16
        weights = weigh(LLAMA)
        assert weights.buffers == 131072 * 128 * 2 + 32 * 16
        assert gib(weights.total) == pytest.approx(14.9889, abs=2e-4)

    def test_qwen2_5_7b_loads_more_than_its_parameters(self):
        # "Model loading took 14.25 GiB" (several logs of 0.19), while parameters and buffers are 14.19: matrices that
        # are no multiples of 2 MiB keep the rest of their memory block.
        raw = {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "num_hidden_layers": 28,
            "vocab_size": 152064,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": False,
        }
        config = ModelConfig.from_mapping(raw)
        older = resolved_at("0.19.0")
        weights = weight_bytes(
            read_architecture(config), read_quantization(config, None), Parallel(), older, 0
        )
        assert gib(weights.parameters + weights.buffers) == pytest.approx(14.193, abs=1e-3)
        assert gib(weights.total) == pytest.approx(14.25, abs=5e-3)

    def test_the_vocabulary_is_padded_to_64_and_divided(self):
        padded = weigh({**LLAMA, "vocab_size": 128257}, tensor_parallel_size=2).parameters
        assert padded - weigh(LLAMA, tensor_parallel_size=2).parameters == 2 * 2 * 32 * 4096

    def test_float32_doubles_every_parameter(self):
        config = ModelConfig.from_mapping(LLAMA)
        wide = weight_bytes(
            read_architecture(config), read_quantization(config, None), Parallel(), resolved("float32"), 0
        )
        assert wide.parameters == 2 * weigh(LLAMA).parameters


class TestPipelineStages:
    @pytest.mark.parametrize("stages", [2, 3, 4, 5])
    def test_stages_together_hold_the_model_once(self, stages):
        total = sum(weigh(LLAMA, stage, pipeline_parallel_size=stages).parameters for stage in range(stages))
        assert total == weigh(LLAMA).parameters

    def test_a_tied_head_is_copied_to_the_last_stage(self):
        tied = {**LLAMA, "tie_word_embeddings": True}
        total = sum(weigh(tied, stage, pipeline_parallel_size=2).parameters for stage in range(2))
        assert total - weigh(tied).parameters == 2 * 128256 * 4096

    def test_embedding_first_norm_and_head_last(self):
        first, middle, last = (weigh(LLAMA, stage, pipeline_parallel_size=3).parameters for stage in range(3))
        layers = [len(stage_layers(32, Parallel(pipeline_parallel_size=3), stage)) for stage in range(3)]
        embedding = 2 * 128256 * 4096
        layer = middle // layers[1]
        assert first == layers[0] * layer + embedding
        assert last == layers[2] * layer + embedding + 2 * 4096

    def test_more_stages_than_layers_are_refused(self):
        with pytest.raises(EngineRefusalError) as caught:
            weigh({**LLAMA, "num_hidden_layers": 2}, pipeline_parallel_size=3)
        assert caught.value.code == "too-many-pipeline-stages"


class TestExperts:
    def test_tensor_and_expert_parallelism_cost_the_same_bytes(self):
        tensor = weigh(MIXTRAL, tensor_parallel_size=4)
        expert = weigh(MIXTRAL, tensor_parallel_size=4, enable_expert_parallel=True)
        assert tensor.parameters == expert.parameters
        assert expert.buffers - tensor.buffers == 32 * 8 * 4

    def test_expert_parallelism_deals_whole_experts_over_tensor_and_data_ranks(self):
        expert = 3 * 4096 * 14336 * 2
        four = weigh(MIXTRAL, tensor_parallel_size=2, data_parallel_size=2, enable_expert_parallel=True)
        two = weigh(MIXTRAL, tensor_parallel_size=2, data_parallel_size=1, enable_expert_parallel=True)
        assert two.parameters - four.parameters == 32 * (4 - 2) * expert

    def test_each_rank_stores_its_share_of_redundant_experts(self):
        """EPLB: (8 + 4) / 4 experts in each of 32 layers, not 8 / 4."""
        ranks = {"data_parallel_size": 4, "enable_expert_parallel": True}
        plain, copied = (weigh(MIXTRAL, num_redundant_experts=count, **ranks) for count in (0, 4))
        assert copied.parameters - plain.parameters == 32 * 3 * 4096 * 14336 * 2

    def test_replicas_alone_cut_each_expert(self):
        # vllm/model_executor/layers/fused_moe/config.py:FusedMoEParallelConfig.make (0.9.2, 0.33.0), "TP = 1, DP = 2".
        one, four = (weigh(MIXTRAL, data_parallel_size=replicas).parameters for replicas in (1, 4))
        assert one - four == 32 * 8 * 3 * 4096 * 14336 * 2 * 3 // 4

    @given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]))
    def test_expert_ranks_together_hold_every_expert(self, tensor, data):
        if tensor * data > 8:
            return
        rank = weigh(
            MIXTRAL, tensor_parallel_size=tensor, data_parallel_size=data, enable_expert_parallel=True
        ).parameters
        experts = 32 * 8 * 3 * 4096 * 14336 * 2
        dense = weigh(MIXTRAL, tensor_parallel_size=tensor).parameters - experts // tensor
        assert (rank - dense) * tensor * data == experts


class TestBuffers:
    def test_linear_scaling_lengthens_the_rope_table_and_yarn_replaces_its_length(self):
        plain = weigh(LLAMA).buffers
        linear = weigh({**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}).buffers
        assert linear - plain == 7 * 131072 * 128 * 2
        scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
        assert plain - weigh({**LLAMA, "rope_scaling": scaling}).buffers == (131072 - 4 * 8192) * 128 * 2

    def test_longrope_has_a_short_and_a_long_table(self):
        scaling = {"type": "su", "original_max_position_embeddings": 4096}
        longer = weigh({**LLAMA, "rope_scaling": scaling}).buffers - weigh(LLAMA).buffers
        assert longer == 4096 * 128 * 2

    def test_multimodal_rope_is_four_times_as_long(self):
        scaling = {"type": "mrope", "mrope_section": [16, 24, 24]}
        longer = weigh({**LLAMA, "rope_scaling": scaling}).buffers - weigh(LLAMA).buffers
        assert longer == 3 * 131072 * 128 * 2


class TestSharedExperts:
    def test_they_stay_whole_when_experts_are_dealt_over_tensor_and_data_ranks(self):
        routed, shared = 3 * 2048 * 1408 * 2, 3 * 2048 * 2816 * 2
        alone = weigh(DEEPSEEK_MOE, tensor_parallel_size=2, enable_expert_parallel=True).parameters
        both = weigh(
            DEEPSEEK_MOE, tensor_parallel_size=2, data_parallel_size=2, enable_expert_parallel=True
        ).parameters
        assert both - alone == 3 * (-16 * routed + shared // 2)

    @pytest.mark.parametrize(
        ("model", "expected"),
        [
            ("deepseek-ai/DeepSeek-V2-Lite", 8_994_282_496),
            ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 66_368_744_704),
            ("Qwen/Qwen3-Next-80B-A3B-Instruct", 41_221_321_088),
            ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 17_357_583_872),
            ("deepseek-ai/DeepSeek-V4-Flash", 42_405_631_196),
            ("zai-org/GLM-4.5-Air", 57_095_096_832),
        ],
    )
    def test_a_rank_of_two_by_two_with_experts_dealt_weighs_what_the_engines_classes_weigh(
        self, model, expected
    ):
        """vLLM 0.32's own classes for this config, built without a GPU: tensor and data parallel 2, expert parallel."""
        parallel = {"tensor_parallel_size": 2, "data_parallel_size": 2, "enable_expert_parallel": True}
        assert weigh(dict(find_model(model).config.raw), **parallel).parameters == expected


@pytest.mark.parametrize(
    ("size", "counted"),
    [
        (0, 0),
        (1, 512),
        (513, 1024),
        (MIB, MIB),
        (12 * MIB, 12 * MIB),
        (12 * MIB + MIB, 14 * MIB),
        (12 * MIB + MIB // 2, 12 * MIB + MIB // 2),
        (13 * MIB + MIB // 2, 14 * MIB),
        (5 * MIB, 5 * MIB),
        (9 * MIB + 3 * MIB // 4, 10 * MIB),
    ],
)
def test_counted_bytes(size, counted):
    assert allocated_bytes(size) == counted


def test_a_limit_on_splitting_keeps_every_rest_of_large_tensors():
    size = 24 * MIB + MIB // 2
    assert allocated_bytes(size) == size
    assert allocated_bytes(size, max_split_bytes=20 * MIB) == 26 * MIB
    assert allocated_bytes(12 * MIB + MIB // 2, max_split_bytes=20 * MIB) == 12 * MIB + MIB // 2


@given(st.integers(1, 2**36), st.sampled_from([None, 20 * MIB]))
def test_a_tensor_counts_for_its_size_and_less_than_2_mib_more(size, max_split_bytes):
    counted = allocated_bytes(size, max_split_bytes)
    assert size <= counted < size + 2 * SMALL_BYTES + 512
