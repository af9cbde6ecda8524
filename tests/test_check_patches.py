"""Patches of `kvcore check`: the file as it is with one setting changed, which then starts."""

import subprocess
from pathlib import Path

import pytest

from kvcore.manifests.files import Source
from kvcore.preflight.outcome import Outcome, check_files
from kvcore.preflight.patches import Patch, fixes_of, patch_of, unified
from kvcore.preflight.secrets import secret_values, shows_secret

POD = """apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-L40S}
  containers:
  - name: c
    image: vllm/vllm-openai:v0.30.0   # pinned
    args:
    - --model=Qwen/Qwen3-32B
    - --max-model-len=8192  # long enough
    - -tp=4
    resources:
      requests: {nvidia.com/gpu: 2}
      limits: {nvidia.com/gpu: 2}
"""
FLOW = """apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  template:
    spec:
      nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}
      containers:
      - name: c
        image: vllm/vllm-openai:v0.30.0
        args: ["--model", "Qwen/Qwen3-8B", "--gpu-memory-utilization", "0.90"]
        resources: {limits: {nvidia.com/gpu: 1}}
"""
SPLIT = """kind: Pod
apiVersion: v1
spec:
  containers:
  - image: vllm/vllm-openai:v0.30.0
    command: [vllm, serve]
    args:
      - Qwen/Qwen3-8B
      - --max-model-len
      - "40960"   # the whole context
"""
SHELL = "#!/bin/bash\n# serves\nvllm serve Qwen/Qwen3-8B \\\n  --port 8000 \\\n  --enable-prefix-caching\n"
DOCKER = (
    "docker run --gpus '\"device=0\"' --ipc=host -p 8000:8000 vllm/vllm-openai:v0.30.0 "
    "--model Qwen/Qwen3-8B --max-model-len 40960\n"
)
COMPOSE = """services:
  q:
    image: vllm/vllm-openai:v0.30.0
    # the command
    command: >
      --model Qwen/Qwen3-8B
      --max-model-len ${LEN:-40960}
"""
COMPOSE_LINE = """services:
  q:
    image: vllm/vllm-openai:v0.30.0
    command: --model Qwen/Qwen3-8B --served-model-name q   # one line
"""
VALUES = """servingEngineSpec:
  modelSpec:
  - name: q
    repository: vllm/vllm-openai
    tag: v0.30.0
    modelURL: Qwen/Qwen3-8B
    requestGPU: 1
    vllmConfig:
      maxModelLen: 40960   # all of it
      tensorParallelSize: 1
"""
VALUES_WITHOUT = VALUES.replace("      maxModelLen: 40960   # all of it\n", "")
KEYWORD = "from vllm import LLM\nllm = LLM(model='Qwen/Qwen3-8B', max_model_len=40_960)  # all\n"
KEYWORDS = (
    "from vllm import LLM\n\nllm = LLM(\n    model='Qwen/Qwen3-8B',\n    dtype='bfloat16',  # as it is\n)\n"
)
CONFIG = "model: Qwen/Qwen3-8B\nmax-model-len: 40960  # tokens\ndtype: bfloat16\n"
UNIT = "[Service]\nEnvironment=LEN=40960\nExecStart=/opt/vllm/bin/vllm serve Qwen/Qwen3-8B --max-model-len $LEN\n"
FILES = {
    "flow.yaml": FLOW, "split.yaml": SPLIT, "run.sh": SHELL, "docker.sh": DOCKER, "compose.yaml": COMPOSE,
    "line.yaml": COMPOSE_LINE, "values.yaml": VALUES, "without.yaml": VALUES_WITHOUT, "keyword.py": KEYWORD,
    "keywords.py": KEYWORDS, "config.yaml": CONFIG, "q.service": UNIT,
}  # fmt: skip


def patched(text: str, name: str = "f.sh", card: str | None = "L4-24GB", **more: str) -> Patch | None:
    sources = [Source(name, text), *(Source(key, held) for key, held in more.items())]
    found = check_files(sources, card)
    return patch_of(found, found.checked[0])


@pytest.mark.parametrize("name", FILES)
def test_the_patched_file_starts_and_differs_in_the_lines_of_the_diff_alone(
    name: str, tmp_path: Path
) -> None:
    text = FILES[name]
    found = patched(text, name)
    assert found is not None
    (again,) = check_files([Source(name, found.text)], "L4-24GB").checked
    assert again.outcome is Outcome.STARTS
    before, after = text.splitlines(), found.text.splitlines()
    assert len(set(before) - set(after)) <= 1, "one line is replaced at most"
    assert all("#" not in line or any(line.split("#")[1] in one for one in after) for line in before)
    (tmp_path / name).write_text(text, "utf-8")
    applied = subprocess.run(
        ["patch", "-p1", "--fuzz=0"],
        input=found.diff.encode(),
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert applied.returncode == 0, applied.stdout
    assert (tmp_path / name).read_text("utf-8") == found.text


def test_the_value_of_a_variable_is_changed_where_it_is_set() -> None:
    found = patched(COMPOSE, "compose.yaml", "L4-24GB", **{".env": "LEN=40960\nPORT=8000\n"})
    assert found is not None
    assert found.file == ".env"
    assert found.text == f"LEN={found.changes[0][2]}\nPORT=8000\n"


def test_too_few_gpus_are_mended_by_the_flag_or_else_by_requests_and_limits() -> None:
    found = patched(POD, "pod.yaml", None)
    assert found is not None
    assert found.changes == (("tensor_parallel_size", 4, 2),)
    larger = POD.replace("8192", "40960").replace("32B", "235B-A22B").replace("-tp=4", "-tp=8")
    more = patched(larger.replace("L40S", "H100-80GB-HBM3"), "pod.yaml", None)
    assert more is not None
    assert more.changes == (("gpus", 2, 8),)
    assert more.text.count("nvidia.com/gpu: 8") == 2


def test_a_start_gets_no_patch_and_neither_does_what_no_line_mends() -> None:
    assert patched("vllm serve Qwen/Qwen3-8B --max-model-len 4096") is None
    assert patched("vllm serve deepseek-ai/DeepSeek-R1 --max-model-len 4096", card="L4-24GB") is None
    assert patched("vllm serve $MODEL --max-model-len 4096") is None


def test_a_shared_anchor_is_not_changed_for_one_of_two_workloads() -> None:
    text = (
        "x-flags: &flags ['--model', 'Qwen/Qwen3-8B', '--max-model-len', '40960']\nservices:\n"
        "  a: {image: 'vllm/vllm-openai:v0.30.0', command: *flags}\n"
        "  b: {image: 'vllm/vllm-openai:v0.30.0', command: *flags}\n"
    )
    assert patched(text, "compose.yaml") is None


SECRET = "hf_0123456789abcdef"


@pytest.mark.parametrize(
    "text",
    [
        f"export HF_TOKEN={SECRET}\nvllm serve Qwen/Qwen3-8B --max-model-len 40960\n",
        f"docker run -e HF_TOKEN={SECRET} vllm/vllm-openai:v0.30.0 --model Qwen/Qwen3-8B --max-model-len 40960\n",
        "vllm serve Qwen/Qwen3-8B --api-key plainword1 --max-model-len 40960\n",
        "env:\n- name: MY_API_KEY\n  value: plainword1\nrun: vllm serve Qwen/Qwen3-8B --max-model-len 40960\n",
    ],
)
def test_no_patch_shows_a_secret(text: str) -> None:
    found = patched(text, "f.yaml" if text.startswith("env") else "f.sh")
    assert found is None or ("plainword1" not in found.diff and SECRET not in found.diff)
    assert shows_secret(text.split("\n")[2 if text.startswith("env") else 0], secret_values(text))


def test_what_is_no_secret() -> None:
    text = "key: nvidia.com/gpu\nHF_TOKEN: ${HF_TOKEN}\nmax_tokens: 8192\nsecretKeyRef: {key: token-name}\n"
    assert secret_values(text) == frozenset()


def test_a_diff_without_a_last_newline() -> None:
    assert unified("a", "x 1", "x 2") == "\n".join(
        ("--- a/a", "+++ b/a", "@@ -1 +1 @@", "-x 1", "\\ No newline at end of file", "+x 2",
         "\\ No newline at end of file", "")
    )  # fmt: skip


RUN = (
    "docker run --gpus all {shm}vllm/vllm-openai:v0.33.0 --model Qwen/Qwen3-32B --max-model-len 16384 -tp 2\n"
)
SERVICE = """services:
  q:
    image: vllm/vllm-openai:v0.33.0
{more}    command: --model Qwen/Qwen3-32B --max-model-len 16384 -tp 2 --kv-offloading-size 64
"""


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("run.sh", RUN.format(shm="--shm-size 32m "), "--shm-size 2g "),
        ("run.sh", RUN.format(shm=""), "docker run --shm-size 2g --gpus all"),
        ("compose.yaml", SERVICE.format(more=""), "\n    shm_size: 65gb\n"),
        ("compose.yaml", SERVICE.format(more="    shm_size: 10gb\n"), "\n    shm_size: 65g\n"),
        (
            "compose.yaml",
            SERVICE.format(more="    shm_size: 10gb\n    mem_limit: 20g\n"),
            "\n    mem_limit: 87g\n",
        ),
    ],
)
def test_a_container_too_small_is_made_larger_and_no_flag_is_touched(name: str, text: str, said: str) -> None:
    found = check_files([Source(name, text)], "H100-80GB")
    assert found.checked[0].outcome is Outcome.DOES_NOT_START
    assert {fix.field for fix in fixes_of(found.checked[0])} <= {"shm_gib", "host_memory_gib"}
    patch = patch_of(found, found.checked[0])
    assert patch is not None
    assert said in patch.text
    assert "16384" in patch.text
    (again,) = check_files([Source(name, patch.text)], "H100-80GB").checked
    assert again.outcome is Outcome.STARTS


SGLANG = "python3 -m sglang.launch_server --model-path {model} {more}\n"


@pytest.mark.parametrize(
    ("model", "more", "card", "said"),
    [
        ("Qwen/Qwen3-8B", "--tp 1 --mem-fraction-static 0.5", "L4-24GB", "--tp 2 --mem-fraction-static 0.5"),
        ("Qwen/Qwen3-8B", "--context-length 131072", "H100-80GB", "--context-length 40960"),
        ("Qwen/Qwen3-32B", "--port 80", "H100-80GB", "--port 80"),
    ],
)
def test_sglang_is_mended_by_its_own_arguments(model: str, more: str, card: str, said: str) -> None:
    text = SGLANG.format(model=model, more=more)
    found = check_files([Source("run.sh", text)], card)
    patch = patch_of(found, found.checked[0])
    after = text if patch is None else patch.text
    assert said in after
    assert not any(
        word in after for word in ("max-model-len", "gpu-memory-utilization", "tensor-parallel-size")
    )
    (again,) = check_files([Source("run.sh", after)], card).checked
    assert again.outcome is Outcome.STARTS


def test_a_context_beyond_the_models_own_is_refused_unless_a_variable_allows_it() -> None:
    text = "vllm serve Qwen/Qwen3-8B --max-model-len 131072\n"
    found = check_files([Source("run.sh", text)], "H100-80GB")
    assert [said.code for said in found.checked[0].reasons] == ["check-above-model-length"]
    patch = patch_of(found, found.checked[0])
    assert patch is not None
    assert patch.text == text.replace("131072", "40960")
    for allowed in ("VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 " + text, text.replace("\n", " --rope-theta 5000000\n")):
        (one,) = check_files([Source("run.sh", allowed)], "H100-80GB").checked
        assert one.outcome is Outcome.STARTS
