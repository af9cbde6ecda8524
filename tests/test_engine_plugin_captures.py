"""Graphs on vllm-ascend: sizes and modes by release, as its source works them out."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore import catalogue
from kvcore.base.errors import EngineRefusalError
from kvcore.engine.protocol import Resolved
from kvcore.engines.vllm_ascend.captures import sampled_sizes
from kvcore.memory.graphs import captured_graphs, cuda_graph_bytes, graph_count
from tests.engine_examples import ASCEND, LLAMA_8B, QWEN3_14B, QWEN3_30B_A3B, resolved_of, setting_for

AIV = {"HCCL_OP_EXPANSION_MODE": "AIV"}
FLASHCOMM = {"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"}


def resolved(config: dict[str, Any], version: str, **fields: Any) -> Resolved:
    flags = {
        "max_num_seqs": 256,
        "max_model_len": 4096,
        "max_num_batched_tokens": 8192,
        "accelerator": ASCEND,
    }
    return resolved_of(config, engine="vllm-ascend", engine_version=version, **flags | fields)


@pytest.mark.parametrize(
    ("config", "version", "fields", "most"),
    [
        (QWEN3_30B_A3B, "0.9.1", {}, 1920 // 49),
        (QWEN3_30B_A3B, "0.9.1", {"tensor_parallel_size": 4}, 1920 // 49 // 3),
        (QWEN3_30B_A3B, "0.11.0", {}, 1800 // 49),
        (QWEN3_30B_A3B, "0.13.0", {"tensor_parallel_size": 4}, (1800 - 40) // 49 // 3),
        (QWEN3_30B_A3B, "0.18.0", {"tensor_parallel_size": 4}, (1800 - 40) // 49 // 3),
        (
            QWEN3_30B_A3B,
            "0.13.0",
            {"tensor_parallel_size": 2, "data_parallel_size": 2},
            (1800 - 80) // 49 // 5,
        ),
        (QWEN3_30B_A3B, "0.13.0", {"tensor_parallel_size": 4, "env": AIV}, 1800 // 49 // 2),
        (QWEN3_14B, "0.13.0", {"tensor_parallel_size": 4, "env": AIV}, (1800 - 2 * 41) // 41 // 2),
        (
            QWEN3_30B_A3B,
            "0.13.0",
            {
                "tensor_parallel_size": 4,
                "enable_expert_parallel": True,
                "env": AIV,
                "additional_config": {"multistream_overlap_shared_expert": True},
            },
            1800 // 49 // 4,
        ),
    ],
)
def test_streams_of_the_card_limit_piecewise_sizes(
    config: dict[str, Any], version: str, fields: dict[str, Any], most: int
) -> None:
    """update_aclgraph_sizes: 48 layers and one more are 49 streams a graph; each collective takes two more."""
    one = resolved(config, version, **fields)
    assert (one.cudagraph_modes, len(one.cudagraph_capture_sizes)) == (("PIECEWISE",), most)
    assert one.cudagraph_capture_sizes[0] == 1
    assert one.max_cudagraph_capture_size == (256 if version == "0.18.0" else 512)


def test_sizes_that_published_starts_print() -> None:
    """Issues 1168 (Qwen3-235B, 94 layers, TP 8), 1249 (24 layers, DP 4: 25 sizes), 4807 (Qwen3-30B-A3B, TP 2: 11),
    3927 (36 layers, TP 2, 0.11.0rc1: each of 15)."""
    flags = {"tensor_parallel_size": 8, "enable_expert_parallel": True}
    large = resolved({**QWEN3_30B_A3B, "num_hidden_layers": 94}, "0.9.1", **flags)
    assert large.cudagraph_capture_sizes == (1, 88, 192, 304, 408, 512)
    small = resolved({**QWEN3_14B, "num_hidden_layers": 24}, "0.9.1", data_parallel_size=4)
    assert len(small.cudagraph_capture_sizes) == 25
    middle = resolved({**QWEN3_14B, "num_hidden_layers": 36}, "0.11.0", tensor_parallel_size=2)
    assert middle.cudagraph_capture_sizes == (
        1, 24, 56, 96, 136, 176, 208, 248, 288, 320, 360, 400, 440, 472, 512,
    )  # fmt: skip
    whole = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    assert len(resolved(QWEN3_30B_A3B, "0.11.0", **whole).cudagraph_capture_sizes) == 11


def test_full_graphs_have_no_limit_of_streams_and_neither_has_0_23() -> None:
    full = resolved(QWEN3_30B_A3B, "0.18.0", tensor_parallel_size=4, cudagraph_mode="FULL_DECODE_ONLY")
    newest = resolved(QWEN3_30B_A3B, "0.23.0", tensor_parallel_size=4)
    assert len(full.cudagraph_capture_sizes) == len(newest.cudagraph_capture_sizes) == 35
    assert newest.cudagraph_modes == ("PIECEWISE", "FULL")


def test_a_draft_takes_streams_too() -> None:
    """0.13.0 takes the config of the model for that of a look-up of n-grams: 32 layers and one, twice."""
    ngram = {"method": "ngram", "num_speculative_tokens": 2}
    alone, both = (resolved(LLAMA_8B, "0.13.0", speculative_config=each) for each in (None, ngram))
    assert [len(one.cudagraph_capture_sizes) for one in (alone, both)] == [51, 1800 // 66]


def test_0_11_multiplies_the_sizes_by_the_tokens_of_a_request_where_they_do_not_reach_its_decode_batch() -> (
    None
):
    ngram = {"method": "ngram", "num_speculative_tokens": 2}
    one = resolved(LLAMA_8B, "0.11.0", speculative_config=ngram)
    assert len(one.cudagraph_capture_sizes) == 1800 // 66
    assert (one.cudagraph_capture_sizes[0], one.max_cudagraph_capture_size) == (3, 3 * 512)


def test_the_largest_size_is_the_widest_decode_batch_from_0_18() -> None:
    """A start of 0.18.0 with 32 sequences; two tokens a request, in full, make every size even."""
    assert resolved(LLAMA_8B, "0.18.0", max_num_seqs=32).cudagraph_capture_sizes == (1, 2, 4, 8, 16, 24, 32)
    mtp = {"method": "ngram", "num_speculative_tokens": 1}
    full = {"cudagraph_mode": "FULL_DECODE_ONLY", "speculative_config": mtp, "max_num_seqs": 8}
    assert resolved(LLAMA_8B, "0.23.0", **full).cudagraph_capture_sizes == (2, 4, 8, 16)


def test_sizes_divide_over_ranks_that_cut_the_tokens() -> None:
    flags = {"tensor_parallel_size": 8, "env": FLASHCOMM}
    assert resolved(LLAMA_8B, "0.23.0", max_num_seqs=16, **flags).cudagraph_capture_sizes == (8, 16)
    with pytest.raises(EngineRefusalError) as refusal:
        resolved(LLAMA_8B, "0.23.0", max_num_seqs=4, **flags)
    assert refusal.value.code == "capture-sizes-below-ranks"


@pytest.mark.parametrize(
    ("version", "modes", "mixed"),
    [("0.11.0", (), False), ("0.13.0", ("FULL",), True), ("0.23.0", ("FULL",), True)],
)
def test_full_graphs_of_mixed_batches(version: str, modes: tuple[str, ...], mixed: bool) -> None:
    """0.11.0: "FULL cudagraph_mode is not support on NPU. falling back to NONE"."""
    one = resolved(LLAMA_8B, version, cudagraph_mode="FULL")
    assert (one.cudagraph_modes, one.captures_mixed_full) == (modes, mixed)
    assert bool(one.cudagraph_capture_sizes) == bool(modes)
    assert ("cudagraph-mode-not-kept" in {notice.code for notice in one.notices}) == (not modes)


def test_v0_captures_nothing() -> None:
    assert resolved(LLAMA_8B, "0.7.3").cudagraph_capture_sizes == ()


def test_piecewise_graphs_next_to_full_ones_may_come_on_top() -> None:
    flags = {"engine": "vllm-ascend", "accelerator": ASCEND, "max_num_seqs": 256, "engine_version": "0.23.0"}
    both, full = (setting_for(**flags, cudagraph_mode=mode) for mode in (None, "FULL_DECODE_ONLY"))
    assert graph_count(both) == graph_count(full) == 35
    once = 35 * 32 * captured_graphs(full).bytes_per_graph_and_layer
    assert (captured_graphs(both).perhaps, captured_graphs(full).perhaps) == (int(once), 0)


def test_a_mixture_keeps_what_published_starts_print() -> None:
    """Issue 4807: Qwen3-30B-A3B with TP 2 on 0.11.0, 11 sizes: 0.26 GiB. Pull request 2125: 39 sizes, 0.45 GiB."""
    flags = {"engine": "vllm-ascend", "accelerator": ASCEND, "enable_expert_parallel": True}
    two = setting_for(QWEN3_30B_A3B, **flags, engine_version="0.11.0", tensor_parallel_size=2)
    alone = setting_for(QWEN3_30B_A3B, **flags, engine_version="0.10.0")
    assert [graph_count(setting) for setting in (two, alone)] == [11, 39]
    for setting, gib in ((two, 0.26), (alone, 0.45)):
        least, most = cuda_graph_bytes(setting).bounds
        assert least <= gib * 2**30 <= most


def test_the_first_and_the_last_size_are_kept() -> None:
    """indices = round(i × 9 / 3): 0, 3, 6, 9."""
    sizes = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56)
    assert sampled_sizes(sizes, 4) == (1, 8, 32, 56)
    assert sampled_sizes(sizes, 12) == sizes
    with pytest.raises(EngineRefusalError) as refusal:
        sampled_sizes(sizes, 1)
    assert refusal.value.code == "capture-streams-too-few"


@pytest.mark.parametrize(
    ("version", "env", "most"),
    [
        ("0.16.0rc1", {}, (1800 - 40) // 63 // 3),
        ("0.17.0rc1", {}, 1800 // 63 // 2),
        ("0.18.0", {}, 1800 // 63 // 2),
        ("0.18.0", {"HCCL_OP_EXPANSION_MODE": "HOST"}, (1800 - 40) // 63 // 3),
    ],
)
def test_minimax_m2_is_put_on_the_vector_cores(version: str, env: dict[str, str], most: int) -> None:
    """62 layers and one more. vllm_ascend/patch/platform/patch_minimax_m2_config.py (0.17.0rc1, 0.18.0)."""
    config = dict(catalogue.find_model("MiniMaxAI/MiniMax-M2.5").config.raw)
    # In 16 bits: 0.16 does not take the model's FP8 checkpoint.
    config.pop("quantization_config")
    one = resolved(config, version, tensor_parallel_size=4, env=env)
    assert len(one.cudagraph_capture_sizes) == most
