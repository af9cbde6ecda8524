"""docs/adding-an-engine-version.md, followed step by step in a copy of the package."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvcore

DOCUMENT = Path(__file__).parents[1] / "docs" / "adding-an-engine-version.md"
PLANS = """
import json, kvcore
def planned(version):
    plan = kvcore.plan(model="Qwen/Qwen3-8B", accelerator="H100-80GB", max_model_len=8192, engine_version=version)
    found = plan.resolved
    return found.engine_version, found.gpu_memory_utilization, [notice.code for notice in plan.notices]
print(json.dumps([planned(version) for version in ("0.33.0", "0.34.0", None)]))
"""


def steps() -> list[list[str]]:
    """The lines of each block of the document."""
    return [
        block.split("\n")
        for block in re.findall(r"```toml\n(.*?)\n\s*```", DOCUMENT.read_text("utf-8"), re.S)
    ]


@pytest.fixture(name="copied")
def _copied(tmp_path: Path) -> Path:
    """A copy of the package that may be changed."""
    shutil.copytree(Path(kvcore.__file__).parent, tmp_path / "kvcore")
    return tmp_path


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    """The plans of the old release, the new one and the newest, by the package in `folder`."""
    return subprocess.run(
        [sys.executable, "-c", PLANS],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": ""},
    )


def test_a_release_is_a_line_and_a_changed_switch_is_another(copied: Path) -> None:
    release, switch, reviewed = ([line.strip() for line in lines] for lines in steps())
    table = copied / "kvcore" / "engines" / "vllm" / "releases.toml"

    text = table.read_text("utf-8")
    listed = text.index("\n]\n", text.index("releases = ["))
    text = f"{text[:listed]}\n  {release[0]}{text[listed:]}"
    table.write_text(text, "utf-8")
    old, new, newest = json.loads(run(copied).stdout)
    assert old[:2] == ["0.33.0", 0.92]
    assert new == ["0.34.0", 0.92, old[2]]
    assert newest == new

    heading, value = switch
    end = text.index("\n\n", text.index(heading))
    changed = f"{text[:end]}\n{value}{text[end:]}"
    table.write_text(re.sub('(?m)^reviewed = ".*"$', reviewed[0], changed), "utf-8")
    old, new, newest = json.loads(run(copied).stdout)
    assert (old[1], new[1], newest[1]) == (0.92, 0.93, 0.93)

    table.write_text(changed.replace(value, value.replace("0.34.0", "0.43.0")), "utf-8")
    stopped = run(copied)
    assert stopped.returncode != 0
    assert "releases.toml: switches gpu_memory_utilization: 0.43.0 is none of the releases" in stopped.stderr


def test_a_release_that_is_not_listed_is_planned_as_the_one_before(copied: Path) -> None:
    old, new, newest = json.loads(run(copied).stdout)
    assert new[:2] == old[:2] == newest[:2]
    assert "engine-version-approximated" in new[2]
