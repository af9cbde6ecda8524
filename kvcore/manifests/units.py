"""Files of sections: systemd units, Podman's quadlets, supervisord's programs; makefiles and profiles of variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from kvcore.manifests.build import Facts, built, pairs_given
from kvcore.manifests.cards import card_in
from kvcore.manifests.images import image_of
from kvcore.manifests.nodes import Map, Row, Text
from kvcore.manifests.pods import Found, Input, container_found, distinct
from kvcore.manifests.programs import Launch, gpu_count, script_launches
from kvcore.manifests.shell_words import words_of
from kvcore.manifests.variables import env_file, of_make, of_units
from kvcore.manifests.workload import ALL_GPUS, Other, Place, Workload

MAX_LINES: Final = 20_000

_SECTION: Final = re.compile(r"\[([^\]\n]{1,100})\]\s*")
_ENTRY: Final = re.compile(r"([A-Za-z][\w.-]{0,60})\s*=(.{0,16000})")
_MAKE_SET: Final = re.compile(
    r"(?:export\s+|override\s+)?([A-Za-z_][\w.-]{0,80})\s*([:?+!]{0,2})=\s?(.{0,8000})"
)
_TARGET: Final = re.compile(
    r"([A-Za-z0-9_./%-]{1,80}(?:\s+[A-Za-z0-9_./%-]{1,80}){0,20})\s*::?(?!=)(.{0,2000})"
)


class Entry(Struct, frozen=True):
    """One setting of a section."""

    section: str
    key: str
    value: str
    line: int


def entries(text: str) -> Iterator[Entry]:
    """The settings of a file of sections; lines that end in a backslash go on, comments between them do not count."""
    section, key, value, first, waits = "", "", "", 0, False
    for number, line in enumerate(text.split("\n")[:MAX_LINES], 1):
        if waits and line.lstrip().startswith(("#", ";")):
            continue
        if waits:
            waits = line.rstrip().endswith("\\")
            value += " " + line.strip().rstrip("\\")
            continue
        if line.lstrip().startswith(("#", ";")):
            continue
        found = _SECTION.fullmatch(line.strip())
        if found is not None or (entry := _ENTRY.match(line)) is None:
            if found is None and key and line[:1] in " \t" and line.strip():
                value += " " + line.strip()
                continue
            if key:
                yield Entry(section, key, value.strip(), first)
            key, section = "", found[1] if found is not None else section
            continue
        if key:
            yield Entry(section, key, value.strip(), first)
        key, value, first = entry[1], entry[2].rstrip(), number
        waits = value.endswith("\\")
        value = value.rstrip("\\")
    if key:
        yield Entry(section, key, value.strip(), first)


def units(text: str, given: Input) -> Iterator[Found]:
    """The engines of a file of sections."""
    found = list(entries(text))
    sections = {one.section for one in found}
    if any(name.startswith(("program:", "fcgi-program:")) for name in sections):
        yield from _supervisor(found, given)
    elif "Container" in sections:
        yield from _quadlet(found, given)
    else:
        yield from _systemd(found, given)


def _assigned(text: str) -> dict[str, str]:
    """`A=1 "B=x y"` of a unit, `A="1",B="2"` of supervisord."""
    found: dict[str, str] = {}
    for word in words_of(text.replace('",', '" ').replace("',", "' ")):
        name, is_set, value = word.partition("=")
        if is_set and name.strip(",").isidentifier():
            found[name.strip(",")] = value
    return found


def _systemd(found: list[Entry], given: Input) -> Iterator[Found]:
    variables: dict[str, str] = {}
    for one in found:
        if one.key == "Environment":
            variables |= _assigned(one.value)
        elif one.key == "EnvironmentFile":
            text = given.scripts.find(one.value.lstrip("-"))
            variables |= env_file(text) if text is not None else {}
    described = " ".join(one.value for one in found if one.key == "Description")
    for one in found:
        if one.key != "ExecStart":
            continue
        command = of_units(one.value.lstrip("-@:+!"), variables)
        facts = Facts(kind="systemd", file=given.file, line=one.line, card=card_in(described))
        launched = script_launches(
            command, variables, given.scripts, line=one.line, exported=frozenset(variables)
        )
        for launch in distinct(launched) if launched else ():
            if launch.engine:
                held = launch.container
                facts.name = None if held is None else facts.name
                yield _without_name(built(launch, facts, given.scripts))


def _without_name(found: Found) -> Found:
    """A unit has the name of its file, not of the container that it runs."""
    from msgspec.structs import replace as changed

    return changed(found, name=None) if isinstance(found, Workload) else found


def _quadlet(found: list[Entry], given: Input) -> Iterator[Found]:
    own = [one for one in found if one.section == "Container"]
    values: Mapping[str, str] = {one.key: one.value for one in own}
    variables: dict[str, str] = {}
    for one in own:
        if one.key == "Environment":
            variables |= _assigned(one.value)
    devices = [one.value for one in own if one.key == "AddDevice"]
    podman = [word for one in own if one.key == "PodmanArgs" for word in words_of(one.value)]
    asked = next((word.partition("=")[2] for word in podman if word.startswith("--gpus=")), None)
    numbered = len({one for one in devices if "nvidia.com/gpu=" in one})
    gpus = (
        ALL_GPUS
        if any("gpu=all" in one for one in devices)
        else gpu_count(asked)
        if asked
        else numbered or None
    )
    line = next((one.line for one in own if one.key in ("Exec", "Image")), 0)
    facts = Facts(
        name=values.get("ContainerName"), kind="quadlet", file=given.file, line=line, image=values.get("Image", ""),
        gpus=gpus, shm_gib=None, shares_ipc="--ipc=host" in podman,
    )  # fmt: skip
    from kvcore.manifests.unknowns import names_in
    from kvcore.manifests.workload import binary_gib

    stated = {word.partition("=")[0]: word.partition("=")[2] for word in podman}
    facts.shm_gib = binary_gib(values.get("ShmSize") or stated.get("--shm-size"))
    facts.memory_gib = binary_gib(values.get("Memory") or stated.get("--memory"))
    facts.undefined = names_in(values.get("Image", ""))
    words = Row(
        Text(word) for word in [*words_of(values.get("Entrypoint", "")), *words_of(values.get("Exec", ""))]
    )
    yield from container_found(
        Map({"command": words, "name": Text(values.get("ContainerName", ""))}), facts, variables, given
    )


def _supervisor(found: list[Entry], given: Input) -> Iterator[Found]:
    programs: dict[str, dict[str, Entry]] = {}
    for one in found:
        if one.section.startswith(("program:", "fcgi-program:")):
            programs.setdefault(one.section.partition(":")[2], {})[one.key] = one
    for name, settings in programs.items():
        command, env = settings.get("command"), settings.get("environment")
        if command is None:
            continue
        variables = _assigned(env.value) if env is not None else {}
        text = re.sub(r"%\(ENV_(\w{1,80})\)s", lambda one: "${" + one[1] + "}", command.value)
        launched = script_launches(
            text, variables, given.scripts, line=command.line, exported=frozenset(variables)
        )
        facts = Facts(name=name, kind="supervisord", file=given.file, line=command.line)
        for launch in distinct(launched) if launched else ():
            yield built(launch, facts, given.scripts)
        if not launched:
            yield Other(name=name, role="program", place=Place(given.file, command.line))


def makefile(text: str, given: Input) -> Iterator[Found]:
    """The engines that the targets of a makefile start."""
    variables: dict[str, str] = dict(given.env)
    recipes: list[tuple[str, int, list[str]]] = []
    goes_on: tuple[str, str] | None = None
    for number, line in enumerate(text.split("\n")[:MAX_LINES], 1):
        if goes_on is not None:
            name, how = goes_on
            variables[name] = variables.get(name, "") + " " + line.strip().rstrip("\\")
            goes_on = (name, how) if line.rstrip().endswith("\\") else None
            continue
        if line.startswith("\t") and recipes:
            recipes[-1][2].append(line[1:])
            continue
        if recipes and recipes[-1][2] and recipes[-1][2][-1].rstrip().endswith("\\"):
            recipes[-1][2].append(line)
            continue
        setting = _MAKE_SET.fullmatch(line.strip()) if not line.startswith("#") else None
        if setting is not None:
            name, how, value = setting[1], setting[2], setting[3]
            if how != "?" or name not in variables:
                before = f"{variables[name]} " if how == "+" and name in variables else ""
                variables[name] = before + value.rstrip("\\").strip()
            goes_on = (name, how) if value.rstrip().endswith("\\") else None
            continue
        target = _TARGET.fullmatch(line.rstrip()) if line[:1] not in "#\t " else None
        if target is not None and not target[1].startswith("."):
            recipes.append((target[1].split()[0], number, []))
    for name, number, lines in recipes:
        body = "\n".join(line.lstrip("@-+") for line in lines)
        if "serve" not in body and "vllm" not in body and "sglang" not in body:
            continue
        text_now = of_make(body, variables)
        launched = script_launches(text_now, {}, given.scripts, line=number + 1)
        facts = Facts(name=name, kind="makefile", file=given.file, line=number)
        for launch in distinct([one for one in launched if one.engine]) if launched else ():
            if launch.engine:
                yield built(launch, facts, given.scripts)


_PROFILE_NAMES: Final = {
    "gpu_mem_util": "gpu_memory_utilization", "gpu_util": "gpu_memory_utilization",
    "gpu_utilization": "gpu_memory_utilization",
    "tp": "tensor_parallel_size", "tp_size": "tensor_parallel_size",
    "max_len": "max_model_len", "max_seqs": "max_num_seqs",
    "kv_dtype": "kv_cache_dtype", "tensor_parallel": "tensor_parallel_size", "max_context_len": "max_model_len",
}  # fmt: skip
_PROFILE_MODELS: Final = ("model", "model_id", "model_name", "hf_model", "model_path")


def profile(text: str, given: Input) -> Iterator[Found]:
    """The engine that a file of variables is for, whose names are those of its arguments."""
    from kvcore.manifests.arguments import resolved
    from kvcore.manifests.typed import typed

    values = env_file(text)
    prefix = _common_prefix(list(values))
    flags, model, image, lines = Map(), None, None, text.split("\n")
    for name, value in values.items():
        own = name[len(prefix) :].lower().removeprefix("vllm_")
        if own in _PROFILE_MODELS:
            model = value
        elif "image" in own and image_of(value).engine:
            image = value
        else:
            flag = _PROFILE_NAMES.get(own) or (
                own if resolved(f"--{own.replace('_', '-')}")[1] != "unknown" else None
            )
            if flag is not None:
                flags[flag] = Text(
                    {"1": "true", "0": "false"}.get(value, value) if _is_switch(flag) else value
                )
    read = typed(pairs_given(flags))
    if len(read.request) < 2 or (image is None and "vllm" not in text.lower()):
        return
    commented = next(
        (line.strip("# ").replace("--", "/", 1) for line in lines[:3] if _is_hub_folder(line)), None
    )
    facts = Facts(
        kind="profile", file=given.file, line=1, model=model, image=image, before=pairs_given(flags),
        fallbacks=(commented,) if commented else (),
    )  # fmt: skip
    engine = image_of(image).engine or "vllm"
    yield built(Launch(engine=engine, words=(), line=1), facts, given.scripts)


def _is_switch(flag: str) -> bool:
    from kvcore.manifests.arguments import resolved

    return resolved(f"--{flag.replace('_', '-')}")[1] == "switch"


def _is_hub_folder(line: str) -> bool:
    return re.fullmatch(r"#\s*[\w.-]{1,60}--[\w.-]{1,100}\s*", line) is not None


def _common_prefix(names: list[str]) -> str:
    """The word with its underscore that all names begin with."""
    heads = {name.partition("_")[0] for name in names}
    return f"{heads.pop()}_" if len(heads) == 1 and len(names) > 1 and "_" in names[0] else ""
