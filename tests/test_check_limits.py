"""What a file says of its pod against what the engine needs: contradictions end a start, risks are named."""

import pytest

from kvcore.manifests.files import Source
from kvcore.preflight.outcome import Checked, Outcome, check_files
from kvcore.preflight.patches import patch_of

DEPLOYMENT = """apiVersion: apps/v1
kind: Deployment
metadata: {{name: d}}
spec:
  replicas: {replicas}
  template:
    spec:
      nodeSelector: {{nvidia.com/gpu.product: {card}}}
      containers:
      - name: c
        image: {image}
        args: [--model=Qwen/Qwen3-32B, --max-model-len=8192, -tp={size}{more}]
        resources: {{limits: {{nvidia.com/gpu: {gpus}, memory: {memory}}}}}
        volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
      volumes: [{{name: shm, emptyDir: {{medium: Memory, sizeLimit: {shm}}}}}]
"""
USUAL = {
    "replicas": 1, "card": "NVIDIA-H100-80GB-HBM3", "image": "vllm/vllm-openai:v0.33.0", "size": 2, "more": "",
    "gpus": 2, "memory": "256Gi", "shm": "16Gi",
}  # fmt: skip


def checked(target: int | None = None, **said: object) -> Checked:
    text = DEPLOYMENT.format(**{**USUAL, **said})
    (one,) = check_files([Source("d.yaml", text)], target=target).checked
    return one


def reasons(one: Checked) -> list[str]:
    return [said.code for said in one.reasons]


def warnings(one: Checked) -> list[str]:
    return [said.code for said in one.warnings]


def test_nothing_is_said_of_a_file_that_agrees_with_itself() -> None:
    one = checked()
    assert one.outcome is Outcome.STARTS
    assert (reasons(one), warnings(one)) == ([], [])


@pytest.mark.parametrize(
    ("image", "card", "is_wrong"),
    [
        ("vllm/vllm-openai:v0.33.0", "NVIDIA-H100-80GB-HBM3", False),
        ("rocm/vllm:latest", "NVIDIA-H100-80GB-HBM3", True),
        ("vault.habana.ai/gaudi-docker/1.21.0/vllm-gaudi:latest", "NVIDIA-H100-80GB-HBM3", True),
        ("vllm/vllm-openai:v0.33.0", "AMD_Instinct_MI300X_OAM", True),
        ("registry.example.org/team/vllm:v0.33.0", "AMD_Instinct_MI300X_OAM", False),
    ],
)
def test_an_image_for_cards_of_another_vendor(image: str, card: str, is_wrong: bool) -> None:
    one = checked(image=image, card=card)
    assert ("check-image-vendor" in reasons(one)) is is_wrong
    assert (one.outcome is Outcome.DOES_NOT_START) is is_wrong


def test_a_tier_larger_than_shared_memory_and_than_the_pod() -> None:
    tier = ", --kv-offloading-size=64"
    assert reasons(checked(more=tier)) == ["shm-insufficient-for"]
    assert reasons(checked(more=tier, shm="70Gi")) == []
    assert reasons(checked(more=tier, shm="70Gi", memory="32Gi")) == ["limit-below-host-memory"]


def test_weights_left_in_the_host_against_the_limit_of_the_pod() -> None:
    one = checked(more=", --cpu-offload-gb=20", memory="24Gi")
    assert reasons(one) == ["limit-below-host-memory"]
    assert checked(more=", --cpu-offload-gb=20", memory="128Gi").outcome is Outcome.STARTS


def test_risks_are_named_and_end_no_start() -> None:
    one = checked(gpus=4, more=", --max-num-seqs=64, --max-num-seqs=32", memory="32Gi")
    assert one.outcome is Outcome.STARTS
    assert set(warnings(one)) == {"check-idle-gpus", "check-given-twice", "check-memory-weights"}


def test_ranks_that_ray_places_may_be_on_other_pods() -> None:
    assert reasons(checked(size=4)) == ["check-too-few-gpus"]
    assert reasons(checked(size=4, more=", --distributed-executor-backend=ray")) == []


def test_the_shared_memory_of_a_container_that_says_nothing() -> None:
    run = "docker run --gpus 2 {} vllm/vllm-openai:{} --model Qwen/Qwen3-32B -tp 2 --max-model-len 8192"

    def said(option: str, release: str) -> tuple[list[str], list[str]]:
        (one,) = check_files([Source("r.sh", run.format(option, release))], "H100-80GB").checked
        return reasons(one), warnings(one)

    assert said("", "v0.33.0") == (["shm-insufficient-for"], []), "this release looks before it starts"
    assert said("", "v0.11.0") == ([], ["check-small-shm"])
    assert said("--ipc=host", "v0.33.0") == said("--shm-size 8g", "v0.33.0") == ([], [])


def test_a_volume_that_a_patch_of_a_deployment_may_add_ends_no_start() -> None:
    text = DEPLOYMENT.format(**USUAL)
    without = "\n".join(line for line in text.splitlines() if "shm" not in line)
    (one,) = check_files([Source("d.yaml", without)]).checked
    assert one.outcome is Outcome.STARTS
    assert warnings(one) == ["check-small-shm"]


@pytest.mark.parametrize(
    ("said", "field"),
    [({"shm": "64Mi"}, "shm_gib"), ({"shm": "70Gi", "memory": "32Gi"}, "host_memory_gib")],
)
def test_limits_are_mended_where_they_stand(said: dict[str, str], field: str) -> None:
    values = {**USUAL, "more": ", --kv-offloading-size=64" if "memory" in said else "", **said}
    found = check_files([Source("d.yaml", DEPLOYMENT.format(**values))])
    patch = patch_of(found, found.checked[0])
    assert patch is not None
    assert [name for name, _, _ in patch.changes] == [field]
    (again,) = check_files([Source("d.yaml", patch.text)]).checked
    assert again.outcome is Outcome.STARTS


def test_a_target_is_of_all_replicas() -> None:
    alone = checked()
    (planned,) = alone.plans
    assert planned.cache is not None
    room = int(planned.cache.max_concurrency)
    assert checked(target=room).outcome is Outcome.STARTS
    short = checked(target=room + 1)
    assert short.outcome is Outcome.FALLS_SHORT
    assert reasons(short) == ["check-falls-short"]
    assert checked(target=room + 1, replicas=2).outcome is Outcome.STARTS


def test_falling_short_exits_as_a_start_that_fails() -> None:
    text = DEPLOYMENT.format(**USUAL)
    assert check_files([Source("d.yaml", text)], target=100_000).status == 1
    assert check_files([Source("d.yaml", text)], target=1).status == 0
