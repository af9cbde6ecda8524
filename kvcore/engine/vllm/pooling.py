"""The pooling runner: which models it takes, by which flag, and whether the schedule follows it."""

from __future__ import annotations

from typing import Final

from packaging.version import Version

from kvcore import catalogue
from kvcore.engine.vllm.classes import CLASSES
from kvcore.engine.vllm.switches import Switches, V1Engine
from kvcore.engine.vllm.versions import switches_of
from kvcore.errors import EngineRefusalError, Notice
from kvcore.model.architecture import Architecture
from kvcore.model.families import GENERATING_SUFFIXES, POOLING_SUFFIXES, bert, embedders
from kvcore.scenario import Runner, Scenario

CHAT_SUFFIX: Final = "ChatModel"
"""Source: vllm/config/model.py:_SUFFIX_TO_DEFAULTS (0.32.0)."""

POOLING_ONLY: Final = frozenset((*embedders.READERS, *bert.READERS))
"""What no release generates with."""

TASKS: Final = (("RewardModel", "reward"), ("Classification", "classify"))
"""`--task` of models that judge, by the end of their name. Source: vllm/config.py:_get_preferred_task (0.8.5)."""


def runner_of(scenario: Scenario) -> Runner:
    """generate or pooling: as asked, else pooling for a Sentence Transformers repository, else by the architecture.

    Raises EngineRefusalError `runner-not-supported` where a model that only judges is asked to generate.

    Source: vllm/config/model.py:ModelConfig._get_default_runner_type (0.11.0, 0.19.0, 0.33.0); before 0.10.1
    vllm/config.py:ModelConfig._get_preferred_task (0.8.5, 0.9.2).
    """
    names = scenario.config.architectures
    if scenario.runner is Runner.GENERATE and (judging := [name for name in names if name in POOLING_ONLY]):
        raise EngineRefusalError(
            "runner-not-supported", field="runner", value=scenario.runner.value, architecture=judging[0]
        )
    if scenario.runner is not Runner.AUTO:
        return scenario.runner
    if scenario.checkpoint.sentence_transformers:
        return Runner.POOLING
    return next((runner for name in names if (runner := runner_by_name(name)) is not None), Runner.GENERATE)


def runner_by_name(architecture: str) -> Runner | None:
    """The runner of an architecture without Sentence Transformers files; None for a name that tells nothing.

    Source: vllm/config/model.py:try_match_architecture_defaults (0.11.0, 0.33.0).

    Example:
        >>> runner_by_name("Qwen3ForSequenceClassification").value, runner_by_name("MistralModel").value
        ('pooling', 'generate')
    """
    generates = CLASSES.load().runner.generate
    if architecture in generates or architecture.endswith((*GENERATING_SUFFIXES, CHAT_SUFFIX)):
        return Runner.GENERATE
    is_pooling = architecture in POOLING_ONLY or architecture.endswith(POOLING_SUFFIXES)
    return Runner.POOLING if is_pooling else None


def scheduling_runner(scenario: Scenario, runner: Runner) -> Runner:
    """The runner whose schedule is planned: how many batches are in flight, which engine runs, how prompts are cut.

    A request with a config.json of its own is scheduled as an engine would that is given this config.json alone. There
    the model's name is a label: it says what else the repository contains, which changes the memory, and no more.
    """
    if scenario.runner is not Runner.AUTO or not scenario.checkpoint.sentence_transformers:
        return runner
    named = catalogue.bundled_model(scenario.model)
    is_label = named is not None and named.config != scenario.config
    by_name = (runner_by_name(name) for name in scenario.config.architectures)
    return next((found for found in by_name if found is not None), Runner.GENERATE) if is_label else runner


def falls_back_to_v0(switches: Switches, scenario: Scenario, scheduling: Runner) -> bool:
    """Whether V1, which runs by default, cannot pool yet.

    Source: vllm/engine/arg_utils.py:EngineArgs._is_v1_supported_oracle (0.8.5 refuses, 0.9.2 does not).
    """
    asked = scenario.env.get("VLLM_USE_V1") in ("0", "1")
    return (
        scheduling is Runner.POOLING
        and switches.v1_engine is V1Engine.DEFAULT
        and not switches.v1_pooling
        and not asked
    )


def runner_flag(scenario: Scenario, runner: Runner, version: Version) -> tuple[str, str]:
    """Name and value of the flag that asks for `runner`, without dashes.

    Example:
        >>> from kvcore.scenario.request import scenario_from_request
        >>> embedding = scenario_from_request({"model": "Qwen/Qwen3-Embedding-8B"})
        >>> runner_flag(embedding, Runner.POOLING, Version("0.9.2"))
        ('task', 'embed')
    """
    if switches_of(version).runner_flag:
        return "runner", runner.value
    if runner is not Runner.POOLING:
        return "task", runner.value
    tasks = (task for name in scenario.config.architectures for end, task in TASKS if name.endswith(end))
    return "task", next(tasks, "embed")


def runner_notices(
    scenario: Scenario, architecture: Architecture, runner: Runner, version: Version
) -> tuple[Notice, ...]:
    """`runs-as-pooling` where the repository and not the request makes a model pool; `keeps-no-cache` where no layer
    keeps anything of a request."""
    notices = []
    if (
        runner is Runner.POOLING
        and scenario.runner is Runner.AUTO
        and scenario.checkpoint.sentence_transformers
    ):
        flag, value = runner_flag(scenario, Runner.GENERATE, version)
        notices.append(Notice(code="runs-as-pooling", field="runner", params={"flag": f"--{flag} {value}"}))
    if not any(layer.caches for layer in architecture.layers):
        deciding = "is_causal" if scenario.config.language.has("is_causal") else "architectures"
        notices.append(Notice(code="keeps-no-cache", field=f"config.{deciding}", params={}))
    return tuple(notices)
