"""Recurrent layers beside attention, and Whisper: exact against vLLM's own classes and published totals."""

import pytest

from kvcore.base.errors import EngineRefusalError, ModelError
from kvcore.base.units import gib
from kvcore.catalogue import find_accelerator, find_model
from kvcore.memory.weights import Rank
from kvcore.model import architecture as arch
from kvcore.model.caches import CrossAttention, FullAttention, Mla, RecurrentState
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.model.quantization import read_quantization
from kvcore.planning import plan
from kvcore.scenario import Measured, Parallel, Scenario
from tests.special_models import (
    config_of,
    fact_of,
    read,
    weigh,
)
from tests.test_families_decoder import total_elements

WHISPER = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "d_model": 1280,
    "encoder_layers": 32,
    "decoder_layers": 32,
    "encoder_attention_heads": 20,
    "decoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "decoder_ffn_dim": 5120,
    "vocab_size": 51866,
    "num_mel_bins": 128,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "torch_dtype": "float16",
}


def kinds(fact: dict) -> set[str]:
    """The engine's names of the states that a model keeps."""
    caches = [cache for layer in read(fact).layers for cache in layer.caches]
    return {cache.kind for cache in caches if isinstance(cache, RecurrentState)}


class TestStates:
    @pytest.mark.parametrize(
        ("model", "kind"),
        [
            ("tiiuae/falcon-mamba-7b", "mamba1"),
            ("ai21labs/Jamba-v0.1", "mamba1"),
            ("mistralai/Mamba-Codestral-7B-v0.1", "mamba2"),
            ("nvidia/Nemotron-H-56B-Base-8K", "mamba2"),
            ("Zyphra/Zamba2-7B", "mamba2"),
            ("Qwen/Qwen3-Next-80B-A3B-Instruct", "gdn_attention"),
            ("LiquidAI/LFM2-1.2B", "short_conv"),
            ("MiniMaxAI/MiniMax-M1-80k", "linear_attention"),
        ],
    )
    def test_each_mixer_keeps_its_own(self, model, kind):
        assert kinds(fact_of(model)) == {kind}

    def test_falcon_mamba_by_hand(self):
        (state,) = {layer.caches[0] for layer in read(fact_of("tiiuae/falcon-mamba-7b")).layers}
        convolution, scan = state.shapes
        assert convolution.sharded * convolution.replicated == 8192 * 3
        assert scan.sharded * scan.replicated == 8192 * 16

    def test_kimi_linear_has_delta_attention_beside_latents(self):
        fact = fact_of("moonshotai/Kimi-Linear-48B-A3B-Base")
        assert kinds(fact) == {"kda"}
        caches = [layer.caches[0] for layer in read(fact).layers]
        assert sum(isinstance(cache, Mla) for cache in caches) == 7

    def test_every_fourth_layer_of_qwen3_next_is_attention(self):
        layers = read(fact_of("Qwen/Qwen3-Next-80B-A3B-Instruct")).layers
        full = [index for index, layer in enumerate(layers) if isinstance(layer.caches[0], FullAttention)]
        assert full == list(range(3, 48, 4))

    def test_mlp_layers_of_nemotron_h_have_no_cache(self):
        layers = read(fact_of("nvidia/Nemotron-H-56B-Base-8K")).layers
        assert sum(not layer.caches for layer in layers) == len(layers) - 54 - 10


class TestRefusals:
    def test_a_pattern_of_other_letters(self):
        with pytest.raises(ModelError) as caught:
            read(fact_of("nvidia/Nemotron-H-56B-Base-8K"), hybrid_override_pattern="MX*")
        assert caught.value.code == "invalid-config-value"

    def test_an_unknown_kind_of_layer_is_refused(self):
        with pytest.raises(ModelError):
            read(fact_of("Qwen/Qwen3-Next-80B-A3B-Instruct"), layer_types=["other"] * 48)

    def test_a_tensor_parallel_size_that_does_not_divide_the_states(self):
        with pytest.raises(EngineRefusalError):
            weigh(config_of(fact_of("tiiuae/falcon-mamba-7b")), tensor_parallel_size=3)


class TestWhisper:
    def test_weights_as_logs_print_them(self):
        assert gib(weigh(ModelConfig.from_mapping(WHISPER)).total) == pytest.approx(2.875, abs=0.005)

    def test_decoder_layers_keep_their_own_tokens_and_the_encoders(self):
        layers = read_architecture(ModelConfig.from_mapping(WHISPER)).layers
        assert len(layers) == 32
        own, across = layers[0].caches
        assert isinstance(own, FullAttention)
        assert across == CrossAttention(num_kv_heads=20, head_size=64, encoder_tokens=1500)


class TestKimiK3:
    CONFIG = find_model("moonshotai/Kimi-K3").config

    def test_parameters_are_the_published_total(self):
        """The files have the decay of 128 heads in each of 69 layers; there are 96."""
        assert total_elements(read_architecture(self.CONFIG)) == 2_779_931_837_184 - 69 * (128 - 96)

    def test_a_rank_of_four_weighs_as_much_as_the_engines_classes(self):
        """vLLM 0.32's own classes, built without a GPU."""
        assert weigh(self.CONFIG, tensor_parallel_size=4).parameters == 398_923_083_488

    def test_heads_of_the_tower_that_the_ranks_do_not_divide_stay_whole(self):
        """12 heads: 27 blocks, attention 4 · 1536 wide and an MLP 2 · 4096 wide, in 16 bits."""
        blocks = 27 * 1024 * (4 * 1536 + 2 * 4096) * 2
        divided = [
            module
            for module in read_architecture(self.CONFIG).every
            if ".blocks." in module.name and "norm" not in module.name
        ]
        for ranks, expected in ((4, blocks // 4), (8, blocks)):
            rank = Rank(
                quantization=read_quantization(self.CONFIG, None),
                parallel=Parallel(tensor_parallel_size=ranks),
                dtype_bytes=2,
            )
            assert sum(sum(rank.tensor_bytes(module, module.name)) for module in divided) == expected

    def test_the_cache_is_the_engines(self):
        """vLLM 0.32's own planner: 4 ranks, 40 GiB, 8192 tokens a request."""
        planned = plan(
            Scenario(
                model="",
                config=self.CONFIG,
                accelerator=find_accelerator("B200"),
                engine_version="0.32.0",
                parallel=Parallel(tensor_parallel_size=4),
                max_model_len=8192,
                measured=Measured(available_kv_gib=40.0),
            )
        )
        assert (planned.cache.num_blocks, planned.cache.tokens) == (1011, 690_176)
        assert planned.resolved.block_size == 1536


def test_puzzle_gives_experts_and_windows_by_the_layer() -> None:
    """Sizes by the modules of vllm/model_executor/models/nemotron_h.py with each block's own keys."""
    config = {
        "architectures": ["NemotronHPuzzleForCausalLM"],
        "model_type": "nemotron_h_puzzle",
        "hidden_size": 1024,
        "vocab_size": 131072,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "mamba_num_heads": 32,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "conv_kernel": 4,
        "n_groups": 8,
        "n_shared_experts": 1,
        "moe_shared_expert_intermediate_size": 512,
        "moe_latent_size": 256,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 1,
        "block_configs": [
            {"block_type": "mamba"},
            {
                "block_type": "moe",
                "n_routed_experts": 8,
                "moe_intermediate_size": 320,
                "num_experts_per_tok": 2,
            },
            {"block_type": "attention"},
            {
                "block_type": "moe",
                "n_routed_experts": 32,
                "moe_intermediate_size": 512,
                "num_experts_per_tok": 4,
            },
            {"block_type": "attention", "sliding_window": 2048},
        ],
        "mtp_block_configs": [
            {"block_type": "attention"},
            {
                "block_type": "moe",
                "n_routed_experts": 16,
                "moe_intermediate_size": 512,
                "num_experts_per_tok": 4,
            },
        ],
    }
    built = read_architecture(ModelConfig.from_mapping(config))

    def experts(count: int, width: int) -> int:
        router, latent, shared = count * 1024 + count, 2 * 1024 * 256, 2 * 1024 * 512
        return router + latent + shared + count * 2 * 256 * width

    sizes = [sum(map(arch.elements, layer.modules)) - 1024 for layer in built.layers]
    attention = 1024 * (16 + 2 * 2) * 128 + 16 * 128 * 1024
    assert sizes[1:] == [experts(8, 320), attention, experts(32, 512), attention]
    assert [type(layer.caches[0]).__name__ for layer in built.layers if layer.caches] == [
        "RecurrentState",
        "FullAttention",
        "SlidingWindow",
    ]
    assert built.moe is not None
    assert (built.moe.num_experts, built.moe.moe_intermediate_size) == (32, 512)
    drafts = sum(arch.elements(module) for layer in built.draft_layers for module in layer.modules)
    assert drafts == attention + experts(16, 512) + 2 * 1024 + 2 * 1024**2 + 3 * 1024
