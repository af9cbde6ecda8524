"""The load test before going live: 150 % of the target for five minutes, with the engine's own load generator."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from typing import Any, Final

from kvcore.advice.decode_bound import decode_bound
from kvcore.deploy.launch import PORT, served_model
from kvcore.deploy.monitoring import Load
from kvcore.engine.vllm.metrics import benchmark_program
from kvcore.planning import Plan

OVERLOAD_PERCENT: Final = 150
SECONDS: Final = 300
ROUNDS_WITHOUT_BOUND: Final = 10
"""Requests per seat where the card's bandwidth is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadTest:
    """The command, and what it does."""

    command: str
    requests_at_once: int
    num_prompts: int
    is_sized: bool
    """Whether it lasts five minutes even on an engine that reaches the bandwidth bound."""


def load_test(plan: Plan, load: Load) -> LoadTest:
    """A command that keeps 150 % of the target in flight.

    The generator counts requests, not minutes: as many are sent as the bandwidth bound could answer in five minutes, so
    a real engine takes longer, never shorter.

    Source: vllm/benchmarks/serve.py (0.11.0, 0.33.0).
    """
    at_once = math.ceil(load.requests * OVERLOAD_PERCENT / 100)
    served = min(at_once, plan.resolved.max_num_seqs)
    bound = decode_bound(plan, served, load.prompt_tokens)
    rounds = SECONDS / (bound.seconds_per_token * load.answer_tokens) if bound else ROUNDS_WITHOUT_BOUND
    prompts = max(at_once, math.ceil(served * rounds))
    program = benchmark_program(plan.resolved.version)
    flags: dict[str, Any] = {
        "backend": "openai" if program.words[0] == "vllm" else "vllm",
        "base-url": f"http://localhost:{PORT}",
        "model": served_model(plan),
        "dataset-name": "random",
        "random-input-len": load.prompt_tokens,
        "random-output-len": load.answer_tokens,
        "ignore-eos": True,
        "max-concurrency": at_once,
        "num-prompts": prompts,
        "percentile-metrics": "ttft,tpot,itl,e2el",
        "metric-percentiles": "50,95,99",
    }
    words = [[f"--{name}"] if value is True else [f"--{name}", str(value)] for name, value in flags.items()]
    lines = [shlex.join(program.words), *(shlex.join(line) for line in words)]
    return LoadTest(
        command=" \\\n  ".join(lines) + "\n",
        requests_at_once=at_once,
        num_prompts=prompts,
        is_sized=bound is not None,
    )
