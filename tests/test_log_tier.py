"""Lines of a start about a tier in the host's memory, beside the plan of it."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.base.units import GIB
from kvcore.evidence.calibration import compare
from kvcore.evidence.log.reader import read_log
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request

LOG = """\
INFO 09-20 10:00:00 [utils.py:233] non-default args: {{'model': 'Qwen/Qwen3-32B', 'tensor_parallel_size': 4}}
(EngineCore pid=9) INFO 09-20 10:00:05 [core.py:107] Initializing a V1 LLM engine (v0.33.0) with config: \
model='Qwen/Qwen3-32B', dtype=torch.bfloat16, max_seq_len=40960, tensor_parallel_size=4
(Worker_TP0 pid=11) INFO 09-20 10:01:40 [shared_offload_region.py:177] Created mmap file \
/dev/shm/vllm_offload_7d2e.mmap ({size} GB)
"""
ASKED: dict[str, Any] = {
    "model": "Qwen/Qwen3-32B", "accelerator": "H200-141GB", "tensor_parallel_size": 4, "engine_version": "0.33.0",
}  # fmt: skip


def doubts(size: str, **more: Any) -> dict[str, dict[str, Any]]:
    found = compare(read_log(LOG.format(size=size)), plan(scenario_from_request({**ASKED, **more})))
    return {one.code: dict(one.params) for one in found.notices}


def test_the_file_of_a_tier_is_printed_in_billions_of_bytes() -> None:
    found = read_log(LOG.format(size="214.75")).figures.host_tier_gib
    assert found.value == pytest.approx(214.75e9 / GIB)


def test_a_tier_as_planned_raises_no_doubt() -> None:
    assert not {"log-tier-differs", "log-tier-not-planned"} & doubts("214.75", kv_offloading_size=200).keys()


def test_another_tier_is_told_with_both_sizes() -> None:
    assert doubts("107.37", kv_offloading_size=200)["log-tier-differs"] == {
        "logged": "100.0 GiB",
        "planned": "200.0 GiB",
    }


def test_a_tier_that_the_plan_lacks_is_told() -> None:
    assert doubts("214.75")["log-tier-not-planned"]["logged"] == "200.0 GiB"
