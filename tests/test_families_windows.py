"""Models with windows or chunks beside full attention: exact against vLLM's own classes."""

import pytest

from kvcore.base.errors import ModelError
from kvcore.model.caches import ChunkedLocal, FullAttention, SlidingWindow
from tests.special_models import (
    fact_of,
    read,
)


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
