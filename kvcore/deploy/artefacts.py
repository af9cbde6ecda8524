"""What ops copy after planning: the same launch as a YAML config, a container, a unit, a deployment.

Every artefact is built from `launch_arguments` as data and written by a real writer (shlex, YAML) that knows what its
reader expands, so that a model name with a quote, a space or a dollar sign cannot break out of it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from kvcore.deploy.docker import compose_text, docker_text, yaml_text
from kvcore.deploy.kubernetes import kubernetes_text
from kvcore.deploy.launch import (
    launch_arguments,
    launch_environment,
    launch_program,
    launch_words,
    served_model,
)
from kvcore.deploy.systemd import systemd_text
from kvcore.planning import Plan


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
    return comment + yaml_text({"model": served_model(plan), **arguments})


_WRITERS: Final[Mapping[Artefact, Callable[[Plan, bool], str]]] = {
    Artefact.COMMAND: _command,
    Artefact.YAML: _yaml,
    Artefact.DOCKER: docker_text,
    Artefact.COMPOSE: compose_text,
    Artefact.KUBERNETES: kubernetes_text,
    Artefact.SYSTEMD: systemd_text,
}
