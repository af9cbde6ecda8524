"""The fold as a whole: worked examples, laws, and results that are not errors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvcore.advice.fixes import fixes
from kvcore.base.errors import EngineRefusalError, KvPlannerError
from kvcore.base.quantity import Grade
from kvcore.base.units import GIB
from kvcore.cache.capacity import CachePlan, plan_cache
from kvcore.engines.registry import find_engine
from kvcore.planning import Plan, Tightness, Verdict, judged, leaves_none, plan
from kvcore.planning.numbers import numbers
from kvcore.wire.request import scenario_from_request

PARTS = ("system", "framework", "weights", "activations", "cuda_graphs", "kv_cache", "unused")


def planned(**request: Any) -> Plan:
    return plan(scenario_from_request(request))


@pytest.fixture
def rule_of_thumb() -> dict[str, Any]:
    """Qwen3-32B on 8 RTX 4090 as yorickbao counts it (CC BY 4.0): 64 GiB of weights, 5 GiB fixed a card."""
    return {
        "model": "Qwen/Qwen3-32B",
        "accelerator": {"memory_gib": 24.0, "vendor": "nvidia", "name": "RTX 4090 24GB"},
        "tensor_parallel_size": 8,
        "gpu_memory_utilization": 0.75,
        "max_model_len": 8192,
        "dtype": "float16",
        "measured": {
            "weights_gib": 8.0,
            "non_torch_gib": 5.0,
            "peak_activation_gib": 0.0,
            "cuda_graph_gib": 0.0,
        },
    }


@pytest.mark.parametrize("version", ["0.19.0", "0.32.0", "0.33.0"])
def test_the_rule_of_thumb_gives_the_article_s_numbers(rule_of_thumb: dict[str, Any], version: str) -> None:
    got = planned(**rule_of_thumb, engine_version=version)
    assert got.cache is not None
    assert got.available_kv_bytes == 5 * GIB
    assert got.cache.bytes_per_token * 8 == 262_144
    assert (got.cache.tokens, got.cache.max_concurrency) == (163_840, 20.0)


def test_what_the_person_gives_is_graded_measured(rule_of_thumb: dict[str, Any]) -> None:
    memory = planned(**rule_of_thumb).memory
    assert memory is not None
    grades = {
        memory.weights.grade,
        memory.framework.grade,
        memory.activations.grade,
        memory.cuda_graphs.grade,
    }
    assert grades == {Grade.MEASURED}


def test_the_engine_s_own_answer_differs_from_the_rule_of_thumb(rule_of_thumb: dict[str, Any]) -> None:
    """65,524,246,528 bytes of checkpoint over 8 cards are 7.63 GiB, and 5 GiB a card of overhead is far too much."""
    own = planned(**{**rule_of_thumb, "accelerator": "RTX-4090-24GB", "measured": None})
    assert own.memory is not None
    assert own.memory.total.value == pytest.approx(23.52 * GIB, abs=1)
    assert own.memory.weights.value / GIB == pytest.approx(65_524_246_528 / 8 / GIB, rel=0.03)
    assert own.available_kv_bytes is not None
    assert own.available_kv_bytes > 7 * GIB


def test_llama_2_70b_keeps_an_eighth_of_what_the_hidden_size_formula_says() -> None:
    """The article's formula: 2 × 8192 × 80 layers × 2 bytes × 8192 tokens = 20 GiB; 8 of 64 heads keep K and V."""
    got = planned(
        model="meta-llama/Llama-2-70b-chat-hf",
        config={
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80,
            "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32000,
            "max_position_embeddings": 4096, "torch_dtype": "float16", "tie_word_embeddings": False,
        },
        accelerator="A100-80GB", tensor_parallel_size=4, max_model_len=8192, dtype="float16",
    )  # fmt: skip
    assert got.cache is not None
    per_request = got.cache.bytes_per_token * 8192
    assert (per_request / GIB, 4 * per_request / GIB) == (0.625, 2.5)
    assert "max-model-len-above-model" in {notice.code for notice in got.notices}
    assert got.verdict is Verdict.FITS


def test_kv_memory_given_is_planned_exactly() -> None:
    """Mixtral 8x7B, TP 4, 40 GiB: 81,920 blocks, 1,310,720 tokens, 40.0 requests, 23,353,368,576 bytes of weights.

    Source: vLLM 0.32.0's own planner, driven without a GPU.
    """
    got = planned(
        model="mistralai/Mixtral-8x7B-Instruct-v0.1",
        accelerator="H100-80GB",
        engine_version="0.32.0",
        tensor_parallel_size=4,
        measured={"available_kv_gib": 40.0},
    )
    assert got.cache is not None
    assert (got.cache.num_blocks, got.cache.tokens, got.cache.max_concurrency) == (81_920, 1_310_720, 40.0)
    assert got.parameter_bytes_per_rank == 23_353_368_576


def test_heads_that_do_not_divide_are_refused_in_the_engine_s_words() -> None:
    with pytest.raises(EngineRefusalError) as caught:
        planned(model="Qwen/Qwen3-32B", accelerator="H100-80GB", tensor_parallel_size=6)
    assert str(caught.value) == (
        "Total number of attention heads (64) must be divisible by tensor parallel size (6)."
    )


@pytest.mark.parametrize(
    ("request_", "verdict"),
    [
        ({"accelerator": "RTX-4090-24GB"}, Verdict.WEIGHTS_DO_NOT_FIT),
        ({"accelerator": "H100-80GB", "measured": {"peak_activation_gib": 30.0}}, Verdict.NO_KV_MEMORY),
        ({"accelerator": "H100-80GB", "max_model_len": 40960, "measured": {"available_kv_gib": 8.0}},
         Verdict.CONTEXT_TOO_LONG),
        ({"accelerator": "H100-80GB", "max_model_len": 2048}, Verdict.FITS),
        ({"accelerator": "H200-141GB"}, Verdict.FITS),
    ],
)  # fmt: skip
def test_not_fitting_is_a_result(request_: dict[str, Any], verdict: Verdict) -> None:
    assert planned(model="Qwen/Qwen3-32B", **request_).verdict is verdict


SHORT = {
    "model": "Qwen/Qwen3-32B",
    "accelerator": "H100-80GB",
    "engine_version": "0.32.0",
    "enforce_eager": True,
}


def test_a_refusal_is_only_said_where_the_hopeful_end_fails_too() -> None:
    """One request of 40,960 tokens takes 10 GiB: 2 × 64 layers × 8 heads × 128 × 2 bytes a token."""
    needed = 10 * GIB
    seen = set()
    for share in (0.86, 0.88, 0.89, 0.9, 0.905, 0.91, 0.916, 0.92, 0.93, 0.95):
        got = planned(**SHORT, gpu_memory_utilization=share, max_model_len=40_960, max_num_seqs=16)
        assert got.memory is not None
        low, high = got.memory.available_kv.bounds
        if high < needed:
            assert got.verdict is Verdict.CONTEXT_TOO_LONG
        elif low < needed:
            assert got.verdict is Verdict.TIGHT
            missing = got.memory.available_kv.value < needed
            assert (got.tight_by is Tightness.MISSING) is missing
        else:
            assert got.verdict is Verdict.FITS
        seen.add((got.verdict, got.tight_by))
    assert len(seen) == 4


def test_no_memory_is_only_said_where_the_hopeful_end_has_none() -> None:
    """Llama-3.1-70B in fp8 on 95 GiB, u 0.75, 0.23.0 : 0.30 GiB left, 976 of 16,384 tokens."""
    log = planned(
        model="meta-llama/Llama-3.3-70B-Instruct", accelerator={"memory_gib": 95.01, "name": "RTX PRO 6000 Blackwell"},
        engine_version="0.23.0", quantization="fp8", gpu_memory_utilization=0.75, max_model_len=16_384,
    )  # fmt: skip
    assert log.memory is not None
    low, high = log.memory.available_kv.bounds
    assert low < 0.30 * GIB < high + 0.01 * GIB
    assert log.verdict is Verdict.CONTEXT_TOO_LONG


def test_no_memory_is_said_where_the_figure_has_none_by_more_than_it_is_unsure_of() -> None:
    """Llama-3.3-70B in fp8 on one H100, image of 0.11.0: -1.44 GiB printed, "No available memory for the cache blocks".
    Had it filtered with FlashInfer, 3 GiB would be left, and the length would be too long."""
    log = planned(
        model="meta-llama/Llama-3.3-70B-Instruct", engine_version="0.11.0", quantization="fp8", max_model_len=16_000,
        accelerator={"memory_gib": 79.18, "vendor": "nvidia", "name": "H100 80GB"}, measured={"weights_gib": 67.72},
    )  # fmt: skip
    assert log.memory is not None
    assert log.memory.available_kv.value < -GIB < GIB < log.memory.available_kv.bounds[1]
    assert log.verdict is Verdict.NO_KV_MEMORY


@pytest.mark.parametrize(
    ("value", "least", "is_none"), [(-1, -3, False), (-2, -3, True), (-3, -3, True), (1, -9, False)]
)
def test_a_figure_leaves_none_where_its_lower_width_above_it_does(
    value: float, least: float, is_none: bool
) -> None:
    assert leaves_none(value, least) is is_none


def test_the_length_is_checked_before_the_state_blocks() -> None:
    """A 9B hybrid, 24 GiB, 0.27.1, 24,576 tokens, 256 sequences: at 0.90 its log has 0.80 GiB and names the length,
    at 0.94 it has 108 state blocks and names the sequences."""
    known = planned(
        model="Qwen/Qwen3.5-9B", accelerator={"memory_gib": 23.56, "vendor": "nvidia", "name": "RTX 3090"},
        engine_version="0.27.1", max_model_len=24_576, measured={"available_kv_gib": 8.0},
    )  # fmt: skip

    def pool(available: tuple[int, ...]) -> CachePlan:
        return plan_cache(known.specs, available, known.resolved, known.scenario.parallel)

    def verdict(size_gib: float) -> Verdict:
        cache = pool((int(size_gib * GIB),))
        return judged(known.resolved, cache, weights_fit=True, least=(), most=(), planned=pool)

    assert verdict(0.8) is Verdict.CONTEXT_TOO_LONG
    with pytest.raises(EngineRefusalError) as caught:
        verdict(1.75)
    assert caught.value.code == "state-blocks-too-few"
    assert verdict(8.0) is Verdict.FITS


@pytest.mark.parametrize(
    ("given", "blocks"),
    [
        ({"measured": {"available_kv_gib": 3.86}}, "161"),
        ({"kv_cache_memory_bytes": 4_144_643_440}, "161"),
        ({"measured": {"available_kv_gib": 3.86}, "max_num_seqs": 256, "engine_version": "0.20.0"}, "161"),
        ({"measured": {"available_kv_gib": 3.86}, "max_num_seqs": 161}, None),
        ({"measured": {"available_kv_gib": 3.86}, "engine_version": "0.19.1"}, None),
        ({"measured": {"available_kv_gib": 3.86}, "enforce_eager": True}, None),
        ({"measured": {"available_kv_gib": 3.86}, "accelerator": None}, None),
    ],
    ids=["measured", "flag", "stated", "as-many", "older", "eager", "no-card"],
)
def test_state_blocks_are_checked_in_a_given_kv_memory(given: dict[str, Any], blocks: str | None) -> None:
    """github.com/vllm-project/vllm/issues/49064: at 3.86 GiB of KV memory 161 blocks, and more sequences are refused;
    an older release captures fewer graphs, and how many sequences run is not known without a card."""
    asked = {
        "model": "Qwen/Qwen3.6-27B", "tensor_parallel_size": 2, "max_model_len": 122_633, "accelerator": "H100-80GB",
        "gpu_memory_utilization": 0.85, "engine_version": "0.25.1", **given,
    }  # fmt: skip
    if "kv_cache_memory_bytes" in given:
        with pytest.raises(EngineRefusalError) as caught:
            planned(**asked)
        assert (caught.value.code, caught.value.params["blocks"]) == ("state-blocks-too-few", blocks)
        return
    found = planned(**asked)
    told = {one.code: one.params["blocks"] for one in found.notices if one.code == "state-blocks-too-few"}
    assert found.cache is not None
    assert told == ({} if blocks is None else {"state-blocks-too-few": blocks})
    assert (found.verdict is Verdict.NO_KV_MEMORY) is (blocks is not None)
    if blocks is not None:
        assert found.cache.num_blocks == 161
        fixed = {fix.field: fix for fix in fixes(found, carries_measured=False)}
        assert fixed["max_num_seqs"].value <= 161


def test_the_stage_with_the_most_layers_decides_the_blocks() -> None:
    """64 layers as 40 and 24: 65,536 bytes a block and layer, of what the first stage has left."""
    asked = {"model": "Qwen/Qwen3-32B", "accelerator": "L40S-48GB", "pipeline_parallel_size": 2}
    even = planned(**asked)
    uneven = planned(**asked, env={"VLLM_PP_LAYER_PARTITION": "40,24"})
    assert even.cache is not None
    assert uneven.cache is not None
    assert [sum(spec.layers for spec in specs) for specs in uneven.specs] == [40, 24]
    assert [(group.layers, uneven.stage) for group in uneven.cache.groups] == [(40, 0)]
    assert uneven.cache.num_blocks == uneven.available_kv_bytes // (40 * 65_536)
    assert uneven.cache.num_blocks < even.cache.num_blocks
    assert numbers(uneven.scenario).pool.num_blocks == uneven.cache.num_blocks
    with pytest.raises(EngineRefusalError, match=r"len\(partitions\)=2 does not match pp_size=1"):
        numbers(scenario_from_request({**asked, "pipeline_parallel_size": 1, "env": uneven.scenario.env}))


@pytest.mark.parametrize("engine", ["vllm", "vllm-ascend", "vllm-mindspore"])
def test_the_verdict_without_a_card_is_that_of_the_assumed_one(engine: str) -> None:
    """And so are its fixes, on cards that the engine runs on."""
    asked = {"model": "meta-llama/Llama-3.1-70B-Instruct", "engine": engine, "max_model_len": 8192}
    opened = planned(**asked)
    assumed = planned(**asked, accelerator=opened.accelerator.id)
    assert find_engine(engine).runs_on(opened.accelerator)
    assert opened.verdict is assumed.verdict is Verdict.WEIGHTS_DO_NOT_FIT
    found = [(fix.field, fix.value, fix.verdict) for fix in fixes(opened)]
    assert found == [(fix.field, fix.value, fix.verdict) for fix in fixes(assumed)]
    assert found
    assert all(fix.scenario.accelerator is None for fix in fixes(opened) if fix.field != "accelerator")


def test_the_lengths_that_fit_without_a_card_are_those_of_the_assumed_one() -> None:
    fixed = {fix.field: fix for fix in fixes(planned(model="Qwen/Qwen3-32B", max_model_len=40_960))}
    assert fixed["max_model_len"].plan.verdict in (Verdict.FITS, Verdict.TIGHT)


def test_without_a_card_only_what_needs_none_is_answered() -> None:
    got = planned(model="Qwen/Qwen3-32B")
    assert (got.memory, got.cache, got.available_kv_bytes) == (None, None, None)
    assert got.weights.total > got.parameter_bytes_per_rank > 60 * GIB
    assert "accelerator-assumed" in {notice.code for notice in got.notices}
    assert (got.verdict, got.stage_kv) == (Verdict.CONTEXT_TOO_LONG, ())
    assert planned(model="Qwen/Qwen3-8B").verdict is Verdict.FITS
    with_kv = planned(model="Qwen/Qwen3-32B", measured={"available_kv_gib": 10.0})
    assert with_kv.cache is not None
    assert with_kv.memory is None


MODELS = ("Qwen/Qwen3-32B", "meta-llama/Llama-3.1-8B-Instruct", "mistralai/Mixtral-8x7B-Instruct-v0.1")
scenarios = st.fixed_dictionaries(
    {
        "model": st.sampled_from(MODELS),
        "accelerator": st.sampled_from(
            ["H100-80GB", "A100-40GB", "RTX-4090-24GB", "MI300X-192GB", "B200-180GB"]
        ),
        "tensor_parallel_size": st.sampled_from([1, 2, 4, 8]),
        "gpu_memory_utilization": st.integers(30, 98).map(lambda share: share / 100),
        "max_model_len": st.integers(16, 40_960),
        "kv_cache_dtype": st.sampled_from(["auto", "fp8"]),
        "engine_version": st.sampled_from(["0.33.0", "0.32.0", "0.28.0", "0.19.0", "0.11.0", "0.9.2"]),
        "max_num_seqs": st.none() | st.sampled_from([8, 64, 256, 1024]),
        "enforce_eager": st.booleans(),
    }
)


def attempt(request: dict[str, Any]) -> Plan | None:
    try:
        return planned(**request)
    except KvPlannerError:
        return None


@settings(max_examples=60, deadline=None)
@given(scenarios)
def test_the_parts_sum_to_the_total(request: dict[str, Any]) -> None:
    got = attempt(request)
    if got is None:
        return
    assert got.memory is not None
    assert sum(getattr(got.memory, part).value for part in PARTS) == pytest.approx(
        got.memory.total.value, abs=1
    )


@settings(max_examples=40, deadline=None)
@given(scenarios)
def test_a_longer_context_never_holds_more_requests(request: dict[str, Any]) -> None:
    short = attempt({**request, "max_model_len": request["max_model_len"] // 2 or 1})
    long = attempt(request)
    if short is None or long is None or long.cache is None or not long.cache.fits:
        return
    assert short.cache is not None
    assert short.cache.max_concurrency >= long.cache.max_concurrency


@settings(max_examples=40, deadline=None)
@given(scenarios)
def test_more_of_the_card_never_leaves_less_for_the_cache(request: dict[str, Any]) -> None:
    less, more = attempt(request), attempt({**request, "gpu_memory_utilization": 0.99})
    if less is None or more is None:
        return
    assert less.available_kv_bytes is not None
    assert more.available_kv_bytes is not None
    assert more.available_kv_bytes >= less.available_kv_bytes


@settings(max_examples=40, deadline=None)
@given(scenarios)
def test_more_ranks_never_more_weight_on_each(request: dict[str, Any]) -> None:
    one, two = (
        attempt(request),
        attempt({**request, "tensor_parallel_size": 2 * request["tensor_parallel_size"]}),
    )
    if one is None or two is None:
        return
    assert two.weights.total <= one.weights.total


def test_replacing_nothing_changes_nothing() -> None:
    scenario = scenario_from_request({"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB"})
    assert plan(replace(scenario)) == plan(scenario)


@pytest.mark.parametrize(
    ("name", "warned"),
    [
        ("x/Qwen3-8B-AWQ", True),
        ("x/qwen3-8b-gptq-int4", True),
        ("Qwen/Qwen3-8B", False),
        ("x/Bawqish-8B", False),
    ],
)
def test_a_name_that_promises_a_format_is_compared_with_the_config(name: str, warned: bool) -> None:
    config = dict(planned(model="Qwen/Qwen3-8B", accelerator="H100-80GB").scenario.config.raw)
    got = planned(model=name, config=config, accelerator="H100-80GB")
    assert ("quantization-not-in-config" in {notice.code for notice in got.notices}) is warned
