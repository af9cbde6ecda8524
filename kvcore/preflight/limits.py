"""What a file says twice, or says of its pod, against what the engine needs: contradictions and risks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kvcore.base.errors import Notice, notice
from kvcore.base.numbers import gib_text
from kvcore.base.units import GIB, rounded_gib
from kvcore.catalogue.accelerators import Accelerator, Vendor
from kvcore.flags import FLAGS
from kvcore.host.limits import container_findings
from kvcore.manifests.files import Source, read_files
from kvcore.manifests.workload import Workload
from kvcore.planning import Plan, Tightness

LARGEST_TEXT: Final = 1 << 18
"""Characters of the longest text that is looked at as a deployment file among logs."""
DEFAULT_SHM_GIB: Final = 64 / 1024
"""/dev/shm of a container that says nothing of it.

Source: Docker's reference of `docker container run`, --shm-size; containerd's default mounts (oci/mounts.go)."""
_PLAIN_CONTAINERS: Final = (
    "compose", "shell", "systemd", "Pod", "Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job",
    "LeaderWorkerSet",
)  # fmt: skip
"""Kinds of files whose containers get no /dev/shm from a chart or an operator."""
_PLAIN_RUNS: Final = ("compose", "shell", "systemd")
"""Those of them that are the whole truth about their container."""
MAY_FAIL: Final = "limit-tight"
ABOVE_MODEL: Final = "check-above-model-length"
_LENGTHENING: Final = ("hf_overrides", "rope_scaling", "rope_theta", "hf_config_path")
_RAY: Final = "ray"
_VENDORS: Final[Mapping[str, Vendor]] = {
    "nvidia": Vendor.NVIDIA,
    "amd": Vendor.AMD,
    "intel": Vendor.INTEL,
    "huawei": Vendor.HUAWEI,
}
_RESOURCES: Final[Mapping[str, str]] = {
    "nvidia.com": "nvidia", "amd.com": "amd", "habana.ai": "intel", "gpu.intel.com": "intel", "huawei.com": "huawei",
}  # fmt: skip


def too_few_gpus(one: Workload, of_machine: int | None) -> Iterator[Notice]:
    """The contradiction between the GPUs of a pod and the ranks of a replica; `of_machine`: GPUs of its machine.

    Ranks that a cluster of Ray places may be on other pods.
    """
    gpus = one.gpus if isinstance(one.gpus, int) else of_machine
    if gpus is None or _ranks(one) is None:
        return
    tensor, pipeline = _sizes(one)
    is_spread = (one.kind == "production-stack" and pipeline > 1) or _executor(one) == _RAY
    if tensor * pipeline > gpus * one.nodes and not is_spread:
        yield notice(
            "check-too-few-gpus", "tensor_parallel_size", ranks=tensor * pipeline, tensor=tensor,
            pipeline=pipeline, gpus=gpus * one.nodes,
        )  # fmt: skip


def _sizes(one: Workload) -> tuple[int, int]:
    sizes = [one.planned.get(name) for name in ("tensor_parallel_size", "pipeline_parallel_size")]
    tensor, pipeline = (size if isinstance(size, int) else 1 for size in sizes)
    return tensor, pipeline


def _ranks(one: Workload) -> int | None:
    """Ranks of a replica, where the file states a size and no variable hides one."""
    names = ("tensor_parallel_size", "pipeline_parallel_size")
    if all(one.planned.get(name) is None for name in names):
        return None
    if any(name in one.request and one.request[name] is None for name in names):
        return None
    tensor, pipeline = _sizes(one)
    return tensor * pipeline


def _executor(one: Workload) -> str:
    return str(one.extra.get("distributed_executor_backend") or "")


def contradictions(one: Workload, cards: Sequence[Accelerator]) -> Iterator[Notice]:
    """An image that is built for cards of another vendor than the node has."""
    built_for = _VENDORS.get(one.image_vendor or "")
    if built_for is None:
        return
    if cards and all(card.vendor not in (built_for, Vendor.OTHER) for card in cards):
        yield notice(
            "check-image-vendor", image=one.image or "", vendor=built_for.value, card=cards[0].id,
            other=cards[0].vendor.value,
        )  # fmt: skip
        return
    resource = next((name for name in _RESOURCES if (one.card or "").startswith(name)), None)
    if not cards and resource is not None and _VENDORS[_RESOURCES[resource]] is not built_for:
        yield notice(
            "check-image-vendor", image=one.image or "", vendor=built_for.value, card=one.card or "",
            other=_RESOURCES[resource],
        )  # fmt: skip


def risks(one: Workload, of_machine: int | None) -> Iterator[Notice]:
    """What may break a start, or is not what the file means: twice given, idle cards, the default of /dev/shm."""
    seen: dict[str, str] = {}
    for given in one.arguments:
        before = seen.get(given.name)
        if before is not None and before != given.value and given.name in FLAGS and given.option:
            yield notice("check-given-twice", given.name, first=before, last=given.value)
        seen[given.name] = given.value
    ranks = _ranks(one) or 1
    gpus = one.gpus if isinstance(one.gpus, int) else None
    replicas = one.planned.get("data_parallel_size")
    used = ranks * (replicas if isinstance(replicas, int) else 1)
    is_plain = one.nodes == 1 and not any(name.startswith("data_parallel") for name in one.extra)
    if gpus is not None and gpus > used and is_plain and _executor(one) != _RAY:
        yield notice("check-idle-gpus", "tensor_parallel_size", gpus=gpus, used=used)
    shared = shared_memory_gib(one)
    if ranks > 1 and shared is not None and shared <= DEFAULT_SHM_GIB:
        yield notice("check-small-shm", ranks=ranks, shm=f"{shared * 1024:,.0f}")
    if of_machine is not None and gpus is not None and gpus > of_machine:
        yield notice("check-machine-too-small", gpus=gpus, machine=one.card or "", count=of_machine)


def shared_memory_of_text_gib(text: str) -> float | None:
    """GiB of /dev/shm of the one container that a deployment file starts; None for every other text.

    Example:
        >>> command = "command: --model Qwen/Qwen3-8B --tensor-parallel-size 2"
        >>> shared_memory_of_text_gib(f"services: {{one: {{image: 'vllm/vllm-openai:v0.27.1', {command}}}}}")
        0.0625
        >>> shared_memory_of_text_gib("INFO 04-14 09:02:00 [gpu_worker.py:456] Available KV cache memory: 52.80 GiB")
    """
    if len(text) > LARGEST_TEXT:
        return None
    found = read_files((Source("pasted", text),)).workloads
    return shared_memory_gib(found[0]) if len(found) == 1 else None


def shared_memory_gib(one: Workload) -> float | None:
    """GiB of /dev/shm that a container has; None where it is the host's, or something else may set it."""
    if one.shm_gib is not None:
        return one.shm_gib
    is_default = one.image is not None and one.kind in _PLAIN_CONTAINERS and not one.shares_ipc
    return DEFAULT_SHM_GIB if is_default else None


def container_limits(one: Workload, planned: Plan) -> tuple[list[Notice], list[Notice]]:
    """What ends a start for the memory limit and the /dev/shm of its container, and what may.

    A Deployment may get its /dev/shm from elsewhere: what nothing states ends no start in Kubernetes.
    """
    shared = one.shm_gib if one.kind not in _PLAIN_RUNS else shared_memory_gib(one)
    limit = one.host_memory_gib if one.nodes == 1 else None
    found = container_findings(planned.scenario, planned.resolved, planned.host, limit, shared)
    sure = [said for said in found if said.code != MAY_FAIL]
    return sure, [said for said in found if said.code == MAY_FAIL]


def above_model_length(one: Workload, planned: Plan) -> Iterator[Notice]:
    """A context beyond the model's own, which the engine refuses unless a variable allows it.

    Overrides of the model's configuration that no plan reads may lengthen it: with them nothing is said.

    Source: vllm/config/model.py:_get_and_verify_max_len, vllm/envs.py (0.10.1.1, 0.29.0).
    """
    said = next((said for said in planned.notices if said.code == "max-model-len-above-model"), None)
    variable = planned.resolved.engine.facts.launch.longer_variable
    is_allowed = one.environment.get(variable, "0").strip().lower() in ("1", "true")
    if said is not None and not is_allowed and not any(name in one.extra for name in _LENGTHENING):
        yield notice(
            ABOVE_MODEL,
            "max_model_len",
            asked=said.params["asked"],
            derived=said.params["derived"],
            variable=variable,
        )


def weight_risks(one: Workload, planned: Plan) -> Iterator[Notice]:
    """A memory limit below the weights that pass through it: their pages count for the pod, and are read again.

    Source: vllm/model_executor/model_loader/weight_utils.py:safetensors_weights_iterator maps the files (0.33.0);
    Linux's Documentation/admin-guide/cgroup-v2.rst: page cache is charged to the group that reads it first.
    """
    ranks = planned.scenario.parallel.ranks_per_replica
    weights = planned.loaded_weights.value * ranks
    if one.host_memory_gib is not None and one.nodes == 1 and weights > one.host_memory_gib * GIB:
        yield notice(
            "check-memory-weights",
            limit=f"{one.host_memory_gib:,.1f}",
            weights=f"{rounded_gib(weights):,.1f}",
        )


def tight_start(planned: Plan) -> Notice:
    """Why the start of a tight plan may fail, and by how much."""
    card, memory, cache = planned.accelerator.id, planned.memory, planned.cache
    if planned.tight_by is Tightness.AFTER_POOL and memory is not None:
        room = max(0.0, memory.unused.value - memory.after_pool.value)
        return notice(
            "check-tight-last-steps", "gpu_memory_utilization", card=card, room=gib_text(room),
            short=gib_text(max(0.0, -memory.least_room)),
        )  # fmt: skip
    if planned.tight_by is Tightness.MISSING:
        return notice(
            "check-tight-missing", "max_model_len", card=card, missing=gib_text(planned.missing_bytes)
        )
    if planned.tight_by is Tightness.SPARE and cache is not None:
        spare = max(0.0, (planned.available_kv_bytes or 0) - cache.needed_bytes)
        return notice("check-tight-spare", "max_model_len", card=card, spare=gib_text(spare))
    return notice("check-tight", card=card)
