"""Lengths that a config allows, by engine version; YaRN: what is documented, and what a release is told of it."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from packaging.version import Version

from kvcore import catalogue
from kvcore.advice.sweep import sweep
from kvcore.base.errors import ModelError, ScenarioError
from kvcore.base.units import gib
from kvcore.catalogue.documented import DOCUMENTED, documented_yarn
from kvcore.controls.edit import with_model
from kvcore.deploy.shell import launch_command
from kvcore.evidence.log.reader import read_log
from kvcore.model.config import Section
from kvcore.model.families import read_architecture
from kvcore.model.rope import (
    Yarn,
    default_max_model_len,
    derived_max_model_len,
    read_context_limits,
    read_yarn,
)
from kvcore.planning import Plan, plan
from kvcore.wire import link
from kvcore.wire.request import scenario_from_request
from kvcore.workload.limits import is_above_model, stretch_for

V0_11, V0_28, V0_32 = Version("0.11.0"), Version("0.28.0"), Version("0.32.0")
QWEN = {"model": "Qwen/Qwen3-8B", "accelerator": "H200-141GB", "max_model_len": 131_072}
OVERRIDE = {
    "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
}


def derived(raw: dict, version: Version = V0_32, model_type: str = "llama") -> int:
    return derived_max_model_len(read_context_limits(Section(raw), model_type), version)


def default(raw: dict, version: Version = V0_32) -> int:
    return default_max_model_len(read_context_limits(Section(raw), "phi3"), version)


@pytest.mark.parametrize(
    ("raw", "tokens"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"n_positions": 1024}, 1024),
        ({"max_seq_len": 65536}, 65536),
        ({"max_position_embeddings": 32768, "seq_length": 8192}, 8192),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
        ({}, 2048),
    ],
)
def test_the_smallest_key_counts_and_model_max_length_wins(raw, tokens):
    assert derived(raw) == tokens


@pytest.mark.parametrize(
    ("scaling", "before", "since"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 16384, 16384),
        ({"type": "dynamic", "factor": 2.0}, 8192, 8192),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 1024}, 4096, 4096),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16384, 4096),
        ({"rope_type": "yarn", "factor": 4.0}, 16384, 4096),
        ({"type": "mrope", "mrope_section": [1, 2, 3]}, 4096, 4096),
        ({"rope_type": "default"}, 4096, 4096),
    ],
)
def test_scaling_before_and_since_0_30(scaling, before, since):
    raw = {"max_position_embeddings": 4096, "rope_scaling": scaling}
    assert (derived(raw, V0_28), derived(raw, V0_32)) == (before, since)


def test_both_spellings_of_a_scaling_mean_the_same():
    old = {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = {"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}
    assert derived(old) == derived(new) == 8192


def test_gemma3_is_scaled_already():
    raw = {"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert derived(raw, model_type="gemma3") == 131072


def test_a_longrope_model_starts_at_its_original_length_since_0_11_2():
    raw = {
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [2.0]},
    }
    assert (default(raw, V0_11), default(raw, Version("0.11.2")), default(raw, V0_32)) == (131072, 4096, 4096)
    assert derived(raw) == 131072


@pytest.mark.parametrize("factor", [0, -1, "x", float("nan"), 1e9])
def test_an_unusable_factor_is_refused(factor):
    with pytest.raises(ModelError) as caught:
        derived({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "linear", "factor": factor}})
    assert caught.value.code == "invalid-config-value"


def test_a_scaling_without_its_factor_is_refused():
    with pytest.raises(ModelError) as caught:
        derived({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "linear"}})
    assert (caught.value.code, caught.value.field) == ("missing-config-key", "config.rope_scaling.factor")


def test_a_factor_that_leaves_no_token_is_refused():
    with pytest.raises(ModelError) as caught:
        derived({"max_position_embeddings": 512, "rope_scaling": {"type": "dynamic", "factor": 1e-9}})
    assert (caught.value.code, caught.value.field) == ("invalid-config-value", "config.rope_scaling.factor")


@pytest.mark.parametrize("model", [model for row in DOCUMENTED.load().series for model in row.models])
@pytest.mark.parametrize("version", ["0.8.5", "0.11.0", "0.12.0", "0.19.0", "0.30.0", "0.33.0"])
def test_with_it_every_release_takes_the_documented_length(model: str, version: str) -> None:
    config = catalogue.find_model(model).config
    own = derived_max_model_len(read_architecture(config).context, Version(version))
    yarn = documented_yarn(model)
    assert yarn is not None
    stretched = yarn.config(config, Version(version))
    assert own <= 40_960
    assert derived_max_model_len(read_architecture(stretched).context, Version(version)) == 131_072


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("0.11.0", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}),
        # docs.vllm.ai, features/context_extension: rope_parameters with the base of the rope.
        ("0.19.0", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1000000,
                                        "original_max_position_embeddings": 32768}}),
        ("0.33.0", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1000000,
                                        "original_max_position_embeddings": 32768},
                    "max_position_embeddings": 131072}),
    ],
)  # fmt: skip
def test_the_command_spells_it_as_the_release_reads_it(version: str, told: dict[str, Any]) -> None:
    planned = plan(scenario_from_request({**QWEN, "engine_version": version, "hf_overrides": OVERRIDE}))
    assert not is_above_model(planned)
    command = launch_command(planned)
    assert "VLLM_ALLOW_LONG_MAX_MODEL_LEN" not in command
    words = shlex.split(command.replace("\\\n", " "))
    assert json.loads(words[words.index("--hf-overrides") + 1]) == told


def test_it_is_offered_where_it_is_documented_and_reaches_the_length() -> None:
    def offered(**fields: Any) -> bool:
        return stretch_for(plan(scenario_from_request({**QWEN, **fields}))) is not None

    assert offered()
    assert not offered(max_model_len=131_073)
    assert not offered(model="Qwen/Qwen3-0.6B")
    assert not offered(hf_overrides=OVERRIDE)


def test_the_table_of_positions_grows_with_it() -> None:
    bare, stretched = (
        plan(scenario_from_request({**QWEN, **more})) for more in ({}, {"hf_overrides": OVERRIDE})
    )
    # 131,072 rows in place of 40,960, of 128 numbers of 2 bytes.
    assert stretched.weights.buffers - bare.weights.buffers == (131_072 - 40_960) * 128 * 2


def test_another_model_drops_it() -> None:
    scenario = scenario_from_request({**QWEN, "hf_overrides": OVERRIDE})
    other = catalogue.find_model("Qwen/Qwen3-32B")
    assert with_model(scenario, other.id, other.config, other.checkpoint).scenario.hf_overrides is None


@pytest.mark.parametrize(
    "value",
    [
        "", "{", "[]", "7", 7, [], {}, {"rope_parameters": 4},
        {"rope_parameters": {"rope_type": "linear", "factor": 2}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 4096}},
        {"rope_parameters": {"rope_type": "yarn", "factor": True, "original_max_position_embeddings": 4096}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10**30}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, {**OVERRIDE, "num_hidden_layers": 1},
        {**OVERRIDE, "rope_scaling": {}}, "[" * 1999, '{"rope_parameters": {"rope_type": "yarn", "factor": NaN}}',
    ],
)  # fmt: skip
def test_other_values_than_a_stretched_rope_are_refused(value: Any) -> None:
    with pytest.raises(ScenarioError) as raised:
        read_yarn(value)
    assert (raised.value.code, raised.value.field) == ("invalid-value", "hf_overrides")


def test_a_text_and_its_object_are_the_same() -> None:
    yarn = Yarn(factor=4.0, original_max_position_embeddings=32_768)
    assert read_yarn(OVERRIDE) == read_yarn(json.dumps(OVERRIDE)) == read_yarn(yarn.text) == yarn


@pytest.mark.parametrize(
    "text",
    [
        """vllm serve Qwen/Qwen3-8B --max-model-len 131072 --hf-overrides '{"rope_scaling": {"rope_type": "yarn", """
        """"factor": 4.0, "original_max_position_embeddings": 32768}}'""",
        "INFO 01-01 [utils.py:1] non-default args: {'model': 'Qwen/Qwen3-8B', 'hf_overrides': {'rope_parameters': "
        "{'factor': 4.0, 'original_max_position_embeddings': 32768, 'rope_theta': 1000000, 'rope_type': 'yarn'}}}",
    ],
)
def test_a_command_and_a_log_that_stretch_the_rope_are_read(text: str) -> None:
    log = read_log(text)
    assert log.flags.hf_overrides is not None
    assert read_yarn(log.flags.hf_overrides) == read_yarn(OVERRIDE)


def test_a_plan_reads_the_command_it_writes() -> None:
    planned = plan(scenario_from_request({**QWEN, "hf_overrides": OVERRIDE}))
    assert read_log(launch_command(planned)).flags.hf_overrides == planned.scenario.hf_overrides


def test_a_sweep_counts_it_too() -> None:
    base = plan(scenario_from_request({**QWEN, "hf_overrides": OVERRIDE}))
    assert base.cache is not None
    card = catalogue.find_accelerator("H200-141GB")
    (swept,) = sweep(base.scenario, [catalogue.find_model("Qwen/Qwen3-8B")], [card], (1,))
    (cell,) = swept.cells
    assert (cell.verdict, cell.max_concurrency) == (base.verdict, pytest.approx(base.cache.max_concurrency))
    assert cell.weights_gib == gib(base.loaded_weights.value)


INDEX = {"text_config": {"use_index_cache": True, "index_topk_freq": 4}}


def notices(planned: Plan) -> dict[str, str]:
    return {one.code: str(one.params.get("keys", "")) for one in planned.notices}


def test_other_keys_change_what_is_read_and_those_that_do_not_are_named() -> None:
    """Half of Qwen3-8B's 36 layers, each of 4096 × (4096 × 2 + 1024 × 2 + 12288 × 3) weights and 8,448 of norms."""
    whole = plan(scenario_from_request(QWEN))
    half = plan(scenario_from_request({**QWEN, "hf_overrides": {"num_hidden_layers": 18, **INDEX}}))
    layer = 2 * (4096 * (4096 * 2 + 1024 * 2 + 12288 * 3) + 2 * 4096 + 2 * 128)
    assert whole.loaded_weights.value - half.loaded_weights.value == pytest.approx(18 * layer, rel=1e-5)
    assert notices(half)["hf-overrides-without-effect"] == (
        "text_config.use_index_cache, text_config.index_topk_freq"
    )


def test_a_rope_and_other_keys_go_together() -> None:
    both = plan(scenario_from_request({**QWEN, "hf_overrides": {**OVERRIDE, "num_hidden_layers": 18}}))
    assert both.resolved.derived_max_model_len == 131_072
    assert both.architecture.num_layers == 18


def test_they_travel_in_the_link_without_the_config_and_in_the_command() -> None:
    start = scenario_from_request({**QWEN, "hf_overrides": {"num_hidden_layers": 18}})
    packed = link.encode(start)
    assert not any(name.startswith("config") for name in packed)
    assert link.decode(packed).scenario == start
    command = launch_command(plan(start))
    assert read_log(command).flags.hf_overrides == start.hf_overrides == '{"num_hidden_layers": 18}'


def test_the_indexers_keys_of_deepseek_are_kept_in_a_part_of_the_layers() -> None:
    asked = {"model": "deepseek-ai/DeepSeek-V3.2", "accelerator": "H200-141GB", "tensor_parallel_size": 8}
    whole, part = (
        plan(scenario_from_request({**asked, **more}))
        for more in ({}, {"hf_overrides": {"index_topk_freq": 4}})
    )
    assert whole.cache is not None
    assert part.cache is not None
    assert part.cache.tokens > whole.cache.tokens
    assert "hf-overrides-without-effect" not in notices(part)


@pytest.mark.parametrize(
    "value",
    [
        "", "{", "[]", 7, [], {"rope_parameters": {"rope_type": "linear", "factor": 2}}, {"quantization_config": {}},
        {"a b": 1}, {"text_config": {"<b>": 1}}, {"x": "y" * 2000}, {"x": float("nan")}, '{"x": ' + "[" * 900,
    ],
)  # fmt: skip
def test_what_is_no_plain_object_or_not_planned_is_refused(value: Any) -> None:
    with pytest.raises(ScenarioError) as raised:
        scenario_from_request({**QWEN, "hf_overrides": value})
    assert (raised.value.code, raised.value.field) == ("invalid-value", "hf_overrides")
