"""`kvcore check` and the folder it runs in: the `.env` beside a Compose file, and paths that `git apply` takes."""

import subprocess
from pathlib import Path

import pytest

from kvcore.cli import main

COMPOSE = """services:
  q:
    image: vllm/vllm-openai:v0.30.0
    command: --model Qwen/Qwen3-8B --max-model-len ${LEN:-40960}
"""
CARD = ("--accelerator", "L4-24GB")


def test_compose_reads_the_env_beside_a_named_file_and_no_other_variable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEN", "4096")
    file = tmp_path / "compose.yaml"
    file.write_text(COMPOSE, "utf-8")
    assert main(["check", str(file), *CARD]) == 1
    assert "max_model_len=40960" in capsys.readouterr().out
    (tmp_path / ".env").write_text("LEN=8192\n", "utf-8")
    assert main(["check", str(file), *CARD]) == 0


def test_the_patch_of_an_absolute_path_applies_in_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "deploy"
    below.mkdir()
    (below / "compose.yaml").write_text(COMPOSE, "utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["check", str(below / "compose.yaml"), *CARD]) == 1
    assert f"in {tmp_path}" in capsys.readouterr().out.splitlines()[-1]
    assert main(["check", str(below / "compose.yaml"), *CARD, "--format", "patch"]) == 1
    diff = capsys.readouterr().out
    assert diff.startswith("--- a/deploy/compose.yaml\n")
    subprocess.run(["git", "apply"], input=diff.encode(), cwd=tmp_path, check=True)
    assert main(["check", "deploy/compose.yaml", *CARD]) == 0


def test_the_fix_of_shared_memory_is_in_the_words_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text(COMPOSE.replace("${LEN:-40960}", "8192 -tp 2"), "utf-8")
    assert main(["check", str(file), *CARD]) == 1
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith("fix: shm_size: ") for line in lines)
    assert not any(".;" in line for line in lines)


def test_the_help_names_every_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "exit status: 0 every engine starts; 1 one does not" in said
    assert "never from the environment of this command" in said


def test_a_default_that_stands_for_an_unset_variable_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text(COMPOSE, "utf-8")
    main(["check", str(file), *CARD])
    assert "  assumed: nothing sets LEN: its default is taken, 40960\n" in capsys.readouterr().out
    file.write_text(COMPOSE.replace("--model", "--api-key ${API_KEY:-abcdef} --model"), "utf-8")
    main(["check", str(file), *CARD, "--json"])
    said = capsys.readouterr().out
    assert "nothing sets LEN" in said
    assert "nothing sets API_KEY" not in said
    (tmp_path / ".env").write_text("LEN=8192\n", "utf-8")
    main(["check", str(file), *CARD])
    assert "nothing sets" not in capsys.readouterr().out
