"""Answers of `plan` next to those of the engine: a row, its disagreements, a table of agreement."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from kvcore.base.errors import EngineRefusalError, KvPlannerError
from kvcore.base.units import GIB
from kvcore.cache.capacity import plan_cache
from kvcore.cache.spec import CacheKind, LayerSpec
from kvcore.contract.result import error_of, result_of
from kvcore.engines.vllm.draft import read_draft
from kvcore.memory.loaded import draft_parameter_bytes
from kvcore.planning import plan as plan_of
from kvcore.scenario import Parallel
from kvcore.wire.request import scenario_from_request

KNOWN_FILE = Path(__file__).parents[2] / "tests" / "data" / "parity" / "known.toml"

Row = dict[str, Any]
Disagreement = tuple[str, Any, Any]
"""Name of the figure, the engine's value, our value."""

ASPECTS = ("weights", "draft", "adapters", "blocks", "tokens", "concurrency", "defaults", "groups", "refusal")
DEFAULTS = ("block_size", "max_model_len", "max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization")
KINDS = {
    "FullAttentionSpec": "full_attention",
    "SinkFullAttentionSpec": "full_attention",
    "SlidingWindowSpec": "sliding_window",
    "ChunkedLocalAttentionSpec": "chunked_local_attention",
    "MLAAttentionSpec": "mla_attention",
    "SlidingWindowMLASpec": "sliding_window_mla",
    "CircularBufferSpec": "circular_buffer",
    "MambaSpec": "mamba",
    "CrossAttentionSpec": "cross_attention",
}
ESTIMATE = re.compile(r"estimated maximum model length is (\d+)")


def row_of(job: dict[str, Any], result: dict[str, Any]) -> Row | None:
    """The test datum of a job; None where the stand-ins did not get to an answer."""
    row: Row = {"model": job["model"], "card": job["card"], "args": job["args"]}
    if "failed" in result:
        return None
    if "refused" in result:
        return row | {"refused": result["refused"][:300]}
    if result.get("text_model_only"):
        row["text_model_only"] = True
    else:
        row["weights"] = [stage["weights_bytes"] for stage in result["stages"]]
        for part in ("draft_bytes", "lora_bytes"):
            if part in result["stages"][-1]:
                row[part] = [stage.get(part, 0) for stage in result["stages"]]
    row["resolved"] = {name: result["resolved"][name] for name in DEFAULTS}
    row["backends"] = result["stages"][0]["backends"]
    planned = [plan for plan in result["plans"] if "groups" in plan]
    if planned:
        row["groups"] = [group[:3] for group in planned[0]["groups"]]
    row["plans"] = [_compact(plan) for plan in result["plans"]]
    return row


def _compact(plan: dict[str, Any]) -> list[Any]:
    """[GiB, blocks, tokens, concurrency, length] or [GiB, refusal]."""
    if "refusal" in plan:
        return [plan["available_gib"], plan["refusal"][:250]]
    figures = [plan["available_gib"], plan["num_blocks"], plan.get("kv_tokens"), plan.get("max_concurrency")]
    return [*figures, plan["max_model_len"]] if "max_model_len" in plan else figures


def request_of(row: Row, header: Row, available_gib: float) -> dict[str, Any]:
    """The contract's request for one plan of a row. The engine was given the config.json alone.

    A class that only one attention backend runs is planned with it there; a request names none.
    """
    asked = {name: value for name, value in row["args"].items() if name != "attention_backend"}
    return {
        "model": row["model"],
        **({"config": row["config"]} if "config" in row else {}),
        "checkpoint": {"sentence_transformers": False},
        "accelerator": header["cards"][row["card"]],
        "engine_version": header["engine_version"],
        "measured": {"available_kv_gib": available_gib},
        **asked,
    }


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """The contract's result, from the catalogue alone: nothing is fetched."""
    try:
        return result_of(plan_of(scenario_from_request(request)))
    except KvPlannerError as error:
        return error_of(error)


def command_line(row: Row, header: Row) -> list[str]:
    """The arguments of `vllm serve` that kvcore writes for a row; none where kvcore refuses the deployment."""
    result = _answer(request_of(row, header, 40.0))
    if result["status"] == "error":
        return []
    words = shlex.split(result["launch"])
    return words[words.index("serve") + 1 :]


def disagreements(row: Row, header: Row) -> list[Disagreement]:
    """Every figure of the row that kvcore does not give exactly."""
    if "refused" in row:
        result = _answer(request_of(row, header, 40.0))
        return [] if result["status"] == "error" else [("refusal", row["refused"], "planned")]
    found: list[Disagreement] = []
    for plan in row["plans"]:
        result = _answer(request_of(row, header, plan[0]))
        if result["status"] == "error":
            if isinstance(plan[1], str) and not ESTIMATE.search(plan[1]):
                continue  # refused by both
            return [("answered", "a plan", result["error"]["message"])]
        found += _plan_disagreements(row, plan, result)
        if plan is row["plans"][0]:
            found += _model_disagreements(row, result)
    if "draft_bytes" in row or "lora_bytes" in row:
        found += _addition_disagreements(row, header)
    return found


@cache
def known_differences() -> tuple[dict[str, Any], ...]:
    """The known differences, each with its reason."""
    return tuple(tomllib.loads(KNOWN_FILE.read_text())["difference"])


def applies(entry: dict[str, Any], row: Row) -> bool:
    """Whether a known difference is about that row."""
    return (
        row["model"] in entry["models"]
        and entry.get("card", row["card"]) == row["card"]
        and entry.get("args", "") in json.dumps(row["args"])
    )


def is_known(row: Row, aspect: str) -> bool:
    """Whether that aspect of that row is known to differ."""
    return any(applies(entry, row) and aspect in entry["aspects"] for entry in known_differences())


def _plan_disagreements(row: Row, plan: list[Any], result: dict[str, Any]) -> Iterable[Disagreement]:
    kv = result["kv"]
    if isinstance(plan[1], str):
        estimate = ESTIMATE.search(plan[1])
        if result["verdict"] not in ("context-too-long", "no-kv-memory"):
            yield "refusal", plan[1], result["verdict"]
        elif estimate and kv.get("longest_request_tokens") != int(estimate[1]):
            yield "refusal", int(estimate[1]), kv.get("longest_request_tokens")
        return
    _, blocks, tokens, concurrency, *length = plan
    expected = [("blocks", blocks, "num_blocks"), ("tokens", tokens, "tokens")]
    for aspect, value, name in expected:
        if value is not None and value != kv.get(name):
            yield aspect, value, kv.get(name)
    ours = kv.get("max_concurrency")
    if concurrency is not None and (ours is None or abs(ours - concurrency) > 1e-9 * concurrency):
        yield "concurrency", concurrency, ours
    groups = [[g["kind"], g["block_size"], g["layers"]] for g in kv.get("groups", ())]
    theirs = [[KINDS.get(kind, kind), block, layers] for kind, block, layers in row.get("groups", ())]
    if sorted(groups) != sorted(theirs):
        yield "groups", _short(theirs), _short(groups)
    if length and result["resolved"]["max_model_len"] != length[0]:
        yield "defaults", f"max_model_len={length[0]}", f"max_model_len={result['resolved']['max_model_len']}"


def _model_disagreements(row: Row, result: dict[str, Any]) -> Iterable[Disagreement]:
    # With the KV memory given, no stage is worse than another: any stage's figure is right.
    if "weights" in row and result["weights_bytes_per_rank"] not in row["weights"]:
        yield "weights", row["weights"], result["weights_bytes_per_rank"]
    for name in DEFAULTS:
        if name == "max_model_len" and row["args"].get(name) == "auto":
            continue
        if row["resolved"][name] != result["resolved"][name]:
            yield "defaults", f"{name}={row['resolved'][name]}", f"{name}={result['resolved'][name]}"


def _addition_disagreements(row: Row, header: Row) -> Iterable[Disagreement]:
    """Parameters of a draft, and adapter slots, on the last pipeline stage."""
    scenario = scenario_from_request(request_of(row, header, 40.0))
    planned = plan_of(scenario)
    if "draft_bytes" in row:
        draft = read_draft(
            scenario.speculative_config,
            planned.architecture,
            planned.quantization,
            scenario.parallel,
            planned.resolved.max_model_len,
        )
        ours = draft_parameter_bytes(draft, scenario.parallel, planned.resolved.dtype) if draft else 0
        if ours != row["draft_bytes"][-1]:
            yield "draft", row["draft_bytes"][-1], ours
    if "lora_bytes" in row and planned.weights.adapters != row["lora_bytes"][-1]:
        yield "adapters", row["lora_bytes"][-1], planned.weights.adapters


def planner_disagreements(case: dict[str, Any], row: Row) -> list[Disagreement]:
    """Differences between kvcore.cache and the release's own planner for the same cache specs."""
    version = row["engine_version"]
    ranks = case.get("decode_context_parallel_size", 1)
    parallel = Parallel(
        tensor_parallel_size=ranks,
        decode_context_parallel_size=ranks,
        pipeline_parallel_size=len(case["stages"]),
    )
    resolved = replace(
        _plain_flags(version),
        max_model_len=case["max_model_len"],
        derived_max_model_len=0,
        max_num_batched_tokens=case["max_num_batched_tokens"],
        max_concurrent_batches=case.get("max_concurrent_batches", 2),
        mamba_cache_mode=case.get("mamba_cache_mode", "none"),
    )
    stages = tuple(
        tuple(_layer_spec(layers, page) for layers, page in zip(stage, pages, strict=True))
        for stage, pages in zip(case["stages"], row.get("pages") or _pages(case), strict=True)
    )
    try:
        ours = plan_cache(stages, (int(case["available_gib"] * GIB),) * len(stages), resolved, parallel)
    except EngineRefusalError as error:
        return [] if "refusal" in row else [("answered", "a plan", str(error))]
    if "refusal" in row:
        estimate = ESTIMATE.search(row["refusal"])
        if ours.fits:
            return [("refusal", row["refusal"], "planned")]
        if estimate and int(estimate[1]) != ours.longest_request_tokens:
            return [("refusal", int(estimate[1]), ours.longest_request_tokens)]
        return []
    figures = [
        ("blocks", row["num_blocks"], ours.num_blocks),
        ("tokens", row["tokens"], ours.tokens),
        ("concurrency", round(row["concurrency"], 9), round(ours.max_concurrency, 9)),
    ]
    return [(aspect, theirs, mine) for aspect, theirs, mine in figures if theirs != mine]


@cache
def _plain_flags(version: str) -> Any:
    request = {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "engine_version": version}
    return plan_of(scenario_from_request(request)).resolved


def _layer_spec(layers: dict[str, Any], page: int) -> LayerSpec:
    names = ("layers", "block_size", "num_kv_heads", "head_size", "sliding_window", "attention_chunk_size")
    known = {name: layers[name] for name in names if name in layers}
    kind = CacheKind(KINDS[layers["kind"]])
    return LayerSpec(kind=kind, page_size_bytes=page, dtype=layers.get("dtype", "float32"), **known)


def _pages(case: dict[str, Any]) -> list[list[int]]:
    """Bytes of a page of each kind of layer, from its own fields, as rows of a refusal do not have them."""
    return [
        [
            layers.get("page_size_padded")
            or layers["block_size"]
            * layers["num_kv_heads"]
            * layers["head_size"]
            * (1 if layers["kind"] == "MLAAttentionSpec" else 2)
            * (1 if layers["dtype"] == "uint8" else 2)
            for layers in stage
        ]
        for stage in case["stages"]
    ]


def _short(groups: list[list[Any]]) -> str:
    return ", ".join(f"{count}x{group}" for group, count in Counter(map(str, groups)).items())


def aspects_of(row: Row) -> set[str]:
    """The aspects that a row covers."""
    if "refused" in row:
        return {"refusal"}
    parts = {"weights": "weights", "draft_bytes": "draft", "lora_bytes": "adapters"}
    said = {"defaults", *(aspect for key, aspect in parts.items() if key in row)}
    for plan in row["plans"]:
        said |= {"refusal"} if isinstance(plan[1], str) else {"blocks", "tokens", "concurrency", "groups"}
    return said


def agreement_table(rows: Iterable[tuple[str, Row, list[Disagreement]]]) -> str:
    """Rows that agree, of those that cover an aspect, per family and aspect."""
    agree: dict[str, Counter[str]] = defaultdict(Counter)
    total: dict[str, Counter[str]] = defaultdict(Counter)
    for family, row, found in rows:
        wrong = {aspect for aspect, _, _ in found}
        for name in (family, "all"):
            total[name]["rows"] += 1
            agree[name]["rows"] += not found
            for aspect in aspects_of(row):
                total[name][aspect] += 1
                agree[name][aspect] += not wrong & {aspect, "answered"}
    width = max(map(len, total), default=3)
    columns = ("rows", *ASPECTS)
    lines = ["family".ljust(width) + "".join(column.rjust(13) for column in columns)]
    for name in [*sorted(name for name in total if name != "all"), "all"]:
        cells = [f"{agree[name][c]}/{total[name][c]}" if total[name][c] else "" for c in columns]
        lines.append(name.ljust(width) + "".join(cell.rjust(13) for cell in cells))
    return "\n".join(lines)
