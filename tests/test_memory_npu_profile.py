"""What the profile run of vllm-ascend takes: printed peaks, and the arithmetic of each mechanism."""

from typing import Any

import pytest

from kvcore import catalogue
from kvcore.base.units import gib
from kvcore.engine.protocol import Setting
from kvcore.engines.vllm_ascend.engine import AscendEngine
from kvcore.engines.vllm_ascend.profile import kept_stream_bytes, mask_taken, routed_bytes
from kvcore.memory.activations import ACTIVATIONS, body_bytes, peak_activation_bytes
from kvcore.memory.after_pool import expands_segments
from kvcore.memory.encoder_profile import profiled_bytes
from kvcore.memory.framework import budget_kind
from kvcore.memory.graphs import counts_estimate, cuda_graph_bytes
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request
from tests.engine_examples import LLAMA_8B, QWEN3_30B_A3B, setting_for
from tests.test_memory_communicators import A2, A3, DUO

FLASH = dict(catalogue.find_model("deepseek-ai/DeepSeek-V4-Flash").config.raw)
V4 = {key: value for key, value in FLASH.items() if key != "quantization_config"}
"""In 16 bits."""
INT8 = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"group_0": {
    "targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
    "input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}}}}  # fmt: skip
FLASHCOMM = {"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"}


def ascend(config: dict[str, Any] = LLAMA_8B, **fields: Any) -> Setting:
    return setting_for(
        config, **{"engine": "vllm-ascend", "engine_version": "0.23.0", "accelerator": A3, **fields}
    )


@pytest.mark.parametrize(
    ("ranks", "replicas", "tokens", "printed_gib"),
    [(1, 16, 23_552, 4.74), (4, 4, 39_936, 3.38), (2, 8, 45_056, 7.27)],
)
def test_printed_peaks_of_deepseek_v4(ranks: int, replicas: int, tokens: int, printed_gib: float) -> None:
    """DeepSeek-V4-Flash on 16 dies of 910C, 0.23.0rc1: github.com/pajaysi/vllm-ascend-hbm-planner."""
    setting = streamed(tokens, ranks, replicas)
    assert gib(peak_activation_bytes(setting).value) == pytest.approx(printed_gib, rel=0.011)


def streamed(tokens: int, ranks: int, replicas: int, **fields: Any) -> Setting:
    """DeepSeek-V4-Flash in W8A8 with its draft: 4 streams of 4,096, 6 of 256 experts."""
    asked = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}, "env": FLASHCOMM, **fields}
    return ascend(
        {**V4, "quantization_config": INT8}, tensor_parallel_size=ranks, data_parallel_size=replicas,
        enable_expert_parallel=True, max_num_batched_tokens=tokens, max_num_seqs=64, max_model_len=32768, **asked,
    )  # fmt: skip


VECTOR = 4096 * 2
ROUTER = 256 * 4
RETURNED = 6 * 3
"""Vectors of a token's experts: as they are made, in the senders' order, and back."""


@pytest.mark.parametrize(
    ("draft", "vectors", "gathered"),
    [
        # Streams, their normed copy, both inputs of the layer, its residual, two embeddings, what attention and experts
        # get, that in float32; and the answer of the model for the whole batch.
        ({"enforce_eager": True}, 4 + 4 + 4 + 4 + 2 + 1 + 1 + 2, 1),
        # The head that joins the streams: them and what is left of the layer, twice in float32; gathered for the draft.
        ({"enforce_eager": False}, 4 + 4 + 8 + 8 + 2 - RETURNED, 4),
    ],
)
def test_a_draft_runs_as_it_is_written_where_it_is_told_to(
    draft: dict[str, bool], vectors: int, gathered: int
) -> None:
    tokens, ranks = 45_056, 2
    own = tokens // ranks
    setting = streamed(
        tokens, ranks, 8, speculative_config={"method": "mtp", "num_speculative_tokens": 1, **draft}
    )
    wanted = own * (vectors + RETURNED) * VECTOR + tokens * gathered * VECTOR
    logits = own * ROUTER if draft["enforce_eager"] else 0
    peak = peak_activation_bytes(setting)
    assert peak.value == wanted + logits
    assert peak.interval is not None
    assert peak.value - peak.interval[0] == pytest.approx(0.05 * peak.value)


def test_a_draft_that_nobody_speaks_of_may_be_compiled() -> None:
    spoken, silent = (
        peak_activation_bytes(
            streamed(45_056, 2, 8, speculative_config={"method": "mtp", "num_speculative_tokens": 1, **said})
        )
        for said in ({"enforce_eager": True}, {})
    )
    assert silent.value == spoken.value
    assert silent.interval is not None
    assert spoken.interval is not None
    assert silent.interval[1] == spoken.interval[1]
    compiled = 45_056 // 2 * 26 * VECTOR + 45_056 * 4 * VECTOR
    assert spoken.interval[0] - silent.interval[0] == pytest.approx(spoken.value - compiled, rel=1e-3)


def test_one_rank_has_nothing_to_cut_so_that_its_draft_is_compiled() -> None:
    peak = peak_activation_bytes(streamed(23_552, 1, 16))
    assert peak.value == 23_552 * ((4 + 1 + 2 + 1 + RETURNED) * VECTOR + ROUTER)


def test_layers_as_they_are_written_keep_what_their_callers_hold() -> None:
    """What the layer got and what the one before it got, 4 streams each, and what attention got."""
    alone = {"speculative_config": None, "enforce_eager": True, "env": {}}
    peak = peak_activation_bytes(streamed(23_552, 1, 16, **alone))
    assert peak.value == 23_552 * ((4 + 1 + 2 + 4 + 4 + 1 + RETURNED) * VECTOR + ROUTER)


def test_rows_of_experts_by_hand() -> None:
    """Qwen3-30B-A3B: 8 of 128 experts of 768, hidden size 2048, 16 bits; 4,096 tokens."""
    fields: dict[str, Any] = {
        "max_num_batched_tokens": 4096,
        "data_parallel_size": 4,
        "enable_expert_parallel": True,
    }
    row = (2 * 2048 + 3 * 768) * 2
    assert routed_bytes(AscendEngine().rank(ascend(QWEN3_30B_A3B, **fields))) == 4096 * 8 * 4 * 2048 * 2
    narrow = {**QWEN3_30B_A3B, "quantization_config": INT8}
    assert routed_bytes(AscendEngine().rank(ascend(narrow, **fields))) == 4096 * 8 * 3 * 2048 * 2
    gathered = 4 * 4096 * (8 * row + 2048 * 2)
    assert routed_bytes(AscendEngine().rank(ascend(QWEN3_30B_A3B, accelerator=A2, **fields))) == gathered
    cut = ascend(QWEN3_30B_A3B, max_num_batched_tokens=4096, tensor_parallel_size=4)
    assert routed_bytes(AscendEngine().rank(cut)) == 4096 * 8 * (2 * 2048 + 3 * 768 // 4) * 2
    assert routed_bytes(AscendEngine().rank(ascend())) == 0


def test_streams_that_are_kept_for_a_draft() -> None:
    assert kept_stream_bytes(45_056, 4, 4096, 2) == 45_056 * 4 * 4096 * 2
    assert kept_stream_bytes(45_056, 1, 4096, 2) == 0


def test_latent_attention_does_not_run() -> None:
    latent = dict(catalogue.find_model("deepseek-ai/DeepSeek-V2-Lite").config.raw)
    tokens, hidden, shared = 8192, 2048, 2 * 1408
    setting = ascend(latent, max_num_batched_tokens=tokens, max_model_len=8192)
    assert body_bytes(setting) == tokens * 3 * (hidden + shared) * 2


@pytest.mark.parametrize(
    ("version", "budget", "counts", "share", "expands"),
    [
        ("0.7.3", "parts", False, 1, False),
        ("0.9.1", "absolute", False, 1, False),
        ("0.13.0", "absolute", False, 1, False),
        ("0.14.0", "absolute", False, 1, True),
        ("0.18.0", "absolute", False, 2, True),
        ("0.21.0", "absolute", True, 2, True),
        ("0.23.0", "absolute", False, 2, True),
    ],
)
def test_what_releases_take_off(version: str, budget: str, counts: bool, share: int, expands: bool) -> None:
    """vllm_ascend/worker/worker.py, _310p/worker_310p.py, platform.py of 0.7.3 to 0.23.0."""
    setting = ascend(engine_version=version, accelerator=DUO, dtype="float16")
    assert (budget_kind(setting), counts_estimate(setting)) == (budget, counts)
    assert (setting.engine.pool_share(setting), expands_segments(setting)) == (share, expands)
    usual = ascend(engine_version=version)
    assert usual.engine.pool_share(usual) == 1


@pytest.mark.parametrize(
    ("version", "budget"),
    [("0.8.5rc1", "parts"), ("0.9.0rc1", "absolute"), ("0.17.0rc1", "absolute"), ("0.18.0rc1", "parts")],
)
def test_which_releases_take_off_the_whole_device(version: str, budget: str) -> None:
    """vllm_ascend/worker/worker_v1.py, worker.py:determine_available_memory of each."""
    assert budget_kind(ascend(engine_version=version)) == budget


@pytest.mark.parametrize(
    ("version", "estimates"),
    [("0.20.2rc1", False), ("0.21.0rc1", True), ("0.22.1rc1", True), ("0.23.0rc1.dev40", True),
     ("0.23.0rc1", False), ("0.23.0", False), ("0.25.1rc1", False), ("0.30.0rc2", False)],
)  # fmt: skip
def test_which_releases_estimate_their_graphs(version: str, estimates: bool) -> None:
    """vllm-ascend pull request 9865, taken back by 11562 before 0.23.0rc1."""
    setting = ascend(engine_version=version, enforce_eager=False)
    assert setting.engine.estimates_graphs(setting) is estimates


def test_what_others_hold_of_a_310p_is_taken_off_twice() -> None:
    """vllm-ascend issue 14004: 0.09 GiB with half of a card that another program holds 19 GB of."""
    found = plan(scenario_from_request({
        "model": "Qwen/Qwen3-0.6B", "engine": "vllm-ascend", "engine_version": "0.22.1rc1", "dtype": "float16",
        "accelerator": {"memory_gib": 43.24, "vendor": "huawei", "name": "Ascend 310P3"},
        "max_num_seqs": 1, "max_model_len": 4096, "gpu_memory_utilization": 0.5,
        "surroundings": {"taken_gib": 18.86},
    }))  # fmt: skip
    assert found.available_kv_bytes is not None
    assert gib(found.available_kv_bytes) == pytest.approx(0.09, abs=0.25)
    assert found.verdict in ("no-kv-memory", "context-too-long", "tight")


@pytest.mark.parametrize(
    ("version", "card", "length", "gib_of_mask"),
    [
        ("0.18.0", DUO, 16_384, 1.5),
        ("0.18.0", DUO, 32_768, 6.0),
        ("0.14.0rc1", DUO, 32_768, None),
        ("0.22.1rc1", DUO, 32_768, 6.0),
        ("0.23.0", DUO, 32_768, None),
        ("0.18.0", A2, 32_768, None),
    ],
)
def test_a_310p_makes_a_mask_of_all_pairs(
    version: str, card: Any, length: int, gib_of_mask: float | None
) -> None:
    """float16, its copy in NZ format and the one that is cast: 6 bytes a pair. _310p/attention/attention_mask.py."""
    setting = ascend(engine_version=version, accelerator=card, dtype="float16", max_model_len=length)
    mask = mask_taken(AscendEngine().facts.masks, setting)
    assert (None if mask is None else gib(mask.value)) == gib_of_mask


def test_what_a_variable_says_of_segments_wins() -> None:
    asked = {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:False"}
    assert not expands_segments(ascend(env=asked))
    assert expands_segments(
        ascend(engine_version="0.13.0", env={"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"})
    )


@pytest.mark.parametrize(("ranks", "replicas", "printed_gib"), [(1, 16, 1.28), (2, 8, 1.97), (4, 4, 1.80)])
def test_printed_graphs_of_deepseek_v4(ranks: int, replicas: int, printed_gib: float) -> None:
    setting = ascend(
        V4, tensor_parallel_size=ranks, data_parallel_size=replicas, enable_expert_parallel=True, max_num_seqs=64,
        speculative_config={"method": "mtp", "num_speculative_tokens": 1}, max_model_len=32768,
    )  # fmt: skip
    graphs = cuda_graph_bytes(setting)
    assert graphs.interval is not None
    assert graphs.interval[0] <= printed_gib * 2**30 <= graphs.interval[1]


def test_graphs_of_deepseek_v4_are_never_estimated() -> None:
    assert not counts_estimate(ascend(V4, engine_version="0.21.0", tensor_parallel_size=8))


def test_before_0_16_a_hybrid_model_s_pool_is_allotted_twice() -> None:
    """vllm-ascend issue 5137: Qwen3-Next with TP 4 on 910B, 0.12.0rc1, dies with utilization 0.85, starts with 0.7."""
    asked = {
        "model": "Qwen/Qwen3-Next-80B-A3B-Instruct", "engine": "vllm-ascend", "accelerator": A2,
        "tensor_parallel_size": 4, "max_model_len": 4096, "cudagraph_mode": "FULL_DECODE_ONLY",
    }  # fmt: skip
    verdicts = {
        (version, share): plan(
            scenario_from_request({**asked, "engine_version": version, "gpu_memory_utilization": share})
        ).verdict.value
        for version in ("0.12.0rc1", "0.16.0rc1")
        for share in (0.85, 0.7)
    }
    assert verdicts == {
        ("0.12.0rc1", 0.85): "tight",
        ("0.12.0rc1", 0.7): "fits",
        ("0.16.0rc1", 0.85): "fits",
        ("0.16.0rc1", 0.7): "fits",
    }


@pytest.mark.parametrize(
    ("version", "config", "quantization", "lost_gib"),
    [
        ("0.7.3", QWEN3_30B_A3B, "ascend", 19.0),
        ("0.8.5rc1", QWEN3_30B_A3B, "ascend", 0.0),
        ("0.7.3", QWEN3_30B_A3B, None, 0.0),
        ("0.7.3", LLAMA_8B, "ascend", 0.0),
    ],
)
def test_what_mixtures_lost_while_mindie_turbo_loaded_them(
    version: str, config: dict[str, Any], quantization: str | None, lost_gib: float
) -> None:
    setting = ascend(config, engine_version=version, quantization=quantization)
    below, above = setting.engine.unsized_bytes(setting)
    assert gib(below - above) == lost_gib


@pytest.mark.parametrize(
    ("version", "embeds"),
    [
        ("0.7.3", True),
        ("0.8.5rc1", True),
        ("0.9.1", False),
        ("0.11.0", False),
        ("0.12.0rc1", False),
        ("0.13.0", True),
        ("0.23.0", True),
    ],
)
def test_which_releases_embed_images_in_the_profile_run(version: str, embeds: bool) -> None:
    """vllm_ascend/worker/model_runner_v1.py:profile_run of each: a comment or nothing from 0.9.1 to 0.12.0rc1."""
    images = dict(catalogue.find_model("Qwen/Qwen2.5-VL-7B-Instruct").config.raw)
    own = ACTIVATIONS.load()
    setting = ascend(images, engine_version=version, max_num_batched_tokens=8192, max_model_len=8192)
    peak, kept = profiled_bytes(setting, own.encoder, own.audio)
    assert (peak > 0, kept > 0) == (embeds, embeds)
