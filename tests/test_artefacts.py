"""Launch artefacts: each is read back by a real parser and asks for what was planned."""

from __future__ import annotations

import configparser
import json
import shlex
from typing import Any

import pytest
import yaml

from kvcore import catalogue
from kvcore.errors import ScenarioError
from kvcore.evidence.logs import read_log
from kvcore.plan import Plan, plan
from kvcore.present.artefacts import (
    CONTAINERS,
    Artefact,
    artefact,
    has_image,
    kubernetes_name,
    start_seconds,
)
from kvcore.present.expected_log import expected_log_lines
from kvcore.present.launch import launch_command
from kvcore.request import scenario_from_request

SIZES = {
    "model": "Qwen/Qwen3-32B",
    "tensor_parallel_size": 4,
    "gpu_memory_utilization": 0.85,
    "max_model_len": 8192,
}
FLAGS = ["--tensor-parallel-size", "4", "--gpu-memory-utilization", "0.85", "--max-model-len", "8192"]


def planned(**request: Any) -> Plan:
    return plan(scenario_from_request({"accelerator": "L40S-48GB", **SIZES, **request}))


def test_the_command_is_one_shell_line() -> None:
    assert shlex.split(launch_command(planned())) == ["vllm", "serve", "Qwen/Qwen3-32B", *FLAGS]


def test_the_folded_command_says_the_same() -> None:
    text = artefact(Artefact.COMMAND, planned())
    assert shlex.split(text.replace("\\\n", " ")) == ["vllm", "serve", "Qwen/Qwen3-32B", *FLAGS]
    assert len(text.splitlines()) == 4


def test_every_flag_writes_resolved_defaults_too() -> None:
    words = shlex.split(artefact(Artefact.COMMAND, planned(), every_flag=True).replace("\\\n", " "))
    assert words[words.index("--max-num-seqs") + 1] == "256"
    assert words[words.index("--max-num-batched-tokens") + 1] == "2048"
    assert words[words.index("--dtype") + 1] == "bfloat16"


def test_what_a_config_file_cannot_set_stands_above_it() -> None:
    text = artefact(Artefact.YAML, planned(max_model_len=50_000, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}))
    assert text.splitlines()[0] == "# export VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"
    assert yaml.safe_load(text)["model"] == "Qwen/Qwen3-32B"


def test_nothing_is_an_alias() -> None:
    assert "&id" not in artefact(Artefact.KUBERNETES, planned())


def test_yaml_is_read_back() -> None:
    document = yaml.safe_load(artefact(Artefact.YAML, planned(enforce_eager=True)))
    assert document == {
        "model": "Qwen/Qwen3-32B", "tensor-parallel-size": 4, "gpu-memory-utilization": 0.85, "max-model-len": 8192,
        "enforce-eager": True,
    }  # fmt: skip


def test_docker_takes_as_many_gpus_as_ranks() -> None:
    words = shlex.split(artefact(Artefact.DOCKER, planned()).replace("\\\n", " "))
    assert words[:2] == ["docker", "run"]
    assert words[words.index("--gpus") + 1] == '"device=0,1,2,3"'
    assert words[-len(FLAGS) :] == FLAGS


def test_docker_on_ascend_and_amd_passes_devices() -> None:
    ascend = artefact(Artefact.DOCKER, planned(accelerator="Ascend-910B3-64GB", engine="vllm-ascend"))
    assert "--device /dev/davinci3" in ascend
    assert "--gpus" not in ascend
    assert "/dev/kfd" in artefact(Artefact.DOCKER, planned(accelerator="MI300X-192GB"))


def test_compose_on_ascend_mounts_the_driver() -> None:
    ascend = planned(accelerator="Ascend-910B3-64GB", engine="vllm-ascend")
    service = yaml.safe_load(artefact(Artefact.COMPOSE, ascend))["services"]["vllm"]
    assert "/usr/local/Ascend/driver:/usr/local/Ascend/driver" in service["volumes"]
    assert service["devices"][:1] == ["/dev/davinci0"]
    assert service["image"].startswith("quay.io/ascend/vllm-ascend:v")
    assert "deploy" not in service


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize(
    "card", ["Gaudi3-128GB", {"memory_gib": 64, "vendor": "other", "name": "DCU"}, "Ascend-910B3-64GB"]
)
def test_no_container_is_written_for_a_card_whose_image_is_unknown(kind: Artefact, card: object) -> None:
    elsewhere = planned(accelerator=card, engine="vllm")
    assert not has_image(elsewhere)
    with pytest.raises(ScenarioError, match="no container of vllm") as raised:
        artefact(kind, elsewhere)
    assert raised.value.code == "no-container-image"
    assert artefact(Artefact.COMMAND, elsewhere).startswith("vllm serve")


def test_overheads_of_a_vendor_without_published_starts_are_said_to_be_of_another() -> None:
    other = planned(accelerator={"memory_gib": 64, "vendor": "other", "name": "DCU"})
    assert "overheads-of-another-vendor" in [notice.code for notice in other.notices]
    assert "overheads-of-another-vendor" not in [notice.code for notice in planned().notices]


def test_compose_reserves_the_gpus() -> None:
    service = yaml.safe_load(artefact(Artefact.COMPOSE, planned()))["services"]["vllm"]
    assert service["command"] == ["--model", "Qwen/Qwen3-32B", *FLAGS]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["count"], device["capabilities"]) == (4, ["gpu"])


def test_kubernetes_selects_what_it_labels_and_probes_long_enough() -> None:
    deployment, service = yaml.safe_load_all(artefact(Artefact.KUBERNETES, planned()))
    template = deployment["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    (container,) = template["spec"]["containers"]
    assert container["resources"]["limits"] == container["resources"]["requests"] == {"nvidia.com/gpu": "4"}
    assert container["args"] == ["--model", "Qwen/Qwen3-32B", *FLAGS]
    probe = container["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] == start_seconds(planned())
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in template["spec"]["volumes"]}


def test_systemd_unit_is_an_ini_file_that_starts_the_same_command() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(artefact(Artefact.SYSTEMD, planned()))
    assert shlex.split(unit["Service"]["ExecStart"]) == [
        "/usr/bin/env",
        "vllm",
        "serve",
        "Qwen/Qwen3-32B",
        *FLAGS,
    ]
    assert int(unit["Service"]["TimeoutStartSec"]) == start_seconds(planned())


def test_a_length_above_the_model_carries_its_environment() -> None:
    long = planned(max_model_len=65536)
    assert launch_command(long).startswith("VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve")
    (container,) = next(yaml.safe_load_all(artefact(Artefact.KUBERNETES, long)))["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["env"] == [{"name": "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "value": "1"}]


@pytest.mark.parametrize("kind", list(Artefact))
def test_a_hostile_model_name_stays_one_word(kind: Artefact) -> None:
    config = planned().scenario.config.raw
    name = "x; rm -rf $HOME `id` %h \"'\\ #\u2028"
    with pytest.raises(ValueError, match="printable"):
        planned(model=name, config=config)
    name = "x; rm -rf $HOME `id` %h \"'\\ #"
    text = artefact(kind, planned(model=name, config=config))
    if kind in (Artefact.COMMAND, Artefact.DOCKER):
        assert name in shlex.split(text.replace("\\\n", " "))
    elif kind is Artefact.YAML:
        assert yaml.safe_load(text)["model"] == name
    elif kind is Artefact.COMPOSE:
        assert yaml.safe_load(text)["services"]["vllm"]["command"][1] == name
    elif kind is Artefact.KUBERNETES:
        container = next(yaml.safe_load_all(text))["spec"]["template"]["spec"]["containers"][0]
        assert container["args"][1] == name
        assert kubernetes_name(name).replace("-", "").isalnum()
    else:
        assert '"x; rm -rf $$HOME `id` %%h \\"\'\\\\ #"' in text


def test_speculative_config_is_json_in_one_word() -> None:
    command = launch_command(planned(speculative_config={"method": "ngram", "num_speculative_tokens": 2}))
    words = shlex.split(command)
    assert json.loads(words[words.index("--speculative-config") + 1]) == {
        "method": "ngram",
        "num_speculative_tokens": 2,
    }


@pytest.mark.parametrize("version", ["0.33.0", "0.28.0", "0.19.0", "0.11.0", "0.9.2"])
def test_the_expected_lines_are_lines_that_the_log_reader_knows(version: str) -> None:
    got = planned(engine_version=version)
    log = read_log("\n".join(f"INFO 11-21 10:00:00 [x.py:1] {line}" for line in expected_log_lines(got)))
    rank = log.worst_rank
    assert got.cache is not None
    assert rank is not None
    assert rank.weights_gib is not None
    assert rank.weights_gib.value == pytest.approx(got.loaded_weights.value / 2**30, abs=0.006)
    assert log.figures.kv_tokens is not None
    assert log.figures.kv_tokens.value == got.cache.tokens
    assert log.figures.max_concurrency is not None
    assert log.figures.max_concurrency.value == pytest.approx(got.cache.max_concurrency, abs=0.006)


def test_a_start_that_fails_prints_none_of_them() -> None:
    assert expected_log_lines(planned(tensor_parallel_size=1)) == ()


@pytest.mark.parametrize(
    ("version", "request_fields", "words"),
    [
        ("0.33.0", {"max_cudagraph_capture_size": 64}, ["--max-cudagraph-capture-size", "64"]),
        ("0.11.1", {"max_cudagraph_capture_size": 64}, ["--max-cudagraph-capture-size", "64"]),
        ("0.11.0", {"max_cudagraph_capture_size": 64}, ["--cuda-graph-sizes", "64"]),
        ("0.9.2", {"max_cudagraph_capture_size": 64}, ["--cuda-graph-sizes", "64"]),
        ("0.33.0", {"cudagraph_capture_sizes": [4, 1, 2]}, ["--cudagraph-capture-sizes", "1", "2", "4"]),
        (
            "0.11.0",
            {"cudagraph_capture_sizes": [1, 2, 9000], "max_num_batched_tokens": 8192},
            ["--compilation-config", '{"cudagraph_capture_sizes":[1,2]}'],
        ),
        (
            "0.8.5",
            {"cudagraph_capture_sizes": [1, 2]},
            ["--compilation-config", '{"cudagraph_capture_sizes":[1,2]}'],
        ),
        ("0.33.0", {"cudagraph_mode": "FULL"}, ["--compilation-config", '{"cudagraph_mode":"FULL"}']),
        ("0.33.0", {}, []),
    ],
)
def test_graph_flags_are_those_of_the_release(
    version: str, request_fields: dict[str, Any], words: list[str]
) -> None:
    start = planned(engine_version=version, **request_fields)
    behind = shlex.split(launch_command(start))[3:]
    given = [*FLAGS]
    if tokens := request_fields.get("max_num_batched_tokens"):
        given += ["--max-num-batched-tokens", str(tokens)]
    assert behind == [*given, *words]


def test_a_list_of_sizes_is_a_list_in_a_config_file() -> None:
    written = yaml.safe_load(artefact(Artefact.YAML, planned(cudagraph_capture_sizes=[1, 2, 4])))
    assert written["cudagraph-capture-sizes"] == [1, 2, 4]
    compose = yaml.safe_load(artefact(Artefact.COMPOSE, planned(cudagraph_capture_sizes=[1, 2, 4])))
    command = compose["services"]["vllm"]["command"]
    assert command[command.index("--cudagraph-capture-sizes") :][1:4] == ["1", "2", "4"]


PRIVATE = {"config": dict(catalogue.find_model("Qwen/Qwen3-32B").config.raw)}


@pytest.mark.parametrize("kind", Artefact)
def test_a_model_without_name_leaves_a_place_to_fill_in(kind: Artefact) -> None:
    unnamed = plan(scenario_from_request({"accelerator": "L40S-48GB", "tensor_parallel_size": 4, **PRIVATE}))
    text = artefact(kind, unnamed)
    assert "/path/to/your/model" in text
    assert "config.json" not in text
    assert "serve /path/to/your/model" in launch_command(unnamed)


def test_a_path_is_mounted_where_the_container_looks_for_it() -> None:
    local = planned(model="/models/my 32b", **PRIVATE)
    words = shlex.split(artefact(Artefact.DOCKER, local).replace("\\\n", " "))
    assert "/models/my 32b:/models/my 32b:ro" in words
    service = yaml.safe_load(artefact(Artefact.COMPOSE, local))["services"]["vllm"]
    assert "/models/my 32b:/models/my 32b:ro" in service["volumes"]
    for strange in ("/models/a:b", "/models/$HOME", "owner/name"):
        text = artefact(Artefact.DOCKER, planned(model=strange, **PRIVATE))
        assert ":ro" not in text


def test_a_name_that_looks_like_a_flag_is_none() -> None:
    dashed = planned(model="--trust-remote-code", **PRIVATE)
    assert shlex.split(launch_command(dashed))[2] == "./--trust-remote-code"
