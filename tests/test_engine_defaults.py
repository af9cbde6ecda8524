"""Every flag as the engine resolves it: what vLLM's own code answers, worked cases by era, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.base.errors import EngineRefusalError
from kvcore.engines.registry import engine_of, view_of
from kvcore.model.families import read_architecture
from kvcore.wire.request import scenario_from_request
from tests.engine_examples import (
    A100,
    ASCEND,
    B200,
    GEMMA3_12B,
    L40S,
    LLAMA_8B,
    QWEN3_14B,
    QWEN3_30B_A3B,
    T4,
    resolved_of,
)

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "engine_defaults.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
][1:]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}-{row['accelerator']['name']}")
def test_flags_are_those_of_the_engines_own_code(row: dict[str, Any]) -> None:
    fields = (
        "model", "config", "hf_quant_config", "engine_version", "accelerator", "tensor_parallel_size",
        "kv_cache_dtype", "max_model_len",
    )  # fmt: skip
    scenario = scenario_from_request({name: row[name] for name in fields if name in row})
    assert scenario.accelerator is not None
    resolved = engine_of(scenario).resolve(
        scenario, read_architecture(scenario.config), view_of(scenario.accelerator)
    )
    assert {name: getattr(resolved, name) for name in row["expect"]} == row["expect"]
    if "expect_backend" in row and "gemma" not in row["model"]:
        assert resolved.attention_backend == row["expect_backend"]


@pytest.mark.parametrize(
    ("version", "accelerator", "tokens", "sequences"),
    [
        ("0.32.0", "H100-80GB", 8192, 1024),
        ("0.27.1", B200, 8192, 1024),
        ("0.28.0", B200, 16384, 1024),
        ("0.32.0", A100, 2048, 256),
        ("0.8.5", A100, 8192, 1024),
        ("0.9.2", A100, 2048, 256),
        ("0.32.0", L40S, 2048, 256),
        ("0.18.0", "GB10-128GB", 2048, 256),
        ("0.32.0", "GB10-128GB", 2048, 256),
        ("0.33.0", "GB10-128GB", 2048, 256),
    ],
)
def test_batches_follow_version_and_card(version: str, accelerator: Any, tokens: int, sequences: int) -> None:
    resolved = resolved_of(engine_version=version, accelerator=accelerator)
    assert (resolved.max_num_batched_tokens, resolved.max_num_seqs) == (tokens, sequences)


def test_the_default_batch_is_clipped_from_0_12_on() -> None:
    short = {"max_model_len": 32, "max_num_seqs": 4}
    assert resolved_of(engine_version="0.12.0", **short).max_num_batched_tokens == 128
    assert resolved_of(engine_version="0.11.2", **short).max_num_batched_tokens == 8192
    assert resolved_of(engine_version="0.12.0", max_num_batched_tokens=64).max_num_seqs == 64


def test_the_default_batch_holds_a_video_from_0_22_on() -> None:
    """32 frames of 70 + 2 + 6 tokens; E2B does not attend both ways, and what is asked for stays."""

    def tokens(model: str, version: str, **asked: int) -> int:
        request = {"model": model, "accelerator": "L40S-48GB", "engine_version": version, **asked}
        scenario = scenario_from_request(request)
        assert scenario.accelerator is not None
        return (
            engine_of(scenario)
            .resolve(scenario, read_architecture(scenario.config), view_of(scenario.accelerator))
            .max_num_batched_tokens
        )

    assert (tokens("google/gemma-4-31B-it", "0.21.0"), tokens("google/gemma-4-31B-it", "0.22.1")) == (
        2048,
        2496,
    )
    assert tokens("google/gemma-4-E2B-it", "0.22.1") == 2048
    assert tokens("google/gemma-4-31B-it", "0.22.1", max_num_batched_tokens=2048) == 2048


@pytest.mark.parametrize(
    ("fields", "is_v0", "tokens", "sequences"),
    [
        ({"engine_version": "0.7.3", "max_model_len": 8192}, True, 8192, 256),
        ({"engine_version": "0.7.3", "max_model_len": 65536}, True, 2048, 256),
        ({"engine_version": "0.8.5", "max_model_len": 8192}, False, 8192, 1024),
        ({"engine_version": "0.8.5", "max_model_len": 8192, "env": {"VLLM_USE_V1": "0"}}, True, 8192, 256),
        ({"engine_version": "0.11.0", "max_model_len": 8192, "env": {"VLLM_USE_V1": "0"}}, False, 8192, 1024),
        ({"engine_version": "0.8.5", "max_model_len": 1024, "accelerator": T4}, True, 2048, 256),
    ],
)
def test_v0_runs_before_0_8_where_it_is_asked_for_and_on_old_cards(
    fields: dict[str, Any], is_v0: bool, tokens: int, sequences: int
) -> None:
    resolved = resolved_of(**fields)
    assert resolved.is_v0 is is_v0
    assert (resolved.max_num_batched_tokens, resolved.max_num_seqs) == (tokens, sequences)


@pytest.mark.parametrize(
    ("accelerator", "version", "tokens"),
    [("A100-80GB", "0.8.5", 2048), ("MI300X-192GB", "0.8.5", 65536), ("MI300X-192GB", "0.7.3", 2048)],
)
def test_v0_cuts_long_prompts_by_itself_on_cuda_alone_since_0_8(
    accelerator: str, version: str, tokens: int
) -> None:
    """What is not cut is profiled whole: 65,536 tokens at once."""
    fields = {"engine_version": version, "max_model_len": 65536, "env": {"VLLM_USE_V1": "0"}}
    assert resolved_of(accelerator=accelerator, **fields).max_num_batched_tokens == tokens


def test_v0_takes_5120_tokens_of_a_multimodal_batch() -> None:
    resolved = resolved_of(GEMMA3_12B, engine_version="0.8.2", max_model_len=3072, env={"VLLM_USE_V1": "0"})
    assert resolved.max_num_batched_tokens == 5120


@pytest.mark.parametrize(
    ("version", "config", "env", "uses_v2", "batches"),
    [
        ("0.13.0", QWEN3_14B, {}, False, 1),
        ("0.14.1", QWEN3_14B, {}, False, 2),
        ("0.22.1", QWEN3_14B, {}, True, 2),
        ("0.22.1", LLAMA_8B, {}, False, 2),
        ("0.23.0", LLAMA_8B, {}, True, 2),
        ("0.28.0", QWEN3_30B_A3B, {}, False, 2),
        ("0.29.0", QWEN3_30B_A3B, {}, True, 2),
        ("0.29.0", QWEN3_30B_A3B, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, False, 2),
    ],
)
def test_runner_and_batches_in_flight(
    version: str, config: dict[str, Any], env: dict[str, str], uses_v2: bool, batches: int
) -> None:
    resolved = resolved_of(config, engine_version=version, env=env)
    assert (resolved.use_v2_model_runner, resolved.max_concurrent_batches) == (uses_v2, batches)


def test_pipelines_and_ngrams_change_the_batches_in_flight() -> None:
    ngram = {"method": "ngram", "num_speculative_tokens": 2}
    assert resolved_of(engine_version="0.32.0", pipeline_parallel_size=4).max_concurrent_batches == 5
    assert resolved_of(engine_version="0.19.0", pipeline_parallel_size=4).max_concurrent_batches == 4
    assert resolved_of(engine_version="0.32.0", speculative_config=ngram).max_concurrent_batches == 1


def test_dtype_falls_back_on_old_cards_and_is_refused_when_asked_for() -> None:
    resolved = resolved_of(accelerator=T4, max_model_len=1024)
    assert resolved.dtype == resolved.kv_cache_dtype == "float16"
    assert "dtype-falls-back" in [notice.code for notice in resolved.notices]
    with pytest.raises(
        EngineRefusalError, match=r"^Bfloat16 is only supported on GPUs with compute capability"
    ):
        resolved_of(accelerator=T4, dtype="bfloat16")
    assert resolved_of(dtype="half").dtype == "float16"


@pytest.mark.parametrize(
    ("accelerator", "version", "is_refused"),
    [("H100-80GB", "0.11.0", False), (A100, "0.11.0", True), (A100, "0.19.0", False), (T4, "0.32.0", True),
     (ASCEND, "0.13.0", True)],
)  # fmt: skip
def test_fp8_keys_need_a_card_that_has_them(accelerator: Any, version: str, is_refused: bool) -> None:
    engine = "vllm-ascend" if accelerator is ASCEND else "vllm"
    fields = {
        "kv_cache_dtype": "fp8",
        "accelerator": accelerator,
        "engine_version": version,
        "engine": engine,
    }
    if is_refused:
        with pytest.raises(EngineRefusalError) as caught:
            resolved_of(max_model_len=1024, **fields)
        assert (caught.value.code, caught.value.field) == ("fp8-kv-unsupported", "kv_cache_dtype")
    else:
        assert resolved_of(**fields).kv_cache_dtype == "fp8_e4m3"


def test_a_16_bit_cache_of_another_dtype_than_the_models() -> None:
    """Source: vllm/config/vllm.py:VllmConfig._reject_mismatched_float_kv_cache (0.32.0 without, 0.33.0 with)."""
    asked = {"accelerator": "H100-80GB", "kv_cache_dtype": "float16"}
    assert resolved_of(**asked, engine_version="0.32.0").kv_cache_dtype == "float16"
    assert resolved_of(**asked, engine_version="0.33.0", dtype="half").kv_cache_dtype == "float16"
    with pytest.raises(EngineRefusalError) as caught:
        resolved_of(**asked, engine_version="0.33.0")
    assert (caught.value.code, caught.value.field) == ("kv-cache-dtype-not-the-models", "kv_cache_dtype")


def test_a_batch_below_the_sequences_or_the_length_is_refused_in_the_engines_words() -> None:
    with pytest.raises(EngineRefusalError) as caught:
        resolved_of(max_num_batched_tokens=128, max_num_seqs=256)
    assert (
        str(caught.value)
        == "max_num_batched_tokens (128) must be greater than or equal to max_num_seqs (256)."
    )
    with pytest.raises(
        EngineRefusalError, match=r"^max_num_batched_tokens \(4096\) is smaller than max_model_len"
    ):
        resolved_of(max_num_batched_tokens=4096, max_model_len=8192, enable_chunked_prefill=False)
    whole = resolved_of(max_model_len=65536, enable_chunked_prefill=False)
    assert whole.max_num_batched_tokens == 65536


def test_lengths_above_the_models_own_are_planned_with_a_notice() -> None:
    resolved = resolved_of(QWEN3_14B, max_model_len=131072)
    assert (resolved.max_model_len, resolved.derived_max_model_len) == (131072, 40960)
    assert [notice.code for notice in resolved.notices] == ["max-model-len-above-model"]
    auto = resolved_of(QWEN3_14B, max_model_len=-1)
    assert (auto.max_model_len, auto.max_model_len_auto) == (40960, True)


@pytest.mark.parametrize(
    ("engine", "accelerator", "other"),
    [
        ("vllm", ASCEND, "vllm-ascend"),
        ("vllm-ascend", "H100-80GB", "vllm"),
        ("vllm-mindspore", "H100-80GB", "vllm"),
        ("vllm-ascend", ASCEND, None),
        ("vllm-mindspore", ASCEND, None),
        ("vllm", "MI300X-192GB", None),
        (None, ASCEND, None),
    ],
)
def test_an_engine_that_does_not_run_on_the_card_is_told(engine: Any, accelerator: Any, other: Any) -> None:
    resolved = resolved_of(engine=engine, accelerator=accelerator)
    told = {notice.code: notice.params for notice in resolved.notices}
    assert told.get("engine-not-on-card", {}).get("other") == other


def test_a_missing_card_is_an_h100_with_a_notice() -> None:
    resolved = resolved_of(accelerator=None)
    assert (resolved.max_num_batched_tokens, resolved.max_num_seqs) == (8192, 1024)
    assert [notice.code for notice in resolved.notices] == ["accelerator-assumed"]


def test_eager_starts_capture_nothing() -> None:
    assert resolved_of(enforce_eager=True).cudagraph_capture_sizes == ()
    assert resolved_of(enforce_eager=True).cudagraph_modes == ()


def test_ascend_blocks_hold_128_tokens() -> None:
    resolved = resolved_of(engine="vllm-ascend", accelerator=ASCEND)
    assert (resolved.block_size, resolved.attention_backend) == (128, "ASCEND")
    assert (resolved.max_num_batched_tokens, resolved.max_num_seqs) == (2048, 256)


@given(
    version=st.sampled_from(["0.6.6", "0.8.5", "0.10.2", "0.12.0", "0.19.0", "0.28.0", "0.33.0"]),
    tokens=st.integers(1, 1 << 20),
    sequences=st.integers(1, 1 << 16),
)
def test_what_is_asked_for_is_kept_or_refused(version: str, tokens: int, sequences: int) -> None:
    fields = {"engine_version": version, "max_num_batched_tokens": tokens, "max_num_seqs": sequences}
    try:
        resolved = resolved_of(max_model_len=1024, enable_chunked_prefill=True, **fields)
    except EngineRefusalError:
        assert tokens < sequences
        return
    assert (resolved.max_num_batched_tokens, resolved.max_num_seqs) == (tokens, sequences)
    # V0 captures the first of 1, 2, 4, 8, 16, 24, ... that all sequences fit into.
    most = max(tokens, -(-sequences // 8) * 8 if version == "0.6.6" else sequences)
    assert all(size <= most for size in resolved.cudagraph_capture_sizes)


@pytest.mark.parametrize(
    ("version", "length", "asked", "tokens"),
    [
        ("0.7.2", 131_072, 32_768, 32_768),  # as a start of 0.7.2 that vllm-project/vllm issue 18681 shows
        ("0.7.3", 65_536, None, 2048),
        ("0.7.3", 16_384, None, 16_384),
        ("0.8.5", 65_536, None, 65_536),
    ],
)
def test_v0_left_prefills_of_latent_attention_whole_after_it_had_made_the_batch(
    version: str, length: int, asked: int | None, tokens: int
) -> None:
    request = {"model": "deepseek-ai/DeepSeek-V3", "accelerator": "H200-141GB", "tensor_parallel_size": 8}
    request |= {"engine_version": version, "max_model_len": length, "env": {"VLLM_USE_V1": "0"}}
    scenario = scenario_from_request(request | ({"max_num_batched_tokens": asked} if asked else {}))
    assert scenario.accelerator is not None
    found = engine_of(scenario).resolve(
        scenario, read_architecture(scenario.config), view_of(scenario.accelerator)
    )
    assert (found.max_num_batched_tokens, found.enable_chunked_prefill) == (tokens, False)
