"""Words of a command line -> a request: a model, and flags as the engine's own parser takes them.

`kvcore plan Qwen/Qwen3-32B -tp 2 --max-model-len 32k`: every flag of the registry by each of its spellings, the fields
that only a request has (`--accelerator`, `--wanted`), and flags of the engine that change no plan, so that a command of
`vllm serve` can be pasted behind `kvcore plan`.
"""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kvcore.base.errors import ScenarioError, invalid, shorten
from kvcore.flags import FLAGS, Flag, Kind, explained, read_whole
from kvcore.manifests.arguments import Given, resolved
from kvcore.manifests.typed import typed
from kvcore.wire.request import parse_request

OWN_SPELLINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "accelerator": ("--accelerator", "--card"),
    "wanted": ("--target", "--wanted"),
    "env": ("--env", "-e"),
}
"""Fields that are no flag of the engine, by the names that they have here."""
MORE_SPELLINGS: Final[Mapping[str, tuple[str, ...]]] = {"max_model_len": ("--length",)}
"""Shorter words for flags that the engine has under a longer name."""
_NOT_TYPED: Final = ("id", "model", "config", "hf_quant_config", "headers", "checkpoint", "measured",
                     "measured.fitted", "measured.carried")  # fmt: skip
"""Fields that nobody types."""
_BEHIND_A_DOT: Final = ("accelerator", "surroundings", "measured")
"""Objects whose fields are options of their own; those of the engine's objects follow its flag behind a dot."""
CONFIG: Final = "config.json"
MAX_CONFIG_BYTES: Final = 8 << 20


def flags_of_words() -> Iterator[tuple[Flag, tuple[str, ...]]]:
    """The flags that can be typed, each with its spellings, the usual one first."""
    for flag in FLAGS.values():
        is_typed = bool(flag.cli) or not flag.parent or flag.parent in _BEHIND_A_DOT
        if is_typed and flag.name not in _NOT_TYPED and flag.kind is not Kind.ANY:
            spelled = OWN_SPELLINGS.get(flag.name) or (*flag.cli, *MORE_SPELLINGS.get(flag.name, ()))
            yield flag, spelled or (f"--{flag.name.replace('_', '-')}",)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds every flag of the registry to a parser, each appended to `given` as typed."""
    group = parser.add_argument_group("flags of the engine, and what it runs on")
    parser.set_defaults(given=())
    for flag, spellings in flags_of_words():
        said = shorten(" ".join(explained(flag)), 200).replace("%", "%%")
        options: dict[str, Any] = {"action": _Keep, "dest": "given"}
        shown: dict[str, Any] = {"help": said or None}
        if flag.kind is Kind.BOOLEAN:
            negated = [f"--no-{name[2:]}" for name in spellings if name.startswith("--")]
            group.add_argument(*spellings, nargs=0, const="True", **options, **shown)
            group.add_argument(*negated, nargs=0, const="False", **options, help=argparse.SUPPRESS)
            continue
        count: dict[str, Any] = {"nargs": "+"} if flag.kind is Kind.INTEGERS else {}
        group.add_argument(*spellings, metavar=_metavar(flag), **count, **options, **shown)


def _metavar(flag: Flag) -> str:
    if flag.name == "accelerator":
        return "CARD"
    if flag.name == "env":
        return "NAME=VALUE"
    if flag.choices:
        return "|".join(flag.choices) if sum(map(len, flag.choices)) < 40 else "NAME"
    if flag.kind in (Kind.OBJECT, Kind.TEXT_OR_OBJECT):
        return "JSON"
    return "N" if flag.minimum is not None else "NAME"


class _Keep(argparse.Action):
    """Keeps an option as it was typed, in order: which of two counts is decided later, as the engine decides it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        del parser
        items = tuple(values) if isinstance(values, list) else (values,)
        value = str(self.const) if self.nargs == 0 else ",".join(map(str, items))
        word = option_string or ""
        given = Given(
            name=_name_of(word), value=value.strip(), word=word, items=() if self.nargs == 0 else items
        )
        namespace.given = (*(namespace.given or ()), given)


def _name_of(word: str) -> str:
    """The field that an option sets: `-tp` is tensor_parallel_size, `--target` is wanted."""
    for name, spellings in (*OWN_SPELLINGS.items(), *MORE_SPELLINGS.items()):
        if word in spellings:
            return name
    own = word.lstrip("-").replace("-", "_")
    if own in FLAGS and not FLAGS[own].cli:
        return own
    return resolved(word)[0].removeprefix("no_")


def with_engine_words(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """The words with dashes in place of underscores, after adding to `parser` what else the engine's own parser knows.

    Raises ScenarioError `unknown-option` for an option that nobody knows.
    """
    known = {option for action in parser._actions for option in action.option_strings}
    found: list[str] = []
    for word in words:
        head, equals, value = word.partition("=")
        if head.startswith("--") and len(head) > 2:
            name, dot, rest = head.partition(".")
            head = name.replace("_", "-") + dot + rest
        is_option = head.startswith("-") and len(head) > 1 and not head[1].isdigit()
        if is_option and head not in known and not _is_prefix(head, known):
            _add_engine_word(parser, head, known)
            known.add(head)
        found.append(head + equals + value)
    return found


def _is_prefix(head: str, known: set[str]) -> bool:
    """Whether argparse itself completes it."""
    return head.startswith("--") and "." not in head and any(option.startswith(head) for option in known)


def _add_engine_word(parser: argparse.ArgumentParser, head: str, known: set[str]) -> None:
    name, follows, _ = resolved(head)
    outer = name.partition(".")[0]
    is_inner = "." in head and (outer in FLAGS or outer in ("compilation_config", "eplb_config"))
    if follows == "unknown" or ("." in head and not is_inner):
        near = difflib.get_close_matches(head, [one for one in known if one.startswith("--")], 1)
        raise ScenarioError("unknown-option", value=head, near=near[0] if near else "--help")
    options: dict[str, Any] = {"action": _Keep, "dest": "given", "help": argparse.SUPPRESS}
    if follows == "switch":
        parser.add_argument(head, nargs=0, const="True", **options)
    else:
        parser.add_argument(head, nargs="+" if follows == "list" else None, **options)


def request_of_words(model: str, given: Sequence[Given]) -> dict[str, Any]:
    """The request of a model and of flags as typed.

    A folder with a config.json is planned by it, as the engine would. Raises ScenarioError for a value that is none of
    its flag, or for an object that is no JSON.

    Example:
        >>> given = [Given(name="tensor_parallel_size", value="2"), Given(name="max_model_len", value="32k")]
        >>> request_of_words("Qwen/Qwen3-32B", given)
        {'model': 'Qwen/Qwen3-32B', 'tensor_parallel_size': 2, 'max_model_len': 32000}
    """
    own = [one for one in given if _is_own(one.name)]
    others = [one for one in given if not _is_own(one.name)]
    read = typed(others)
    request: dict[str, Any] = {"model": model, **_config_of(model), **read.planned}
    for one in others:
        if one.name in FLAGS and one.name not in request and read.unusable:
            request[one.name] = one.value  # the request says what is wrong with it
    for one in own:
        _place(request, one)
    return request


def _is_own(name: str) -> bool:
    """Whether it is a field of a request that is no flag of the engine, read by its row alone."""
    head = name.partition(".")[0]
    return head in _BEHIND_A_DOT or (name in FLAGS and not FLAGS[name].cli)


def _config_of(model: str) -> dict[str, Any]:
    """The config.json of a local folder."""
    file = Path(model) / CONFIG
    try:
        if "\0" in model or not file.is_file():
            return {}
        with file.open("rb") as opened:
            text = opened.read(MAX_CONFIG_BYTES)
    except OSError:
        return {}
    return {"config": parse_request(text.decode("utf-8", "replace"))}


def _place(request: dict[str, Any], one: Given) -> None:
    """Puts a field of a request in its place: `surroundings.link` into the object."""
    if one.name == "env":
        name, equals, value = one.value.partition("=")
        if not equals:
            raise invalid("env", one.value, "it must be NAME=VALUE")
        request.setdefault("env", {})[name] = value
        return
    head, dot, key = one.name.partition(".")
    if not dot:
        request[one.name] = _value(FLAGS[one.name], one)
        return
    outer = request.get(head)
    if isinstance(outer, str):  # a card by its name, of which a fact is given
        outer = {"name": outer}
    request[head] = {**(outer or {}), key: _value(FLAGS.get(one.name), one)}


def _value(flag: Flag | None, one: Given) -> Any:
    """A value by the kind of its flag; a text where it is none, which the request then refuses in its words."""
    text = one.value
    if flag is None or flag.kind in (Kind.TEXT, Kind.CHOICE):
        return text
    if flag.kind is Kind.INTEGER:
        whole = read_whole(text, flag)
        return text if whole is None else whole
    if flag.kind is Kind.BOOLEAN:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    if flag.kind is Kind.TEXT_OR_OBJECT and not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if flag.kind is Kind.OBJECT:
            raise invalid(flag.name, text, "it must be an object in JSON") from None
        return text
