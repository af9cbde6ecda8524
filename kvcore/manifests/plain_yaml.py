"""YAML without a kind of Kubernetes: known structures by their keys, then containers and commands anywhere in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kvcore.manifests import charts, compose, llama_swap, ray, skypilot
from kvcore.manifests.build import Facts, built, pairs_given
from kvcore.manifests.cards import card_in, of_resources
from kvcore.manifests.nodes import Map, Row, Text, at, line_of, mapping, rows, text_of, walk
from kvcore.manifests.operators import kubeai_model
from kvcore.manifests.pods import Found, Input, _or, container_found, distinct, environment
from kvcore.manifests.programs import Launch, engine_of_words, script_launches
from kvcore.manifests.variables import of_units
from kvcore.manifests.workload import ALL_GPUS, Other, Place, Workload, binary_gib, size_gib, whole

COMMANDS: Final = re.compile(
    r"vllm\s+serve|vllm[._]entrypoints|sglang[. ](?:launch_server|serve)|docker\s+run|podman\s+run|"
    r"dynamo\.(?:vllm|sglang|trtllm)|"
    r"trtllm-serve|vllm-mindspore\s+serve"
)
"""A text without any of these starts no engine."""

_CONFIG_FLAGS: Final = 2
"""Fewest arguments of an engine that make a mapping with a model its configuration."""
_ENVIRONMENTS: Final = ("envs", "env", "environment", "env_vars", "variables")
_COUNTS: Final = re.compile(r"(?:npu|gpu|card|accelerator)s?_per_node$|^(?:num_)?(?:npu|gpu|card)s?$")


def structures(document: Map, given: Input) -> Iterator[Found]:
    """What a document without a kind starts."""
    if isinstance(document.get("macros"), Map | Row) and isinstance(document.get("models"), Map):
        document = llama_swap.unfolded(document)
    known = list(_known(document, given))
    yield from known
    if not any(isinstance(one, Workload) for one in known):
        yield from anywhere(document, given)


def _known(document: Map, given: Input) -> Iterator[Found]:
    if isinstance(document.get("services"), Map):
        yield from compose.services(document, given)
        return
    if "commands" in document and str(document.get("type")) in ("service", "task", "dev-environment"):
        yield from skypilot.dstack(document, given)
        return
    if "run" in document and ("resources" in document or "envs" in document or "setup" in document):
        yield from skypilot.task(document, given)
        return
    if isinstance(document.get("applications"), Row):
        yield from ray.applications(
            document, given, Facts(kind="ray-serve", file=given.file, line=line_of(document))
        )
        return
    found = False
    for key, node in walk(document):
        if not isinstance(node, Map) or id(node) in given.taken:
            continue
        for one in _structure(key, node, given):
            found = True
            yield one
    if not found:
        yield from engine_config(document, given, "config")


def _structure(key: str, node: Map, given: Input) -> Iterator[Found]:
    """What one mapping is by its own keys."""
    if isinstance(node.get("servingEngineSpec"), Map):
        yield from charts.production_stack(node, given)
    elif isinstance(node.get("modelArtifacts"), Map):
        yield from charts.model_service(node, given)
    elif "model_loading_config" in node:
        yield ray.llm_config(node, given, Facts(kind="ray-llm", file=given.file, line=line_of(node)))
    elif isinstance(node.get("image"), Map):
        yield from charts.chart_image(node, given)
    elif "resourceProfile" in node and "engine" in node:
        yield from kubeai_model(key, node, given)
    elif "algorithm" in node and "backend" not in node:
        return  # a draft model of GPUStack's catalogue, which another one is served with
    elif "backend_parameters" in node or ("huggingface_repo_id" in node and "source" in node):
        yield from _gpustack(node, given)


def _gpustack(node: Map, given: Input) -> Iterator[Found]:
    """A model of GPUStack."""
    given.take(node)
    backend = str(text_of(node.get("backend")) or "vllm").lower()
    engine = (
        "vllm"
        if "vllm" in backend
        else "sglang"
        if "sglang" in backend
        else "mindie"
        if "mindie" in backend
        else ""
    )
    name = text_of(node.get("name"))
    if not engine:
        yield Other(name=str(name or "?"), role=f"engine {backend}", place=Place(given.file, line_of(node)))
        return
    model = (
        text_of(node.get("huggingface_repo_id"))
        or text_of(node.get("model_scope_model_id"))
        or text_of(node.get("local_path"))
    )
    env = mapping(node.get("env"))
    facts = Facts(
        name=str(name) if name is not None else None, kind="gpustack", file=given.file, line=line_of(node), model=model,
        replicas=whole(text_of(node.get("replicas"))), release=text_of(node.get("backend_version")),
        environment={key: str(value) for key, value in env.items() if isinstance(value, str)},
        gpus=whole(text_of(node.get("gpus_per_replica"))) or whole(text_of(at(node, "gpu_selector.gpus_per_replica")))
        or len(rows(at(node, "gpu_selector.gpu_ids"))) or None,
    )  # fmt: skip
    words = tuple(
        word for one in rows(node.get("backend_parameters")) if isinstance(one, str) for word in _halves(one)
    )
    yield built(Launch(engine=engine, words=words, line=line_of(node)), facts, given.scripts)


def _halves(text: str) -> list[str]:
    """An argument with its value as one text, cut at the first space."""
    name, space, value = str(text).strip().partition(" ")
    return [name, value.strip()] if space else [name]


def engine_config(node: Map, given: Input, kind: str) -> Iterator[Found]:
    """An engine's own configuration: a model, and arguments by their names."""
    model = text_of(node.get("model")) or text_of(node.get("model_tag")) or text_of(node.get("model-path"))
    if model is None:
        return
    from kvcore.manifests.arguments import PARSER, SGLANG

    plain = Map(
        {key: value for key, value in node.items() if key not in ("model", "model_tag", "model-path")}
    )
    table = PARSER.load()
    names = {word.lstrip("-") for word in (*table.switches, *table.values, *table.lists)}
    own = [key for key in plain if key.replace("_", "-").removeprefix("no-") in names]
    if "model-path" in node:
        flags = pairs_given(plain, SGLANG)
        facts = Facts(kind=kind, file=given.file, line=line_of(node), model=str(model), before=flags)
        yield built(Launch(engine=SGLANG, words=(), line=line_of(node)), facts, given.scripts)
        return
    if len(own) < _CONFIG_FLAGS or len(own) * 2 < len(plain):
        return
    given.take(node)
    facts = Facts(kind=kind, file=given.file, line=line_of(node), model=str(model), before=pairs_given(plain))
    yield built(Launch(engine="vllm", words=(), line=line_of(model)), facts, given.scripts)


# -- anywhere


def anywhere(document: Map | Row, given: Input) -> Iterator[Found]:
    """Containers, commands and engine configurations anywhere in a document."""
    counts = _counts(document)
    in_cluster = isinstance(document, Map) and "apiVersion" in document
    for key, node in walk(document):
        if id(node) in given.taken:
            continue
        if isinstance(node, Map):
            image = text_of(node.get("image"))
            if image is not None and any(name in node for name in ("command", "args", "cmd", "entrypoint")):
                yield from _container(key, node, str(image), given, is_kubernetes=in_cluster)
                continue
            yield from _listed(key, node, given, counts)
            yield from _commands(key, node, given, counts)
            if "engine_kwargs" in node or (
                "model" in node and len(node) > _CONFIG_FLAGS and node is not document
            ):
                yield from engine_config(node, given, "config")


def _container(key: str, node: Map, image: str, given: Input, *, is_kubernetes: bool) -> Iterator[Found]:
    """A mapping with an image and a command: a container of a task definition, a play, a workflow."""
    given.take(node)
    variables = environment(node, given)
    for pairs in _ENVIRONMENTS:
        variables |= _pairs(node.get(pairs))
    words = Row(
        word
        for name in ("entrypoint", "entryPoint", "command", "cmd", "args")
        for word in _split(node.get(name))
    )
    container = Map({"command": words, "name": Text(key)})
    asked = [text_of(at(one, "count")) for one in rows(node.get("device_requests"))]
    gpus: int | str | None = next(
        (
            whole(text_of(at(one, "value")))
            for one in rows(node.get("resourceRequirements"))
            if at(one, "type") == "GPU"
        ),
        None,
    )
    if gpus is None and asked:
        gpus = ALL_GPUS if asked[0] in ("-1", ALL_GPUS) else whole(asked[0])
    if gpus is None:
        gpus = next(
            (count for key in ("gpu", "gpus") if (count := whole(text_of(node.get(key)))) is not None), None
        )
    own = next(
        filter(None, (text_of(node.get(key)) for key in ("model", "modelId", "model_id", "modelName"))), None
    )
    name = text_of(node.get("container_name")) or text_of(node.get("name"))
    facts = Facts(
        name=str(name or key) or None, kind="container", file=given.file, line=line_of(node), image=image,
        gpus=gpus if gpus is not None else of_resources(node.get("resources"))[0],
        shm_gib=_or(binary_gib(node.get("shm_size")), _mebibytes(at(node, "linuxParameters.sharedMemorySize"))),
        memory_gib=_or(
            size_gib(at(node, "resources.limits.memory")), _mebibytes(node.get("memory")) if _is_task(node) else None
        ),
        replicas=whole(text_of(node.get("replicas"))), model=str(own) if own is not None else None,
    )  # fmt: skip
    found = container_found(container, facts, variables, given, is_kubernetes=is_kubernetes)
    yield from (one for one in found if isinstance(one, Workload) or one.role != "unknown")


def _is_task(node: Map) -> bool:
    """Whether a container is one of Amazon ECS, whose sizes are in MiB."""
    return any(
        key in node for key in ("resourceRequirements", "linuxParameters", "portMappings", "essential")
    )


def _mebibytes(node: object) -> float | None:
    """A number of MiB in GiB."""
    size = whole(text_of(node))
    return None if size is None else size / 1024


def _split(node: object) -> list[Text]:
    from kvcore.manifests.shell_words import words_of

    if isinstance(node, str):
        return [Text(word) for word in words_of(str(node))]
    return [Text(str(one)) for one in rows(node) if isinstance(one, str)]


def _pairs(node: object) -> dict[str, str]:
    """Variables of a mapping, or of a list of `NAME=value` or of names and values."""
    found = {key: str(value) for key, value in mapping(node).items() if isinstance(value, str)}
    for one in rows(node):
        if isinstance(one, str):
            name, is_set, value = str(one).partition("=")
            found |= {name: value} if is_set else {}
        elif isinstance(one, Map) and isinstance(one.get("name"), str):
            found[str(one["name"])] = str(one.get("value", ""))
    return found


def _counts(document: Map | Row) -> tuple[int | None, str | None]:
    """How many cards a node has, where the document's top says so, and which kind."""
    for key, value in document.items() if isinstance(document, Map) else ():
        if _COUNTS.search(key) and (count := whole(text_of(value))) is not None:
            return count, f"{key}: {count}" if "npu" in key else None
    return None, None


def _commands(key: str, node: Map, given: Input, counts: tuple[int | None, str | None]) -> Iterator[Found]:
    """Texts of a mapping that are commands, with the variables that stand beside them."""
    for name, value in node.items():
        texts = [value] if isinstance(value, str) else [one for one in rows(value) if isinstance(one, str)]
        joined = "\n".join(str(one) for one in texts)
        if not COMMANDS.search(" ".join(joined.split())):
            continue
        if isinstance(value, Row) and texts and "serve" in [str(one) for one in texts][:3]:
            joined = " ".join(_quoted(str(one)) for one in texts)
        elif name.lower() in ("cmd", "server_cmd", "command", "start_command") and "\\\n" not in joined:
            joined = " ".join(line for line in joined.split("\n") if not line.lstrip().startswith("#"))
        variables: dict[str, str] = {}
        for one in _ENVIRONMENTS:
            variables |= _pairs(node.get(one))
        card = card_in(
            str(text_of(node.get("accelerator")) or text_of(at(node, "resources.accelerator")) or "")
        )
        own = text_of(node.get("name"))
        at_list = _is_own_name(key)
        facts = Facts(
            name=str(own if own is not None else key) if at_list else None, kind="command", file=given.file,
            line=line_of(value, line_of(node)), gpus=counts[0], card=card or counts[1], is_npu=counts[1] is not None,
            replicas=whole(text_of(node.get("replicas"))),
        )  # fmt: skip
        if name == "cmd":
            facts = replace(facts, name=key or facts.name)
        found = script_launches(
            joined, variables, given.scripts, line=line_of(value), exported=frozenset(variables)
        )
        for launch in distinct(found) if found else ():
            if launch.engine or launch.role:
                yield built(launch, facts, given.scripts)


def _listed(key: str, node: Map, given: Input, counts: tuple[int | None, str | None]) -> Iterator[Found]:
    """A model beside a list of an engine's arguments: cases of a test suite, entries of a fleet."""
    if isinstance(node.get("vllm_args"), Map):
        yield from _mapped(key, node, mapping(node["vllm_args"]), given)
        return
    model = text_of(node.get("model"))
    lists = {
        name: [str(word) for word in value if isinstance(word, str)]
        for name, value in node.items()
        if isinstance(value, Row) and value and isinstance(value[0], str) and str(value[0]).startswith("--")
    }
    if model is None or not lists:
        return
    first = next(iter(lists))
    words = [
        word for name, value in lists.items() if name == first or name.startswith(first) for word in value
    ]
    engine = engine_of_words(words)
    if not engine:
        return
    given.take(node)
    variables: dict[str, str] = {}
    for name in _ENVIRONMENTS:
        variables |= _pairs(node.get(name))
    own = text_of(node.get("name"))
    facts = Facts(
        name=str(own if own is not None else key) or None, kind="arguments", file=given.file, line=line_of(node),
        model=str(model), gpus=counts[0], card=counts[1], replicas=whole(text_of(node.get("replicas"))),
    )  # fmt: skip
    filled = tuple(word if word[:1] == "{" else of_units(word, variables) for word in words)
    launch = Launch(
        engine=engine, words=filled, variables=variables, line=line_of(node[first], line_of(node))
    )
    yield built(launch, facts, given.scripts)


def _mapped(key: str, node: Map, flags: Map, given: Input) -> Iterator[Found]:
    """A model of a fleet with its arguments as a mapping, spelt with or without dashes.

    Source: VectorInstitute/vector-inference, vec_inf/config/models.yaml.
    """
    given.take(node, flags)
    own = next(
        filter(None, (text_of(node.get(name)) for name in ("hf_model", "model", "model_name", "model_id"))),
        None,
    )
    bare = Map({name.lstrip("-"): value for name, value in flags.items()})
    bare.line = flags.line
    facts = Facts(
        name=key or None, kind="arguments", file=given.file, line=line_of(node), model=str(own or key) or None,
        gpus=whole(text_of(node.get("gpus_per_node"))), nodes=whole(text_of(node.get("num_nodes"))) or 1,
        before=pairs_given(bare),
    )  # fmt: skip
    yield built(Launch(engine="vllm", words=(), line=line_of(flags, line_of(node))), facts, given.scripts)


def _is_own_name(key: str) -> bool:
    return bool(key) and key not in ("deployment", "steps", "jobs", "tasks", "commands", "run", "test_cases")


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)
