"""The starts that the source documents are about, as links and as plans."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from kvcore.evidence.prerun import DEFAULT_LENGTH, DEFAULT_UTILIZATION
from kvcore.explain.reference import NGRAM, POST_MORTEM, RULE_OF_THUMB, SMALL_STEP
from kvcore.planning import Plan, plan
from kvcore.wire import link

PLANNED_QWEN: Final[Mapping[str, Any]] = {
    "model": "Qwen/Qwen3-32B",
    "accelerator": "RTX-4090-24GB",
    "tensor_parallel_size": 8,
    "dtype": "float16",
    "gpu_memory_utilization": 0.75,
    "max_model_len": 8192,
}
"""The rule of thumb's start without its assumptions, as a link."""
SHORT_POST_MORTEM: Final[Mapping[str, Any]] = {
    **{name: value for name, value in POST_MORTEM.items() if not name.startswith("env.")},
    "max_model_len": 2048,
}
"""The post-mortem's start after its change, as a link."""
PRE_RUN: Final[Mapping[str, Any]] = {
    "model": "deepseek-ai/DeepSeek-V3",
    "engine": "vllm-mindspore",
    "accelerator.name": "Ascend, 64 GB",
    "accelerator.vendor": "huawei",
    "accelerator.memory_gib": 64,
    "tensor_parallel_size": 16,
    "gpu_memory_utilization": DEFAULT_UTILIZATION,
    "max_model_len": DEFAULT_LENGTH,
    "env.ASCEND_TOTAL_MEMORY_GB": "64",
    "env.vLLM_MODEL_MEMORY_USE_GB": "22",
}
"""DeepSeek-V3 with the share that the tuning guide's own peak gives, which is less than its weights, as a link."""
FITTING_PRE_RUN: Final[Mapping[str, Any]] = {
    **{name: value for name, value in PRE_RUN.items() if name != "tensor_parallel_size"},
    "model": "Qwen/Qwen3-8B",
}
"""The same start of a model that the peak can be of, on one NPU, as a link."""
LLAMA: Final[Mapping[str, Any]] = {"model": "meta-llama/Llama-2-7b-chat-hf", "accelerator": "H100-80GB"}
"""A start for the list of parameters, as a link."""
OLDEST: Final = "0.6.6"
"""The oldest release in the tables; the documents are about it or its neighbours."""


SCENARIOS: Final[Mapping[str, Mapping[str, Any]]] = {
    "rule-of-thumb": RULE_OF_THUMB,
    "planned-qwen": PLANNED_QWEN,
    "post-mortem": POST_MORTEM,
    "short-post-mortem": SHORT_POST_MORTEM,
    "post-mortem-load": {
        **POST_MORTEM,
        "arrivals": 50,
        "load_prompt": 1200,
        "load_answer": 512,
        "first_token": 0,
        "speed": 15,
    },
    "old-post-mortem": {**POST_MORTEM, "engine_version": OLDEST},
    "old-short-post-mortem": {**SHORT_POST_MORTEM, "engine_version": OLDEST},
    "blocks-of-64": {**SHORT_POST_MORTEM, "block_size": 64},
    "pre-run": PRE_RUN,
    "first-pre-run": {**FITTING_PRE_RUN, "env.vLLM_MODEL_MEMORY_USE_GB": "50"},
    "fitting-pre-run": FITTING_PRE_RUN,
    "latent": {**PRE_RUN, "env.vLLM_MODEL_MEMORY_USE_GB": "50"},
    "llama-2-7b": LLAMA,
    "llama-2-7b-small-steps": {**LLAMA, "max_num_batched_tokens": SMALL_STEP},
    "llama-2-7b-ngram": {
        **LLAMA,
        "speculative_config.method": "ngram",
        "speculative_config.num_speculative_tokens": NGRAM.num_speculative_tokens,
    },
}
"""Scenarios that the steps of the stories open, by name."""


def link_params(example: str) -> dict[str, str]:
    """The link of a story's scenario."""
    return {name: str(value) for name, value in SCENARIOS[example].items()}


@cache
def planned(example: str) -> Plan:
    """The plan of a story's scenario, by its name in `SCENARIOS`."""
    return plan(link.decode(link_params(example)).scenario)


@cache
def oldest() -> Plan:
    """A plain start of the oldest release, for its defaults."""
    return plan(link.decode({**LLAMA, "engine_version": OLDEST}).scenario)
