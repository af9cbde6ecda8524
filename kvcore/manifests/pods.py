"""Pods of Kubernetes: containers with their environment, limits, shared memory and cards."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kvcore.manifests.build import Facts, built
from kvcore.manifests.cards import card_in, of_nodes, of_resources
from kvcore.manifests.images import image_of
from kvcore.manifests.nodes import Map, Row, at, line_of, mapping, rows, text_of, walk
from kvcore.manifests.programs import Launch, Scripts, container_launches
from kvcore.manifests.shell import Run
from kvcore.manifests.unknowns import mark, placeholders_marked
from kvcore.manifests.variables import of_kubernetes
from kvcore.manifests.workload import Other, Place, Workload, size_gib

SHARED_MEMORY: Final = "/dev/shm"
INSTALLERS: Final = ("initContainers", "init_containers", "initContainer")

Found = Workload | Other


@dataclass
class Input:
    """All that was given together: what one document may name in another."""

    file: str = ""
    scripts: Scripts = field(default_factory=Scripts)
    config_maps: dict[str, Map] = field(default_factory=dict)
    secrets: dict[str, Map] = field(default_factory=dict)
    named: dict[tuple[str, str], Map] = field(default_factory=dict)
    """Documents of Kubernetes by kind and name."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of `.env` files."""
    values: Map = field(default_factory=Map)
    """Values that templates are filled in with."""
    templates: frozenset[str] = frozenset()
    """Folders of the templates in the input."""
    text: str = ""
    python: Callable[[str, Facts, Input, Mapping[str, str]], Iterator[Found]] | None = None
    """The reader of programs, for files that name one."""
    structures: Callable[[Map, Input], Iterator[Found]] | None = None
    """The reader of documents without a kind, for values inside of others."""
    anywhere: Callable[[Map | Row, Input], Iterator[Found]] | None = None
    """The reader of containers and commands anywhere in a document."""
    used: set[tuple[str, str]] = field(default_factory=set)
    """Documents of Kubernetes that others were read with, by kind and name."""
    taken: dict[int, object] = field(default_factory=dict)
    """Nodes that a reader has read, by identity: kept, so that no later node has the identity of one that is gone."""

    def take(self, *nodes: object) -> None:
        """Notes that a reader has read these nodes."""
        self.taken.update((id(node), node) for node in nodes)

    def add(self, document: Map) -> None:
        """Keeps a document under its name."""
        kind, name = text_of(document.get("kind")), text_of(at(document, "metadata.name"))
        if kind is None or name is None:
            return
        self.named[str(kind), str(name)] = document
        if kind == "ConfigMap":
            self.config_maps[str(name)] = mapping(document.get("data"))
        elif kind == "Secret":
            self.secrets[str(name)] = _opened(document)


def _opened(document: Map) -> Map:
    """A Secret's texts by key: those that are written plainly, and what base64 hides."""
    found = Map(mapping(document.get("stringData")))
    for key, value in mapping(document.get("data")).items():
        try:
            found.setdefault(key, base64.b64decode(str(value), validate=True).decode("utf-8"))
        except (binascii.Error, ValueError):
            continue
    return found


def environment(container: Map, given: Input, outer: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of a container, each with those before it filled in."""
    found: dict[str, str] = dict(outer or {})
    for source in rows(container.get("envFrom")):
        held = given.config_maps.get(str(at(source, "configMapRef.name"))) or given.secrets.get(
            str(at(source, "secretRef.name"))
        )
        found |= {key: str(value) for key, value in (held or {}).items() if isinstance(value, str)}
    env = container.get("env")
    if isinstance(env, Map):
        found |= {
            key: of_kubernetes(str(value), found) for key, value in env.items() if isinstance(value, str)
        }
    for one in rows(env):
        name = text_of(at(one, "name"))
        if name is not None:
            found[str(name)] = _variable(str(name), mapping(one), found, given)
    return found


def _variable(name: str, one: Map, found: Mapping[str, str], given: Input) -> str:
    value = one.get("value")
    if isinstance(value, str):
        return of_kubernetes(str(value), found)
    for kind, held in (("configMapKeyRef", given.config_maps), ("secretKeyRef", given.secrets)):
        reference = at(one, f"valueFrom.{kind}")
        if isinstance(reference, Map):
            text = held.get(str(reference.get("name")), Map()).get(str(reference.get("key")))
            return str(text) if isinstance(text, str) else mark(name)
    return "" if "valueFrom" not in one else mark(name)


def command_of(container: Map, variables: Mapping[str, str]) -> list[str]:
    """The words of a container, its variables filled in; what a shell is to read is left as it is."""
    words = [*_words(container.get("command")), *_words(container.get("args"))]
    is_shell = bool(words) and words[0].rsplit("/", 1)[-1] in ("bash", "sh", "zsh", "ash")
    found = [of_kubernetes(word, variables, keeps=is_shell and " " in word.strip()) for word in words]
    is_plain = not is_shell and not any(" " in word.strip() and "$" in word for word in found)
    return [placeholders_marked(word) for word in found] if is_plain else found


def _words(node: object) -> list[str]:
    if isinstance(node, str):
        return [str(node)]
    return [str(one) for one in rows(node) if isinstance(one, str)]


def pod(
    spec: Map,
    facts: Facts,
    given: Input,
    *,
    outer: Mapping[str, str] | None = None,
) -> Iterator[Found]:
    """What the containers of a pod start: engines, and what stands beside them."""
    cards = of_nodes(spec)
    files = mounted(spec, given)
    shared = shared_memory_gib(spec)
    installs = "\n".join(
        word for key in INSTALLERS for one in _containers(spec.get(key)) for word in command_of(one, {})
    )
    others: list[Other] = []
    engines = 0
    for container in _containers(spec.get("containers")):
        given.take(container)
        image = text_of(container.get("image"))
        gpus, resource = of_resources(container.get("resources"))
        claimed = _claimed(spec, container, given)
        own = replace(
            facts,
            line=line_of(container, facts.line),
            image=str(image) if image is not None else facts.image,
            card=facts.card or cards.name or claimed[1] or resource,
            card_choices=facts.card_choices or cards.choices,
            gpus=gpus if gpus is not None else claimed[0] if claimed[0] is not None else facts.gpus,
            memory_gib=_or(size_gib(at(container, "resources.limits.memory")), facts.memory_gib),
            shm_gib=_or(_shared_of(container, shared), facts.shm_gib),
            files={**facts.files, **files},
            installs="\n".join((facts.installs, installs, *command_of(container, {}))),
            is_npu=facts.is_npu or "scend" in (resource or ""),
            shares_ipc=str(spec.get("hostIPC", "")).lower() == "true",
        )
        variables = environment(container, given, outer)
        for found in container_found(container, own, variables, given, is_kubernetes=True):
            if isinstance(found, Workload):
                engines += 1
                yield found
            else:
                others.append(found)
    for key in INSTALLERS:
        for one in _containers(spec.get(key)):
            given.take(one)
            name = str(text_of(one.get("name")) or "?")
            others.append(Other(name=name, role="init container", place=Place(facts.file, line_of(one))))
    for other in others:
        yield replace_role(other) if engines and other.role == "unknown" else other


def replace_role(one: Other) -> Other:
    """Something that stands beside an engine in its pod."""
    return Other(name=one.name, role="sidecar", place=one.place)


def container_found(
    container: Map, facts: Facts, variables: Mapping[str, str], given: Input, *, is_kubernetes: bool = False
) -> list[Found]:
    """What one container starts; a container without an engine is named too."""
    words = [*_words(container.get("command")), *_words(container.get("args"))]
    words = command_of(container, variables) if is_kubernetes else words
    run = Run(words=tuple(words), variables=variables, exported=frozenset(variables), line=facts.line)
    from kvcore.manifests.programs import Container

    held = Container(image=facts.image or "")
    launched = list(container_launches(run, held, given.scripts))
    if not launched:
        name = str(text_of(container.get("name")) or facts.image or "?")
        return [Other(name=name, role="unknown", place=Place(facts.file, facts.line))]
    chosen_facts = facts
    if image_of(facts.image).role and not any(one.engine for one in launched):
        chosen_facts = replace(facts, name=str(text_of(container.get("name")) or facts.name or "?"))
    return [built(launch, chosen_facts, given.scripts) for launch in distinct(launched)]


def distinct(launched: list[Launch]) -> list[Launch]:
    """One of the commands that differ only by the node that they run on; engines before clients."""
    engines = [one for one in launched if one.engine]
    if not engines:
        return launched[:1]
    found: dict[tuple[str, ...], Launch] = {}
    for one in engines:
        kept = tuple(word for word in _without_node(one.words))
        found.setdefault((one.engine, *kept), one)
    return list(found.values())


_OF_NODE: Final = (
    "--node-rank", "--headless", "--data-parallel-start-rank", "--data-parallel-rank", "--port", "--master-addr",
    "--dist-init-addr", "--data-parallel-address", "--host", "--api-server-count",
)  # fmt: skip


def _without_node(words: tuple[str, ...]) -> Iterator[str]:
    skips = False
    for word in words:
        name = word.partition("=")[0]
        if skips and not word.startswith("-"):
            skips = False
            continue
        skips = name in _OF_NODE and "=" not in word
        if name not in _OF_NODE:
            yield word


def _containers(node: object) -> list[Map]:
    return [one for one in (rows(node) or [node]) if isinstance(one, Map)]


def _or(first: float | None, second: float | None) -> float | None:
    return first if first is not None else second


def shared_memory_gib(spec: Map) -> dict[str, float | None]:
    """The volumes in memory by name, with their limit."""
    return {
        str(one.get("name")): size_gib(at(one, "emptyDir.sizeLimit"))
        for one in rows(spec.get("volumes"))
        if isinstance(one, Map) and text_of(at(one, "emptyDir.medium")) == "Memory"
    }


def _shared_of(container: Map, volumes: Mapping[str, float | None]) -> float | None:
    for one in rows(container.get("volumeMounts")):
        path = text_of(at(one, "mountPath"))
        if path is not None and path.rstrip("/") == SHARED_MEMORY:
            return volumes.get(str(at(one, "name")))
    return None


def mounted(spec: Map, given: Input) -> dict[str, str]:
    """The files of the ConfigMaps that a pod mounts, by name."""
    found: dict[str, str] = {}
    for one in rows(spec.get("volumes")):
        name = at(one, "configMap.name")
        held = given.config_maps.get(str(name), Map())
        found |= {key: str(value) for key, value in held.items() if isinstance(value, str)}
        for item in rows(at(one, "configMap.items")):
            key, path = str(at(item, "key")), str(at(item, "path"))
            if isinstance(held.get(key), str):
                found[path.rsplit("/", 1)[-1]] = str(held[key])
    return found


def _claimed(spec: Map, container: Map, given: Input) -> tuple[int | None, str | None]:
    """Cards by dynamic resource allocation: the claims that a container names."""
    names = [str(at(one, "name")) for one in rows(at(container, "resources.claims"))]
    for claim in rows(spec.get("resourceClaims")):
        if str(at(claim, "name")) not in names:
            continue
        template = given.named.get(("ResourceClaimTemplate", str(at(claim, "resourceClaimTemplateName"))))
        own = given.named.get(("ResourceClaim", str(at(claim, "resourceClaimName"))))
        devices = at(template, "spec.spec.devices") or at(own, "spec.devices")
        count, texts = 0, []
        for request in rows(at(devices, "requests")):
            inner = at(request, "exactly") or request
            number = text_of(at(inner, "count"))
            count += int(number) if number is not None and number.isdigit() and len(number) < 6 else 1
            texts += [str(value) for _, node in walk(inner) for value in _scalars(node)]
        if count:
            return count, next(filter(None, map(card_in, texts)), None)
    return None, None


def _scalars(node: Any) -> list[str]:
    values = node.values() if isinstance(node, Map) else node
    return [str(value) for value in values if isinstance(value, str)]
