"""Tiers in the host's memory against what the connectors of six releases counted (tools/parity/tiers.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcore.host.tier import region_row_bytes

KEPT = Path(__file__).parent / "data" / "parity" / "tiers.jsonl"
HEADER, *ROWS = map(json.loads, KEPT.read_text("utf-8").splitlines())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['engine_version']}-{row['case']}")
def test_blocks_and_rows_are_the_connector_s(row: dict[str, Any]) -> None:
    case = HEADER["cases"][row["case"]]
    copies = 1 if case["is_replicated"] else case["ranks"]
    size = region_row_bytes(case["bytes_per_block"], copies, case["blocks_per_chunk"])
    assert (case["asked_bytes"] // size, size) == (row["blocks"], row["row_bytes"])


def test_every_release_answered_every_case() -> None:
    releases = {row["engine_version"] for row in ROWS}
    assert {"0.27.1", "0.33.0"} <= releases
    assert len(ROWS) == len(releases) * len(HEADER["cases"])
