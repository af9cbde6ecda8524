"""A server and what its surroundings say -> a workload."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace

from kvcore.base.errors import ScenarioError, shorten
from kvcore.catalogue.names import is_hub_id, repository_of
from kvcore.engines.registry import find_engine, is_planned, memory_variable_names
from kvcore.flags import FLAGS
from kvcore.manifests.arguments import (
    SGLANG,
    VLLM,
    Arguments,
    Given,
    arguments_of,
    is_option,
    is_secret,
    resolved,
    without_login,
)
from kvcore.manifests.images import built_for, image_of, pinned
from kvcore.manifests.nodes import Map, Row, Text, document, line_of, plain, scalar
from kvcore.manifests.programs import Launch, Scripts
from kvcore.manifests.typed import Typed, typed
from kvcore.manifests.unknowns import has_mark, is_mark, names_in, shown
from kvcore.manifests.workload import Other, Place, Workload, whole

PLANNED_VARIABLES: Final = frozenset((*FLAGS["env"].common, *memory_variable_names()))
"""Environment variables that a plan uses."""

_SHOWN_VARIABLES: Final = (
    "VLLM_", "PYTORCH_", "CUDA_", "NVIDIA_VISIBLE", "HIP_", "HSA_", "ROCR_", "NCCL_", "HCCL_", "ASCEND_", "TORCH_",
    "SGLANG_", "SGL_", "LMCACHE_", "TASK_QUEUE", "OMP_", "CPU_AFFINITY", "NPU_", "RAY_",
)  # fmt: skip
_NPU: Final = re.compile(r"(?:HCCL|ASCEND|CANN|ATB|LCCL)_|\w*_NPU_")
_DOWNLOAD: Final = re.compile(
    r"(?:hf|huggingface-cli|modelscope)\s+download\s+(?:--?[\w-]+(?:=\S+)?\s+){0,4}['\"]?([\w.-]{1,96}/[\w.-]{1,96})"
)
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_VARIABLE_FLAGS: Final[Mapping[str, str]] = {"VLLM_ALL2ALL_BACKEND": "all2all_backend"}
"""Environment variables that are a field of a request.

Source: vllm/envs.py:VLLM_ALL2ALL_BACKEND (0.10.0 to 0.13.0)."""
_MOUNT: Final = re.compile(r"/mnt/models/?")
"""Where KServe puts what its storage address names.

Source: kserve/kserve pkg/constants (DefaultModelLocalMountPath)."""
_OWN_NAMES: Final = (SGLANG, "tensorrt-llm", "mindie")
"""Engines with names of their own whose workloads are read; all others are named only."""
MAX_SHOWN: Final = 200
MAX_NAME: Final = 200
HUB_IDS: Final = 4


@dataclass
class Facts:
    """What the surroundings of a server say of it; a reader fills in what its kind of file knows."""

    name: str | None = None
    kind: str = ""
    file: str = ""
    line: int = 0
    image: str | None = None
    card: str | None = None
    card_choices: tuple[str, ...] = ()
    gpus: int | str | None = None
    replicas: int | None = None
    nodes: int = 1
    memory_gib: float | None = None
    shm_gib: float | None = None
    model: str | None = None
    served_name: str | None = None
    fallbacks: tuple[str, ...] = ()
    before: tuple[Given, ...] = ()
    """Arguments that those of the command overrule."""
    after: tuple[Given, ...] = ()
    """Arguments that overrule those of the command."""
    extra: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that the container mounts, by name."""
    release: str | None = None
    installs: str = ""
    """Text in which the engine's release may be pinned."""
    is_npu: bool = False
    shares_ipc: bool = False
    undefined: tuple[str, ...] = ()


def pairs_given(node: object, engine: str = VLLM, *, line: int = 0) -> tuple[Given, ...]:
    """Arguments out of a mapping, by any spelling of their names: `max-model-len`, `max_model_len`, `maxModelLen`.

    Example:
        >>> [(one.name, one.value) for one in pairs_given(document("{maxModelLen: 8, no-enable-x: true}"))]
        [('max_model_len', '8'), ('enable_x', 'False')]
    """
    found: list[Given] = []
    for key, value in node.items() if isinstance(node, Map) else ():
        if value is None or (isinstance(value, Text) and scalar(value) is None):
            continue
        dashed = (
            _CAMEL.sub("-", key.replace("LoRA", "Lora").replace("LoRa", "Lora")).lower().replace("_", "-")
        )
        name, _, option = resolved(f"--{dashed}", engine)
        text = _text(value)
        if name.startswith("no_") and text.lower() == "true":
            name, option, text = name.removeprefix("no_"), option.removeprefix("no_"), "False"
        items = (
            tuple(str(one) for one in value if isinstance(one, str)) if isinstance(value, Row) else (text,)
        )
        found.append(
            Given(
                name=name,
                value=text,
                word=f"--{dashed}",
                line=line_of(value, line),
                items=items,
                option=option,
            )
        )
    return tuple(found)


def _text(value: object) -> str:
    """A value as it would stand in a command."""
    if isinstance(value, Row) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    if isinstance(value, Map | Row):
        import json

        return json.dumps(plain(value))
    if isinstance(value, Text):
        known = scalar(value)
        return str(known) if isinstance(known, bool) else str(value)
    return str(value)


def built(launch: Launch, facts: Facts, scripts: Scripts) -> Workload | Other:
    """The workload of a server, or what else it is."""
    held = launch.container
    image = image_of(facts.image if facts.image is not None else held.image if held is not None else None)
    place = Place(facts.file, launch.line or facts.line)
    name = _name(facts, held.name if held is not None else None)
    engine = launch.engine
    if engine and not (is_planned(engine) or engine in _OWN_NAMES):
        return Other(name=name or launch.program or "?", role=f"engine {launch.engine}", place=place)
    if launch.role or not launch.engine:
        return Other(name=name or launch.program or "?", role=launch.role or "unknown", place=place)
    family = engine if engine in _OWN_NAMES else VLLM
    arguments = arguments_of(launch.words, family, place.line)
    variables = {**facts.environment, **launch.variables}
    files = {**facts.files, **launch.files}
    given = (*facts.before, *_configured(arguments, files, scripts, family), *arguments.given, *facts.after)
    given += tuple(
        Given(name=flag, value=variables[name], word=name)
        for name, flag in _VARIABLE_FLAGS.items()
        if variables.get(name) and not any(one.name == flag for one in given)
    )
    last = {one.name: one.value for one in given}
    is_plug_in = family == VLLM and image.engine.startswith("vllm-")
    if is_plug_in:
        engine = image.engine
    elif engine == "vllm" and (_is_npu(variables, facts) or last.get("quantization") == "ascend"):
        engine = "vllm-ascend"
    read = typed(given) if family == VLLM else _as_it_is(given, engine)
    model, served, others = _models(launch, arguments, last, facts)
    is_its = is_plug_in or not image.engine or image.engine == launch.engine
    release = facts.release or launch.release or image.release if is_its else None
    names = names_in(
        *arguments.names and [""], facts.image or (held.image if held is not None else "") or "", model or "",
        *(one.value for one in given), *(variables[key] for key in variables if _is_shown(key)),
    )  # fmt: skip
    extra = {**facts.extra, **{key: value for key, value in read.other.items() if key not in _IDENTITY}}
    nodes = max(facts.nodes, whole(last.get("nnodes")) or 1)
    image_text = facts.image or (held.image if held is not None else "")
    if nodes > 1:
        extra["nodes"] = nodes
    gpus = facts.gpus if facts.gpus is not None else held.gpus if held is not None else None
    return Workload(
        name=name,
        engine=engine,
        release=release or pinned(facts.installs, launch.engine),
        model=None if model is None or is_mark(model) else shorten(_path_known(model), 400),
        served_name=served,
        fallbacks=others,
        request=read.request,
        planned=read.planned,
        extra=extra,
        unusable=read.unusable,
        environment=_shown_environment(variables),
        card=facts.card or (held.card if held is not None else None) or _of_image(image_text),
        image=shorten(shown(image_text), MAX_SHOWN) if image_text else None,
        image_vendor=built_for(image_text),
        shares_ipc=facts.shares_ipc or (held is not None and held.shares_ipc),
        card_choices=facts.card_choices,
        gpus=gpus,
        replicas=facts.replicas,
        nodes=nodes,
        host_memory_gib=facts.memory_gib
        if facts.memory_gib is not None
        else held.memory_gib
        if held
        else None,
        shm_gib=facts.shm_gib if facts.shm_gib is not None else held.shm_gib if held else None,
        undefined=tuple(
            dict.fromkeys((*facts.undefined, *(one for one in names if one not in arguments.open)))
        ),
        open_arguments=arguments.open,
        arguments=tuple(_without_secret(one) for one in given),
        is_whole=any(map(is_option, launch.words)) or (len(launch.words) == 1 and "/" in launch.words[0]),
        place=place,
        kind=facts.kind,
    )


_IDENTITY: Final = ("host", "port", "model", "model_tag", "served_model_name", "config", "uvicorn_log_level",
                    "download_dir", "chat_template", "root_path")  # fmt: skip


def _name(facts: Facts, own: str | None) -> str | None:
    name = facts.name or own
    return None if name is None or is_mark(name) else shorten(shown(name), MAX_NAME)


def _path_known(model: str) -> str:
    """A path below a folder that is not known, from that folder on."""
    folder, slash, rest = model.partition("/")
    return f"/{rest}" if slash and is_mark(folder) and not has_mark(rest) else model


def _of_image(image: str) -> str | None:
    """The vendor that an image is built for, where its name says so."""
    name = image.lower()
    if "gaudi" in name or "hpu" in name:
        return "gaudi"
    return "rocm" if "rocm" in name else None


def _is_npu(variables: Mapping[str, str], facts: Facts) -> bool:
    return facts.is_npu or any(_NPU.match(name) for name in variables)


def _as_it_is(given: Sequence[Given], engine: str) -> Typed:
    """The arguments of another engine, by its own names."""
    read = typed(())
    found: dict[str, Any] = {}
    for one in given:
        if not is_secret(one.name) and one.name not in (
            "model_path",
            "model",
            "served_model_name",
            "host",
            "port",
        ):
            value = scalar(Text(one.value, is_plain=True))
            found[one.name] = None if has_mark(one.value) else value
    planned: dict[str, Any] = {}
    if is_planned(engine):
        try:
            planned = find_engine(engine).fields_of_command(found)
        except ScenarioError as error:
            wrong = str(error.field).rpartition(".")[2]
            read = replace(read, unusable=tuple(one.word for one in given if one.name == wrong) or (wrong,))
    return Typed(
        request=found, planned=planned, other={key: found[key] for key in ("nnodes",) if key in found},
        unusable=read.unusable, lines={},
    )  # fmt: skip


def _configured(
    arguments: Arguments, files: Mapping[str, str], scripts: Scripts, engine: str
) -> tuple[Given, ...]:
    """Arguments of a file that `--config` names, mounted or beside it."""
    for name in ("config", "extra_engine_args", "extra_llm_api_options"):
        path = arguments.value(name)
        if path is None:
            continue
        text = files.get(path.rsplit("/", 1)[-1]) or scripts.find(path)
        node = document(text) if text is not None else None
        if isinstance(node, Map):
            cache = node.get("kv_cache_config") if engine == "tensorrt-llm" else None
            inner = Map()
            for key, value in cache.items() if isinstance(cache, Map) else ():
                inner["kv_cache_dtype" if key == "dtype" else key] = value
            flat = Map(
                {key: value for key, value in node.items() if not isinstance(value, Map) or engine == VLLM}
            )
            return (*pairs_given(flat, engine), *pairs_given(inner, engine))
    return ()


def _models(
    launch: Launch, arguments: Arguments, last: Mapping[str, str], facts: Facts
) -> tuple[str | None, str | None, tuple[str, ...]]:
    """The model as written, its first served name, and its other names."""
    positional = arguments.positional[0] if launch.takes_model and arguments.positional else None
    given = last.get("model") or last.get("model_path") or last.get("model_tag") or last.get("model_id")
    is_own = given is not None or positional is not None
    model = given or positional or facts.model or last.get("model_dir")
    uri = launch.variables.get("STORAGE_URI", "")
    known = facts.model or (uri.removeprefix("hf://") if uri.startswith("hf://") else None)
    if model is not None and _MOUNT.fullmatch(model) and is_hub_id(known):
        model = known
    model = (repository_of(model) or model) if model is not None else None
    served = last.get("served_model_name") or last.get("model_name") or facts.served_name
    if served is not None:
        served = shown(_first_name(served)) if not has_mark(served) else None
    downloads = _DOWNLOAD.findall(facts.installs)[:HUB_IDS]
    folder = (model or "").rstrip("/").rsplit("/", 1)[-1].lower()
    matching = [one for one in downloads if one.rsplit("/", 1)[-1].lower() == folder] or downloads
    others = (
        *matching,
        *((facts.model,) if is_own and facts.model else ()),
        *facts.fallbacks,
        *((served,) if served and not is_hub_id(model) else ()),
    )
    return model, served, tuple(dict.fromkeys(one for one in others if one and not has_mark(one)))


def _first_name(text: str) -> str:
    return text.strip("[]").split(",")[0].strip(" '\"") or text


def _without_secret(one: Given) -> Given:
    if not is_secret(one.name):
        return one
    return Given(name=one.name, value="True", word=one.word, line=one.line, option=one.option)


def _shown_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that concern the engine, without secrets."""
    return {
        name: shorten(without_login(shown(value)), MAX_SHOWN)
        for name, value in variables.items()
        if _is_shown(name) and value
    }


def _is_shown(name: str) -> bool:
    is_ours = name in PLANNED_VARIABLES or name.startswith(_SHOWN_VARIABLES)
    return is_ours and not is_secret(name) and not name.endswith("_ARGS")
