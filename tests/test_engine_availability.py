"""A release stops at flags that came after it; what became of the flags of older guides."""

from __future__ import annotations

from typing import Any

import pytest
from packaging.version import Version

from kvcore.base.errors import CatalogueError, EngineRefusalError
from kvcore.engine.records import MetricKind
from kvcore.engines.vllm.availability import (
    AVAILABILITY,
    BENCHMARK,
    FORMER_FLAGS,
    METRICS,
    exported_metrics,
    former_flag,
    load_generator,
)
from kvcore.engines.vllm.versions import vllm_releases
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request

LLAMA = {"model": "meta-llama/Llama-3.1-8B-Instruct", "accelerator": "H100-80GB"}
FORMER = {"flag": "--x", "seen": "0.6.6", "gone": "0.11.0", "source": "s"}


@pytest.mark.parametrize(
    ("field", "value", "before", "since"),
    [
        ("max_model_len", "auto", "0.13.0", "0.14.1"),
        ("kv_cache_dtype", "int8_per_token_head", "0.19.1", "0.20.2"),
        ("kv_cache_dtype", "int4_per_token_head", "0.24.0", "0.25.1"),
        ("mamba_cache_mode", "align", "0.14.1", "0.15.1"),
        ("mamba_block_size", 8192, "0.11.0", "0.11.1"),
        ("mamba_cache_dtype", "float32", "0.10.0", "0.10.1"),
        ("mamba_ssm_cache_dtype", "float32", "0.10.0", "0.10.1"),
        ("mamba_ssm_cache_dtype", "float16", "0.12.0", "0.13.0"),
        ("mamba_ssm_cache_dtype", "bfloat16", "0.21.0", "0.22.1"),
    ],
)
def test_a_value_of_a_later_release_is_refused(field: str, value: Any, before: str, since: str) -> None:
    with pytest.raises(EngineRefusalError) as caught:
        plan(scenario_from_request({**LLAMA, field: value, "engine_version": before}))
    assert (caught.value.code, caught.value.field) == ("flag-not-in-release", field)
    plan(scenario_from_request({**LLAMA, field: value, "engine_version": since}))


def test_decode_context_parallel_came_with_0_10_2() -> None:
    request = {**LLAMA, "model": "deepseek-ai/DeepSeek-V3", "accelerator": "H200-141GB", "tensor_parallel_size": 8,
               "decode_context_parallel_size": 8}  # fmt: skip
    with pytest.raises(EngineRefusalError):
        plan(scenario_from_request({**request, "engine_version": "0.9.2"}))
    plan(scenario_from_request({**request, "engine_version": "0.11.0"}))


@pytest.mark.parametrize(
    ("model", "version", "code"),
    [
        ("deepseek-ai/DeepSeek-V2-Lite", "0.11.0", "flag-not-in-release"),
        ("deepseek-ai/DeepSeek-V2-Lite", "0.25.1", "prefill-context-unsupported"),
        ("deepseek-ai/DeepSeek-V2-Lite", "0.26.0", ""),
        ("Qwen/Qwen3-8B", "0.33.0", "prefill-context-unsupported"),
    ],
)
def test_prefill_context_parallelism_is_for_latent_attention_from_0_26_on(
    model: str, version: str, code: str
) -> None:
    request = {**LLAMA, "model": model, "engine_version": version, "prefill_context_parallel_size": 2}
    if not code:
        plan(scenario_from_request(request))
        return
    with pytest.raises(EngineRefusalError) as caught:
        plan(scenario_from_request(request))
    assert caught.value.code == code


def test_ranks_of_a_prompt_have_whole_layers_and_a_part_of_the_experts() -> None:
    """DeepSeek-V2-Lite: 26 layers of 64 experts, three matrices of 2048 × 1408 in 16 bits."""
    request = {**LLAMA, "model": "deepseek-ai/DeepSeek-V2-Lite", "enable_expert_parallel": True}
    alone = plan(scenario_from_request(request))
    two = plan(scenario_from_request({**request, "prefill_context_parallel_size": 2}))
    assert two.scenario.parallel.ranks == 2
    saved = 26 * (32 * 3 * 2048 * 1408 * 2 - 64 * 4)  # less a map of 64 experts a layer
    assert alone.loaded_weights.value - two.loaded_weights.value == saved


def test_mode_all_went_with_0_32_0() -> None:
    request = {**LLAMA, "mamba_cache_mode": "all"}
    plan(scenario_from_request({**request, "engine_version": "0.31.0"}))
    with pytest.raises(EngineRefusalError) as caught:
        plan(scenario_from_request({**request, "engine_version": "0.32.0"}))
    assert (caught.value.code, caught.value.field) == ("flag-gone-from-release", "mamba_cache_mode")


def test_another_shape_of_the_table_is_refused() -> None:
    row = {"field": "cudagraph_mode", "value": "", "since": "0.19.0", "source": "b"}
    whole = {"reviewed": "0.33.0", "value": [row, row | {"is_gone": True}]}
    assert [known.is_gone for known in AVAILABILITY.read(whole).value] == [False, True]
    for rows in ([row | {"until": 1}], [{"field": "cudagraph_mode"}], [row | {"field": "a"}]):
        with pytest.raises(CatalogueError):
            AVAILABILITY.read(whole | {"value": rows})
    with pytest.raises(CatalogueError):
        AVAILABILITY.read(whole | {"values": [row]})


def test_swap_space_is_in_0_11_and_not_in_0_19() -> None:
    former = former_flag("--swap-space")
    assert former is not None
    assert (former.seen, former.gone) == (Version("0.11.0"), Version("0.19.0"))


def test_a_flag_that_never_was() -> None:
    former = former_flag("--speculative-mode")
    assert former is not None
    assert former.seen is None
    assert former.replaced_by == "--speculative-config"


def test_a_flag_that_is_still_there() -> None:
    assert former_flag("--max-model-len") is None


def test_none_is_gone_before_it_was_seen() -> None:
    assert all(former.seen is None or former.seen < former.gone for former in FORMER_FLAGS.load().flags)


@pytest.mark.parametrize(
    "row",
    [FORMER | {"more": 1}, FORMER | {"seen": "x"}, FORMER | {"seen": "0.12.0"}, {}, 1],
)
def test_any_other_shape_of_a_former_flag_is_refused(row: object) -> None:
    assert FORMER_FLAGS.read({"reviewed": "0.33.0", "flags": [FORMER]}).flags[0].flag == "--x"
    with pytest.raises(CatalogueError):
        FORMER_FLAGS.read({"reviewed": "0.33.0", "flags": [row]})


ROLES = {"running", "waiting", "kv_cache_usage", "preemptions", "request_latency", "first_token", "output_token",
         "prompt_tokens", "generation_tokens"}  # fmt: skip
ROW = {"role": "running", "name": "vllm:n", "kind": "gauge", "source": "s"}


@pytest.mark.parametrize(
    ("version", "is_v0", "role", "name"),
    [
        # vllm/v1/metrics/loggers.py (0.33.0), lines 620, 739, 961, 941
        ("0.33.0", False, "kv_cache_usage", "vllm:kv_cache_usage_perc"),
        ("0.33.0", False, "preemptions", "vllm:num_preemptions_total"),
        ("0.33.0", False, "request_latency", "vllm:e2e_request_latency_seconds"),
        ("0.33.0", False, "output_token", "vllm:inter_token_latency_seconds"),
        # its comment of 0.11.0: renamed in 0.9.2; the V0 engine never renamed it
        ("0.9.2", False, "kv_cache_usage", "vllm:kv_cache_usage_perc"),
        ("0.9.1", False, "kv_cache_usage", "vllm:gpu_cache_usage_perc"),
        ("0.10.2", True, "kv_cache_usage", "vllm:gpu_cache_usage_perc"),
        ("0.8.5", True, "output_token", "vllm:time_per_output_token_seconds"),
    ],
)
def test_names(version: str, is_v0: bool, role: str, name: str) -> None:
    assert exported_metrics(Version(version), is_v0)[role].name == name


def test_prefix_cache_counters_came_with_the_new_names() -> None:
    assert "prefix_cache_hits" not in exported_metrics(Version("0.9.1"), False)
    assert (
        exported_metrics(Version("0.11.0"), False)["prefix_cache_hits"].name == "vllm:prefix_cache_hits_total"
    )


def test_every_release_can_be_watched() -> None:
    for version in vllm_releases():
        engines = (True, False) if version < Version("0.11.0") else (False,)
        for is_v0 in engines:
            assert set(exported_metrics(version, is_v0)) >= ROLES, (version, is_v0)


def test_series_of_a_histogram_have_its_suffixes() -> None:
    latency = exported_metrics(Version("0.33.0"), False)["request_latency"]
    assert latency.kind is MetricKind.HISTOGRAM
    assert latency.series == tuple(
        f"vllm:e2e_request_latency_seconds_{s}" for s in ("bucket", "sum", "count")
    )


def test_counters_end_in_total() -> None:
    assert all(m.name.endswith("_total") == (m.kind is MetricKind.COUNTER) for m in METRICS.load().metrics)


@pytest.mark.parametrize(
    "rows",
    [
        1, [{"role": 1}], [ROW | {"more": 1}], [ROW | {"kind": "summary"}], [ROW | {"since": "x"}],
        [ROW | {"engine": "v2"}], [ROW | {"role": "walking"}],
    ],
)  # fmt: skip
def test_any_other_shape_is_refused(rows: object) -> None:
    assert len(METRICS.read({"reviewed": "0.33.0", "metrics": [ROW]}).metrics) == 1
    with pytest.raises(CatalogueError) as caught:
        METRICS.read({"reviewed": "0.33.0", "metrics": rows})
    assert caught.value.code == "invalid-catalogue-entry"


PROGRAM = {"words": ["x"], "flags": ["y"], "source": "s"}


@pytest.mark.parametrize("version", ["0.11.0", "0.19.0", "0.28.0", "0.33.0"])
def test_the_command_line_has_it_from_0_11_on(version: str) -> None:
    assert load_generator(Version(version)).words == ("vllm", "bench", "serve")


def test_before_it_was_a_script_of_the_repository() -> None:
    assert load_generator(Version("0.8.5")).words == ("python", "benchmarks/benchmark_serving.py")


@pytest.mark.parametrize(
    "raw",
    [
        {"programs": [PROGRAM | {"more": 1}]}, {"programs": [PROGRAM | {"since": "x"}]}, {"programs": 1},
        {"programs": [{"source": "s"}]},
    ],
)  # fmt: skip
def test_any_other_program_is_refused(raw: dict[str, object]) -> None:
    assert BENCHMARK.read({"reviewed": "0.33.0", "programs": [PROGRAM]}).programs[0].words == ("x",)
    with pytest.raises(CatalogueError):
        BENCHMARK.read({"reviewed": "0.33.0", **raw})
