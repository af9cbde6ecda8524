"""JSON carries GiB, not the noise of their division."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvcore.cli import main

LOG = Path(__file__).parent / "data" / "logs" / "v1_0.10.2_h100.log"
REQUEST = {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "tensor_parallel_size": 2}


def floats(part: Any, path: str = "") -> dict[str, str]:
    """Path -> the figure as it is written, of every number with a point."""
    found: dict[str, str] = {}
    if isinstance(part, dict):
        for key, value in part.items():
            found |= floats(value, f"{path}.{key}")
    elif isinstance(part, list):
        for number, value in enumerate(part):
            found |= floats(value, f"{path}[{number}]")
    elif isinstance(part, float):
        found[path] = repr(part)
    return found


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "FILE"),
        ("log", "--json", str(LOG)),
        ("sweep", "--json", "--models", "Qwen/Qwen3-32B", "--accelerators", "H100-80GB,L40S-48GB"),
    ],
    ids=lambda words: words[0],
)
def test_gib_have_six_decimals_at_most(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps(REQUEST))
    assert main([str(request) if word == "FILE" else word for word in words]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    exact = re.compile(r"\.(request|measured|calibrated|figures\[\d+\]\.value|ranks\[\d+\])\b")
    written = {
        path: text
        for answer in answers
        for path, text in floats(answer).items()
        if "gib" in path and exact.match(path) is None
    }
    assert len(written) >= 2
    assert {path: text for path, text in written.items() if not re.fullmatch(r"-?\d+\.\d{1,6}", text)} == {}


def test_the_parts_still_sum_to_the_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps(REQUEST))
    main(["plan", str(request)])
    parts = json.loads(capsys.readouterr().out)["per_rank_gib"]
    assert sum(value for name, value in parts.items() if name != "total") == pytest.approx(
        parts["total"], abs=8 * 5e-7
    )


def test_measured_values_are_sent_back_whole(capsys: pytest.CaptureFixture[str]) -> None:
    log = LOG.with_name("ascend_0.11.0rc3_910b4.log")
    main(["log", "--json", str(log)])
    report = json.loads(capsys.readouterr().out)
    (printed,) = re.findall(r"Available memory: (\d+), total memory", log.read_text())
    assert int(report["measured"]["available_kv_gib"] * 2**30) == int(printed)
