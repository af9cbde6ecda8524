"""Kinds of model platforms whose pods stand apart from their models: OME and llmaz.

Source: sgl-project/ome (ome.io v1beta1: engineConfig, decoderConfig, runner, leader, worker); InftyAI/llmaz
(llmaz.io OpenModel; inference.llmaz.io Playground, Service).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kvcore.manifests.arguments import Given
from kvcore.manifests.build import Facts, built
from kvcore.manifests.kserve import merged, uri_model
from kvcore.manifests.nodes import Map, Row, at, line_of, mapping, rows, text_of
from kvcore.manifests.pods import Found, Input, environment, pod
from kvcore.manifests.programs import Launch
from kvcore.manifests.workload import Workload, whole

_ROLES: Final = (("engineConfig", ""), ("decoderConfig", "-decoder"))
_NODES: Final = ("leader", "worker")
_BACKENDS: Final = {"vllm": "vllm", "sglang": "sglang"}


def is_ome(document: Map) -> bool:
    """Whether a document is one of OME."""
    return str(document.get("apiVersion") or "").startswith("ome.io/")


def ome_runtime(document: Map, given: Input) -> Iterator[Found]:
    """The engines of a serving runtime of OME: one for each role, with leader and workers as nodes of one."""
    spec = mapping(document.get("spec"))
    name = str(text_of(at(document, "metadata.name")) or "runtime")
    for key, role in _ROLES:
        part = spec.get(key)
        if isinstance(part, Map):
            yield from _ome_role(part, f"{name}{role}", document, given)
    if not any(isinstance(spec.get(key), Map) for key, _ in _ROLES):
        facts = Facts(name=name, kind=str(document.get("kind")), file=given.file, line=line_of(document))
        yield from pod(spec, facts, given)


def _ome_role(part: Map, name: str, document: Map, given: Input) -> Iterator[Found]:
    leader = next((mapping(part[key]) for key in _NODES if isinstance(part.get(key), Map)), part)
    workers = whole(text_of(at(part, "worker.size"))) or (1 if isinstance(part.get("worker"), Map) else 0)
    runner = leader.get("runner")
    for key in _NODES:
        given.take(at(part, f"{key}.runner"))
    if not isinstance(runner, Map):
        return
    given.take(runner)
    template = merged(part, leader)
    template["containers"] = Row([runner, *rows(leader.get("containers"))])
    facts = Facts(
        name=name, kind=str(document.get("kind")), file=given.file, line=line_of(runner),
        nodes=workers + 1 if leader is not part else 1,
    )  # fmt: skip
    yield from pod(template, facts, given)


def llmaz(document: Map, given: Input) -> Iterator[Found]:
    """The engine of a Playground with its backend, or the pods of a Service, that serves the model it claims."""
    spec = mapping(document.get("spec"))
    name = str(text_of(at(document, "metadata.name")) or "playground")
    claimed = [
        text_of(at(spec, "modelClaim.modelName")),
        *(text_of(at(one, "name")) for one in rows(at(spec, "modelClaims.models"))),
    ]
    models = [
        given.named[("OpenModel", str(one))] for one in claimed if ("OpenModel", str(one)) in given.named
    ]
    facts = Facts(name=name, kind=str(document.get("kind")), file=given.file, line=line_of(document))
    facts.replicas = whole(text_of(spec.get("replicas")))
    if models:
        _of_model(models[0], facts)
    template = mapping(spec.get("workloadTemplate"))
    if template:
        facts.nodes = whole(text_of(template.get("size"))) or 1
        outer = {"LWS_GROUP_SIZE": str(facts.nodes)}
        found = [
            one
            for part in ("leaderTemplate", "workerTemplate")
            for one in pod(mapping(at(template, f"{part}.spec")), facts, given, outer=outer)
        ]
        yield from [one for one in found if isinstance(one, Workload)][:1]
        return
    backend = mapping(spec.get("backendRuntimeConfig"))
    engine = _BACKENDS.get(str(text_of(backend.get("backendName")) or text_of(backend.get("name")) or "vllm"))
    if engine is None or facts.model is None:
        return
    words = tuple(str(word) for word in rows(backend.get("args")) if isinstance(word, str))
    version = text_of(backend.get("version"))
    facts.release = str(version).removeprefix("v") if version is not None else None
    launch = Launch(engine=engine, words=words, variables=environment(backend, given), line=facts.line)
    yield built(launch, facts, given.scripts)


def _of_model(model: Map, facts: Facts) -> None:
    """What a claimed model says: where it comes from, and the cards of its first flavour."""
    source = at(model, "spec.source")
    named = text_of(at(source, "modelHub.modelID")) or uri_model(text_of(at(source, "uri")))
    facts.model = str(named) if named is not None else None
    flavors = rows(at(model, "spec.inferenceConfig.flavors"))
    if not flavors:
        return
    for key, value in mapping(at(flavors[0], "limits")).items():
        if "gpu" in key:
            facts.gpus = whole(text_of(value))
    params = mapping(at(flavors[0], "params"))
    for key, value in params.items():
        if key.upper() in ("TP", "TENSOR_PARALLEL_SIZE", "PP", "PIPELINE_PARALLEL_SIZE"):
            field = "tensor_parallel_size" if "T" in key.upper()[:1] else "pipeline_parallel_size"
            facts.before = (*facts.before, Given(name=field, value=str(value), word=key, line=line_of(value)))
    machine = next((value for key, value in params.items() if "instance" in key.lower()), None)
    selector = mapping(at(flavors[0], "nodeSelector"))
    card = text_of(machine) or next(filter(None, map(text_of, selector.values())), None)
    facts.card = str(card) if card is not None else facts.card
