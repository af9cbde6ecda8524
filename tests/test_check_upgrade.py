"""`kvcore check --from --to`: what another release changes for the same file, and why."""

import json
from pathlib import Path

import pytest

from kvcore.cli import main
from kvcore.manifests.files import Source
from kvcore.preflight.outcome import Outcome, check_files
from kvcore.preflight.upgrade import upgraded

RUN = "docker run --gpus all --ipc=host vllm/vllm-openai:v0.10.0 --model Qwen/Qwen3-8B --max-model-len {}{}\n"


def test_defaults_that_moved_and_gib_with_their_causes() -> None:
    found = check_files([Source("r.sh", RUN.format(8192, ""))], "A100-40GB")
    _, (one,) = upgraded(found, None, "0.33.0")
    assert one.difference is not None
    moved = {change.name: (change.before, change.after) for change in one.difference.settings}
    assert moved["gpu_memory_utilization"] == (0.9, 0.92)
    parts = {change.name: change for change in one.difference.parts}
    assert parts["kv_cache"].more != 0
    assert any(cause.name == "budget" for cause in parts["kv_cache"].why)


def test_a_release_that_ends_the_start_is_named_with_its_reason() -> None:
    text = RUN.format(8192, " -tp 2").replace(" --ipc=host", "").replace("8B", "32B")
    found = check_files([Source("r.sh", text)], "A100-80GB")
    later, (one,) = upgraded(found, None, "0.33.0")
    assert found.checked[0].outcome is Outcome.STARTS
    assert one.ends
    assert [said.code for said in one.after.reasons] == ["shm-insufficient-for"]
    assert later.status == 1


def test_a_release_that_the_engine_never_had_leaves_it_open() -> None:
    found = check_files([Source("r.sh", RUN.format(8192, ""))], "A100-40GB")
    later, (one,) = upgraded(found, None, "none")
    assert one.after.outcome is Outcome.CANNOT_BE_KNOWN
    assert one.difference is None
    assert later.status == 3


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "r.sh"
    path.write_text(RUN.format(8192, ""), "utf-8")
    common = ["check", str(path), "--accelerator", "A100-40GB"]
    assert main([*common, "--from", "0.10.0", "--to", "0.33.0", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["workloads"]
    assert row["upgrade"]["verdict"] == {"before": "starts", "after": "starts"}
    assert row["upgrade"]["resolved"]
    assert all({"name", "before", "after"} <= change.keys() for change in row["upgrade"]["per_rank_gib"])
    assert main([*common, "--to", "0.33.0"]) == 0
    assert "Defaults that moved" in capsys.readouterr().out
    assert main([*common, "--from", "0.10.0"]) == 2
    assert "--to" in capsys.readouterr().err
