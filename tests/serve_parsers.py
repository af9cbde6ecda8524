"""The argument parser of `vllm serve` by release, from flags with their types (tools/parity/serve_flags.py)."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

ROWS = {
    row["release"]: row["flags"]
    for row in map(json.loads, Path("tests/data/serve_flags.jsonl").read_text("utf-8").splitlines())
}


class RefusedError(Exception):
    """The message that the parser would print before it ends the process."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RefusedError(message)


def human(text: str) -> int:
    """Source: vllm/engine/arg_utils.py:human_readable_int (0.11.0, 0.23.0)."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])?", text)
    if found is None:
        raise argparse.ArgumentTypeError(text)
    scale = 1000 if (found[2] or "").islower() else 1024
    return int(float(found[1]) * scale ** " kmgt".index((found[2] or " ").lower()))


def human_or_auto(text: str) -> int:
    return -1 if text in ("auto", "-1") else human(text)


def word_or_json(text: str) -> Any:
    return json.loads(text) if text.startswith("{") else text


TYPES: dict[str, Callable[[str], Any]] = {
    "int": int, "float": float, "str": str, "human": human, "human-auto": human_or_auto, "json": json.loads,
    "dict": word_or_json,
}  # fmt: skip


@cache
def parser_of(release: str) -> Parser:
    parser = Parser("vllm serve", allow_abbrev=False)
    parser.add_argument("model_tag", nargs="?")
    for flag, kind in ROWS[release].items():
        if isinstance(kind, list):
            options: dict[str, Any] = {"choices": kind}
        elif isinstance(kind, dict):
            options = {"type": TYPES[kind["each"]], "nargs": kind["count"]}
        elif kind == "switch" and flag.startswith("--"):
            options = {"action": argparse.BooleanOptionalAction}
        elif kind in ("switch", "on"):
            options = {"action": "store_true"}
        else:
            options = {"type": TYPES[kind]}
        parser.add_argument(flag, **options)
    return parser


def parsed(release: str, words: list[str]) -> dict[str, Any]:
    """The flags that the parser reads from the words after `vllm serve`."""
    found = vars(parser_of(release).parse_args(_joined(words)))
    return {name: value for name, value in found.items() if value is not None and value is not False}


def _joined(words: list[str]) -> list[str]:
    """Keys of an object that are given one by one, as the object.

    Source: vllm/utils/argparse_utils.py:FlexibleArgumentParser.parse_args (0.23.0).
    """
    left, objects = [], dict[str, dict[str, Any]]()
    several = iter(words)
    for word in several:
        flag, dot, key = word.partition(".")
        if word.startswith("--") and dot:
            objects.setdefault(flag, {})[key] = json.loads(next(several))
        else:
            left.append(word)
    return left + [text for flag, value in objects.items() for text in (flag, json.dumps(value))]
