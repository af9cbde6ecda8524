"""Starts on Ascend as files and commands: read back, and every flag one that the release's own parser takes."""

from __future__ import annotations

import html
import shlex
import subprocess
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from kvcore.advice.fixes import refusal_fixes
from kvcore.base import words as texts
from kvcore.base.errors import EngineRefusalError, ScenarioError
from kvcore.charts.plan_report import report_html, ticket_text
from kvcore.contract.result import result_of
from kvcore.deploy.going_live import expected_log_lines
from kvcore.deploy.launch import machines_of
from kvcore.deploy.launch_files import Artefact, artefact
from kvcore.deploy.server_start import image
from kvcore.deploy.shell import launch_command
from kvcore.evidence.log.reader import measured_from, read_log
from kvcore.planning import Plan, plan
from kvcore.wire.request import scenario_from_request
from tests.serve_parsers import ROWS, RefusedError, parsed

EXPERTS = {
    "model": "Qwen/Qwen3-30B-A3B",
    "accelerator": "Ascend-910B4-32GB",
    "tensor_parallel_size": 4,
    "max_model_len": 8192,
    "enable_expert_parallel": True,
}
ENVIRONMENT = {"HCCL_BUFFSIZE": "1024", "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}


def planned(**request: Any) -> Plan:
    return plan(scenario_from_request(EXPERTS | request))


def commands(text: str) -> list[list[str]]:
    """The server's starts in a shell text, without exports and comments."""
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.startswith(("vllm ", "docker "))]


@pytest.mark.parametrize("release", ROWS)
@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("kind", [Artefact.COMMAND, Artefact.DOCKER])
def test_the_releases_parser_takes_every_command(release: str, replicas: int, kind: Artefact) -> None:
    deployment = planned(
        engine_version=release,
        data_parallel_size=replicas,
        max_num_batched_tokens=8192,
        max_num_seqs=16,
        kv_cache_dtype="auto",
        env=ENVIRONMENT,
    )
    found = commands(artefact(kind, deployment, every_flag=True))
    assert len(found) == len(machines_of(deployment)) == max(1, replicas // 2)
    for words in found:
        given = parsed(release, words[words.index("serve") + 1 :])
        assert len(given) >= 8
        assert given["model_tag"] == EXPERTS["model"]
        assert given["max_num_batched_tokens"] == 8192
        assert given["tensor_parallel_size"] == 4


@pytest.mark.parametrize("release", ROWS)
@pytest.mark.parametrize(
    ("request_fields", "flag", "value"),
    [
        ({"quantization": "ascend"}, "quantization", "ascend"),
        ({"block_size": 128}, "block_size", None),
        ({"enforce_eager": True, "enable_prefix_caching": False}, "enforce_eager", True),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 8192}, "max_num_batched_tokens", 8192),
        ({"gpu_memory_utilization": 0.95}, "gpu_memory_utilization", 0.95),
        ({"cudagraph_mode": "FULL_DECODE_ONLY", "max_cudagraph_capture_size": 64}, "compilation_config", None),
        ({"cudagraph_capture_sizes": [1, 2, 4, 8]}, None, None),
        ({"model": "Qwen/Qwen3-VL-30B-A3B-Instruct", "limit_mm_per_prompt": {"image": 2}}, "limit_mm_per_prompt", None),
        (
            {"model": "deepseek-ai/DeepSeek-V3", "tensor_parallel_size": 8, "data_parallel_size": 2,
             "quantization": "ascend", "speculative_config": {"method": "mtp", "num_speculative_tokens": 1}},
            "speculative_config", {"method": "mtp", "num_speculative_tokens": 1},
        ),
        ({"pipeline_parallel_size": 2, "tensor_parallel_size": 8}, "distributed_executor_backend", "ray"),
        ({"num_redundant_experts": 16}, "enable_eplb", True),
        ({"cpu_offload_gb": 4}, "cpu_offload_gb", 4.0),
        ({"runner": "pooling", "model": "Qwen/Qwen3-Embedding-8B"}, None, None),
    ],
)  # fmt: skip
def test_the_releases_parser_takes_the_flags_that_ascend_people_set(
    release: str, request_fields: dict[str, Any], flag: str | None, value: Any
) -> None:
    deployment = planned(engine_version=release, **request_fields)
    first = commands(artefact(Artefact.COMMAND, deployment))[0]
    given = parsed(release, first[first.index("serve") + 1 :])
    if flag is not None:
        assert given[flag] == (value if value is not None else given[flag])


def test_the_parsers_refuse_what_the_releases_refuse() -> None:
    """vllm/engine/arg_utils.py (0.11.0: block sizes are a choice, lengths are numbers; 0.23.0: any, and auto)."""
    for words in (["--block-size", "100"], ["--max-model-len", "auto"], ["--kv-cache-dtype", "nvfp4"]):
        assert parsed("0.23.0", words)
        with pytest.raises(RefusedError):
            parsed("0.11.0", words)
    for words in (["--compilation-config", "{mode"], ["--headless", "yes", "no"], ["--no-such-flag"]):
        with pytest.raises(RefusedError):
            parsed("0.23.0", words)


def test_each_machine_serves_its_own_replicas() -> None:
    first, second = commands(artefact(Artefact.COMMAND, planned(data_parallel_size=4)))
    assert first[first.index("--data-parallel-size-local") + 1] == "2"
    assert first[first.index("--data-parallel-address") + 1] == "$NODE0_IP"
    assert "--headless" not in first
    assert second[second.index("--data-parallel-start-rank") + 1] == "2"
    assert "--headless" in second
    assert '"$NODE0_IP"' in artefact(Artefact.COMMAND, planned(data_parallel_size=4))


def test_the_last_machine_has_the_remaining_replicas() -> None:
    found = machines_of(planned(data_parallel_size=5))
    assert [machine.cards for machine in found] == [8, 8, 4]
    assert [machine.flags["data-parallel-size-local"] for machine in found] == [2, 2, 1]


def test_a_replica_beyond_a_machine_runs_on_ray() -> None:
    text = artefact(Artefact.COMMAND, planned(tensor_parallel_size=4, pipeline_parallel_size=4))
    assert text.index("ray start --head") < text.index("vllm serve") < text.index("ray start --address")
    (server,) = commands(text)
    assert server[server.index("--distributed-executor-backend") + 1] == "ray"


def test_each_of_several_ascend_machines_sets_address_and_interface() -> None:
    """vllm-ascend's docs/source/tutorials/features/ray.md (0.23.0): before the Ray cluster, on each machine."""
    text = artefact(Artefact.COMMAND, planned(tensor_parallel_size=4, pipeline_parallel_size=4))
    first, second = text.split("# 2 / 2")
    for part in (first, second):
        assert 'export HCCL_IF_IP="$LOCAL_IP"' in part
        assert 'export HCCL_SOCKET_IFNAME="$NIC"' in part
        assert part.index("RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES") < part.index("ray start")
    replicas = artefact(Artefact.DOCKER, planned(data_parallel_size=4))
    assert '-e GLOO_SOCKET_IFNAME="$NIC"' in replicas
    assert "RAY_" not in replicas
    own = artefact(Artefact.COMMAND, planned(data_parallel_size=4, env={"HCCL_IF_IP": "10.0.0.7"}))
    assert own.count("HCCL_IF_IP") == 2
    assert "HCCL_IF_IP" not in artefact(Artefact.COMMAND, planned())
    assert "NOSET" not in artefact(Artefact.COMMAND, planned(data_parallel_size=4))


def test_a_part_of_a_machine_leaves_the_other_cards_alone() -> None:
    assert "export ASCEND_RT_VISIBLE_DEVICES=0,1,2,3\n" in artefact(Artefact.COMMAND, planned())
    assert "ASCEND_RT_VISIBLE_DEVICES" not in artefact(Artefact.COMMAND, planned(data_parallel_size=2))
    own = artefact(Artefact.COMMAND, planned(env={"ASCEND_RT_VISIBLE_DEVICES": "4,5,6,7"}))
    assert own.count("ASCEND_RT_VISIBLE_DEVICES") == 1


@pytest.mark.parametrize("kind", [Artefact.COMPOSE, Artefact.KUBERNETES, Artefact.SYSTEMD])
def test_a_file_of_one_machine_refuses_several(kind: Artefact) -> None:
    with pytest.raises(ScenarioError) as raised:
        artefact(kind, planned(data_parallel_size=4))
    assert raised.value.code == "several-machines"
    assert artefact(kind, planned(data_parallel_size=2))


@pytest.mark.parametrize("kind", [Artefact.COMMAND, Artefact.DOCKER, Artefact.COMPOSE])
@pytest.mark.parametrize("field", ["data_parallel_size", "pipeline_parallel_size"])
def test_ten_thousand_starts_are_refused(kind: Artefact, field: str) -> None:
    asked = {"tensor_parallel_size": 16, "pipeline_parallel_size": 1, "data_parallel_size": 1, field: 65_536}
    deployment = planned()
    parallel = replace(deployment.scenario.parallel, **asked)
    deployment = replace(deployment, scenario=replace(deployment.scenario, parallel=parallel))
    with pytest.raises(ScenarioError) as raised:
        artefact(kind, deployment)
    assert (raised.value.code, raised.value.field) == ("too-many-machines", field)


def test_docker_mounts_the_driver_and_between_machines_its_network() -> None:
    (alone,) = commands(artefact(Artefact.DOCKER, planned()))
    assert alone.count("--device") == 4 + 3
    assert "/usr/local/dcmi:/usr/local/dcmi" in alone
    assert "/etc/hccn.conf:/etc/hccn.conf" not in alone
    first, _ = commands(artefact(Artefact.DOCKER, planned(data_parallel_size=4)))
    assert {"--net=host", "/etc/hccn.conf:/etc/hccn.conf"} <= set(first)
    assert first.count("--device") == 8 + 3


def test_kubernetes_asks_the_device_plugin_and_mounts_the_driver() -> None:
    _, deployment, _ = yaml.safe_load_all(artefact(Artefact.KUBERNETES, planned()))
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["resources"]["limits"] == {"huawei.com/Ascend910": "4"}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in spec["volumes"]}
    assert mounts.keys() == volumes.keys()
    assert {name: path for name, path in mounts.items() if name.startswith("driver")} == {
        name: path for name, path in volumes.items() if name.startswith("driver")
    }
    assert "/usr/local/Ascend/driver/lib64" in mounts.values()
    dense = {"model": "Qwen/Qwen3-8B", "enable_expert_parallel": False, "dtype": "float16"}
    small = planned(**dense, accelerator="Ascend-310P3-Duo-48GB", tensor_parallel_size=1)
    assert "huawei.com/Ascend310P: '1'" in artefact(Artefact.KUBERNETES, small)


@pytest.mark.parametrize(
    ("card", "version", "end"),
    [
        ("Ascend-910C-64GB", "0.23.0", "-a3"),
        ("Ascend-910C-64GB", "0.9.1", ""),
        ("Ascend-910B3-64GB", "0.23.0", ""),
    ],
)
def test_the_image_is_that_of_the_card(card: str, version: str, end: str) -> None:
    found = image(planned(accelerator=card, engine_version=version))
    assert found == f"quay.io/ascend/vllm-ascend:v{version}{end}"


@pytest.mark.parametrize(("version", "text"), [("0.11.0", "total memory: "), ("0.23.0", "KV cache memory: ")])
def test_lines_to_expect_are_those_of_the_plug_in(version: str, text: str) -> None:
    deployment = planned(engine_version=version, data_parallel_size=2)
    lines = expected_log_lines(deployment)
    assert lines[0].startswith("Loading model weights took ")
    assert text in lines[1]
    log = read_log("\n".join(lines))
    measured = measured_from(log)
    assert deployment.memory is not None
    assert measured.weights_gib == pytest.approx(deployment.memory.weights.value / 2**30, abs=1e-4)
    assert measured.available_kv_gib == pytest.approx((deployment.available_kv_bytes or 0) / 2**30, abs=0.006)


def test_the_command_of_a_310p_has_dtype_float16() -> None:
    dense = {"model": "Qwen/Qwen3-8B", "accelerator": "Ascend-310P3-Duo-48GB", "max_model_len": 8192}
    found = plan(scenario_from_request(dense))
    (words,) = commands(artefact(Artefact.COMMAND, found))
    assert words[words.index("--dtype") + 1] == "float16"
    with pytest.raises(EngineRefusalError) as raised:
        plan(scenario_from_request(dense | {"dtype": "bfloat16"}))
    assert raised.value.code == "bfloat16-not-on-npu"
    scenario = scenario_from_request(dense | {"dtype": "bfloat16"})
    assert ("dtype", "auto") in [(fix.field, fix.value) for fix in refusal_fixes(scenario, raised.value)]
    assert plan(scenario_from_request(dense | {"dtype": "half"})).resolved.dtype == "float16"


def test_the_model_share_above_the_budget_is_said_with_the_plan() -> None:
    asked = {
        "model": "Qwen/Qwen3-8B",
        "accelerator": "Ascend-910B3-64GB",
        "engine": "vllm-mindspore",
        "gpu_memory_utilization": 0.9,
    }
    codes = {}
    for model in ("57", "58"):
        env = {"ASCEND_TOTAL_MEMORY_GB": "64", "vLLM_MODEL_MEMORY_USE_GB": model}
        found = plan(scenario_from_request(asked | {"env": env}))
        codes[model] = [one.code for one in found.notices]
    # 64 × 0.9 = 57.6
    assert "model-memory-above-budget" not in codes["57"]
    assert "model-memory-above-budget" in codes["58"]


DENSE = {"model": "deepseek-ai/DeepSeek-V3", "accelerator": "H100-80GB", "max_model_len": 32768}
T = texts.words(texts.Language.ENGLISH)


def on_h100(**request: Any) -> Plan:
    return plan(scenario_from_request(DENSE | request))


@pytest.mark.parametrize("release", ["0.18.0", "0.23.0"])
@pytest.mark.parametrize("kind", [Artefact.COMMAND, Artefact.DOCKER])
@pytest.mark.parametrize("sizes", [(16, 1), (8, 2)])
def test_machines_that_share_a_replica_meet_at_the_first_one(
    release: str, kind: Artefact, sizes: tuple[int, int]
) -> None:
    """docs/serving/parallelism_scaling.md (0.18.0), "Running vLLM with MultiProcessing"; Ray is in neither
    requirements/cuda.txt nor docker/Dockerfile of 0.18.0."""
    tensor, pipeline = sizes
    deployment = on_h100(engine_version=release, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline)
    text = artefact(kind, deployment)
    assert "ray" not in text
    assert "export NODE0_IP=" in text
    given = []
    for words in commands(text):
        begin = words.index("serve") + 1 if kind is Artefact.COMMAND else words.index("--model")
        given.append(parsed(release, words[begin:]))
    assert [(one["nnodes"], one["node_rank"], one["master_addr"]) for one in given] == [
        (2, 0, "$NODE0_IP"), (2, 1, "$NODE0_IP"),
    ]  # fmt: skip
    assert [bool(one.get("headless")) for one in given] == [False, True]
    assert {(one["tensor_parallel_size"], one.get("pipeline_parallel_size", 1)) for one in given} == {sizes}


def test_each_machine_uses_a_divisor_of_the_cards() -> None:
    """vllm/engine/arg_utils.py (0.33.0): `--nnodes` must evenly divide the total world size."""
    assert [(one.cards, one.flags["nnodes"]) for one in machines_of(on_h100(tensor_parallel_size=16))] == [
        (8, 2)
    ] * 2
    uneven = on_h100(tensor_parallel_size=4, pipeline_parallel_size=5)
    assert [(one.cards, one.flags["nnodes"]) for one in machines_of(uneven)] == [(5, 4)] * 4
    assert '"device=0,1,2,3,4"' in artefact(Artefact.DOCKER, uneven)
    replicas = machines_of(on_h100(tensor_parallel_size=16, data_parallel_size=2))
    assert [one.flags["node-rank"] for one in replicas] == [0, 1, 2, 3]
    assert {one.flags["nnodes"] for one in replicas} == {4}


@pytest.mark.parametrize("release", ["0.8.5", "0.11.0", "0.17.1"])
def test_before_it_they_join_a_ray_cluster_in_place_of_the_images_server(release: str) -> None:
    """requirements/cuda.txt (0.11.0, 0.17.1) has ray. docker/Dockerfile (0.11.0, 0.17.1) has an ENTRYPOINT, which would
    take `bash -c` as its own arguments."""
    found = commands(artefact(Artefact.DOCKER, on_h100(engine_version=release, tensor_parallel_size=16)))
    places = [words.index(f"vllm/vllm-openai:v{release}") for words in found]
    assert [words[place - 2 : place] for words, place in zip(found, places, strict=True)] == [
        ["--entrypoint", "bash"]
    ] * 2
    behind = [words[place + 1 :] for words, place in zip(found, places, strict=True)]
    assert [words[0] for words in behind] == ["-c", "-c"]
    first, second = (shlex.split(words[1]) for words in behind)
    assert first[:5] == ["ray", "start", "--head", "--port=6379", "&&"]
    assert first[first.index("serve") + 1] == DENSE["model"]
    assert first[-2:] == ["--distributed-executor-backend", "ray"]
    assert second == ["ray", "start", "--address=$NODE0_IP:6379", "&&", "sleep", "infinity"]


def test_an_image_without_an_entry_point_keeps_its_own_way() -> None:
    """vllm-ascend's Dockerfile (0.23.0) ends with CMD ["/bin/bash"]."""
    text = artefact(Artefact.DOCKER, planned(tensor_parallel_size=4, pipeline_parallel_size=4))
    assert "--entrypoint" not in text
    assert " bash -c 'ray start --head" in text


SHARED = [
    {"tensor_parallel_size": 16},
    {"tensor_parallel_size": 8, "pipeline_parallel_size": 2},
    {"tensor_parallel_size": 16, "engine_version": "0.11.0"},
    {"tensor_parallel_size": 4, "data_parallel_size": 4},
]


@pytest.mark.parametrize("request_fields", SHARED)
def test_one_plan_has_one_start_everywhere(request_fields: dict[str, Any]) -> None:
    deployment = on_h100(**request_fields)
    command = artefact(Artefact.COMMAND, deployment).rstrip()
    assert result_of(deployment)["launch"] == launch_command(deployment) == command
    indented = "\n".join(f"    {line}" if line else "" for line in command.splitlines())
    ticket = ticket_text(deployment, "https://example.org/", T)
    assert indented in "\n".join(line.rstrip() for line in ticket.splitlines())
    assert command in html.unescape(report_html(deployment, "https://example.org/", T))


@pytest.mark.parametrize("request_fields", SHARED)
def test_the_config_file_has_the_commands_of_each_machine(request_fields: dict[str, Any]) -> None:
    """File and flags together ask for the same as the command."""
    deployment = on_h100(**request_fields)
    text = artefact(Artefact.YAML, deployment)
    head = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
    assert head[0] == "export NODE0_IP=192.0.2.10"
    flags = yaml.safe_load(text)
    stored = [
        flags.pop("model"),
        *(word for name, value in flags.items() for word in (f"--{name}", str(value))),
    ]
    written = [shlex.split(line) for line in head if line.startswith("vllm serve")]
    assert [words[2:4] for words in written] == [["--config", "config.yaml"]] * len(written)
    assert [["vllm", "serve", *stored, *words[4:]] for words in written] == commands(
        artefact(Artefact.COMMAND, deployment)
    )
    assert [line for line in head if line.startswith("ray")] == [
        line for line in artefact(Artefact.COMMAND, deployment).splitlines() if line.startswith("ray")
    ]


def test_a_start_of_too_many_machines_shows_the_first_ones_command() -> None:
    command = launch_command(on_h100(model="Qwen/Qwen3-32B", tensor_parallel_size=8, data_parallel_size=128))
    (words,) = commands(command)
    assert words[words.index("--data-parallel-size-local") + 1] == "1"
    assert "# 1 / 128" in command


EXPANDING = """{ vllm() { printf '%s\\0' "$@"; }; ray() { :; }; sleep() { :; }
docker() { printf '%s\\0' "$@"; }; }; NODE0_IP=10.0.0.1; """


@pytest.mark.parametrize("name", ["$NODE0_IP", "'$NODE0_IP'", '"$NODE0_IP"', "${NODE0_IP}/$NODE0_IP"])
@pytest.mark.parametrize("kind", [Artefact.COMMAND, Artefact.DOCKER])
@pytest.mark.parametrize(
    "size", [{"data_parallel_size": 16}, {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}]
)
def test_a_shell_expands_our_own_places_alone(name: str, kind: Artefact, size: dict[str, int]) -> None:
    found = planned(model="Qwen/Qwen3-8B", accelerator="H100-80GB", **size)
    text = artefact(kind, replace(found, scenario=replace(found.scenario, model=name)))
    script = EXPANDING + text.replace("export NODE0_IP=", ": ")
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split(
        "\0"
    )
    # What a container runs in a shell of its own is expanded there.
    inner = [word for word in said if "vllm serve" in word]
    for line in inner:
        told = subprocess.run(["bash", "-c", EXPANDING + line], capture_output=True, text=True, check=True)
        said += told.stdout.split("\0")
    assert name in said
    if "data_parallel_size" in size:
        assert said[said.index("--data-parallel-address") + 1] == "10.0.0.1"


LLM_DATA_DIST = {"kv_connector": "LLMDataDistCMgrConnector", "kv_role": "kv_producer"}
VARIABLE = "DISAGGREGATED_PREFILL_RANK_TABLE_PATH"


@pytest.mark.parametrize(
    ("release", "transfer", "folder"),
    [
        ("0.9.1", LLM_DATA_DIST, "disaggregate_prefill_v1"),
        ("0.11.0", LLM_DATA_DIST, "disaggregated_prefill_v1"),
        ("0.13.0", LLM_DATA_DIST, None),
        ("0.11.0", {"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_producer"}, None),
        ("0.11.0", None, None),
    ],
)
def test_one_connector_of_former_releases_wants_a_rank_table(
    release: str, transfer: dict[str, str] | None, folder: str | None
) -> None:
    """vllm_ascend/distributed/llmdatadist_c_mgr_connector.py:read_offline_rank_table (0.9.1, 0.11.0; gone in 0.12)."""
    more = {} if transfer is None else {"kv_transfer_config": transfer}
    text = artefact(Artefact.COMMAND, planned(engine_version=release, data_parallel_size=4, **more))
    if folder is None:
        assert VARIABLE not in text
        assert "ranktable" not in text
        return
    place = f"/vllm-workspace/vllm-ascend/examples/{folder}"
    machines = len(machines_of(planned(engine_version=release, data_parallel_size=4, **more)))
    assert text.count(f"export {VARIABLE}={place}/ranktable.json\n") == machines
    assert (
        f"# bash {place}/gen_ranktable.sh --ips ... --npus-per-node 8 --network-card-name ... "
        "--prefill-device-cnt 16 --decode-device-cnt ...\n"
    ) in text


def test_a_server_that_answers_counts_its_own_cards_and_a_path_that_is_given_stays() -> None:
    transfer = {**LLM_DATA_DIST, "kv_role": "kv_consumer"}
    deployment = planned(
        engine_version="0.11.0", kv_transfer_config=transfer, env={VARIABLE: "/data/table.json"}
    )
    text = artefact(Artefact.COMMAND, deployment)
    assert "--prefill-device-cnt ... --decode-device-cnt 4\n" in text
    assert f"export {VARIABLE}=/data/table.json\n" in text
    assert text.count(VARIABLE) == 1
