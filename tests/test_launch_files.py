"""Launch files: each is read back by a real parser and asks for what was planned."""

from __future__ import annotations

import configparser
import csv
import json
import os
import re
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvcore import catalogue
from kvcore.base.errors import ScenarioError
from kvcore.deploy.going_live import expected_log_lines
from kvcore.deploy.launch_files import CONTAINERS, Artefact, artefact, kubernetes_name
from kvcore.deploy.server_start import has_image, start_seconds
from kvcore.deploy.shell import launch_command
from kvcore.evidence.log.reader import read_log
from kvcore.planning import Plan, plan
from kvcore.wire.request import scenario_from_request

SYSTEMD = Path("/usr/lib/systemd/systemd")
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


def test_the_folded_command_is_the_same() -> None:
    text = artefact(Artefact.COMMAND, planned())
    assert shlex.split(text.replace("\\\n", " ")) == ["vllm", "serve", "Qwen/Qwen3-32B", *FLAGS]
    assert len(text.splitlines()) == 4


def test_every_flag_writes_resolved_defaults_too() -> None:
    words = shlex.split(artefact(Artefact.COMMAND, planned(), every_flag=True).replace("\\\n", " "))
    assert words[words.index("--max-num-seqs") + 1] == "256"
    assert words[words.index("--max-num-batched-tokens") + 1] == "2048"
    assert words[words.index("--dtype") + 1] == "bfloat16"


def test_settings_outside_a_config_file_are_comments_above_it() -> None:
    text = artefact(Artefact.YAML, planned(max_model_len=50_000, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}))
    assert text.splitlines()[0] == "# export VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"
    assert yaml.safe_load(text)["model"] == "Qwen/Qwen3-32B"


def test_nothing_is_an_alias() -> None:
    assert "&id" not in artefact(Artefact.KUBERNETES, planned())


def test_files_say_the_target_and_what_all_replicas_serve() -> None:
    asked = planned(wanted=40, data_parallel_size=2)
    assert asked.cache is not None
    each = int(asked.cache.max_concurrency)
    said = (
        f"# Wanted at once: 40 requests of 8,192 tokens. Planned: {2 * each}, {each} on each of 2 replicas.\n"
    )
    for kind in (Artefact.YAML, Artefact.COMPOSE, Artefact.KUBERNETES, Artefact.SYSTEMD):
        assert artefact(kind, asked) == said + artefact(kind, planned(data_parallel_size=2))
    for kind in (Artefact.COMMAND, Artefact.DOCKER):
        assert artefact(kind, asked) == artefact(kind, planned(data_parallel_size=2))


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
    assert "/usr/local/Ascend/driver/lib64:/usr/local/Ascend/driver/lib64" in service["volumes"]
    assert "/usr/local/bin/npu-smi:/usr/local/bin/npu-smi" in service["volumes"]
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
    with pytest.raises(ScenarioError, match="no container image of vllm") as raised:
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


def test_kubernetes_selects_its_own_labels_and_probes_long_enough() -> None:
    _, deployment, service = yaml.safe_load_all(artefact(Artefact.KUBERNETES, planned()))
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
    container = pod_of(artefact(Artefact.KUBERNETES, long))["containers"][0]
    assert container["env"] == [{"name": "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "value": "1"}]


NASTY = (
    "x; rm -rf $HOME `id` %h \"'\\ #",
    "a$$b ${HOME:?x} $(VLLM_X) $(( 1 )) 100%n %%",
    "ends with a backslash\\",
    "- 'yes': [no, {a: &b 1}] | > !!int 1 # ~",
    "\\n\\t\\x41 \\u0041 \\$ \\%",
    'models/\u901a\u4e49 \u2013 \U0001f600 "',
    "null",
)
"""Names and values that some reader would expand, unescape, or take for syntax."""


@pytest.mark.parametrize("kind", list(Artefact))
@pytest.mark.parametrize("name", NASTY)
def test_a_hostile_name_and_value_arrive_as_they_are(kind: Artefact, name: str) -> None:
    config = planned().scenario.config.raw
    start = planned(model=name, config=config, env={"VLLM_X": name})
    text, served = artefact(kind, start), f"./{name}" if name.startswith("-") else name
    if kind in (Artefact.COMMAND, Artefact.DOCKER):
        # What a shell would run: bash itself reads the quotes and the continued lines.
        words = words_of_shell(text)
        assert served in words
        assert f"VLLM_X={name}" in words
    elif kind is Artefact.YAML:
        assert yaml.safe_load(text)["model"] == served
        assert shlex.split(text.splitlines()[0]) == ["#", "export", f"VLLM_X={name}"]
    elif kind is Artefact.COMPOSE:
        service = interpolated(yaml.safe_load(text))["services"]["vllm"]
        assert service["command"][1] == served
        assert service["environment"]["VLLM_X"] == name
    elif kind is Artefact.KUBERNETES:
        container = pod_of(text)["containers"][0]
        values = {entry["name"]: expanded(entry["value"], {}) for entry in container["env"]}
        assert values == {"VLLM_X": name}
        assert expanded(container["args"][1], values) == served
        assert kubernetes_name(name).replace("-", "").isalnum()
    else:
        service = unit_of(text)["Service"]
        assert f"VLLM_X={name}" in map(unquoted, service["Environment"])
        (command,) = service["ExecStart"]
        assert shlex.split(command.replace("%%", "%").replace("$$", "$"))[3] == served
        (description,) = unit_of(text)["Unit"]["Description"]
        assert description.replace("%%", "%") == f"vLLM server for {served} on port 8000"


def test_a_name_with_a_line_break_is_refused() -> None:
    for end in ("\n", "\r", "\u2028", "\x00"):
        with pytest.raises(ValueError, match="printable"):
            planned(model=f"a{end}b", config=planned().scenario.config.raw)


@pytest.mark.skipif(not SYSTEMD.exists(), reason="no systemd on this machine")
@pytest.mark.parametrize("name", NASTY)
def test_systemd_itself_reads_the_unit(name: str) -> None:
    config = planned().scenario.config.raw
    unit = artefact(Artefact.SYSTEMD, planned(model=name, config=config, env={"VLLM_X": name}))
    dump = read_by_systemd(unit)
    served = f"./{name}" if name.startswith("-") else name
    assert f"\tDescription: vLLM server for {served} on port 8000\n" in dump
    assert f"\tEnvironment: VLLM_X={name}\n" in dump
    assert "\tUser: vllm\n" in dump
    (command,) = re.findall(r"Command Line: (.*)", dump)
    words = words_of_shell(f"x {command}")
    # systemd writes it as a shell would read it, and reads $$ when the command is run.
    assert [word.replace("$$", "$") for word in words[1:5]] == ["/usr/bin/env", "vllm", "serve", served]


def words_of_shell(text: str) -> list[str]:
    """The words of every command of a script, as bash reads them; nothing is run."""
    script = re.sub(r"^(export|docker|vllm|x) ", r"words \1 ", text, flags=re.MULTILINE)
    told = subprocess.run(
        ["bash", "-c", "words() { printf '%s\\0' \"$@\"; }\n" + script],
        capture_output=True, check=True, env={"HOME": "/nowhere", "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    assert told.stderr == b""
    return told.stdout.decode().split("\0")


def interpolated(part: Any) -> Any:
    """A document as Compose reads it: $$ is a dollar sign, and no variable is left.

    Source: compose-go template/template.go, whose pattern takes $$, $name and ${...}, and calls the rest invalid.
    """
    if isinstance(part, dict):
        return {key: interpolated(value) for key, value in part.items()}
    if isinstance(part, list):
        return [interpolated(value) for value in part]
    if isinstance(part, str):
        assert "$" not in part.replace("$$", "")
        return part.replace("$$", "$")
    return part


def expanded(text: str, known: dict[str, str]) -> str:
    """An argument as the kubelet reads it: a known $(NAME) is replaced, $$ is a dollar sign.

    Source: kubernetes third_party/forked/golang/expansion/expand.go.
    """
    return re.sub(
        r"\$\$|\$\(([^)]*)\)",
        lambda found: "$" if found[0] == "$$" else known.get(found[1], found[0]),
        text,
    )


def pod_of(text: str) -> dict[str, Any]:
    """The pod of the deployment among the documents."""
    (deployment,) = (one for one in yaml.safe_load_all(text) if one["kind"] == "Deployment")
    pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return pod


def unit_of(text: str) -> dict[str, dict[str, list[str]]]:
    """A unit by systemd.syntax(7): keys may be repeated, a backslash at the end continues a line."""
    sections: dict[str, dict[str, list[str]]] = {}
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith(("#", ";")):
            key, value = line.split("=", 1)
            section.setdefault(key, []).append(value)
    return sections


def unquoted(word: str) -> str:
    """One word of Environment=, which has quotes, C escapes and specifiers, and no variables."""
    (plain,) = shlex.split(word)
    return plain.replace("%%", "%")


def read_by_systemd(unit: str) -> str:
    """Errors of systemd about a unit that it would start; it answers only users other than root."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        Path(folder, "vllm.service").write_text(unit, encoding="utf-8")
        told = subprocess.run(
            [SYSTEMD, "--test", "--user", "--unit=vllm.service", "--log-target=console"],
            env={"SYSTEMD_UNIT_PATH": f"{folder}:", "XDG_RUNTIME_DIR": "/tmp", "LC_ALL": "C.UTF-8"},
            capture_output=True, check=True, user="nobody" if os.geteuid() == 0 else None,
        )  # fmt: skip
    dump = (told.stdout + told.stderr).decode()
    return dump.partition("Unit vllm.service:")[2].partition("-> Unit ")[0]


GATED = "meta-llama/Llama-3.3-70B-Instruct"


def gated(**request: Any) -> Plan:
    return planned(model=GATED, accelerator="H100-80GB", **request)


def test_the_token_of_a_gated_model_is_a_reference_never_a_value() -> None:
    compose = yaml.safe_load(artefact(Artefact.COMPOSE, gated()))
    assert compose["secrets"] == {"hf_token": {"environment": "HF_TOKEN"}}
    service = compose["services"]["vllm"]
    assert service["secrets"] == ["hf_token"]
    assert service["environment"] == {"HF_TOKEN_PATH": "/run/secrets/hf_token"}

    container = pod_of(artefact(Artefact.KUBERNETES, gated()))["containers"][0]
    assert container["env"] == [
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "huggingface", "key": "token"}}}
    ]
    words = shlex.split(artefact(Artefact.DOCKER, gated()).replace("\\\n", " "))
    assert words[words.index("-e") + 1] == "HF_TOKEN"
    service = unit_of(artefact(Artefact.SYSTEMD, gated()))["Service"]
    assert service["EnvironmentFile"] == ["/etc/vllm/huggingface.env"]


@pytest.mark.parametrize("kind", [*CONTAINERS, Artefact.SYSTEMD])
def test_open_models_and_given_tokens_need_no_token(kind: Artefact) -> None:
    assert "token" not in artefact(kind, planned()).lower().replace("batched-token", "")
    given = artefact(kind, gated(env={"HF_TOKEN": "hf_given"}))
    assert "hf_given" in given
    assert not {"secrets", "secretKeyRef", "EnvironmentFile"} & set(re.findall(r"\w+", given))


def test_a_gated_draft_needs_the_token_too() -> None:
    draft = {
        "method": "draft_model",
        "model": "meta-llama/Llama-3.2-1B-Instruct",
        "num_speculative_tokens": 2,
    }
    started = planned(model="FlagAlpha/Llama3-Chinese-8B-Instruct", speculative_config=draft)
    assert "secretKeyRef" in artefact(Artefact.KUBERNETES, started)


def test_the_caches_outlive_the_pod_on_a_claim_large_enough() -> None:
    claim, deployment, _ = yaml.safe_load_all(artefact(Artefact.KUBERNETES, planned()))
    assert claim["kind"] == "PersistentVolumeClaim"
    room = claim["spec"]["resources"]["requests"]["storage"]
    checkpoint_bytes = 65_524_246_528  # model.safetensors.index.json of Qwen/Qwen3-32B
    assert 10 * 2**30 < int(room.removesuffix("Gi")) * 2**30 - checkpoint_bytes < 40 * 2**30
    volumes = {one["name"]: one for one in deployment["spec"]["template"]["spec"]["volumes"]}
    assert volumes["cache"] == {
        "name": "cache",
        "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]},
    }


def test_the_unit_runs_as_a_user_who_owns_its_caches() -> None:
    service = unit_of(artefact(Artefact.SYSTEMD, planned()))["Service"]
    assert service["User"] == ["vllm"]
    assert service["CacheDirectory"] == ["vllm"]
    assert "HF_HOME=/var/cache/vllm/huggingface" in service["Environment"]
    own = unit_of(artefact(Artefact.SYSTEMD, planned(env={"HF_HOME": "/data/hub"})))["Service"]
    assert "HF_HOME=/data/hub" in own["Environment"]
    assert len([line for line in own["Environment"] if line.startswith("HF_HOME=")]) == 1


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


def test_a_failing_start_has_no_expected_lines() -> None:
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


@pytest.mark.parametrize(
    "path", ["/models/my 32b", "/models/a:b", "/models/$HOME", '/models/a,"b"', "/models/'x'"]
)
def test_a_path_is_mounted_where_the_container_looks_for_it(path: str) -> None:
    local = planned(model=path, **PRIVATE)
    words = words_of_shell(artefact(Artefact.DOCKER, local))
    (mount,) = csv.reader([words[words.index("--mount") + 1]])
    assert mount == ["type=bind", f"src={path}", f"dst={path}", "readonly"]
    service = interpolated(yaml.safe_load(artefact(Artefact.COMPOSE, local)))["services"]["vllm"]
    assert {"type": "bind", "source": path, "target": path, "read_only": True} in service["volumes"]
    pod = pod_of(artefact(Artefact.KUBERNETES, local))
    assert {"name": "model", "mountPath": path, "readOnly": True} in pod["containers"][0]["volumeMounts"]
    assert {"name": "model", "hostPath": {"path": path, "type": "Directory"}} in pod["volumes"]


def test_a_model_of_the_hub_is_mounted_from_nowhere() -> None:
    for kind in CONTAINERS:
        assert not {"readonly", "read_only", "readOnly"} & set(
            re.findall(r"\w+", artefact(kind, planned(model="owner/name", **PRIVATE)))
        )


def test_a_name_that_looks_like_a_flag_is_not_read_as_one() -> None:
    dashed = planned(model="--trust-remote-code", **PRIVATE)
    assert shlex.split(launch_command(dashed))[2] == "./--trust-remote-code"


@pytest.mark.parametrize("kind", [Artefact.COMMAND, Artefact.DOCKER, Artefact.YAML, Artefact.KUBERNETES])
@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("Qwen/Qwen3-32B", "vllm-ascend/Qwen3-32B-W8A8"),  # docs/source/tutorials/models/Qwen3-Dense.md
        ("Qwen/Qwen3-8B", "/path/to/Qwen3-8B-W8A8"),
        ("deepseek-ai/DeepSeek-V4-Flash", "Eco-Tech/DeepSeek-V4-Flash-w8a8-mtp"),
    ],
)
def test_a_model_without_a_side_file_is_not_started_as_modelslims(
    kind: Artefact, model: str, named: str
) -> None:
    asked = {
        "model": model,
        "accelerator": "Ascend-910B3-64GB",
        "engine": "vllm-ascend",
        "quantization": "ascend",
    }
    text = artefact(
        kind, plan(scenario_from_request(asked | {"tensor_parallel_size": 8, "max_model_len": 8192}))
    )
    assert named in text
    assert f"serve {model}" not in text
    assert f"model: {model}" not in text
    assert ("VLLM_USE_MODELSCOPE" in text) is not named.startswith("/")


def test_a_checkpoint_that_is_modelslims_is_named_as_it_is() -> None:
    config = json.loads(catalogue.find_model("Qwen/Qwen3-8B").config.text)
    for name in ("org/Qwen3-8B-W8A8", "/models/Qwen3-8B"):
        asked = {
            "model": name,
            "config": config,
            "accelerator": "Ascend-910B3-64GB",
            "quantization": "ascend",
        }
        known = plan(scenario_from_request(asked | {"engine": "vllm-ascend", "max_model_len": 8192}))
        assert f"vllm serve {name} " in artefact(Artefact.COMMAND, known)
