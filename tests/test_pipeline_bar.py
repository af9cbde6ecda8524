"""Under pipeline parallelism one stage is shown, the one that decides, in every part of every view."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from kvcore.base.words import Language, words
from kvcore.charts.memory_bar import axis_title, budget_end_gib, segments, shortage
from kvcore.charts.plan_report import report_html, ticket_text
from kvcore.contract.result import RANK_PARTS, result_of
from kvcore.explain.numbers import number_rows
from kvcore.planning import Plan, plan
from kvcore.wire.request import scenario_from_request

T = words(Language.ENGLISH)
DEEPSEEK = {
    "model": "deepseek-ai/DeepSeek-V3",
    "accelerator": "H100-80GB",
    "tensor_parallel_size": 8,
    "pipeline_parallel_size": 2,
    "max_model_len": 32768,
}
CASES: list[dict[str, Any]] = [
    DEEPSEEK,
    DEEPSEEK | {"pipeline_parallel_size": 3},
    DEEPSEEK | {"engine_version": "0.18.0"},
    DEEPSEEK | {"max_model_len": 163840, "gpu_memory_utilization": 0.65},
    DEEPSEEK | {"max_model_len": 163840, "gpu_memory_utilization": 0.62},
    {"model": "Qwen/Qwen3-30B-A3B", "accelerator": "L40S-48GB", "pipeline_parallel_size": 5},
    {"model": "google/gemma-3-27b-it", "accelerator": "L40S-48GB", "pipeline_parallel_size": 4},
    {"model": "openai/gpt-oss-120b", "accelerator": "H100-80GB", "pipeline_parallel_size": 2},
]


def planned(request: dict[str, Any]) -> Plan:
    return plan(scenario_from_request(request))


@pytest.mark.parametrize("request_fields", CASES)
def test_all_parts_are_of_one_stage(request_fields: dict[str, Any]) -> None:
    found = planned(request_fields)
    result = result_of(found)
    parts, memory = result["per_rank_gib"], found.memory
    assert memory is not None
    assert sum(parts[name] for name in RANK_PARTS[1:]) == pytest.approx(parts["total"], abs=1e-4)
    inside = (
        parts["framework"] + parts["weights"] + parts["activations"] + memory.counted_graphs.value / 2**30
    )
    budget = memory.budget.value / 2**30
    # Cut into blocks it takes at most what is available, and less than one block of this stage is left of that.
    assert inside + parts["kv_cache"] <= budget + 1e-4
    groups, available = result["kv"]["groups"], result["kv"]["available_bytes"]
    block = max(group["layers"] * group["page_size_bytes"] for group in groups)
    assert parts["kv_cache"] * 2**30 == pytest.approx(result["kv"]["num_blocks"] * block, abs=1024)
    missing = shortage(found)
    if missing is None:
        assert 0 <= available - parts["kv_cache"] * 2**30 < block + 1024
    else:
        assert missing.start == pytest.approx(budget_end_gib(found))
    drawn = segments(found)
    assert all(left.end == pytest.approx(right.start) for left, right in pairwise(drawn))
    assert drawn[-1].end == pytest.approx(parts["total"], abs=1e-4)
    cache = next(one for one in drawn if one.part.name == "kv_cache")
    assert cache.end <= budget_end_gib(found) + 1e-9
    assert {group["layers"] for group in groups} <= set(range(1, found.architecture.num_layers))
    stages = request_fields["pipeline_parallel_size"]
    assert 1 <= result["pipeline_stage"] <= stages


def test_the_stage_is_named_wherever_its_figures_stand() -> None:
    """61 layers on two stages: the last has 30 and the output head (vllm/distributed/utils.py:get_pp_indices, 0.33.0:
    what is left over goes to the stages before the last), and decides."""
    found = planned(DEEPSEEK)
    result = result_of(found)
    assert result["pipeline_stage"] == 2
    assert [group["layers"] for group in result["kv"]["groups"]] == [30]
    # 576 numbers of two bytes a token and layer.
    assert result["kv"]["bytes_per_token"] == 30 * 576 * 2
    assert "of pipeline stage 2 of 2" in axis_title(found, T)
    report, ticket = (write(found, "https://example.org/", T) for write in (report_html, ticket_text))
    assert "Memory of one GPU of pipeline stage 2 of 2" in report
    assert "| Memory of one GPU of pipeline stage 2 of 2 | " in ticket
    scopes = {row.scope for row in number_rows(found, T)}
    assert "per GPU of stage 2" in scopes
    assert "per GPU" not in scopes


def test_without_stages_nothing_is_named() -> None:
    found = planned(DEEPSEEK | {"pipeline_parallel_size": 1, "accelerator": "H200-141GB"})
    assert "pipeline_stage" not in result_of(found)
    assert "stage" not in axis_title(found, T)
    assert "per GPU" in {row.scope for row in number_rows(found, T)}
