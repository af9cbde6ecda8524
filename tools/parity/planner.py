"""The cache planner of an older vLLM on plain cache specs: its answers for layers, lengths and memory.

    PYTHONPATH=<unpacked wheel> python planner.py < cases.json > rows.jsonl

Only vllm.v1.core.kv_cache_utils and vllm.v1.kv_cache_interface of that version run; its flags are plain values.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import stand_ins

GIB = 1 << 30


def main() -> None:
    stand_ins.install_for_import()
    import vllm.v1.core.kv_cache_utils as planner

    printed: list[str] = []
    planner.logger = Recorder(printed)
    register_specs()
    answer(lambda case: plan(planner, case, printed), printed)


def answer(planned: Callable[[dict[str, Any]], dict[str, Any]], printed: list[str]) -> None:
    """A row for each case of the input that this release knows; `printed` is the release's output for one of them."""
    for name, case in json.load(sys.stdin).items():
        printed.clear()
        row: dict[str, Any] = {"case": name}
        try:
            row |= planned(case)
        except LookupError:
            continue  # this release has no such layers or caches
        except (ValueError, NotImplementedError, AssertionError) as refusal:
            row["refusal"] = " ".join(str(refusal).split())[:300] or type(refusal).__name__
        print(json.dumps(row), flush=True)


def register_specs() -> None:
    """Newer planners look specs up in a registry that the engine fills at its start."""
    try:
        from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    except ImportError:
        return
    register_all_kvcache_specs(flags({"max_model_len": 1, "max_num_batched_tokens": 1}))


def plan(planner: Any, case: dict[str, Any], printed: list[str]) -> dict[str, Any]:
    config = flags(case)
    ranks = [_specs(stage) for stage in case["stages"]]
    available = [int(case["available_gib"] * GIB)] * len(ranks)
    if hasattr(planner, "get_kv_cache_configs"):
        configs = planner.get_kv_cache_configs(config, ranks, available)
    else:  # until 0.10.2: worker by worker
        configs = [planner.get_kv_cache_config(config, *rank) for rank in zip(ranks, available, strict=True)]
        planner.unify_kv_cache_configs(configs)
    cache = configs[0]
    tokens = printed_tokens(planner, config, cache, printed)
    groups = [
        [type(group.kv_cache_spec).__name__, group.kv_cache_spec.block_size, len(group.layer_names)]
        for group in cache.kv_cache_groups
    ]
    return {
        "num_blocks": min(each.num_blocks for each in configs),
        "tokens": tokens,
        "concurrency": planner.get_max_concurrency_for_kv_cache_config(config, cache),
        "groups": groups,
        "pages": [
            [rank[f"model.layers.{i}.0.attn"].page_size_bytes for i in range(len(stage))]
            for rank, stage in zip(ranks, case["stages"], strict=True)
        ],
    }


def printed_tokens(planner: Any, config: Any, cache: Any, printed: list[str]) -> int:
    """The size that the engine prints. Until 0.11.0 each worker prints its own; the smallest is what it can use."""
    lines = re.findall(r"KV cache size: ([\d,]+) tokens", "\n".join(printed))
    sizes = [int(line.replace(",", "")) for line in lines]
    return min(sizes) if sizes else int(planner.get_kv_cache_capacity(config, cache)[0])


def flags(case: dict[str, Any]) -> Any:
    """The few flags that the planner reads, under every name that a version has for them."""
    length, batch = case["max_model_len"], case["max_num_batched_tokens"]
    try:
        from vllm.v1.kv_cache_layout import KVCacheLayout

        layout = KVCacheLayout.LBNHC  # what FlashAttention asks for
    except ImportError:
        layout = None
    return SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=length,
            original_max_model_len=length,
            is_hybrid=False,
            use_mla=False,
            hf_config=None,
        ),
        cache_config=SimpleNamespace(
            block_size=16,
            num_gpu_blocks_override=None,
            mamba_cache_mode=case.get("mamba_cache_mode", "none"),
            enable_prefix_caching=True,
            gpu_memory_utilization=0.9,
            kv_cache_dtype_skip_layers=[],
            prefix_cache_retention_interval=None,
            mamba_block_size=length,
            hisparse_config=None,
            get_resolved_kv_cache_layout=lambda: layout,
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=case.get("decode_context_parallel_size", 1),
            prefill_context_parallel_size=1,
            tensor_parallel_size=8,
            pipeline_parallel_size=1,
        ),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=batch,
            max_num_encoder_input_tokens=batch,
            disable_hybrid_kv_cache_manager=False,
            max_num_seqs=256,
        ),
        device_config=SimpleNamespace(device_type="cuda"),
        attention_config=SimpleNamespace(hisparse_config=None),
        max_concurrent_batches=case.get("max_concurrent_batches", 2),
        max_in_flight_tokens=batch * case.get("max_concurrent_batches", 2),
        num_prefill_lookahead_tokens=0,
        kv_transfer_config=None,
        kv_events_config=None,
        speculative_config=None,
    )


def _specs(stage: list[dict[str, Any]]) -> dict[str, Any]:
    """The engine's spec objects of one rank, by layer name."""
    import torch
    import vllm.v1.kv_cache_interface as interface

    specs: dict[str, Any] = {}
    for index, layers in enumerate(stage):
        keys = {
            key: value for key, value in layers.items() if key not in ("kind", "layers", "dtype", "state")
        }
        spec_class = getattr(interface, layers["kind"], None)
        if layers["kind"] == "MambaSpec":
            shapes = tuple(map(tuple, layers["state"]))
            keys |= {"shapes": shapes, "dtypes": (torch.float32,) * len(shapes), "dtype": torch.float32}
        else:
            keys["dtype"] = getattr(torch, layers["dtype"])
        if spec_class is None:
            if layers["kind"] != "MLAAttentionSpec":
                raise LookupError(layers["kind"])
            # until 0.10.2 latent vectors were a flag of full attention
            spec_class, keys["use_mla"] = interface.FullAttentionSpec, True
        fields = spec_class.__dataclass_fields__
        if "use_mla" in fields:
            keys.setdefault("use_mla", False)
        known = {key: value for key, value in keys.items() if key in fields}
        for number in range(layers["layers"]):
            specs[f"model.layers.{index}.{number}.attn"] = spec_class(**known)
    return specs


def attention_classes() -> tuple[type, type]:
    """The release's modules of plain and of latent attention; before 0.13 one is both."""
    for path in ("vllm.model_executor.layers.attention", "vllm.attention.layer"):
        try:
            found = importlib.import_module(path)
            plain = found.Attention
        except (ImportError, AttributeError):
            continue
        return plain, getattr(found, "MLAAttention", plain)
    raise LookupError("Attention")


class Recorder:
    """Replaces the module's logger, to read the lines of a start."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def __getattr__(self, name: str) -> Any:
        del name
        return lambda text, *args, **_: self.lines.append(text % args if args else text)


if __name__ == "__main__":
    main()
