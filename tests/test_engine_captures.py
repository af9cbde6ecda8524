"""Captured batch sizes: counts and ends as logs and sources of each era show them."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.base.errors import EngineRefusalError
from kvcore.engine.protocol import Resolved
from kvcore.engine.switches import GraphModes, GraphSizes
from kvcore.engines.vllm.captures import capture_modes, capture_sizes
from kvcore.engines.vllm.versions import vllm_releases
from kvcore.memory.graphs import full_count, graph_count
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request
from tests.engine_examples import A100, ASCEND, B200, QWEN3_14B, T4, resolved_of, setting_for


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


NGRAM = {"method": "ngram"}
GPT_OSS = {**QWEN3_14B, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"}


def codes(resolved: Resolved) -> set[str]:
    return {notice.code for notice in resolved.notices if "capture" in notice.code or "graph" in notice.code}


@pytest.mark.parametrize(
    ("version", "largest", "tokens", "sizes"),
    [
        # 0.9.0 to 0.11.0, one number of --cuda-graph-sizes: [1, 2, 4] + range(8, N + 1, 8), of these those ≤ tokens.
        ("0.9.2", 20, 2048, (1, 2, 4, 8, 16)),
        ("0.10.2", 1, 2048, (1, 2, 4)),
        ("0.11.0", 100, 30, (1, 2, 4, 8, 16, 24)),
        # From 0.11.1: min(N, tokens); of [1, 2, 4] those ≤ it, range(8, ..., 8) below 256.
        ("0.11.1", 1, 2048, (1,)),
        ("0.11.2", 3, 2048, (1, 2)),
        ("0.19.0", 20, 2048, (1, 2, 4, 8, 16)),
        ("0.19.0", 64, 30, (1, 2, 4, 8, 16, 24)),
        # From 0.20 the batch itself where it is not above N.
        ("0.20.2", 64, 30, (1, 2, 4, 8, 16, 24, 30)),
        ("0.20.2", 20, 30, (1, 2, 4, 8, 16)),
        ("0.33.0", 4, 2048, (1, 2, 4)),
        ("0.33.0", 20, 20, (1, 2, 4, 8, 16, 20)),
    ],
)
def test_sizes_up_to_the_maximum(version: str, largest: int, tokens: int, sizes: tuple[int, ...]) -> None:
    resolved = resolved_of(
        engine_version=version,
        max_cudagraph_capture_size=largest,
        max_num_batched_tokens=tokens,
        max_num_seqs=1,
        max_model_len=1024,
        enable_chunked_prefill=True,
    )
    assert resolved.cudagraph_capture_sizes == sizes


def test_steps_of_16_above_256_from_0_11_1() -> None:
    sizes = {v: resolved_of(engine_version=v, max_cudagraph_capture_size=300).cudagraph_capture_sizes
             for v in ("0.11.0", "0.11.1")}  # fmt: skip
    assert sizes["0.11.0"] == (1, 2, 4, *range(8, 301, 8))
    assert sizes["0.11.1"] == (1, 2, 4, *range(8, 256, 8), 256, 272, 288)


def test_the_maximum_is_not_bound_to_the_sequences() -> None:
    resolved = resolved_of(engine_version="0.32.0", max_cudagraph_capture_size=1024, max_num_seqs=8)
    assert resolved.cudagraph_capture_sizes[-1] == 1024


def test_the_widest_batches_that_decode_are_only_added_to_the_engines_own_sizes() -> None:
    fields: dict[str, Any] = {"engine_version": "0.33.0", "max_num_seqs": 250}
    assert 250 in resolved_of(**fields).cudagraph_capture_sizes
    assert 250 not in resolved_of(**fields, max_cudagraph_capture_size=500).cudagraph_capture_sizes


def test_a_small_batch_is_a_size_of_its_own_from_0_20() -> None:
    fields = {"max_num_seqs": 64, "max_num_batched_tokens": 100, "enable_chunked_prefill": True}
    last = {
        v: resolved_of(engine_version=v, **fields).cudagraph_capture_sizes[-1] for v in ("0.19.0", "0.20.2")
    }
    assert last == {"0.19.0": 96, "0.20.2": 100}


@pytest.mark.parametrize("version", ["0.8.5", "0.10.2", "0.11.0", "0.11.1", "0.20.2", "0.33.0"])
def test_a_list_is_taken_as_it_is(version: str) -> None:
    resolved = resolved_of(engine_version=version, cudagraph_capture_sizes=[5, 700, 3, 3], max_num_seqs=8)
    assert resolved.cudagraph_capture_sizes == (3, 5, 700)
    assert codes(resolved) == set()


def test_sizes_above_a_batch_are_dropped() -> None:
    fields = {"max_num_batched_tokens": 512, "max_num_seqs": 8, "enable_chunked_prefill": True}
    resolved = resolved_of(cudagraph_capture_sizes=[1, 512, 513, 600], **fields)
    assert resolved.cudagraph_capture_sizes == (1, 512)
    (notice,) = (notice for notice in resolved.notices if notice.code == "capture-sizes-dropped")
    assert notice.params["dropped"] == "513, 600"
    none_left = resolved_of(cudagraph_capture_sizes=[513], **fields)
    assert (none_left.cudagraph_capture_sizes, none_left.cudagraph_mode) == ((), "NONE")


@pytest.mark.parametrize(("sizes", "largest"), [([1, 8], 16), ([1, 16], 8), ([1, 8, 3000], 3000)])
def test_maximum_and_list_must_agree_after_the_list_is_cut(sizes: list[int], largest: int) -> None:
    fields: dict[str, Any] = {"max_num_batched_tokens": 2048, "cudagraph_capture_sizes": sizes,
                              "max_cudagraph_capture_size": largest}  # fmt: skip
    with pytest.raises(EngineRefusalError) as refused:
        resolved_of(engine_version="0.20.2", **fields)
    assert (refused.value.code, refused.value.field) == (
        "capture-sizes-inconsistent",
        "max_cudagraph_capture_size",
    )
    # Before 0.11.1 a list in the compilation config replaces what --cuda-graph-sizes says.
    former = resolved_of(engine_version="0.11.0", **fields)
    assert former.cudagraph_capture_sizes == tuple(size for size in sizes if size <= 2048)


def test_maximum_and_list_that_agree() -> None:
    resolved = resolved_of(cudagraph_capture_sizes=[1, 8], max_cudagraph_capture_size=8)
    assert resolved.cudagraph_capture_sizes == (1, 8)


def test_a_release_without_the_flag_refuses_it() -> None:
    with pytest.raises(EngineRefusalError) as refused:
        resolved_of(engine_version="0.8.5", max_cudagraph_capture_size=8)
    assert refused.value.code == "flag-not-in-release"
    with pytest.raises(EngineRefusalError) as refused:
        resolved_of(engine_version="0.9.2", cudagraph_mode="FULL")
    assert "--compilation-config cudagraph_mode FULL" in str(refused.value)


def test_notices_on_flags_that_are_taken_otherwise() -> None:
    assert codes(resolved_of(engine_version="0.10.2", max_cudagraph_capture_size=64)) == {
        "capture-flag-former"
    }
    assert codes(resolved_of(engine_version="0.20.2", max_cudagraph_capture_size=64)) == set()
    assert codes(resolved_of(engine_version="0.20.2", max_cudagraph_capture_size=100)) == {
        "capture-maximum-not-kept"
    }


def test_eager_wins() -> None:
    resolved = resolved_of(enforce_eager=True, cudagraph_capture_sizes=[1, 2], cudagraph_mode="FULL")
    assert (resolved.cudagraph_capture_sizes, resolved.cudagraph_modes) == ((), ())
    assert codes(resolved) == {"capture-flags-without-effect"}


def test_mode_none_captures_nothing_and_still_compiles() -> None:
    resolved = resolved_of(cudagraph_mode="NONE")
    assert (resolved.cudagraph_capture_sizes, resolved.cudagraph_mode) == ((), "NONE")
    assert not resolved.enforce_eager
    assert codes(resolved) == set()


@pytest.mark.parametrize(
    ("version", "asked", "card", "modes", "mode"),
    [
        ("0.20.2", "PIECEWISE", None, ("PIECEWISE",), "PIECEWISE"),
        ("0.20.2", "FULL_DECODE_ONLY", None, ("FULL",), "FULL_DECODE_ONLY"),
        ("0.20.2", "FULL_AND_PIECEWISE", None, ("PIECEWISE", "FULL"), "FULL_AND_PIECEWISE"),
        ("0.10.2", "FULL_AND_PIECEWISE", None, ("PIECEWISE", "FULL"), "FULL_AND_PIECEWISE"),
        # FlashAttention 3 takes full graphs of mixed batches, version 2 does not.
        ("0.20.2", "FULL", None, ("FULL",), "FULL"),
        ("0.20.2", "FULL", A100, ("PIECEWISE", "FULL"), "FULL_AND_PIECEWISE"),
    ],
)
def test_modes(version: str, asked: str, card: Any, modes: tuple[str, ...], mode: str) -> None:
    fields = {} if card is None else {"accelerator": card}
    resolved = resolved_of(engine_version=version, cudagraph_mode=asked, **fields)
    assert (resolved.cudagraph_modes, resolved.cudagraph_mode) == (modes, mode)
    assert ("cudagraph-mode-not-kept" in codes(resolved)) == (asked != mode)


def test_pooling_has_no_full_graphs() -> None:
    resolved = resolved_of(runner="pooling", cudagraph_mode="FULL_AND_PIECEWISE")
    assert resolved.cudagraph_modes == ("PIECEWISE",)
    assert codes(resolved) == {"cudagraph-mode-not-kept"}


def test_v0_takes_a_list_and_no_other_flag() -> None:
    fields = {"engine_version": "0.10.1", "env": {"VLLM_USE_V1": "0"}, "max_num_seqs": 16}
    listed = resolved_of(cudagraph_capture_sizes=[1, 16, 24], **fields)
    assert listed.cudagraph_capture_sizes == (1, 16)
    assert codes(listed) == {"capture-sizes-dropped"}
    other = resolved_of(max_cudagraph_capture_size=8, cudagraph_mode="NONE", **fields)
    assert other.cudagraph_capture_sizes == (1, 2, 4, 8, 16)
    assert codes(other) == {"capture-flags-need-v1"}


def test_drafts_round_the_sizes_that_are_asked_for() -> None:
    """4 tokens a request: 1, 2, 4 → 4; 8 and 16 stay. Of (1, 2, 3), all of which go to 4, none is left."""
    fields = {"speculative_config": {**NGRAM, "num_speculative_tokens": 3}, "max_num_seqs": 8}
    assert resolved_of(
        engine_version="0.20.2", max_cudagraph_capture_size=16, **fields
    ).cudagraph_capture_sizes == (4, 8, 16)
    for asked in ({"max_cudagraph_capture_size": 2}, {"cudagraph_capture_sizes": [1, 2, 3]}):
        with pytest.raises(EngineRefusalError) as refused:
            resolved_of(engine_version="0.20.2", **asked, **fields)
        assert refused.value.code == "capture-sizes-below-request"
    # 0.11.1 and 0.11.2 warn and keep the sizes; 0.11.0 does not round; piecewise graphs need no whole requests.
    assert resolved_of(
        engine_version="0.11.2", max_cudagraph_capture_size=2, **fields
    ).cudagraph_capture_sizes == (1, 2)
    assert resolved_of(
        engine_version="0.11.0", max_cudagraph_capture_size=8, **fields
    ).cudagraph_capture_sizes == (1, 2, 4, 8)
    assert resolved_of(
        engine_version="0.20.2", max_cudagraph_capture_size=2, cudagraph_mode="PIECEWISE", **fields
    ).cudagraph_capture_sizes == (1, 2)


def test_gpt_oss_keeps_its_own_maximum_up_to_0_11_0() -> None:
    """0.11.0 raises a single number below 992 to its list up to 992; from 0.11.1 on what is asked for stands."""
    sizes = {v: resolved_of(GPT_OSS, engine_version=v, max_cudagraph_capture_size=64).cudagraph_capture_sizes
             for v in ("0.11.0", "0.11.1")}  # fmt: skip
    assert sizes["0.11.0"] == (1, 2, 4, *range(8, 256, 8), *range(256, 993, 16))
    assert sizes["0.11.1"] == (1, 2, 4, *range(8, 65, 8))


def test_a_published_start_of_0_20_0() -> None:
    """--max-cudagraph-capture-size 4 --max-num-seqs 1: PIECEWISE 1, 2, 4 and FULL 1 are captured."""
    setting = setting_for(engine_version="0.20.0", max_cudagraph_capture_size=4, max_num_seqs=1)
    assert setting.resolved.cudagraph_capture_sizes == (1, 2, 4)
    assert (full_count(setting), graph_count(setting)) == (1, 4)


def test_graphs_of_each_mode() -> None:
    """Sizes 1, 2, 4, 8, 16 with 4 sequences: 5 piecewise, 3 that decode, 5 full ones of mixed batches."""
    counts = {}
    for mode in ("PIECEWISE", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE", "FULL", "NONE"):
        request = {"engine_version": "0.20.2", "max_cudagraph_capture_size": 16, "max_num_seqs": 4,
                   "cudagraph_mode": mode}  # fmt: skip
        counts[mode] = graph_count(setting_for(**request))
    assert counts == {
        "PIECEWISE": 5, "FULL_DECODE_ONLY": 3, "FULL_AND_PIECEWISE": 8, "FULL": 5, "NONE": 0,
    }  # fmt: skip


def test_every_release_takes_a_list() -> None:
    for version in vllm_releases():
        card = {"accelerator": T4} if version.release < (0, 7) else {}
        resolved = resolved_of(
            engine_version=str(version), cudagraph_capture_sizes=[1, 2, 4], max_model_len=2048, **card
        )
        assert resolved.cudagraph_capture_sizes == (1, 2, 4), version


def test_ascend_takes_them_too() -> None:
    resolved = resolved_of(engine="vllm-ascend", accelerator=ASCEND, max_cudagraph_capture_size=16)
    assert resolved.cudagraph_capture_sizes == (1, 2, 4, 8, 16)


@pytest.mark.parametrize(
    ("version", "env", "captures"),
    [
        ("0.13.0", {}, False),
        ("0.30.0", {}, False),
        ("0.30.0", {"VLLM_XPU_ENABLE_XPU_GRAPH": "1"}, True),
        ("0.31.0", {}, True),
    ],
)
def test_intel_cards_have_graphs_by_default_from_0_31_on(
    version: str, env: dict[str, str], captures: bool
) -> None:
    asked = {"model": "Qwen/Qwen3-8B", "engine_version": version, "env": env}
    found = plan(scenario_from_request({**asked, "accelerator": "Arc-Pro-B60-24GB"})).resolved
    assert bool(found.cudagraph_capture_sizes) is captures
    assert plan(scenario_from_request({**asked, "accelerator": "L40S-48GB"})).resolved.cudagraph_capture_sizes


def test_a_hybrid_without_graphs_may_have_more_sequences_than_state_blocks() -> None:
    """CompilationConfig.resolve_cudagraph_mode_and_sizes checks where full graphs are captured alone."""
    asked = {"model": "Qwen/Qwen3.5-4B", "accelerator": "Arc-Pro-B60-24GB", "max_model_len": 4096, "max_num_seqs": 4096,
             "max_num_batched_tokens": 4096}  # fmt: skip
    plan(scenario_from_request({**asked, "engine_version": "0.30.0"}))
    with pytest.raises(EngineRefusalError) as refused:
        plan(scenario_from_request({**asked, "engine_version": "0.31.0"}))
    assert refused.value.code == "state-blocks-too-few"
