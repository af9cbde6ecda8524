"""Compose files: services with their image, entrypoint, command, environment, devices and shared memory.

Source: Compose's specification (services, interpolation, extends, env_file, deploy.resources).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from msgspec.structs import replace

from kvcore.base.errors import Notice, notice, shorten
from kvcore.manifests.arguments import is_secret, without_login
from kvcore.manifests.build import Facts
from kvcore.manifests.cards import card_in
from kvcore.manifests.kserve import merged
from kvcore.manifests.nodes import Map, Row, Text, at, line_of, mapping, rows, text_of
from kvcore.manifests.nodes import document as parsed
from kvcore.manifests.pods import Found, Input, container_found
from kvcore.manifests.shell_words import words_of
from kvcore.manifests.unknowns import has_mark, names_in
from kvcore.manifests.variables import env_file, of_compose
from kvcore.manifests.workload import ALL_GPUS, Other, Place, Workload, binary_gib, whole

MAX_EXTENDS: Final = 8
MAX_DEFAULTS: Final = 16
_DEFAULT: Final = re.compile(r"(?<!\$)\$\{([A-Za-z_]\w{0,80}):?-([^{}$]{0,200})\}")
_INTERPOLATED: Final = 20_000
_ENTRYPOINTS: Final = ("entrypoint.sh", "docker-entrypoint.sh")
"""What the image that a service builds starts by custom, where its Dockerfile is not given."""
_BY_IMAGE: Final = ("spark", "gb10", "3090", "4090", "5090")
"""Cards that people name their own images after."""


def services(document: Map, given: Input) -> Iterator[Found]:
    """What the services of a Compose file start."""
    held = mapping(document.get("services"))
    given.take(held)
    for name, raw in held.items():
        if not isinstance(raw, Map):
            continue
        own = _extended(raw, held, given, 0)
        service = _interpolated(own, given.env, [_INTERPOLATED])
        given.take(raw)
        taken = tuple(_defaults_taken(own, given.env))
        for found in _service(name, service, line_of(raw), given):
            yield replace(found, notices=(*found.notices, *taken)) if isinstance(found, Workload) else found


def _defaults_taken(service: Map, env: Mapping[str, str]) -> Iterator[Notice]:
    """The variables of a command that nothing sets, with the defaults that stand for them; no value of a secret."""
    texts = [str(one) for key in ("image", "entrypoint", "command") for one in _texts(service.get(key))]
    found = {name: value for text in texts for name, value in _DEFAULT.findall(text) if not env.get(name)}
    for name, value in islice(found.items(), MAX_DEFAULTS):
        if not is_secret(name):
            yield notice("check-default-taken", name=name, value=shorten(without_login(value) or "empty", 60))


def _texts(node: object) -> list[str]:
    return [str(node)] if isinstance(node, str) else [str(one) for one in rows(node) if isinstance(one, str)]


def _extended(service: Map, held: Map, given: Input, depth: int) -> Map:
    """A service over the one that it extends."""
    base = service.get("extends")
    if base is None or depth > MAX_EXTENDS:
        return service
    name = str(base) if isinstance(base, str) else str(at(base, "service"))
    file = text_of(at(base, "file"))
    if file is not None:
        node = parsed(given.scripts.find(str(file)) or "")
        held = mapping(at(node, "services"))
    other = held.get(name)
    own = Map({key: value for key, value in service.items() if key != "extends"})
    own.line = service.line
    if not isinstance(other, Map) or other is service:
        return own
    found = merged(_extended(other, held, given, depth + 1), own)
    for key in ("command", "entrypoint"):
        if key in own:
            found[key] = own[key]
    return found if isinstance(found, Map) else own


def _interpolated(node: Any, env: Mapping[str, str], left: list[int]) -> Any:
    """A node with its variables filled in."""
    left[0] -= 1
    if left[0] < 0:
        return node
    if isinstance(node, Map):
        made = Map({key: _interpolated(value, env, left) for key, value in node.items()})
        made.line = node.line
        return made
    if isinstance(node, Row):
        row = Row(_interpolated(value, env, left) for value in node)
        row.line = node.line
        return row
    if isinstance(node, Text) and "$" in node:
        return Text(of_compose(str(node), env), node.line, is_plain=node.is_plain)
    return node


def variables_of(service: Map, given: Input) -> dict[str, str]:
    """The environment of a service: its files first, then its own."""
    found: dict[str, str] = {}
    files = service.get("env_file")
    for one in rows(files) or ([files] if files is not None else []):
        path = text_of(one) or text_of(at(one, "path"))
        text = given.scripts.find(str(path)) if path is not None else None
        found |= env_file(text) if text is not None else {}
    own = service.get("environment")
    for key, value in mapping(own).items():
        if isinstance(value, str) and text_of(value) is not None:
            found[key] = str(value)
        elif key in given.env:
            found[key] = given.env[key]
    for one in rows(own):
        name, is_set, value = str(one).partition("=")
        if is_set:
            found[name] = value
        elif name in given.env:
            found[name] = given.env[name]
    return found


def _service(name: str, service: Map, line: int, given: Input) -> Iterator[Found]:
    image = text_of(service.get("image"))
    variables = variables_of(service, given)
    words = _words(service.get("entrypoint")) + _words(service.get("command"))
    if "entrypoint" not in service and "build" in service:
        own = next((one for one in given.scripts.texts if one.endswith(_ENTRYPOINTS)), None)
        words = ["bash", own, *words] if own is not None else words
    container = Map({"command": Row(words), "name": Text(name)})
    container["args"] = Row()
    facts = Facts(
        name=name, kind="compose", file=given.file, line=line, image=str(image) if image is not None else "",
        gpus=_gpus(service, variables),
        replicas=whole(text_of(at(service, "deploy.replicas")) or text_of(service.get("scale"))),
        memory_gib=binary_gib(at(service, "deploy.resources.limits.memory") or service.get("mem_limit")),
        shm_gib=binary_gib(service.get("shm_size")), card=_card(service, image),
        shares_ipc=str(service.get("ipc", "")) == "host",
    )  # fmt: skip
    facts.undefined = names_in(str(image or ""))
    npus = [one for one in rows(service.get("devices")) if isinstance(one, str) and "/dev/davinci" in one]
    facts.is_npu = bool(npus)
    found = container_found(container, facts, {**variables}, given)
    if not any(not isinstance(one, Other) for one in found) and image is None and not words:
        found = [Other(name=name, role="unknown", place=Place(given.file, line))]
    yield from found


def _words(node: object) -> list[str]:
    if isinstance(node, str):
        return words_of(str(node))
    return [str(one) for one in rows(node) if isinstance(one, str)]


def _gpus(service: Map, variables: Mapping[str, str]) -> int | str | None:
    """The cards that a service reserves: a count, all, or the named ones; none stated where it says only `gpu`."""
    for device in rows(at(service, "deploy.resources.reservations.devices")):
        ids = rows(at(device, "device_ids"))
        if ids:
            return len(ids)
        count = text_of(at(device, "count"))
        if count is not None:
            return ALL_GPUS if str(count).lower() in (ALL_GPUS, "-1") else whole(count)
    asked = service.get("gpus")
    if isinstance(asked, str):
        return ALL_GPUS if str(asked) == ALL_GPUS else whole(asked)
    for one in rows(asked):
        count = text_of(at(one, "count"))
        return ALL_GPUS if count is None or str(count) == ALL_GPUS else whole(count)
    chips = [one for one in rows(service.get("devices")) if isinstance(one, str) and "/dev/davinci" in one]
    numbered = [one for one in chips if not one.split(":")[0].endswith("davinci_manager")]
    if any(isinstance(one, str) and "nvidia.com/gpu=all" in one for one in rows(service.get("devices"))):
        return ALL_GPUS
    return len(numbered) or _visible(service, variables)


def _visible(service: Map, variables: Mapping[str, str]) -> int | str | None:
    """The cards that NVIDIA's own runtime puts into a container by its variable.

    Source: NVIDIA Container Toolkit, "Specialized Configurations with Docker" (NVIDIA_VISIBLE_DEVICES).
    """
    said = variables.get("NVIDIA_VISIBLE_DEVICES", "").strip()
    if str(service.get("runtime", "")) != "nvidia" or has_mark(said) or said in ("", "void", "none"):
        return None
    return ALL_GPUS if said == ALL_GPUS else len(set(filter(None, map(str.strip, said.split(",")))))


def _card(service: Map, image: str | None) -> str | None:
    """The card by placement constraints, or by the name that somebody gave the image."""
    for one in rows(at(service, "deploy.placement.constraints")):
        if isinstance(one, str) and (name := card_in(str(one))) is not None:
            return name
    text = "" if image is None or has_mark(image) else str(image).lower()
    found = next((word for word in _BY_IMAGE if word in text), None)
    if found is None:
        return None
    return "dgx-spark" if found in ("spark", "gb10") else f"RTX {found}"
