"""Cache specs on a rank: pages, parallel splits, refusals, what speculative decoding adds."""

from __future__ import annotations

import pytest

from kvcore.base.errors import EngineRefusalError
from kvcore.base.units import GIB
from kvcore.cache.spec import CacheKind
from kvcore.cache.states import rank_layer_specs
from kvcore.model.caches import (
    ChunkedLocal,
    CompressedLatent,
    CrossAttention,
    FullAttention,
    LatentWindow,
    Mla,
    SlidingWindow,
    SparseIndexer,
)
from kvcore.model.families.drafts import Draft
from kvcore.model.quantization import Quantization
from kvcore.scenario import Parallel
from tests.cache_examples import architecture, flags, full_layer, layer

LLAMA = architecture([full_layer()] * 32)


def tp(ranks: int, **changes: int) -> Parallel:
    return Parallel(tensor_parallel_size=ranks, **changes)


@pytest.mark.parametrize(("ranks", "page"), [(1, 65_536), (2, 32_768), (8, 8192), (16, 8192)])
def test_kv_heads_are_divided_then_replicated(ranks: int, page: int) -> None:
    (spec,) = rank_layer_specs(LLAMA, tp(ranks), flags(), 0)
    assert (spec.kind, spec.layers, spec.page_size_bytes) == (CacheKind.FULL_ATTENTION, 32, page)


@pytest.mark.parametrize("ranks", [3, 12])
def test_kv_heads_that_neither_divide_nor_replicate_are_refused(ranks: int) -> None:
    with pytest.raises(EngineRefusalError):
        rank_layer_specs(LLAMA, tp(ranks), flags(), 0)


def test_stages_hold_their_layers() -> None:
    model = architecture([full_layer()] * 61)
    parallel = Parallel(pipeline_parallel_size=4)
    layers = [rank_layer_specs(model, parallel, flags(), stage)[0].layers for stage in range(4)]
    assert layers == [15, 15, 16, 15]


def test_layers_without_a_cache_of_their_own_have_no_spec() -> None:
    model = architecture([full_layer()] * 20 + [layer()] * 15)
    assert [spec.layers for spec in rank_layer_specs(model, tp(1), flags(), 0)] == [20]
    assert rank_layer_specs(architecture([layer()] * 12), tp(1), flags(), 0) == ()


def test_windows_chunks_and_cross_attention_keep_their_sizes() -> None:
    sizes = {"num_kv_heads": 8, "head_size": 128}
    model = architecture(
        [
            layer(SlidingWindow(**sizes, head_size_v=128, sliding_window=1024)),
            layer(ChunkedLocal(**sizes, head_size_v=128, attention_chunk_size=8192)),
            layer(CrossAttention(**sizes, encoder_tokens=1500)),
        ]
    )
    window, chunk, cross = rank_layer_specs(model, tp(1), flags(), 0)
    assert (window.kind, window.sliding_window) == (CacheKind.SLIDING_WINDOW, 1024)
    assert (chunk.kind, chunk.attention_chunk_size) == (CacheKind.CHUNKED_LOCAL_ATTENTION, 8192)
    assert (cross.kind, cross.encoder_tokens) == (CacheKind.CROSS_ATTENTION, 1500)
    assert {spec.page_size_bytes for spec in (window, chunk, cross)} == {65_536}


@pytest.mark.parametrize(
    ("version", "page"), [("0.13.0", 16 * 8 * 2 * 192 * 2), ("0.14.1", 16 * 8 * 320 * 2)]
)
def test_values_smaller_than_keys_count_from_0_14(version: str, page: int) -> None:
    state = FullAttention(num_kv_heads=8, head_size=192, head_size_v=128)
    (spec,) = rank_layer_specs(architecture([layer(state)]), tp(1), flags(version), 0)
    assert spec.page_size_bytes == page


@pytest.mark.parametrize(
    ("kv_cache_dtype", "latent_page", "token_bytes"),
    [
        ("bfloat16", 64 * 1152, 78 * 1152 + 21 * 132),
        ("fp8", 64 * 576, 47_700),
        ("fp8_ds_mla", 64 * 656, 53_940),
    ],
)
def test_latent_vectors_and_indexers(kv_cache_dtype: str, latent_page: int, token_bytes: int) -> None:
    """GLM-5.2: 78 layers of latent vectors, 21 of them with an indexer; logs print 47,700 bytes per token."""
    latent = Mla(kv_lora_rank=512, qk_rope_head_dim=64)
    plain, indexed = layer(latent), layer(latent, SparseIndexer(index_head_dim=128))
    model = architecture([indexed] * 21 + [plain] * 57, num_kv_heads=1, head_dim=576, is_mla=True)
    resolved = flags(block_size=64, kv_cache_dtype=kv_cache_dtype)
    for ranks in (1, 8):
        specs = rank_layer_specs(model, tp(ranks), resolved, 0)
        assert sorted((spec.layers, spec.page_size_bytes) for spec in specs) == [
            (21, 64 * 132),
            (78, latent_page),
        ]
        assert sum(spec.layers * spec.page_size_bytes for spec in specs) == 64 * token_bytes


def test_packed_latents_of_deepseek_v4() -> None:
    caches = (
        LatentWindow(sliding_window=128, state_bytes=584, page_alignment=576, block_size=64),
        CompressedLatent(tokens_per_state=4, state_bytes=584, page_alignment=576),
        CompressedLatent(tokens_per_state=128, state_bytes=584, page_alignment=576),
        LatentWindow(sliding_window=8, state_bytes=8192, page_alignment=576, block_size=4),
    )
    specs = rank_layer_specs(architecture([layer(*caches)]), tp(1), flags(block_size=256), 0)
    assert [(spec.kind.value, spec.block_size, spec.page_size_bytes) for spec in specs] == [
        ("sliding_window_mla", 64, 37_440),
        ("mla_attention", 256, 37_440),
        ("mla_attention", 256, 1728),
        ("sliding_window_mla", 4, 32_832),
    ]


def test_turboquant_keeps_the_ends_in_the_models_dtype() -> None:
    resolved = flags(kv_cache_dtype="turboquant_4bit_nc", block_size=32)
    specs = rank_layer_specs(LLAMA, tp(1), resolved, 0)
    assert [(spec.layers, spec.page_size_bytes) for spec in specs] == [(4, 131_072), (28, 32 * 8 * 134)]
    parallel = Parallel(pipeline_parallel_size=4)
    middle = rank_layer_specs(LLAMA, parallel, resolved, 1)
    assert [(spec.layers, spec.page_size_bytes) for spec in middle] == [(8, 32 * 8 * 134)]


def test_the_layers_of_a_draft_join_the_last_stage() -> None:
    latent = layer(Mla(kv_lora_rank=512, qk_rope_head_dim=64))
    model = architecture([latent] * 61, is_mla=True)
    draft = Draft(layers=(latent,), quantization=Quantization())
    (spec,) = rank_layer_specs(model, tp(1), flags(), 0, draft)
    assert (spec.layers, spec.page_size_bytes) == (62, 18_432)
    parallel = Parallel(pipeline_parallel_size=2)
    assert [rank_layer_specs(model, parallel, flags(), stage, draft)[0].layers for stage in (0, 1)] == [
        31,
        31,
    ]


def test_a_draft_in_turboquant_is_stored_as_the_middle_layers_are() -> None:
    resolved = flags(kv_cache_dtype="turboquant_4bit_nc", block_size=32)
    draft = Draft(layers=(full_layer(),), quantization=Quantization())
    specs = rank_layer_specs(LLAMA, tp(1), resolved, 0, draft)
    assert [(spec.layers, spec.page_size_bytes) for spec in specs] == [(4, 131_072), (29, 32 * 8 * 134)]


@pytest.mark.parametrize(
    ("ranks", "context_ranks", "code"),
    [
        (8, 3, "context-parallel-division"),
        (8, 2, "context-parallel-ranks"),
        (16, 4, "context-parallel-size"),
    ],
)
def test_context_parallelism_needs_replicated_heads(ranks: int, context_ranks: int, code: str) -> None:
    with pytest.raises(EngineRefusalError) as refusal:
        rank_layer_specs(LLAMA, tp(ranks, decode_context_parallel_size=context_ranks), flags(), 0)
    assert refusal.value.code == code
    assert rank_layer_specs(LLAMA, tp(16, decode_context_parallel_size=2), flags(), 0)


def test_an_ascend_card_keeps_the_keys_of_an_indexer_in_the_models_dtype() -> None:
    """GLM-5 with its draft layer on vllm-ascend 0.14: "GPU KV cache size: 249,216 tokens" in 25.82821 GiB."""
    glm = layer(Mla(kv_lora_rank=512, qk_rope_head_dim=64), SparseIndexer(index_head_dim=128))
    model = architecture([glm] * 79, is_mla=True)
    specs = rank_layer_specs(model, tp(8), flags(engine="vllm-ascend", block_size=128), 0)
    block_bytes = sum(spec.layers * spec.page_size_bytes for spec in specs)
    assert int(25.82821 * GIB) // block_bytes * 128 == 249_216
