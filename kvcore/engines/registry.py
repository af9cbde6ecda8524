"""The engines that are known: every folder next to this file with an `engine.toml`, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from msgspec.structs import replace

import kvcore.engines
from kvcore.base.errors import invalid
from kvcore.base.toml_files import text_at
from kvcore.catalogue.accelerators import Accelerator
from kvcore.engine.memory_rules import MemoryVariables
from kvcore.engine.protocol import Engine
from kvcore.engine.resolved import CardView
from kvcore.scenario import Scenario
from kvcore.tables import convert, read_toml, wrong

FILE: Final = "engine.toml"


@cache
def engines() -> tuple[Engine, ...]:
    """All engines, in their order. Raises CatalogueError `invalid-catalogue-entry` for a file of any other shape."""
    found = tuple(map(_engine, _rooms()))
    fitted = {engine.name for engine in found if engine.overheads is not None}
    for engine in found:
        if engine.memory.overheads not in (None, *fitted):
            raise wrong(f"{engine.name} memory overheads", f"it is none of {', '.join(sorted(fitted))}")
    return found


@cache
def _rooms() -> Mapping[str, Path]:
    """The engines' files by name, in their order."""
    files = [file for folder in kvcore.engines.__path__ for file in sorted(Path(folder).glob(f"*/{FILE}"))]
    said = [(read_toml(text_at(file), str(file)), file) for file in files]
    return {room["name"]: file for room, file in sorted(said, key=lambda one: int(one[0]["order"]))}


@cache
def _engine(name: str) -> Engine:
    """An engine without the others: a plan needs no more."""
    file = _rooms()[name]
    return read_engine(text_at(file), f"{file.parent.name}/{FILE}")


def engine_names() -> tuple[str, ...]:
    """The engines as a request names them.

    Example:
        >>> engine_names()
        ('vllm', 'vllm-ascend', 'vllm-mindspore')
    """
    return tuple(_rooms())


def find_engine(name: str) -> Engine:
    """The engine of that name. Raises ScenarioError `invalid-value` for one that is not known.

    Example:
        >>> find_engine("vllm-ascend").launch.program
        ('vllm', 'serve')
    """
    try:
        return _engine(name)
    except KeyError:
        raise invalid("engine", name, f"it must be one of {', '.join(engine_names())}") from None


def engine_for(card: Accelerator | CardView) -> Engine:
    """The engine that serves on `card` where nobody names one.

    Example:
        >>> from kvcore import catalogue
        >>> engine_for(catalogue.find_accelerator("Ascend-910B3-64GB")).name
        'vllm-ascend'
    """
    return next(engine for engine in map(_engine, _rooms()) if engine.runs_on(card))


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
    """The environment variables by which any engine is given the memory of a card."""
    given = (engine.memory_variables for engine in engines())
    return tuple(name for variables in given if variables is not None for name in variables.names)


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
    return with_engine(changed, engine_for(card).name, None)


def with_engine(scenario: Scenario, engine: str, version: str | None) -> Scenario:
    """`scenario` on another engine, without a format of weights that its own engine alone has."""
    asked = scenario.quantization
    is_kept = asked not in find_engine(scenario.engine).weight_precisions
    is_kept = is_kept or asked in find_engine(engine).weight_precisions
    return replace(scenario, engine=engine, engine_version=version, quantization=asked if is_kept else None)


def read_engine(text: str, file: str) -> Engine:
    """An engine's file; raises TableError `invalid-catalogue-entry` with file, key and what was allowed."""
    engine: Engine = convert(read_toml(text, file), Engine, file)
    return engine
