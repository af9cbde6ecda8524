"""Blocks of Terraform and Nomad that start engines: containers, documents and scripts inside of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from kvcore.manifests.build import Facts, built
from kvcore.manifests.cards import card_in, of_nodes, of_resources
from kvcore.manifests.charts import commented_card
from kvcore.manifests.hcl import INSIDE, tree
from kvcore.manifests.nodes import (
    Map,
    Row,
    Text,
    at,
    document,
    documents,
    line_of,
    mapping,
    owners_of,
    rows,
    text_of,
    walk,
)
from kvcore.manifests.plain_yaml import COMMANDS
from kvcore.manifests.pods import Found, Input, _or, container_found, distinct, environment
from kvcore.manifests.programs import gpu_count, script_launches
from kvcore.manifests.unknowns import mark
from kvcore.manifests.workload import Place, Workload, size_gib, whole


def hcl(text: str, given: Input) -> Iterator[Found]:
    """The engines in the blocks of a text that have an image."""
    root = tree(text)
    for key, node in walk(root):
        if isinstance(node, Map):
            yield from _manifests(node, given)
            yield from _tasks(node, root, given)
            yield from _scripts(node, given)
        image = text_of(node.get("image")) if isinstance(node, Map) else None
        if not isinstance(node, Map) or image is None or key == "variable":
            continue
        yield from _block(node, str(image), root, given, text)


_MANIFESTS: Final = ("yaml_body", "manifest", "yaml", "values", "raw")


def _manifests(node: Map, given: Input) -> Iterator[Found]:
    """Documents of Kubernetes, or values of a chart, that a block holds as text or as an object."""
    from kvcore.manifests.kubernetes import workloads

    for key in _MANIFESTS:
        held = node.get(key)
        for text in rows(held) if isinstance(held, Row) else [held]:
            parsed: list[object] = [text]
            if isinstance(text, str):
                parsed = [one for _, one in documents(str(text))] if text[:1] == "{" or "\n" in text else []
            for one in parsed:
                if isinstance(one, Map) and "apiVersion" in one and "kind" in one:
                    yield from workloads(one, given)
                elif isinstance(one, Map) and given.structures is not None and key == "values":
                    yield from given.structures(one, given)


def _tasks(node: Map, root: Map, given: Input) -> Iterator[Found]:
    """Containers of a task of Amazon ECS, on the machine of a launch template beside it."""
    held = node.get("container_definitions")
    parsed = document(str(held)) if isinstance(held, str) else held
    if not isinstance(parsed, Row) or given.anywhere is None:
        return
    machines = {str(text_of(one.get("instance_type"))) for _, one in walk(root) if isinstance(one, Map)} - {
        "None"
    }
    card = machines.pop() if len(machines) == 1 else None
    for found in given.anywhere(parsed, given):
        if isinstance(found, Workload):
            yield replace(found, kind="hcl", card=found.card or card, place=Place(given.file, line_of(node)))
        else:
            yield found


_SCRIPTS: Final = (
    "user_data",
    "metadata_startup_script",
    "startup-script",
    "custom_data",
    "inline",
    "content",
)
_MACHINES: Final = ("machine_type", "instance_type", "size", "vm_size", "flavor_name")


def _scripts(node: Map, given: Input) -> Iterator[Found]:
    """Scripts that a machine runs when it starts."""
    for key in _SCRIPTS:
        held = node.get(key)
        text = "\n".join(map(str, rows(held))) if isinstance(held, Row) else held
        if not isinstance(text, str) or COMMANDS.search(text) is None:
            continue
        labels = rows(node.get("__labels__"))
        asked = next(filter(None, (text_of(node.get(name)) for name in _MACHINES)), None)
        other = text_of(at(next(iter(rows(node.get("guest_accelerator"))), None), "type"))
        facts = Facts(
            name=str(labels[-1]) if labels else None, kind="hcl", file=given.file, line=line_of(held, line_of(node)),
            card=str(other or asked) if (other or asked) is not None else None, installs=str(text),
        )  # fmt: skip
        for launch in distinct(script_launches(str(text), {}, given.scripts, line=facts.line)):
            if launch.engine:
                yield built(launch, facts, given.scripts)


def _devices(owners: list[Map]) -> tuple[int | None, str | None]:
    """How many cards a task of Nomad asks for, and which: blocks `device` of its resources."""
    for one in owners:
        for resources in rows(one.get("resources")):
            for device in rows(at(resources, "device")):
                labels = [str(label) for label in rows(at(device, "__labels__"))]
                limits = [str(at(limit, "value")) for limit in rows(at(device, "constraint"))]
                limits += [str(at(limit, "value")) for limit in rows(at(device, "affinity"))]
                named = next((text for text in (*limits, *labels) if card_in(text) is not None), None)
                return whole(text_of(at(device, "count"))) or 1, named
    return None, None


def _memory(owners: list[Map]) -> float | None:
    """The memory of a task of Nomad, in MiB."""
    stated = (text_of(at(inner, "memory")) for one in owners for inner in rows(one.get("resources")))
    size = whole(next(filter(None, stated), None))
    return size / 1024 if size is not None else None


def _block(node: Map, image: str, root: Map, given: Input, text: str) -> Iterator[Found]:
    owners = owners_of(root, node)
    named = [label for one in owners for label in rows(one.get("__labels__"))]
    name = text_of(node.get("name")) or (str(named[0]) if named else None)
    env = Map()
    for one in (node, *owners[:3]):
        for inner in rows(one.get("env")):
            if isinstance(inner, Map) and "name" in inner and "value" in inner:
                env[str(inner["name"])] = inner["value"]
            elif isinstance(inner, Map):
                env.update({key: value for key, value in inner.items() if key != "__labels__"})
        env.update(mapping(one.get("env")))
    variables = {key: str(value) for key, value in env.items() if isinstance(value, str)}
    container = Map(
        {key: _filled(node[key], variables) for key in ("command", "args", "entrypoint") if key in node}
    )
    if isinstance(container.get("entrypoint"), Row):
        container["command"] = container["entrypoint"]
    resources = node.get("resources")
    resources = resources[0] if isinstance(resources, Row) and resources else resources
    gpus, resource = of_resources(resources)
    asked = [str(word) for word in rows(node.get("runtime_args")) if str(word).startswith("--gpus")]
    count = whole(text_of(next((one.get("count") for one in owners if "count" in one), None)))
    pod_spec = next((one for one in owners if "node_selector" in one), Map())
    cards = of_nodes(Map({"nodeSelector": pod_spec.get("node_selector")}))
    hint = commented_card(text, node.line, _end(root, node)) or card_in(name or "")
    devices: int | str | None
    devices, card = _devices(owners)
    replicas = next(
        (whole(text_of(one.get("replicas"))) for one in (node, *owners) if "replicas" in one), count
    )
    if gpus is None and asked:
        devices = gpu_count(asked[0].partition("=")[2])
    facts = Facts(
        name=name, kind="hcl", file=given.file, line=line_of(node), image=image,
        card=cards.name or resource or card or hint, gpus=gpus if gpus is not None else devices, replicas=replicas,
        memory_gib=_or(size_gib(at(resources, "limits.memory")), _memory(owners)), shm_gib=_shared(node, owners),
    )  # fmt: skip
    facts.undefined = ()
    found = container_found(container, facts, {**environment(Map(), given), **variables}, given)
    yield from (one for one in found if isinstance(one, Workload) or one.role != "unknown")


def _filled(node: Any, variables: dict[str, str]) -> Any:
    """`${NAME}` of a task's own environment."""
    if isinstance(node, Row):
        return Row(_filled(one, variables) for one in node)
    if isinstance(node, Text) and "${" in node:
        return Text(
            INSIDE.sub(lambda one: variables.get(one[1].strip(), mark(one[1].strip())), node), node.line
        )
    return node


def _end(root: Map, node: Map) -> int:
    """The line of the next block behind one, at the same depth or above."""
    later = [one.line for _, one in walk(root) if isinstance(one, Map) and one.line > node.line]
    inside = [one.line for _, one in walk(node) if isinstance(one, Map)]
    return min((line for line in later if line > max(inside)), default=1 << 30)


def _shared(node: Map, owners: list[Map]) -> float | None:
    """The size of the memory at /dev/shm, by any of the spellings of a volume."""
    for one in (node, *owners[:3]):
        for volume in [*rows(one.get("volumes")), *rows(one.get("volume"))]:
            medium = at(volume, "empty_dir") or next(iter(rows(at(volume, "empty_dir"))), None)
            medium = medium[0] if isinstance(medium, Row) and medium else medium
            if text_of(at(medium, "medium")) == "Memory":
                return size_gib(at(medium, "size_limit"))
    return size_gib(text_of(node.get("shm_size"))) if isinstance(node.get("shm_size"), Text) else None
