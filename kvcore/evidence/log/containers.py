"""Containers that start an engine: `docker run`, Compose files, Kubernetes manifests, and the engine's YAML config.

A YAML text, pasted in place of a log, is untrusted: it is parsed into nodes with line numbers, never constructed into
objects, and bounded in size, number of nodes and depth.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import yaml
from msgspec import Struct, field

from kvcore.engines.registry import memory_variable_names, server_commands
from kvcore.flags import FLAGS
from kvcore.manifests.values import MAX_VALUE_CHARACTERS

MAX_CHARACTERS: Final = 1 << 16
"""Longest YAML text."""
MAX_NODES: Final = 1 << 14
MAX_VALUE_NODES: Final = 512
"""Most nodes of one value: a list of capture sizes is the longest."""
MAX_VALUE_DEPTH: Final = 3

PROGRAMS: Final = server_commands()
"""Programs that start a server."""
RUNNERS: Final = ("docker run", "docker container run", "podman run", "nerdctl run")
VARIABLES: Final = frozenset((*FLAGS["env"].common, *memory_variable_names()))
"""Environment variables that a plan uses."""

_SWITCHES: Final = frozenset(
    ("detach", "disable-content-trust", "init", "interactive", "no-healthcheck", "oom-kill-disable", "privileged",
     "publish-all", "quiet", "read-only", "rm", "sig-proxy", "tty")
)  # fmt: skip
"""Options of `docker run` without a value.

Source: Docker's reference of `docker container run`.
"""
_SHORT_SWITCHES: Final = frozenset("ditqP")
_VARIABLE: Final = re.compile(r"([A-Za-z_]\w{0,60})=[\"']?([\w.:,;=-]{1,120})[\"']?")
_TAG: Final = re.compile(r"v?(\d{1,3}\.\d{1,4}\.\d{1,4}(?:rc\d{1,3}|\.post\d{1,3})?)")
_SHELLS: Final = ("python", "python3", "bash", "sh", "exec")
_KEYS: Final = ("services:", "apiVersion:", "containers:", "image:", "command:", "args:", "model:")
_ARGUMENTS: Final = ("entrypoint", "command", "args")
_ENVIRONMENTS: Final = ("environment", "env")
_OTHER_BREAKS: Final = str.maketrans({"\x85": " ", "\u2028": " ", "\u2029": " "})

Fields = Mapping[str, yaml.Node]


class Container(Struct, frozen=True, kw_only=True):
    """One container: its image, the engine's words, and its environment."""

    image: str
    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str | None:
        """The release that the image's tag names; None for `latest` and for other people's tags.

        Example:
            >>> Container(image="vllm/vllm-openai:v0.19.0", words=()).version
            '0.19.0'
        """
        name, _, tag = self.image.rpartition(":")
        found = _TAG.match(tag) if "vllm" in name else None
        return found[1] if found is not None else None


def docker_container(words: Sequence[str]) -> Container | None:
    """The container of a `docker run`, from the word after `run` on; None where it starts no engine.

    Example:
        >>> docker_container(["--rm", "-p", "80:80", "vllm/vllm-openai", "--model", "Qwen/Qwen3-8B"]).words
        ('--model', 'Qwen/Qwen3-8B')
    """
    env: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("-"):
        option, is_joined, value = words[at].partition("=")
        takes_next = not is_joined and not _is_switch(option)
        if takes_next:
            value = words[at + 1] if at + 1 < len(words) else ""
        elif option.startswith("-e") and len(option) > len("-e"):
            option, value = "-e", words[at][len("-e") :]
        if option in ("-e", "--env"):
            env |= variables((value,))
        at += 2 if takes_next else 1
    if at >= len(words):
        return None
    return container(words[at], words[at + 1 :], env)


def _is_switch(option: str) -> bool:
    if option.startswith("--"):
        return option[2:] in _SWITCHES
    return len(option) > len("-x") or option[1:] in _SHORT_SWITCHES


def container(image: str, arguments: Sequence[str], env: Mapping[str, str]) -> Container | None:
    """A container with these arguments after its image; None where neither names the engine.

    The entrypoint of the engine's image takes the model as first argument, or as `--model`.
    """
    words = _engine_words(arguments)
    names_model = any(word.partition("=")[0] == "--model" for word in words)
    if not names_model and not any("vllm" in word for word in (image, *arguments)):
        return None
    return Container(image=image, words=tuple(words), env=env)


def _engine_words(arguments: Sequence[str]) -> list[str]:
    words = list(arguments)
    for word in words:
        at = next((at for at in (word.find(program) for program in PROGRAMS) if at >= 0), -1)
        if at >= 0 and " " in word:
            words = split_words(word[at:])
            break
    if "serve" in words:
        return ["vllm", *words[words.index("serve") :]]
    is_program = bool(words) and words[0].rsplit("/", 1)[-1] in _SHELLS
    if words and not words[0].startswith("-") and not is_program:
        return ["vllm", "serve", *words]
    return words


def split_words(text: str) -> list[str]:
    """Words as a shell splits them; split at white space where quotes do not close."""
    text = text[: 16 * MAX_VALUE_CHARACTERS].replace("\\\n", " ")
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def variables(assignments: Iterable[str]) -> dict[str, str]:
    """The assignments `NAME=value` that a plan uses.

    Example:
        >>> variables(["VLLM_USE_V1=0", "HF_TOKEN=x"])
        {'VLLM_USE_V1': '0'}
    """
    found = (_VARIABLE.fullmatch(text) for text in assignments)
    return {match[1]: match[2] for match in found if match is not None and match[1] in VARIABLES}


class Manifest(Struct, frozen=True, kw_only=True):
    """One start in a YAML text: a container, or the fields of a config; and the lines that it was read from."""

    lines: tuple[int, ...]
    """Counted from zero, ascending."""
    container: Container | None = None
    fields: tuple[tuple[str, str], ...] = ()


def find_manifests(lines: tuple[str, ...]) -> tuple[Manifest, ...]:
    """The starts in the lines of a YAML text; empty for any other text.

    Example:
        >>> find_manifests(("model: Qwen/Qwen3-8B", "max-model-len: 8192"))[0].fields
        (('model', 'Qwen/Qwen3-8B'), ('max-model-len', '8192'))
    """
    if len(lines) > MAX_CHARACTERS or sum(len(line) + 1 for line in lines) > MAX_CHARACTERS + 1:
        return ()
    if not any(line.lstrip(" -").startswith(_KEYS) for line in lines):
        return ()
    text = "\n".join(lines).translate(_OTHER_BREAKS)
    found: list[Manifest] = []
    with suppress(yaml.YAMLError, RecursionError):
        for document in yaml.compose_all(text, Loader=yaml.BaseLoader):
            found += _starts(document) if document is not None else ()
    return tuple(found)


def _starts(document: yaml.Node) -> Iterator[Manifest]:
    """The config that a document is, or the containers anywhere in it."""
    top = _fields(document)
    if isinstance(top.get("model"), yaml.ScalarNode) and not any(name in top for name in _ARGUMENTS):
        values = tuple((name, _value(node)) for name, node in top.items())
        yield Manifest(lines=_lines(*top.values()), fields=tuple(pair for pair in values if pair[1]))
        return
    waiting, seen = [document], {id(document)}
    while waiting:
        node = waiting.pop()
        fields = _fields(node)
        found = _container(fields)
        if found is not None:
            parts = ("image", *_ARGUMENTS, *_ENVIRONMENTS)
            yield Manifest(lines=_lines(*(fields[name] for name in parts if name in fields)), container=found)
        for child in reversed(_children(node)):
            if id(child) not in seen and len(seen) < MAX_NODES:
                seen.add(id(child))
                waiting.append(child)


def _fields(node: yaml.Node) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [value for _, value in node.value]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _container(fields: Fields) -> Container | None:
    words = [word for name in _ARGUMENTS if name in fields for word in _words(fields[name])]
    image = _scalar(fields.get("image"))
    if not words and "vllm" not in image:
        return None
    env: dict[str, str] = {}
    for name in _ENVIRONMENTS:
        if name in fields:
            env |= variables(_assignments(fields[name]))
    # Compose and the kubelet both read $$ as a dollar sign.
    return container(image, [word.replace("$$", "$") for word in words], env)


def _words(node: yaml.Node) -> list[str]:
    if isinstance(node, yaml.ScalarNode):
        return split_words(node.value)
    return [_scalar(child) for child in _children(node)]


def _assignments(node: yaml.Node) -> Iterator[str]:
    """`NAME=value` of a mapping, a list of such texts, or a list of names and values."""
    if isinstance(node, yaml.MappingNode):
        for name, value in _fields(node).items():
            yield f"{name}={_scalar(value)}"
        return
    for child in _children(node):
        inner = _fields(child)
        yield f"{_scalar(inner['name'])}={_scalar(inner.get('value'))}" if "name" in inner else _scalar(child)


def _scalar(node: yaml.Node | None) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _value(node: yaml.Node) -> str:
    """A value as in a command: a word, or JSON."""
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node)
    budget = iter(range(MAX_VALUE_NODES))
    value = _plain(node, MAX_VALUE_DEPTH, budget)
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    return json.dumps(value)


def _plain(node: yaml.Node, depth: int, budget: Iterator[int]) -> object:
    """A node as plain data; None below a depth, or beyond the budget of nodes."""
    if next(budget, None) is None or depth < 0:
        return None
    if isinstance(node, yaml.MappingNode):
        return {name: _plain(value, depth - 1, budget) for name, value in _fields(node).items()}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(child, depth - 1, budget) for child in _children(node)]
    text = _scalar(node)
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= 18 else text


def _lines(*nodes: yaml.Node) -> tuple[int, ...]:
    return tuple(sorted({node.start_mark.line for node in nodes}))
