"""Which model runner drives the GPU, and how many batches are in flight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, assert_never

from kvcore.engine.vllm.classes import CLASSES
from kvcore.engine.vllm.draft import proposed_tokens
from kvcore.engine.vllm.switches import Switches, V2Models
from kvcore.model.architecture import Architecture
from kvcore.scenario import Runner, Scenario

NO_V2_METHODS: Final[Mapping[bool, tuple[str, ...]]] = {
    False: ("ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator", "draft_model", "custom_class"),
    True: ("suffix", "medusa", "mlp_speculator", "custom_class"),
}
"""Speculative methods that the V2 runner lacks, before and since it is everybody's.

Source: vllm/config/vllm.py:VllmConfig._get_v2_model_runner_unsupported_features (0.28.0, 0.32.0).
"""

NOT_ASYNC_METHODS: Final = ("ngram", "suffix", "medusa", "mlp_speculator")
"""Source: vllm/config/vllm.py:VllmConfig.__post_init__ (0.32.0)."""


def speculation_of(scenario: Scenario, architecture: Architecture) -> tuple[str, int]:
    """The speculative method and its tokens; "" and 0 without."""
    config = scenario.speculative_config
    return ("", 0) if config is None else (config.method, proposed_tokens(config, architecture))


def uses_v2_runner(
    *,
    switches: Switches,
    scenario: Scenario,
    is_moe: bool,
    is_plain: bool,
    is_quantized: bool,
    method: str,
    runner: Runner = Runner.GENERATE,
) -> bool:
    """Whether the V2 model runner is used. `is_plain`: no recurrent layers. It pools only where it is everybody's.

    Source: vllm/config/vllm.py:VllmConfig.use_v2_model_runner, _is_default_v2_model_runner_model (0.22.1, 0.23.0,
    0.28.0, 0.32.0).
    """
    rule = switches.model_runner_v2
    asked = scenario.env.get("VLLM_USE_V2_MODEL_RUNNER")
    if rule is V2Models.NEVER:
        return False
    if asked in ("0", "1"):
        return asked == "1"
    if method in NO_V2_METHODS[rule is V2Models.ALL] or (
        runner is Runner.POOLING and rule is not V2Models.ALL
    ):
        return False
    names = frozenset(scenario.config.architectures)
    classes = CLASSES.load().v2_runner
    is_listed = bool(names & classes.experts)
    match rule:
        case V2Models.OPT_IN:
            return False
        case V2Models.QWEN3:
            return "Qwen3ForCausalLM" in names and not is_quantized
        case V2Models.PLAIN:
            return bool(names & classes.dense) and not is_quantized
        case V2Models.LISTED:
            return is_listed or bool(names & classes.dense)
        case V2Models.DENSE:
            return is_listed or (is_plain and not is_moe)
        case V2Models.ALL:
            return True
        case other:
            assert_never(other)


def is_async(
    switches: Switches, method: str, use_v2: bool, stages: int, runner: Runner = Runner.GENERATE
) -> bool:
    """Whether the next batch is scheduled while one runs.

    Source: vllm/config/vllm.py:VllmConfig.__post_init__ (0.14.1, 0.19.1, 0.20.2, 0.32.0).
    """
    if runner is Runner.POOLING and not switches.async_pooling:
        return False
    return switches.async_scheduling and method not in NOT_ASYNC_METHODS and (use_v2 or stages == 1)


def max_concurrent_batches(is_asynchronous: bool, use_v2: bool, stages: int) -> int:
    """Batches in flight at once.

    Source: vllm/config/vllm.py:VllmConfig.max_concurrent_batches (0.28.0, 0.32.0).

    Example:
        >>> max_concurrent_batches(True, False, 1), max_concurrent_batches(True, True, 4)
        (2, 5)
    """
    if is_asynchronous and use_v2:
        return stages + 1
    return 2 if is_asynchronous and stages == 1 else stages
