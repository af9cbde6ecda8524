"""`kvcore check` in the formats of reviews, on the structure that their readers ask for."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from kvcore.cli import main
from kvcore.contract.deployed import Checks, Reported, Tight, check_files, check_lines, reported
from kvcore.contract.reviews import github_lines, junit, sarif
from kvcore.manifests.files import Source

GOOD = "vllm serve Qwen/Qwen3-8B --max-model-len 8192\n"
BAD = "# one\nvllm serve Qwen/Qwen3-8B --max-model-len 40960\n"
OPEN = "vllm serve $MODEL --max-model-len 8192\n"
BROKEN = "a: [1\nb: 2\n"
SOURCES = [
    Source("good.sh", GOOD),
    Source("bad one.sh", BAD),
    Source("open.sh", OPEN),
    Source("b.yaml", BROKEN),
]


@pytest.fixture(scope="module")
def found() -> Checks:
    return check_files(SOURCES, "L4-24GB")


@pytest.fixture(scope="module")
def rows(found: Checks) -> tuple[Reported, ...]:
    return reported(found, "https://plan.example.org")


def log(found: Checks, rows: tuple[Reported, ...]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(sarif(found, rows))
    return made


def test_sarif_has_the_required_properties_of_2_1_0(found: Checks, rows: tuple[Reported, ...]) -> None:
    made = log(found, rows)
    assert made["version"] == "2.1.0"
    (run,) = made["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"]
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(set(ids)) == len(ids)
    for result in run["results"]:
        assert result["message"]["text"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert ids[result["ruleIndex"]] == result["ruleId"]
        for location in result["locations"]:
            place = location["physicalLocation"]
            assert re.fullmatch(r"[A-Za-z0-9._~/%-]+", place["artifactLocation"]["uri"])
            assert place["region"]["startLine"] >= 1
        for fix in result.get("fixes", ()):
            assert fix["artifactChanges"], "a fix changes at least one file"
            for change in fix["artifactChanges"]:
                assert change["replacements"]


def test_the_fix_of_sarif_makes_the_patched_file(found: Checks, rows: tuple[Reported, ...]) -> None:
    (fixed,) = [one for one in log(found, rows)["runs"][0]["results"] if "fixes" in one]
    (change,) = fixed["fixes"][0]["artifactChanges"]
    assert change["artifactLocation"]["uri"] == "bad%20one.sh"
    lines = BAD.splitlines(keepends=True)
    for each in reversed(change["replacements"]):
        region = each["deletedRegion"]
        lines[region["startLine"] - 1 : region["endLine"] - 1] = [each["insertedContent"]["text"]]
    (patch,) = [one.patch for one in rows if one.patch is not None]
    assert "".join(lines) == patch.text


def test_every_verdict_but_a_start_is_an_error(found: Checks, rows: tuple[Reported, ...]) -> None:
    levels = {
        one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]: one["level"]
        for one in log(found, rows)["runs"][0]["results"]
    }
    assert levels == {"bad%20one.sh": "error", "open.sh": "error", "b.yaml": "error"}


def test_annotations_stand_on_one_line_each_and_escape_what_is_theirs() -> None:
    name = "a,b:c%\n.sh"
    checks = check_files([Source(name, "vllm serve nobody/x%0A::error::y --max-model-len 8192")], "L4-24GB")
    lines = list(github_lines(checks, reported(checks)))
    assert lines
    for line in lines:
        assert line.startswith("::error file=a%2Cb%3Ac%25 .sh,line=1,title=")
        assert "\n" not in line
        assert "%0A" not in line
        assert line.count("::error") <= 2


def test_junit_counts_what_it_lists(found: Checks, rows: tuple[Reported, ...]) -> None:
    tree = ElementTree.fromstring(junit(found, rows))
    (suite,) = tree
    cases = list(suite)
    assert [len(suite.get(name, "")) > 0 for name in ("tests", "failures", "errors")] == [True] * 3
    assert int(suite.get("tests", "0")) == len(cases) == 4
    assert int(suite.get("failures", "0")) == len(suite.findall(".//failure")) == 1
    assert int(suite.get("errors", "0")) == len(suite.findall(".//error")) == 2


def test_the_link_leads_to_the_plan_of_the_page(found: Checks, rows: tuple[Reported, ...]) -> None:
    links = {one.checked.workload.place.file: one.link for one in rows}
    assert links["open.sh"] is None
    link = links["bad one.sh"]
    assert link is not None
    assert link.startswith("https://plan.example.org/?v=")
    assert "max_model_len=40960" in link
    assert all(one.link is None for one in reported(found, ""))


def test_a_table_with_colours_and_without(found: Checks, rows: tuple[Reported, ...]) -> None:
    plain = list(check_lines(found, rows))
    assert plain[0].split()[:3] == ["verdict", "workload", "model"]
    assert plain[-1] == "1 starts  1 does-not-start  1 cannot-be-known"
    assert not any("\033" in line for line in plain)
    assert sum("\033[" in line for line in check_lines(found, rows, colours=True)) == 3


def test_a_strangers_file_sends_nothing_to_the_terminal() -> None:
    text = "vllm serve Qwen/Qwen3-8B --served-model-name '\033]0;x\007' --max-model-len 40960\n"
    checks = check_files([Source("\033[2J.sh", text)], "L4-24GB")
    assert not any("\033" in line or "\007" in line for line in check_lines(checks))


FORMATS = (
    ("json", '{"status"'), ("sarif", '{"$schema"'), ("github", "::error"), ("junit", "<?xml"), ("text", "verdict"),
    ("patch", "--- a/"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "begin"), FORMATS)
def test_formats_of_the_command(
    name: str, begin: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "bad.sh").write_text(BAD, "utf-8")
    (tmp_path / "good.sh").write_text(GOOD, "utf-8")
    pattern = str(tmp_path / "b*.sh")
    assert main(["check", pattern, pattern, "--accelerator", "L4-24GB", "--format", name]) == 1
    out = capsys.readouterr().out
    assert out.startswith(begin)
    assert "good.sh" not in out


TIGHT = (
    "docker run --gpus all --ipc=host vllm/vllm-openai:v0.27.1 --model Qwen/Qwen3-32B "
    "--max-model-len 32768 --gpu-memory-utilization 0.92 -tp {}\n"
)
"""Two cards of 48 GB hold 61 GiB of weights and leave the last steps of the start little."""


def test_a_tight_start_is_told_in_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checks = check_files([Source("t.sh", TIGHT.format(2))], "L40S-48GB")
    rows = reported(checks)
    assert checks.status == 0
    assert "starts (tight)" in next(line for line in check_lines(checks, rows) if "t.sh:" in line)
    said = "may run out of memory"
    assert any(line.startswith("  warning: ") and said in line for line in check_lines(checks, rows))
    (line,) = github_lines(checks, rows)
    assert line.startswith("::warning file=t.sh,line=1,")
    (result,) = log(checks, rows)["runs"][0]["results"]
    assert (result["level"], result["ruleId"]) == ("warning", "check-tight-last-steps")
    (tmp_path / "t.sh").write_text(TIGHT.format(2), "utf-8")
    assert main(["check", str(tmp_path / "t.sh"), "--accelerator", "L40S-48GB", "--json"]) == 0
    (workload,) = json.loads(capsys.readouterr().out)["workloads"]
    assert [one["code"] for one in workload["warnings"]][-1] == "check-tight-last-steps"


def test_fixes_say_how_they_start_and_that_one_is_enough() -> None:
    checks = check_files([Source("t.sh", TIGHT.format(1))], "L40S-48GB")
    lines = [line.strip() for line in check_lines(checks, reported(checks))]
    at = lines.index("any one of these fixes is enough:")
    assert lines[at + 1].startswith("fix: tensor_parallel_size = 2 (starts, tight: ")
    assert lines[at + 2] == "fix: tensor_parallel_size = 2 and gpu_memory_utilization = 0.91 (starts)"


def test_where_tight_counts_as_no_start_the_patch_is_surer() -> None:
    checks = check_files([Source("t.sh", TIGHT.format(1))], "L40S-48GB", Tight.DOES_NOT_START)
    (row,) = reported(checks)
    assert all(fix.verdict.value == "fits" for fix in row.fixes)
    assert row.patch is not None
    assert [(name, after) for name, _, after in row.patch.changes] == [
        ("tensor_parallel_size", 2),
        ("gpu_memory_utilization", 0.91),
    ]
