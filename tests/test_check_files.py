"""`kvcore check`: what each workload comes to, and the exit status that a pipeline acts on."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvcore.cli import main
from kvcore.contract.deployed import Outcome, Tight, check_files, check_lines
from kvcore.manifests.files import Source

SERVE = "vllm serve Qwen/Qwen3-32B --max-model-len 8192 -tp {}\n"
POD = (
    "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n"
    "  nodeSelector: {{nvidia.com/gpu.product: {}}}\n  containers:\n"
    "  - name: c\n    image: vllm/vllm-openai:v0.30.0\n"
    "    args: [--model=Qwen/Qwen3-32B, --max-model-len=8192, -tp={}]\n"
    "    resources: {{limits: {{nvidia.com/gpu: {}}}}}\n"
)


def outcome(text: str, card: str | None = None, name: str = "f") -> Outcome:
    (one,) = check_files([Source(name, text)], card).checked
    return one.outcome


def codes(text: str, card: str | None = None) -> list[str]:
    (one,) = check_files([Source("f", text)], card).checked
    return [reason.code for reason in one.reasons]


def test_one_start_that_holds_and_one_that_does_not() -> None:
    assert outcome(SERVE.format(2), "H100-80GB") is Outcome.STARTS
    assert outcome(SERVE.format(1), "L4-24GB") is Outcome.DOES_NOT_START
    assert codes(SERVE.format(1), "L4-24GB") == ["check-weights-do-not-fit"]


def test_the_card_of_the_file_is_the_card_of_the_plan() -> None:
    assert outcome(POD.format("NVIDIA-L40S", 2, 2)) is Outcome.STARTS
    assert outcome(POD.format("NVIDIA-L4", 1, 1)) is Outcome.DOES_NOT_START


def test_fewer_gpus_than_ranks_do_not_start() -> None:
    assert codes(POD.format("NVIDIA-L40S", 4, 2)) == ["check-too-few-gpus"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("vllm serve $MODEL --max-model-len 8192", "check-undefined"),
        ("vllm serve Qwen/Qwen3-32B -tp $TP", "check-undefined"),
        ("vllm serve nobody/has-this-model --max-model-len 8192", "unknown-model"),
        ("trtllm-serve Qwen/Qwen3-32B --tp_size 2", "check-engine-not-planned"),
        ("vllm serve Qwen/Qwen3-32B --max-num-seqs none-of-that", "check-unusable"),
    ],
)
def test_what_cannot_be_known_never_looks_like_a_start(text: str, code: str) -> None:
    assert outcome(text, "H100-80GB") is Outcome.CANNOT_BE_KNOWN
    assert code in codes(text, "H100-80GB")


def test_no_card_no_verdict() -> None:
    assert codes(SERVE.format(2)) == ["check-no-card"]
    assert codes(POD.format("unheard-of-gpu-9", 2, 2)) == ["check-card-unknown"]


def test_cards_of_which_some_do_not_hold_leave_it_open() -> None:
    task = (
        "resources: {accelerators: {H100: 1, L4: 1}}\nrun: vllm serve Qwen/Qwen3-32B --max-model-len 4096\n"
    )
    (one,) = check_files([Source("f", task)]).checked
    assert one.outcome is Outcome.CANNOT_BE_KNOWN
    assert one.reasons[0].code == "check-depends-on-card"


def test_tight_counts_as_is_asked() -> None:
    tight = (
        "docker run vllm/vllm-openai:v0.10.0 --model google/gemma-3-27b-it --max-model-len 32768 "
        "--max-num-seqs 4 "
        "--gpu-memory-utilization 0.95"
    )
    found = [check_files([Source("f", tight)], "A100-80GB", how).checked[0] for how in Tight]
    assert {one.plans[0].verdict.value for one in found} == {"tight"}
    assert [one.outcome.value for one in found] == [how.value for how in Tight]


def run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, *more: str
) -> tuple[int, dict[str, Any]]:
    path = tmp_path / "run.sh"
    path.write_text(text, "utf-8")
    status = main(["check", str(path), "--json", *more])
    return status, json.loads(capsys.readouterr().out)


def test_exit_statuses(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    card = ("--accelerator", "H100-80GB")
    assert run(capsys, tmp_path, SERVE.format(2), *card)[0] == 0
    assert run(capsys, tmp_path, SERVE.format(1) * 2, "--accelerator", "L4-24GB")[0] == 1
    assert run(capsys, tmp_path, "echo nothing here", *card)[0] == 2
    assert run(capsys, tmp_path, SERVE.format("$TP"), *card)[0] == 3


def test_the_json_of_a_workload(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, found = run(capsys, tmp_path, SERVE.format(1), "--accelerator", "L4-24GB")
    (one,) = found["workloads"]
    assert (one["model"], one["engine"], one["line"]) == ("Qwen/Qwen3-32B", "vllm", 1)
    assert one["request"] == {"max_model_len": 8192, "tensor_parallel_size": 1}
    assert one["verdict"] == "does-not-start"
    assert one["plans"][0]["verdict"] == "weights-do-not-fit"
    assert one["fixes"], "a larger tensor parallel size starts"
    assert [reason["code"] for reason in one["assumed"]] == ["check-release-assumed"]


def test_a_folder_and_standard_input(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "pod.yaml").write_text(POD.format("NVIDIA-L40S", 2, 2), "utf-8")
    (tmp_path / "notes.md").write_text(SERVE.format(1), "utf-8")
    assert main(["check", str(tmp_path)]) == 0
    assert "starts" in capsys.readouterr().out


def test_lines_for_people_hide_secrets_and_name_places() -> None:
    text = "export HF_TOKEN=hidden VLLM_USE_V1=1\n" + SERVE.format(1).strip() + " --api-key hidden"
    lines = "\n".join(check_lines(check_files([Source("f.sh", text)], "L4-24GB")))
    assert "hidden" not in lines
    assert "f.sh:2" in lines


def test_the_patches_of_a_folder_are_taken_over_and_all_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text("vllm serve Qwen/Qwen3-8B --max-model-len 40960\n", "utf-8")
    asked = ["check", ".", "--accelerator", "L4-24GB"]
    assert main([*asked, "--format", "patch"]) == 1
    diff = capsys.readouterr().out
    subprocess.run(["patch", "-p1"], input=diff, encoding="utf-8", check=True, capture_output=True)
    assert main(asked) == 0
