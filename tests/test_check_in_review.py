"""Where reviews happen: the steps of the action, the hook, the job and the admission check of the documents."""

import json
import os
import re
import subprocess
import sys
import threading
from http.client import HTTPConnection
from http.server import HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from kvcore.cli import main

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "check-in-review.md").read_text("utf-8")
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
POD = """apiVersion: v1
kind: Pod
metadata: {name: "llm"}
spec:
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}
  containers:
  - name: c
    image: vllm/vllm-openai:v0.30.0
    args: ["--model=Qwen/Qwen3-8B", "--max-model-len=%s"]
    resources: {limits: {nvidia.com/gpu: 1}}
"""
GOOD, BAD = POD % 8192, POD % 40960


def block(language: str, at: int) -> str:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)[at]


def step(name: str) -> dict[str, Any]:
    (found,) = [one for one in ACTION["runs"]["steps"] if one["name"] == name]
    made: dict[str, Any] = found
    return made


@pytest.fixture
def runner(tmp_path: Path) -> SimpleNamespace:
    """A runner's folders, with `kvcore` on the path and a `gh` that writes down what it is asked for."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (
        ("kvcore", f'exec "{sys.executable}" -m kvcore "$@"'),
        ("gh", 'printf "%s\\n" "$@" >> "$RUNNER_TEMP/gh.txt"'),
    ):
        (tools / name).write_text(f"#!/bin/bash\n{text}\n", "utf-8")
        (tools / name).chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    env = {
        "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"), "GITHUB_OUTPUT": str(tmp_path / "output.txt"),
        "GITHUB_ACTION_PATH": str(ROOT), "HOME": str(tmp_path),
    }  # fmt: skip
    return SimpleNamespace(env=env, work=work, temp=tmp_path)


def run(runner: SimpleNamespace, name: str, **given: str) -> subprocess.CompletedProcess[str]:
    """A step of the action as GitHub runs one: bash with -e and pipefail."""
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step(name)["run"]],
        cwd=runner.work, env=runner.env | given, capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip


CHECK = {
    "CHECK_FILES": "deploy/\n", "CHECK_ACCELERATOR": "", "CHECK_TARGET": "", "CHECK_TIGHT": "starts",
    "KVPLANNER_URL": "https://plan.example.org",
}  # fmt: skip


def test_the_steps_annotate_summarize_comment_and_fail(runner: SimpleNamespace) -> None:
    (runner.work / "deploy").mkdir()
    (runner.work / "deploy" / "pod.yaml").write_text(BAD, "utf-8")
    done = run(runner, "Check", **CHECK)
    assert done.returncode == 0, done.stderr
    assert "::error file=deploy/pod.yaml,line=7," in done.stdout
    summary = (runner.temp / "summary.md").read_text("utf-8")
    assert summary.startswith("<!-- kvcore check -->")
    assert "+    args: " in summary
    assert "<https://plan.example.org/?v=" in summary
    assert (runner.temp / "output.txt").read_text("utf-8") == "status=1\n"
    assert run(runner, "Comment", PULL_REQUEST="7", GH_TOKEN="x", GH_REPO="a/b").returncode == 0
    assert (runner.temp / "gh.txt").read_text("utf-8").split()[:3] == ["pr", "comment", "7"]
    assert run(runner, "Verdict", STATUS="1").returncode == 1
    assert run(runner, "Verdict", STATUS="0").returncode == 0


def test_inputs_are_never_part_of_a_script(runner: SimpleNamespace) -> None:
    assert not any("${{" in one["run"] for one in ACTION["runs"]["steps"])
    evil = {"CHECK_FILES": "x; touch hacked\n$(touch hacked)", "CHECK_ACCELERATOR": "$(touch hacked)"}
    run(runner, "Check", **CHECK | evil)
    assert not (runner.work / "hacked").exists()


def test_the_action_installs_its_own_checkout() -> None:
    assert step("Install")["run"].endswith('install --quiet "$GITHUB_ACTION_PATH"')
    given = set(re.findall(r"inputs\.(\w+)", (ROOT / "action.yml").read_text("utf-8")))
    assert given == set(ACTION["inputs"])


def test_no_name_ends_the_fence_of_a_comment(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(BAD.replace('"llm"', '"```` <img src=x> [a](b)"'), "utf-8")
    main(["check", str(path), "--format", "markdown"])
    lines = capsys.readouterr().out.splitlines()
    fence = lines[2].removesuffix("text")
    assert set(fence) == {"`"}
    assert len(fence) > 4
    assert lines.count(fence) == 1, "it opens once and closes once"
    assert not any("<img" in line for line in lines[lines.index(fence) :])


def test_the_hook_passes_files_without_an_engine_and_stops_others(tmp_path: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    assert re.search(hook["files"], "deploy/pod.yaml")
    assert not re.search(hook["files"], "README.md")
    program, *words = hook["entry"].split()
    assert program == "kvcore"
    for text, status in (("a: 1\n", 0), (GOOD, 0), (BAD, 1)):
        (tmp_path / "f.yaml").write_text(text, "utf-8")
        assert main([*words, str(tmp_path / "f.yaml")]) == status


def test_the_job_of_ten_lines_fails_on_a_file_that_does_not_start(runner: SimpleNamespace) -> None:
    text = block("yaml", 0)
    assert len(text.strip().splitlines()) <= 10
    steps = yaml.safe_load(text)["jobs"]["check"]["steps"]
    assert steps[1]["run"].startswith("pip install ./"), "nothing of a registry"
    (runner.work / "deploy").mkdir()
    for manifest, status in ((GOOD, 0), (BAD, 1)):
        (runner.work / "deploy" / "pod.yaml").write_text(manifest, "utf-8")
        command = steps[2]["run"].replace(" --accelerator H100-80GB", "")
        done = subprocess.run(
            ["bash", "-e", "-c", command], cwd=runner.work, env=runner.env, capture_output=True, check=False
        )
        assert done.returncode == status


def admission() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "admission"}
    exec(block("python", 0), names)
    return names


def review(text: str) -> dict[str, Any]:
    return {"request": {"uid": "u1", "object": yaml.safe_load(text)}}


def test_the_admission_check_refuses_what_cannot_start_and_nothing_else() -> None:
    answer = admission()["answer"]
    assert answer(review(GOOD))["response"] == {"uid": "u1", "allowed": True}
    refused = answer(review(BAD))["response"]
    assert refused["allowed"] is False
    assert "40,960" in refused["status"]["message"]
    unknown = BAD.replace("NVIDIA-L4", "nobody-knows")
    assert answer(review(unknown))["response"]["allowed"] is True


def test_the_admission_check_answers_over_http() -> None:
    server = HTTPServer(("127.0.0.1", 0), admission()["Handler"])
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request("POST", "/", json.dumps(review(BAD)))
    answer = json.loads(connection.getresponse().read())
    thread.join()
    server.server_close()
    assert (answer["kind"], answer["response"]["allowed"]) == ("AdmissionReview", False)
