"""Answers of `plan` next to vllm-ascend's own specs and planner."""

from __future__ import annotations

import json
from typing import Any

from packaging.version import Version

from kvcore.base.errors import KvPlannerError
from kvcore.catalogue import find_model
from kvcore.planning import Plan, Verdict
from kvcore.planning import plan as plan_of
from kvcore.wire.request import scenario_from_request
from tools.parity.compare import ESTIMATE, KINDS, Disagreement

CARD = {"name": "Ascend 910B 64GB", "memory_gib": 60.96, "vendor": "huawei"}
OWN = {"AscendMLAAttentionSpec": "mla_attention", "UniformTypeKVCacheSpecs": ""}
"""vllm-ascend's own classes; layers of several sizes have no kind."""


def applies(case: dict[str, Any], version: str) -> bool:
    """Whether the release has the model's class."""
    return Version(case.get("since", "0.0")) <= Version(version)


def npu_disagreements(case: dict[str, Any], row: dict[str, Any]) -> list[Disagreement]:
    """Every figure of a row that `plan` does not give exactly, of the checkpoint as it is without quantization."""
    request = dict(case["request"])
    config = {
        key: value
        for key, value in find_model(request["model"]).config.raw.items()
        if key != "quantization_config"
    }
    request |= {"engine": "vllm-ascend", "engine_version": row["engine_version"], "accelerator": CARD}
    request |= {"config": config, "measured": {"available_kv_gib": case["available_gib"]}}
    try:
        planned = plan_of(scenario_from_request(json.loads(json.dumps(request))))
    except KvPlannerError as error:
        return [] if "refusal" in row else [("answered", "a plan", str(error))]
    return _refusal(row["refusal"], planned) if "refusal" in row else _figures(row, planned)


def _refusal(text: str, planned: Plan) -> list[Disagreement]:
    estimate = ESTIMATE.search(text)
    if planned.verdict is not Verdict.CONTEXT_TOO_LONG or planned.cache is None:
        return [("refusal", text, planned.verdict)]
    longest = planned.cache.longest_request_tokens
    return [("refusal", int(estimate[1]), longest)] if estimate and int(estimate[1]) != longest else []


def _figures(row: dict[str, Any], planned: Plan) -> list[Disagreement]:
    cache = planned.cache
    if cache is None:
        return [("answered", "a plan", planned.verdict)]
    theirs = [[(KINDS | OWN)[kind], *sizes] for kind, *sizes in row["groups"]]
    ours = [[group.kind.value, group.block_size, group.layers] for group in cache.groups]
    if len(theirs) == len(ours):
        ours = [[own[0] and group[0], *group[1:]] for own, group in zip(theirs, ours, strict=True)]
    pages = [sorted({spec.page_size_bytes for spec in stage}) for stage in planned.specs]
    if not all(own[0] for own in theirs):  # its specs are padded before the planner pads them
        pages = row["pages"]
    figures = [
        ("blocks", row["num_blocks"], cache.num_blocks),
        ("tokens", row["tokens"], cache.tokens),
        ("concurrency", round(row["concurrency"], 9), round(cache.max_concurrency, 9)),
        ("groups", theirs, ours),
        ("pages", row["pages"], pages),
    ]
    return [(aspect, one, other) for aspect, one, other in figures if one != other]
