"""Untrusted requests: every wrong field gets its code and field, in bounded time."""

import json
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore import catalogue
from kvcore.base.errors import KvPlannerError
from kvcore.base.units import GIB
from kvcore.planning import plan
from kvcore.scenario import Host, Installation, Link
from kvcore.wire.request import parse_request, scenario_from_request

QWEN3_32B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25600,
    "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 40960, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def request(**fields: Any) -> dict[str, Any]:
    return {"model": "Qwen3-32B", "config": QWEN3_32B, "accelerator": {"memory_gib": 79.19, "vendor": "nvidia",
            "name": "NVIDIA H100 80GB HBM3"}, **fields}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tensor_parallel_size", 0),
        ("tensor_parallel_size", "4"),
        ("tensor_parallel_size", 2.5),
        ("tensor_parallel_size", True),
        ("tensor_parallel_size", 10**30),
        ("gpu_memory_utilization", -0.1),
        ("gpu_memory_utilization", 1.5),
        ("gpu_memory_utilization", "0.9"),
        ("max_model_len", 0),
        ("max_model_len", -7),
        ("max_model_len", "long"),
        ("dtype", "bf17"),
        ("kv_cache_dtype", "fp4"),
        ("engine", "tgi"),
        ("runner", "embed"),
        ("mamba_cache_mode", "some"),
        ("mamba_cache_mode", "auto"),
        ("mamba_block_size", 0),
        ("max_cudagraph_capture_size", 1 << 31),
        ("mamba_cache_dtype", "fp8"),
        ("mamba_ssm_cache_dtype", True),
        ("runner", True),
        ("engine_version", 5),
        ("enforce_eager", "yes"),
        ("block_size", []),
        ("model", "a\nb"),
        ("config", [1]),
        ("accelerator", 80),
        ("env", [1]),
        ("limit_mm_per_prompt", {"image": "many"}),
        ("kv_cache_memory_bytes", -1),
    ],
)
def test_a_wrong_value_names_its_field(field: str, value: object) -> None:
    with pytest.raises(KvPlannerError) as caught:
        scenario_from_request(request(**{field: value}))
    assert caught.value.code == "invalid-value"
    assert caught.value.field == field
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"gpu_memory_utilisation": 0.9}, "unknown-field", "gpu_memory_utilisation"),
        ({"measured": {"weights": 3}}, "unknown-field", "measured.weights"),
        ({"measured": {"weights_gib": "3"}}, "invalid-value", "measured.weights_gib"),
        ({"measured": {"weights_gib": 3, "fitted": "weights_gib"}}, "invalid-value", "measured.fitted"),
        ({"measured": {"weights_gib": 3, "carried": ["system_gib"]}}, "invalid-value", "measured.carried"),
        ({"accelerator": {"memory_gib": None}}, "missing-field", "accelerator.memory_gib"),
        ({"accelerator": {"memory_gib": -1}}, "invalid-value", "accelerator.memory_gib"),
        ({"checkpoint": {"total_size": -1}}, "invalid-value", "checkpoint.total_size"),
        (
            {"checkpoint": {"sentence_transformers": 1}},
            "invalid-value",
            "checkpoint.sentence_transformers",
        ),
        ({"speculative_config": {}}, "missing-field", "speculative_config.method"),
        ({"env": {"A": [1]}}, "invalid-value", "env.A"),
    ],
)
def test_nested_fields_are_named_whole(fields: dict[str, Any], code: str, field: str) -> None:
    with pytest.raises(KvPlannerError) as caught:
        scenario_from_request(request(**fields))
    assert (caught.value.code, caught.value.field) == (code, field)


@pytest.mark.parametrize(("name", "kind"), [("link", Link), ("installation", Installation), ("host", Host)])
def test_an_unknown_surrounding_is_refused_with_the_list(name: str, kind: type[StrEnum]) -> None:
    with pytest.raises(KvPlannerError) as caught:
        scenario_from_request(request(surroundings={name: "<b>carrier pigeon</b>"}))
    assert (caught.value.code, caught.value.field) == ("invalid-value", f"surroundings.{name}")
    assert all(case.value in str(caught.value) for case in kind)


def test_a_request_needs_a_model() -> None:
    with pytest.raises(KvPlannerError) as caught:
        scenario_from_request({"accelerator": {"memory_gib": 24.0}})
    assert (caught.value.code, caught.value.field) == ("missing-field", "model")


@pytest.mark.parametrize(
    ("fields", "ships"),
    [
        ({}, True),
        ({"checkpoint": {"total_size": 10}}, True),
        ({"checkpoint": {"sentence_transformers": False}}, False),
        ({"config": {"model_type": "qwen3"}}, True),
        ({"config": {"model_type": "qwen3"}, "checkpoint": {"total_size": 10}}, True),
        ({"config": {"model_type": "qwen3"}, "model": "my/tune"}, None),
        ({"config": {"model_type": "qwen3"}, "model": None}, None),
        ({"model": "Qwen/Qwen3-8B"}, None),
    ],
)
def test_a_label_names_the_repository(fields: dict[str, Any], ships: bool | None) -> None:
    scenario = scenario_from_request({"model": "Qwen/Qwen3-Embedding-8B", **fields})
    assert scenario.checkpoint.sentence_transformers is ships
    assert scenario.checkpoint.total_size == fields.get("checkpoint", {}).get("total_size")


def test_null_takes_the_default() -> None:
    scenario = scenario_from_request(
        request(max_model_len=None, dtype=None, measured=None, tensor_parallel_size=None)
    )
    assert (scenario.max_model_len, scenario.dtype, scenario.parallel.tensor_parallel_size) == (
        None,
        "auto",
        1,
    )


@pytest.mark.parametrize("value", ["auto", -1])
def test_max_model_len_may_be_auto(value: object) -> None:
    assert scenario_from_request(request(max_model_len=value)).max_model_len == -1


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "invalid-json"),
        ("[]", "invalid-json"),
        ("{", "invalid-json"),
        ('{"max_model_len": 1' + "0" * 5000 + "}", "number-too-long"),
        ("[" * 10_000 + "]" * 10_000, "input-too-deep"),
        ('{"config": ' * 10_000 + "1" + "}" * 10_000, "input-too-deep"),
        ('{"model": "' + "x" * (10 << 20) + '"}', "input-too-large"),
    ],
)
def test_text_that_is_no_request(text: str, code: str) -> None:
    with pytest.raises(KvPlannerError) as caught:
        parse_request(text)
    assert caught.value.code == code


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_a_flag_is_a_finite_number(text: str) -> None:
    with pytest.raises(KvPlannerError) as caught:
        scenario_from_request(
            parse_request(f'{{"model": "Qwen/Qwen3-32B", "gpu_memory_utilization": {text}}}')
        )
    assert (caught.value.code, caught.value.field) == ("invalid-value", "gpu_memory_utilization")


def test_brackets_inside_strings_are_not_depth() -> None:
    assert parse_request(json.dumps({"model": "[" * 500}))["model"] == "[" * 500


@given(st.dictionaries(st.text(max_size=20), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10), max_size=5))  # fmt: skip
def test_any_request_is_a_scenario_or_a_coded_error(fields: dict[str, Any]) -> None:
    caught = None
    try:
        scenario_from_request(request(**fields))
    except KvPlannerError as error:
        caught = error
    assert caught is None or (caught.code and caught.next_step and str(caught).isprintable())


def test_a_modelopt_config_without_lists_is_completed_by_the_side_file_of_the_repository_it_names() -> None:
    """Nemotron-3 Super NVFP4 keeps most of its layers in FP8 or 16 bit, which only the lists of modules say.

    A published start (GB10, 0.19.2rc1.dev134, MTP) printed 75.03 GiB.
    """
    entry = catalogue.find_model("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4")
    short = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}
    request = {
        "config": {**entry.config.raw, "quantization_config": short},
        "engine_version": "0.19.1",
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 3},
    }
    named = plan(scenario_from_request({**request, "model": entry.id}))
    unnamed = plan(scenario_from_request({**request, "model": "a local path"}))
    assert named.weights.total / GIB == pytest.approx(75.03, rel=0.005)
    assert unnamed.weights.total < 0.95 * named.weights.total


@pytest.mark.parametrize(
    ("engine", "version"),
    [("vllm", "0.6.4"), ("vllm", "newest"), ("vllm-ascend", "0.0.1"), ("vllm", "0.6.4.post1")],
)
def test_no_scenario_has_an_unknown_release(engine: str, version: str) -> None:
    with pytest.raises(KvPlannerError) as refused:
        scenario_from_request({"model": "Qwen/Qwen3-8B", "engine": engine, "engine_version": version})
    assert refused.value.field == "engine_version"
