"""Blocks one request may hold, by kind and version, worked out by hand from the spec classes' formulas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.base.errors import EngineRefusalError
from kvcore.cache.spec import CacheKind, LayerSpec, blocks_per_request, demand_of, grows_with_length
from kvcore.scenario import Parallel
from tests.cache_examples import flags, full, latent, recurrent, window

VERSIONS = ("0.8.5", "0.10.2", "0.11.2", "0.15.1", "0.22.1", "0.26.0", "0.33.0")


def blocks(spec: LayerSpec, length: int, version: str = "0.33.0", ranks: int = 1, **changes: object) -> int:
    parallel = Parallel(tensor_parallel_size=ranks, decode_context_parallel_size=ranks)
    return blocks_per_request(spec, length, demand_of(flags(version, **changes), parallel))


def test_full_attention_rounds_up_to_blocks() -> None:
    assert blocks(full(1), 100_001) == 6251
    assert blocks(latent(1), 163_840) == 2560


@pytest.mark.parametrize(("version", "expected"), [("0.10.1", 2560), ("0.10.2", 320), ("0.33.0", 320)])
def test_context_parallel_ranks_share_tokens(version: str, expected: int) -> None:
    assert blocks(latent(1), 163_840, version, ranks=8) == expected


def test_windows_count_one_batch_until_0_25_and_all_batches_in_flight_from_0_26() -> None:
    spec = window(1, 1024)
    assert blocks(spec, 131_072, "0.25.1") == 577  # (1023 + 8192) / 16 = 575.9, and one more
    assert blocks(spec, 131_072, "0.26.0") == 1089  # (1023 + 16384) / 16 = 1087.9, and one more
    assert blocks(spec, 4096, "0.33.0") == 257


def test_windows_refuse_context_parallelism_in_the_engines_words() -> None:
    with pytest.raises(EngineRefusalError, match="DCP not support sliding window"):
        blocks(window(1, 1024), 4096, ranks=2)


def test_chunks_hold_a_chunk_and_what_is_in_flight() -> None:
    spec = LayerSpec(
        kind=CacheKind.CHUNKED_LOCAL_ATTENTION,
        layers=1,
        block_size=16,
        page_size_bytes=65_536,
        attention_chunk_size=8192,
    )
    assert blocks(spec, 1_048_576, "0.25.1") == 1024
    assert blocks(spec, 1_048_576, "0.26.0") == 1536


@pytest.mark.parametrize(("version", "expected"), [("0.12.0", 94), ("0.13.0", 512)])
def test_cross_attention_of_whisper(version: str, expected: int) -> None:
    """1500 encoder tokens; from 0.13 the batch size is taken for them."""
    spec = LayerSpec(
        kind=CacheKind.CROSS_ATTENTION, layers=1, block_size=16, page_size_bytes=1, encoder_tokens=1500
    )
    assert blocks(spec, 448, version) == expected


@pytest.mark.parametrize(
    ("version", "mode", "expected"),
    [
        ("0.11.0", "none", 1),
        ("0.11.0", "all", 1),
        ("0.11.2", "none", 1),
        ("0.14.1", "all", 482),  # 262144 / 544
        ("0.15.1", "none", 3),  # one state, two speculative ones
        ("0.15.1", "align", 4),
        ("0.15.1", "all", 482),
        ("0.22.1", "all", 484),
        ("0.32.0", "all", 3),
    ],
)
def test_recurrent_states(version: str, mode: str, expected: int) -> None:
    spec = recurrent(1, page=1_114_112, block_size=544, num_speculative_blocks=2)
    assert blocks(spec, 262_144, version, mamba_cache_mode=mode) == expected


def test_prefill_checkpoints_take_a_block_in_align_mode_only() -> None:
    spec = recurrent(1, page=1, block_size=2096, num_checkpoint_blocks=1)
    assert blocks(spec, 262_144, "0.32.0", mamba_cache_mode="align") == 3
    assert blocks(spec, 262_144, "0.32.0", mamba_cache_mode="none") == 1


@given(
    version=st.sampled_from(VERSIONS),
    spec=st.sampled_from([full(1), latent(1), window(1, 1024), recurrent(1, page=1, block_size=544)]),
    mode=st.sampled_from(["none", "align", "all"]),
    lengths=st.tuples(st.integers(1, 2**20), st.integers(1, 2**20)),
)
def test_longer_requests_never_hold_less(
    version: str, spec: LayerSpec, mode: str, lengths: tuple[int, int]
) -> None:
    shorter, longer = sorted(lengths)
    resolved = flags(version, mamba_cache_mode=mode)
    demand = demand_of(resolved, Parallel())
    at_shorter, at_longer = (blocks_per_request(spec, length, demand) for length in (shorter, longer))
    assert 1 <= at_shorter <= at_longer
    if grows_with_length(spec, demand):
        assert blocks_per_request(spec, longer + spec.block_size, demand) == at_longer + 1
