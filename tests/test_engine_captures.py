"""Captured batch sizes: counts and ends as logs and sources of each era show them."""

import pytest

from kvcore.engine.vllm.captures import capture_modes, capture_sizes
from kvcore.engine.vllm.switches import GraphModes, GraphSizes
from tests.engine_examples import B200, resolved_of


@pytest.mark.parametrize(
    ("rule", "sequences", "tokens", "limit", "speculative", "count", "largest"),
    [
        (None, 256, 8192, 512, 0, 35, 256),
        (GraphSizes("eights"), 1024, 8192, 512, 0, 67, 512),
        (GraphSizes("eights-capped"), 128, 8192, 512, 0, 35, 256),
        (GraphSizes("sixteens"), 1024, 8192, 512, 0, 51, 512),
        (GraphSizes("sixteens"), 64, 2048, 512, 0, 19, 128),
        (GraphSizes("sixteens"), 32, 2048, 512, 3, 11, 64),
        (GraphSizes("sixteens-speculative"), 32, 2048, 512, 3, 35, 256),
        (GraphSizes("sixteens-speculative"), 1024, 16384, 1024, 0, 83, 1024),
    ],
)
def test_counts_and_ends(
    rule: GraphSizes | None,
    sequences: int,
    tokens: int,
    limit: int,
    speculative: int,
    count: int,
    largest: int,
) -> None:
    sizes = capture_sizes(
        rule=rule,
        max_num_seqs=sequences,
        max_num_batched_tokens=tokens,
        limit=limit,
        num_speculative_tokens=speculative,
    )
    assert (len(sizes), sizes[-1]) == (count, largest)
    assert list(sizes) == sorted(set(sizes))


def test_no_size_is_above_the_batch_and_a_small_batch_is_captured_itself() -> None:
    sizes = capture_sizes(
        rule=GraphSizes("sixteens"),
        max_num_seqs=1024,
        max_num_batched_tokens=100,
        limit=512,
        num_speculative_tokens=0,
    )
    assert sizes[-2:] == (96, 100)


def test_speculative_sizes_are_whole_requests_from_0_29() -> None:
    config = {"method": "ngram", "num_speculative_tokens": 4}
    sizes = resolved_of(
        engine_version="0.32.0", speculative_config=config, max_num_seqs=4
    ).cudagraph_capture_sizes
    assert {5, 10, 20} <= set(sizes)


def test_the_widest_decode_batch_is_captured_from_0_31() -> None:
    sizes = {
        v: resolved_of(engine_version=v, max_num_seqs=250).cudagraph_capture_sizes
        for v in ("0.30.0", "0.31.0")
    }
    assert set(sizes["0.31.0"]) - set(sizes["0.30.0"]) == {250}


def test_gpt_oss_sets_its_own_limit() -> None:
    sizes = capture_sizes(
        rule=GraphSizes("sixteens"),
        max_num_seqs=16,
        max_num_batched_tokens=8192,
        limit=512,
        num_speculative_tokens=0,
        model_limit=1024,
    )
    assert (len(sizes), sizes[-1]) == (83, 1024)


def test_data_centre_blackwell_captures_up_to_1024_from_0_28() -> None:
    assert resolved_of(accelerator=B200, engine_version="0.28.0").cudagraph_capture_sizes[-1] == 1024
    assert resolved_of(accelerator=B200, engine_version="0.27.1").cudagraph_capture_sizes[-1] == 512


def test_modes_by_era() -> None:
    plain = {"is_v0": False, "is_hybrid": False, "is_encoder_decoder": False}
    assert capture_modes(rule=GraphModes("piecewise"), **plain) == ("PIECEWISE",)
    assert capture_modes(rule=GraphModes("full-for-hybrids"), **{**plain, "is_hybrid": True}) == (
        "PIECEWISE",
        "FULL",
    )
    assert capture_modes(rule=GraphModes("full-and-piecewise"), **plain) == ("PIECEWISE", "FULL")
    assert capture_modes(rule=GraphModes("full-and-piecewise"), **{**plain, "is_encoder_decoder": True}) == (
        "FULL",
    )
    assert capture_modes(rule=GraphModes("piecewise"), **{**plain, "is_v0": True}) == ("FULL",)
