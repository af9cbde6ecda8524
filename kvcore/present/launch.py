"""The command that starts what was planned."""

from __future__ import annotations

import json
import shlex

from kvcore.plan import Plan
from kvcore.scenario import Engine, Scenario


def launch_flags(plan: Plan) -> tuple[str, ...]:
    """Arguments after `vllm serve`, the model first; only what the scenario sets, the rest are the engine's defaults."""
    scenario, parallel = plan.scenario, plan.scenario.parallel
    values: list[tuple[str, object]] = [
        (
            "--tensor-parallel-size",
            parallel.tensor_parallel_size if parallel.tensor_parallel_size > 1 else None,
        ),
        (
            "--pipeline-parallel-size",
            parallel.pipeline_parallel_size if parallel.pipeline_parallel_size > 1 else None,
        ),
        ("--data-parallel-size", parallel.data_parallel_size if parallel.data_parallel_size > 1 else None),
        (
            "--decode-context-parallel-size",
            parallel.decode_context_parallel_size if parallel.decode_context_parallel_size > 1 else None,
        ),
        ("--dtype", scenario.dtype if scenario.dtype != "auto" else None),
        ("--quantization", scenario.quantization),
        ("--kv-cache-dtype", scenario.kv_cache_dtype if scenario.kv_cache_dtype != "auto" else None),
        ("--gpu-memory-utilization", scenario.gpu_memory_utilization),
        ("--max-model-len", "auto" if scenario.max_model_len == -1 else scenario.max_model_len),
        ("--max-num-seqs", scenario.max_num_seqs),
        ("--max-num-batched-tokens", scenario.max_num_batched_tokens),
        ("--block-size", scenario.block_size),
        ("--max-loras", scenario.max_loras if scenario.enable_lora else None),
        ("--max-lora-rank", scenario.max_lora_rank if scenario.enable_lora else None),
        ("--cpu-offload-gb", scenario.cpu_offload_gb or None),
        ("--kv-cache-memory-bytes", scenario.kv_cache_memory_bytes),
        ("--num-gpu-blocks-override", scenario.num_gpu_blocks_override),
        ("--limit-mm-per-prompt", _json(scenario.limit_mm_per_prompt)),
        ("--speculative-config", _speculative(scenario)),
    ]
    switches = [
        ("--enable-expert-parallel", parallel.enable_expert_parallel),
        ("--enforce-eager", scenario.enforce_eager),
        ("--enable-lora", scenario.enable_lora),
        ("--disable-hybrid-kv-cache-manager", scenario.disable_hybrid_kv_cache_manager),
        ("--enable-prefix-caching", scenario.enable_prefix_caching is True),
        ("--no-enable-prefix-caching", scenario.enable_prefix_caching is False),
        ("--enable-chunked-prefill", scenario.enable_chunked_prefill is True),
        ("--no-enable-chunked-prefill", scenario.enable_chunked_prefill is False),
    ]
    flags = [scenario.model]
    for name, value in values:
        if value is not None:
            flags += [name, f"{value:g}" if isinstance(value, float) else str(value)]
    flags += [name for name, wanted in switches if wanted]
    return tuple(flags)


def launch_environment(plan: Plan) -> dict[str, str]:
    """Environment variables that the command needs."""
    environment = dict(plan.scenario.env)
    if plan.resolved.max_model_len > plan.resolved.derived_max_model_len:
        environment["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    return environment


def launch_command(plan: Plan) -> str:
    """One shell line: environment, `vllm serve`, the model and every flag that is not a default."""
    environment = [f"{name}={shlex.quote(value)}" for name, value in launch_environment(plan).items()]
    program = "vllm-mindspore serve" if plan.scenario.engine is Engine.VLLM_MINDSPORE else "vllm serve"
    return " ".join([*environment, program, shlex.join(launch_flags(plan))])


def _json(value: object) -> str | None:
    return None if value is None else json.dumps(value, separators=(",", ":"))


def _speculative(scenario: Scenario) -> str | None:
    config = scenario.speculative_config
    if config is None:
        return None
    fields = {
        "method": config.method,
        "num_speculative_tokens": config.num_speculative_tokens,
        "model": config.model,
        "draft_tensor_parallel_size": config.draft_tensor_parallel_size,
    }
    return _json({name: value for name, value in fields.items() if value is not None})
