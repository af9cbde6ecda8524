"""The command that starts what was planned, as data: arguments and environment."""

from __future__ import annotations

import json
import shlex
from typing import Any, Final

from kvcore.catalogue.gated import is_gated
from kvcore.engine.rooms import find_engine
from kvcore.engine.vllm.backends import backend_to_ask_for
from kvcore.engine.vllm.pooling import runner_flag
from kvcore.engine.vllm.switches import GraphSizeFlag
from kvcore.engine.vllm.versions import switches_of
from kvcore.model.yarn import read_yarn
from kvcore.planning import Plan
from kvcore.request import UNNAMED_MODEL
from kvcore.scenario import AUTO, Parallel, Runner, Scenario

MODEL_PLACE: Final = "/path/to/your/model"
PORT: Final = 8000
"""Where the engine listens unless told otherwise."""
TOKEN: Final = "HF_TOKEN"
"""The variable that holds a token of the Hub."""
_START_SECONDS_PER_GIB: Final = 4
"""Seconds of start per GiB of weights on one card, for the start-up probe: a slow disk reads 250 MiB/s."""
_START_SECONDS_FLOOR: Final = 600
"""Compilation and graph capture, whatever the size."""


def launch_arguments(plan: Plan, *, every_flag: bool = False) -> dict[str, Any]:
    """Flag names without dashes -> values; True for switches, a tuple for several words.

    Only what the scenario sets, unless `every_flag`.

    The model is not among them. Order is that of the sidebar, the same in every artefact.
    """
    scenario = plan.scenario
    chosen = {
        **_parallel(scenario.parallel),
        **_runner(plan),
        "dtype": scenario.dtype if scenario.dtype != "auto" else None,
        "quantization": scenario.quantization,
        "kv-cache-dtype": scenario.kv_cache_dtype if scenario.kv_cache_dtype != "auto" else None,
        "gpu-memory-utilization": scenario.gpu_memory_utilization,
        "max-model-len": "auto" if scenario.max_model_len == -1 else scenario.max_model_len,
        "hf-overrides": _overrides(plan),
        "max-num-seqs": scenario.max_num_seqs,
        "max-num-batched-tokens": scenario.max_num_batched_tokens,
        "block-size": scenario.block_size,
        "attention-backend": backend_to_ask_for(plan.architecture),
        "enforce-eager": scenario.enforce_eager or None,
        **_graphs(plan),
        **_switch("enable-prefix-caching", scenario.enable_prefix_caching),
        **_switch("enable-chunked-prefill", scenario.enable_chunked_prefill),
        "mamba-cache-mode": scenario.mamba_cache_mode,
        "mamba-block-size": scenario.mamba_block_size,
        "mamba-cache-dtype": scenario.mamba_cache_dtype if scenario.mamba_cache_dtype != AUTO else None,
        "mamba-ssm-cache-dtype": scenario.mamba_ssm_cache_dtype
        if scenario.mamba_ssm_cache_dtype != AUTO
        else None,
        "disable-hybrid-kv-cache-manager": scenario.disable_hybrid_kv_cache_manager or None,
        "enable-lora": scenario.enable_lora or None,
        "max-loras": scenario.max_loras if scenario.enable_lora else None,
        "max-lora-rank": scenario.max_lora_rank if scenario.enable_lora else None,
        "fully-sharded-loras": (scenario.enable_lora and scenario.fully_sharded_loras) or None,
        "language-model-only": scenario.language_model_only or None,
        "limit-mm-per-prompt": _json(scenario.limit_mm_per_prompt),
        "speculative-config": _speculative(scenario),
        "cpu-offload-gb": scenario.cpu_offload_gb or None,
        "kv-cache-memory-bytes": scenario.kv_cache_memory_bytes,
        "num-gpu-blocks-override": scenario.num_gpu_blocks_override,
    }
    if every_flag:
        resolved = plan.resolved
        defaults = {
            "dtype": resolved.dtype,
            "gpu-memory-utilization": resolved.gpu_memory_utilization,
            "max-model-len": resolved.max_model_len,
            "max-num-seqs": resolved.max_num_seqs,
            "max-num-batched-tokens": resolved.max_num_batched_tokens,
        }
        chosen |= {name: value for name, value in defaults.items() if chosen[name] is None}
    return {name: value for name, value in chosen.items() if value is not None}


def _overrides(plan: Plan) -> str | None:
    """The stretched rope in the words of the release."""
    scenario = plan.scenario
    if scenario.hf_overrides is None:
        return None
    return json.dumps(read_yarn(scenario.hf_overrides).overrides(scenario.config, plan.resolved.version))


def _parallel(parallel: Parallel) -> dict[str, Any]:
    sizes = {
        "tensor-parallel-size": parallel.tensor_parallel_size,
        "pipeline-parallel-size": parallel.pipeline_parallel_size,
        "data-parallel-size": parallel.data_parallel_size,
        "decode-context-parallel-size": parallel.decode_context_parallel_size,
    }
    return {
        **{name: size for name, size in sizes.items() if size > 1},
        "enable-expert-parallel": parallel.enable_expert_parallel or None,
    }


def _runner(plan: Plan) -> dict[str, str]:
    """`--runner` where it is asked for, in the words of the release."""
    scenario = plan.scenario
    if scenario.runner is Runner.AUTO:
        return {}
    flag, value = runner_flag(scenario, scenario.runner, plan.resolved.version)
    return {flag: value}


def _graphs(plan: Plan) -> dict[str, Any]:
    """The flags about CUDA graphs that the release has; what has none goes into `--compilation-config`.

    A list then holds what is left of it: before 0.11.1 a size above the batch stops the start.

    Source: vllm/engine/arg_utils.py (0.8.5, 0.9.2, 0.11.0, 0.11.1), vllm/v1/worker/gpu_model_runner.py:_dummy_run
    (0.8.5, 0.11.0).
    """
    scenario, flag = plan.scenario, switches_of(plan.resolved.version).graph_size_flag
    flags: dict[str, Any] = {}
    config: dict[str, Any] = {}
    largest, sizes = scenario.max_cudagraph_capture_size, scenario.cudagraph_capture_sizes
    if flag is GraphSizeFlag.OWN:
        flags["cudagraph-capture-sizes"] = sizes
    elif sizes is not None:
        config["cudagraph_capture_sizes"] = plan.resolved.cudagraph_capture_sizes or sizes
    if scenario.cudagraph_mode is not None:
        config["cudagraph_mode"] = scenario.cudagraph_mode
    return {flag.removeprefix("--"): largest, **flags, "compilation-config": _json(config or None)}


def _switch(name: str, wanted: bool | None) -> dict[str, bool]:
    return {} if wanted is None else {name if wanted else f"no-{name}": True}


def launch_words(name: str, value: object) -> list[str]:
    """One flag of `launch_arguments` as words of a command.

    Example:
        >>> launch_words("enforce-eager", True), launch_words("cudagraph-capture-sizes", (1, 2))
        (['--enforce-eager'], ['--cudagraph-capture-sizes', '1', '2'])
    """
    if value is True:
        return [f"--{name}"]
    return [f"--{name}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]


def launch_environment(plan: Plan) -> dict[str, str]:
    """Environment variables that the command needs."""
    environment = dict(plan.scenario.env)
    if plan.resolved.max_model_len > plan.resolved.derived_max_model_len:
        environment["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    return environment


def launch_program(plan: Plan) -> list[str]:
    """The words before the model."""
    return list(find_engine(plan.scenario.engine).launch.program)


def served_model(plan: Plan) -> str:
    """The model as the command names it: a place to fill in where only a config.json is known.

    Example:
        >>> from kvcore import catalogue
        >>> from kvcore.planning import plan
        >>> from kvcore.request import scenario_from_request
        >>> config = dict(catalogue.find_model("Qwen/Qwen3-8B").config.raw)
        >>> served_model(plan(scenario_from_request({"config": config, "accelerator": "H100-80GB"})))
        '/path/to/your/model'
    """
    name = plan.scenario.model
    if name == UNNAMED_MODEL:
        return MODEL_PLACE
    # A name that begins with a dash would be read as a flag.
    return f"./{name}" if name.startswith("-") else name


def launch_argv(plan: Plan, *, every_flag: bool = False) -> list[str]:
    """Model and flags as words, for an image whose entry point is the engine's server."""
    argv = ["--model", served_model(plan)]
    for name, value in launch_arguments(plan, every_flag=every_flag).items():
        argv += launch_words(name, value)
    return argv


def local_model(plan: Plan) -> str | None:
    """The checkpoint's folder where the model is one on this machine."""
    name = served_model(plan)
    return name if name.startswith("/") else None


def needs_token(plan: Plan) -> bool:
    """Whether the Hub gives the model, or its draft, only to an account that has accepted its terms."""
    draft = plan.scenario.speculative_config
    names = (plan.scenario.model, draft.model if draft is not None else None)
    return any(name is not None and is_gated(name) for name in names)


def ranks_of(plan: Plan) -> int:
    """Cards of all replicas that one start takes."""
    return plan.scenario.parallel.ranks_per_replica * plan.scenario.parallel.data_parallel_size


def start_seconds(plan: Plan) -> int:
    """Seconds that a start may take before a probe should give up, in whole minutes."""
    loaded_gib = plan.weights.total / (1 << 30)
    seconds = (
        _START_SECONDS_FLOOR + _START_SECONDS_PER_GIB * loaded_gib * plan.scenario.parallel.ranks_per_replica
    )
    return int(-(-seconds // 60) * 60)


def launch_command(plan: Plan) -> str:
    """One shell line: environment, program, model, flags."""
    environment = [f"{name}={shlex.quote(value)}" for name, value in launch_environment(plan).items()]
    argv = [*launch_program(plan), served_model(plan)]
    for name, value in launch_arguments(plan).items():
        argv += launch_words(name, value)
    return " ".join([*environment, shlex.join(argv)])


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
