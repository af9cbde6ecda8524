"""kvcore against vLLM's own planner: the answers that `make parity-write` kept, without the wheel.

vllm-*.jsonl: whole models on one release; planners.jsonl: the planners of older releases on plain cache specs.
known.toml names, with its reason, every figure that is not the engine's; an entry that no longer differs fails.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tools.parity import compare

DATA = Path(__file__).parent / "data" / "parity"


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    header, *rows = map(json.loads, path.read_text().splitlines())
    return header, rows


KEPT = [read(path) for path in sorted(DATA.glob("vllm-*.jsonl"))]
"""By release: the newest, and the one before for what the newest was not asked yet."""
PLANNERS, PLANNER_ROWS = read(DATA / "planners.jsonl")
KNOWN = compare.known_differences()

ROWS = [(header, row) for header, rows in KEPT for row in rows]
BY_MODEL: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = defaultdict(list)
for one in ROWS:
    BY_MODEL[one[1]["model"]].append(one)


@pytest.mark.parametrize("model", BY_MODEL)
def test_whole_models_are_planned_as_the_engine_does(model: str) -> None:
    for header, row in BY_MODEL[model]:
        found = [each for each in compare.disagreements(row, header) if not compare.is_known(row, each[0])]
        assert not found, (header["engine_version"], row["card"], row["args"])


@pytest.mark.parametrize("entry", KNOWN, ids=[entry["reason"][:60] for entry in KNOWN])
def test_known_differences_are_still_there(entry: dict[str, Any]) -> None:
    found = {
        aspect
        for header, row in ROWS
        if compare.applies(entry, row)
        for aspect, _, _ in compare.disagreements(row, header)
    }
    assert found >= set(entry["aspects"])


@pytest.mark.parametrize(
    "row", PLANNER_ROWS, ids=[f"{row['engine_version']}-{row['case']}" for row in PLANNER_ROWS]
)
def test_planners_of_older_releases(row: dict[str, Any]) -> None:
    assert compare.planner_disagreements(PLANNERS["cases"][row["case"]], row) == []


def test_breadth_of_the_data() -> None:
    assert len(BY_MODEL) >= 250
    assert len({row["engine_version"] for row in PLANNER_ROWS}) >= 5
    assert {row["card"] for _, row in ROWS} >= {"H100-80GB", "H200-141GB", "A100-80GB", "B200", "L40S"}


@pytest.mark.parametrize(
    ("model", "card", "tp", "length", "flags"),
    [
        ("openai/gpt-oss-120b", "H100-80GB", 1, 16384, {}),
        ("openai/gpt-oss-120b", "H100-80GB", 1, 131072, {}),
        ("google/gemma-3-27b-it", "H100-80GB", 1, 8192, {}),
        ("google/gemma-3-27b-it", "H100-80GB", 1, 131072, {}),
        ("google/gemma-3-27b-it", "H100-80GB", 2, 131072, {}),
        ("deepseek-ai/DeepSeek-V3", "H200-141GB", 8, 32768, {}),
        ("deepseek-ai/DeepSeek-V3", "H200-141GB", 8, 32768, {"kv_cache_dtype": "fp8"}),
        ("deepseek-ai/DeepSeek-V3.2", "H200-141GB", 8, 32768, {}),
        ("deepseek-ai/DeepSeek-V3.2", "H200-141GB", 8, 32768, {"kv_cache_dtype": "fp8"}),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "H100-80GB", 4, 32768, {}),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "H100-80GB", 4, 262144, {}),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "H100-80GB", 4, 131072, {}),
        ("Qwen/Qwen3.5-35B-A3B", "H100-80GB", 1, 32768, {}),
    ],
)
def test_cases_that_other_tools_get_wrong(
    model: str, card: str, tp: int, length: int, flags: dict[str, Any]
) -> None:
    """Windows with in-flight tokens, latent vectors beside an indexer, states, chunks: all exact, no exception."""
    args = {"tensor_parallel_size": tp, "max_model_len": length, **flags}
    asked = [(header, r) for header, r in BY_MODEL[model] if r["card"] == card and r["args"] == args]
    assert asked
    for header, row in asked:
        assert "weights" in row
        assert not isinstance(row["plans"][0][1], str)
        assert compare.disagreements(row, header) == []
