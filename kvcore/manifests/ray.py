"""Ray Serve: `llm_configs` of an application, alone or inside a RayService with the pods that it runs in.

Source: ray/llm/_internal/serve (LLMConfig: model_loading_config, engine_kwargs, deployment_config, accelerator_type).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kvcore.manifests.build import Facts, built, pairs_given
from kvcore.manifests.cards import of_nodes, of_resources
from kvcore.manifests.images import image_of
from kvcore.manifests.nodes import Map, Text, at, line_of, mapping, rows, text_of
from kvcore.manifests.nodes import document as parsed
from kvcore.manifests.pods import Found, Input, _shared_of, distinct, shared_memory_gib
from kvcore.manifests.programs import Launch, script_launches
from kvcore.manifests.unknowns import has_mark, placeholders_marked
from kvcore.manifests.workload import Workload, size_gib, whole

_CONFIGS: Final = ("decode_config", "prefill_config", "llm_config")
_MODEL_NAMES: Final = ("MODEL_ID", "MODEL_NAME", "MODEL")
_SIZES: Final = {
    "TENSOR_PARALLELISM": "tensor_parallel_size", "TENSOR_PARALLEL_SIZE": "tensor_parallel_size",
    "PIPELINE_PARALLELISM": "pipeline_parallel_size", "PIPELINE_PARALLEL_SIZE": "pipeline_parallel_size",
    "MAX_MODEL_LEN": "max_model_len", "GPU_MEMORY_UTILIZATION": "gpu_memory_utilization",
}  # fmt: skip


def applications(node: Map, given: Input, facts: Facts) -> Iterator[Found]:
    """The engines of a Serve config."""
    for application in rows(node.get("applications")):
        args = mapping(at(application, "args"))
        name = str(text_of(at(application, "name")) or facts.name or "")
        configs = [*rows(args.get("llm_configs")), *(args[key] for key in _CONFIGS if key in args)]
        if isinstance(args.get("llm_configs"), Map):
            configs.append(args["llm_configs"])
        found = False
        for one in configs:
            config = _loaded(one, given)
            if isinstance(config, Map):
                found = True
                yield llm_config(config, given, replace(facts, kind=facts.kind or "ray-serve"))
        if not found:
            yield from _own(mapping(application), args, name, given, facts)


def _loaded(one: object, given: Input) -> object:
    """A config, or the file beside it that its path names."""
    if isinstance(one, str):
        text = given.scripts.find(str(one))
        return parsed(text) if text is not None else None
    return one


def _own(application: Map, args: Map, name: str, given: Input, facts: Facts) -> Iterator[Found]:
    """An application of somebody's own: arguments of an engine, or variables that its program reads."""
    stated = mapping(at(application, "runtime_env.env_vars"))
    env = Map({key: _open(value) for key, value in stated.items()})
    inner = next(
        (args[key] for key in ("engine_kwargs", "engine_args", "vllm") if isinstance(args.get(key), Map)),
        args,
    )
    model = text_of(inner.get("model")) or text_of(args.get("model")) or text_of(args.get("model_id"))
    flags = [one for one in pairs_given(inner) if one.name != "model"]
    module = str(text_of(application.get("import_path")) or "").partition(":")[0].rsplit(".", 1)[-1]
    script = given.scripts.find(f"{module}.py")
    if script is not None and given.python is not None:
        variables = {key: str(value) for key, value in env.items() if isinstance(value, str)}
        yield from given.python(script, replace(facts, name=name or facts.name), given, variables)
        return
    counts = [whole(text_of(at(one, "num_replicas"))) for one in rows(application.get("deployments"))]
    pip = at(application, "runtime_env.pip")
    packages = rows(at(pip, "packages")) or rows(pip)
    if model is None:
        model = next((text_of(env[key]) for key in _MODEL_NAMES if key in env), None)
        sizes = Map({_SIZES[key]: value for key, value in env.items() if key in _SIZES})
        flags = list(pairs_given(sizes))
    if model is None or (not flags and args.get("model") is not None):
        return
    own = replace(
        facts, name=name or facts.name, model=str(model), before=tuple(flags), kind=facts.kind or "ray-serve",
        replicas=counts[0] if len(counts) == 1 else facts.replicas,
        installs=" ".join((facts.installs, *(str(one) for one in packages if isinstance(one, str)))),
    )  # fmt: skip
    yield built(Launch(engine="vllm", words=(), line=line_of(application)), own, given.scripts)


def _open(value: object) -> object:
    """A value with what is to be filled in as marks."""
    return Text(placeholders_marked(str(value)), line_of(value)) if isinstance(value, str) else value


def llm_config(config: Map, given: Input, facts: Facts) -> Found:
    """The engine of one LLMConfig."""
    loading = mapping(config.get("model_loading_config"))
    given.take(config)
    own, source = text_of(loading.get("model_id")), loading.get("model_source")
    where = text_of(source) or text_of(at(source, "bucket_uri"))
    deployment = mapping(config.get("deployment_config"))
    low, high = (
        whole(text_of(at(deployment, f"autoscaling_config.{key}")))
        for key in ("min_replicas", "max_replicas")
    )
    fixed = whole(text_of(deployment.get("num_replicas")))
    env = mapping(at(config, "runtime_env.env_vars"))
    card = text_of(config.get("accelerator_type"))
    engine = str(text_of(config.get("llm_engine")) or "vllm").lower()
    made = replace(
        facts,
        name=str(own or where or facts.name or ""),
        line=line_of(config),
        model=str(where or own) if (where or own) else None,
        served_name=str(own) if own is not None and where is not None else None,
        fallbacks=(str(own),) if own is not None else (),
        card=str(card) if card is not None else facts.card,
        replicas=fixed if fixed is not None else low if low is not None and low == high else None,
        before=pairs_given(mapping(config.get("engine_kwargs"))),
        environment={key: str(value) for key, value in env.items() if isinstance(value, str)},
    )
    launch = Launch(engine="sglang" if engine == "sglang" else "vllm", words=(), line=line_of(config))
    found = built(launch, made, given.scripts)
    return over_nodes(found) if isinstance(found, Workload) else found


def over_nodes(found: Workload) -> Workload:
    """The number of pods that one engine's ranks fill."""
    sizes = [found.request.get(name) or 1 for name in ("tensor_parallel_size", "pipeline_parallel_size")]
    if not isinstance(found.gpus, int) or not all(isinstance(size, int) for size in sizes) or found.gpus < 1:
        return found
    nodes = -(-sizes[0] * sizes[1] // found.gpus)
    if nodes <= 1:
        return found
    from msgspec.structs import replace as changed

    return changed(found, nodes=nodes, extra={**found.extra, "nodes": nodes})


def ray_service(document: Map, given: Input) -> Iterator[Found]:
    """The engines of a RayService, in the pods of its workers."""
    cluster = mapping(at(document, "spec.rayClusterConfig"))
    name = str(text_of(at(document, "metadata.name")) or "ray")
    facts = worker_facts(
        cluster, given, Facts(name=name, kind="RayService", file=given.file, line=line_of(document))
    )
    config = at(document, "spec.serveConfigV2")
    node = (
        parsed(str(config), line_of(config) + 1)
        if isinstance(config, str) and not has_mark(config[:2])
        else config
    )
    if isinstance(node, Map):
        yield from applications(node, given, facts)


def ray_job(document: Map, given: Input) -> Iterator[Found]:
    """The engine that the entrypoint of a RayJob starts, in the pods of its workers; a pod alone is a node of Ray."""
    spec = mapping(document.get("spec"))
    name = str(text_of(at(document, "metadata.name")) or "ray")
    facts = worker_facts(
        mapping(spec.get("rayClusterSpec")),
        given,
        Facts(name=name, kind="RayJob", file=given.file, line=line_of(document)),
    )
    command = spec.get("entrypoint")
    env = parsed(str(spec.get("runtimeEnvYAML") or ""))
    held = mapping(at(env, "env_vars"))
    variables = {key: str(value) for key, value in held.items() if isinstance(value, str)}
    launched = script_launches(
        str(command or ""),
        variables,
        given.scripts,
        line=line_of(command, facts.line),
        exported=frozenset(variables),
    )
    for launch in distinct(launched) if launched else ():
        found = built(launch, facts, given.scripts)
        yield over_nodes(found) if isinstance(found, Workload) else found
    if launched:
        return
    script = next((word for word in str(command or "").split() if word.endswith(".py")), None)
    text = given.scripts.find(script) if script is not None else None
    if text is not None and given.python is not None:
        yield from given.python(text, facts, given, variables)


def worker_facts(cluster: Map, given: Input, facts: Facts) -> Facts:
    """What the pods of a cluster's workers say: the first group with cards, else the head."""
    groups = [one for one in rows(cluster.get("workerGroupSpecs")) if isinstance(one, Map)]
    head = cluster.get("headGroupSpec")
    for group in (*groups, *((head,) if isinstance(head, Map) else ())):
        spec = mapping(at(group, "template.spec"))
        containers = [one for one in rows(spec.get("containers")) if isinstance(one, Map)]
        given.take(*containers)
    for group in (*groups, *((head,) if isinstance(head, Map) else ())):
        spec = mapping(at(group, "template.spec"))
        for container in rows(spec.get("containers")):
            gpus, resource = of_resources(at(container, "resources"))
            if not gpus:
                continue
            cards, image = of_nodes(spec), text_of(at(container, "image"))
            return replace(
                facts, gpus=gpus, card=cards.name or resource, card_choices=cards.choices,
                memory_gib=size_gib(at(container, "resources.limits.memory")),
                shm_gib=_shared_of(mapping(container), shared_memory_gib(spec)),
                image=str(image) if image is not None and image_of(image).engine else None,
            )  # fmt: skip
    return facts
