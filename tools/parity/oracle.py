"""vLLM's own plan for a deployment: jobs in, rows out, as JSON lines. No GPU, no weights.

    python oracle.py --card H100-80GB < jobs.jsonl > rows.jsonl

A job: {"id", "config", "hf_quant_config"?, "draft_config"?, "args": {EngineArgs fields}, "available_gib": [...]}.
The package is imported once; each job runs in a forked child with a memory and a time limit.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import re
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import stand_ins

GIB = 1 << 30
REFUSALS = re.compile(
    r"attention heads|not supported anymore|not supported for now|not divisible|must be divisible|"
    r"Pipeline parallelism is not supported|"
    r"is deprecated and will be removed|No valid attention backend|does not support|is not supported by|"
    r"AssertionError: +\((llama|linear)\.py"
)
"""Errors with which the engine refuses a deployment; any other failure is one of the stand-ins."""
CHILD_MEMORY_BYTES = 6 * GIB
CHILD_SECONDS = 240


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """The row of one job. The steps are those of a start of the engine, in its order, minus all computation."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    stand_ins.admit_config(job["config"])
    strict = job["config"].get("model_type") == "dbrx"  # its class takes no key that it does not know
    config = EngineArgs(
        model=_model_directory(
            ({} if strict else stand_ins.WITHOUT_BYTES) | job["config"], job.get("hf_quant_config")
        ),
        load_format="dummy",
        skip_tokenizer_init=True,
        **_arguments(job),
    ).create_engine_config(UsageContext.OPENAI_API_SERVER)
    parallel = config.parallel_config
    # One rank of each pipeline stage: the ranks of a stage are alike. Stage 0 in this process, others in children.
    others = [
        _in_child(lambda stage=stage: _built_rank(config, stage * parallel.tensor_parallel_size))
        for stage in range(1, parallel.pipeline_parallel_size)
    ]
    stages = [_built_rank(config, 0), *others]
    row: dict[str, Any] = {"id": job["id"], "resolved": _resolved(config)}
    row["stages"] = [{key: stage[key] for key in stage if key != "specs"} for stage in stages]
    row["plans"] = [_plan(config, [stage["specs"] for stage in stages], gib) for gib in job["available_gib"]]
    return row


def _model_directory(config: dict[str, Any], quant: dict[str, Any] | None = None) -> str:
    directory = Path(tempfile.mkdtemp(dir=os.environ["PARITY_SCRATCH"]))
    algorithm = (quant or {}).get("quantization", {})
    if algorithm.get("quant_algo") == "MIXED_PRECISION" and "quantization_config" not in config:
        # such releases carry it in config.json as well, and the engine reads it only there
        config = config | {"quantization_config": {"quant_method": "modelopt"} | algorithm}
    (directory / "config.json").write_text(json.dumps(config).replace('"Infinity"', "Infinity"))
    if (
        quant
    ):  # every such file names its producer, which is how the engine recognises it; not every copy does
        (directory / "hf_quant_config.json").write_text(
            json.dumps({"producer": {"name": "modelopt"}} | quant)
        )
    return str(directory)


def _arguments(job: dict[str, Any]) -> dict[str, Any]:
    arguments = dict(job["args"])
    if arguments.get("max_model_len") == "auto":
        arguments["max_model_len"] = -1
    if "speculative_config" in arguments:
        speculative = dict(arguments["speculative_config"])
        if speculative.pop("config", None) or "model" in speculative:
            speculative["model"] = _model_directory(job["draft_config"])
        arguments["speculative_config"] = speculative
    return arguments


def _text_model(job: dict[str, Any]) -> dict[str, Any] | None:
    """The job for the language model of a multimodal config alone."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = job["config"]
    text = next((config[name] for name in ("text_config", "llm_config") if name in config), None)
    if not isinstance(text, dict):
        return None
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(text.get("model_type", ""))
    if not text.get("architectures") and not known:
        return None
    shared = {key: config[key] for key in ("quantization_config", "torch_dtype", "dtype") if key in config}
    return job | {"config": {"architectures": [known], **shared, **text}, "text_model_only": True}


def _built_rank(config: Any, rank: int) -> dict[str, Any]:
    """One rank's model on the meta device: its bytes, its cache specs, its attention backends."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
    from vllm.distributed.parallel_state import (
        ensure_model_parallel_initialized,
        init_distributed_environment,
    )
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.utils.torch_utils import set_default_torch_dtype
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
    from vllm.v1.worker.workspace import init_workspace_manager

    parallel = config.parallel_config
    parallel.rank = rank
    with set_current_vllm_config(config):
        stand_ins.join_process_group(rank, parallel.world_size_across_dp)
        init_distributed_environment(parallel.world_size, rank, "env://", 0, "fake")
        ensure_model_parallel_initialized(
            parallel.tensor_parallel_size,
            parallel.pipeline_parallel_size,
            parallel.prefill_context_parallel_size,
            parallel.decode_context_parallel_size,
        )
        init_workspace_manager(torch.device("cuda"))
        with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"):
            model = initialize_model(vllm_config=config)
            built = {"weights_bytes": _bytes(model.parameters()), "buffers_bytes": _bytes(model.buffers())}
            if config.lora_config:
                built["lora_bytes"] = _lora_bytes(config, model)
            if config.speculative_config and config.speculative_config.draft_model_config:
                draft = _draft(config, model)
                total = _bytes(itertools.chain(model.parameters(), draft.parameters()))
                built["draft_bytes"] = total - built["weights_bytes"]
        current_platform.update_block_size_for_backend(config)
        specs = get_kv_cache_spec(config)
        backends = sorted({backend.get_name() for backend in get_current_attn_backends(config)})
    return built | {"specs": specs, "backends": backends}


def _bytes(tensors: Iterable[Any]) -> int:
    """Bytes of tensors, each once: tied ones and views share a storage."""
    storages = {s._cdata: s for s in (tensor.untyped_storage() for tensor in tensors if tensor is not None)}
    return sum(storage.nbytes() for storage in storages.values())


def _draft(config: Any, target: Any) -> Any:
    """The draft model as the engine's own speculator loads it, shared modules shared."""
    import torch
    import vllm.model_executor.model_loader as model_loader
    from vllm.model_executor.model_loader.utils import initialize_model

    def get_model(*, vllm_config: Any, model_config: Any = None, prefix: str = "", **_: Any) -> Any:
        draft = initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
        draft_config = (model_config or vllm_config.model_config).hf_config
        # What loading would have found: a head with a vocabulary of its own comes with the checkpoint.
        if getattr(draft_config, "draft_vocab_size", None) not in (
            None,
            config.model_config.get_vocab_size(),
        ):
            draft.has_own_lm_head = True
        return draft

    model_loader.get_model = get_model
    torch.equal = lambda one, other: one.shape == other.shape
    from vllm.v1.worker.gpu.spec_decode import init_speculator

    if config.speculative_config.use_ngram():
        return torch.nn.Module()
    speculator = init_speculator(config, torch.device("cuda"), None)
    speculator.load_model(target)
    return speculator.model


def _lora_bytes(config: Any, model: Any) -> int:
    """Bytes of the adapter slots that the engine allocates in addition to the weights."""
    import torch
    from vllm.v1.worker.lora_model_runner_mixin import LoRAModelRunnerMixin

    LoRAModelRunnerMixin().load_lora_model(model, config, torch.device("cuda"))
    slots = (value for module in model.modules() for name, value in vars(module).items() if "stacked" in name)
    return _bytes(itertools.chain.from_iterable((s,) if torch.is_tensor(s) else s for s in slots))


def _resolved(config: Any) -> dict[str, Any]:
    return {
        "block_size": config.cache_config.block_size,
        "max_model_len": config.model_config.max_model_len,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "gpu_memory_utilization": config.cache_config.gpu_memory_utilization,
        "enable_prefix_caching": config.cache_config.enable_prefix_caching,
        "async_scheduling": config.scheduler_config.async_scheduling,
        "max_concurrent_batches": config.max_concurrent_batches,
        "v2_model_runner": bool(config.use_v2_model_runner),
    }


def _plan(config: Any, specs: list[dict[str, Any]], available_gib: float) -> dict[str, Any]:
    """The engine core's plan for that much memory on every rank; a refusal is a result."""
    import copy

    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
    from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
    from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config, get_kv_cache_capacity
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

    plan: dict[str, Any] = {"available_gib": available_gib}
    length = config.model_config.max_model_len
    try:
        register_all_kvcache_specs(config)
        layouts = [
            layout.name for layout in get_supported_kv_cache_layouts(get_current_attn_backends(config))
        ]
        resolve_kv_cache_layout(config, [layouts], [spec for rank in specs for spec in rank.values()])
        given = [int(available_gib * GIB)] * len(specs)
        configs = stand_ins.kv_cache_configs(config, copy.deepcopy(specs), given)
        cache = generate_scheduler_kv_cache_config(configs)
        if not cache.kv_cache_groups:
            return plan | {"num_blocks": cache.num_blocks, "groups": []}
        tokens, concurrency = get_kv_cache_capacity(config, cache)
        plan |= {"num_blocks": cache.num_blocks, "kv_tokens": tokens, "max_concurrency": concurrency}
        plan["groups"] = [_group(group) for group in cache.kv_cache_groups]
        if config.model_config.max_model_len != length:
            plan["max_model_len"] = config.model_config.max_model_len
    except (ValueError, NotImplementedError, AssertionError) as refusal:
        plan["refusal"] = str(refusal) or type(refusal).__name__
    finally:
        config.model_config.max_model_len = length
    return plan


def _group(group: Any) -> list[Any]:
    """Kind, tokens per block, layers, bytes of one layer's page (of all of them where they differ)."""
    spec = group.kv_cache_spec
    return [type(spec).__name__, spec.block_size, len(group.layer_names), spec.page_size_bytes]


def _in_child(task: Callable[[], Any]) -> Any:
    """The task's result, from a forked child that can neither eat the machine nor hang.

    A stage answers with the engine's own cache specs, so the pipe carries objects.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        receiver.close()
        resource.setrlimit(resource.RLIMIT_DATA, (CHILD_MEMORY_BYTES, CHILD_MEMORY_BYTES))
        signal.alarm(CHILD_SECONDS)
        try:
            result = task()
        except BaseException as error:  # whatever it is, the row has to say it
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = " ".join(str(error).split())[:400]
            place = f"{Path(where.filename).name}:{where.name}"
            result = {"failed": f"{type(error).__name__}: {text} ({place})"}
            if os.environ.get("PARITY_TRACE"):
                traceback.print_exc()
        sender.send(result)
        os._exit(0)
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        answer = None
    _, status = os.waitpid(child, 0)
    return {"failed": f"the child ended with status {status}"} if answer is None else answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--card", choices=sorted(stand_ins.CARDS), required=True)
    card = parser.parse_args().card
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the engine prints goes to standard error
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["PARITY_SCRATCH"] = scratch
        stand_ins.install(card)
        import vllm
        from vllm.engine.arg_utils import EngineArgs  # noqa: F401  imported once, before the first fork

        stand_ins.stand_in_for_tokenizers()
        for line in sys.stdin:
            job = json.loads(line)
            row = _in_child(lambda job=job: run_job(job))
            if "failed" in row and not REFUSALS.search(row["failed"]) and (text_only := _text_model(job)):
                retried = _in_child(lambda job=text_only: run_job(job))
                if "failed" not in retried:
                    row = retried | {"text_model_only": True, "whole_model": row["failed"]}
            if "failed" in row and REFUSALS.search(row["failed"]):
                row["refused"] = row.pop("failed")
            row = {"id": job["id"], "engine_version": vllm.__version__.split("+")[0]} | row
            answers.write(json.dumps(row) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
