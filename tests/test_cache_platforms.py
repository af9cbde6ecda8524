"""What vllm-ascend keeps in place of vLLM's caches, by release, against its own source."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from kvcore.cache.capacity import plan_cache
from kvcore.cache.spec import CacheKind, LayerSpec
from kvcore.cache.states import counted_vectors
from kvcore.engine.records import CompressedBlocks
from kvcore.engines.registry import find_engine
from kvcore.model.caches import (
    CacheState,
    ChunkedLocal,
    CompressedLatent,
    FullAttention,
    LatentWindow,
    Mla,
    SlidingWindow,
    SparseIndexer,
)
from kvcore.planning import Plan, plan
from kvcore.wire.request import scenario_from_request

LATENT = Mla(kv_lora_rank=512, qk_rope_head_dim=64)
INDEXER = SparseIndexer(index_head_dim=128)


ASCEND = find_engine("vllm-ascend")


def kept(states: tuple[CacheState, ...], version: str) -> tuple[CacheState, ...]:
    return tuple(ASCEND.kept_states(states, Version(version)))


def blocks_of(version: str) -> CompressedBlocks | None:
    return ASCEND.compressed_blocks(Version(version))


def planned(**fields: object) -> Plan:
    card = {"name": "Ascend 910C 64GB", "memory_gib": 61.28, "vendor": "huawei"}
    request = {"engine": "vllm-ascend", "accelerator": card, **fields}
    return plan(scenario_from_request(request))


def flash(**fields: object) -> Plan:
    """DeepSeek-V4-Flash in ModelSlim's W8A8 with its own draft on the candidate of 0.23."""
    draft = {"method": "mtp", "num_speculative_tokens": 1}
    wanted = {
        "model": "deepseek-ai/DeepSeek-V4-Flash",
        "engine_version": "0.23.0rc1",
        "quantization": "ascend",
        "speculative_config": draft,
    }
    return planned(**(wanted | {"enable_expert_parallel": True, "max_num_seqs": 64} | fields))


def test_until_0_13_every_layer_keeps_the_whole_context() -> None:
    """get_kv_cache_spec makes a FullAttentionSpec of each (0.13.0: "Support other attention modules")."""
    window = SlidingWindow(num_kv_heads=8, head_size=64, head_size_v=64, sliding_window=128)
    chunk = ChunkedLocal(num_kv_heads=8, head_size=64, head_size_v=64, attention_chunk_size=8192)
    full = FullAttention(num_kv_heads=8, head_size=64, head_size_v=64)
    assert kept((window, chunk), "0.13.0") == (full, full)
    assert kept((window, chunk), "0.18.0") == (window, chunk)


def test_keys_of_an_indexer_take_a_second_vector_at_first_and_then_its_end() -> None:
    """FullAttentionSpec with a head of 576 (0.11.0, 0.13.0); sum(sparse_head_dim) = 704 (0.18.0, 0.23.0)."""
    (doubled,) = kept((LATENT, INDEXER), "0.13.0")
    assert doubled == FullAttention(num_kv_heads=1, head_size=576, head_size_v=576)
    (joined,) = kept((LATENT, INDEXER), "0.18.0")
    assert joined == Mla(kv_lora_rank=512, qk_rope_head_dim=64, index_head_dim=128)
    assert kept((LATENT,), "0.13.0") == (LATENT,)


@pytest.mark.parametrize(
    ("block", "latent", "index", "overlapping", "single"),
    [(128, 131_072, 16_640, 8, 32), (64, 65_536, 8320, 4, 16), (32, 32_768, 4160, 2, 8)],
)
def test_blocks_of_deepseek_v4_are_counted_in_vectors(
    block: int, latent: int, index: int, overlapping: int, single: int
) -> None:
    """The table of vllm_ascend/models/layer/attention/layer.py:get_dsv4_block_sizes (0.23.0)."""
    blocks = blocks_of("0.23.0")
    assert blocks is not None

    def spec(state: CompressedLatent | LatentWindow) -> LayerSpec:
        return counted_vectors(state, block, "bfloat16", blocks)

    keys = CompressedLatent(tokens_per_state=4, state_bytes=132, page_alignment=576, width=128, is_index=True)
    four, many = (
        CompressedLatent(tokens_per_state=ratio, state_bytes=584, page_alignment=576, width=512)
        for ratio in (4, 128)
    )
    assert [spec(state).page_size_bytes for state in (four, many, keys)] == [latent, latent, index]
    assert (spec(four).block_size, spec(many).block_size) == (4 * block, 128 * block)
    assert {spec(state).stated_block_size for state in (four, many, keys)} == {block}
    window = LatentWindow(sliding_window=128, state_bytes=584, page_alignment=576, block_size=64, width=512)
    assert (spec(window).kind, spec(window).block_size) == (CacheKind.SLIDING_WINDOW_MLA, block)
    assert spec(window).page_size_bytes == latent
    waiting = LatentWindow(
        sliding_window=8, state_bytes=8192, page_alignment=576, block_size=4, overlaps=True
    )
    alone = LatentWindow(sliding_window=128, state_bytes=4096, page_alignment=576, block_size=8)
    assert (spec(waiting).block_size, spec(alone).block_size) == (overlapping, single)


def test_other_releases_and_engines_count_in_tokens() -> None:
    assert blocks_of("0.18.0") is None
    assert find_engine("vllm").compressed_blocks(Version("0.23.0")) is None
    assert blocks_of("0.20.2") == CompressedBlocks(overlapping_share=16, single_share=4, sizes=(128,))


def test_published_boundary_of_deepseek_v4_on_ascend() -> None:
    """On 16 dies of 910C 23,552 is the largest max_num_batched_tokens that starts at 524,288 tokens in 16.04 GiB
    (github.com/pajaysi/vllm-ascend-hbm-planner): 23 pages of 131,072 + 16,640 bytes are a block, 22 at admission."""
    flags = {"max_model_len": 524_288, "data_parallel_size": 16, "measured": {"available_kv_gib": 16.04}}
    largest, next_one = (flash(max_num_batched_tokens=tokens, **flags) for tokens in (23_552, 24_576))
    assert largest.cache is not None
    assert next_one.cache is not None
    assert largest.cache.bytes_per_block == 23 * (131_072 + 16_640)
    per_request = (
        1024
        + 32
        + 2 * (-(-(127 + 23_552) // 128) + 1)
        + (-(-(7 + 23_552) // 8) + 1)
        + (-(-(127 + 23_552) // 32) + 1)
    )
    assert largest.cache.needed_bytes == 22 * (131_072 + 16_640) * per_request
    assert (largest.verdict, next_one.verdict) == ("fits", "tight")
    assert largest.cache.max_concurrency >= 1 > next_one.cache.max_concurrency
    groups = [(group.kind.value, group.block_size, group.layers) for group in largest.cache.groups]
    assert groups == [
        ("mla_attention", 128, 42),
        ("mla_attention", 128, 20),
        ("sliding_window_mla", 128, 22),
        ("sliding_window_mla", 128, 22),
        ("sliding_window_mla", 8, 42),
        ("sliding_window_mla", 32, 20),
    ]


def test_without_a_draft_a_block_is_as_many_pages_as_admission_counts() -> None:
    kept = flash(speculative_config=None, max_model_len=65_536, measured={"available_kv_gib": 20.0}).cache
    assert kept is not None
    assert kept.bytes_per_block == 22 * (131_072 + 16_640)


@pytest.mark.parametrize(("asked", "used"), [(None, 128), (64, 64), (16, 32), (256, 32)])
def test_deepseek_v4_takes_three_block_sizes(asked: int | None, used: int) -> None:
    """vllm_ascend/utils.py:refresh_block_size (0.23.0)."""
    one = flash(block_size=asked, max_model_len=32_768, measured={"available_kv_gib": 20.0})
    assert one.resolved.block_size == used
    said = {notice.code for notice in one.notices}
    assert ("block-size-not-kept" in said) is (asked not in (None, used))


def test_the_release_keeps_the_windows_of_every_batch_in_flight_and_its_candidate_does_not() -> None:
    """patch_async_swa_kv_lifetime.py (0.23.0): two batches in flight; (7 + 2 × 4096) / 8 and one block."""
    taken = []
    for version in ("0.23.0rc1", "0.23.0", "0.24.0"):
        flags = {"engine_version": version, "max_model_len": 65_536, "max_num_batched_tokens": 4096}
        cache = flash(**flags, measured={"available_kv_gib": 20.0}).cache
        assert cache is not None
        taken.append(next(group.blocks_per_request for group in cache.groups if group.block_size == 8))
    assert taken == [514, 1026, 514]


def test_a_plan_is_not_called_fitting_where_the_pool_holds_less_than_one_request() -> None:
    """The check counts 22 pages a block, the pool has blocks of 23."""
    known = flash(max_model_len=524_288, max_num_batched_tokens=24_576, measured={"available_kv_gib": 16.04})
    cache = known.cache
    assert cache is not None
    assert cache.fits
    assert not cache.holds_one
    assert cache.request_bytes > cache.needed_bytes
    again = plan_cache(known.specs, (cache.request_bytes,), known.resolved, known.scenario.parallel)
    assert again.holds_one


MODELS = ("deepseek-ai/DeepSeek-V4-Flash", "Qwen/Qwen3-Next-80B-A3B-Instruct", "google/gemma-3-27b-it")


@settings(max_examples=60, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    engine=st.sampled_from(("vllm", "vllm-ascend")),
    length=st.integers(1, 131_072),
    batch=st.integers(256, 65_536),
    available=st.floats(0.05, 30.0),
)
def test_no_plan_fits_that_holds_less_than_one_request(
    model: str, engine: str, length: int, batch: int, available: float
) -> None:
    card = "H100-80GB" if engine == "vllm" else "Ascend-910B3-64GB"
    request = {"model": model, "engine": engine, "engine_version": "0.23.0", "accelerator": card}
    request |= {"max_model_len": length, "max_num_batched_tokens": batch, "max_num_seqs": 1}
    request |= {"enforce_eager": True, "measured": {"available_kv_gib": available}}
    if "V4" in model and engine == "vllm-ascend":
        request["quantization"] = "ascend"
    found = plan(scenario_from_request(request))
    assert found.cache is not None
    assert found.verdict != "fits" or found.cache.max_concurrency >= 1
