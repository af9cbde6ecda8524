"""Plans that the tests of what a person sees look at."""

from __future__ import annotations

from functools import cache
from typing import Any

from msgspec.structs import replace

from kvcore.planning import Plan, plan
from kvcore.wire.request import scenario_from_request

FITS = {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "max_model_len": 8192}
TOO_LONG = {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "max_model_len": 40960}
TOO_BIG = {"model": "Qwen/Qwen3-32B", "accelerator": "RTX-4090-24GB", "max_model_len": 8192}
RULE_OF_THUMB = {
    "model": "Qwen/Qwen3-32B", "accelerator": {"memory_gib": 24, "vendor": "nvidia", "name": "GeForce RTX 4090"},
    "tensor_parallel_size": 8, "gpu_memory_utilization": 0.75, "max_model_len": 8192, "dtype": "float16",
    "measured": {"weights_gib": 8, "non_torch_gib": 5, "peak_activation_gib": 0, "cuda_graph_gib": 0},
}  # fmt: skip
"""The published worked example with its own assumptions: (24 GiB × 0.75 − 8 − 5) × 8 cards = 40 GiB for K and V."""


@cache
def _planned(key: str) -> Plan:
    return plan(
        scenario_from_request({"fits": FITS, "long": TOO_LONG, "big": TOO_BIG, "thumb": RULE_OF_THUMB}[key])
    )


def fits() -> Plan:
    """61 GiB of weights on a card of 79 GiB."""
    return _planned("fits")


def too_long() -> Plan:
    """The same with a context that needs 10 GiB of KV cache."""
    return _planned("long")


def too_big() -> Plan:
    """The same weights on a card of 24 GB."""
    return _planned("big")


def rule_of_thumb() -> Plan:
    """The worked example."""
    return _planned("thumb")


def request(**fields: Any) -> Plan:
    """FITS with other fields."""
    return plan(scenario_from_request({**FITS, **fields}))


def renamed(planned: Plan, model: str) -> Plan:
    """The same plan under another name of the model."""
    return replace(planned, scenario=replace(planned.scenario, model=model))
