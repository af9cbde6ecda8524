"""The engines that are known: every folder beside this file with an `engine.toml`, read strictly."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from packaging.version import InvalidVersion, Version

import kvcore.engine
from kvcore.catalogue.accelerators import Accelerator
from kvcore.engine.protocol import Engine, MemoryVariables
from kvcore.errors import CatalogueError, ScenarioError
from kvcore.scenario import Scenario

FILE: Final = "engine.toml"


@cache
def engines() -> tuple[Engine, ...]:
    """All engines, in their order. Raises CatalogueError `invalid-catalogue-entry` for a file of any other shape."""
    found = [
        read_engine(file.read_text(encoding="utf-8"), f"{file.parent.name}/{FILE}")
        for folder in kvcore.engine.__path__
        for file in sorted(Path(folder).glob(f"*/{FILE}"))
    ]
    return tuple(sorted(found, key=lambda engine: engine.order))


def engine_names() -> tuple[str, ...]:
    """The engines as a request names them.

    Example:
        >>> engine_names()
        ('vllm', 'vllm-ascend', 'vllm-mindspore')
    """
    return tuple(engine.name for engine in engines())


def find_engine(name: str) -> Engine:
    """The engine of that name. Raises ScenarioError `invalid-value` for one that is not known.

    Example:
        >>> find_engine("vllm-ascend").launch.program
        ('vllm', 'serve')
    """
    known = _by_name().get(name)
    if known is None:
        reason = f"it must be one of {', '.join(engine_names())}"
        raise ScenarioError("invalid-value", field="engine", value=name, reason=reason)
    return known


@cache
def _by_name() -> Mapping[str, Engine]:
    return {engine.name: engine for engine in engines()}


def engine_for(card: Accelerator) -> Engine:
    """The engine that serves on `card` where nobody names one.

    Example:
        >>> from kvcore import catalogue
        >>> engine_for(catalogue.find_accelerator("Ascend-910B3-64GB")).name
        'vllm-ascend'
    """
    return next(engine for engine in engines() if engine.runs_on(card))


def server_commands() -> tuple[str, ...]:
    """How a shell starts a server of any engine: programs first, then Python modules.

    Example:
        >>> server_commands()[:2]
        ('vllm serve', 'vllm-mindspore serve')
    """
    starts = [engine.launch for engine in engines()]
    commands = (*(" ".join(start.program) for start in starts), *(start.module for start in starts))
    return tuple(dict.fromkeys(filter(None, commands)))


def memory_variable_names() -> tuple[str, ...]:
    """The environment variables by which any engine is told the memory of a card."""
    told = (engine.memory_variables for engine in engines())
    return tuple(name for variables in told if variables is not None for name in variables.names)


def engine_with_variables() -> tuple[Engine, MemoryVariables]:
    """The engine whose memory is declared by variables, and those: it needs a run before the real one."""
    return next(
        (engine, engine.memory_variables) for engine in engines() if engine.memory_variables is not None
    )


def with_accelerator(scenario: Scenario, card: Accelerator) -> Scenario:
    """`scenario` on `card`, with the newest release of the engine that runs there where its own does not."""
    changed = replace(scenario, accelerator=card)
    if find_engine(scenario.engine).runs_on(card):
        return changed
    return replace(changed, engine=engine_for(card).name, engine_version=None)


def read_engine(text: str, file: str) -> Engine:
    """An engine's file; raises CatalogueError `invalid-catalogue-entry` with file, key and what was allowed."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _invalid(file, str(error)) from None
    engine: Engine = _value(raw, Engine, file)
    return engine


def _value(raw: Any, kind: Any, where: str) -> Any:
    """`raw` as `kind`: a dataclass from a table, a tuple from a list, pairs of versions from a table of them."""
    if isinstance(kind, UnionType):
        kind = next(one for one in get_args(kind) if one is not type(None))
    if is_dataclass(kind):
        return _record(raw, kind, where)
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        if get_origin(inner) is tuple and isinstance(raw, dict):
            return tuple(
                sorted((_value(a, Version, where), _value(b, Version, where)) for a, b in raw.items())
            )
        if not isinstance(raw, list):
            raise _invalid(where, "it must be a list")
        return tuple(_value(one, inner, where) for one in raw)
    if kind is Version and isinstance(raw, str):
        try:
            return Version(raw)
        except InvalidVersion as error:
            raise _invalid(where, str(error)) from None
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if raw not in tuple(kind):
            raise _invalid(where, f"it must be one of {', '.join(kind)}")
        return kind(raw)
    if type(raw) is not kind:
        raise _invalid(where, f"it must be of type {kind.__name__}")
    return raw


def _record(raw: Any, kind: Any, where: str) -> Any:
    hints, known = get_type_hints(kind), {field.name: field for field in fields(kind)}
    if not isinstance(raw, dict) or not raw.keys() <= known.keys():
        raise _invalid(where, f"it must be a table of {', '.join(known)}")
    needed = {
        name for name, field in known.items() if field.default is MISSING and field.default_factory is MISSING
    }
    if missing := needed - raw.keys():
        raise _invalid(where, f"missing {', '.join(sorted(missing))}")
    return kind(**{name: _value(value, hints[name], f"{where} {name}") for name, value in raw.items()})


def _invalid(where: str, reason: str) -> CatalogueError:
    return CatalogueError("invalid-catalogue-entry", field=where, reason=reason)
