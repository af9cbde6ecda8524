"""`docker run`, Compose, Kubernetes and YAML configs pasted in place of a log."""

import pytest
from msgspec.structs import replace

from kvcore.base.errors import LogError
from kvcore.deploy.launch_files import CONTAINERS, Artefact, artefact
from kvcore.evidence.log.arguments import LogFlags
from kvcore.evidence.log.cleaned import clean_log
from kvcore.evidence.log.commands import MAX_CHARACTERS, find_commands
from kvcore.evidence.log.reader import StartupLog, read_log
from kvcore.evidence.recognized import scenario_from_log
from kvcore.planning import plan
from kvcore.scenario import Installation, Surroundings
from kvcore.wire.request import scenario_from_request

MODEL = "Qwen/Qwen3-32B"
COMPOSE = """\
services:
  proxy:
    image: nginx:1.27
    command: ["nginx", "-g", "daemon off;"]
  llm:
    image: registry.example.org/vllm/vllm-openai:v0.19.0
    environment:
      - HF_TOKEN=hf_x
      - VLLM_USE_V2_MODEL_RUNNER=0
    command: >-
      --model Qwen/Qwen3-32B
      --tensor-parallel-size 2
      --max-model-len 32k --swap-space 4
"""
KUBERNETES = """\
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: "vllm/vllm-openai:latest"
        command: ["/bin/sh", "-c"]
        args:
        - |
          vllm serve Qwen/Qwen3-32B --trust-remote-code \\
            --max-model-len 16384 --tensor-parallel-size=4
        env:
        - name: VLLM_USE_V1
          value: "1"
        - name: HF_TOKEN
          valueFrom: {secretKeyRef: {name: hf, key: token}}
"""


def read(text: str) -> StartupLog:
    return read_log(text)


@pytest.mark.parametrize(
    ("text", "flags", "version", "lines"),
    [
        (
            "$ sudo docker run -it --gpus all --name vllm -v ~/vllm:/root/.cache -p8000:8000 -e VLLM_USE_V1=1 \\\n"
            "    --shm-size=8g vllm/vllm-openai:v0.11.0 \\\n"
            f"    --model {MODEL} -tp 2 --max-model-len 8192\n",
            LogFlags(tensor_parallel_size=2, max_model_len=8192),
            "0.11.0",
            [("command", 1)],
        ),
        (  # from 0.13 on the image takes the model first
            f"podman run --rm vllm/vllm-openai:nightly {MODEL} --max-model-len 8192",
            LogFlags(max_model_len=8192),
            None,
            [("command", 1)],
        ),
        (
            f"docker run --rm quay.io/ascend/vllm-ascend:v0.18.0rc1 bash -c 'vllm serve {MODEL} --max-num-seqs 8'",
            LogFlags(max_num_seqs=8),
            "0.18.0rc1",
            [("command", 1)],
        ),
        (
            COMPOSE,
            LogFlags(tensor_parallel_size=2, max_model_len=32000),
            "0.19.0",
            [("manifest", 6)],
        ),
        (
            KUBERNETES,
            LogFlags(tensor_parallel_size=4, max_model_len=16384),
            None,
            [("manifest", 7)],
        ),
        (
            f"# for vllm serve --config\nmodel: {MODEL}\nmax-model-len: 8192\nno-enable-prefix-caching: true\n"
            "cudagraph-capture-sizes: [1, 2]\n",
            LogFlags(max_model_len=8192, enable_prefix_caching=False, cudagraph_capture_sizes=(1, 2)),
            None,
            [("manifest", 2), ("manifest", 3), ("manifest", 4), ("manifest", 5)],
        ),
    ],
)
def test_a_start_in_a_container(
    text: str, flags: LogFlags, version: str | None, lines: list[tuple[str, int]]
) -> None:
    log = read(text)
    assert (log.model, log.flags, log.version) == (MODEL, flags, version)
    assert [(line.kind, line.line_number) for line in log.flag_lines] == lines


def test_environment_that_a_plan_looks_at_is_read_and_no_other() -> None:
    assert read(COMPOSE).env == {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    assert read(KUBERNETES).env == {"VLLM_USE_V1": "1"}
    exported = read(f"export VLLM_USE_V1=0 HF_TOKEN=x\nvllm serve {MODEL} --max-model-len 4096")
    assert exported.env == {"VLLM_USE_V1": "0"}


def test_flags_without_use_are_told_with_their_line() -> None:
    assert [dict(notice.params) for notice in read(COMPOSE).notices] == [
        {"line": "6", "flags": "--swap-space 4"}
    ]


ASKED = {
    "h100": {
        "model": MODEL, "accelerator": "H100-80GB", "engine_version": "0.19.0", "tensor_parallel_size": 2,
        "max_model_len": 32768, "gpu_memory_utilization": 0.85, "max_num_seqs": 64, "kv_cache_dtype": "fp8",
        "enable_prefix_caching": False, "cudagraph_capture_sizes": [1, 2, 4], "cudagraph_mode": "FULL",
        "enable_lora": True, "max_loras": 2, "fully_sharded_loras": True, "cpu_offload_gb": 4,
        "limit_mm_per_prompt": {"image": 2}, "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
        "env": {"VLLM_USE_V2_MODEL_RUNNER": "0"},
    },
    "ascend": {
        "model": MODEL, "accelerator": "Ascend-910B3-64GB", "engine": "vllm-ascend", "engine_version": "0.18.0",
        "tensor_parallel_size": 4, "max_model_len": 100_000, "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"},
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", Artefact)
@pytest.mark.parametrize("name", ASKED)
def test_every_artefact_reads_back(kind: Artefact, name: str) -> None:
    asked = scenario_from_request(ASKED[name])
    log = read(artefact(kind, plan(asked)))
    of_the_image = Surroundings(installation=Installation.IMAGE if kind in CONTAINERS else None)
    assert scenario_from_log(log, asked).scenario == replace(asked, surroundings=of_the_image)
    assert log.notices == ()


@pytest.mark.parametrize(
    "text",
    [
        "services:\n  db:\n    image: postgres:17\n    command: postgres -c max_connections=9",
        "model:\n  - a: b\n",
        "image: x\n\tcommand: y",
        "model: " + "[" * 5000,
        "model: !!python/object/apply:os.system [ls]\n? x",
        "command: &a [*a, *a]",
        "args: " + "x" * MAX_CHARACTERS,
        "docker run --rm",
        "docker run --rm postgres:17 --foo bar",
    ],
)
def test_a_text_without_an_engine_has_no_command(text: str) -> None:
    log = clean_log(text)
    assert list(find_commands(log, 0, len(log.text))) == []


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("vllm serve Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("$ vllm serve /models/Qwen3-8B -tp 2", "/models/Qwen3-8B"),
        ("vllm serve gpt2 -tp 2", "gpt2"),
    ],
)
def test_a_command_without_a_long_flag(line: str, model: str) -> None:
    assert read_log(line).model == model


@pytest.mark.parametrize(
    "line", ["vllm serve failed", "use vllm serve org/model for this", "vllm serve a/b works"]
)
def test_prose_about_a_command_is_not_read_as_one(line: str) -> None:
    with pytest.raises(LogError, match="start-up lines"):
        read_log(line)


@pytest.mark.parametrize("kind", [Artefact.COMPOSE, Artefact.KUBERNETES])
def test_a_doubled_dollar_sign_is_one(kind: Artefact) -> None:
    config = dict(
        plan(scenario_from_request({"model": MODEL, "accelerator": "L40S-48GB"})).scenario.config.raw
    )
    start = plan(
        scenario_from_request({"model": "/models/a$b$$c", "config": config, "accelerator": "L40S-48GB"})
    )
    assert read(artefact(kind, start)).model == "/models/a$b$$c"


def test_the_card_of_a_file_is_the_card_of_the_plan() -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nspec:\n  nodeSelector: {nvidia.com/gpu.product: NVIDIA-L40S}\n  containers:\n"
        "  - {name: c, image: 'vllm/vllm-openai:v0.19.0', args: [--model=Qwen/Qwen3-8B, --max-model-len=8192]}\n"
    )
    card = scenario_from_log(read(text)).scenario.accelerator
    assert card is not None
    assert card.id == "L40S-48GB"


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("vllm serve /cache/hub/models--Qwen--Qwen3-8B/snapshots/0123abcd -tp 2", "Qwen/Qwen3-8B"),
        ("vllm serve /models/current --served-model-name Qwen/Qwen3-8B -tp 2", "Qwen/Qwen3-8B"),
        ("uv run vllm serve Qwen/Qwen3-8B -tp 2", "Qwen/Qwen3-8B"),
    ],
)
def test_a_model_by_its_path_or_its_served_name(line: str, model: str) -> None:
    assert scenario_from_log(read(line)).scenario.model == model


def test_of_several_workloads_the_first_is_read_and_said() -> None:
    one = "  {}: {{image: 'vllm/vllm-openai:v0.19.0', command: --model {} --max-num-seqs 2}}\n"
    log = read("services:\n" + one.format("a", "Qwen/Qwen3-8B") + one.format("b", "Qwen/Qwen3-32B"))
    assert log.model == "Qwen/Qwen3-8B"
    assert [notice.code for notice in log.notices] == ["log-several-workloads"]
