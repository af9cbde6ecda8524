"""The planner against vLLM's own, on every version.

planner_cases.json: cache specs of a rank of each pipeline stage, flags and memory; `--block-size` is 16
throughout. planner_vectors.jsonl: what the planner of 30 vLLM releases, 0.8.5 to 0.33.0, made of them. Both
come from driving each release's own `get_kv_cache_configs` (or `get_kv_cache_config`) with plain spec objects on
a CPU; `concurrency_printed` is what versions print that do not keep the number. Releases that answer the same
share a line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from kvcore.base.errors import EngineRefusalError
from kvcore.base.units import GIB
from kvcore.cache.capacity import CacheGroup, CachePlan, max_concurrency_at, plan_cache
from kvcore.cache.spec import CacheKind, LayerSpec
from kvcore.scenario import Parallel
from tests.cache_examples import flags

DATA = Path(__file__).parent / "data"
CASES = json.loads((DATA / "planner_cases.json").read_text())
VECTORS = [json.loads(line) for line in (DATA / "planner_vectors.jsonl").read_text().splitlines()]
RUNS = [(version, vector) for vector in VECTORS for version in vector["engine_versions"]]


def inputs(case: dict[str, Any], version: str) -> tuple[Any, ...]:
    stages = tuple(
        tuple(LayerSpec(**(spec | {"kind": CacheKind(spec["kind"])})) for spec in stage)
        for stage in case["stages"]
    )
    resolved = flags(
        version,
        **{
            key: case[key]
            for key in (
                "max_model_len",
                "max_num_batched_tokens",
                "max_concurrent_batches",
                "mamba_cache_mode",
                "hybrid_kv_cache_manager",
            )
        },
    )
    ranks = case["decode_context_parallel_size"]
    parallel = Parallel(
        tensor_parallel_size=ranks, decode_context_parallel_size=ranks, pipeline_parallel_size=len(stages)
    )
    return stages, tuple(case["available_bytes"]), resolved, parallel


def test_every_version_is_there() -> None:
    assert len(RUNS) == 591
    assert len({version for version, _ in RUNS}) == 30


@pytest.mark.parametrize(("version", "vector"), RUNS, ids=[f"{v['case']}-{version}" for version, v in RUNS])
def test_plan_equals_the_engines(version: str, vector: dict[str, Any]) -> None:
    arguments = inputs(CASES[vector["case"]], version)
    if "refused" in vector:
        with pytest.raises(EngineRefusalError):
            plan_cache(*arguments)
        return
    plan = plan_cache(*arguments)
    if "needed_gib" in vector:
        check_refusal(plan, vector)
        return
    assert plan.num_blocks == vector["num_blocks"]
    assert plan.fits
    assert plan.tokens == vector["tokens"]
    if "concurrency" in vector:
        assert round(plan.max_concurrency, 6) == vector["concurrency"]
    else:
        assert f"{plan.max_concurrency:.2f}" == vector["concurrency_printed"]
    assert [group(each, Version(version)) for each in plan.groups] == [
        expected(each) for each in vector["groups"]
    ]
    assert max_concurrency_at(*arguments, lengths=(plan.max_model_len,)) == (plan.max_concurrency,)


def group(found: CacheGroup, version: Version) -> tuple[int, str, int, int]:
    kind = found.kind
    if kind is CacheKind.MLA_ATTENTION and version < Version("0.11.0"):
        kind = CacheKind.FULL_ATTENTION  # What the engine called latent vectors then.
    return (found.layers, kind.value, found.block_size, found.page_size_bytes)


def expected(vector: list[Any]) -> tuple[int, str, int, int]:
    layers, kind, block_size, page = vector
    # All layers of the mixed groups here store latent vectors.
    return (layers, "mla_attention" if kind == "uniform" else kind, block_size, page)


def check_refusal(plan: CachePlan, vector: dict[str, Any]) -> None:
    assert not plan.fits
    assert plan.needed_bytes == round(float(vector["needed_gib"]) * GIB)
    if "longest" in vector:
        assert plan.longest_request_tokens == vector["longest"]
