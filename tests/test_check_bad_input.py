"""Input of strangers to `kvcore check`: coded with file and line, bounded, and no secret in any answer."""

import json
import time
from pathlib import Path

import pytest

from kvcore.cli import main
from kvcore.manifests.files import MAX_BYTES, Source, read_files
from kvcore.preflight.outcome import Outcome, check_files

SERVE = "vllm serve Qwen/Qwen3-8B --max-model-len {}\n"
FORMATS = ("text", "json", "patch", "sarif", "github", "junit", "markdown")


def problems(text: str | bytes, name: str = "f.yaml") -> list[tuple[str, str, int]]:
    found = read_files([Source(name, text)]).problems
    return [(one.error.code, one.file, one.line) for one in found]


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("a: 1\nb: &x\n  c: *x\n", "manifest-cyclic", 3),
        ("a: 1\n---\nb: [1,\nc: 2\n", "manifest-not-yaml", 5),
        ("a: " + "[" * 80 + "]" * 80, "manifest-too-deep", 1),
        ("a: 1\n" * 3 + "b:\n" + "- 1\n" * 200_001, "manifest-too-many-values", 199_996),
        ("{{ range .Values.x }}\n- a: {{ . }\n", "manifest-not-yaml", 3),
    ],
)
def test_what_cannot_be_read_names_its_file_and_line(text: str, code: str, line: int) -> None:
    (found,) = problems(text)
    assert found == (code, "f.yaml", line)


def test_ten_megabytes_are_refused_before_they_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "big.yaml"
    path.write_bytes(b"a: 1\n" * (3 << 20))
    assert path.stat().st_size > 10 << 20 > MAX_BYTES
    assert main(["check", str(path), "--json"]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert (problem["code"], problem["file"]) == ("manifest-too-large", str(path))


def test_a_bomb_of_aliases_takes_no_time() -> None:
    rows = ["l0: &l0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"l{at}: &l{at} [{', '.join([f'*l{at - 1}'] * 9)}]" for at in range(1, 20)]
    text = "\n".join((*rows, "services: {a: {image: 'vllm/vllm-openai:v0.30.0', command: *l19}}"))
    start = time.process_time()
    read_files([Source("f.yaml", text)])
    assert time.process_time() - start < 5


def test_a_template_that_is_not_rendered_leaves_its_values_open() -> None:
    text = (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: '{{ .Release.Name }}'}\nspec:\n  template:\n"
        "    spec:\n      containers:\n      - name: c\n        image: vllm/vllm-openai:v0.30.0\n"
        "        args: ['--model', '{{ .Values.model }}', '--max-model-len', '{{ .Values.length }}']\n"
    )
    (one,) = check_files([Source("t.yaml", text)], "L4-24GB").checked
    assert one.outcome is Outcome.CANNOT_BE_KNOWN
    assert {".Values.model", ".Values.length"} <= set(one.workload.undefined)


def test_ten_engines_of_one_file_are_judged_each_at_its_line() -> None:
    text = "".join(SERVE.format(8192 if at % 2 else 40960).replace("\n", " &\n") for at in range(10))
    found = check_files([Source("f.sh", text)], "L4-24GB").checked
    distinct = {one.workload.place.line: one.outcome for one in found}
    assert distinct == {1: Outcome.DOES_NOT_START, 2: Outcome.STARTS}, "equal commands are one engine"
    served = "".join(
        f"vllm serve Qwen/Qwen3-8B --port {8000 + at} --max-model-len {4096 + at}\n" for at in range(10)
    )
    assert len(check_files([Source("f.sh", served)], "L4-24GB").checked) == 10


def test_flags_that_contradict_each_other_are_told() -> None:
    text = SERVE.format(8192).strip() + " --max-model-len 40960\n"
    (one,) = check_files([Source("f.sh", text)], "L4-24GB").checked
    assert one.outcome is Outcome.DOES_NOT_START, "the last of two counts"
    assert [said.code for said in one.warnings] == ["check-given-twice"]


SECRETS = {
    "pod.yaml": (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: c\n"
        "    image: vllm/vllm-openai:v0.30.0\n    env:\n    - name: HF_TOKEN\n      value: hf_hiddenhiddenhidden\n"
        "    - name: VLLM_API_KEY\n      value: topsecretword\n    - name: REDIS\n"
        "      value: redis://me:topsecretword@cache:6379\n"
        "    args: [--model=Qwen/Qwen3-8B, --max-model-len=40960, --api-key=topsecretword]\n"
    ),
    "compose.yaml": (
        "services:\n  a:\n    image: vllm/vllm-openai:v0.30.0\n"
        "    environment: {HUGGING_FACE_HUB_TOKEN: topsecretword}\n"
        "    command: --model Qwen/Qwen3-8B --max-model-len 40960 --api-key topsecretword\n"
    ),
    "run.sh": (
        "export AWS_SECRET_ACCESS_KEY=topsecretword\n"
        "docker run -e HF_TOKEN=hf_hiddenhiddenhidden vllm/vllm-openai:v0.30.0 --model Qwen/Qwen3-8B "
        "--max-model-len 40960 --api-key topsecretword --max-num-seqs nonsense\n"
    ),
    "p.py": (
        "import os\nos.environ['HF_TOKEN'] = 'hf_hiddenhiddenhidden'\nfrom vllm import LLM\n"
        "llm = LLM('Qwen/Qwen3-8B', max_model_len=40960, hf_token='topsecretword')\n"
    ),
    "secret.yaml": (
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {TOKEN: topsecretword}\n---\n"
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: c\n"
        "    image: vllm/vllm-openai:v0.30.0\n    env:\n"
        "    - {name: API_TOKEN, valueFrom: {secretKeyRef: {name: s, key: TOKEN}}}\n"
        "    args: [--model=Qwen/Qwen3-8B, --max-model-len=40960, '--api-key=$(API_TOKEN)']\n"
    ),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_no_secret_is_in_any_answer(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for name, text in SECRETS.items():
        (tmp_path / name).write_text(text, "utf-8")
        main(["check", str(tmp_path / name), "--accelerator", "L4-24GB", "--format", kind])
        said = capsys.readouterr()
        for hidden in ("topsecretword", "hf_hidden"):
            assert hidden not in said.out, (name, kind)
            assert hidden not in said.err + caplog.text
