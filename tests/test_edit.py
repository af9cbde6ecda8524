"""One control changes one field."""

import pytest

from kvcore import catalogue
from kvcore.base.errors import KvPlannerError
from kvcore.catalogue.models import Checkpoint
from kvcore.controls import offers
from kvcore.controls.additional import rest_of, with_rest
from kvcore.controls.edit import engine_followed, memory_override_gib, with_field, with_model
from kvcore.model.config import ModelConfig
from kvcore.planning import plan
from kvcore.scenario import Runner, value_of
from kvcore.wire.request import scenario_from_request

START = scenario_from_request(
    {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "tensor_parallel_size": 8, "max_model_len": 32768}
)


@pytest.mark.parametrize(
    ("field", "value", "read"),
    [
        ("tensor_parallel_size", 2, lambda s: s.parallel.tensor_parallel_size),
        ("enable_expert_parallel", True, lambda s: s.parallel.enable_expert_parallel),
        ("max_model_len", 1000, lambda s: s.max_model_len),
        ("measured.weights_gib", 8.0, lambda s: s.measured.weights_gib),
        ("accelerator", "A100-80GB", lambda s: s.accelerator.id),
        ("accelerator.memory_gib", 24.0, lambda s: s.accelerator.memory_gib),
        ("quantization", "fp8", lambda s: s.quantization),
        ("surroundings.link", "pcie", lambda s: s.surroundings.link),
        ("surroundings.driver", "580.159.03", lambda s: s.surroundings.driver),
        ("mm_processor_kwargs.max_pixels", 262144, lambda s: s.mm_processor_kwargs["max_pixels"]),
    ],
)
def test_one_field_takes_its_value(field, value, read) -> None:
    assert read(with_field(START, field, value)) == value


NO_DRIVERS = ("abc", "-5", "auto", "0", "１２３", "<img src=x>", "570.", "570.86\n", "7", "rc1", "CUDA 12.4")


@pytest.mark.parametrize("text", ["570", "570.86", "580.159.03", "ROCm 7.2", "6.4.1", "25.0.rc1", "25.2.0"])
def test_a_driver_is_a_version_of_any_vendor(text: str) -> None:
    assert with_field(START, "surroundings.driver", text).surroundings.driver == text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("surroundings.link", "infiniband"),
        ("surroundings.driver", "x" * 61),
        *(("surroundings.driver", text) for text in NO_DRIVERS),
        ("mm_processor_kwargs.fps", -1.0),
    ],
)
def test_a_field_of_an_object_that_cannot_be_is_refused(field: str, value: object) -> None:
    with pytest.raises(KvPlannerError) as refused:
        with_field(START, field, value)
    assert (refused.value.code, refused.value.field) == ("invalid-value", field)


def test_without_bounds_the_object_is_gone() -> None:
    bound = with_field(with_field(START, "mm_processor_kwargs.fps", 0.5), "mm_processor_kwargs.num_frames", 8)
    assert bound.mm_processor_kwargs == {"fps": 0.5, "num_frames": 8}
    assert (
        with_field(with_field(bound, "mm_processor_kwargs.fps", None), "mm_processor_kwargs.num_frames", None)
        == START
    )


def test_clearing_the_exact_memory_brings_the_cards_own_back() -> None:
    exact = with_field(START, "accelerator.memory_gib", 24.0)
    assert memory_override_gib(exact) == 24.0
    assert memory_override_gib(START) is None
    assert with_field(exact, "accelerator.memory_gib", None) == START


def test_another_card_drops_the_exact_memory() -> None:
    exact = with_field(START, "accelerator.memory_gib", 24.0)
    other = with_field(exact, "accelerator", "A100-80GB")
    assert memory_override_gib(other) is None


def test_the_engine_follows_the_card() -> None:
    exact = with_field(START, "engine_version", "0.19.0")
    ascend = with_field(exact, "accelerator", "Ascend-910B3-64GB")
    assert (ascend.engine, ascend.engine_version) == ("vllm-ascend", None)
    assert engine_followed(exact, ascend)
    assert with_field(ascend, "accelerator", "H100-80GB").engine == "vllm"


def test_an_engine_that_runs_on_both_cards_keeps_its_version() -> None:
    exact = with_field(START, "engine_version", "0.19.0")
    other = with_field(exact, "accelerator", "MI300X-192GB")
    assert (other.engine, other.engine_version) == ("vllm", "0.19.0")
    assert not engine_followed(exact, other)
    mindspore = with_field(with_field(START, "accelerator", "Ascend-910B3-64GB"), "engine", "vllm-mindspore")
    assert with_field(mindspore, "accelerator", "Ascend-910B4-32GB").engine == "vllm-mindspore"


def test_an_engine_chosen_against_the_card_is_kept() -> None:
    chosen = with_field(START, "engine", "vllm-ascend")
    assert chosen.engine == "vllm-ascend"
    assert not engine_followed(START, chosen)


@pytest.mark.parametrize("value", [0, -1, 1e9, "24", True])
def test_memory_that_cannot_be_is_refused(value) -> None:
    with pytest.raises(KvPlannerError) as caught:
        with_field(START, "accelerator.memory_gib", value)
    assert caught.value.field == "accelerator.memory_gib"


def test_size_and_length_follow_another_model() -> None:
    # GPT-2: 12 heads, 1,024 positions.
    config = ModelConfig.from_mapping(
        {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12,
         "n_positions": 1024, "n_ctx": 1024, "vocab_size": 50257}
    )  # fmt: skip
    adjusted = with_model(START, "config.json", config, Checkpoint())
    assert adjusted.scenario.parallel.tensor_parallel_size == 4
    assert adjusted.scenario.max_model_len == 1024
    assert adjusted.fields == ("tensor_parallel_size", "max_model_len")


def test_another_model_that_takes_everything_changes_nothing_else() -> None:
    entry = catalogue.find_model("Qwen/Qwen3-14B")
    adjusted = with_model(START, entry.id, entry.config, entry.checkpoint)
    assert adjusted.fields == ()
    assert adjusted.scenario.parallel == START.parallel


def test_another_model_leaves_the_runner_to_the_engine() -> None:
    entry = catalogue.find_model("Qwen/Qwen3-14B")
    pooling = with_field(START, "runner", Runner.POOLING)
    assert pooling.runner is Runner.POOLING
    assert with_model(pooling, entry.id, entry.config, entry.checkpoint).scenario.runner is Runner.AUTO


def test_another_model_leaves_recurrent_states_to_the_engine() -> None:
    entry = catalogue.find_model("Qwen/Qwen3-14B")
    flags = {"mamba_cache_mode": "align", "mamba_block_size": 4096, "mamba_cache_dtype": "float32",
             "mamba_ssm_cache_dtype": "float16"}  # fmt: skip
    hybrid = START
    for field, value in flags.items():
        hybrid = with_field(hybrid, field, value)
    other = with_model(hybrid, entry.id, entry.config, entry.checkpoint).scenario
    assert {field: getattr(other, field) for field in flags} == {
        field: getattr(START, field) for field in flags
    }


def test_only_sizes_that_the_engine_takes_are_offered() -> None:
    assert offers.tensor_parallel_sizes(START) == (1, 2, 4, 8, 16)


def test_a_refusal_of_another_field_takes_no_size_away() -> None:
    # On two cards Nemotron-H has fewer state blocks than sequences: the sequences are refused, not the size.
    request = {
        "model": "nvidia/Nemotron-H-56B-Base-8K",
        "accelerator": "H100-80GB",
        "tensor_parallel_size": 2,
    }
    scenario = scenario_from_request(request)
    with pytest.raises(KvPlannerError, match="Mamba cache blocks"):
        plan(scenario)
    assert offers.nearest_tensor_parallel_size(scenario) == 2
    assert offers.refusal(scenario, scenario.parallel.tensor_parallel_size) is None
    assert offers.tensor_parallel_sizes(scenario) == (1, 2, 4, 8, 16)


def test_lengths_include_the_models_limit_and_go_beyond_it() -> None:
    lengths = offers.context_lengths(40960, 8192)
    assert 40960 in lengths
    assert max(lengths) > 40960
    assert list(lengths) == sorted(set(lengths))


def test_a_maximum_of_graphs_replaces_a_list_of_sizes() -> None:
    listed = with_field(START, "cudagraph_capture_sizes", (1, 2, 4))
    changed = with_field(listed, "max_cudagraph_capture_size", 16)
    assert (changed.max_cudagraph_capture_size, changed.cudagraph_capture_sizes) == (16, None)


def test_another_engine_keeps_no_version_that_it_never_had() -> None:
    start = scenario_from_request(
        {"model": "Qwen/Qwen3-8B", "engine": "vllm-mindspore", "engine_version": "0.3.0"}
    )
    assert with_field(start, "engine", "vllm").engine_version is None
    later = scenario_from_request({"model": "Qwen/Qwen3-8B", "engine_version": "0.19.0"})
    assert with_field(later, "engine", "vllm").engine_version == "0.19.0"


def test_a_key_of_the_plug_in_is_set_and_taken_out_with_the_object_that_it_leaves_empty() -> None:
    redundant = "additional_config.eplb_config.num_redundant_experts"
    both = with_field(with_field(START, redundant, 16), "additional_config.enable_flashcomm1", False)
    assert both.additional_config == '{"eplb_config":{"num_redundant_experts":16},"enable_flashcomm1":false}'
    assert value_of(both, redundant) == 16
    assert value_of(both, "additional_config.eplb_config.dynamic_eplb") is None
    one = with_field(both, redundant, None)
    assert one.additional_config == '{"enable_flashcomm1":false}'
    assert with_field(one, "additional_config.enable_flashcomm1", None) == START


def test_the_rest_replaces_itself_alone() -> None:
    shown = ("additional_config.eplb_config.num_redundant_experts",)
    start = with_rest(
        START, (), '{"eplb_config":{"num_redundant_experts":16,"dynamic_eplb":true},"refresh":true}'
    )
    assert rest_of(start, shown) == '{"eplb_config": {"dynamic_eplb": true}, "refresh": true}'
    assert with_rest(start, shown, "").additional_config == '{"eplb_config":{"num_redundant_experts":16}}'
    assert with_rest(start, shown, rest_of(start, shown)) == start


@pytest.mark.parametrize(
    "text", ["[" * 100, "{" * 9000, "[1]", '{"dump_config": NaN}', '{"refresh": 1' + "0" * 50 + "}"]
)
def test_a_rest_that_is_no_plain_object_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(KvPlannerError) as refused:
        with_rest(START, (), text)
    assert refused.value.field.startswith("additional_config")
