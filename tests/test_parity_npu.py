"""Plans on Ascend against vllm-ascend's own specs and planner, as `make parity` kept them (docs/parity.md)."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools.parity.npu_compare import npu_disagreements

KEPT = Path(__file__).parent / "data" / "parity" / "npu.jsonl"
HEADER, *ROWS = map(json.loads, KEPT.read_text("utf-8").splitlines())


def test_four_releases_are_recorded_with_every_kind_of_cache() -> None:
    assert sorted({row["engine_version"] for row in ROWS}) == ["0.11.0", "0.13.0", "0.18.0", "0.23.0"]
    kinds = {layer["kind"] for case in HEADER["cases"].values() for layer in case["stages"][0]}
    assert kinds == {"attention", "latent", "state", "compressed"}
    assert {row["case"] for row in ROWS} == HEADER["cases"].keys()
    assert sum("refusal" in row for row in ROWS) >= 8


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['engine_version']} {row['case']}")
def test_specs_blocks_tokens_and_refusals_are_the_plug_ins(row: dict[str, Any]) -> None:
    assert npu_disagreements(HEADER["cases"][row["case"]], row) == []
