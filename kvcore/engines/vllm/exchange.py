"""By which ranks with whole experts exchange tokens."""

from __future__ import annotations

from typing import Final

from kvcore.scenario import Scenario

EXCHANGED_TOKENS: Final = 256
"""What a rank may send at once unless it is said.

Source: vllm/envs.py:VLLM_MOE_DP_CHUNK_SIZE (0.9.2, 0.19.0),
vllm/config/scheduler.py:SchedulerConfig.DEFAULT_MAX_NUM_BATCHED_TOKENS_FOR_BATCHED_DP (0.20.0, 0.29.0).
"""
GATHERING: Final = (None, "naive", "allgather_reducescatter")
"""Backends by which each rank has the tokens of all.

Source: vllm/config/parallel.py:All2AllBackend (0.11.2, 0.33.0).
"""
BATCHED: Final = ("deepep_low_latency", "nixl_ep")


def exchange_of(scenario: Scenario) -> str | None:
    """The backend asked for, by flag or variable; None leaves it to the engine: gathering and scattering.

    Source: vllm/config/parallel.py:ParallelConfig.__post_init__ (0.11.2), vllm/envs.py:VLLM_ALL2ALL_BACKEND (0.10.2).
    """
    return scenario.parallel.all2all_backend or scenario.env.get("VLLM_ALL2ALL_BACKEND")


def exchanges_batches(scenario: Scenario) -> bool:
    """Whether ranks exchange whole batches with low latency.

    Source: vllm/config/parallel.py:ParallelConfig.use_batched_dp_moe (0.20.0, 0.29.0).
    """
    parallel = scenario.parallel
    return (
        exchange_of(scenario) in BATCHED
        and parallel.enable_expert_parallel
        and parallel.data_parallel_size > 1
    )


def gathers_tokens(scenario: Scenario) -> bool:
    """Whether each rank gathers the tokens of all replicas: by default, and wherever experts are not whole."""
    return not scenario.parallel.enable_expert_parallel or exchange_of(scenario) in GATHERING
