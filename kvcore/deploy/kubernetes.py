"""The planned start as a Kubernetes deployment, with the claim that keeps its caches and the service before it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from kvcore.catalogue.accelerators import Vendor
from kvcore.deploy.docker import image, yaml_text
from kvcore.deploy.launch import (
    PORT,
    TOKEN,
    launch_argv,
    launch_environment,
    launch_program,
    local_model,
    needs_token,
    ranks_of,
    served_model,
    start_seconds,
)
from kvcore.engine.rooms import find_engine
from kvcore.planning import Plan
from kvcore.units import GIB, ceil_div, round_up

SECRET: Final = "huggingface"
"""The secret with the token of the Hub, and its key."""
SECRET_KEY: Final = "token"
_RESOURCES: Final[Mapping[Vendor, str]] = {
    Vendor.NVIDIA: "nvidia.com/gpu",
    Vendor.AMD: "amd.com/gpu",
    Vendor.HUAWEI: "huawei.com/Ascend910",
}
_KERNELS_GIB: Final = 20
"""Room for compiled kernels of a few releases next to the checkpoint."""


def kubernetes_text(plan: Plan, every_flag: bool) -> str:
    """Claim, deployment and service, and above them how the secret of a gated model is made."""
    name = kubernetes_name(plan.scenario.model)
    labels = {"app.kubernetes.io/name": name}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{name}-cache", "labels": labels},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": f"{_cache_gib(plan)}Gi"}},
        },
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "strategy": {"type": "Recreate"},
            "template": {"metadata": {"labels": labels}, "spec": _pod(plan, name, every_flag)},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"selector": labels, "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]},
    }
    secret = f"# kubectl create secret generic {SECRET} --from-literal={SECRET_KEY}=hf_...\n"
    head = secret if _asks_for_token(plan) else ""
    return head + "---\n".join(yaml_text(document) for document in (claim, deployment, service))


def _pod(plan: Plan, name: str, every_flag: bool) -> dict[str, Any]:
    image_name = image(plan)
    resource = {_RESOURCES[plan.accelerator.vendor]: str(ranks_of(plan))}
    probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10, "timeoutSeconds": 5}
    argv = launch_argv(plan, every_flag=every_flag)
    container: dict[str, Any] = {
        "name": "vllm",
        "image": image_name,
        "args": _literal(argv),
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
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
        {"name": "cache", "persistentVolumeClaim": {"claimName": f"{name}-cache"}},
    ]
    if (model := local_model(plan)) is not None:
        container["volumeMounts"].append({"name": "model", "mountPath": model, "readOnly": True})
        volumes.append({"name": "model", "hostPath": {"path": model, "type": "Directory"}})
    if not find_engine(plan.scenario.engine).launch.image_starts_server:
        container["command"] = _literal([*launch_program(plan), served_model(plan)])
        container["args"] = _literal(argv[2:])
    if environment := _environment(plan):
        container["env"] = environment
    return {"containers": [container], "volumes": volumes}


def _asks_for_token(plan: Plan) -> bool:
    return needs_token(plan) and TOKEN not in launch_environment(plan)


def _environment(plan: Plan) -> list[dict[str, Any]]:
    given = launch_environment(plan)
    entries: list[dict[str, Any]] = [
        {"name": name, "value": value.replace("$", "$$")} for name, value in given.items()
    ]
    if _asks_for_token(plan):
        reference = {"secretKeyRef": {"name": SECRET, "key": SECRET_KEY}}
        entries.append({"name": TOKEN, "valueFrom": reference})
    return entries


def _literal(words: list[str]) -> list[str]:
    """With each dollar sign doubled: the kubelet replaces `$(NAME)` in commands, arguments and variables.

    Source: kubernetes third_party/forked/golang/expansion/expand.go (1.34): "$$" is "$".
    """
    return [word.replace("$", "$$") for word in words]


def _cache_gib(plan: Plan) -> int:
    """Room for the checkpoint and for compiled kernels, in tens of GiB."""
    known = plan.scenario.checkpoint.total_size
    held = known or plan.weights.total * plan.scenario.parallel.ranks_per_replica
    return round_up(ceil_div(int(held), GIB) + _KERNELS_GIB, 10)


def kubernetes_name(model: str) -> str:
    """A DNS label from a model id.

    Example:
        >>> kubernetes_name("Qwen/Qwen3-32B")
        'vllm-qwen3-32b'
    """
    label = re.sub(r"[^a-z0-9]+", "-", model.rsplit("/", 1)[-1].lower()).strip("-")
    return f"vllm-{label}"[:50].rstrip("-")
