"""The commands of the tutorial, the how-tos and the stories: each runs, and prints what stands below it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
BLOCK: Final = re.compile(r"^```bash\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
DOCUMENTS: Final = ("tutorial.md", "how-to-size.md", "how-to-upgrade.md", "command-line.md")


def blocks(document: str) -> list[tuple[str, list[str]]]:
    """The commands of a document, each with the texts that it is to print."""
    found = BLOCK.findall((ROOT / "docs" / document).read_text("utf-8"))
    return [(command, expected.splitlines()) for command, expected in found]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_print_what_stands_below_them(document: str, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "kvcore"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m kvcore "$@"\n')
    program.chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
    ran = blocks(document)
    assert len(ran) >= 4
    for command, expected in ran:
        done = subprocess.run(
            ["bash", "-eu", "-c", command], cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8",
            check=False,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert "Traceback" not in said
        missing = [text for text in expected if text not in said]
        assert missing == [], f"{command}\n{said}"
        may_fail = (
            "context too long" in said.lower() or "does not fit" in said.lower() or "the start failed" in said
        )
        assert done.returncode == 0 or may_fail, f"{command}\n{said}"


def test_ten_stories_take_five_lines_each() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text("utf-8").split("\n## Stories")[1]
    stories = text.split("\n### ")[1:]
    assert len(stories) >= 10
    for story in stories:
        (found,) = BLOCK.findall(story)
        assert 1 <= len(found[0].splitlines()) <= 5, story
        assert "kvcore" in found[0]
