"""CUDA graphs: printed sizes, counts, and what is taken off the budget."""

from typing import Any

import pytest

from kvcore.base.quantity import Grade
from kvcore.base.units import GIB, MIB
from kvcore.memory.graphs import (
    attention_split_bytes,
    attention_workspace_bytes,
    counted_graph_bytes,
    counts_estimate,
    cuda_graph_bytes,
    graph_count,
    largest_batch_bytes,
)
from tests.engine_examples import (
    ASCEND,
    B200,
    GEMMA3_12B,
    L40S,
    LLAMA_8B,
    QWEN25_05B,
    QWEN25_7B,
    RTX_3090,
    setting_for,
)

A100_40GB = {"memory_gib": 39.5, "vendor": "nvidia", "name": "NVIDIA A100-PCIE-40GB"}
LLAMA_70B = {
    **LLAMA_8B, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
}  # fmt: skip
DEEPSEEK_V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 2048,
    "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2,
    "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_hidden_layers": 27,
    "num_attention_heads": 16, "num_key_value_heads": 16, "kv_lora_rank": 512, "q_lora_rank": None,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400,
    "max_position_embeddings": 163840, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
GEMMA_7B = {
    "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256,
    "vocab_size": 256000, "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip


PUBLISHED: list[tuple[dict[str, Any], dict[str, Any], float]] = [
    (LLAMA_8B, {"engine_version": "0.15.1", "accelerator": L40S, "max_num_seqs": 256}, 0.55),
    (
        LLAMA_8B,
        {"engine_version": "0.12.0", "accelerator": RTX_3090, "max_num_seqs": 64, "max_model_len": 31800},
        0.21,
    ),
    (
        LLAMA_8B,
        {"engine_version": "0.12.0", "accelerator": A100_40GB, "max_num_seqs": 64, "max_model_len": 31800},
        0.84,
    ),
    (QWEN25_05B, {"engine_version": "0.26.0", "accelerator": L40S, "max_num_seqs": 256}, 0.4),
    (QWEN25_7B, {"engine_version": "0.19.0"}, 0.87),
    (QWEN25_7B, {"engine_version": "0.19.0", "tensor_parallel_size": 2}, 0.71),
    (QWEN25_7B, {"engine_version": "0.19.0", "tensor_parallel_size": 4}, 0.64),
    (GEMMA_7B, {"engine_version": "0.19.0"}, 0.94),
    (GEMMA3_12B, {"engine_version": "0.19.0"}, 0.94),
    (LLAMA_70B, {"engine_version": "0.19.0", "tensor_parallel_size": 4}, 1.66),
    (DEEPSEEK_V2_LITE, {"engine_version": "0.19.0"}, 1.57),
]
"""vLLM's own "Graph capturing finished … took": on H100 the llm-d campaign with 1,024 sequences, else single logs."""


@pytest.mark.parametrize(("config", "fields", "printed_gib"), PUBLISHED)
def test_printed_sizes_are_met(config: dict[str, Any], fields: dict[str, Any], printed_gib: float) -> None:
    quantity = cuda_graph_bytes(setting_for(config, **{"max_num_seqs": 1024, **fields}))
    assert quantity.value / GIB == pytest.approx(printed_gib, rel=0.13)
    assert quantity.interval is not None
    assert quantity.interval[0] <= printed_gib * GIB <= quantity.interval[1]


def test_what_ranks_save_is_the_shared_part() -> None:
    """Qwen2.5-7B printed 0.87, 0.71 and 0.64 GiB on 1, 2 and 4 H100: the graphs are as many, heads and MLP are cut."""
    taken = [
        cuda_graph_bytes(
            setting_for(QWEN25_7B, engine_version="0.19.0", max_num_seqs=1024, tensor_parallel_size=ranks)
        ).value
        for ranks in (1, 2, 4)
    ]
    assert (taken[0] - taken[1]) / GIB == pytest.approx(0.16, abs=0.03)
    assert (taken[1] - taken[2]) / GIB == pytest.approx(0.07, abs=0.01)


def test_splits_of_flash_attention_3_by_hand() -> None:
    """32 splits × 512 tokens × 28 heads × 128 × 4 bytes; none piecewise, on other cards or with other kernels."""
    fields = {"engine_version": "0.19.0", "max_num_seqs": 1024}
    assert attention_split_bytes(setting_for(QWEN25_7B, **fields)) == 32 * 512 * 28 * 128 * 4
    assert (
        attention_split_bytes(setting_for(QWEN25_7B, **{**fields, "max_num_seqs": 16}))
        == 32 * 16 * 28 * 128 * 4
    )
    assert attention_split_bytes(setting_for(DEEPSEEK_V2_LITE, **fields)) == 32 * 512 * 16 * 512 * 4
    assert attention_split_bytes(setting_for(QWEN25_7B, engine_version="0.10.2")) == 0
    assert attention_split_bytes(setting_for(QWEN25_7B, accelerator=L40S, **fields)) == 0
    assert attention_split_bytes(setting_for(GEMMA3_12B, **fields)) == 0


def test_activations_of_the_largest_batch_by_hand() -> None:
    """512 tokens × (3 × 3584 + 3 × 18944 / 2) × 2 bytes."""
    setting = setting_for(QWEN25_7B, engine_version="0.19.0", max_num_seqs=1024, tensor_parallel_size=2)
    assert largest_batch_bytes(setting) == 512 * (3 * 3584 + 3 * 18944 // 2) * 2


def test_flashinfer_brings_its_workspace_with_the_graphs_before_blackwell() -> None:
    """RTX 3090 0.27.1, three sequences and fp8 keys: 0.45 GiB for five graphs. RTX 5090 0.26.1rc1: 0.05 for three."""
    fields = {
        "engine_version": "0.27.1",
        "kv_cache_dtype": "fp8_e4m3",
        "max_model_len": 8192,
        "max_num_seqs": 3,
    }
    ampere, blackwell = (
        cuda_graph_bytes(setting_for(QWEN25_7B, accelerator=card, **fields)).value
        for card in (RTX_3090, "RTX-5090-32GB")
    )
    assert ampere - blackwell == 394 * MIB


def test_full_graphs_stop_at_the_widest_decode_batch() -> None:
    """A log of 0.26.0 with 256 sequences: PIECEWISE 51, FULL 35."""
    assert graph_count(setting_for(engine_version="0.26.0", max_num_seqs=256)) == 51 + 35
    assert graph_count(setting_for(engine_version="0.19.0")) == 51 + 51
    assert graph_count(setting_for(engine_version="0.9.2")) == 67


def test_ascend_captures_decode_batches_alone() -> None:
    """Qwen3-0.6B on vllm-ascend 0.23 with 256 sequences: 35 sizes."""
    setting = setting_for(engine="vllm-ascend", engine_version="0.23.0", accelerator=ASCEND, max_num_seqs=256)
    assert graph_count(setting) == 35


def test_graphs_are_captured_with_adapters_and_without() -> None:
    """Qwen3-4B with LoRA on an RTX 4090, 0.27.1: PIECEWISE 102, FULL 70, whether for 1, 16 or 64 adapters."""
    fields = {"accelerator": L40S, "enable_lora": True, "max_num_seqs": 256}
    assert graph_count(setting_for(engine_version="0.27.1", max_loras=16, **fields)) == 102 + 70
    assert graph_count(setting_for(engine_version="0.11.0", **fields)) == 67 + 35


def test_eager_starts_have_no_graphs() -> None:
    setting = setting_for(engine_version="0.32.0", enforce_eager=True)
    graphs = cuda_graph_bytes(setting)
    assert (graphs.value, graphs.grade) == (0, Grade.EXACT)
    assert counted_graph_bytes(setting, graphs).value == 0


@pytest.mark.parametrize(
    ("version", "env", "is_counted"),
    [
        ("0.19.0", {}, False),
        ("0.19.0", {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "1"}, True),
        ("0.20.0", {}, True),
        ("0.20.0", {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"}, False),
        ("0.26.0", {"VLLM_USE_V2_MODEL_RUNNER": "1"}, False),
        ("0.29.0", {}, True),
    ],
)
def test_the_estimate_is_taken_off_from_0_20_on(version: str, env: dict[str, str], is_counted: bool) -> None:
    setting = setting_for(engine_version=version, env=env)
    assert (counted_graph_bytes(setting, cuda_graph_bytes(setting)).value > 0) is is_counted


@pytest.mark.parametrize(
    ("card", "estimated"),
    [
        ("MI300X-192GB", {"0.19.0": False, "0.20.0": False, "0.25.1": False, "0.26.0": True, "0.33.0": True}),
        ("H100-80GB", {"0.19.0": True, "0.20.0": True, "0.25.1": True, "0.26.0": True, "0.33.0": True}),
        ("Arc-Pro-B60-24GB", {"0.20.0": True, "0.21.0": False, "0.30.0": False, "0.31.0": True}),
    ],
)
def test_platforms_whose_graphs_are_estimated(card: str, estimated: dict[str, bool]) -> None:
    """gpu_worker.py: "not is_rocm()" to 0.20, "is_cuda()" to 0.25, "is_cuda_alike()" from 0.26, XPU from 0.31."""
    env = {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "1", "VLLM_USE_V2_MODEL_RUNNER": "0"}
    found = {
        version: counts_estimate(setting_for(engine_version=version, accelerator=card, env=env))
        for version in estimated
    }
    assert found == estimated


def test_the_flashinfer_workspace_is_part_of_the_estimate() -> None:
    """RTX 5090, 0.26.1rc1, one sequence and fp8 keys: 0.40 GiB estimated for two sizes."""
    setting = setting_for(
        LLAMA_8B, engine_version="0.26.0", accelerator="RTX-5090-32GB", kv_cache_dtype="fp8", max_num_seqs=1,
        max_model_len=8192, env={"VLLM_USE_V2_MODEL_RUNNER": "0"},
    )  # fmt: skip
    counted = counted_graph_bytes(setting, cuda_graph_bytes(setting)).value
    assert counted / GIB == pytest.approx(0.40, abs=0.02)


def test_pipeline_stages_capture_their_own_layers() -> None:
    whole = cuda_graph_bytes(setting_for(engine_version="0.23.0", accelerator=L40S))
    half = cuda_graph_bytes(setting_for(engine_version="0.23.0", accelerator=L40S, pipeline_parallel_size=2))
    shared = sum(part.value for part in whole.inputs[3:])
    assert half.value - shared == (whole.value - shared) // 2


@pytest.mark.parametrize(
    ("version", "card", "modes"),
    [
        (
            "0.24.0",
            "RTX-5090-32GB",
            ("PIECEWISE",),
        ),  # a start of Qwen3.6-27B-NVFP4 says so, and estimates 0.08 GiB
        ("0.28.0", "RTX-5090-32GB", ("PIECEWISE", "FULL")),
        ("0.24.0", B200, ("PIECEWISE", "FULL")),
        ("0.32.0", RTX_3090, ("PIECEWISE",)),
        ("0.33.0", RTX_3090, ("PIECEWISE", "FULL")),
    ],
)
def test_drafts_run_piecewise_where_flashinfer_decodes_one_token_a_request(
    version: str, card: object, modes: tuple[str, ...]
) -> None:
    setting = setting_for(
        LLAMA_8B, engine_version=version, accelerator=card, kv_cache_dtype="fp8", max_num_seqs=1, max_model_len=8192,
        speculative_config={"method": "ngram", "num_speculative_tokens": 3},
        env={"VLLM_USE_V2_MODEL_RUNNER": "0"},
    )  # fmt: skip
    assert setting.resolved.cudagraph_modes == modes
    if "FULL" not in modes:
        assert counted_graph_bytes(setting, cuda_graph_bytes(setting)).value < 0.1 * GIB


@pytest.mark.parametrize(
    ("version", "batch", "mib"), [("0.25.1", 16_384, 394), ("0.26.0", 16_384, 1024), ("0.26.0", 2048, 394)]
)
def test_the_flashinfer_workspace_grows_with_the_batch_from_0_26_on(
    version: str, batch: int, mib: int
) -> None:
    """32 heads of 128 elements, 16 bytes each: 16,384 tokens take 1 GiB."""
    setting = setting_for(
        LLAMA_8B, engine_version=version, accelerator=RTX_3090, max_num_batched_tokens=batch, max_model_len=8192,
        kv_cache_dtype="fp8",
    )  # fmt: skip
    assert attention_workspace_bytes(setting) == mib * MIB


TWO_CARDS = {
    "engine_version": "0.13.0",
    "accelerator": RTX_3090,
    "tensor_parallel_size": 2,
    "max_model_len": 4096,
}


def test_calls_of_nccl_are_kept_with_the_graphs_of_cards_without_p2p() -> None:
    """Two all-reduces a layer in each graph, by NCCL where vLLM's own is off."""
    linked = {
        link: setting_for(QWEN25_7B, surroundings={"link": link}, **TWO_CARDS)
        for link in ("pcie", "pcie-p2p", "nvlink")
    }
    slots, p2p, nvlink = (cuda_graph_bytes(setting) for setting in linked.values())
    calls = graph_count(linked["pcie"]) * 28 * 2
    assert p2p.value == nvlink.value == slots.value - int(calls * 95_000)
    assert slots.bounds[1] - slots.value >= calls * 150_000 > p2p.bounds[1] - p2p.value
    assert slots.bounds[0] <= p2p.value


def test_four_cards_with_p2p_may_have_calls_of_nccl() -> None:
    fields = TWO_CARDS | {"tensor_parallel_size": 4}
    of = {link: cuda_graph_bytes(setting_for(QWEN25_7B, surroundings={"link": link}, **fields))
          for link in ("pcie-p2p", "nvlink")}  # fmt: skip
    assert of["pcie-p2p"].value == of["nvlink"].value
    assert of["pcie-p2p"].bounds[1] > of["nvlink"].bounds[1]


def test_the_estimate_may_have_the_calls_of_nccl_or_not() -> None:
    fields = TWO_CARDS | {"engine_version": "0.24.0", "surroundings": {"link": "pcie"}}
    setting = setting_for(QWEN25_7B, **fields)
    actual = cuda_graph_bytes(setting)
    counted = counted_graph_bytes(setting, actual)
    assert counted.value < actual.value <= counted.bounds[1]


def test_graphs_of_rocm_are_several_times_larger() -> None:
    """Llama-3.1-8B on a Radeon AI PRO R9700, 64 sequences, prints 0.94 GiB on one build and 1.36 on another; Qwen3-4B
    on an MI355X as much as on CUDA."""
    card = {"memory_gib": 31.86, "vendor": "amd", "name": "Radeon AI PRO R9700"}
    fields = {"engine_version": "0.13.0", "accelerator": card, "max_num_seqs": 64, "max_model_len": 8192}
    graphs = cuda_graph_bytes(setting_for(LLAMA_8B, **fields))
    assert graphs.bounds[0] <= 0.94 * GIB <= graphs.bounds[1]
    on_cuda = cuda_graph_bytes(setting_for(LLAMA_8B, **fields | {"accelerator": RTX_3090}))
    assert 2.5 * on_cuda.value < graphs.value
    assert graphs.bounds[0] <= on_cuda.value
