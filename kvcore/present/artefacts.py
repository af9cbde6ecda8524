"""What ops copy after planning: the same launch as a YAML config, a container, a unit, a deployment.

Every artefact is built from `launch_arguments` as data and written by a real writer (shlex, YAML), so that a model
name with a quote or a space cannot break out of it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

import yaml

from kvcore.catalogue.accelerators import Vendor
from kvcore.errors import ScenarioError
from kvcore.plan import Plan
from kvcore.present.launch import (
    launch_arguments,
    launch_environment,
    launch_program,
    launch_words,
    served_model,
)
from kvcore.scenario import Engine

PORT: Final = 8000
VOLUMES: Final = ("~/.cache/huggingface:/root/.cache/huggingface", "~/.cache/vllm:/root/.cache/vllm")
"""Checkpoints, and compiled kernels: a restart that finds them has more for its KV cache."""
_IMAGES: Final[Mapping[tuple[Engine, Vendor], str]] = {
    (Engine.VLLM, Vendor.NVIDIA): "vllm/vllm-openai",
    (Engine.VLLM, Vendor.AMD): "vllm/vllm-openai-rocm",
    (Engine.VLLM_ASCEND, Vendor.HUAWEI): "quay.io/ascend/vllm-ascend",
}
_ASCEND_DEVICES: Final = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
_ASCEND_DRIVER: Final = "/usr/local/Ascend/driver:/usr/local/Ascend/driver"
"""The driver's libraries, which the image does not have.

Source: vllm-ascend's docs/source/installation.md (0.11.0).
"""
_START_SECONDS_PER_GIB: Final = 4
"""Seconds of start per GiB of weights on one card, for the start-up probe: a slow disk reads 250 MiB/s."""
_START_SECONDS_FLOOR: Final = 600
"""Compilation and graph capture, whatever the size."""


class Artefact(StrEnum):
    """What can be generated."""

    COMMAND = "command"
    YAML = "yaml"
    DOCKER = "docker"
    COMPOSE = "compose"
    KUBERNETES = "kubernetes"
    SYSTEMD = "systemd"


CONTAINERS: Final = (Artefact.DOCKER, Artefact.COMPOSE, Artefact.KUBERNETES)
"""Those that name an image."""


def artefact(kind: Artefact, plan: Plan, *, every_flag: bool = False) -> str:
    """The text of one artefact; `every_flag` writes resolved defaults too.

    Raises ScenarioError for a container where no image for the card is known.
    """
    return _WRITERS[kind](plan, every_flag)


def has_image(plan: Plan) -> bool:
    """Whether the engine is published as a container image for cards of this vendor."""
    return (plan.scenario.engine, plan.accelerator.vendor) in _IMAGES


def no_image(plan: Plan) -> ScenarioError:
    """Why there is no container of this plan, and what to do."""
    return ScenarioError("no-container-image", field="accelerator", engine=plan.scenario.engine.value)


def image(plan: Plan) -> str:
    """The engine's own container image for the planned version and the card's vendor.

    Raises ScenarioError where none is known.
    Source: Docker Hub vllm/vllm-openai and vllm/vllm-openai-rocm; quay.io/ascend/vllm-ascend (tags are releases).
    """
    if not has_image(plan):
        raise no_image(plan)
    return f"{_IMAGES[plan.scenario.engine, plan.accelerator.vendor]}:v{plan.resolved.engine_version}"


def _command(plan: Plan, every_flag: bool) -> str:
    arguments = launch_arguments(plan, every_flag=every_flag)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in launch_environment(plan).items()]
    parts = [shlex.join([*launch_program(plan), served_model(plan)])]
    parts += [shlex.join(launch_words(name, value)) for name, value in arguments.items()]
    return "\n".join([*lines, " \\\n  ".join(parts)]) + "\n"


def _yaml(plan: Plan, every_flag: bool) -> str:
    """For `vllm serve --config`, which has no place for environment variables: they stand above as a comment."""
    comment = "".join(
        f"# export {name}={shlex.quote(value)}\n" for name, value in launch_environment(plan).items()
    )
    arguments = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in launch_arguments(plan, every_flag=every_flag).items()
    }
    return comment + _dump({"model": served_model(plan), **arguments})


def _argv(plan: Plan, every_flag: bool) -> list[str]:
    argv = ["--model", served_model(plan)]
    for name, value in launch_arguments(plan, every_flag=every_flag).items():
        argv += launch_words(name, value)
    return argv


def _docker(plan: Plan, every_flag: bool) -> str:
    image_name = image(plan)
    parts = ["docker run --rm", *_docker_devices(plan), "--ipc=host", f"-p {PORT}:{PORT}"]
    parts += [f"-v {volume}" for volume in VOLUMES]
    parts += [f"-v {shlex.quote(volume)}" for volume in _model_volume(plan)]
    parts += [f"-e {shlex.quote(f'{name}={value}')}" for name, value in launch_environment(plan).items()]
    parts.append(image_name)
    if plan.scenario.engine is not Engine.VLLM:
        parts.append(shlex.join([*launch_program(plan), served_model(plan)]))
        parts += _pairs(_argv(plan, every_flag)[2:])
    else:
        parts += _pairs(_argv(plan, every_flag))
    return " \\\n  ".join(parts) + "\n"


def _model_volume(plan: Plan) -> tuple[str, ...]:
    """A checkpoint on this machine, at the same path inside; one with a colon or a dollar sign cannot be written so."""
    path = served_model(plan)
    return (f"{path}:{path}:ro",) if path.startswith("/") and not set(path) & set(":$") else ()


def _pairs(argv: list[str]) -> list[str]:
    lines: list[list[str]] = []
    for word in argv:
        if word.startswith("--") or not lines:
            lines.append([word])
        else:
            lines[-1].append(word)
    return [shlex.join(line) for line in lines]


def _ranks(plan: Plan) -> int:
    return plan.scenario.parallel.ranks_per_replica * plan.scenario.parallel.data_parallel_size


def _docker_devices(plan: Plan) -> list[str]:
    ranks, vendor = _ranks(plan), plan.accelerator.vendor
    if vendor is Vendor.HUAWEI:
        devices = [f"--device /dev/davinci{rank}" for rank in range(ranks)]
        return [*devices, *(f"--device {path}" for path in _ASCEND_DEVICES), f"-v {_ASCEND_DRIVER}"]
    if vendor is Vendor.AMD:
        return ["--device /dev/kfd", "--device /dev/dri", "--group-add video"]
    return [f"--gpus {shlex.quote(chr(34) + 'device=' + ','.join(map(str, range(ranks))) + chr(34))}"]


def _compose(plan: Plan, every_flag: bool) -> str:
    service: dict[str, Any] = {
        "image": image(plan),
        "command": _argv(plan, every_flag),
        "ports": [f"{PORT}:{PORT}"],
        "ipc": "host",
        "volumes": [*VOLUMES, *_model_volume(plan)],
        "restart": "unless-stopped",
        "healthcheck": {
            "test": [
                "CMD-SHELL",
                f"python3 -c \"import urllib.request as r; r.urlopen('http://127.0.0.1:{PORT}/health')\"",
            ],
            "interval": "15s",
            "timeout": "5s",
            "retries": 3,
            "start_period": f"{start_seconds(plan)}s",
        },
    }
    if environment := dict(launch_environment(plan)):
        service["environment"] = environment
    if plan.scenario.engine is not Engine.VLLM:
        service["command"] = [*launch_program(plan), served_model(plan), *_argv(plan, every_flag)[2:]]
    if plan.accelerator.vendor is Vendor.HUAWEI:
        service["devices"] = [f"/dev/davinci{rank}" for rank in range(_ranks(plan))]
        service["devices"] += _ASCEND_DEVICES
        service["volumes"].append(_ASCEND_DRIVER)
    elif plan.accelerator.vendor is Vendor.AMD:
        service |= {"devices": ["/dev/kfd", "/dev/dri"], "group_add": ["video"]}
    else:
        device = {"driver": "nvidia", "count": _ranks(plan), "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return _dump({"services": {"vllm": service}})


_RESOURCES: Final[Mapping[Vendor, str]] = {
    Vendor.NVIDIA: "nvidia.com/gpu",
    Vendor.AMD: "amd.com/gpu",
    Vendor.HUAWEI: "huawei.com/Ascend910",
}


def start_seconds(plan: Plan) -> int:
    """Seconds that a start may take before a probe should give up, in whole minutes."""
    loaded_gib = plan.weights.total / (1 << 30)
    seconds = (
        _START_SECONDS_FLOOR + _START_SECONDS_PER_GIB * loaded_gib * plan.scenario.parallel.ranks_per_replica
    )
    return int(-(-seconds // 60) * 60)


def _kubernetes(plan: Plan, every_flag: bool) -> str:
    name, image_name = kubernetes_name(plan.scenario.model), image(plan)
    resource = {_RESOURCES[plan.accelerator.vendor]: str(_ranks(plan))}
    probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10, "timeoutSeconds": 5}
    container: dict[str, Any] = {
        "name": "vllm",
        "image": image_name,
        "args": _argv(plan, every_flag),
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {"limits": resource, "requests": resource},
        "startupProbe": {**probe, "failureThreshold": start_seconds(plan) // 10},
        "readinessProbe": {**probe, "failureThreshold": 3},
        "livenessProbe": {**probe, "failureThreshold": 6},
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "cache", "mountPath": "/root/.cache"},
        ],
    }
    if plan.scenario.engine is not Engine.VLLM:
        container["command"] = [*launch_program(plan), served_model(plan)]
        container["args"] = _argv(plan, every_flag)[2:]
    if environment := launch_environment(plan):
        container["env"] = [{"name": key, "value": value} for key, value in environment.items()]
    labels = {"app.kubernetes.io/name": name}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "strategy": {"type": "Recreate"},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [container],
                    "volumes": [
                        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
                        {"name": "cache", "emptyDir": {}},
                    ],
                },
            },
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"selector": labels, "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]},
    }
    return _dump(deployment) + "---\n" + _dump(service)


def kubernetes_name(model: str) -> str:
    """A DNS label from a model id.

    Example:
        >>> kubernetes_name("Qwen/Qwen3-32B")
        'vllm-qwen3-32b'
    """
    label = re.sub(r"[^a-z0-9]+", "-", model.rsplit("/", 1)[-1].lower()).strip("-")
    return f"vllm-{label}"[:63].rstrip("-")


def _systemd(plan: Plan, every_flag: bool) -> str:
    argv = [*launch_program(plan), served_model(plan), *_argv(plan, every_flag)[2:]]
    environment = [
        f"Environment={_systemd_word(f'{name}={value}')}" for name, value in launch_environment(plan).items()
    ]
    lines = [
        "[Unit]",
        f"Description=vLLM server for {served_model(plan).replace('%', '%%')}",
        "After=network-online.target",
        "Wants=network-online.target",
        "",
        "[Service]",
        *environment,
        "ExecStart=/usr/bin/env " + " ".join(_systemd_word(word) for word in argv),
        f"TimeoutStartSec={start_seconds(plan)}",
        "Restart=on-failure",
        "RestartSec=10",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def _systemd_word(word: str) -> str:
    """Quoted as systemd.syntax(7) wants it: % and $ doubled, C-style escapes in double quotes."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if re.search(r"[^A-Za-z0-9_@%+=:,./$-]", word) else escaped


def _dump(document: Mapping[str, Any]) -> str:
    text: str = yaml.dump(dict(document), Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=110)
    return text


class _PlainDumper(yaml.SafeDumper):
    """Writes a part that is used twice twice: people edit these files."""

    def ignore_aliases(self, data: object) -> bool:
        return True


_WRITERS: Final[Mapping[Artefact, Callable[[Plan, bool], str]]] = {
    Artefact.COMMAND: _command,
    Artefact.YAML: _yaml,
    Artefact.DOCKER: _docker,
    Artefact.COMPOSE: _compose,
    Artefact.KUBERNETES: _kubernetes,
    Artefact.SYSTEMD: _systemd,
}
