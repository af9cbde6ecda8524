"""SkyPilot tasks: resources, variables, and the script that runs on every node.

Source: SkyPilot's task YAML (resources, num_nodes, envs, run, service) and its runtime variables (SKYPILOT_*).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kvcore.manifests.build import Facts, built
from kvcore.manifests.cards import card_in
from kvcore.manifests.nodes import Map, Row, at, line_of, mapping, rows, text_of
from kvcore.manifests.pods import Found, Input, distinct
from kvcore.manifests.programs import script_launches
from kvcore.manifests.unknowns import has_mark
from kvcore.manifests.workload import binary_gib, whole

_CONTINUED: Final = re.compile(r"(?: \\)?\n\s{0,80}(?=-)")
"""A line of a folded command that goes on with an option."""


def task(document: Map, given: Input) -> Iterator[Found]:
    """The engines that a task starts."""
    resources = mapping(document.get("resources"))
    asked = _accelerators(resources)
    counts = {count for _, count in asked}
    gpus = counts.pop() if len(counts) == 1 else None
    nodes = whole(text_of(document.get("num_nodes"))) or 1
    variables = {
        key: str(value) for key, value in mapping(document.get("envs")).items() if text_of(value) is not None
    }
    known = {"SKYPILOT_NUM_NODES": str(nodes), "SKYPILOT_NODE_RANK": "0"}
    if gpus is not None:
        known["SKYPILOT_NUM_GPUS_PER_NODE"] = str(gpus)
    image = str(text_of(resources.get("image_id")) or "").removeprefix("docker:")
    names = [f"{name}:{count}" for name, count in asked]
    service = document.get("service")
    fixed = whole(text_of(at(service, "replicas"))) if isinstance(service, Map) else None
    policy = at(service, "replica_policy")
    low, high = (whole(text_of(at(policy, key))) for key in ("min_replicas", "max_replicas"))
    name = text_of(document.get("name"))
    setup = str(text_of(document.get("setup")) or "")
    facts = Facts(
        name=str(name) if name is not None else None, kind="skypilot", file=given.file, line=line_of(document),
        image=image or None, card=("{" + ", ".join(names) + "}" if len(names) > 1 else names[0]) if names else None,
        card_choices=tuple(name for name, _ in asked) if len(asked) > 1 else (), gpus=gpus, nodes=nodes,
        replicas=fixed if fixed is not None else low if low is not None and low == high else None, installs=setup,
    )  # fmt: skip
    text = document.get("run")
    run = (
        str(text)
        if isinstance(text, str)
        else "\n".join(str(one) for one in rows(text) if isinstance(one, str))
    )
    found = script_launches(
        run,
        {**variables, **known},
        given.scripts,
        line=line_of(text) + 1,
        exported=frozenset({*variables, *known}),
    )
    for launch in distinct(found) if found else ():
        if launch.engine or launch.role:
            yield built(launch, facts, given.scripts)


def _accelerators(resources: Map) -> list[tuple[str, int]]:
    """Cards with their count; several of which any may be given."""
    node = resources.get("accelerators")
    found: list[tuple[str, int]] = []
    if isinstance(node, Map):
        for key, value in node.items():
            name, _, count = key.partition(":")
            found.append((name.strip(), whole(text_of(value)) or whole(count) or 1))
    elif isinstance(node, Row | str):
        for one in [node] if isinstance(node, str) else rows(node):
            name, _, count = str(one).partition(":")
            found.append((name.strip(), whole(count) or 1))
    for option in (*rows(resources.get("any_of")), *rows(resources.get("ordered"))):
        if isinstance(option, Map) and "accelerators" in option:
            found += _accelerators(Map({"accelerators": option["accelerators"]}))
    return [(name, count) for name, count in found if name and not has_mark(name)]


def dstack(document: Map, given: Input) -> Iterator[Found]:
    """The engines of a dstack service or task.

    Source: dstack's reference of .dstack.yml (resources.gpu, replicas, shm_size) and its variables (DSTACK_GPUS_NUM).
    """
    asked = at(document, "resources.gpu")
    choices = [str(one) for one in rows(at(asked, "name"))]
    text = str(text_of(asked) or text_of(at(asked, "name")) or next(iter(choices), ""))
    parts = [part for part in text.split(":") if part]
    count = whole(text_of(at(asked, "count"))) or next(
        (whole(part) for part in parts if whole(part) is not None), None
    )
    named = next((part for part in parts if card_in(part) is not None), None)
    variables: dict[str, str] = {}
    for one in rows(document.get("env")):
        key, is_set, value = str(one).partition("=")
        variables |= {key: value} if is_set else {}
    variables |= {
        key: str(value) for key, value in mapping(document.get("env")).items() if isinstance(value, str)
    }
    gpus = count if count is not None else 1 if named is not None else None
    known = {"DSTACK_NODES_NUM": "1", "DSTACK_NODE_RANK": "0"}
    known |= {"DSTACK_GPUS_NUM": str(gpus), "DSTACK_GPUS_PER_NODE": str(gpus)} if gpus is not None else {}
    commands = document.get("commands")
    lines = [_CONTINUED.sub(" ", str(one)) for one in rows(commands)]
    name, image = text_of(document.get("name")), text_of(document.get("image"))
    facts = Facts(
        name=str(name) if name is not None else None, kind="dstack", file=given.file, line=line_of(document),
        image=str(image) if image is not None else None, card=text if named is not None else None, gpus=gpus,
        card_choices=tuple(choices) if len(choices) > 1 else (),
        replicas=whole(text_of(document.get("replicas"))), shm_gib=binary_gib(at(document, "resources.shm_size")),
        installs="\n".join(lines),
    )  # fmt: skip
    found = script_launches(
        "\n".join(lines), {**variables, **known}, given.scripts, line=line_of(commands),
        exported=frozenset({*variables, *known}),
    )  # fmt: skip
    for launch in distinct(found) if found else ():
        if launch.engine or launch.role:
            yield built(launch, facts, given.scripts)
