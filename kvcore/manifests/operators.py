"""Kinds of operators that start engines: NVIDIA Dynamo, KAITO, production-stack, KubeAI."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from kvcore.manifests.arguments import Given
from kvcore.manifests.build import Facts, built, pairs_given
from kvcore.manifests.cards import of_resources
from kvcore.manifests.kserve import uri_model
from kvcore.manifests.nodes import Map, Row, at, line_of, mapping, rows, text_of
from kvcore.manifests.nodes import document as parsed
from kvcore.manifests.pods import Found, Input, environment, pod
from kvcore.manifests.programs import Launch
from kvcore.manifests.workload import Other, Place, size_gib, whole

_DYNAMO_ENGINES: Final = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
_NO_FLAGS: Final = ("modelURL", "hfTokenSecret", "hfTokenName", "enableTool", "toolCallParser", "env", "extraArgs",
             "port", "v0", "v1", "hf_token", "chatTemplate")  # fmt: skip


def dynamo(document: Map, given: Input) -> Iterator[Found]:
    """The engines of a DynamoGraphDeployment; frontends and planners by their role."""
    spec = mapping(document.get("spec"))
    engine = _DYNAMO_ENGINES.get(str(text_of(spec.get("backendFramework")) or "").lower(), "")
    services: list[tuple[str, Map]] = [
        (key, value) for key, value in mapping(spec.get("services")).items() if isinstance(value, Map)
    ]
    services += [
        (str(at(one, "name") or "?"), one) for one in rows(spec.get("components")) if isinstance(one, Map)
    ]
    shared = environment(Map({"env": spec.get("envs") or spec.get("env")}), given)
    for name, service in services:
        kind = str(text_of(service.get("componentType")) or text_of(service.get("type")) or "").lower()
        template = mapping(at(service, "podTemplate.spec")) or _extra_pod(service)
        if kind in ("frontend", "planner", "router", "epp"):
            given.take(*rows(template.get("containers")))
            yield Other(
                name=name,
                role="router" if kind != "planner" else kind,
                place=Place(given.file, line_of(service)),
            )
            continue
        gpus, resource = of_resources(service.get("resources"))
        facts = Facts(
            name=name, kind="DynamoGraphDeployment", file=given.file, line=line_of(service), gpus=gpus, card=resource,
            replicas=whole(text_of(service.get("replicas"))),
            nodes=whole(text_of(at(service, "multinode.nodeCount"))) or 1,
            memory_gib=size_gib(at(service, "resources.limits.memory")),
            shm_gib=size_gib(text_of(at(service, "sharedMemory.size")) or text_of(service.get("sharedMemorySize"))),
        )  # fmt: skip
        yield from _service(
            template, engine, facts, given, {**shared, **environment(_env_of(service), given)}
        )


def _env_of(service: Map) -> Map:
    return Map({"env": service.get("envs")}) if "envs" in service else Map()


def _service(
    template: Map, engine: str, facts: Facts, given: Input, outer: dict[str, str]
) -> Iterator[Found]:
    found = list(pod(template, facts, given, outer=outer))
    if any(not isinstance(one, Other) for one in found) or not engine:
        yield from found
        return
    container = next(iter(rows(template.get("containers"))), Map())
    words = tuple(str(word) for word in rows(at(container, "args")) if isinstance(word, str))
    if words and words[0].startswith("-"):
        yield built(Launch(engine=engine, words=words, line=facts.line), facts, given.scripts)
    else:
        yield from found


def _extra_pod(service: Map) -> Map:
    """A service's pod, its main container as the first of its containers."""
    extra = Map(mapping(service.get("extraPodSpec")))
    main = extra.get("mainContainer")
    if isinstance(main, Map):
        extra["containers"] = Row([main, *rows(extra.get("containers"))])
    return extra


def kaito(document: Map, given: Input) -> Iterator[Found]:
    """The engine of a KAITO Workspace: a preset with vLLM's arguments in a ConfigMap, or a template of its own."""
    top = mapping(at(document, "spec.template")) or document
    inference = mapping(top.get("inference"))
    resource = mapping(top.get("resource"))
    machine = text_of(resource.get("instanceType"))
    count = whole(text_of(resource.get("count")))
    facts = Facts(
        name=str(text_of(at(document, "metadata.name")) or "workspace"), kind=str(document.get("kind")),
        file=given.file, line=line_of(document), card=str(machine) if machine is not None else None,
        nodes=count or 1, replicas=whole(text_of(at(document, "spec.replicas"))),
    )  # fmt: skip
    template = at(inference, "template.spec")
    if isinstance(template, Map):
        yield from pod(template, facts, given)
        return
    preset = text_of(at(inference, "preset.name"))
    if preset is None:
        return
    held = given.config_maps.get(str(inference.get("config")), Map())
    given_flags: tuple[Given, ...] = ()
    for text in held.values():
        node = parsed(str(text), line_of(text)) if isinstance(text, str) else None
        if isinstance(node, Map) and isinstance(node.get("vllm"), Map):
            given_flags = pairs_given(node["vllm"])
    facts.model, facts.before = str(preset), given_flags
    yield built(Launch(engine="vllm", words=(), line=line_of(preset)), facts, given.scripts)


def vllm_runtime(document: Map, given: Input) -> Iterator[Found]:
    """The engine of production-stack's VLLMRuntime."""
    spec = mapping(document.get("spec"))
    model, config, deployed = (mapping(spec.get(key)) for key in ("model", "vllmConfig", "deploymentConfig"))
    resources = mapping(deployed.get("resources"))
    image = text_of(at(deployed, "image.name"))
    flags = [
        pairs_given(Map({key: one for key, one in part.items() if key not in _NO_FLAGS}))
        for part in (model, config)
    ]
    extra = {}
    offload = lmcache_gib(spec.get("lmCacheConfig"))
    if offload is not None:
        extra["lmcache_cpu_gib"] = offload
    facts = Facts(
        name=str(text_of(at(document, "metadata.name")) or "runtime"), kind="VLLMRuntime", file=given.file,
        line=line_of(document), image=str(image) if image is not None else None, model=text_of(model.get("modelURL")),
        gpus=whole(text_of(resources.get("gpu"))), replicas=whole(text_of(deployed.get("replicas"))),
        memory_gib=size_gib(resources.get("memory")), before=(*flags[0], *flags[1]), extra=extra,
        environment={**environment(config, given), **generation(config)},
    )  # fmt: skip
    words = tuple(str(word) for word in rows(config.get("extraArgs")) if isinstance(word, str))
    yield built(Launch(engine="vllm", words=words, line=facts.line), facts, given.scripts)


def lmcache_gib(node: object) -> float | None:
    """The gigabytes of host memory that LMCache takes in production-stack's values; None where it is off."""
    if not isinstance(node, Map) or str(node.get("enabled", "true")).lower() == "false":
        return None
    text = text_of(node.get("cpuOffloadingBufferSize"))
    try:
        size = float(text) if text is not None and len(text) < 20 else 0.0
    except ValueError:
        return None
    return size if 0 < size < math.inf else None


def generation(config: Map) -> dict[str, str]:
    """`v0: 1` and `v1: 1` of production-stack as the variable that the chart sets."""
    if str(config.get("v0", "")).lower() in ("1", "true"):
        return {"VLLM_USE_V1": "0"}
    if str(config.get("v1", "")).lower() in ("1", "true"):
        return {"VLLM_USE_V1": "1"}
    return {}


def kubeai(document: Map, given: Input) -> Iterator[Found]:
    """The engine of a KubeAI Model."""
    yield from kubeai_model(
        str(text_of(at(document, "metadata.name")) or "model"), mapping(document.get("spec")), given
    )


def kubeai_model(name: str, spec: Map, given: Input) -> Iterator[Found]:
    """One model of KubeAI, of its own kind or in the catalog of its chart."""
    engine = str(text_of(spec.get("engine")) or "").lower()
    if engine not in ("vllm", "sglang"):
        if engine:
            yield Other(name=name, role=f"engine {engine}", place=Place(given.file, line_of(spec)))
        return
    profile, _, count = str(text_of(spec.get("resourceProfile")) or "").partition(":")
    low, high = (whole(text_of(spec.get(key))) for key in ("minReplicas", "maxReplicas"))
    facts = Facts(
        name=name, kind="Model", file=given.file, line=line_of(spec), model=uri_model(text_of(spec.get("url"))),
        card=profile if profile != "cpu" and profile else None, gpus=whole(count),
        replicas=whole(text_of(spec.get("replicas"))) or (low if low == high else None),
        image=text_of(spec.get("image")),
    )  # fmt: skip
    words = tuple(str(word) for word in rows(spec.get("args")) if isinstance(word, str))
    launch = Launch(engine=engine, words=words, variables=environment(spec, given), line=line_of(spec))
    yield built(launch, facts, given.scripts)
