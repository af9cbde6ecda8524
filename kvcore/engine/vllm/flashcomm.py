"""FlashComm: the tokens of a step are cut over the tensor parallel ranks between the layers."""

from __future__ import annotations

from typing import Final

from packaging.version import Version

from kvcore.engine.rooms import find_engine
from kvcore.scenario import Scenario

VARIABLE: Final = "VLLM_ASCEND_ENABLE_FLASHCOMM1"
FORMER_VARIABLE: Final = "VLLM_ASCEND_ENABLE_FLASHCOMM"
"""Its other name, which earlier releases read as well."""


def cuts_tokens(scenario: Scenario, version: Version) -> bool:
    """Whether FlashComm is asked for in a release, and there are ranks to cut over.

    Source: vllm_ascend/utils.py:enable_sp (0.11.0, 0.19.1rc1: both variables; 0.20.2rc1, 0.23.0: the first).

    Example:
        >>> from kvcore.scenario.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-8B", "engine": "vllm-ascend", "tensor_parallel_size": 2}
        >>> scenario = scenario_from_request({**asked, "env": {FORMER_VARIABLE: "1"}})
        >>> cuts_tokens(scenario, Version("0.18.0")), cuts_tokens(scenario, Version("0.23.0"))
        (True, False)
    """
    reads_former = find_engine(scenario.engine).weights.at(version).reads_former_flashcomm
    names = (VARIABLE, FORMER_VARIABLE) if reads_former else (VARIABLE,)
    is_asked = any(scenario.env.get(name) == "1" for name in names)
    return is_asked and scenario.parallel.tensor_parallel_size > 1
