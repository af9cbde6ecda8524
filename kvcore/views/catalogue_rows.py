"""The catalogues as rows of tables: models, accelerators, engine versions, with sources and dates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from packaging.version import Version

from kvcore import catalogue
from kvcore.catalogue.accelerators import Accelerator
from kvcore.catalogue.models import ModelEntry, find_model
from kvcore.engine.protocol import Engine
from kvcore.engine.rooms import engines
from kvcore.engine.vllm.switches import V1Engine
from kvcore.engine.vllm.versions import releases_of, switches_of
from kvcore.errors import KvPlannerError
from kvcore.planning import plan
from kvcore.quantity import Grade
from kvcore.scenario.request import scenario_from_request
from kvcore.units import GIB, KIB

LARGEST_CARD_GIB: Final = 1024.0
"""Of the card that models are read on for the table: everything fits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRow:
    """One model. Figures are None where the engine refuses the model on one GPU."""

    id: str
    model_type: str
    layers: int | None
    heads: int | None
    kv_heads: int | None
    attention: str
    context_tokens: int | None
    weights_gib: float | None
    """On one GPU, as loaded."""
    kv_kib_per_token: float | None
    """On one GPU, as the newest version stores it by default."""
    source: str
    checked: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceleratorRow:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionRow:
    """One release that is known."""

    engine: str
    version: str
    runs_on: str
    """The vLLM behind a plug-in."""
    generation: str
    utilization: float
    source: str


@cache
def model_rows() -> tuple[ModelRow, ...]:
    """All bundled models, by name. Takes seconds the first time: every config is read and planned."""
    return tuple(_model_row(find_model(model)) for model in catalogue.model_ids())


def _model_row(entry: ModelEntry) -> ModelRow:
    request = {"model": entry.id, "accelerator": {"memory_gib": LARGEST_CARD_GIB, "vendor": "nvidia"}}
    try:
        planned = plan(scenario_from_request(request))
    except KvPlannerError:
        return ModelRow(
            id=entry.id,
            model_type=str(entry.config.raw.get("model_type", "")),
            layers=None,
            heads=None,
            kv_heads=None,
            attention="",
            context_tokens=None,
            weights_gib=None,
            kv_kib_per_token=None,
            source=entry.source,
            checked=entry.checked,
        )
    architecture, cache_plan = planned.architecture, planned.cache
    kinds = sorted({spec.kind.value for specs in planned.specs for spec in specs})
    return ModelRow(
        id=entry.id,
        model_type=architecture.model_type,
        layers=architecture.num_layers,
        heads=architecture.num_attention_heads,
        kv_heads=architecture.num_kv_heads,
        attention=" + ".join(kind.removesuffix("_attention") for kind in kinds),
        context_tokens=planned.resolved.derived_max_model_len,
        weights_gib=round(planned.loaded_weights.value / GIB, 2),
        kv_kib_per_token=round(cache_plan.bytes_per_token / KIB, 2) if cache_plan is not None else None,
        source=entry.source,
        checked=entry.checked,
    )


@cache
def accelerator_rows() -> tuple[AcceleratorRow, ...]:
    """All bundled accelerators, by vendor and memory."""
    return tuple(_accelerator_row(card) for card in catalogue.load_accelerators())


def _accelerator_row(card: Accelerator) -> AcceleratorRow:
    capability = card.compute_capability
    return AcceleratorRow(
        id=card.id,
        name=card.name,
        vendor=card.vendor.value,
        memory_gib=card.memory_gib,
        is_exact=card.memory_grade is Grade.EXACT,
        bandwidth_gb_s=card.memory_bandwidth_gb_s,
        interconnect=card.interconnect.value,
        capability=f"{capability[0]}.{capability[1]}" if capability is not None else "",
        source=card.source,
        checked=card.checked,
    )


@cache
def version_rows() -> tuple[VersionRow, ...]:
    """Every known release, newest first, vLLM before its plug-ins."""
    return tuple(
        _version_row(engine, own, host)
        for engine in engines()
        for own, host in reversed(releases_of(engine.name))
    )


def _version_row(engine: Engine, version: Version, host: Version) -> VersionRow:
    switches = switches_of(host)
    generation = "V0" if switches.v1_engine in (V1Engine.NEVER, V1Engine.OPT_IN) else "V1"
    return VersionRow(
        engine=engine.name,
        version=str(version),
        runs_on=str(host) if engine.releases else "",
        generation=generation,
        utilization=switches.gpu_memory_utilization,
        source=engine.source,
    )
