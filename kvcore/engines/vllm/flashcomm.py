"""FlashComm: the tokens of a step are cut over the tensor parallel ranks between the layers."""

from __future__ import annotations

from typing import Final

from packaging.version import Version

from kvcore.engine.protocol import Engine
from kvcore.engines.vllm.additional import additional_of
from kvcore.scenario import Scenario

VARIABLE: Final = "VLLM_ASCEND_ENABLE_FLASHCOMM1"
FORMER_VARIABLE: Final = "VLLM_ASCEND_ENABLE_FLASHCOMM"
"""Its other name, which earlier releases read as well."""


def cuts_tokens(engine: Engine, scenario: Scenario, version: Version) -> bool:
    """Whether FlashComm is asked for in a release, and there are ranks to cut over.

    A key of `--additional-config` counts before the variable; from 0.12 on whole shared experts ask for it too.

    Source: vllm_ascend/utils.py:enable_sp (0.11.0, 0.19.1rc1: both variables; 0.20.2rc1, 0.23.0: the first),
    ascend_config.py:AscendConfig (0.12.0rc1, 0.23.0: enable_shared_expert_dp).

    Example:
        >>> from kvcore.engines.registry import engine_of
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-8B", "engine": "vllm-ascend", "tensor_parallel_size": 2}
        >>> scenario = scenario_from_request({**asked, "env": {FORMER_VARIABLE: "1"}})
        >>> [cuts_tokens(engine_of(scenario), scenario, Version(version)) for version in ("0.18.0", "0.23.0")]
        [True, False]
    """
    if scenario.parallel.tensor_parallel_size == 1:
        return False
    rules = engine.facts.weights.at(version)
    said = additional_of(engine, scenario, version).enable_flashcomm1
    names = (VARIABLE, FORMER_VARIABLE) if rules.reads_former_flashcomm else (VARIABLE,)
    is_asked = any(scenario.env.get(name) == "1" for name in names) if said is None else said
    return is_asked or (rules.cuts_tokens_for_whole and keeps_shared_experts(engine, scenario, version))


def keeps_shared_experts(engine: Engine, scenario: Scenario, version: Version) -> bool:
    """Whether `enable_shared_expert_dp` has each rank store the shared experts whole: with whole experts alone.

    Source: vllm_ascend/ascend_config.py:AscendConfig (0.11.0, 0.13.0, 0.18.0, 0.23.0).
    """
    return (
        scenario.parallel.enable_expert_parallel
        and additional_of(engine, scenario, version).enable_shared_expert_dp
    )
