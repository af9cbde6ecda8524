"""Limits of the host's memory in launch files."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from kvcore.deploy.launch_files import Artefact, artefact
from kvcore.planning import Plan, plan
from kvcore.wire.request import scenario_from_request

TIER = {"kv_offloading_size": 200, "engine_version": "0.33.0"}


def planned(**asked: Any) -> Plan:
    base = {"model": "Qwen/Qwen3-32B", "accelerator": "H200-141GB", "tensor_parallel_size": 2}
    return plan(scenario_from_request({**base, **asked}))


def container(**asked: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The container of the deployment, and its volume of shared memory."""
    documents = list(yaml.safe_load_all(artefact(Artefact.KUBERNETES, planned(**asked))))
    pod = next(one for one in documents if one["kind"] == "Deployment")["spec"]["template"]["spec"]
    return pod["containers"][0], next(one for one in pod["volumes"] if one["name"] == "shm")["emptyDir"]


def test_a_pod_has_memory_for_the_tier_and_shared_memory_that_holds_it() -> None:
    """200 GiB and a GiB beside in /dev/shm; two workers of 9 GiB, a server of 4: the file counts against the limit."""
    own, shared = container(**TIER)
    assert own["resources"]["limits"]["memory"] == own["resources"]["requests"]["memory"] == "223Gi"
    assert shared["sizeLimit"] == "201Gi"


def test_a_pod_without_a_tier_has_no_limit_of_memory() -> None:
    own, shared = container()
    assert "memory" not in own["resources"]["limits"]
    assert shared["sizeLimit"] == "16Gi"


def test_docker_and_compose_have_both_limits_in_place_of_the_host_s_shared_memory() -> None:
    command = artefact(Artefact.DOCKER, planned(**TIER))
    assert "--shm-size=201g" in command
    assert "--memory=223g" in command
    assert "--ipc=host" not in command
    service = yaml.safe_load(artefact(Artefact.COMPOSE, planned(**TIER)))["services"]["vllm"]
    assert service["shm_size"] == "201gb"
    assert service["deploy"]["resources"]["limits"] == {"memory": "223G"}
    assert "ipc" not in service
    assert yaml.safe_load(artefact(Artefact.COMPOSE, planned()))["services"]["vllm"]["ipc"] == "host"


def test_a_unit_has_a_limit_and_says_how_shared_memory_grows() -> None:
    unit = artefact(Artefact.SYSTEMD, planned(**TIER)).splitlines()
    assert "MemoryMax=223G" in unit
    assert "# mount -o remount,size=201G /dev/shm" in unit


@pytest.mark.parametrize(("version", "is_set"), [("0.26.0", False), ("0.33.0", True)])
def test_the_variable_that_saves_rounding_is_set_where_torch_knows_it(version: str, is_set: bool) -> None:
    own, _ = container(cpu_offload_gb=8, engine_version=version)
    said = {one["name"]: one.get("value") for one in own.get("env", ())}
    assert (said.get("PYTORCH_ALLOC_CONF") == "pinned_max_round_threshold_mb:1") is is_set
