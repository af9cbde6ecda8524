"""Laws of every answer: hypothesis looks for requests that break one."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcore import catalogue
from kvcore.base.errors import KvPlannerError
from kvcore.catalogue.accelerators import Vendor
from kvcore.contract.result import planned_result
from kvcore.planning import Plan, plan
from kvcore.wire.request import scenario_from_request

EXAMPLES = int(os.environ.get("LAW_EXAMPLES", "60"))
NPU = ("0.11.0", "0.13.0", "0.18.0", "0.23.0")
GPU = (
    "0.33.0", "0.32.0", "0.29.0", "0.27.1", "0.25.1", "0.23.0", "0.20.2", "0.19.0", "0.17.1", "0.13.0", "0.11.0",
    "0.9.2",
)  # fmt: skip
SPECULATIVE = (
    {"method": "ngram", "num_speculative_tokens": 4},
    {"method": "mtp", "num_speculative_tokens": 2},
    {"method": "draft_model", "model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 3},
)
MEASURED = {
    "available_kv_gib": 90.0, "weights_gib": 60.0, "peak_activation_gib": 8.0, "non_torch_gib": 5.0,
    "cuda_graph_gib": 5.0, "system_gib": 5.0,
}  # fmt: skip

measured = st.dictionaries(st.sampled_from(sorted(MEASURED)), st.integers(1, 1000), max_size=3).map(
    lambda parts: {name: round(MEASURED[name] * thousandths / 1000, 3) for name, thousandths in parts.items()}
)
laws = settings(
    max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)


def mostly_absent(*values: Any) -> st.SearchStrategy[Any]:
    return st.none() | st.none() | st.none() | st.sampled_from(values)


flags = st.fixed_dictionaries(
    {
        "tensor_parallel_size": st.sampled_from([1, 1, 2, 4, 8]),
        "max_model_len": st.none() | st.sampled_from(["auto", 2048, 8192, 16_384, 32_768, 65_536, 131_072]),
        "gpu_memory_utilization": st.none() | st.integers(20, 98).map(lambda percent: percent / 100),
        "kv_cache_dtype": mostly_absent("fp8"),
        "max_num_seqs": mostly_absent(8, 64, 256, 1024),
        "max_num_batched_tokens": mostly_absent(2048, 8192, 16_384),
        "enforce_eager": mostly_absent(True),
        "enable_prefix_caching": mostly_absent(True, False),
        "enable_expert_parallel": mostly_absent(True),
        "data_parallel_size": mostly_absent(2, 4),
        "pipeline_parallel_size": mostly_absent(2),
        "num_gpu_blocks_override": mostly_absent(1, 100, 5000, 20_000),
        "kv_cache_memory_bytes": mostly_absent(10**7, 10**9, 10**10),
        "block_size": mostly_absent(16, 64, 128),
        "speculative_config": mostly_absent(*SPECULATIVE),
        "enable_lora": mostly_absent(True),
        "quantization": mostly_absent("fp8", "ascend"),
        "kernels_compiled": mostly_absent(True),
        "measured": st.none() | measured,
    }
)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A request for a model on a card of the catalogue, or on none, with flags that are often left out."""
    card = draw(st.none() | st.sampled_from(catalogue.load_accelerators()))
    releases = NPU if card is not None and card.vendor is Vendor.HUAWEI else GPU
    asked = {
        "model": draw(st.sampled_from(catalogue.load_models())).id,
        "accelerator": None if card is None else card.id,
        "engine_version": draw(st.none() | st.sampled_from(releases)),
        **draw(flags),
    }
    return {name: value for name, value in asked.items() if value is not None}


def planned(request: dict[str, Any]) -> Plan | None:
    """None where the request is refused."""
    try:
        return plan(scenario_from_request(request))
    except KvPlannerError:
        return None


def result_of(request: dict[str, Any]) -> dict[str, Any]:
    found = planned(request)
    return {} if found is None else planned_result(found)


@laws
@given(request=requests())
def test_what_fits_holds_a_request(request: dict[str, Any]) -> None:
    got = result_of(request)
    held = got["kv"].get("max_concurrency") if got.get("verdict") == "fits" else None
    assert held is None or held >= 1


@laws
@given(request=requests())
def test_a_fix_holds_when_it_is_sent_back(request: dict[str, Any]) -> None:
    got = result_of(request)
    for fix in got.get("fixes", ()):
        assert result_of({**request, fix["field"]: fix["value"]}).get("verdict") == fix["verdict"], fix


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"model": "Qwen/Qwen3-32B", "accelerator": "A100-40GB", "measured": {"weights_gib": 42.8}}, None),
        (
            {"model": "meta-llama/Llama-3.1-8B-Instruct", "accelerator": "RTX-4090-24GB", "max_model_len": 65_536,
             "measured": {"available_kv_gib": 4.0}},
            "tensor_parallel_size",
        ),
    ],
    ids=["weights", "kv"],
)  # fmt: skip
def test_a_fix_keeps_measured_parts_as_they_are_sent(request_: dict[str, Any], field: str | None) -> None:
    """More ranks do not lower weights that are said to be measured on one, and double the tokens of its KV memory."""
    got = result_of(request_)
    found = {fix["field"] for fix in got["fixes"]}
    assert "gpu_memory_utilization" not in found
    assert "tensor_parallel_size" in found if field else not found & {"tensor_parallel_size", "quantization"}


@laws
@given(request=requests())
def test_an_fp8_cache_holds_no_fewer_tokens(request: dict[str, Any]) -> None:
    """Where the same kernels run. On NVIDIA cards but Hopper's the engine takes FlashInfer for it, with a workspace of
    its own, and releases before 0.11 the engine before V1."""
    asked = {name: value for name, value in request.items() if name != "kv_cache_dtype"}
    wide, narrow = planned(asked), planned({**asked, "kv_cache_dtype": "fp8"})
    if wide is None or narrow is None or wide.cache is None or wide.resolved.is_v0 != narrow.resolved.is_v0:
        return
    is_nvidia = wide.accelerator.vendor is Vendor.NVIDIA
    if is_nvidia and wide.resolved.attention_backend != narrow.resolved.attention_backend:
        return
    assert (narrow.cache.tokens if narrow.cache is not None else 0) >= wide.cache.tokens


@pytest.mark.parametrize(
    ("model", "accelerator", "engine_version"),
    [
        ("Qwen/Qwen2.5-1.5B", "Arc-B580-12GB", "0.20.2"),
        ("Qwen/Qwen3-8B", "MI300X-192GB", "0.32.0"),
        ("tiiuae/falcon-mamba-7b", "L40S-48GB", "0.32.0"),
    ],
    ids=["intel", "amd", "no-attention"],
)
def test_graphs_without_flashinfer_are_those_of_a_wide_cache(
    model: str, accelerator: str, engine_version: str
) -> None:
    asked = {"model": model, "accelerator": accelerator, "engine_version": engine_version, "max_num_seqs": 64}
    wide, narrow = planned(asked), planned({**asked, "kv_cache_dtype": "fp8"})
    assert wide is not None
    assert narrow is not None
    assert wide.memory is not None
    assert narrow.memory is not None
    assert narrow.memory.cuda_graphs.value == wide.memory.cuda_graphs.value
