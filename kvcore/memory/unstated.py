"""A start whose release nobody states: what other releases of the engine would leave it.

A published start, or a request that is read aloud, often has no version. The plan's figures are those of the newest
release; the interval of the KV memory spans what the releases do that may be meant.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace
from packaging.version import Version

from kvcore.engines.registry import find_engine
from kvcore.engines.vllm.classes import is_surely_there
from kvcore.engines.vllm.versions import planned_release, switches_of
from kvcore.memory.setting import Setting
from kvcore.scenario import Scenario


def may_be_other(scenario: Scenario) -> bool:
    """Whether the release is not stated, and its engine has releases that differ in memory.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-8B", "engine": "vllm-ascend"}
        >>> [may_be_other(scenario_from_request(asked | more)) for more in ({}, {"engine_version": "0.18.0"})]
        [True, False]
    """
    return scenario.engine_version is None and find_engine(scenario.engine).unstated is not None


def other_versions(scenario: Scenario) -> tuple[Version, ...]:
    """The releases of vLLM that the engine's other releases run on, oldest first, as far as the model is in them.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-8B", "engine": "vllm-ascend"}
        >>> [str(one) for one in other_versions(scenario_from_request(asked))]
        ['0.11.0', '0.13.0', '0.18.0']
        >>> asked = {"model": "deepseek-ai/DeepSeek-V4-Flash", "engine": "vllm-ascend"}
        >>> other_versions(scenario_from_request(asked))
        ()
    """
    engine = find_engine(scenario.engine)
    if scenario.engine_version is not None or engine.unstated is None:
        return ()
    planned, names = planned_release(scenario).version, scenario.config.architectures
    hosts = {host for host in engine.releases.values() if host >= engine.unstated.since and host != planned}
    return tuple(sorted(host for host in hosts if is_surely_there(names, host)))


def other_settings(setting: Setting) -> Iterator[Setting]:
    """The same rank on each of `other_versions`, with the utilization that is the default there.

    Weights and the other flags stay those of the planned release: what differs in them is small next to the budget.
    """
    for version in other_versions(setting.scenario):
        switches, resolved = switches_of(version), replace(setting.resolved, version=version)
        if setting.scenario.gpu_memory_utilization is None:
            resolved = replace(resolved, gpu_memory_utilization=switches.gpu_memory_utilization)
        yield replace(setting, resolved=resolved, switches=switches)
