"""The engines that are known, in the order in which they are asked for a card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from msgspec.structs import replace

from kvcore import catalogue
from kvcore.base.errors import not_among
from kvcore.base.kept import kept
from kvcore.catalogue.accelerators import Accelerator
from kvcore.catalogue.models import Checkpoint
from kvcore.engine.cards import CardView, card_view
from kvcore.engine.overheads import MemoryVariables
from kvcore.engine.protocol import Engine
from kvcore.engine.records import FormerFlag, Release
from kvcore.engines.vllm.engine import VllmEngine
from kvcore.engines.vllm.runner import runner_by_name
from kvcore.scenario import Runner, Scenario


def pools(architectures: Sequence[str], checkpoint: Checkpoint) -> bool:
    """Whether a model is embedded or ranked with where no runner is asked for, by vLLM's rule.

    Example:
        >>> pools(["BertModel"], Checkpoint()), pools(["LlamaForCausalLM"], Checkpoint())
        (True, False)
    """
    named = (runner for name in architectures if (runner := runner_by_name(name)) is not None)
    return bool(checkpoint.sentence_transformers) or next(named, Runner.GENERATE) is Runner.POOLING


def _vllm_ascend() -> Engine:
    """Imported here, since a plan for a GPU needs nothing of it."""
    from kvcore.engines.vllm_ascend.engine import AscendEngine

    return AscendEngine()


def _vllm_mindspore() -> Engine:
    """Imported here, since a plan for a GPU needs nothing of it."""
    from kvcore.engines.vllm_mindspore.engine import MindSporeEngine

    return MindSporeEngine()


def _sglang() -> Engine:
    """Imported here, since a plan for vLLM needs nothing of it."""
    from kvcore.engines.sglang.engine import SglangEngine

    return SglangEngine()


ENGINES: Final[dict[str, Callable[[], Engine]]] = {
    "vllm": VllmEngine,
    "vllm-ascend": _vllm_ascend,
    "vllm-mindspore": _vllm_mindspore,
    "sglang": _sglang,
}
"""Makers of the engines by name; of several that run on a card, the first serves where a request names none."""


@cache
def _engine(name: str) -> Engine:
    return ENGINES[name]()


def engines() -> tuple[Engine, ...]:
    """All engines, in their order."""
    return tuple(map(_engine, ENGINES))


def engine_names() -> tuple[str, ...]:
    """The engines as a request names them.

    Example:
        >>> engine_names()
        ('vllm', 'vllm-ascend', 'vllm-mindspore', 'sglang')
    """
    return tuple(ENGINES)


def is_planned(name: str) -> bool:
    """Whether a request may name that engine: files that people deploy name others too.

    Example:
        >>> is_planned("vllm-ascend"), is_planned("trtllm")
        (True, False)
    """
    return name in ENGINES


def find_engine(name: str) -> Engine:
    """The engine of that name. Raises ScenarioError `invalid-value` for one that is not known.

    Example:
        >>> find_engine("vllm-ascend").facts.launch.program
        ('vllm', 'serve')
    """
    if name not in ENGINES:
        raise not_among("engine", name, engine_names())
    return _engine(name)


def engine_of(scenario: Scenario) -> Engine:
    """The engine that `scenario` names."""
    return find_engine(scenario.engine)


def planned_release(scenario: Scenario) -> Release:
    """The release of its engine that `scenario` is planned as."""
    return engine_of(scenario).planned_release(scenario)


def engine_for(card: Accelerator | CardView) -> Engine:
    """The engine that serves on `card` where a request names none.

    Example:
        >>> from kvcore import catalogue
        >>> engine_for(catalogue.find_accelerator("Ascend-910B3-64GB")).name
        'vllm-ascend'
    """
    return next(engine for engine in map(_engine, ENGINES) if engine.runs_on(card))


def card_of(scenario: Scenario) -> Accelerator:
    """The card of `scenario`; where none is named, the one that its engine's plans assume.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-8B"}, {"model": "Qwen/Qwen3-8B", "engine": "vllm-ascend"}
        >>> [card_of(scenario_from_request(one)).id for one in asked]
        ['H100-80GB', 'Ascend-910B3-64GB']
    """
    return scenario.accelerator or catalogue.find_accelerator(engine_of(scenario).facts.assumed_card)


@kept
def view_of(accelerator: Accelerator, is_assumed: bool = False) -> CardView:
    """The view of `accelerator`.

    Example:
        >>> from kvcore import catalogue
        >>> l4, l40s = (view_of(catalogue.find_accelerator(name)) for name in ("L4-24GB", "L40S-48GB"))
        >>> l4 == l40s, l4.number, l4.memory_tier.value
        (True, 89, 'small')
    """
    return card_view(accelerator, is_assumed, engine_for(accelerator).name)


def former_flag(flag: str) -> FormerFlag | None:
    """The fate of a flag that older guides name; None for one that every engine knows, or none ever knew.

    Example:
        >>> former_flag("--swap-space").replaced_by
        '--kv-offloading-size'
    """
    return next(filter(None, (engine.former_flag(flag) for engine in engines())), None)


@cache
def format_refusals() -> frozenset[str]:
    """Codes of any engine's refusals of a checkpoint's format that another checkpoint of the model ends."""
    return frozenset().union(*(engine.format_refusals for engine in engines()))


def server_commands() -> tuple[str, ...]:
    """How a shell starts a server of any engine: programs first, then Python modules.

    Example:
        >>> server_commands()[:2]
        ('vllm serve', 'vllm-mindspore serve')
    """
    starts = [engine.facts.launch for engine in engines()]
    commands = (*(" ".join(start.program) for start in starts), *(start.module for start in starts))
    return tuple(dict.fromkeys(filter(None, commands)))


def memory_variable_names() -> tuple[str, ...]:
    """The environment variables by which any engine is given the memory of a card."""
    given = (engine.facts.memory_variables for engine in engines())
    return tuple(name for variables in given if variables is not None for name in variables.names)


def engine_with_variables() -> tuple[Engine, MemoryVariables]:
    """The engine whose memory is declared by variables, and those: it needs a run before the real one."""
    return next(
        (engine, variables)
        for engine in engines()
        if (variables := engine.facts.memory_variables) is not None
    )


def with_accelerator(scenario: Scenario, card: Accelerator) -> Scenario:
    """`scenario` on `card`, with the newest release of the engine that runs there where its own does not."""
    changed = replace(scenario, accelerator=card)
    if engine_of(scenario).runs_on(card):
        return changed
    return with_engine(changed, engine_for(card).name, None)


def with_engine(scenario: Scenario, engine: str, version: str | None) -> Scenario:
    """`scenario` on another engine, without a format of weights that its own engine alone has."""
    asked = scenario.quantization
    is_kept = asked not in engine_of(scenario).facts.weight_precisions
    is_kept = is_kept or asked in find_engine(engine).facts.weight_precisions
    return replace(scenario, engine=engine, engine_version=version, quantization=asked if is_kept else None)
