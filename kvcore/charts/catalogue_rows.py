"""The catalogues as rows of tables with sources and dates, and as the facts next to a name in a picker."""

from __future__ import annotations

from enum import StrEnum
from functools import cache, lru_cache
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from kvcore import catalogue
from kvcore.base.errors import KvPlannerError
from kvcore.base.numbers import count, plain, short_count
from kvcore.base.quantity import Grade
from kvcore.base.units import GIB, KIB
from kvcore.base.words import Words, msg
from kvcore.catalogue.accelerators import Accelerator, Interconnect
from kvcore.catalogue.documented import license_of
from kvcore.catalogue.models import Checkpoint, ModelEntry, Rank
from kvcore.catalogue.names import find_model
from kvcore.engine.switches import V1Engine
from kvcore.engines.registry import engines, pools
from kvcore.model.architecture import Architecture, elements
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.model.rope import derived_max_model_len
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request

LARGEST_CARD_GIB: Final = 1024.0
"""Memory of the card that the models of the table are planned on: everything fits."""
LINK_NAMES: Final = {
    Interconnect.NVLINK: "NVLink",
    Interconnect.XGMI: "xGMI",
    Interconnect.HCCS: "HCCS",
    Interconnect.PCIE: "PCIe",
    Interconnect.NONE: msg("single card"),
}
RANK_NAMES: Final = {
    Rank.HUB: msg("the Hub's own file"),
    Rank.COPIES: msg("the same file in two projects"),
    Rank.COPY: msg("one project's copy"),
    Rank.VALUES: msg("made of published values"),
    Rank.STUB: msg("another tool's stub"),
    Rank.SHAPE: msg("another model's config"),
    Rank.FORMAT: msg("format known by name"),
}
SEPARATOR: Final = " · "


class ModelRow(Struct, frozen=True, kw_only=True):
    """One model. Figures are None where the engine refuses the model on one GPU."""

    id: str
    model_type: str
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    attention: str = ""
    context_tokens: int | None = None
    weights_gib: float | None = None
    """On one GPU, once loaded."""
    kv_kib_per_token: float | None = None
    """On one GPU, in the newest version's default dtype."""
    rank: Rank
    source: str
    checked: str


class SiblingRow(Struct, frozen=True, kw_only=True):
    """One model of which no more is known than its name, the model that it is made of and the format that it names."""

    id: str
    base: str
    format: str
    rank: Rank
    source: str
    checked: str


class AcceleratorRow(Struct, frozen=True, kw_only=True):
    """One kind of card."""

    id: str
    name: str
    vendor: str
    memory_gib: float
    is_exact: bool
    bandwidth_gb_s: float | None
    interconnect: str
    capability: str
    source: str
    checked: str


class VersionRow(Struct, frozen=True, kw_only=True):
    """One known release."""

    engine: str
    version: str
    runs_on: str
    """The vLLM release that a plug-in runs on."""
    generation: str
    utilization: float
    source: str


@cache
def model_rows() -> tuple[ModelRow, ...]:
    """All bundled models, by name. Takes seconds the first time: every config is read and planned."""
    return tuple(_model_row(find_model(model)) for model in catalogue.model_ids())


def _model_row(entry: ModelEntry) -> ModelRow:
    request = {"model": entry.id, "accelerator": {"memory_gib": LARGEST_CARD_GIB, "vendor": "nvidia"}}
    model_type = str(entry.config.raw.get("model_type", ""))
    named = ModelRow(
        id=entry.id, model_type=model_type, rank=entry.rank, source=entry.source, checked=entry.checked
    )
    try:
        planned = plan(scenario_from_request(request))
    except KvPlannerError:
        return named
    architecture, cache_plan = planned.architecture, planned.cache
    kinds = sorted({spec.kind.value for specs in planned.specs for spec in specs})
    return replace(
        named,
        model_type=architecture.model_type,
        layers=architecture.num_layers,
        heads=architecture.num_attention_heads,
        kv_heads=architecture.num_kv_heads,
        attention=" + ".join(kind.removesuffix("_attention") for kind in kinds),
        context_tokens=planned.resolved.derived_max_model_len,
        weights_gib=round(planned.loaded_weights.value / GIB, 2),
        kv_kib_per_token=round(cache_plan.bytes_per_token / KIB, 2) if cache_plan is not None else None,
    )


@cache
def sibling_rows() -> tuple[SiblingRow, ...]:
    """All bundled models without a config of their own, by name."""
    own = frozenset(catalogue.model_ids())
    entries = (find_model(model) for model in catalogue.known_ids() if model not in own)
    return tuple(
        SiblingRow(
            id=entry.id,
            base=entry.base,
            format=entry.format,
            rank=entry.rank,
            source=entry.source,
            checked=entry.checked,
        )
        for entry in entries
    )


@cache
def accelerator_rows() -> tuple[AcceleratorRow, ...]:
    """All bundled accelerators, by vendor and memory."""
    return tuple(
        AcceleratorRow(
            id=card.id,
            name=card.name,
            vendor=card.vendor.value,
            memory_gib=card.memory_gib,
            is_exact=card.memory_grade is Grade.EXACT,
            bandwidth_gb_s=card.memory_bandwidth_gb_s,
            interconnect=card.interconnect.value,
            capability=".".join(map(str, card.compute_capability or ())),
            source=card.source,
            checked=card.checked,
        )
        for card in catalogue.load_accelerators()
    )


@cache
def version_rows() -> tuple[VersionRow, ...]:
    """Every known release, newest first, vLLM before its plug-ins."""
    return tuple(
        VersionRow(
            engine=engine.name,
            version=str(own),
            runs_on=str(host) if engine.facts.releases else "",
            generation="V0" if engine.switches(host).v1_engine in (V1Engine.NEVER, V1Engine.OPT_IN) else "V1",
            utilization=engine.switches(host).gpu_memory_utilization,
            source=engine.facts.source,
        )
        for engine in engines()
        for own, host in reversed(engine.releases())
    )


def model_facts(config: ModelConfig, checkpoint: Checkpoint, license_name: str, t: Words) -> str:
    """Parameters, longest context and license, as far as known; "" where the config cannot be read.

    Example:
        >>> from kvcore.base.words import Language, words
        >>> entry = find_model("Qwen/Qwen3-32B")
        >>> model_facts(entry.config, entry.checkpoint, "Apache-2.0", words(Language.ENGLISH))
        '32.8B · 40,960 tokens · Apache-2.0'
    """
    try:
        architecture = read_architecture(config)
    except KvPlannerError:
        return license_name
    total = checkpoint.total_parameters or parameters(architecture)
    length = derived_max_model_len(architecture.context, engines()[0].releases()[-1][1])
    parts = [short_count(total), t("{tokens} tokens", tokens=count(length)), license_name]
    return SEPARATOR.join(part for part in parts if part)


@lru_cache(maxsize=2048)
def bundled_facts(model: str, t: Words) -> str:
    """`model_facts` of a bundled model."""
    entry = find_model(model)
    return model_facts(entry.config, entry.checkpoint, license_of(model), t)


def accelerator_facts(card: Accelerator, t: Words) -> str:
    """Memory, link and memory bandwidth.

    Example:
        >>> from kvcore.catalogue import find_accelerator
        >>> from kvcore.base.words import Language, words
        >>> accelerator_facts(find_accelerator("H100-80GB"), words(Language.ENGLISH))
        '79.19 GiB · NVLink · 3,350 GB/s'
    """
    bandwidth = card.memory_bandwidth_gb_s
    parts = [f"{plain(card.memory_gib)} GiB", t(LINK_NAMES[card.interconnect])]
    if bandwidth is not None:
        parts.append(f"{count(round(bandwidth))} GB/s")
    return SEPARATOR.join(parts)


class Task(StrEnum):
    """What a model is for."""

    TEXT = "text"
    POOLING = "pooling"
    SENSES = "senses"


TASK_NAMES: Final = {
    Task.TEXT: msg("Text"),
    Task.POOLING: msg("Embedding and ranking"),
    Task.SENSES: msg("Images, speech, video"),
}


class Kind(NamedTuple):
    """What a model is for, and its parameters."""

    task: Task
    parameters: int


@lru_cache(maxsize=2048)
def kind_of(model: str) -> Kind:
    """The task and size of a bundled model.

    Example:
        >>> kind_of("Qwen/Qwen3-32B").task, kind_of("Qwen/Qwen3-Embedding-8B").task
        (<Task.TEXT: 'text'>, <Task.POOLING: 'pooling'>)
    """
    entry = find_model(model)
    architecture = read_architecture(entry.config)
    total = entry.checkpoint.total_parameters or parameters(architecture)
    if pools(entry.config.architectures, entry.checkpoint):
        return Kind(Task.POOLING, total)
    return Kind(Task.SENSES if architecture.is_multimodal else Task.TEXT, total)


def parameters(architecture: Architecture) -> int:
    """The number of parameters of the whole model."""
    per_layer = {id(layer): sum(map(elements, layer.modules)) for layer in architecture.layers}
    around = (*architecture.first, *architecture.every, *architecture.last)
    return sum(per_layer[id(layer)] for layer in architecture.layers) + sum(map(elements, around))
