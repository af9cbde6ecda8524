"""The planned start as a container: an image, its devices, what must outlive it; Docker and Compose."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Mapping
from typing import Any, Final

import yaml

from kvcore.catalogue.accelerators import Vendor
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
from kvcore.errors import ScenarioError
from kvcore.planning import Plan

VOLUMES: Final = ("~/.cache/huggingface:/root/.cache/huggingface", "~/.cache/vllm:/root/.cache/vllm")
"""Checkpoints, and compiled kernels: a restart that finds them has more for its KV cache."""
_SECRET: Final = "hf_token"
_ASCEND_DEVICES: Final = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
_ASCEND_DRIVER: Final = "/usr/local/Ascend/driver:/usr/local/Ascend/driver"
"""The driver's libraries, which the image does not have.

Source: vllm-ascend's docs/source/installation.md (0.11.0).
"""


def has_image(plan: Plan) -> bool:
    """Whether the engine is published as a container image for cards of this vendor."""
    return find_engine(plan.scenario.engine).launch.image_for(plan.accelerator.vendor) is not None


def no_image(plan: Plan) -> ScenarioError:
    """Why there is no container of this plan, and what to do."""
    return ScenarioError("no-container-image", field="accelerator", engine=plan.scenario.engine)


def image(plan: Plan) -> str:
    """The engine's own container image for the planned version and the card's vendor.

    Raises ScenarioError where none is known.
    """
    name = find_engine(plan.scenario.engine).launch.image_for(plan.accelerator.vendor)
    if name is None:
        raise no_image(plan)
    return f"{name}:v{plan.resolved.engine_version}"


def docker_text(plan: Plan, every_flag: bool) -> str:
    """`docker run`; the token of a gated model comes from the shell's own HF_TOKEN, by name."""
    image_name = image(plan)
    parts = ["docker run --rm", *_docker_devices(plan), "--ipc=host", f"-p {PORT}:{PORT}"]
    parts += [f"-v {volume}" for volume in VOLUMES]
    if (model := local_model(plan)) is not None:
        parts.append(f"--mount {shlex.quote(_mount(model))}")
    environment = launch_environment(plan)
    parts += [f"-e {shlex.quote(f'{name}={value}')}" for name, value in environment.items()]
    if needs_token(plan) and TOKEN not in environment:
        parts.append(f"-e {TOKEN}")
    parts.append(image_name)
    argv = launch_argv(plan, every_flag=every_flag)
    if not find_engine(plan.scenario.engine).launch.image_starts_server:
        parts.append(shlex.join([*launch_program(plan), served_model(plan)]))
        argv = argv[2:]
    return " \\\n  ".join([*parts, *_pairs(argv)]) + "\n"


def _mount(path: str) -> str:
    """A folder at the same path inside, as `--mount` reads it: one record of CSV, so any path can be written."""
    record = io.StringIO()
    csv.writer(record, lineterminator="").writerow(["type=bind", f"src={path}", f"dst={path}", "readonly"])
    return record.getvalue()


def _pairs(argv: list[str]) -> list[str]:
    lines: list[list[str]] = []
    for word in argv:
        if word.startswith("--") or not lines:
            lines.append([word])
        else:
            lines[-1].append(word)
    return [shlex.join(line) for line in lines]


def _docker_devices(plan: Plan) -> list[str]:
    ranks, vendor = ranks_of(plan), plan.accelerator.vendor
    if vendor is Vendor.HUAWEI:
        devices = [f"--device /dev/davinci{rank}" for rank in range(ranks)]
        return [*devices, *(f"--device {path}" for path in _ASCEND_DEVICES), f"-v {_ASCEND_DRIVER}"]
    if vendor is Vendor.AMD:
        return ["--device /dev/kfd", "--device /dev/dri", "--group-add video"]
    return [f"--gpus {shlex.quote(chr(34) + 'device=' + ','.join(map(str, range(ranks))) + chr(34))}"]


def compose_text(plan: Plan, every_flag: bool) -> str:
    """compose.yaml; the token of a gated model is a secret from the shell's HF_TOKEN, not in the environment."""
    service: dict[str, Any] = {
        "image": image(plan),
        "command": launch_argv(plan, every_flag=every_flag),
        "ports": [f"{PORT}:{PORT}"],
        "ipc": "host",
        "volumes": list(VOLUMES),
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
    if (model := local_model(plan)) is not None:
        service["volumes"].append({"type": "bind", "source": model, "target": model, "read_only": True})
    environment, document = dict(launch_environment(plan)), {"services": {"vllm": service}}
    if needs_token(plan) and TOKEN not in environment:
        environment["HF_TOKEN_PATH"] = f"/run/secrets/{_SECRET}"
        service["secrets"] = [_SECRET]
        document["secrets"] = {_SECRET: {"environment": TOKEN}}
    if environment:
        service["environment"] = environment
    if not find_engine(plan.scenario.engine).launch.image_starts_server:
        service["command"] = [*launch_program(plan), served_model(plan), *service["command"][2:]]
    if plan.accelerator.vendor is Vendor.HUAWEI:
        service["devices"] = [f"/dev/davinci{rank}" for rank in range(ranks_of(plan))]
        service["devices"] += _ASCEND_DEVICES
        service["volumes"].append(_ASCEND_DRIVER)
    elif plan.accelerator.vendor is Vendor.AMD:
        service |= {"devices": ["/dev/kfd", "/dev/dri"], "group_add": ["video"]}
    else:
        device = {"driver": "nvidia", "count": ranks_of(plan), "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return yaml_text(_literal(document))


def _literal(part: Any) -> Any:
    """With each dollar sign doubled: Compose replaces variables in every text.

    Source: compose-spec, 12-interpolation.md: "use a double-dollar sign ($$)".
    """
    if isinstance(part, str):
        return part.replace("$", "$$")
    if isinstance(part, Mapping):
        return {key: _literal(value) for key, value in part.items()}
    return [_literal(value) for value in part] if isinstance(part, list) else part


def yaml_text(document: Mapping[str, Any]) -> str:
    """The document in the order of its keys, block style."""
    text: str = yaml.dump(dict(document), Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=110)
    return text


class _PlainDumper(yaml.SafeDumper):
    """Writes a part that is used twice twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True
