"""Tiers of KV caches by a release's own connector code: cases in, rows out, as JSON lines. No GPU, no region is mapped.

    python tiers.py < cases.json > rows.jsonl

A case: {"bytes_per_block", "ranks", "asked_bytes", "blocks_per_chunk", "is_replicated"}, bytes of one rank. Releases
from 0.27 on, whose connector takes a configuration of plain numbers.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any
from unittest import mock

BLOCK_TOKENS = 16


def tier(case: dict[str, Any]) -> dict[str, int]:
    """Chunks and their bytes, as CPUOffloadingSpec counts them where a region is shared."""
    from vllm.v1.kv_offload import config as of
    from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

    def filled(kind: Any, **known: Any) -> Any:
        """A record with `known` fields and neutral ones: releases have more of them."""
        own = [one for one in dataclasses.fields(kind) if one.default is dataclasses.MISSING]
        neutral = {one.name: _neutral(str(one.type)) for one in own}
        names = {one.name for one in dataclasses.fields(kind)}
        return kind(**(neutral | {name: value for name, value in known.items() if name in names}))

    ranks = case["ranks"]
    config = filled(
        of.OffloadingConfig,
        groups=(filled(of.OffloadingGroupConfig, tokens_per_block=BLOCK_TOKENS, layer_names=("layer",)),),
        worker_kv_bytes_per_block=case["bytes_per_block"],
        extra_config={"cpu_bytes_to_use": case["asked_bytes"]},
        engine_id="parity",
        model=filled(of.OffloadingModelConfig, name="parity", dtype="bfloat16"),
        cache=filled(
            of.OffloadingCacheConfig, tokens_per_hash=BLOCK_TOKENS, blocks_per_chunk=case["blocks_per_chunk"]
        ),
        parallel=filled(
            of.OffloadingParallelConfig,
            world_size=ranks,
            tp_size=ranks,
            pp_size=1,
            pcp_size=1,
            dcp_size=1,
            data_parallel_size=1,
        ),
        replicated_layout=case["is_replicated"],
    )
    with mock.patch.object(CPUOffloadingSpec, "_uses_shared_region", return_value=True):
        spec = CPUOffloadingSpec(config)
    blocks = getattr(spec, "num_chunks", None)
    size = getattr(spec, "kv_bytes_per_chunk", None)
    return {
        "blocks": spec.num_blocks if blocks is None else blocks,
        "row_bytes": spec.kv_bytes_per_offloaded_block if size is None else size,
    }


def _neutral(kind: str) -> Any:
    return None if "None" in kind else False if "bool" in kind else 0 if "int" in kind else ""


def main() -> None:
    for name, case in json.load(sys.stdin).items():
        print(json.dumps({"case": name, **tier(case)}), flush=True)


if __name__ == "__main__":
    main()
