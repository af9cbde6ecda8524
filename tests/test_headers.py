"""Models of a class that no family reads, from the headers of their checkpoints, against the readers of their families.

The headers are those that transformers' own classes have on the meta device (tools/headers_data.py). Each model is read
once by its own family and once under an unknown class, by its tensors alone.
"""

from __future__ import annotations

import dataclasses
import json
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kvcore import catalogue
from kvcore.base.errors import EngineRefusalError, KvPlannerError, ModelError, ScenarioError
from kvcore.base.quantity import Grade
from kvcore.base.untrusted import pack
from kvcore.memory.weights import counted_modules
from kvcore.model.caches import ChunkedLocal, KeysAndValues, RecurrentState, SlidingWindow
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.model.headers import MAX_CHARACTERS, MAX_ENTRIES, MAX_ROWS, HeadersReader, read_headers
from kvcore.model.quantization import read_quantization
from kvcore.planning import Plan, Verdict, plan
from kvcore.scenario import Parallel, Scenario
from kvcore.wire import link
from kvcore.wire.request import scenario_from_request

CONFIG = {
    "architectures": ["UnreadForCausalLM"],
    "model_type": "unread",
    "new_key": 3,
    "num_attention_heads": 32,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 8192,
}

ROWS = [json.loads(line) for line in Path("tests/data/headers.jsonl").read_text().splitlines()]
BY_MODEL: Mapping[str, Mapping[str, Any]] = {row["model"]: row["headers"] for row in ROWS}
MODELS = list(BY_MODEL)

WITHOUT_HEADS_OF_THE_CLASS = ("nvidia/Nemotron-H-56B-Base-8K",)
"""Its class says that states are float32; the config does not."""


def unread(model: str) -> ModelConfig:
    """The config of a model under unknown names, with its headers."""

    def renamed(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: "unread" if key == "model_type" else renamed(inner) for key, inner in value.items()}

    raw = {**renamed(in_16_bits(model).raw), "architectures": ["UnreadForCausalLM"]}
    return ModelConfig.from_mapping(raw, None, read_headers(BY_MODEL[model]))


def in_16_bits(model: str) -> ModelConfig:
    raw = catalogue.find_model(model).config.raw
    return ModelConfig.from_mapping({key: raw[key] for key in raw if key != "quantization_config"})


def planned(config: ModelConfig, ranks: int = 1, **parallel: Any) -> Plan:
    cut = Parallel(tensor_parallel_size=ranks, **parallel)
    return plan(
        Scenario(model="a/b", config=config, parallel=cut, max_model_len=2048, engine_version="0.23.0")
    )


def test_there_are_many_architectures() -> None:
    classes = {in_16_bits(model).architectures[0] for model in MODELS}
    assert len(classes) >= 30


@pytest.mark.parametrize("model", MODELS)
def test_weights_and_their_share_are_those_of_the_family(model: str) -> None:
    own, blind = in_16_bits(model), unread(model)
    stored = blind.headers.stored_bytes if blind.headers else 0
    whole = planned(own).parameter_bytes_per_rank
    assert stored == pytest.approx(whole, rel=0.002)
    assert planned(blind).parameter_bytes_per_rank == pytest.approx(whole, rel=0.002)
    half, blind_half = share_of_two(own), share_of_two(blind)
    assert blind_half == (half if isinstance(half, str) else pytest.approx(half, rel=0.006))


def share_of_two(config: ModelConfig) -> int | str:
    """Bytes on one of two ranks, or the code of the refusal."""
    try:
        return planned(config, 2).parameter_bytes_per_rank
    except EngineRefusalError as refused:
        return refused.code


@pytest.mark.parametrize("model", MODELS)
def test_layers_keep_the_caches_of_the_family(model: str) -> None:
    own, blind = read_architecture(in_16_bits(model)), read_architecture(unread(model))
    assert len(blind.layers) == len(own.layers)
    for mine, theirs in zip(blind.layers, own.layers, strict=True):
        assert len(mine.caches) == len(theirs.caches)
        for found, known in zip(mine.caches, theirs.caches, strict=True):
            if isinstance(known, SlidingWindow | ChunkedLocal) and isinstance(found, KeysAndValues):
                assert (found.num_kv_heads, found.head_size) == (known.num_kv_heads, known.head_size)
            elif model not in WITHOUT_HEADS_OF_THE_CLASS:
                is_state = isinstance(known, RecurrentState)  # which kernel runs it, its class says
                assert found == (replace(known, exported_head_size=0) if is_state else known)
    has_windows = any(
        isinstance(cache, SlidingWindow | ChunkedLocal) for one in own.layers for cache in one.caches
    )
    finds_them = any(isinstance(cache, SlidingWindow) for one in blind.layers for cache in one.caches)
    if has_windows and not finds_them:
        assert "headers-windows" in {note.code for note in blind.notices}


KV_BYTES_OF_A_TOKEN = {
    "meta-llama/Llama-3.1-8B-Instruct": 32 * 2 * 8 * 128 * 2,
    "Qwen/Qwen3-32B": 64 * 2 * 8 * 128 * 2,
    "openai-community/gpt2": 12 * 2 * 12 * 64 * 2,
    "tiiuae/falcon-7b-instruct": 32 * 2 * 1 * 64 * 2,
    "bigscience/bloom": 70 * 2 * 112 * 128 * 2,
    "deepseek-ai/DeepSeek-V3": 61 * (512 + 64) * 2,
    "deepseek-ai/DeepSeek-V2-Lite": 27 * (512 + 64) * 2,
}
"""By their papers: layers × (keys and values × KV heads × head size, or the latent vector) × two bytes."""


@pytest.mark.parametrize("model", KV_BYTES_OF_A_TOKEN)
def test_kv_bytes_of_a_token(model: str) -> None:
    config = unread(model)
    request = {"model": "a/b", "config": dict(config.raw), "headers": dict(BY_MODEL[model])}
    scenario = scenario_from_request({**request, "measured": {"available_kv_gib": 64}, "max_model_len": 1024})
    cache = plan(scenario).cache
    assert cache is not None
    assert cache.figures.bytes_per_token.value == KV_BYTES_OF_A_TOKEN[model]


@pytest.mark.parametrize(
    "model",
    [
        "Qwen/Qwen2.5-VL-7B-Instruct",
        "mistralai/Mistral-7B-v0.1",
        "mistralai/Mixtral-8x7B-v0.1",
        "microsoft/phi-4",
        "HuggingFaceTB/SmolLM3-3B",
    ],
)
def test_stored_bytes_are_those_that_the_publisher_counts(model: str) -> None:
    published = catalogue.find_model(model).checkpoint.total_size
    assert published is not None
    assert read_headers(BY_MODEL[model]).stored_bytes == published


# -- quantized checkpoints ------------------------------------------------------------------------------------------


def blocks(size: int) -> int:
    return -(-size // 128)


def in_fp8(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The same checkpoint with its projections in FP8, a float32 scale for each block of 128 by 128."""
    found = {}
    for name, tensor in headers.items():
        if "_proj.weight" in name:
            found[name] = {"dtype": "F8_E4M3", "shape": tensor["shape"]}
            scale = {"dtype": "F32", "shape": [blocks(size) for size in tensor["shape"]]}
            found[name + "_scale_inv"] = scale
        else:
            found[name] = tensor
    return found


@pytest.mark.parametrize(
    ("model", "quantized"),
    [("Qwen/Qwen3-32B", "Qwen/Qwen3-32B-FP8"), ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B-FP8")],
)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("is_expert_parallel", [False, True])
def test_blocks_of_fp8(model: str, quantized: str, ranks: int, is_expert_parallel: bool) -> None:
    own = catalogue.find_model(quantized).config
    raw = {**own.raw, "architectures": ["UnreadForCausalLM"], "model_type": "unread"}
    blind = ModelConfig.from_mapping(raw, None, read_headers(in_fp8(BY_MODEL[model])))
    known, found = (planned(one, ranks, enable_expert_parallel=is_expert_parallel) for one in (own, blind))
    assert found.parameter_bytes_per_rank == pytest.approx(known.parameter_bytes_per_rank, rel=0.002)


def test_packed_integers_hide_no_heads() -> None:
    """AWQ: eight weights of four bits in an integer, along the outputs."""
    hidden, group = 4096, 128

    def packed(inputs: int, outputs: int) -> dict[str, Any]:
        return {
            "qweight": {"dtype": "I32", "shape": [inputs, outputs // 8]},
            "qzeros": {"dtype": "I32", "shape": [inputs // group, outputs // 8]},
            "scales": {"dtype": "F16", "shape": [inputs // group, outputs]},
        }

    widths = {"q": (hidden, 4096), "k": (hidden, 1024), "v": (hidden, 1024), "o": (4096, hidden)}
    headers: dict[str, Any] = {"model.embed_tokens.weight": {"dtype": "F16", "shape": [32000, hidden]}}
    for name, (inputs, outputs) in widths.items():
        for kind, tensor in packed(inputs, outputs).items():
            headers[f"model.layers.{{0-3}}.self_attn.{name}_proj.{kind}"] = tensor
    config = {
        "architectures": ["UnreadForCausalLM"],
        "hidden_size": hidden,
        "num_attention_heads": 32,
        "num_hidden_layers": 4,
        "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
    }
    built = read_architecture(ModelConfig.from_mapping(config, None, read_headers(headers)))
    assert (built.num_kv_heads, built.head_dim) == (8, 128)
    assert planned(
        ModelConfig.from_mapping(config, None, read_headers(headers))
    ).parameter_bytes_per_rank == (read_headers(headers).stored_bytes)


def in_mxfp4(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The same checkpoint with its experts in blocks of 32, as gpt-oss is published: 16 bytes and a scale each."""
    found = dict(headers)
    for name in ("gate_up_proj", "down_proj"):
        key = f"model.layers.{{0-23}}.mlp.experts.{name}"
        experts, inputs, outputs = found.pop(key)["shape"]
        found[f"{key}_blocks"] = {"dtype": "U8", "shape": [experts, outputs, inputs // 32, 16]}
        found[f"{key}_scales"] = {"dtype": "U8", "shape": [experts, outputs, inputs // 32]}
    return found


def test_blocks_of_mxfp4() -> None:
    own = catalogue.find_model("openai/gpt-oss-20b").config
    raw = {**own.raw, "architectures": ["UnreadForCausalLM"], "model_type": "unread"}
    headers = read_headers(in_mxfp4(BY_MODEL["openai/gpt-oss-20b"]))
    blind = ModelConfig.from_mapping(raw, None, headers)
    counted = planned(blind).parameter_bytes_per_rank
    assert counted == headers.stored_bytes
    assert read_architecture(blind).moe == read_architecture(own).moe


@pytest.mark.parametrize(
    "kinds",
    [
        {"weight": ("U8", 4096 * 1024 // 2, 1), "weight.absmax": ("U8", 4096 * 1024 // 64)},
        {"qweight": ("I32", 512, 1024), "scales": ("F16", 32, 1024), "qzeros": ("I32", 32, 128)},
        {"weight_packed": ("I32", 1024, 512), "weight_scale": ("BF16", 1024, 32), "weight_shape": ("I64", 2)},
        {"weight": ("U8", 1024, 2048), "weight_scale": ("F8_E4M3", 1024, 256), "input_scale": ("F32",)},
        {"weight": ("F8_E4M3", 1024, 4096), "weight_scale": ("F32", 1024, 1), "k_scale": ("F32",)},
        {"weight": ("I8", 1024, 4096), "weight_scale": ("F32", 1024)},
    ],
)
def test_heads_by_keys_and_values_in_every_storage(kinds: Mapping[str, Any]) -> None:
    headers: dict[str, Any] = {"model.embed_tokens.weight": {"dtype": "BF16", "shape": [32000, 4096]}}
    for name in ("k_proj", "v_proj"):
        for kind, (dtype, *shape) in kinds.items():
            headers[f"model.layers.{{0-3}}.self_attn.{name}.{kind}"] = {"dtype": dtype, "shape": shape}
    raw = {**CONFIG, "hidden_size": 4096, "num_hidden_layers": 4, "num_key_value_heads": 8, "head_dim": 128}
    found = ModelConfig.from_mapping(raw, None, read_headers(headers))
    built = read_architecture(found)
    assert (built.num_kv_heads, built.head_dim, len(built.layers[0].caches)) == (8, 128, 1)
    whole, quarter = (planned(found, ranks).parameter_bytes_per_rank for ranks in (1, 4))
    assert found.headers is not None
    assert whole == found.headers.stored_bytes
    assert quarter == pytest.approx(whole / 4, rel=0.01)


# -- what is said ---------------------------------------------------------------------------------------------------


def test_without_headers_the_class_is_refused_with_them_it_is_planned_and_graded() -> None:
    request = {"model": "a/b", "config": CONFIG, "accelerator": "H100-80GB"}
    with pytest.raises(ModelError) as caught:
        plan(scenario_from_request(request))
    assert caught.value.code == "unknown-architecture"
    found = plan(
        scenario_from_request({**request, "headers": dict(BY_MODEL["meta-llama/Llama-3.1-8B-Instruct"])})
    )
    assert found.verdict is Verdict.FITS
    assert found.loaded_weights.grade is Grade.ASSUMED
    assert found.cache is not None
    assert found.cache.figures.tokens.grade is Grade.ASSUMED
    assert found.loaded_weights.interval is not None
    assert "architecture-from-headers" in {note.code for note in found.notices}


def test_every_pipeline_stage_may_store_both_tables() -> None:
    """Some classes do and some do not: the larger of both is planned."""
    model = "meta-llama/Llama-3.1-8B-Instruct"
    stages = [
        planned(one, pipeline_parallel_size=2).parameter_bytes_per_rank
        for one in (in_16_bits(model), unread(model))
    ]
    assert stages[1] - stages[0] == pytest.approx(128256 * 4096 * 2, rel=0.001)


def test_unknown_facts_are_named() -> None:
    headers = {
        **BY_MODEL["meta-llama/Llama-3.1-8B-Instruct"],
        "model.layers.{0-31}.memory.bank.weight": {"dtype": "BF16", "shape": [4096, 4096]},
        "model.layers.{32}.eh_proj.weight": {"dtype": "BF16", "shape": [4096, 8192]},
        "vision_tower.blocks.{0-3}.attn.qkv.weight": {"dtype": "BF16", "shape": [3072, 1024]},
        "mtp.fc.weight": {"dtype": "BF16", "shape": [4096, 8192]},
    }
    config = {**CONFIG, "num_hidden_layers": 32, "sliding_window": 4096}
    found = plan(scenario_from_request({"model": "a/b", "config": config, "headers": headers}))
    said = {note.code: dict(note.params) for note in found.notices}
    assert said["headers-whole-tensors"] == {"names": "memory.bank", "size": "1.00"}
    assert said["headers-drafts"]["names"] == "mtp, model.layers"
    assert said["headers-encoder"]["names"] == "vision_tower.blocks"
    assert "headers-windows" in said
    one, two = (planned(found.scenario.config, ranks) for ranks in (1, 2))
    assert two.parameter_bytes_per_rank - one.parameter_bytes_per_rank // 2 >= 2**29
    assert one.loaded_weights.interval is not None
    assert two.loaded_weights.interval is not None
    low, high = two.loaded_weights.interval
    value = two.loaded_weights.value
    assert value - low == pytest.approx(high - value + 2**29)


def test_a_class_that_a_family_reads_is_read_by_it() -> None:
    config = in_16_bits("Qwen/Qwen3-32B")
    other = read_headers(BY_MODEL["openai-community/gpt2"])
    assert read_architecture(dataclasses.replace(config, headers=other)).num_layers == 64


def test_a_missing_shard_is_noticed() -> None:
    headers = {
        name.replace("{0-31}", "{0-20,25-31}"): tensor
        for name, tensor in BY_MODEL["meta-llama/Llama-3.1-8B-Instruct"].items()
    }
    with pytest.raises(ModelError) as caught:
        read_architecture(
            ModelConfig.from_mapping({**CONFIG, "num_hidden_layers": 32}, None, read_headers(headers))
        )
    assert caught.value.code == "contradicting-config"


def test_a_model_without_keys_and_values_is_refused() -> None:
    headers = read_headers({"encoder.layer.{0-3}.ffn.weight": {"dtype": "F32", "shape": [64, 64]}})
    with pytest.raises(ModelError) as caught:
        read_architecture(ModelConfig.from_mapping({**CONFIG, "hidden_size": 64}, None, headers))
    assert caught.value.code == "unknown-architecture"


def test_the_link_carries_headers() -> None:
    headers = dict(BY_MODEL["Qwen/Qwen3-Next-80B-A3B-Instruct"])
    scenario = scenario_from_request(
        {"model": "a/b", "config": CONFIG, "headers": headers, "accelerator": "H100-80GB"}
    )
    assert link.decode(link.encode(scenario)).scenario == scenario


# -- the format -----------------------------------------------------------------------------------------------------


def test_names_one_by_one_are_the_same_as_ranges() -> None:
    weight = {"dtype": "BF16", "shape": [8, 4], "data_offsets": [0, 64]}
    names = [
        f"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight"
        for layer in (0, 1, 2, 5)
        for expert in range(3)
    ]
    names += ["model.layers.1.mlp.gate.weight", "lm_head.weight"]
    random.Random(1).shuffle(names)
    files = {
        "model-00001-of-00002.safetensors": {
            "__metadata__": {"format": "pt"},
            **dict.fromkeys(names[:5], weight),
        },
        "model-00002-of-00002.safetensors": dict.fromkeys(names[5:], weight),
    }
    found = read_headers(files)
    assert found == read_headers(dict.fromkeys(names, weight)) == read_headers(found.raw)
    assert found.raw.keys() == {
        "lm_head.weight",
        "model.layers.{0-2,5}.mlp.experts.{0-2}.up_proj.weight",
        "model.layers.{1}.mlp.gate.weight",
    }
    assert found.stored_bytes == 14 * 64


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"__metadata__": {"format": "pt"}},
        {"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}},
        {"lm_head.weight": "BF16"},
        {"lm_head.weight": {"dtype": "BF17", "shape": [1]}},
        {"lm_head.weight": {"dtype": ["BF16"], "shape": [1]}},
        {"lm_head.weight": {"dtype": "BF16", "shape": [-1]}},
        {"lm_head.weight": {"dtype": "BF16", "shape": [True]}},
        {"lm_head.weight": {"dtype": "BF16", "shape": [2**41]}},
        {"lm_head.weight": {"dtype": "BF16", "shape": [1] * 9}},
        {"lm_head.weight": {"dtype": "BF16", "shape": "4"}},
        {"a" * 401: {"dtype": "BF16", "shape": [1]}},
        {"layers.{x}.a": {"dtype": "BF16", "shape": [1]}},
        {"layers.{1}x.a": {"dtype": "BF16", "shape": [1]}},
        {"layers.{3-1}.a": {"dtype": "BF16", "shape": [1]}},
        {"layers.1}.a": {"dtype": "BF16", "shape": [1]}},
        {".".join(["1"] * 150): {"dtype": "BF16", "shape": [1]}},
        {"layers.{0-99999}.experts.{0-99999}.a": {"dtype": "BF16", "shape": [1]}},
        {f"{'x' * (i % 90)}.y{i}.z": {"dtype": "BF16", "shape": [1]} for i in range(MAX_ROWS + 1)},
    ],
)
def test_bad_headers_are_refused_by_name(headers: Mapping[str, Any]) -> None:
    with pytest.raises(ScenarioError) as caught:
        scenario_from_request({"config": CONFIG, "headers": headers})
    assert caught.value.code == "invalid-value"
    assert caught.value.field.startswith("headers")


# -- what it may cost -----------------------------------------------------------------------------------------------

ONE = {"dtype": "BF16", "shape": [1]}
PLAIN = {
    f"model.layers.{{0-1}}.self_attn.{name}_proj.weight": {"dtype": "BF16", "shape": [64, 64]}
    for name in "qkvo"
}
PLAIN["model.embed_tokens.weight"] = {"dtype": "BF16", "shape": [1024, 64]}
SMALL = {
    **CONFIG,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}


@pytest.mark.parametrize(
    "rows",
    [
        {f"model.layers.{{0-1}}.self_attn.z{i}.{{0-999}}.{{0-255}}.weight": ONE for i in range(8)},
        {
            f"model.layers.{{0-1023}}.mlp.experts.{{{i * 500}-{i * 500 + 499}}}.up.weight": ONE
            for i in range(64)
        },
        {f"other.z{i}.{{0-999}}.{{0-511}}.weight": ONE for i in range(2)},
        {f"model.layers.{{0-9}}.z{i}.{{0-9999}}.weight": ONE for i in range(6)},
    ],
)
def test_all_names_together_have_one_limit(rows: Mapping[str, Any]) -> None:
    with pytest.raises(ScenarioError, match="524,288 tensors"):
        read_headers({**PLAIN, **rows})
    request = {"config": SMALL, "headers": {**PLAIN, **rows}, "model": "a/b"}
    opened = link.decode(
        {"model": "a/b", "config": json.dumps(SMALL), "headers.z": pack(json.dumps(request["headers"]))}
    )
    assert [(repair.field, repair.error.code) for repair in opened.repairs] == [
        ("headers.z", "invalid-value")
    ]


def test_ranges_that_cut_each_other_into_pieces_have_a_budget() -> None:
    combs = {
        f"a.{{{','.join(str(place * (2 + row % 7)) for place in range(60))}}}.{row}.{row % 3}.w": ONE
        for row in range(2000)
    }
    with pytest.raises(ScenarioError, match="too many pieces"):
        read_headers(combs)


@pytest.mark.parametrize("name", ["other.{0}", "vision.{0}", "model.layers.{0-1}"])
def test_tensors_that_are_alike_are_counted_not_repeated(name: str) -> None:
    """A hundred thousand in one name: looked at once, and every byte there."""
    headers = read_headers({**PLAIN, f"{name}.z.{{0-49999}}.weight": ONE})
    config = ModelConfig.from_mapping(SMALL, None, headers)
    found = planned(config)
    assert found.parameter_bytes_per_rank == headers.stored_bytes
    counted = list(
        counted_modules(
            read_architecture(config), read_quantization(config, None), Parallel(), 0, frozenset()
        )
    )
    assert len(counted) < 12
    assert sum(count for _, _, count in counted) in (50_000 + 2 * 4 + 1, 100_000 + 2 * 4 + 1)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ({"other.{0-99}.{0-4999}.weight": ONE}, "131,072 tensors apart from experts"),
        (
            {f"model.layers.{{0-1023}}.z{i}.weight": ONE for i in range(40)}
            | {f"model.layers.{i}.x{i}.weight": ONE for i in range(1024)},
            "16,384 kinds of tensors",
        ),
    ],
)
def test_more_than_a_plan_counts_one_by_one_is_refused(rows: Mapping[str, Any], reason: str) -> None:
    layers = 1024 if len(rows) > 1 else 2
    headers = {key.replace("{0-1}", f"{{0-{layers - 1}}}"): value for key, value in PLAIN.items()} | dict(
        rows
    )
    config = ModelConfig.from_mapping({**SMALL, "num_hidden_layers": layers}, None, read_headers(headers))
    with pytest.raises(ModelError, match=reason) as caught:
        read_architecture(config)
    assert (caught.value.code, caught.value.field) == ("unknown-architecture", "headers")


NUMBERS = st.integers(0, 9)
PLACES = st.lists(st.tuples(NUMBERS, st.integers(0, 3)), min_size=1, max_size=3)


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.lists(PLACES, min_size=3, max_size=3)),
        min_size=1,
        max_size=6,
    )
)
def test_ranges_have_one_spelling(
    rows: list[tuple[str, list[list[tuple[int, int]]]]],
) -> None:
    """Against every name by itself: the same tensors, each once, and the same text however they were cut."""
    given_rows, names = {}, set()
    for word, places in rows:
        texts = ["{" + ",".join(f"{low}-{low + more}" for low, more in place) + "}" for place in places]
        given_rows["{}.{}.{}.{}".format(word, *texts)] = ONE
        numbers = ({n for low, more in place for n in range(low, low + more + 1)} for place in places)
        names |= {f"{word}.{x}.{y}.{z}" for x, y, z in product(*numbers)}
    found = read_headers(given_rows)
    assert found.stored_bytes == 2 * len(names)
    assert found == read_headers(dict.fromkeys(names, ONE)) == read_headers(found.raw)


def test_a_name_that_would_be_too_long_is_several() -> None:
    every_other = {f"a.{layer}.w": ONE for layer in range(0, 800, 2)}
    found = read_headers(every_other)
    assert all(len(name) <= 400 for name in found.raw)
    assert read_headers(found.raw) == found
    assert found.stored_bytes == 2 * 400


class TestFile:
    """Headers read off their text, not parsed as a whole."""

    @pytest.mark.parametrize("indent", [None, 2])
    @pytest.mark.parametrize("model", MODELS[:4])
    def test_they_are_those_that_were_parsed(self, model: str, indent: int | None) -> None:
        reader = HeadersReader()
        files = {"model-00001-of-00001.safetensors": {"__metadata__": {"a": '}{"'}, **BY_MODEL[model]}}
        reader.feed(json.dumps(files, indent=indent))
        assert reader.headers() == read_headers(BY_MODEL[model])

    def test_nothing_is_read_behind_the_limit_of_kinds(self) -> None:
        text = (
            "{"
            + ",".join(f'"x{i}.y":{{"dtype":"U8","shape":[1]}}' for i in range(MAX_ROWS + 1))
            + ", no JSON"
        )
        with pytest.raises(ScenarioError, match="2,048 kinds"):
            HeadersReader().feed(text)

    def test_nothing_is_read_of_more_names_than_there_may_be(self) -> None:
        with pytest.raises(ScenarioError, match="262,144 names"):
            HeadersReader().feed("{" + '"dtype"' * (MAX_ENTRIES + 1))

    @pytest.mark.parametrize(
        "text",
        [
            "", "[]", "{", '{"a":', '{"a": 1}', '{"a": [' + "[]," * 9999 + "[]]}", '{"a": {{}}}', '{"a":{}} }',
            '{"a": {"dtype": "U8", "shape": [1]}', '{"a": {"dtype": "U8", "shape": [1]}} x', '{"\\x": {}}',
            '{"a": {"dtype": "U8" "shape": [1]}}', '{"a": {"dtype": "U8", "shape": [' + "9" * 1000 + "]}}",
            '{"a": {"dtype": "' + "U" * 9999 + '"}}', '{"weight_map": {"a": "model.safetensors"}}',
            '{"a.safetensors": {"a": {}}}', '{"a": {"dtype": ' + "[" * 1500,
        ],
    )  # fmt: skip
    def test_texts_that_are_no_headers_are_refused(self, text: str) -> None:
        with pytest.raises(ScenarioError) as caught:
            HeadersReader().feed(text)
        assert caught.value.code in ("invalid-json", "invalid-value")
        assert caught.value.field.startswith("headers")

    def test_all_files_together_have_one_size(self) -> None:
        reader = HeadersReader()
        reader.feed("{" + " " * (MAX_CHARACTERS - 2) + "}")
        with pytest.raises(ScenarioError) as caught:
            reader.feed("{}")
        assert caught.value.code == "input-too-large"


def test_any_headers_are_read_or_refused() -> None:
    """Names and shapes drawn at random: an architecture or a coded error, never anything else, and soon."""
    drawn = random.Random(7)
    words = [
        "self_attn",
        "k_proj",
        "v_proj",
        "q_proj",
        "o_proj",
        "qkv",
        "mlp",
        "experts",
        "{0-3}",
        "A_log",
        "conv1d",
    ]
    words += [
        "kv_a_proj_with_mqa",
        "kv_a_layernorm",
        "kv_b_proj",
        "down_proj",
        "up_proj",
        "gate",
        "x_proj",
        "k_norm",
    ]
    started = time.process_time()
    for _ in range(150):
        headers = {
            ".".join(
                [
                    "model",
                    "layers",
                    "{0-1}",
                    *drawn.choices(words, k=2),
                    drawn.choice(["weight", "bias", "qweight"]),
                ]
            ): {
                "dtype": drawn.choice(["BF16", "F32", "I32", "F8_E4M3", "U8", "F4", "I64"]),
                "shape": [drawn.choice([1, 2, 3, 64, 128, 7]) for _ in range(drawn.randrange(4))],
            }
            for _ in range(drawn.randrange(1, 12))
        }
        config = {"architectures": ["UnreadForCausalLM"], "x": 1, "hidden_size": 64}
        config |= drawn.choice([{}, {"num_attention_heads": 4}, {"head_dim": 32}, {"num_key_value_heads": 3}])
        ranks = drawn.choice([1, 2, 4])
        with suppress(KvPlannerError):
            planned(scenario_from_request({"config": config, "headers": headers}).config, ranks)
    assert time.process_time() - started < 60
