"""What ops copy after planning: the same launch as a YAML config, a container, a unit, a deployment.

Every artefact is built from the launch as data and written by a real writer (shlex, CSV, YAML) that knows what its
reader expands, so that a model name with a quote, a space or a dollar sign cannot break out of it.
"""

from __future__ import annotations

import csv
import io
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from itertools import chain
from typing import Any, Final

from msgspec import Struct

from kvcore.catalogue.documented import is_gated
from kvcore.deploy.launch import (
    PORT,
    launch_arguments,
    launch_environment,
    launch_words,
    served_model,
)
from kvcore.deploy.machines import FIRST, Machine, machines_of
from kvcore.deploy.templates import filled, templates, yaml_text
from kvcore.engine.protocol import Launch
from kvcore.engine.rooms import find_engine
from kvcore.errors import ScenarioError
from kvcore.planning import Plan
from kvcore.units import GIB, ceil_div, round_up

FIRST_ADDRESS: Final = "192.0.2.10"
"""Of documentation, as the others to fill in (RFC 5737)."""
TOKEN: Final = "HF_TOKEN"
"""The variable with a token of the Hub."""
VOLUMES: Final = ("~/.cache/huggingface:/root/.cache/huggingface", "~/.cache/vllm:/root/.cache/vllm")
"""Checkpoints, and compiled kernels: a restart that finds them has more for its KV cache."""
SECRET: Final = "huggingface"
"""The Kubernetes secret with the token of the Hub, and its key."""
SECRET_KEY: Final = "token"
TOKEN_FILE: Final = "/etc/vllm/huggingface.env"
_CACHES: Final = {"HF_HOME": "/var/cache/vllm/huggingface", "VLLM_CACHE_ROOT": "/var/cache/vllm/kernels"}
"""Checkpoints and compiled kernels, in the folder that CacheDirectory= makes."""
_KERNELS_GIB: Final = 20
"""Room for compiled kernels of a few releases next to the checkpoint."""
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


class Start(Struct, frozen=True, kw_only=True):
    """What is started, as every kind of file needs it."""

    plan: Plan
    launch: Launch
    model: str
    arguments: Mapping[str, Any]
    environment: Mapping[str, str]

    @property
    def program(self) -> list[str]:
        """The words before the flags."""
        return [*self.launch.program, self.model]

    @property
    def flags(self) -> list[list[str]]:
        """Each flag with its words."""
        return [launch_words(name, value) for name, value in self.arguments.items()]

    @property
    def container(self) -> tuple[list[str], list[list[str]]]:
        """The words of a program that the image does not start itself, and its flags."""
        if self.launch.image_starts_server:
            return [], [["--model", self.model], *self.flags]
        return self.program, self.flags

    @property
    def folder(self) -> str | None:
        """The checkpoint's folder where the model is one on this machine."""
        return self.model if self.model.startswith("/") else None

    @property
    def asks_for_token(self) -> bool:
        """Whether the Hub gives the model, or its draft, only to an account that has accepted its terms."""
        draft = self.plan.scenario.speculative_config
        names = (self.plan.scenario.model, draft.model if draft is not None else None)
        return TOKEN not in self.environment and any(name is not None and is_gated(name) for name in names)

    @property
    def machines(self) -> tuple[Machine, ...]:
        """What each machine is started with."""
        return machines_of(self.plan)

    @property
    def ranks(self) -> int:
        """Cards of the first machine: of all replicas where it is the only one."""
        return self.machines[0].cards

    @property
    def platform(self) -> Mapping[str, Any]:
        """What it is given of its cards."""
        found: Mapping[str, Any] = templates()["platforms"].get(self.plan.accelerator.vendor.value, {})
        return found

    @property
    def resource(self) -> str:
        """What Kubernetes calls its cards."""
        known: Mapping[str, str] = self.platform["resources"]
        return next(name for chip, name in known.items() if chip in self.plan.accelerator.id)

    @property
    def mounts(self) -> list[str]:
        """Paths of the driver that a container needs, each at the same place inside."""
        network = self.platform.get("network", ()) if len(self.machines) > 1 else ()
        return [*self.platform.get("driver", ()), *network]

    @property
    def visible(self) -> dict[str, str]:
        """The variable that leaves a machine's other cards alone; none where all of them are taken or nobody asks."""
        name, taken = self.platform.get("visible"), self.ranks
        is_known = find_engine(self.plan.scenario.engine).runs_on(self.plan.accelerator)
        takes_all = taken >= self.plan.accelerator.devices_per_node
        if name is None or name in self.environment or takes_all or not is_known:
            return {}
        return {name: ",".join(map(str, range(taken)))}

    @property
    def places(self) -> Mapping[str, str]:
        """What a person fills in on each of several machines: the first one's address, its own, its interface."""
        own: Mapping[str, str] = self.platform.get("places", {})
        return {FIRST[1:]: FIRST_ADDRESS, **own}

    @property
    def network(self) -> Mapping[str, str]:
        """Variables of several machines, in the shell's words; those that the scenario sets stay as they are."""
        ray = self.platform.get("ray", {}) if any(machine.before for machine in self.machines) else {}
        known: Mapping[str, str] = {**self.platform.get("several", {}), **ray}
        return {name: value for name, value in known.items() if name not in self.environment}

    @property
    def devices(self) -> list[str]:
        """The files of its cards; none where the runtime passes the cards itself."""
        card, ranks = self.platform.get("card"), range(self.ranks)
        own = [f"{card}{rank}" for rank in ranks] if card is not None else []
        return [*own, *self.platform.get("devices", ())]


def artefact(kind: Artefact, plan: Plan, *, every_flag: bool = False) -> str:
    """The text of one artefact; `every_flag` writes resolved defaults too.

    Raises ScenarioError for a container where no image for the card is known, and for a file of one machine where the
    start takes several.
    """
    start = _start(plan, every_flag=every_flag)
    if kind in _OF_ONE_MACHINE and (number := len(start.machines)) > 1:
        raise ScenarioError("several-machines", field="data_parallel_size", machines=str(number))
    return _WRITERS[kind](start)


def _start(plan: Plan, *, every_flag: bool = False) -> Start:
    return Start(
        plan=plan,
        launch=find_engine(plan.scenario.engine).launch,
        model=served_model(plan),
        arguments=launch_arguments(plan, every_flag=every_flag),
        environment=launch_environment(plan),
    )


def machine_variables(plan: Plan) -> tuple[str, ...]:
    """What a command for several machines sets on each of them; none for one machine.

    Raises ScenarioError `too-many-machines`.

    Example:
        >>> from kvcore.planning import plan
        >>> from kvcore.scenario.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-30B-A3B", "accelerator": "H100-80GB", "tensor_parallel_size": 8}
        >>> machine_variables(plan(scenario_from_request({**asked, "data_parallel_size": 2})))
        ('NODE0_IP',)
    """
    start = _start(plan)
    return (*start.places, *start.network) if len(start.machines) > 1 else ()


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
    found = find_engine(plan.scenario.engine).launch.image_for(plan.accelerator.vendor)
    if found is None:
        raise no_image(plan)
    version = plan.resolved.engine_version
    return f"{found.name}:v{version}{found.suffix_of(plan.accelerator.id, version)}"


def start_seconds(plan: Plan) -> int:
    """Seconds that a start may take before a probe should give up, in whole minutes."""
    loaded_gib = plan.weights.total / GIB * plan.scenario.parallel.ranks_per_replica
    return round_up(math.ceil(_START_SECONDS_FLOOR + _START_SECONDS_PER_GIB * loaded_gib), 60)


def _folded(parts: Iterable[str]) -> str:
    return " \\\n  ".join(parts) + "\n"


def _exports(environment: Mapping[str, str], before: str) -> str:
    return "".join(f"{before}{name}={shlex.quote(value)}\n" for name, value in environment.items())


def _command(start: Start) -> str:
    """Of each machine where there are several."""
    exports = _exports({**start.visible, **start.environment}, "export ")
    machines = start.machines
    if len(machines) == 1:
        return exports + _folded(map(shlex.join, (start.program, *start.flags)))
    network = "".join(f'export {name}="{value}"\n' for name, value in start.network.items())
    texts = (
        f"# {number} / {len(machines)}\n{network}{exports}"
        + "".join(f"{line}\n" for line in machine.before)
        + (
            _folded(map(_shell_words, (start.program, *start.flags, *_own(machine))))
            if machine.serves
            else ""
        )
        for number, machine in enumerate(machines, start=1)
    )
    return _exports(start.places, "export ") + "\n".join(texts)


def _own(machine: Machine) -> list[list[str]]:
    return [launch_words(name, value) for name, value in machine.flags.items()]


def _shell_words(words: Iterable[str]) -> str:
    """Quoted, but for the variable with the first machine's address."""
    return shlex.join(words).replace(f"'{FIRST}'", f'"{FIRST}"')


def _yaml(start: Start) -> str:
    """For `vllm serve --config`, which has no place for environment variables: they stand above as a comment."""
    arguments = {
        name: list(value) if isinstance(value, tuple) else value for name, value in start.arguments.items()
    }
    return _exports(start.environment, "# export ") + yaml_text({"model": start.model, **arguments})


def _docker(start: Start) -> str:
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
    parts = ["docker run --rm", *cards, "--ipc=host", *network]
    parts += [f"-v {volume}" for volume in VOLUMES]
    if start.folder is not None:
        parts.append(f"--mount {shlex.quote(_mount(start.folder))}")
    parts += [f"-e {shlex.quote(f'{name}={value}')}" for name, value in start.environment.items()]
    if start.asks_for_token:
        parts.append(f"-e {TOKEN}")
    if not several:
        return _folded([*parts, image_name, *map(shlex.join, filter(None, (program, *flags)))])
    return "\n".join(
        f"# {number} / {len(machines)}\n"
        + _folded([*parts, image_name, *map(_shell_words, _inside(start, machine))])
        for number, machine in enumerate(machines, start=1)
    )


def _inside(start: Start, machine: Machine) -> Iterable[list[str]]:
    """The words inside the container of one of several machines."""
    program, flags = start.container
    if not machine.before:
        return filter(None, (program, *flags, *_own(machine)))
    server = chain(start.program, *start.flags, *_own(machine))
    line = " && ".join((*machine.before, _shell_words(server) if machine.serves else "sleep infinity"))
    return (["bash", "-c", line],)


def _mount(path: str) -> str:
    """A folder at the same path inside, as `--mount` reads it: one record of CSV, so any path can be written."""
    record = io.StringIO()
    csv.writer(record, lineterminator="").writerow(["type=bind", f"src={path}", f"dst={path}", "readonly"])
    return record.getvalue()


def _compose(start: Start) -> str:
    """compose.yaml; the token of a gated model is a secret from the shell's HF_TOKEN, not in the environment."""
    program, flags = start.container
    asks, folder = start.asks_for_token, start.folder
    mount = {"type": "bind", "source": folder, "target": folder, "read_only": True}
    gpu = {"driver": "nvidia", "count": start.ranks, "capabilities": ["gpu"]}
    token_path = {"HF_TOKEN_PATH": "/run/secrets/hf_token"} if asks else {}
    facts = {
        "image": image(start.plan),
        "command": [*program, *chain(*flags)],
        "port": PORT,
        "volumes": [*VOLUMES, *([mount] if folder else []), *(f"{path}:{path}" for path in start.mounts)],
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


def _kubernetes(start: Start) -> str:
    """Claim, deployment and service, and above them how the secret of a gated model is made."""
    plan, folder, asks = start.plan, start.folder, start.asks_for_token
    image_name = image(plan)
    program, flags = start.container
    known = plan.scenario.checkpoint.total_size
    stored = known or plan.weights.total * plan.scenario.parallel.ranks_per_replica
    driver = [(f"driver-{number}", path) for number, path in enumerate(start.mounts)]
    environment = [{"name": name, "value": _literal(value)} for name, value in start.environment.items()]
    reference = {"secretKeyRef": {"name": SECRET, "key": SECRET_KEY}}
    facts = {
        "name": kubernetes_name(plan.scenario.model),
        "image": image_name,
        "port": PORT,
        "command": _literal(program) or None,
        "args": _literal([*chain(*flags)]),
        "cards": {start.resource: str(start.ranks)},
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


def _systemd(start: Start) -> str:
    """A unit that runs as a user of its own; the token of a gated model is read from a file of root's."""
    environment, asks = {**_CACHES, **start.visible, **start.environment}, start.asks_for_token
    argv = (*start.program, *chain(*start.flags))
    facts = {
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
_WRITERS: Final[Mapping[Artefact, Callable[[Start], str]]] = {
    Artefact.COMMAND: _command,
    Artefact.YAML: _yaml,
    Artefact.DOCKER: _docker,
    Artefact.COMPOSE: _compose,
    Artefact.KUBERNETES: _kubernetes,
    Artefact.SYSTEMD: _systemd,
}
