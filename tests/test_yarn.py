"""YaRN: what is documented, what a release is told, and that the engine then takes the length."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from packaging.version import Version

from kvcore import catalogue
from kvcore.advice.sweep import sweep
from kvcore.catalogue.documented_yarn import documented
from kvcore.deploy.launch import launch_command
from kvcore.errors import ScenarioError
from kvcore.evidence.log.reader import read_log
from kvcore.model.context import derived_max_model_len
from kvcore.model.families import read_architecture
from kvcore.model.yarn import Yarn, read_yarn
from kvcore.planning import plan
from kvcore.scenario.edit import with_model
from kvcore.scenario.request import scenario_from_request
from kvcore.units import gib
from kvcore.workload.limits import is_above_model, stretch_for

QWEN = {"model": "Qwen/Qwen3-8B", "accelerator": "H200-141GB", "max_model_len": 131_072}
OVERRIDE = {
    "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
}


@pytest.mark.parametrize("model", documented())
@pytest.mark.parametrize("version", ["0.8.5", "0.11.0", "0.12.0", "0.19.0", "0.30.0", "0.33.0"])
def test_with_it_every_release_takes_the_documented_length(model: str, version: str) -> None:
    config = catalogue.find_model(model).config
    own = derived_max_model_len(read_architecture(config).context, Version(version))
    stretched = documented()[model].config(config, Version(version))
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
def test_the_command_says_it_as_the_release_reads_it(version: str, told: dict[str, Any]) -> None:
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
def test_what_is_no_stretched_rope_is_refused(value: Any) -> None:
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
