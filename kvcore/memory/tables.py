"""Fitted constants of the overheads: `activations.toml`, `framework.toml`, `graphs.toml`, read strictly."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Final, TypeVar

from packaging.version import Version

from kvcore.errors import CatalogueError

OLDEST: Final = Version("0.0")
NEVER: Final = Version("9999")


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplerRow:
    """What sampling takes in one era of one runner."""

    source: str
    runner: str
    bytes_per_logit: float
    vocabulary_rows_per_multiprocessor: float
    bytes_per_token: float
    spread_gib: float
    spread_share: float
    since: Version = OLDEST
    below: Version = NEVER


@dataclass(frozen=True, kw_only=True, slots=True)
class Body:
    """Vectors of one layer alive at once, for each batched token."""

    source: str
    hidden_vectors: float
    intermediate_vectors: float
    xformers_hidden_vectors: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiling:
    """From which version the profile run of a first start holds a copy of the embedding table, but for some classes."""

    source: str
    since: Version
    uncompiled: Mapping[str, Version]
    """Model classes that are not compiled, and the release that they are in first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoder:
    source: str
    hidden_vectors: float
    values_per_patch: float
    spread_share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Multiprocessors:
    source: str
    capability: Mapping[str, int]
    card: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationTables:
    """activations.toml."""

    sampler: tuple[SamplerRow, ...]
    body: Body
    compiling: Compiling
    encoder: Encoder
    multiprocessors: Multiprocessors


@dataclass(frozen=True, kw_only=True, slots=True)
class OverheadRow:
    """A figure in GiB for one era, runner, vendor, link and compute capability; "" matches any."""

    source: str
    gib: float
    spread_gib: float
    runner: str = ""
    vendor: str = ""
    link: str = ""
    capability: str = ""
    since: Version = OLDEST
    below: Version = NEVER


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameworkTables:
    """framework.toml."""

    non_torch: tuple[OverheadRow, ...]
    context: tuple[OverheadRow, ...]
    communication: tuple[OverheadRow, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphRate:
    source: str
    kind: str
    bytes_per_graph_and_layer: float
    spread_share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphDriver:
    """How many times as much a graph takes on hosts of cards of one compute capability."""

    source: str
    capability: str
    factor: float
    since: Version = OLDEST
    below: Version = NEVER


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionSplits:
    """The most splits of FlashAttention 3 in full graphs, and the compute capability that it runs on."""

    source: str
    capability: str
    splits: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GemmWorkspace:
    """cuBLAS's workspace on one stream; capability "" matches any."""

    source: str
    kib: int
    capability: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphEstimate:
    """The engine's own estimate; `v2_share`: of the rate, what the V2 runner finds."""

    source: str
    v2_share: float
    spread_share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Workspace:
    source: str
    mib: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphTables:
    """graphs.toml."""

    rates: tuple[GraphRate, ...]
    driver: tuple[GraphDriver, ...]
    attention_splits: AttentionSplits
    gemm_workspace: tuple[GemmWorkspace, ...]
    estimate: GraphEstimate
    flashinfer_workspace: Workspace


Row = TypeVar("Row")


def read_row(kind: type[Row], raw: Mapping[str, Any], where: str) -> Row:
    """One table as `kind`; raises CatalogueError for an unknown or missing key, or a value of another type."""
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    needed = {name for name, field in fields.items() if field.default is dataclasses.MISSING}
    if not set(raw) <= set(fields) or not needed <= set(raw):
        raise CatalogueError(
            "invalid-catalogue-entry",
            field=where,
            reason=f"unknown or missing key in {', '.join(sorted(raw))}",
        )
    values = dict(raw)
    for name, value in raw.items():
        wanted = str(fields[name].type)
        if wanted == "Version":
            values[name] = Version(value)
        elif wanted == "float" and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise CatalogueError(
                "invalid-catalogue-entry", field=f"{where} {name}", reason="it must be a number"
            )
        elif wanted == "str" and not isinstance(value, str):
            raise CatalogueError(
                "invalid-catalogue-entry", field=f"{where} {name}", reason="it must be a text"
            )
    return kind(**values)


def read_rows(kind: type[Row], raw: Any, where: str) -> tuple[Row, ...]:
    """An array of tables."""
    return tuple(read_row(kind, row, f"{where}[{number}]") for number, row in enumerate(raw))


def _read_compiling(raw: Mapping[str, Any]) -> Compiling:
    """The table of model classes is written by release."""
    releases = {release: names for release, names in raw["uncompiled"].items() if release != "source"}
    classes = {name: Version(release) for release, names in releases.items() for name in names}
    return read_row(Compiling, {**raw, "uncompiled": classes}, "activations.toml compiling")


@lru_cache(maxsize=1)
def activation_tables() -> ActivationTables:
    """activations.toml."""
    raw = load("activations.toml", ActivationTables)
    return ActivationTables(
        sampler=read_rows(SamplerRow, raw["sampler"], "activations.toml sampler"),
        body=read_row(Body, raw["body"], "activations.toml body"),
        compiling=_read_compiling(raw["compiling"]),
        encoder=read_row(Encoder, raw["encoder"], "activations.toml encoder"),
        multiprocessors=read_row(Multiprocessors, raw["multiprocessors"], "activations.toml multiprocessors"),
    )


@lru_cache(maxsize=1)
def framework_tables() -> FrameworkTables:
    """framework.toml."""
    raw = load("framework.toml", FrameworkTables)
    return FrameworkTables(
        non_torch=read_rows(OverheadRow, raw["non_torch"], "framework.toml non_torch"),
        context=read_rows(OverheadRow, raw["context"], "framework.toml context"),
        communication=read_rows(OverheadRow, raw["communication"], "framework.toml communication"),
    )


@lru_cache(maxsize=1)
def graph_tables() -> GraphTables:
    """graphs.toml."""
    raw = load("graphs.toml", GraphTables)
    return GraphTables(
        rates=read_rows(GraphRate, raw["rates"], "graphs.toml rates"),
        driver=read_rows(GraphDriver, raw["driver"], "graphs.toml driver"),
        attention_splits=read_row(AttentionSplits, raw["attention_splits"], "graphs.toml attention_splits"),
        gemm_workspace=read_rows(GemmWorkspace, raw["gemm_workspace"], "graphs.toml gemm_workspace"),
        estimate=read_row(GraphEstimate, raw["estimate"], "graphs.toml estimate"),
        flashinfer_workspace=read_row(
            Workspace, raw["flashinfer_workspace"], "graphs.toml flashinfer_workspace"
        ),
    )


def load(file: str, kind: type) -> dict[str, Any]:
    """A bundled file with exactly the tables of `kind`."""
    raw = tomllib.loads(resources.files("kvcore.memory").joinpath(file).read_text(encoding="utf-8"))
    wanted = {field.name for field in dataclasses.fields(kind)}
    if set(raw) != wanted:
        raise CatalogueError(
            "invalid-catalogue-entry",
            field=file,
            reason="unknown or missing " + ", ".join(sorted(set(raw) ^ wanted)),
        )
    return raw


def find_overhead(
    rows: tuple[OverheadRow, ...], *, version: Version, runner: str, vendor: str, link: str, capability: str
) -> OverheadRow | None:
    """The first row that matches."""
    for row in rows:
        if (
            row.since <= version < row.below
            and row.runner in ("", runner)
            and row.vendor in ("", vendor)
            and row.link in ("", link)
            and row.capability in ("", capability)
        ):
            return row
    return None
