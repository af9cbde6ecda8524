"""The link: complete, readable, and never an exception."""

import base64
import hashlib
import json
import string
import tracemalloc
import zlib
from urllib.parse import parse_qsl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvcore import catalogue
from kvcore.base.errors import MESSAGES, KvPlannerError
from kvcore.base.parts import MEASURED_FIELDS
from kvcore.base.untrusted import MAX_PACKED_CHARACTERS, MAX_UNPACKED_BYTES, pack, unpack
from kvcore.engines.registry import engine_names
from kvcore.flags import DRIVER_VERSION, FLAGS, LinkRule
from kvcore.model.config import ModelConfig
from kvcore.model.rope import Yarn
from kvcore.planning import plan
from kvcore.scenario import (
    CudagraphMode,
    Host,
    Installation,
    Link,
    Measured,
    Origin,
    Parallel,
    Runner,
    Scenario,
    SpeculativeConfig,
    Surroundings,
)
from kvcore.wire import link
from kvcore.wire.fields import read_object
from kvcore.wire.request import scenario_from_request

WORKED = (
    "model=Qwen/Qwen3-32B&accelerator=RTX-4090-24GB&tensor_parallel_size=8&gpu_memory_utilization=0.75"
    "&max_model_len=8192&dtype=float16"
)
START = scenario_from_request({"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB"})

gib = st.floats(0, 1000, allow_nan=False)
optional_gib = st.none() | gib
names = st.text(string.ascii_letters + string.digits + "._- ", min_size=1, max_size=20)


def counts(high: int) -> st.SearchStrategy[int]:
    return st.integers(1, high)


@st.composite
def measurements(draw: st.DrawFn) -> Measured:
    given = {part: draw(optional_gib) for part in MEASURED_FIELDS}
    measured = Measured(**given)
    for part in measured.values():
        measured = measured.with_origin((part,), draw(st.sampled_from(Origin)))
    return measured


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    return replace(
        START,
        accelerator=draw(st.sampled_from(catalogue.load_accelerators())),
        engine=draw(st.sampled_from(engine_names())),
        engine_version=draw(st.sampled_from((None, "0.33.0", "0.19.0"))),
        parallel=Parallel(
            tensor_parallel_size=draw(st.sampled_from((1, 2, 3, 4, 8, 1024))),
            pipeline_parallel_size=draw(st.sampled_from((1, 2))),
            data_parallel_size=draw(counts(8)),
            enable_expert_parallel=draw(st.booleans()),
            all2all_backend=draw(st.none() | st.sampled_from(FLAGS["all2all_backend"].choices)),
            num_redundant_experts=draw(st.integers(0, 4096)),
        ),
        runner=draw(st.sampled_from(Runner)),
        dtype=draw(st.sampled_from(FLAGS["dtype"].choices)),
        quantization=draw(st.sampled_from((None, "fp8"))),
        kv_cache_dtype=draw(st.sampled_from(FLAGS["kv_cache_dtype"].choices)),
        gpu_memory_utilization=draw(st.none() | st.floats(0.01, 1.0)),
        max_model_len=draw(st.sampled_from((None, -1)) | counts(1 << 20)),
        max_num_seqs=draw(st.none() | counts(4096)),
        wanted=draw(st.none() | counts(1_000_000)),
        max_num_batched_tokens=draw(st.none() | counts(1 << 20)),
        block_size=draw(st.none() | st.sampled_from((16, 32, 128))),
        enforce_eager=draw(st.booleans()),
        max_cudagraph_capture_size=draw(st.none() | counts(1 << 16)),
        cudagraph_capture_sizes=draw(
            st.none() | st.sets(counts(1 << 20), min_size=1, max_size=60).map(sorted).map(tuple)
        ),
        cudagraph_mode=draw(st.sampled_from((None, *CudagraphMode))),
        enable_prefix_caching=draw(st.none() | st.booleans()),
        enable_chunked_prefill=draw(st.none() | st.booleans()),
        mamba_cache_mode=draw(st.sampled_from((None, *FLAGS["mamba_cache_mode"].choices))),
        mamba_block_size=draw(st.none() | counts(1 << 20)),
        mamba_cache_dtype=draw(st.sampled_from(FLAGS["mamba_cache_dtype"].choices)),
        mamba_ssm_cache_dtype=draw(st.sampled_from(FLAGS["mamba_cache_dtype"].choices)),
        disable_hybrid_kv_cache_manager=draw(st.none() | st.booleans()),
        kernels_compiled=draw(st.booleans()),
        speculative_config=draw(
            st.none()
            | st.builds(
                SpeculativeConfig,
                method=st.sampled_from(("ngram", "eagle")),
                num_speculative_tokens=st.none() | counts(16),
                model=st.none() | names,
                draft_tensor_parallel_size=st.none() | counts(8),
                enforce_eager=st.none() | st.booleans(),
            )
        ),
        enable_lora=draw(st.booleans()),
        max_loras=draw(counts(64)),
        max_lora_rank=draw(counts(512)),
        fully_sharded_loras=draw(st.booleans()),
        language_model_only=draw(st.booleans()),
        limit_mm_per_prompt=draw(
            st.none()
            | st.dictionaries(
                st.sampled_from(("image", "video", "image.width", "video.num_frames")), counts(9), min_size=1
            )
        ),
        cpu_offload_gb=draw(gib),
        kv_transfer_config=draw(st.none() | st.builds(transfer_text, names, st.sampled_from(ROLES), counts(65535))),
        indexer_kv_dtype=draw(st.sampled_from(FLAGS["indexer_kv_dtype"].choices)),
        kv_offloading_size=draw(st.none() | gib),
        kv_offloading_backend=draw(st.sampled_from(FLAGS["kv_offloading_backend"].choices)),
        lmcache_version=draw(st.none() | st.sampled_from(["0.3.2", "0.5.6"])),
        enable_sleep_mode=draw(st.booleans()),
        node_memory_gib=draw(st.none() | gib),
        shm_gib=draw(st.none() | gib),
        link_gb_s=draw(st.none() | st.sampled_from([12.5, 50.0])),
        other_engines=draw(st.none() | st.sampled_from(["7.2 GiB", "Qwen/Qwen3-8B 0.3; this"])),
        additional_config=draw(st.none() | st.builds(additional_text, st.booleans(), counts(4096), names)),
        hf_overrides=draw(st.none() | st.builds(yarn_text, st.floats(1, 64), counts(1 << 20))),
        kv_cache_memory_bytes=draw(st.none() | counts(1 << 40)),
        num_gpu_blocks_override=draw(st.none() | counts(1 << 20)),
        env=draw(st.dictionaries(st.text(string.ascii_uppercase + "_", min_size=1, max_size=12), names, max_size=2)),
        disable_custom_all_reduce=draw(st.booleans()),
        fuse_allreduce_rms=draw(st.none() | st.booleans()),
        skip_mm_profiling=draw(st.booleans()),
        mm_encoder_tp_mode=draw(st.sampled_from(FLAGS["mm_encoder_tp_mode"].choices)),
        mm_processor_kwargs=draw(
            st.none()
            | st.fixed_dictionaries(
                {"max_pixels": counts(1 << 30)}, optional={"fps": st.floats(0, 100), "num_frames": counts(1000)}
            )
        ),
        surroundings=draw(
            st.builds(
                Surroundings,
                link=st.sampled_from((None, *Link)),
                installation=st.sampled_from((None, *Installation)),
                host=st.sampled_from((None, *Host)),
                driver=st.none() | st.from_regex(DRIVER_VERSION, fullmatch=True),
                taken_gib=optional_gib,
            )
        ),
        measured=draw(measurements()),
    )  # fmt: skip


ROLES = FLAGS["kv_transfer_config.kv_role"].choices


def transfer_text(connector: str, role: str, port: int) -> str | None:
    said = {"kv_connector": connector, "kv_role": role, "kv_connector_extra_config": {"ports": [port]}}
    return read_object(said, "kv_transfer_config")


def additional_text(is_on: bool, number: int, path: str) -> str | None:
    said = {
        "enable_flashcomm1": is_on,
        "eplb_config": {"num_redundant_experts": number, "expert_map_path": path},
    }
    return read_object(said, "additional_config")


def yarn_text(factor: float, original: int) -> str:
    return Yarn(factor=factor, original_max_position_embeddings=original).text


@settings(max_examples=150, deadline=None)
@given(scenarios())
def test_every_field_comes_back(scenario: Scenario) -> None:
    params = dict(parse_qsl(link.query_string(link.encode(scenario)), keep_blank_values=True))
    scenario_again = link.decode(params).scenario
    assert link.decode(params).repairs == ()
    assert scenario_again == scenario


def test_every_field_of_a_scenario_is_generated() -> None:
    generated = {
        "model", "config", "checkpoint", "accelerator", "engine", "engine_version", "parallel", "runner", "dtype",
        "quantization", "kv_cache_dtype", "gpu_memory_utilization", "max_model_len", "wanted", "max_num_seqs",
        "max_num_batched_tokens", "block_size", "enforce_eager", "max_cudagraph_capture_size",
        "cudagraph_capture_sizes", "cudagraph_mode", "enable_prefix_caching", "enable_chunked_prefill",
        "mamba_cache_mode", "mamba_block_size", "mamba_cache_dtype", "mamba_ssm_cache_dtype",
        "disable_hybrid_kv_cache_manager", "kernels_compiled", "speculative_config", "enable_lora", "max_loras",
        "max_lora_rank", "fully_sharded_loras", "limit_mm_per_prompt", "language_model_only", "cpu_offload_gb",
        "kv_cache_memory_bytes", "num_gpu_blocks_override", "env", "measured", "hf_overrides",
        "mm_processor_kwargs", "surroundings", "disable_custom_all_reduce", "fuse_allreduce_rms", "skip_mm_profiling",
        "mm_encoder_tp_mode", "additional_config", "kv_transfer_config", "kv_offloading_size",
        "kv_offloading_backend", "lmcache_version", "indexer_kv_dtype", "enable_sleep_mode", "node_memory_gib",
        "shm_gib", "other_engines", "link_gb_s", "server_args",
    }  # fmt: skip
    assert set(Scenario.__struct_fields__) == generated


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(link._KNOWN)) | st.text(max_size=12),
        st.text(max_size=30)
        | st.sampled_from(("nan", "1e999", "-1", "0", "9" * 400, "{", "[" * 200, "true")),
        max_size=6,
    )
)
def test_no_link_raises_and_errors_are_named(params: dict[str, str]) -> None:
    decoded = link.decode(params)
    for repair in decoded.repairs:
        assert repair.error.code in MESSAGES
        assert len(repair.given) <= 60
    again = link.decode(link.encode(decoded.scenario))
    assert again.scenario == decoded.scenario
    assert again.repairs == ()


@pytest.mark.parametrize("model", catalogue.model_ids())
def test_every_bundled_model_comes_back_by_its_id(model: str) -> None:
    scenario = scenario_from_request({"model": model, "accelerator": "H100-80GB"})
    params = link.encode(scenario)
    assert params["model"] == model
    assert "config" not in params
    assert link.decode(params).scenario.config == scenario.config


def test_every_bundled_accelerator_comes_back_by_its_id() -> None:
    for card in catalogue.load_accelerators():
        params = link.encode(replace(START, accelerator=card))
        assert params["accelerator"] == card.id
        assert link.decode(params).scenario.accelerator == card


def test_the_worked_example_is_read_as_people_write_it() -> None:
    decoded = link.decode(dict(parse_qsl(WORKED)))
    scenario = decoded.scenario
    assert decoded.repairs == ()
    assert scenario.accelerator is not None
    assert scenario.accelerator.id == "RTX-4090-24GB"
    assert (scenario.parallel.tensor_parallel_size, scenario.gpu_memory_utilization) == (8, 0.75)
    assert (scenario.max_model_len, scenario.dtype) == (8192, "float16")
    assert "&".join(f"{k}={v}" for k, v in parse_qsl(WORKED)) in WORKED


def test_a_link_reads_like_flags() -> None:
    scenario = link.decode(dict(parse_qsl(WORKED))).scenario
    assert link.query_string(link.encode(scenario)) == (
        "v=1&model=Qwen/Qwen3-32B&accelerator=RTX-4090-24GB&engine=vllm&tensor_parallel_size=8&dtype=float16"
        "&kv_cache_dtype=auto&gpu_memory_utilization=0.75&max_model_len=8192"
    )


def test_a_link_without_engine_takes_the_one_that_runs_on_the_card() -> None:
    card = {"model": "Qwen/Qwen3-32B", "accelerator": "Ascend-910B3-64GB"}
    assert link.decode(card).scenario.engine == "vllm-ascend"
    assert link.decode({**card, "engine": "vllm"}).scenario.engine == "vllm"
    assert link.decode({**card, "accelerator": "L40S-48GB"}).scenario.engine == "vllm"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"accelerator": "Ascend-910B3-64GB", "engine_version": "0.18.0"},
        {"accelerator": "Ascend-910B3-64GB", "engine": "vllm-mindspore"},
        {"env": {"VLLM_USE_V1": "0"}},
        {"engine_version": "0.11.0"},
        {"engine_version": "0.19.1rc1.dev5"},
        {"model": "Qwen/Qwen3-Embedding-8B"},
        {"gpu_memory_utilization": 0.8, "engine_version": "0.19.0"},
    ],
)
def test_a_link_with_defaults_written_out_gives_the_same_plan(fields: dict[str, object]) -> None:
    found = plan(scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", **fields}))
    params = link.encode(link.written_out(found))
    assert params["gpu_memory_utilization"] == f"{found.resolved.gpu_memory_utilization:g}"
    decoded = link.decode(params)
    assert decoded.repairs == ()
    assert decoded.scenario.engine_version is not None
    again = plan(decoded.scenario)
    assert replace(again.resolved, notices=()) == replace(found.resolved, notices=())
    assert again.cache is not None
    assert found.cache is not None
    cache = replace(again.cache, trace=found.cache.trace)
    assert (again.memory, cache, again.verdict) == (found.memory, found.cache, found.verdict)


def test_a_link_to_keep_leaves_a_release_unnamed_that_may_be_any_of_several() -> None:
    found = plan(scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "Ascend-910B3-64GB"}))
    again = plan(link.decode(link.encode(link.written_out(found))).scenario)
    assert again.scenario.engine_version is None
    assert (again.memory, again.verdict) == (found.memory, found.verdict)


def test_a_version_that_was_given_stays_as_it_was_given() -> None:
    asked = {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "engine_version": "0.19.1rc1.dev5"}
    assert link.written_out(plan(scenario_from_request(asked))).engine_version == "0.19.1rc1.dev5"


def test_parts_that_were_not_measured_are_marked_in_a_link() -> None:
    asked = {
        "weights_gib": 15.5,
        "peak_activation_gib": 1.9,
        "fitted": ["peak_activation_gib"],
        "carried": [],
    }
    scenario = scenario_from_request(
        {"model": "Qwen/Qwen3-32B", "accelerator": "L40S-48GB", "measured": asked}
    )
    params = link.encode(scenario)
    assert (params["measured.fitted"], "measured.carried" in params) == ("peak_activation_gib", False)
    assert link.decode(params).scenario.measured == scenario.measured
    del params["measured.fitted"]
    assert link.decode(params).scenario.measured.origin("peak_activation_gib") is Origin.MEASURED
    bad = link.decode(params | {"measured.fitted": "system_gib"})
    assert [repair.field for repair in bad.repairs] == ["measured.fitted"]


def test_overrides_and_exact_memory_travel() -> None:
    params = dict(parse_qsl(WORKED)) | {
        "accelerator.memory_gib": "24",
        "measured.weights_gib": "8",
        "measured.cuda_graph_gib": "0",
    }
    scenario = link.decode(params).scenario
    assert scenario.accelerator is not None
    assert scenario.accelerator.memory_gib == 24.0
    assert scenario.measured == Measured(weights_gib=8.0, cuda_graph_gib=0.0)
    assert params.items() <= link.encode(scenario).items()


def test_a_card_of_ones_own_travels() -> None:
    params = {
        "accelerator.memory_gib": "30.5",
        "accelerator.vendor": "nvidia",
        "accelerator.name": "Prototype 9",
    }
    scenario = link.decode(params).scenario
    assert scenario.accelerator is not None
    assert scenario.accelerator.memory_gib == 30.5
    assert link.decode(link.encode(scenario)).scenario == scenario


def test_a_config_of_ones_own_travels_in_the_link() -> None:
    config = ModelConfig.from_mapping(
        {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
            "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
            "num_key_value_heads": 8, "vocab_size": 128256,
            "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "rope_theta": 500000.0,
        }
    )  # fmt: skip
    scenario = replace(START, model="config.json", config=config, checkpoint=type(START.checkpoint)())
    decoded = link.decode(link.encode(scenario))
    assert decoded.repairs == ()
    assert decoded.scenario == scenario


# Layers that a compressed-tensors checkpoint leaves alone, each by its name: 7 KiB that say little.
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip
LONG = {
    **LLAMA,
    "ignored_layers": [f"model.layers.{n}.mlp.experts.{m}.gate_proj" for n in range(16) for m in range(12)],
}
NOISE = {**LLAMA, "noise": "".join(hashlib.sha256(bytes([n])).hexdigest() for n in range(200))}


def test_a_long_config_travels_deflated() -> None:
    config = ModelConfig.from_mapping(
        LONG, {"quantization": {"quant_algo": "FP8", "exclude_modules": LONG["ignored_layers"]}}
    )
    assert len(config.text) > link.MAX_CONFIG_CHARACTERS
    scenario = replace(START, model="config.json", config=config, checkpoint=type(START.checkpoint)())
    query = link.query_string(link.encode(scenario))
    assert len(query) < link.MAX_CONFIG_CHARACTERS
    decoded = link.decode(dict(parse_qsl(query)))
    assert (decoded.scenario, decoded.repairs) == (scenario, ())
    assert link.carries_configs(scenario)


def test_a_config_of_a_link_of_old_is_still_read() -> None:
    text = json.dumps(LONG)
    assert link.decode({"model": "config.json", "config": text}).scenario.config.raw == LONG


def test_a_link_names_a_config_that_was_too_long_for_it() -> None:
    # Half of the noise is left by any deflation: 200 digests of 64 hexadecimal digits are 6,400 bytes of it.
    config = ModelConfig.from_mapping(NOISE)
    for model in ("config.json", "Qwen/Qwen3-8B"):
        scenario = replace(START, model=model, config=config)
        assert not link.carries_configs(scenario)
        params = link.encode(scenario)
        assert not {"config", "config.z"} & set(params)
        decoded = link.decode(params)
        (repair,) = decoded.repairs
        assert (repair.field, repair.given, repair.error.code) == ("model", model, "config-not-in-link")
        assert repair.used == decoded.scenario.model == "Qwen/Qwen3-32B"


def test_a_draft_whose_config_is_too_long_is_told_too() -> None:
    draft = SpeculativeConfig(
        method="eagle", num_speculative_tokens=2, model="my/head", config=ModelConfig.from_mapping(NOISE)
    )
    decoded = link.decode(link.encode(replace(START, speculative_config=draft)))
    assert [(one.field, one.error.code) for one in decoded.repairs] == [
        ("speculative_config.model", "config-not-in-link")
    ]
    assert decoded.scenario.config == START.config


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "unreadable-packed-config"),
        ("no base64!", "unreadable-packed-config"),
        ("AAAA", "unreadable-packed-config"),
        ("A", "unreadable-packed-config"),
        (pack('{"model_type": "llama"}')[:-6], "unreadable-packed-config"),
        (pack("[1]"), "invalid-json"),
        (pack("[" * 100), "input-too-deep"),
        (pack("x" * (MAX_UNPACKED_BYTES + 1)), "input-too-large"),
        ("A" * (MAX_PACKED_CHARACTERS + 1), "input-too-large"),
    ],
)
def test_a_packed_config_that_cannot_be_read_is_named(text: str, code: str) -> None:
    decoded = link.decode({"dtype": "float16", "config.z": text})
    assert [(repair.field, repair.error.code) for repair in decoded.repairs] == [("config.z", code)]
    assert (decoded.scenario.dtype, decoded.scenario.config) == ("float16", START.config)


def test_a_text_that_inflates_to_a_gigabyte_is_not_read() -> None:
    # 1 GiB of zeros deflates to 1 MiB; the first 24 KiB of it already stand for 24 MiB.
    squeezer = zlib.compressobj(9)
    bomb = b"".join(squeezer.compress(bytes(1 << 20)) for _ in range(24))
    text = base64.urlsafe_b64encode(bomb).decode().rstrip("=")
    tracemalloc.start()
    with pytest.raises(KvPlannerError) as caught:
        unpack(text, "config.z")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.code == "input-too-large"
    assert peak < 8 * MAX_UNPACKED_BYTES


@pytest.mark.parametrize(
    ("params", "field", "code"),
    [
        ({"model": "no/such-model"}, "model", "unknown-model"),
        ({"max_model_len": "many"}, "max_model_len", "invalid-value"),
        ({"gpu_memory_utilization": "7"}, "gpu_memory_utilization", "invalid-value"),
        ({"gpu_memory_utilization": "nan"}, "gpu_memory_utilization", "invalid-value"),
        ({"measured.weights_gib": "-1"}, "measured.weights_gib", "invalid-value"),
        ({"accelerator": "H1000"}, "accelerator", "unknown-accelerator"),
        ({"accelerator.memory_gib": "0"}, "accelerator.memory_gib", "invalid-value"),
        ({"enforce_eager": "perhaps"}, "enforce_eager", "invalid-value"),
        ({"gpu_memory_utilisation": "0.9"}, "gpu_memory_utilisation", "unknown-parameter"),
        ({"config": "{"}, "config", "invalid-json"),
        ({"v": "2"}, "v", "unknown-link-version"),
        ({"engine_version": "newest"}, "engine_version", "invalid-value"),
    ],
)
def test_a_bad_value_is_named_once_and_the_rest_is_used(
    params: dict[str, str], field: str, code: str
) -> None:
    decoded = link.decode({"dtype": "float16", **params})
    assert [(repair.field, repair.error.code) for repair in decoded.repairs] == [(field, code)]
    assert decoded.scenario.dtype == "float16"


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"model": "Qwen/Qwen3-32B", "tensor_parallel_size": "6"}, "heads-not-divisible"),
        ({"model": "Qwen/Qwen3-235B-A22B-FP8", "tensor_parallel_size": "8"}, "weight-block-cut"),
    ],
)
def test_a_refused_value_is_readable_and_stays(params: dict[str, str], code: str) -> None:
    decoded = link.decode({"accelerator": "H200-141GB", "engine_version": "0.11.0", **params})
    assert decoded.repairs == ()
    assert params.items() <= link.encode(decoded.scenario).items()
    with pytest.raises(KvPlannerError) as refused:
        plan(decoded.scenario)
    assert refused.value.code == code


def test_parameters_of_the_page_are_left_alone() -> None:
    assert link.decode({"lang": "zh", "utm_source": "mail"}).repairs == ()
    assert not link.is_scenario({"lang": "zh", "utm_source": "mail"})


@pytest.mark.parametrize(
    ("params", "field", "value"),
    [
        ({"tp": "4"}, "tensor_parallel_size", 4),
        ({"pp": "2"}, "pipeline_parallel_size", 2),
        ({"dp": "3"}, "data_parallel_size", 3),
        ({"ep": "true"}, "enable_expert_parallel", True),
        ({"--tensor-parallel-size": "4"}, "tensor_parallel_size", 4),
        ({"tensor-parallel-size": "4"}, "tensor_parallel_size", 4),
    ],
)
def test_flags_are_read_as_the_command_line_spells_them(
    params: dict[str, str], field: str, value: object
) -> None:
    assert link.is_scenario(params)
    decoded = link.decode(params)
    assert decoded.repairs == ()
    assert getattr(decoded.scenario.parallel, field) == value
    assert link.decode({"gpu-memory-utilization": "0.8"}).scenario.gpu_memory_utilization == 0.8
    assert link.decode({"q": "fp8"}).scenario.quantization == "fp8"
    assert link.decode({"accelerator.memory-gib": "24"}).scenario.accelerator.memory_gib == 24.0


def test_every_name_that_means_nothing_is_told() -> None:
    decoded = link.decode(
        {
            "tq": "4",
            "foo-bar": "baz",
            "utm_source": "mail",
            "lang": "zh",
            "pin.1": "",
            "max-model-len": "4096",
        }
    )
    assert [(one.field, one.given, one.error.code) for one in decoded.repairs] == [
        ("tq", "4", "unknown-parameter"), ("foo-bar", "baz", "unknown-parameter"),
    ]  # fmt: skip
    assert decoded.scenario.max_model_len == 4096
    assert len(link.decode({f"x{n}": "1" for n in range(500)}).repairs) == link.MAX_UNKNOWN
    assert len(link.decode({"x" * 10_000: "1"}).repairs[0].field) <= 60


def test_a_short_name_gives_way_to_the_full_one() -> None:
    decoded = link.decode(
        {"tp": "4", "tensor_parallel_size": "2", "max-model-len": "4096", "max_model_len": "4096"}
    )
    assert decoded.scenario.parallel.tensor_parallel_size == 2
    assert [(one.field, one.given, one.error.code) for one in decoded.repairs] == [("tp", "4", "named-twice")]


def test_a_refused_short_name_is_quoted() -> None:
    (repair,) = link.decode({"model": "Qwen/Qwen3-32B", "tp": "many"}).repairs
    assert (repair.field, repair.given, repair.used) == ("tensor_parallel_size", "many", "1")


def test_a_draft_that_the_catalogue_lacks_travels_in_the_link() -> None:
    head = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1,
            "intermediate_size": 128, "vocab_size": 128, "model_type": "llama"}  # fmt: skip
    speculative = {"method": "eagle", "num_speculative_tokens": 2, "model": "my/head", "config": head}
    scenario = scenario_from_request(
        {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "speculative_config": speculative}
    )
    params = dict(parse_qsl(link.query_string(link.encode(scenario))))
    assert link.decode(params).scenario.speculative_config == scenario.speculative_config


@pytest.mark.parametrize("config", [None, {"tie_word_embeddings": False, "transformers_version": "4.51.3"}])
def test_facts_of_the_repository_are_part_of_the_link(config: dict[str, object] | None) -> None:
    model = "Qwen/Qwen3-Embedding-8B"
    own = None if config is None else {**catalogue.find_model(model).config.raw, **config}
    request = {"model": model, "accelerator": "H100-80GB", "runner": "generate", "config": own}
    scenario = scenario_from_request({name: value for name, value in request.items() if value is not None})
    params = link.encode(scenario)
    assert params["runner"] == "generate"
    assert ("checkpoint.sentence_transformers" in params) is (config is not None)
    assert link.decode(params).scenario == scenario
    assert scenario.checkpoint.sentence_transformers is True


def test_defaults_of_absent_fields_are_frozen() -> None:
    """A link of version 1 leaves these out; a change here changes what old links say.

    What was false for groups of layers is left to the release now: without a connector, of which no old link knows,
    that is the same.
    """
    assert {name: FLAGS[name].default for name in link._PLAIN if FLAGS[name].link is not LinkRule.ALWAYS} == {
        "runner": "auto", "quantization": None, "hf_overrides": None,
        "wanted": None, "max_num_seqs": None, "max_num_batched_tokens": None,
        "block_size": None, "enforce_eager": False, "max_cudagraph_capture_size": None,
        "cudagraph_capture_sizes": None, "cudagraph_mode": None, "enable_prefix_caching": None,
        "enable_chunked_prefill": None,
        "mamba_cache_mode": None, "mamba_block_size": None, "mamba_cache_dtype": "auto",
        "mamba_ssm_cache_dtype": "auto", "disable_hybrid_kv_cache_manager": None, "kernels_compiled": False,
        "enable_lora": False,
        "max_loras": 1, "max_lora_rank": 16,
        "fully_sharded_loras": False, "language_model_only": False,
        "cpu_offload_gb": 0.0, "kv_cache_memory_bytes": None, "num_gpu_blocks_override": None,
        "disable_custom_all_reduce": False, "fuse_allreduce_rms": None, "skip_mm_profiling": False,
        "mm_encoder_tp_mode": "weights", "kv_offloading_size": None, "kv_offloading_backend": "native",
        "lmcache_version": None, "enable_sleep_mode": False, "node_memory_gib": None, "shm_gib": None,
        "other_engines": None, "link_gb_s": None,
        "indexer_kv_dtype": "auto",
    }  # fmt: skip
    assert (link.START["model"], link.START["accelerator"]) == ("Qwen/Qwen3-32B", "H100-80GB")
    assert Parallel() == Parallel(
        tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1,
        decode_context_parallel_size=1, prefill_context_parallel_size=1, enable_expert_parallel=False,
        all2all_backend=None, num_redundant_experts=0,
    )  # fmt: skip


def test_capture_sizes_are_separated_by_commas_in_a_link() -> None:
    decoded = link.decode(
        {**dict(parse_qsl(WORKED)), "cudagraph_capture_sizes": "8,1,2", "cudagraph_mode": "FULL"}
    )
    assert decoded.scenario.cudagraph_capture_sizes == (1, 2, 8)
    assert link.encode(decoded.scenario)["cudagraph_capture_sizes"] == "1,2,8"
    for broken in ("8,", "a", "0,1", "1.5"):
        repaired = link.decode({**dict(parse_qsl(WORKED)), "cudagraph_capture_sizes": broken})
        assert repaired.scenario.cudagraph_capture_sizes is None
        assert [repair.field for repair in repaired.repairs] == ["cudagraph_capture_sizes"]


def test_a_whole_number_that_is_too_large_is_not_refused_as_no_whole_number() -> None:
    found = link.decode({"model": "Qwen/Qwen3-8B", "max_model_len": "1" + "0" * 30})
    (repair,) = found.repairs
    assert repair.field == "max_model_len"
    assert "whole number" not in str(repair.error)
    assert "must lie between" in str(repair.error)


@pytest.mark.parametrize(
    ("text", "tokens"), [("128k", 128_000), ("32K", 32_768), ("1.5k", 1500), ("auto", -1), ("-1", -1)]
)
def test_a_length_is_read_as_the_sidebar_reads_it(text: str, tokens: int) -> None:
    decoded = link.decode({"max_model_len": text})
    assert decoded.repairs == ()
    assert decoded.scenario.max_model_len == tokens
    assert link.decode({"max_num_batched_tokens": "8k"}).scenario.max_num_batched_tokens == 8000


@pytest.mark.parametrize("text", ["1e9", "2.50", "1E+3"])
def test_an_unusable_value_is_quoted_as_in_the_link(text: str) -> None:
    (repair,) = link.decode({"max_num_seqs": text}).repairs
    assert repair.given == text
    assert f" {text} " in f" {repair.error} ".replace(":", " ").replace(",", " ")


@pytest.mark.parametrize("text", ["nonsense", "[1]", "1" * 5000])
@pytest.mark.parametrize(
    "name", ["additional_config", "kv_transfer_config", "config", "hf_quant_config", "headers"]
)
def test_an_invalid_object_drops_only_itself(name: str, text: str) -> None:
    decoded = link.decode(
        {"model": "Qwen/Qwen3-32B", "accelerator": "RTX-4090-24GB", "tensor_parallel_size": "8", name: text}
    )
    assert [repair.field for repair in decoded.repairs] == [name]
    assert decoded.scenario.accelerator is not None
    assert decoded.scenario.accelerator.id == "RTX-4090-24GB"
    assert decoded.scenario.parallel.tensor_parallel_size == 8


# -- what is given twice, or again ------------------------------------------------------------------------------------


def same_from_its_link(scenario: Scenario) -> bool:
    params = dict(parse_qsl(link.query_string(link.encode(scenario)), keep_blank_values=True))
    decoded = link.decode(params)
    return decoded.scenario == scenario and decoded.repairs == ()


@pytest.mark.parametrize(
    "stated", [{}, {"sentence_transformers": True}, {"total_size": 10**9}, {"total_parameters": 10**9}]
)
def test_a_model_of_the_catalogue_with_its_own_config_is_that_model(stated: dict[str, object]) -> None:
    """Whatever else is stated of the checkpoint: the link leaves out what the catalogue has, and no fact with it."""
    for entry in catalogue.load_models():
        request = {"model": entry.id, "accelerator": "H100-80GB", "checkpoint": stated}
        by_name = scenario_from_request(request)
        with_config = scenario_from_request({**request, "config": dict(entry.config.raw)})
        assert with_config == by_name, entry.id
        assert same_from_its_link(with_config), entry.id


def test_the_plan_of_an_own_config_is_that_of_its_link() -> None:
    """By the card whose memory decides between tight and not at all."""
    model = "Qwen/Qwen-VL-Chat-Int4"
    params = {
        "model": model,
        "accelerator": "RTX-3060-12GB",
        "accelerator.memory_gib": "10",
        "max_model_len": "512",
        "config": json.dumps(dict(catalogue.find_model(model).config.raw)),
    }
    first = link.decode(params).scenario
    again = link.decode(link.encode(first)).scenario
    assert plan(first).verdict is plan(again).verdict
    assert plan(first).loaded_weights == plan(again).loaded_weights


def test_another_config_under_a_known_name_has_no_sizes_of_it() -> None:
    entry = next(entry for entry in catalogue.load_models() if entry.checkpoint.total_size)
    raw = {**entry.config.raw, "rms_norm_eps": 0.5}
    scenario = scenario_from_request({"model": entry.id, "config": raw, "accelerator": "H100-80GB"})
    assert scenario.checkpoint.total_size is None
    assert same_from_its_link(scenario)


def repaired(params: dict[str, str]) -> dict[str, str]:
    return {
        repair.field: repair.error.code
        for repair in link.decode({"model": "Qwen/Qwen3-32B", **params}).repairs
    }


@pytest.mark.parametrize("accelerator", [{"accelerator": "H100-80GB"}, {}])
@pytest.mark.parametrize("memory", [{"accelerator.memory_gib": "79.18"}, {}])
def test_the_link_to_the_neighbours_is_taken(accelerator: dict[str, str], memory: dict[str, str]) -> None:
    decoded = link.decode(
        {"model": "Qwen/Qwen3-32B", **accelerator, **memory, "accelerator.interconnect": "none"}
    )
    card = decoded.scenario.accelerator
    assert card is not None
    assert (card.id, card.interconnect.value, decoded.repairs) == ("H100-80GB", "none", ())
    assert (card.memory_gib == 79.18) is bool(memory)
    assert same_from_its_link(decoded.scenario)


@pytest.mark.parametrize(
    ("given_facts", "codes"),
    [
        (
            {"accelerator": "H100-80GB", "accelerator.name": "Foo"},
            {"accelerator.name": "accelerator-named-already"},
        ),
        (
            {"accelerator": "H100-80GB", "accelerator.name": "Foo", "accelerator.vendor": "amd"},
            {
                "accelerator.name": "accelerator-named-already",
                "accelerator.vendor": "accelerator-named-already",
            },
        ),
        (
            {"accelerator": "H100-80GB", "accelerator.interconnect": "ring"},
            {"accelerator.interconnect": "invalid-value"},
        ),
        ({"accelerator.interconnect": "ring"}, {"accelerator.interconnect": "invalid-value"}),
        (
            {"accelerator.name": "Foo", "accelerator.vendor": "tpu"},
            {"accelerator.name": "unknown-accelerator", "accelerator.vendor": "missing-field"},
        ),
        ({"accelerator.name": "Foo"}, {"accelerator.name": "unknown-accelerator"}),
        ({"accelerator.name": "NVIDIA H100 80GB HBM3"}, {}),
        ({"accelerator.name": "Foo", "accelerator.memory_gib": "30"}, {}),
    ],
)
def test_no_fact_of_an_accelerator_is_dropped_in_silence(
    given_facts: dict[str, str], codes: dict[str, str]
) -> None:
    assert repaired(given_facts) == codes


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "accelerator": st.sampled_from(("H100-80GB", "MI300X-192GB", "RTX-4090-24GB", "H99")),
            "accelerator.name": st.sampled_from(("Foo", "NVIDIA H100 80GB HBM3", "Foo 48GB", "")),
            "accelerator.vendor": st.sampled_from(("nvidia", "amd", "tpu", "")),
            "accelerator.memory_gib": st.sampled_from(("30", "79.18", "-1", "x", "")),
            "accelerator.interconnect": st.sampled_from(("none", "pcie", "nvlink", "xgmi", "ring", "")),
        },
    )
)
def test_every_fact_of_an_accelerator_is_in_the_card_or_named(params: dict[str, str]) -> None:
    decoded = link.decode({"model": "Qwen/Qwen3-32B", **params})
    named = {repair.field for repair in decoded.repairs}
    card = decoded.scenario.accelerator
    assert card is not None
    used = {name: text for name, text in params.items() if name not in named}
    if "accelerator" in used:
        assert card.id == used["accelerator"]
    if "accelerator.memory_gib" in used:
        assert card.memory_gib == float(used["accelerator.memory_gib"])
    if "accelerator.interconnect" in used:
        assert card.interconnect.value == used["accelerator.interconnect"]
    assert same_from_its_link(decoded.scenario)


@pytest.mark.parametrize("count", ["-5", "100001", "9" * 60])
@pytest.mark.parametrize("kind", ["image", "video", "audio"])
def test_a_count_of_items_has_bounds(kind: str, count: str) -> None:
    name = f"limit_mm_per_prompt.{kind}"
    assert repaired({name: count}) == {name: "invalid-value"}
    for usable in ("0", "100000"):
        decoded = link.decode({"model": "Qwen/Qwen3-32B", name: usable})
        assert (decoded.scenario.limit_mm_per_prompt, decoded.repairs) == ({kind: int(usable)}, ())
