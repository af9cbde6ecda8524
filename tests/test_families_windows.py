"""Models with windows or chunks beside full attention: exact against vLLM's own classes."""

import pytest

import kvcore
from kvcore.base.errors import ModelError
from kvcore.catalogue import find_model
from kvcore.model.caches import ChunkedLocal, FullAttention, SlidingWindow
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.scenario import Measured, Scenario
from tests.special_models import (
    fact_of,
    read,
)
from tests.test_families_decoder import total_elements


class TestGemma:
    def test_every_other_layer_of_gemma_2_slides(self):
        caches = [layer.caches[0] for layer in read(fact_of("google/gemma-2-2b")).layers[:4]]
        assert [type(cache) for cache in caches] == [SlidingWindow, FullAttention] * 2
        assert caches[0].sliding_window == 4096

    def test_every_sixth_layer_of_gemma_3_is_full(self):
        layers = read(fact_of("google/gemma-3-1b-it")).layers
        full = [index for index, layer in enumerate(layers) if isinstance(layer.caches[0], FullAttention)]
        assert full == [5, 11, 17, 23]

    def test_layers_of_gemma_4_that_share_a_cache_have_none(self):
        layers = read(fact_of("google/gemma-4-E2B-it")).layers
        assert len(layers) == 35
        assert sum(bool(layer.caches) for layer in layers) == 15

    def test_full_layers_of_gemma_4_have_longer_heads(self):
        layers = read(fact_of("google/gemma-4-26B-A4B")).layers
        sizes = {type(layer.caches[0]): layer.caches[0].head_size for layer in layers}
        assert sizes == {SlidingWindow: 256, FullAttention: 512}

    def test_too_few_layer_types_are_refused(self):
        with pytest.raises(ModelError):
            read(fact_of("google/gemma-2-2b"), layer_types=["sliding_attention"] * 3)


class TestOthers:
    def test_gpt_oss_alternates_from_a_window(self):
        caches = [layer.caches[0] for layer in read(fact_of("openai/gpt-oss-120b")).layers[:2]]
        assert isinstance(caches[0], SlidingWindow)
        assert caches[0].sliding_window == 128
        assert isinstance(caches[1], FullAttention)

    def test_every_fourth_layer_of_llama_4_is_full(self):
        model = read(fact_of("meta-llama/Llama-4-Scout-17B-16E-Instruct"))
        caches = [layer.caches[0] for layer in model.layers[:4]]
        assert [type(cache) for cache in caches] == [ChunkedLocal] * 3 + [FullAttention]
        assert caches[0].attention_chunk_size == 8192
        assert model.is_multimodal

    def test_mimo_has_other_heads_in_its_windows_and_longer_keys_than_values(self):
        caches = {
            type(layer.caches[0]): layer.caches[0]
            for layer in read(fact_of("XiaomiMiMo/MiMo-V2-Flash")).layers
        }
        window, full = caches[SlidingWindow], caches[FullAttention]
        assert (window.num_kv_heads, full.num_kv_heads) == (8, 4)
        assert (full.head_size, full.head_size_v) == (192, 128)

    def test_patterns_that_are_too_short_are_refused(self):
        with pytest.raises(ModelError):
            read(fact_of("XiaomiMiMo/MiMo-V2-Flash"), hybrid_layer_pattern=[0, 1])


class TestStepFlash:
    """Step 3.7 Flash: 198 B published, encoder included, and three prediction layers that load for drafts alone."""

    HIDDEN, SLIDING_HEADS, HEADS, GROUPS, WIDTH = 4096, 96, 64, 8, 128

    def attention(self, heads: int) -> int:
        """Queries, keys, values, output, a gate a head, norms of queries and keys."""
        inside = self.WIDTH * (2 * heads + 2 * self.GROUPS)
        return self.HIDDEN * (inside + heads) + 2 * self.WIDTH

    def test_parameters_are_the_published_total(self):
        architecture = read_architecture(find_model("stepfun-ai/Step-3.7-Flash").config)
        dense = 3 * self.HIDDEN * 11264
        draft = (
            2 * self.HIDDEN**2
            + self.attention(self.SLIDING_HEADS)
            + dense
            + 128896 * self.HIDDEN
            + 5 * self.HIDDEN
        )
        assert len(architecture.draft_layers) == 3
        assert total_elements(architecture) + 3 * draft == 201_365_316_160

    def test_sliding_layers_have_heads_of_their_own(self):
        layers = read_architecture(find_model("stepfun-ai/Step-3.7-Flash").config).layers
        slides = [isinstance(layer.caches[0], SlidingWindow) for layer in layers]
        assert slides == [index % 4 != 0 for index in range(45)]
        inputs = [
            next(module.in_features for module in layer.modules if module.name == "self_attn.o_proj")
            for layer in layers[:2]
        ]
        assert inputs == [64 * 128, 96 * 128]

    def test_a_request_may_be_as_long_as_published(self):
        assert (
            find_model("stepfun-ai/Step-3.7-Flash").config.language.integer("max_position_embeddings")
            == 262144
        )

    def test_routed_experts_alone_are_in_eight_bits(self):
        """One scale of four bytes for each block of 128 × 128: the published count is so much larger."""
        config = find_model("stepfun-ai/Step-3.7-Flash-FP8").config
        plan = kvcore.plan(Scenario(model="", config=config, measured=Measured(available_kv_gib=20)))
        experts = 42 * 288 * 3 * 1280 * self.HIDDEN
        scales = 42 * 288 * 3 * (1280 // 128) * (self.HIDDEN // 128)
        assert scales == 201_376_928_320 - 201_365_316_160
        draft = 2_428_171_008
        rest = 201_365_316_160 - draft - experts
        routers = 42 * (288 * self.HIDDEN + 288)
        attention_scales = 45 * 2 * 4
        assert plan.parameter_bytes_per_rank == experts + 4 * scales + 2 * (rest + routers) + attention_scales


def test_output_projections_of_mimo_v2_flash_stay_in_sixteen_bits():
    """The published count has 18,717,312 scales of blocks of 128 × 128, those of 48 o_proj would be 98,304 more."""
    config = find_model("XiaomiMiMo/MiMo-V2-Flash").config
    quantization = {**config.raw["quantization_config"], "ignored_layers": []}
    all_in_eight = ModelConfig.from_mapping({**config.raw, "quantization_config": quantization})
    stored = [
        kvcore.plan(Scenario(model="", config=each, measured=Measured(available_kv_gib=20)))
        for each in (config, all_in_eight)
    ]
    elements = 64 * 128 * 4096
    scales = elements // 128**2
    kept, cut = (plan.parameter_bytes_per_rank for plan in stored)
    assert kept - cut == 48 * (elements - 4 * scales)


class TestMuseGlimmer:
    """Read from vllm/model_executor/models/muse_glimmer.py (0.33) by hand; the count is the published one."""

    def test_all_parameters_are_counted(self):
        config = find_model("meta-models/Muse-Glimmer-30B").config
        assert total_elements(read_architecture(config)) == 29_776_626_688

    def test_every_fourth_layer_keeps_the_whole_context(self):
        caches = [
            layer.caches[0]
            for layer in read_architecture(find_model("meta-models/Muse-Glimmer-30B").config).layers
        ]
        assert [index for index, cache in enumerate(caches) if type(cache) is FullAttention] == list(
            range(3, 52, 4)
        )
        assert {cache.sliding_window for cache in caches if isinstance(cache, SlidingWindow)} == {2048}


def test_laguna_s_has_more_heads_in_its_windows():
    """All published parameters: 117,561,977,600."""
    built = read_architecture(find_model("poolside/Laguna-S-2.1").config)
    assert total_elements(built) == 117_561_977_600
    inputs = [
        next(module.in_features for module in layer.modules if module.name == "self_attn.o_proj")
        for layer in built.layers[:4]
    ]
    assert inputs == [48 * 128, 72 * 128, 72 * 128, 72 * 128]
