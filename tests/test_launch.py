"""The attention backend in the command: only for classes that the engine's own choice refuses.

vLLM 0.32.0 refuses Step 1 on its default (`use_alibi_sqrt is not supported by backend FLASH_ATTN`) and runs it with
`--attention-backend TRITON_ATTN`; `tests/data/parity/classes/Step1ForCausalLM.json` has its plans.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcore.deploy.launch import launch_arguments
from kvcore.planning import Plan, plan
from kvcore.scenario.request import scenario_from_request

CLASSES = Path(__file__).parent / "data" / "parity" / "classes"


def planned(model: str, **fields: Any) -> Plan:
    request = {"model": model, "accelerator": "H100-80GB", "engine_version": "0.32.0", **fields}
    return plan(scenario_from_request(request))


@pytest.mark.parametrize("name", ["Step1ForCausalLM", "Rnj1ForCausalLM"])
def test_a_class_that_needs_one_asks_for_it(name: str) -> None:
    config = json.loads((CLASSES / f"{name}.json").read_text("utf-8"))["config"]
    start = planned("my/model", config=config)
    assert start.resolved.attention_backend == "TRITON_ATTN"
    assert launch_arguments(start)["attention-backend"] == "TRITON_ATTN"


def test_others_ask_for_none() -> None:
    assert "attention-backend" not in launch_arguments(planned("Qwen/Qwen3-8B"))
