"""Documents of Kubernetes by their kind: controllers with pods, and the kinds of operators that serve models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from kvcore.manifests import kserve, operators, platforms, ray
from kvcore.manifests.build import Facts
from kvcore.manifests.images import image_of, split_image
from kvcore.manifests.nodes import Map, Row, at, line_of, mapping, owners_of, rows, text_of, walk
from kvcore.manifests.nodes import document as parsed
from kvcore.manifests.pods import Found, Input, pod
from kvcore.manifests.workload import Workload, whole

Reader = Callable[[Map, Input], Iterator[Found]]

_TEMPLATES: Final = ("spec.template.spec", "spec.jobTemplate.spec.template.spec", "spec.podTemplate.spec",
                     "spec.predictor.podSpec", "spec.podSpec", "template.spec")  # fmt: skip


def workloads(document: Map, given: Input) -> Iterator[Found]:
    """What one document starts."""
    kind = str(text_of(document.get("kind")) or "")
    if kind == "List":
        for one in rows(document.get("items")):
            if isinstance(one, Map):
                yield from workloads(one, given)
        return
    reader = _KINDS.get(kind)
    if platforms.is_ome(document):
        reader = platforms.ome_runtime if "Runtime" in kind else None
    elif "llmaz.io" in str(document.get("apiVersion")):
        reader = platforms.llmaz if kind in ("Playground", "Service") else None
    if reader is not None:
        yield from reader(document, given)
    elif kind == "Pod":
        yield from pod(mapping(document.get("spec")), _facts(document, given), given)
    elif kind not in _NONE or "knative" in str(document.get("apiVersion")):
        yield from controller(document, given)


def _facts(document: Map, given: Input) -> Facts:
    name = text_of(at(document, "metadata.name")) or text_of(at(document, "metadata.generateName"))
    return Facts(
        name=str(name) if name is not None else None,
        kind=str(document.get("kind")),
        file=given.file,
        line=line_of(document),
    )


def controller(document: Map, given: Input) -> Iterator[Found]:
    """What the pods of a Deployment, a Job, or another controller of one pod template start."""
    facts = _facts(document, given)
    facts.replicas = whole(text_of(at(document, "spec.replicas")))
    template = next((found for path in _TEMPLATES if isinstance(found := at(document, path), Map)), None)
    if template is not None and isinstance(template.get("containers"), Row):
        yield from _of_set(template, facts, given)
        return
    if (str(document.get("kind")), str(at(document, "metadata.name"))) in given.used:
        return
    found = list(pods_anywhere(document, facts, given))
    if not found and given.anywhere is not None:
        found = [_named(one, facts) for one in given.anywhere(document, given)]
    yield from found


def _named(found: Found, facts: Facts) -> Found:
    """What was found in a document under the document's name."""
    from msgspec.structs import replace as changed

    return (
        changed(found, name=facts.name or found.name, kind=facts.kind)
        if isinstance(found, Workload)
        else found
    )


def _of_set(template: Map, facts: Facts, given: Input) -> Iterator[Found]:
    """The pods of one template; a set whose engine spans its pods is one engine."""
    for found in pod(template, facts, given):
        if isinstance(found, Workload) and found.nodes > 1 and facts.kind == "StatefulSet":
            found = _one_engine(found, facts.replicas)
        yield found


def _one_engine(found: Workload, pods: int | None) -> Workload:
    from msgspec.structs import replace as changed

    return changed(found, replicas=max(1, (pods or found.nodes) // found.nodes))


def pods_anywhere(document: Map, facts: Facts, given: Input) -> Iterator[Found]:
    """The pods anywhere in a document of a kind that has several: roles, replicas, steps."""
    named = facts.name
    for key, node in walk(document):
        if not isinstance(node, Map):
            continue
        containers = node.get("containers")
        if not isinstance(containers, Row) or not all(isinstance(one, Map) for one in containers):
            continue
        if any(id(one) in given.taken for one in containers):
            continue
        role = _role_of(document, node)
        name = f"{named}-{role}" if named and role else role or named or key
        replicas = _replicas_of(document, node)
        found = pod(
            node,
            replace(facts, name=name, replicas=replicas if replicas is not None else facts.replicas),
            given,
        )
        is_cluster = any("headGroupSpec" in one for one in (document, *owners_of(document, node)))
        yield from (ray.over_nodes(one) if is_cluster and isinstance(one, Workload) else one for one in found)


def _role_of(document: Map, node: Map) -> str | None:
    for owner in owners_of(document, node):
        if owner is document:
            return None
        name = text_of(owner.get("name"))
        if name is not None:
            return str(name)
    return None


def _replicas_of(document: Map, node: Map) -> int | None:
    return next(
        (
            count
            for one in owners_of(document, node)
            if (count := whole(text_of(one.get("replicas")))) is not None
        ),
        None,
    )


def leader_worker_set(document: Map, given: Input) -> Iterator[Found]:
    """The engine of a LeaderWorkerSet: leader and workers are its nodes."""
    facts = _facts(document, given)
    facts.replicas = whole(text_of(at(document, "spec.replicas")))
    size = whole(text_of(at(document, "spec.leaderWorkerTemplate.size"))) or 1
    facts.nodes = size
    outer = {"LWS_GROUP_SIZE": str(size)}
    found: list[Found] = []
    for part in ("leaderTemplate", "workerTemplate"):
        spec = at(document, f"spec.leaderWorkerTemplate.{part}.spec")
        if isinstance(spec, Map):
            found += pod(spec, facts, given, outer=outer)
    engines = [one for one in found if isinstance(one, Workload)]
    yield from engines[:1]
    yield from (one for one in found if not isinstance(one, Workload))


def release_values(document: Map, given: Input) -> Iterator[Found]:
    """The values that an Argo CD Application or a Flux HelmRelease gives to a chart."""
    for path in ("spec.source.helm.valuesObject", "spec.source.helm.values", "spec.values"):
        yield from _values(at(document, path), given)
    for source in rows(at(document, "spec.sources")):
        yield from _values(at(source, "helm.valuesObject"), given)
        yield from _values(at(source, "helm.values"), given)


def kustomization(document: Map, given: Input) -> Iterator[Found]:
    """Patches that stand inside of a Kustomization, with the tags that it gives their images."""
    from msgspec.structs import replace as changed

    tags = {
        str(at(one, "newName") or at(one, "name")): str(at(one, "newTag"))
        for one in rows(document.get("images"))
        if text_of(at(one, "newTag")) is not None
    }
    texts = [at(one, "patch") for one in rows(document.get("patches"))]
    texts += rows(document.get("patchesStrategicMerge"))
    for text in texts:
        node = parsed(str(text), line_of(text) + 1) if isinstance(text, str) and "\n" in text else None
        if not isinstance(node, Map) or "kind" not in node:
            continue
        for found in workloads(node, given):
            name, tag = split_image(found.image or "") if isinstance(found, Workload) else ("", "")
            release = image_of(f"{name}:{tags[name]}").release if not tag and name in tags else None
            is_known = isinstance(found, Workload) and release is not None
            yield changed(found, release=release) if isinstance(found, Workload) and is_known else found


def _values(node: object, given: Input) -> Iterator[Found]:
    if isinstance(node, str):
        node = parsed(str(node), line_of(node) + 1)
    if isinstance(node, Map) and given.structures is not None:
        yield from given.structures(node, given)


_KINDS: Final[Mapping[str, Reader]] = {
    "LeaderWorkerSet": leader_worker_set,
    "InferenceService": kserve.inference_service,
    "LLMInferenceService": kserve.llm_service,
    "DynamoGraphDeployment": operators.dynamo,
    "Workspace": operators.kaito,
    "InferenceSet": operators.kaito,
    "VLLMRuntime": operators.vllm_runtime,
    "Model": operators.kubeai,
    "RayService": ray.ray_service,
    "RayJob": ray.ray_job,
    "Kustomization": kustomization,
    "Application": release_values,
    "HelmRelease": release_values,
}
_NONE: Final = (
    "ConfigMap", "Service", "Secret", "Ingress", "PersistentVolumeClaim", "PersistentVolume", "Namespace",
    "HTTPRoute", "Gateway", "LLMInferenceServiceConfig",
    "HorizontalPodAutoscaler", "ServiceMonitor", "PodMonitor", "Role", "RoleBinding", "ServiceAccount",
    "InferencePool", "ResourceClaimTemplate", "ResourceClaim", "StorageClass",
    "CustomResourceDefinition",
)  # fmt: skip
