"""Latent attention, with and without an indexer: exact against vLLM's own classes."""

import pytest

from kvcore.base.errors import ModelError
from kvcore.base.units import gib
from kvcore.memory.weights import weight_bytes
from kvcore.model.caches import Mla, SparseIndexer
from kvcore.model.families import read_architecture
from kvcore.model.quantization import read_quantization
from kvcore.scenario import Parallel
from tests.special_models import (
    cache_layers,
    config_of,
    fact_of,
    read,
    weigh,
)
from tests.test_families_decoder import resolved, total_elements


class TestDeepseek:
    def test_one_latent_of_576_elements(self):
        model = read(fact_of("deepseek-ai/DeepSeek-V3"))
        assert model.is_mla
        assert set(model.layers[0].caches) == {Mla(kv_lora_rank=512, qk_rope_head_dim=64)}

    def test_the_absorbed_projections_are_copies_that_loading_keeps(self):
        lite = read(fact_of("deepseek-ai/DeepSeek-V2-Lite"))
        elements = sum(copy.replicated * copy.sharded for copy in lite.layers[0].loading)
        assert elements == 16 * (128 + 128) * 512

    def test_v3_2_has_an_indexer_beside_each_latent(self):
        layers = read(fact_of("deepseek-ai/DeepSeek-V3.2")).layers
        assert all(SparseIndexer(index_head_dim=128) in layer.caches for layer in layers)

    def test_glm_5_2_has_indexers_in_some_layers(self):
        layers = read(fact_of("zai-org/GLM-5.2")).layers
        with_indexer = [any(isinstance(cache, SparseIndexer) for cache in layer.caches) for layer in layers]
        assert (len(layers), sum(with_indexer)) == (78, 21)

    def test_indexer_types_for_fewer_layers_are_refused(self):
        with pytest.raises(ModelError):
            read(fact_of("zai-org/GLM-5.2"), indexer_types=["full"])

    def test_a_pattern_of_indexers_that_is_no_text_is_refused(self):
        with pytest.raises(ModelError) as refused:
            read(fact_of("zai-org/GLM-5.2"), indexer_types=None, index_topk_pattern=3)
        assert (refused.value.code, refused.value.field) == (
            "invalid-config-value",
            "config.index_topk_pattern",
        )

    def test_the_draft_layer_is_weighed_only_with_mtp(self):
        config = config_of(fact_of("deepseek-ai/DeepSeek-V3"))
        architecture, quantization = read_architecture(config), read_quantization(config, None)
        assert len(architecture.draft_layers) == 1
        assert weight_bytes(architecture, quantization, Parallel(), resolved(), 0).drafts == 0


class TestDeepseekV4:
    FLASH = fact_of("deepseek-ai/DeepSeek-V4-Flash")

    def test_weights_as_logs_print_them(self):
        assert gib(weigh(config_of(self.FLASH), tensor_parallel_size=4).total) == pytest.approx(
            37.74, abs=0.01
        )

    def test_experts_are_four_bits_wide(self):
        config = config_of(self.FLASH)
        assert read_quantization(config, None).method == "deepseek_v4_fp8"
        assert weigh(config).parameters < 0.6 * total_elements(read(self.FLASH))

    def test_compression_ratios_for_fewer_layers_are_refused(self):
        with pytest.raises(ModelError):
            read(self.FLASH, compress_ratios=[0, 4])


class TestMinicpm3:
    def test_it_caches_the_keys_and_values_of_every_head(self):
        counts = cache_layers(read(fact_of("openbmb/MiniCPM3-4B")))
        assert counts == {"FullAttention": 62}
