"""Pipeline stages that have no layer of some group: every model of the catalogue on every number of stages."""

from __future__ import annotations

import math

import pytest

from kvcore import catalogue
from kvcore.base.errors import EngineRefusalError, KvPlannerError
from kvcore.base.units import GIB
from kvcore.cache.capacity import CachePlan, plan_cache
from kvcore.cache.spec import CacheKind, LayerSpec
from kvcore.cache.states import rank_layer_specs
from kvcore.planning import Plan, plan
from kvcore.scenario import Parallel
from kvcore.wire.request import scenario_from_request
from tests.cache_examples import flags, latent

ENGINES = {
    "vllm": "H200-141GB", "vllm-ascend": "Ascend-910C-64GB", "vllm-mindspore": "Ascend-910B1-64GB",
}  # fmt: skip
AVAILABLE = 200 * GIB


def planned(model: str, engine: str) -> Plan | None:
    """On the first number of ranks that the engine takes; None where it does not take the model."""
    for ranks in (8, 4, 2, 1):
        asked = {
            "model": model,
            "engine": engine,
            "accelerator": ENGINES[engine],
            "tensor_parallel_size": ranks,
        }
        try:
            return plan(scenario_from_request(asked))
        except KvPlannerError:
            continue
    return None


def on_stages(found: Plan, stages: int) -> CachePlan:
    parallel = Parallel(
        tensor_parallel_size=found.scenario.parallel.tensor_parallel_size, pipeline_parallel_size=stages
    )
    specs = tuple(
        rank_layer_specs(found.architecture, parallel, found.resolved, stage) for stage in range(stages)
    )
    return plan_cache(specs, (AVAILABLE,) * stages, found.resolved, parallel)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_model_is_planned_on_every_number_of_stages(engine: str) -> None:
    taken, seen = 0, set[object]()
    for model in catalogue.model_ids():
        found = planned(model, engine)
        if found is None:
            continue
        taken += 1
        # Which layers a stage has none of is decided by their order: once for models that have it in common.
        first = {id(layer): index for index, layer in reversed([*enumerate(found.architecture.layers)])}
        order = tuple(first[id(layer)] for layer in found.architecture.layers)
        several = len(found.specs[0]) > 1 and (order, len(found.specs[0])) not in seen
        seen.add((order, len(found.specs[0])))
        for stages in range(
            1 if several else found.architecture.num_layers, found.architecture.num_layers + 1
        ):
            try:
                cache = on_stages(found, stages)
            except EngineRefusalError:
                continue
            assert cache.num_blocks > 0, (model, stages)
            assert math.isfinite(cache.max_concurrency), (model, stages)
            assert cache.max_concurrency > 0 or not cache.groups, (model, stages)
            assert all(group.page_size_bytes > 0 for group in cache.groups), (model, stages)
    assert taken > 10


def window(layers: int) -> LayerSpec:
    return LayerSpec(
        kind=CacheKind.SLIDING_WINDOW_MLA,
        layers=layers,
        block_size=64,
        page_size_bytes=100,
        sliding_window=128,
    )


FULL = (latent(1, page=100, block_size=64), latent(1, page=10, block_size=64))
"""A group with pages of 100 and 10 bytes."""


@pytest.mark.parametrize(("version", "layers"), [("0.22.1", [0, 1, 1, 1]), ("0.23.0", [2, 0, 0, 0])])
def test_a_group_without_layers_on_a_stage_counts_with_the_pages_of_the_model(
    version: str, layers: list[int]
) -> None:
    """By hand from get_max_concurrency_for_kv_cache_config and _project_kv_cache_groups_to_worker (0.23.0): three
    groups of one window each. The stage that is reported stores one kind of them, and the pages of the other count."""
    resolved = flags(version, max_model_len=4096, block_size=64)
    found = plan_cache(((window(3),), FULL), (GIB, GIB), resolved, Parallel(pipeline_parallel_size=2))
    full, *windows = (group.blocks_per_request for group in found.groups)
    assert (full, [group.layers for group in found.groups]) == (64, layers)
    assert found.bytes_per_block == 110
    per_request = math.ceil((full * 110 + sum(windows) * 100) / 110)
    assert found.max_concurrency == found.num_blocks / per_request


def test_the_first_group_may_be_the_one_that_a_stage_has_not() -> None:
    resolved = flags("0.23.0", max_model_len=4096, block_size=64)
    wide = LayerSpec(
        kind=CacheKind.SLIDING_WINDOW_MLA, layers=9, block_size=64, page_size_bytes=100, sliding_window=128
    )
    twice = (latent(2, page=100, block_size=64), latent(2, page=10, block_size=64))
    found = plan_cache(((wide,), twice), (GIB, GIB), resolved, Parallel(pipeline_parallel_size=2))
    full, *windows = (group.blocks_per_request for group in found.groups)
    pages = [group.page_size_bytes for group in found.groups]
    assert (found.groups[0].layers, pages[0]) == (0, 220)
    taken = full * 220 + sum(one * page for one, page in zip(windows, pages[1:], strict=True))
    assert found.max_concurrency == found.num_blocks / math.ceil(taken / 220)
