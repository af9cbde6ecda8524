"""The command line for people: models and flags as words, tables, differences, the fewest GPUs, shells and signals."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import kvcore
from kvcore import cli
from kvcore.advice.target import served
from kvcore.cli.completion import script
from kvcore.flags import FLAGS
from kvcore.version import VERSION

ROOT = Path(__file__).parents[1]
MODEL = "Qwen/Qwen3-32B"
REQUEST = {"model": MODEL, "accelerator": "H100-80GB", "tensor_parallel_size": 2, "max_model_len": 32000}
WORDS = (MODEL, "--accelerator", "H100-80GB", "-tp", "2", "--max-model-len", "32k")


@pytest.fixture(autouse=True)
def _english(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    """What a command prints."""
    assert cli.main(words) == status
    return capsys.readouterr().out


def failed(capsys: pytest.CaptureFixture[str], *words: str, status: int = 2) -> str:
    """What a command says on standard error where it fails."""
    assert cli.main(words) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    return captured.err


def test_words_are_the_request_that_they_spell(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said(capsys, "plan", *WORDS, "--format", "json"))
    planned = kvcore.plan(**REQUEST)
    assert planned.cache is not None
    assert (found["verdict"], found["kv"]["tokens"]) == ("fits", planned.cache.tokens)
    assert yaml.safe_load(said(capsys, "plan", *WORDS, "--format", "yaml")) == found


def test_the_answer_stands_first(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "plan", *WORDS).splitlines()
    assert lines[0].startswith("✔ Fits: ")
    assert lines[1].startswith(f"{MODEL} · H100")
    assert any(re.fullmatch(r"  Weights +30\.6 GiB", line) for line in lines)
    assert lines[-1] == "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2 --max-model-len 32000"


def test_it_is_in_the_language_of_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    text = said(capsys, "plan", *WORDS)
    assert "权重" in text
    assert "Weights" not in text


def test_graphs_have_the_name_of_the_platform(capsys: pytest.CaptureFixture[str]) -> None:
    assert "ACL graphs" in said(capsys, "plan", "Qwen/Qwen3-8B", "--accelerator", "Ascend-910B3-64GB")
    assert "CUDA graphs" in said(capsys, "plan", "Qwen/Qwen3-8B", "--accelerator", "H100-80GB")


def test_a_plan_that_fails_names_its_fixes(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "plan", MODEL, "--accelerator", "H100-80GB")
    assert text.startswith("▲ Context too long")
    assert "→ Tensor parallel size 2: serves 7" in text


def test_without_a_card_it_says_which_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "plan", "Qwen/Qwen3-8B")
    assert text.startswith("✔ Fits")
    assert "No accelerator is named: H100 SXM5 80GB (HBM3) is assumed" in text


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--max-model-len=8192"], "max_model_len", 8192),
        (["--max_model_len", "8K"], "max_model_len", 8192),
        (["--length", "8k"], "max_model_len", 8000),
        (["--max-model-len", "4096", "--max-model-len", "8192"], "max_model_len", 8192),
        (["--enforce-eager"], "enforce_eager", True),
        (["--no-enable-prefix-caching"], "enable_prefix_caching", False),
        (["--gpu-memory-util", "0.8"], "gpu_memory_utilization", 0.8),
        (["-cc.cudagraph_mode=PIECEWISE"], "cudagraph_mode", "PIECEWISE"),
        (["--compilation-config", '{"cudagraph_mode": "NONE"}'], "cudagraph_mode", "NONE"),
        (["--kernels-compiled"], "kernels_compiled", True),
        (["--target", "40"], "wanted", 40),
        (["--cudagraph-capture-sizes", "1", "2", "4"], "cudagraph_capture_sizes", (1, 2, 4)),
        (["--surroundings.link", "pcie"], "surroundings.link", "pcie"),
        (["--measured.weights-gib", "61.5"], "measured.weights_gib", 61.5),
        (["--env", "VLLM_USE_V1=1"], "env.VLLM_USE_V1", "1"),
    ],
)
def test_every_way_to_type_a_flag(
    words: list[str], field: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvcore.cli import people
    from kvcore.scenario import value_of

    asked: list[Any] = []
    real = people.plan
    monkeypatch.setattr(people, "plan", lambda scenario: (asked.append(scenario), real(scenario))[1])
    assert cli.main(["plan", MODEL, "--accelerator", "H200-141GB", "--format", "json", *words]) == 0
    assert value_of(asked[0], field) == value


def test_every_flag_of_the_registry_has_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    missing = [
        flag.cli[0]
        for flag in FLAGS.values()
        if flag.cli and flag.name != "model" and flag.cli[0] not in text
    ]
    assert missing == []


def test_a_whole_command_of_the_engine_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    pasted = "--host 0.0.0.0 --port 8000 --served-model-name one two --trust-remote-code --api-key secret"
    assert said(capsys, "plan", *WORDS, *pasted.split()) == said(capsys, "plan", *WORDS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--acelerator", "H100"], "there is no option --acelerator; the nearest one is --accelerator"),
        (["--max-model-len", "much"], "max_model_len cannot be much"),
        (["--accelerator", "H99"], "H99"),
        (["--tensor-parallel-size", "0"], "tensor_parallel_size"),
        (["--hf-overrides", "{broken"], "hf_overrides"),
        (["--env", "A"], "env cannot be A: it must be NAME=VALUE"),
        (["--surroundings.colour", "red"], "no field surroundings.colour"),
    ],
)
def test_what_is_wrong_is_said_with_a_next_step(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in failed(capsys, "plan", MODEL, *words)


def test_an_error_is_a_result_where_json_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", MODEL, "--accelerator", "H100-80GB", "-tp", "3", "--format", "json")
    found = json.loads(said(capsys, *words, status=2))
    assert (found["status"], found["error"]["code"]) == ("error", "heads-not-divisible")


@pytest.mark.parametrize(
    ("words", "asked", "status"),
    [
        (WORDS, "fits", 0),
        ((MODEL, "--accelerator", "L4-24GB"), "starts", 1),
        ((MODEL, "--accelerator", "H100-80GB", "-tp", "3"), "starts", 1),
        ((MODEL, "--accelerator", "H100-80GB", "-tp", "3.5"), "starts", 2),
        ((*WORDS, "--target", "4"), "target", 0),
        ((*WORDS, "--target", "400"), "target", 1),
        ((*WORDS, "--target", "400"), "fits", 0),
        ((MODEL, "--accelerator", "H100-80GB", "--max-model-len", "29824"), "starts", 0),
        ((MODEL, "--accelerator", "H100-80GB", "--max-model-len", "29824"), "fits", 1),
    ],
)
def test_the_exit_status_says_what_was_asked(words: tuple[str, ...], asked: str, status: int) -> None:
    assert cli.main(["plan", *words, "--exit-status", asked]) == status
    if status < 2 and "3" not in words:
        assert cli.main(["plan", *words]) == 0


def test_a_folder_with_a_config_is_planned_by_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = json.loads(kvcore.catalogue.find_model("Qwen/Qwen3-8B").config.text)
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    found = json.loads(said(capsys, "plan", str(tmp_path), "--accelerator", "L4-24GB", "--format", "json"))
    assert found["verdict"] == "fits"
    assert found["kv"]["groups"][0]["layers"] == 2


def test_a_request_takes_flags_above_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text(json.dumps({**REQUEST, "id": "mine"}))
    plain = said(capsys, "plan", str(file))
    assert json.loads(plain)["id"] == "mine"
    above = json.loads(said(capsys, "plan", str(file), "--max-num-seqs", "8", "--format", "json"))
    assert (above["id"], above["resolved"]["max_num_seqs"]) == ("mine", 8)
    assert said(capsys, "plan", str(file), "--format", "json") == plain
    assert said(capsys, "plan", str(file), "--format", "table").startswith("✔")


def test_standard_input_is_the_contract(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = set()
    for words in (["plan"], ["plan", "-"], ["plan", "--jsonl"], ["plan", "-", "--format", "json"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(REQUEST).encode())))
        answers.add(said(capsys, *words))
    assert len(answers) == 1


def test_two_requests_differ_with_the_why(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = []
    for number, more in enumerate(({}, {"kv_cache_dtype": "fp8"})):
        names.append(tmp_path / f"{number}.json")
        names[-1].write_text(json.dumps({**REQUEST, **more}))
    one, other = map(str, names)
    found = json.loads(said(capsys, "diff", one, other, "--format", "json"))
    assert found["asked"] == [{"name": "kv_cache_dtype", "before": "auto", "after": "fp8"}]
    plans = [kvcore.plan(**{**REQUEST, **more}) for more in ({}, {"kv_cache_dtype": "fp8"})]
    (tokens,) = (row for row in found["kv"] if row["name"] == "tokens")
    assert [tokens["before"], tokens["after"]] == [
        planned.cache and planned.cache.tokens for planned in plans
    ]
    assert "kv_cache_dtype  auto  →  fp8" in said(capsys, "diff", one, other)
    assert said(capsys, "diff", one, one).endswith("Nothing differs.\n")


def test_two_releases_differ_by_what_their_plans_differ(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said(capsys, "diff", "0.11.0", "0.33.0", *WORDS, "--format", "json"))
    one, other = (kvcore.plan(**REQUEST, engine_version=name) for name in ("0.11.0", "0.33.0"))
    assert {"name": "gpu_memory_utilization", "before": 0.9, "after": 0.92} in found["resolved"]
    parts = {row["name"]: row for row in found["per_rank_gib"]}
    assert one.memory is not None
    assert other.memory is not None
    for name, row in parts.items():
        values = (getattr(planned.memory, name).value / 2**30 for planned in (one, other))
        assert [row["before"], row["after"]] == pytest.approx(list(values), abs=1e-5)
    why = {cause["name"]: cause for cause in parts["activations"]["why"]}
    assert why["sampling"]["before"] > why["sampling"]["after"]
    assert "Defaults that moved" in said(capsys, "diff", "0.11.0", "0.33.0", *WORDS)


@pytest.mark.parametrize(
    "words", [("0.11.0", "0.33.0"), ("0.11.0", "none", MODEL), ("absent.json", "other.json")]
)
def test_what_cannot_be_held_against_each_other(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert failed(capsys, "diff", *words)


def test_the_fewest_gpus_are_the_fewest(capsys: pytest.CaptureFixture[str]) -> None:
    """Each row serves the target, and no layout of one machine with fewer of that card does: planned one by one."""
    cards = ["H100-80GB", "H200-141GB", "L40S-48GB", "RTX-4090-24GB"]
    words = ("fit", MODEL, "--target", "40", "--length", "16k", "--accelerators", ",".join(cards))
    rows = json.loads(said(capsys, *words, "--format", "json"))["fits"]
    assert {row["accelerator"] for row in rows} == set(cards)
    for row in rows:
        assert row["serves"] >= 40
        best = None
        for size in (1, 2, 4, 8):
            planned = kvcore.plan(
                model=MODEL,
                accelerator=row["accelerator"],
                tensor_parallel_size=size,
                max_model_len=16000,
                wanted=40,
            )
            target = served(planned)
            if target is not None and target.per_replica:
                gpus = size * -(-40 // target.per_replica)
                best = gpus if best is None else min(best, gpus)
        assert row["gpus"] == best
    assert [row["gpus"] for row in rows] == sorted(row["gpus"] for row in rows)
    table = said(capsys, *words)
    assert table.startswith(f"Fewest: {rows[0]['gpus']} × {rows[0]['accelerator']}, ")


def test_all_cards_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    short = said(capsys, "fit", "Qwen/Qwen3-8B", "--length", "8K")
    every = said(capsys, "fit", "Qwen/Qwen3-8B", "--length", "8K", "--all")
    assert "more cards: --all" in short
    assert len(every.splitlines()) > len(short.splitlines())
    own = json.loads(said(capsys, "fit", MODEL, "--accelerators", "H100-80GB", "--format", "json"))
    same = said(capsys, "fit", MODEL, "--accelerators", "H100-80GB", "--format", "json", "--length", "40960")
    assert own == json.loads(same)  # as long as the model allows
    assert cli.main(["fit", MODEL, "--length", "8K", "--accelerators", "RTX-3070-8GB"]) == 1


def test_a_log_is_held_against_another_card(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "start.log"
    log.write_text(
        "INFO 07-01 [utils.py:1] non-default args: {'model': 'Qwen/Qwen3-8B', 'max_model_len': 8192}\n"
        "INFO 07-01 [gpu_worker.py:298] Available KV cache memory: 52.80 GiB\n"
    )
    found = json.loads(said(capsys, "log", str(log), "--accelerator", "h100 80gb", "--json"))
    planned = kvcore.plan(model="Qwen/Qwen3-8B", max_model_len=8192, accelerator="H100-80GB")
    assert planned.memory is not None
    (kv,) = (part for part in found["comparison"]["parts"] if part["part"] == "available_kv")
    assert kv["predicted_gib"] == pytest.approx(planned.memory.available_kv.value / 2**30, abs=1e-4)
    assert found["request"]["accelerator"] == "H100-80GB"
    assert "H99" in failed(capsys, "log", str(log), "--accelerator", "H99")


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"kvcore {VERSION}\n"
    assert kvcore.__version__ == VERSION


# -- shells and signals


def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvcore", *words], cwd=ROOT, capture_output=True, encoding="utf-8", check=False,
        **options,
    )  # fmt: skip


def test_bash_completes_commands_flags_models_and_cards(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "kvcore.bash"
    file.write_text(said(capsys, "completion", "bash"))

    def completed(*words: str) -> list[str]:
        typed = " ".join(f"'{word}'" for word in ("kvcore", *words))
        line = f'. {file}; COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _kvcore; echo "${{COMPREPLY[@]}}"'
        return subprocess.check_output(["bash", "-c", line], encoding="utf-8", cwd=tmp_path).split()

    assert completed("comp") == ["completion"]
    assert set(completed("")) >= {"plan", "fit", "diff", "log", "check", "api", "--version"}
    assert completed("plan", "--max-model") == ["--max-model-len"]
    assert "Qwen/Qwen3-32B" in completed("plan", "Qwen/Qwen3-3")
    assert "H100-80GB" in completed("plan", MODEL, "--accelerator", "H100")
    assert completed("plan", MODEL, "--format", "y") == ["yaml"]
    assert completed("plan", MODEL, "--dtype", "bf") == ["bfloat16"]
    assert completed("completion", "f") == ["fish"]
    (tmp_path / "sarif-of-mine.yaml").write_text("a: 1\n")
    assert completed("check", "--format", "s") == ["sarif"], "values of an option, and no files"
    assert completed("check", "sa") == ["sarif-of-mine.yaml"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_their_script(
    shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = said(capsys, "completion", shell)
    assert all(word in text for word in ("--tensor-parallel-size", "H100-80GB")) or shell == "fish"
    assert "tensor-parallel-size" in text
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not on this machine: its script is only looked at")
    file = tmp_path / "script"
    file.write_text(text)
    subprocess.run([shell, "-n", str(file)], check=True)


def test_a_script_names_every_command() -> None:
    parsers: dict[str, Any] = {}
    cli.parser_of("", parsers, with_flags=True)
    assert set(parsers) == set(cli.COMMANDS)
    for shell in ("bash", "zsh", "fish"):
        assert all(name in script(shell, parsers) for name in parsers)


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m kvcore catalogue | head -1; echo ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    assert ran.stderr == ""
    assert ran.stdout.splitlines()[0].startswith("models (")
    assert ran.stdout.splitlines()[1] == "141"


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
@pytest.mark.parametrize("words", [("plan", "--jsonl"), ("sweep", "--processes", "2")])
def test_ctrl_c_ends_it_without_a_stack(words: tuple[str, ...]) -> None:
    # A shell has what it runs behind a "&" ignore Ctrl+C, and a process inherits that unless its parent listens.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "kvcore", *words], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, encoding="utf-8", start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, inherited)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(REQUEST) + "\n")
    process.stdin.flush()
    assert process.stdout.readline()  # it is at work, or waits for the next request
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT
    assert errors == ""


def test_a_port_that_is_taken_is_said() -> None:
    import socket

    pytest.importorskip("uvicorn")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = run("api", "--port", port)
    assert ran.returncode == 2
    assert f"nothing can listen at 127.0.0.1:{port}: Address already in use" in ran.stderr
    assert "--port" in ran.stderr


def test_the_api_says_where_it_answers() -> None:
    httpx2 = pytest.importorskip("httpx2")
    pytest.importorskip("uvicorn")
    process = subprocess.Popen(
        [sys.executable, "-m", "kvcore", "api", "--port", "0"], cwd=ROOT, stderr=subprocess.PIPE, encoding="utf-8"
    )  # fmt: skip
    try:
        assert process.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/api/openapi\.json", process.stderr.readline())
        assert found is not None
        assert httpx2.get(found[0], timeout=300).json()["info"]["version"] == VERSION
    finally:
        process.terminate()
        process.wait(timeout=60)


def test_a_wait_is_told_to_a_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvcore.cli import streams

    streams.waiting("asking")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    streams.waiting("asking")
    assert capsys.readouterr().err == "kvcore: asking ...\n"
