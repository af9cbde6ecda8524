"""Drafts and adapter slots: exact against vLLM's own model classes and planner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcore import catalogue
from kvcore.cache.spec import CacheKind
from kvcore.engines.vllm.draft import read_draft
from kvcore.memory.loaded import draft_parameter_bytes
from kvcore.memory.lora import Slots
from kvcore.planning import Plan, plan
from kvcore.wire.request import scenario_from_request
from tests.special_models import slots_by_stage

FACTS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data/drafts_and_adapters.jsonl").read_text().splitlines()
][1:]
KINDS = {
    "FullAttentionSpec": CacheKind.FULL_ATTENTION,
    "SlidingWindowSpec": CacheKind.SLIDING_WINDOW,
    "ChunkedLocalAttentionSpec": CacheKind.CHUNKED_LOCAL_ATTENTION,
    "MLAAttentionSpec": CacheKind.MLA_ATTENTION,
    "MambaSpec": CacheKind.MAMBA,
}


def name_of(fact: dict[str, Any]) -> str:
    flags = {**fact["args"], **fact["args"].get("speculative_config", {})}
    shown = ("method", "enable_lora", "tensor_parallel_size", "pipeline_parallel_size", "max_lora_rank")
    return " ".join([fact["model"], *(str(flags[key]) for key in shown if key in flags)])


def planned(fact: dict[str, Any]) -> Plan:
    args = {name: value for name, value in fact["args"].items() if name != "fully_sharded_loras"}
    if "draft_config" in fact:
        args["speculative_config"] = {**args["speculative_config"], "config": fact["draft_config"]}
    return plan(
        scenario_from_request(
            {
                "model": fact["model"],
                "accelerator": {"memory_gib": 79.19, "vendor": "nvidia", "name": "NVIDIA H100 80GB HBM3"},
                "engine_version": "0.32.0",
                "measured": {"available_kv_gib": fact["available_gib"]},
                **args,
            }
        )
    )


@pytest.mark.parametrize("fact", [fact for fact in FACTS if "draft_bytes" in fact], ids=name_of)
def test_a_draft_weighs_what_the_engine_builds(fact: dict[str, Any]) -> None:
    got = planned(fact)
    draft = read_draft(
        got.scenario.speculative_config,
        got.architecture,
        got.quantization,
        got.scenario.parallel,
        got.resolved.max_model_len,
    )
    if draft is None:
        assert fact["draft_bytes"] == [0]
        assert got.weights.drafts == 0
    else:
        parameters = draft_parameter_bytes(draft, got.scenario.parallel, got.resolved.dtype)
        assert parameters == fact["draft_bytes"][-1]
        assert got.weights.drafts >= parameters - 64


@pytest.mark.parametrize("fact", [fact for fact in FACTS if "lora_bytes" in fact], ids=name_of)
def test_adapter_slots_are_those_the_engine_allocates(fact: dict[str, Any]) -> None:
    got, args = planned(fact), fact["args"]
    slots = Slots(
        max_loras=args.get("max_loras", 1),
        max_lora_rank=args.get("max_lora_rank", 16),
        fully_sharded_loras=args.get("fully_sharded_loras", False),
    )
    assert slots_by_stage(got, slots) == fact["lora_bytes"]


@pytest.mark.parametrize("fact", [fact for fact in FACTS if "groups" in fact], ids=name_of)
def test_the_pool_with_drafts_is_the_engines(fact: dict[str, Any]) -> None:
    cache = planned(fact).cache
    assert cache is not None
    assert (cache.num_blocks, cache.tokens) == (fact["num_blocks"], fact["kv_tokens"])
    assert cache.max_concurrency == pytest.approx(fact["max_concurrency"], rel=1e-12)
    groups = [[group.kind, group.block_size, group.layers] for group in cache.groups]
    wanted = [[KINDS[kind], block, layers] for kind, block, layers, _ in fact["groups"]]
    if len(groups) == 1:
        assert groups == wanted
    else:
        assert sorted(groups) == sorted(wanted)


def test_the_facts_name_models_of_the_catalogue() -> None:
    assert {fact["model"] for fact in FACTS} <= set(catalogue.model_ids())
