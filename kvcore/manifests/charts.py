"""Values of Helm charts: production-stack, llm-d modelservice, vLLM's own chart, and charts of the same make."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kvcore.manifests.arguments import Given, arguments_of
from kvcore.manifests.build import Facts, built, pairs_given
from kvcore.manifests.cards import card_in, chosen, of_nodes, of_resources
from kvcore.manifests.images import image_of
from kvcore.manifests.kserve import uri_model
from kvcore.manifests.nodes import Map, Row, Text, at, line_of, mapping, rows, text_of
from kvcore.manifests.operators import generation, lmcache_gib
from kvcore.manifests.pods import Found, Input, _words, container_found, environment, pod
from kvcore.manifests.programs import Launch
from kvcore.manifests.workload import Other, Place, binary_gib, size_gib, whole

_ROLES: Final = ("decode", "prefill")


def production_stack(values: Map, given: Input) -> Iterator[Found]:
    """The engines of production-stack's `servingEngineSpec`."""
    engine = mapping(values.get("servingEngineSpec"))
    given.take(engine, values.get("routerSpec"))
    items = [one for one in rows(engine.get("modelSpec")) if isinstance(one, Map)]
    ends = [*map(line_of, items[1:]), line_of(values.get("routerSpec"), 1 << 30)]
    for one, end in zip(items, ends, strict=False):
        given.take(one)
        yield _model_spec(one, engine, given, end)
    if isinstance(values.get("routerSpec"), Map):
        yield Other(name="router", role="router", place=Place(given.file, line_of(values["routerSpec"])))


def _model_spec(one: Map, engine: Map, given: Input, end: int) -> Found:
    repository, tag = text_of(one.get("repository")), text_of(one.get("tag"))
    config = mapping(one.get("vllmConfig"))
    kept = Map({key: value for key, value in config.items() if key not in ("v0", "v1", "extraArgs", "env")})
    if "enableLoRA" in one:
        kept["enable-lora"] = one["enableLoRA"]
    asked = text_of(one.get("requestGPUType"))
    labels = [
        (str(at(term, "key")), [str(value) for value in rows(at(term, "values"))])
        for terms in rows(one.get("nodeSelectorTerms"))
        for term in rows(at(terms, "matchExpressions"))
    ]
    cards = chosen(labels) if labels else of_nodes(one)
    cards = cards if cards.name else of_nodes(engine)
    extra = {}
    if (cache := lmcache_gib(one.get("lmcacheConfig"))) is not None:
        extra["lmcache_cpu_gib"] = cache
    name = text_of(one.get("name"))
    resource = str(asked) if asked is not None and asked != "nvidia.com/gpu" else None
    facts = Facts(
        name=str(name) if name is not None else None, kind="production-stack", file=given.file, line=line_of(one),
        image=f"{repository}:{tag or 'latest'}" if repository is not None else None, model=text_of(one.get("modelURL")),
        replicas=whole(text_of(one.get("replicaCount"))), gpus=whole(text_of(one.get("requestGPU"))),
        memory_gib=size_gib(one.get("limitMemory")), shm_gib=size_gib(one.get("shmSize")),
        card=cards.name or resource or commented_card(given.text, line_of(one), end), card_choices=cards.choices,
        before=pairs_given(kept), extra=extra,
        environment={**environment(one, given), **environment(config, given), **generation(config)},
        installs=" ".join((*_words(at(one, "initContainer.command")), *_words(at(one, "initContainer.args")))),
    )  # fmt: skip
    words = tuple(str(word) for word in rows(config.get("extraArgs")) if isinstance(word, str))
    image = image_of(facts.image)
    launch = Launch(engine=image.engine or "vllm", words=words, line=line_of(one))
    return built(launch, facts, given.scripts)


_COMMENT: Final = re.compile(r"(?:^|\s)(?:#|//)\s?(.{0,300})$")


def commented_card(text: str, begin: int, end: int) -> str | None:
    """The card that a comment between two lines names, with the words around it; only a hint, for want of better."""
    for line in text.split("\n")[max(0, begin - 1) : max(0, end - 1)]:
        found = _COMMENT.search(line)
        if found is not None and "--" not in found[1] and (name := card_in(found[1])) is not None:
            return name
    return None


def model_service(values: Map, given: Input) -> Iterator[Found]:
    """The engines of llm-d's modelservice: `decode` and `prefill` of one model."""
    artifacts = mapping(values.get("modelArtifacts"))
    given.take(artifacts)
    uri = uri_model(text_of(artifacts.get("uri")))
    named = text_of(artifacts.get("name"))
    for role in _ROLES:
        part = values.get(role)
        if not isinstance(part, Map) or str(part.get("create", "true")).lower() == "false":
            continue
        parallel = mapping(part.get("parallelism"))
        sizes = Map()
        for key, flag in (("tensor", "tensor-parallel-size"), ("data", "data-parallel-size"),
                          ("dataLocal", "data-parallel-size-local")):  # fmt: skip
            if key in parallel:
                sizes[flag] = parallel[key]
        labels = mapping(part.get("acceleratorTypes"))
        cards = chosen([(str(labels.get("labelKey")), [str(one) for one in rows(labels.get("labelValues"))])])
        facts = Facts(
            name=role, kind="llm-d-modelservice", file=given.file, line=line_of(part), model=uri or named,
            fallbacks=tuple(str(one) for one in (named,) if one), replicas=whole(text_of(part.get("replicas"))),
            before=pairs_given(sizes), card=cards.name, card_choices=cards.choices,
        )  # fmt: skip
        containers = [one for one in rows(part.get("containers")) if isinstance(one, Map)]
        serving = [_served(one) for one in containers]
        given.take(part, *containers)
        spec = Map(part)
        spec["containers"] = Row(serving)
        yield from pod(spec, facts, given)


def _served(container: Map) -> Map:
    """A container of the chart with the command that `modelCommand` stands for."""
    if text_of(container.get("modelCommand")) not in ("vllmServe", "imageDefault") or rows(
        container.get("command")
    ):
        return container
    made = Map(container)
    made.line = container.line
    made["command"] = Row(["vllm", "serve"])
    return made


def chart_image(values: Map, given: Input) -> Iterator[Found]:
    """The engine of a chart whose image is a repository with a tag: vLLM's own chart and those of its make."""
    image = mapping(values.get("image"))
    repository = next(
        filter(None, (text_of(image.get(key)) for key in ("repository", "name", "image"))), None
    )
    registry, tag = text_of(image.get("registry")), text_of(image.get("tag"))
    name = f"{registry + '/' if registry else ''}{repository}:{tag or 'latest'}"
    if image_of(name).role or not image_of(name).engine:
        return
    shm = next(
        (values[key] for key in ("shm", "sharedMemory", "dshm") if isinstance(values.get(key), Map)), Map()
    )
    is_shared = bool(shm) and str(shm.get("enabled", "true")).lower() != "false"
    gpus, resource = of_resources(values.get("resources"))
    cards = of_nodes(values)
    models = [str(one) for one in rows(values.get("gpuModels")) if card_in(str(one)) is not None]
    facts = Facts(
        name=next(
            filter(None, (text_of(values.get(key)) for key in ("name", "nameOverride", "fullnameOverride"))), None
        ),
        kind="helm-values", file=given.file, line=line_of(image), image=name, gpus=gpus,
        replicas=whole(text_of(values.get("replicaCount")) or text_of(values.get("replicas"))),
        memory_gib=size_gib(at(values, "resources.limits.memory")),
        shm_gib=size_gib(shm.get("size") or shm.get("sizeLimit")) if is_shared else binary_gib(values.get("shmSize")),
        card=cards.name or next(iter(models), resource),
        card_choices=cards.choices or (tuple(models) if len(models) > 1 else ()),
    )  # fmt: skip
    container = Map({"command": Row(_words(image.get("command") or values.get("command")))})
    container["args"] = Row(
        [*_words(image.get("args")), *_words(values.get("args")), *_words(values.get("extraArgs"))]
    )
    for key in ("env", "envFrom", "extraEnv"):
        if key in values:
            container["env" if key == "extraEnv" else key] = values[key]
    facts.model, flags = _chart_model(values)
    facts.before = tuple(flags)
    given.take(values, image)
    variables = environment(container, given)
    words = [str(word) for word in (*container["command"], *container["args"])]
    if not words and facts.model is None:
        return
    yield from container_found(container, facts, variables, given, is_kubernetes=True)


def _chart_model(values: Map) -> tuple[str | None, list[Given]]:
    """The model and arguments that a chart's values give under names of their own."""
    flags: list[Given] = []
    found: str | None = None
    for key in ("model", "modelName", "modelId", "modelID", "model_name", "huggingfaceModel"):
        node = values.get(key)
        if isinstance(node, Text) and found is None:
            found = text_of(node)
        elif isinstance(node, Map):
            found = found or text_of(node.get("id")) or text_of(node.get("name")) or text_of(node.get("repo"))
            flags += [one for one in pairs_given(node) if one.name not in ("id", "name", "repo", "model")]
    for key in ("vllm", "vllmConfig", "engineArgs", "engine_args", "vllmArgs", "engine"):
        node = values.get(key)
        if isinstance(node, Map):
            found = found or text_of(node.get("model"))
            flags += pairs_given(
                Map({name: one for name, one in node.items() if not isinstance(one, Map | Row)})
            )
            words = [word for name in ("args", "extraArgs", "extra_args") for word in _words(node.get(name))]
            flags += arguments_of(words, line=line_of(node)).given
    return (str(found) if found is not None else None), flags
