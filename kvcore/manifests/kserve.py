"""KServe: InferenceService with its runtime, and LLMInferenceService with its base configs.

Source: KServe's API (serving.kserve.io v1beta1 InferenceService, v1alpha1 and v1alpha2 LLMInferenceService).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from kvcore.manifests.arguments import Given, arguments_of
from kvcore.manifests.build import Facts, built, pairs_given
from kvcore.manifests.cards import of_nodes, of_resources
from kvcore.manifests.nodes import Map, Row, at, line_of, mapping, rows, text_of
from kvcore.manifests.pods import Found, Input, environment, pod
from kvcore.manifests.programs import Container, Launch
from kvcore.manifests.shell_words import words_of
from kvcore.manifests.unknowns import mark
from kvcore.manifests.workload import size_gib, whole

ADDITIONAL: Final = "VLLM_ADDITIONAL_ARGS"
"""The variable whose text KServe's own command appends."""
_PARALLEL: Final = {
    "tensor": "tensor_parallel_size", "pipeline": "pipeline_parallel_size", "data": "data_parallel_size",
    "dataLocal": "data_parallel_size_local", "expert": "enable_expert_parallel",
}  # fmt: skip
_LLM_FORMATS: Final = ("huggingface", "vllm", "llm")
_SERVICE_KINDS: Final = ("ServingRuntime", "ClusterServingRuntime")


def merged(base: Any, own: Any) -> Any:
    """A configuration over its base: mappings key by key, lists of named things by name, all else replaced."""
    if isinstance(base, Map) and isinstance(own, Map):
        made = Map(base)
        made.line = own.line
        for key, value in own.items():
            made[key] = merged(base.get(key), value) if key in base else value
        return made
    if isinstance(base, Row) and isinstance(own, Row) and all(at(one, "name") for one in [*base, *own]):
        row = Row()
        row.line = own.line
        mine = {str(at(one, "name")): one for one in own}
        row.extend(merged(one, mine.pop(str(at(one, "name")), one)) for one in base)
        row.extend(mine.values())
        return row
    return own if own is not None else base


def uri_model(uri: str | None) -> str | None:
    """The model of a storage address: an id of the Hub for `hf://`, else the address."""
    if uri is None:
        return None
    for scheme in ("hf://", "huggingface://"):
        if uri.startswith(scheme):
            return uri.removeprefix(scheme).partition(":")[0]
    return uri


def llm_service(document: Map, given: Input) -> Iterator[Found]:
    """The engines of an LLMInferenceService: the decoding one, and the one that only reads prompts."""
    spec = mapping(document.get("spec"))
    for reference in rows(spec.get("baseRefs")):
        base = given.named.get(("LLMInferenceServiceConfig", str(at(reference, "name"))))
        if base is not None:
            given.take(base)
            spec = merged(mapping(base.get("spec")), spec)
    name = str(text_of(at(document, "metadata.name")) or "llm")
    model = text_of(at(spec, "model.name")), text_of(at(spec, "model.uri"))
    for role, part in ((name, spec), (f"{name}-prefill", mapping(spec.get("prefill")))):
        template = merged(mapping(part.get("worker")), mapping(part.get("template")))
        if part or role == name:
            yield from _role(role, part, template, model, document, spec, given)


def _role(
    name: str,
    part: Map,
    template: Map,
    model: tuple[str | None, str | None],
    document: Map,
    spec: Map,
    given: Input,
) -> Iterator[Found]:
    uri = uri_model(model[1])
    hub = uri if model[1] is not None and model[1].startswith("hf://") else None
    before = _parallelism(mapping(part.get("parallelism")))
    offload = at(part, "workload.kvCacheOffloading") or at(part, "kvCacheOffloading")
    if offload is None and part is spec:
        offload = at(spec, "workload.kvCacheOffloading")
    container = next((one for one in rows(template.get("containers")) if at(one, "name") == "main"), None)
    container = container if container is not None else next(iter(rows(template.get("containers"))), Map())
    variables = environment(mapping(container), given)
    extra = {}
    cpu = size_gib(at(offload, "cpu")) if isinstance(offload, Map) else None
    if cpu is not None:
        extra["kv_offloading_size"] = cpu
        before = (*before, _offloading(cpu, line_of(offload)))
    facts = Facts(
        name=name, kind="LLMInferenceService", file=given.file, line=line_of(document),
        model=str(model[0] or hub or uri) if (model[0] or uri) else None,
        fallbacks=tuple(one for one in (hub, uri) if one), before=before, extra=extra,
        replicas=whole(text_of(part.get("replicas"))),
    )  # fmt: skip
    additional = tuple(words_of(variables.get(ADDITIONAL, "")))
    if not rows(template.get("containers")):
        yield built(Launch(engine="vllm", words=additional, line=facts.line), facts, given.scripts)
        return
    given.take(*rows(template.get("containers")))
    after = arguments_of(additional, line=line_of(container)).given
    args = [str(one) for one in rows(at(container, "args")) if isinstance(one, str)]
    command = [str(one) for one in rows(at(container, "command")) if isinstance(one, str)]
    if command or args:
        yield from pod(template, replace(facts, after=after), given)
        return
    yield from pod(_with_args(template, container), replace(facts, after=after), given)


def _with_args(template: Map, container: Any) -> Map:
    """The template with KServe's own command in its container: the image alone starts no engine there."""
    own = Map(mapping(container))
    own.line = line_of(container)
    command = Row(["vllm", "serve"])
    own["command"] = command
    made = Map(template)
    made["containers"] = Row([own if one is container else one for one in rows(template.get("containers"))])
    return made


def _offloading(cpu_gib: float, line: int) -> Given:
    """The connector that KServe adds for a tier of the host's memory."""
    size = int(cpu_gib * 1024**3)
    value = (
        '{"kv_connector":"OffloadingConnector","kv_role":"kv_both",'
        f'"kv_connector_extra_config":{{"cpu_bytes_to_use":{size}}}}}'
    )
    return Given(name="kv_transfer_config", value=value, word="kvCacheOffloading", line=line)


def _parallelism(node: Map) -> tuple[Given, ...]:
    found = []
    for key, name in _PARALLEL.items():
        value = text_of(node.get(key))
        if value is not None:
            text = str(value)
            if name == "enable_expert_parallel":
                text = "True" if text.lower() == "true" else "False"
            found.append(Given(name=name, value=text, word=f"parallelism.{key}", line=line_of(value)))
    return tuple(found)


def inference_service(document: Map, given: Input) -> Iterator[Found]:
    """The engine of an InferenceService, with the arguments of its runtime where that is in the input."""
    predictor = mapping(at(document, "spec.predictor"))
    name = str(text_of(at(document, "metadata.name")) or "predictor")
    low, high = (whole(text_of(predictor.get(key))) for key in ("minReplicas", "maxReplicas"))
    facts = Facts(
        name=name, kind="InferenceService", file=given.file, line=line_of(document),
        replicas=low if low is not None and low == high else None,
    )  # fmt: skip
    worker = mapping(predictor.get("workerSpec"))
    if worker:
        sizes = Map(
            {key: worker[key] for key in ("tensorParallelSize", "pipelineParallelSize") if key in worker}
        )
        facts.after = pairs_given(sizes)
        facts.nodes = whole(text_of(worker.get("pipelineParallelSize"))) or 1
    model = predictor.get("model")
    if not isinstance(model, Map):
        old = next((key for key in _LLM_FORMATS if isinstance(predictor.get(key), Map)), None)
        if old is None:
            yield from pod(predictor, facts, given)
            return
        model = predictor[old]
    uri = uri_model(text_of(model.get("storageUri")) or text_of(at(model, "storage.path")))
    facts.model, facts.fallbacks = uri, (uri,) if uri else ()
    yield from _of_runtime(model, predictor, facts, given)


def _of_runtime(model: Map, predictor: Map, facts: Facts, given: Input) -> Iterator[Found]:
    wanted = str(text_of(model.get("runtime")) or "")
    runtime = next(
        (given.named[kind, wanted] for kind in _SERVICE_KINDS if (kind, wanted) in given.named), None
    )
    kind = str(text_of(at(model, "modelFormat.name")) or "").lower()
    args = Row(str(one) for one in rows(model.get("args")) if isinstance(one, str))
    if runtime is not None:
        given.take(runtime, *rows(at(runtime, "spec.containers")))
        given.used.add((str(runtime.get("kind")), wanted))
        base = mapping(runtime.get("spec"))
        containers = rows(base.get("containers"))
        main = next(
            (one for one in containers if at(one, "name") == "kserve-container"), next(iter(containers), None)
        )
        if isinstance(main, Map):
            own = Map(
                {
                    key: value
                    for key, value in model.items()
                    if key in ("image", "env", "resources", "command")
                }
            )
            one = merged(main, own)
            one["args"] = Row(
                str(word).replace(mark(".Name"), facts.name or "").replace("{{.Name}}", facts.name or "")
                for word in [*rows(main.get("args")), *args]
                if isinstance(word, str)
            )
            whole_pod = merged(base, Map({key: predictor[key] for key in _POD_KEYS if key in predictor}))
            whole_pod["containers"] = Row([one])
            yield from pod(whole_pod, facts, given)
            return
    if kind not in _LLM_FORMATS and not any(str(word).startswith("--max-model-len") for word in args):
        return
    gpus, resource = of_resources(model.get("resources"))
    cards = of_nodes(predictor)
    facts.gpus, facts.memory_gib = gpus, size_gib(at(model, "resources.limits.memory"))
    facts.card, facts.card_choices = cards.name or resource, cards.choices
    facts.image = text_of(model.get("image"))
    variables = environment(model, given)
    words = tuple(str(word) for word in [*rows(model.get("command")), *args])
    launch = Launch(
        engine="vllm",
        words=words,
        variables=variables,
        line=line_of(model),
        container=Container(image=facts.image or ""),
    )
    yield built(launch, facts, given.scripts)


_POD_KEYS: Final = ("nodeSelector", "affinity", "volumes", "tolerations")
