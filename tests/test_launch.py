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
from kvcore.deploy.shell import launch_command
from kvcore.evidence.log.reader import read_log
from kvcore.evidence.recognized import request_from
from kvcore.planning import Plan, plan
from kvcore.wire.request import scenario_from_request

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


@pytest.mark.parametrize(
    ("version", "name"), [("0.11.2", "enable_fi_allreduce_fusion"), ("0.12.0", "fuse_allreduce_rms")]
)
def test_a_fusion_goes_into_the_compilation_config_by_its_name_in_the_release(
    version: str, name: str
) -> None:
    """vllm/config/compilation.py:PassConfig (0.11.0, 0.12.0)."""
    start = planned(
        "Qwen/Qwen3-8B",
        tensor_parallel_size=2,
        fuse_allreduce_rms=False,
        cudagraph_mode="FULL",
        engine_version=version,
    )
    said = json.loads(launch_arguments(start)["compilation-config"])
    assert said == {"cudagraph_mode": "FULL", "pass_config": {name: False}}


def test_surroundings_are_read_back_from_a_command() -> None:
    env = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:512",
        "NCCL_CUMEM_ENABLE": "0",
    }
    asked = {
        "mm_processor_kwargs": {"max_pixels": 262144, "fps": 0.5},
        "mm_encoder_tp_mode": "data",
        "env": env,
    }
    asked |= {"limit_mm_per_prompt": {"image": {"count": 2, "width": 512}, "video": 0}}
    asked |= {"skip_mm_profiling": True, "disable_custom_all_reduce": True, "fuse_allreduce_rms": True}
    start = planned("Qwen/Qwen2.5-VL-7B-Instruct", tensor_parallel_size=2, **asked)
    assert request_from(read_log(launch_command(start))).items() >= asked.items()


def test_other_models_need_no_attention_backend() -> None:
    assert "attention-backend" not in launch_arguments(planned("Qwen/Qwen3-8B"))


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.19.0", "--eplb-config.num_redundant_experts 32"),
        ("0.10.0", "--num-redundant-experts 32"),
    ],
)
def test_copies_of_experts_need_their_switch(version: str, words: str) -> None:
    start = planned(
        "Qwen/Qwen3-30B-A3B",
        data_parallel_size=8,
        enable_expert_parallel=True,
        num_redundant_experts=32,
        engine_version=version,
    )
    command = launch_command(start)
    assert "--enable-eplb" in command
    assert words in command
    assert request_from(read_log(command))["num_redundant_experts"] == 32
