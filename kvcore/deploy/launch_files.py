"""Launch files: the start of a plan as a command, a YAML config, a container, a systemd unit, a Kubernetes deployment.

Each is built from the start as data and written by a real writer (shlex, CSV, YAML) that knows what its reader
expands, so that a model name with a quote, a space or a dollar sign cannot break out of it.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from itertools import chain
from typing import Any, Final

from kvcore.advice.target import served
from kvcore.base.errors import ScenarioError
from kvcore.base.numbers import count
from kvcore.base.units import GIB, ceil_div, round_up
from kvcore.deploy.launch import FIRST, MODELSCOPE, PORT, Machine
from kvcore.deploy.server_start import TOKEN, ServerStart, image, start_of, start_seconds
from kvcore.deploy.shell import (
    before_server,
    exports,
    folded,
    on_machine,
    own_exports,
    several_machines,
)
from kvcore.deploy.templates import filled, yaml_text
from kvcore.planning import Plan

VOLUMES: Final = ("~/.cache/huggingface:/root/.cache/huggingface", "~/.cache/vllm:/root/.cache/vllm")
"""Checkpoints, and compiled kernels: a restart that finds them has more for its KV cache."""
MODELSCOPE_VOLUME: Final = "~/.cache/modelscope:/root/.cache/modelscope"
SECRET: Final = "huggingface"
"""The Kubernetes secret with the token of the Hub, and its key."""
SECRET_KEY: Final = "token"
TOKEN_FILE: Final = "/etc/vllm/huggingface.env"
_CACHES: Final = {"HF_HOME": "/var/cache/vllm/huggingface", "VLLM_CACHE_ROOT": "/var/cache/vllm/kernels"}
"""Checkpoints and compiled kernels, in the folder that CacheDirectory= makes."""
SHM_GIB: Final = 16
"""Limit of /dev/shm in Kubernetes where no tier lies in it."""
_KERNELS_GIB: Final = 20
"""Disk space for the compiled kernels of a few releases, next to the checkpoint."""


class Artefact(StrEnum):
    """Kinds of launch files."""

    COMMAND = "command"
    YAML = "yaml"
    DOCKER = "docker"
    COMPOSE = "compose"
    KUBERNETES = "kubernetes"
    SYSTEMD = "systemd"


FILE_NAMES: Final = {
    Artefact.COMMAND: "serve.sh",
    Artefact.YAML: "config.yaml",
    Artefact.DOCKER: "docker-run.sh",
    Artefact.COMPOSE: "compose.yaml",
    Artefact.KUBERNETES: "deployment.yaml",
    Artefact.SYSTEMD: "vllm.service",
}
CONTAINERS: Final = (Artefact.DOCKER, Artefact.COMPOSE, Artefact.KUBERNETES)
"""Files that name a container image."""


def artefact(kind: Artefact, plan: Plan, *, every_flag: bool = False) -> str:
    """The text of one launch file; `every_flag` writes resolved defaults too.

    Raises ScenarioError for a container where no image for the card is known, and for a file of one machine where the
    start takes several.
    """
    start = start_of(plan, every_flag=every_flag)
    if kind in _OF_ONE_MACHINE and (number := len(start.machines)) > 1:
        raise ScenarioError("several-machines", field="data_parallel_size", machines=str(number))
    return (target_note(plan) if kind in _FILES else "") + _WRITERS[kind](start)


def target_note(plan: Plan) -> str:
    """A comment with the requests at once that are wanted and those that the plan serves; "" without a target.

    Example:
        >>> from kvcore.planning import plan
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "wanted": 4, "data_parallel_size": 2}
        >>> print(target_note(plan(scenario_from_request({**asked, "max_model_len": 40960}))))
        # Wanted at once: 4 requests of 40,960 tokens. Planned: 18, 9 on each of 2 replicas.
        <BLANKLINE>
    """
    found = served(plan)
    if found is None:
        return ""
    each = f", {count(found.per_replica)} on each of {found.replicas} replicas" if found.replicas > 1 else ""
    return (
        f"# Wanted at once: {count(found.wanted)} requests of {count(plan.resolved.max_model_len)} tokens. "
        f"Planned: {count(found.total)}{each}.\n"
    )


def _command(start: ServerStart) -> str:
    """The shell command; for several machines, the commands of each."""
    if len(start.machines) > 1:
        return several_machines(start)
    return own_exports(start) + folded(map(shlex.join, (start.program, *start.flags)))


def _yaml(start: ServerStart) -> str:
    """A file for `vllm serve --config`. It cannot set environment variables: they are in a comment at the top.

    So are the commands that each of several machines runs with the file.
    """
    arguments = {
        name: list(value) if isinstance(value, tuple) else value for name, value in start.arguments.items()
    }
    machines, above = start.machines, exports(start.environment, "# export ")
    if len(machines) > 1:
        reads_file = [*start.launch.program, "--config", FILE_NAMES[Artefact.YAML]]
        texts = [
            f"{place} / {len(machines)}\n{before_server(start, machine)}"
            + (" ".join(on_machine(reads_file, (), machine)) if machine.serves else "")
            for place, machine in enumerate(machines, start=1)
        ]
        lines = (exports(start.places, "export ") + "\n".join(texts)).splitlines()
        above = "".join(f"# {line}\n" for line in lines)
    return above + yaml_text({"model": start.model, **arguments})


def _volumes(start: ServerStart) -> tuple[str, ...]:
    """Folders of the host that a container keeps its files in."""
    return (*VOLUMES, MODELSCOPE_VOLUME) if MODELSCOPE in start.environment else VOLUMES


def _docker(start: ServerStart) -> str:
    """`docker run`; the token of a gated model comes from the shell's own HF_TOKEN, by name."""
    image_name, platform = image(start.plan), start.platform
    program, flags = start.container
    ids = ",".join(map(str, range(start.ranks)))
    cards = [f"--device {path}" for path in start.devices] or [f"""--gpus '"device={ids}"'"""]
    cards += [f"-v {path}:{path}" for path in start.mounts]
    cards += [f"--group-add {platform['group']}"] if "group" in platform else []
    machines = start.machines
    several = len(machines) > 1
    inside = {FIRST[1:]: FIRST, **start.network}
    shared = ["--net=host", *(f'-e {name}="{value}"' for name, value in inside.items())]
    network = shared if several else [f"-p {PORT}:{PORT}"]
    limits = start.limits
    shared_memory = (
        ["--ipc=host"]
        if limits is None
        else [f"--shm-size={limits.shm_gib}g", f"--memory={limits.memory_gib}g"]
    )
    parts = ["docker run --rm", *cards, *shared_memory, *network]
    parts += [f"-v {volume}" for volume in _volumes(start)]
    if start.folder is not None:
        parts.append(f"--mount {shlex.quote(_mount(start.folder))}")
    parts += [f"-e {shlex.quote(f'{name}={value}')}" for name, value in start.environment.items()]
    if start.asks_for_token:
        parts.append(f"-e {TOKEN}")
    if not several:
        return folded([*parts, image_name, *map(shlex.join, filter(None, (program, *flags)))])
    return exports(start.places, "export ") + "\n".join(
        f"# {number} / {len(machines)}\n" + folded(_container(parts, start, machine))
        for number, machine in enumerate(machines, start=1)
    )


def _container(parts: list[str], start: ServerStart, machine: Machine) -> Iterable[str]:
    """`docker run` on one of several machines; lines to run before the server replace the image's entry point.

    Source: docker/Dockerfile (0.11.0: python3 -m vllm.entrypoints.openai.api_server; 0.11.1, 0.33.0: vllm serve),
    examples/online_serving/run_cluster.sh (0.12.0).
    """
    image_name, (program, flags) = image(start.plan), start.container
    if not machine.before:
        return [*parts, image_name, *on_machine(program, flags, machine)]
    server = " ".join(on_machine(start.program, start.flags, machine)) if machine.serves else "sleep infinity"
    line = " && ".join((*machine.before, server))
    if start.launch.image_starts_server:
        return [*parts, "--entrypoint bash", image_name, shlex.join(("-c", line))]
    return [*parts, image_name, shlex.join(("bash", "-c", line))]


def _mount(path: str) -> str:
    """A folder at the same path inside, as `--mount` reads it: one record of CSV, so any path can be written."""
    record = io.StringIO()
    csv.writer(record, lineterminator="").writerow(["type=bind", f"src={path}", f"dst={path}", "readonly"])
    return record.getvalue()


def _compose(start: ServerStart) -> str:
    """compose.yaml; the token of a gated model is a secret from the shell's HF_TOKEN, not in the environment."""
    program, flags = start.container
    asks, folder = start.asks_for_token, start.folder
    mount = {"type": "bind", "source": folder, "target": folder, "read_only": True}
    gpu = {"driver": "nvidia", "count": start.ranks, "capabilities": ["gpu"]}
    token_path = {"HF_TOKEN_PATH": "/run/secrets/hf_token"} if asks else {}
    limits = start.limits
    facts = {
        "ipc": "host" if limits is None else None,
        "shm_size": None if limits is None else f"{limits.shm_gib}gb",
        "memory": None if limits is None else {"memory": f"{limits.memory_gib}G"},
        "image": image(start.plan),
        "command": [*program, *chain(*flags)],
        "port": PORT,
        "volumes": [
            *_volumes(start),
            *([mount] if folder else []),
            *(f"{path}:{path}" for path in start.mounts),
        ],
        "seconds": start_seconds(start.plan),
        "secrets": ["hf_token"] if asks else None,
        "environment": {**start.environment, **token_path} or None,
        "devices": start.devices or None,
        "groups": [start.platform["group"]] if "group" in start.platform else None,
        "gpus": None if start.devices else [gpu],
        "token": TOKEN if asks else None,
    }
    return yaml_text(_literal(filled("compose", facts)))


def _literal(part: Any) -> Any:
    """With each dollar sign doubled: Compose replaces variables in every text, the kubelet `$(NAME)` in commands,
    arguments and variables.

    Source: compose-spec, 12-interpolation.md: "use a double-dollar sign ($$)"; kubernetes
    third_party/forked/golang/expansion/expand.go (1.34): "$$" is "$".
    """
    if isinstance(part, str):
        return part.replace("$", "$$")
    if isinstance(part, Mapping):
        return {key: _literal(value) for key, value in part.items()}
    return [_literal(value) for value in part] if isinstance(part, list) else part


def _kubernetes(start: ServerStart) -> str:
    """Claim, deployment and service, and above them how the secret of a gated model is made."""
    plan, folder, asks = start.plan, start.folder, start.asks_for_token
    image_name = image(plan)
    program, flags = start.container
    known = plan.scenario.checkpoint.total_size
    stored = known or plan.weights.total * plan.scenario.parallel.ranks_per_replica
    driver = [(f"driver-{number}", path) for number, path in enumerate(start.mounts)]
    environment = [{"name": name, "value": _literal(value)} for name, value in start.environment.items()]
    reference = {"secretKeyRef": {"name": SECRET, "key": SECRET_KEY}}
    limits = start.limits
    memory = {} if limits is None else {"memory": f"{limits.memory_gib}Gi"}
    facts = {
        "shm_limit": f"{SHM_GIB if limits is None else max(SHM_GIB, limits.shm_gib)}Gi",
        "prefix": plan.resolved.engine.facts.watching.prefix,
        "name": kubernetes_name(plan.scenario.model),
        "image": image_name,
        "port": PORT,
        "command": _literal(program) or None,
        "args": _literal([*chain(*flags)]),
        "resources": {start.resource: str(start.ranks), **memory},
        "driver_mounts": [{"name": name, "mountPath": path} for name, path in driver] or None,
        "driver_volumes": [{"name": name, "hostPath": {"path": path}} for name, path in driver] or None,
        "start_probes": start_seconds(plan) // 10,
        "cache_gib": round_up(ceil_div(int(stored), GIB) + _KERNELS_GIB, 10),
        "model_mount": {"name": "model", "mountPath": folder, "readOnly": True} if folder else None,
        "model_volume": {"name": "model", "hostPath": {"path": folder, "type": "Directory"}} if folder else None,
        "environment": [*environment, *([{"name": TOKEN, "valueFrom": reference}] if asks else [])] or None,
    }  # fmt: skip
    head = f"# kubectl create secret generic {SECRET} --from-literal={SECRET_KEY}=hf_...\n" if asks else ""
    return head + "---\n".join(map(yaml_text, filled("kubernetes", facts)))


def kubernetes_name(model: str) -> str:
    """A DNS label from a model id.

    Example:
        >>> kubernetes_name("Qwen/Qwen3-32B")
        'vllm-qwen3-32b'
    """
    label = re.sub(r"[^a-z0-9]+", "-", model.rsplit("/", 1)[-1].lower()).strip("-")
    return f"vllm-{label}"[:50].rstrip("-")


def _systemd(start: ServerStart) -> str:
    """A unit that runs as a user of its own; the token of a gated model is read from a file of root's."""
    environment, asks = {**_CACHES, **start.visible, **start.environment}, start.asks_for_token
    argv = (*start.program, *chain(*start.flags))
    limits = start.limits
    facts = {
        "shm_note": None if limits is None else f"# mount -o remount,size={limits.shm_gib}G /dev/shm",
        "memory": None if limits is None else f"{limits.memory_gib}G",
        "token_note": f"# {TOKEN_FILE}, mode 600, with one line: {TOKEN}=hf_..." if asks else None,
        "model": _specifiers(start.model),
        "port": PORT,
        "groups": start.platform.get("groups"),
        "environment": "\n".join(f"Environment={_word(f'{name}={value}')}" for name, value in environment.items()),
        "token_file": TOKEN_FILE if asks else None,
        "command": " ".join(_word(word).replace("$", "$$") for word in argv),
        "seconds": start_seconds(start.plan),
    }  # fmt: skip
    return "\n".join(filled("systemd", facts)) + "\n"


def _specifiers(text: str) -> str:
    return text.replace("%", "%%")


def _word(word: str) -> str:
    """Quoted as systemd.syntax(7) wants it: % doubled, C-style escapes in double quotes.

    A dollar sign is doubled in commands only: Environment= expands nothing (systemd.exec(5)).
    """
    escaped = _specifiers(word.replace("\\", "\\\\").replace('"', '\\"'))
    return f'"{escaped}"' if re.search(r"[^A-Za-z0-9_@%+=:,./$-]", word) else escaped


_OF_ONE_MACHINE: Final = (Artefact.COMPOSE, Artefact.KUBERNETES, Artefact.SYSTEMD)
_FILES: Final = (Artefact.YAML, *_OF_ONE_MACHINE)
"""Kinds that are kept as files; a command is pasted into a shell, and not each takes comments."""
_WRITERS: Final[Mapping[Artefact, Callable[[ServerStart], str]]] = {
    Artefact.COMMAND: _command,
    Artefact.YAML: _yaml,
    Artefact.DOCKER: _docker,
    Artefact.COMPOSE: _compose,
    Artefact.KUBERNETES: _kubernetes,
    Artefact.SYSTEMD: _systemd,
}
