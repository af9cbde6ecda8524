"""Fitted constants of the overheads: `activations.toml`, `framework.toml`, `graphs.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, get_args

from packaging.version import Version

from kvcore.engine.protocol import GraphRate, Layers, OverheadRow, Overheads, RunnerKind, SamplerRow
from kvcore.engine.rooms import find_engine
from kvcore.versioned import (
    Amount,
    Bounds,
    Capability,
    Count,
    Published,
    ReleaseRange,
    Reviewed,
    Share,
    Source,
    TableFile,
)

Factor = Annotated[float, Bounds(0.1, 100.0)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Body:
    """Vectors of one layer alive at once, for each batched token."""

    source: Source
    hidden_vectors: Amount
    intermediate_vectors: Amount
    xformers_hidden_vectors: Amount


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiling:
    """From which version the profile run of a first start keeps a copy of the embedding table, but for some classes."""

    source: Source
    since: Published


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoder:
    """What a vision encoder stores for each patch."""

    source: Source
    hidden_vectors: Amount
    values_per_patch: Amount
    spread_share: Share


@dataclass(frozen=True, kw_only=True, slots=True)
class Multiprocessors:
    """Multiprocessors by compute capability, and of cards that differ."""

    source: Source
    capability: Mapping[Capability, Annotated[int, Bounds(1, 1024)]]
    card: Mapping[str, Annotated[int, Bounds(1, 1024)]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationTables(Reviewed):
    """activations.toml."""

    sampler: tuple[SamplerRow, ...]
    body: Body
    compiling: Compiling
    encoder: Encoder
    multiprocessors: Multiprocessors

    def __post_init__(self) -> None:
        if any(row.runner is None for row in self.sampler):
            raise ValueError("each row of sampler is of a runner")


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameworkTables(Reviewed):
    """framework.toml."""

    non_torch: tuple[OverheadRow, ...]
    context: tuple[OverheadRow, ...]
    communication: tuple[OverheadRow, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphDriver(ReleaseRange):
    """How many times as much a graph takes on hosts of cards of one compute capability."""

    source: Source
    capability: Capability
    factor: Factor


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionSplits:
    """The most splits of FlashAttention 3 in full graphs, and the compute capability that it runs on."""

    source: Source
    capability: Capability
    splits: Annotated[int, Bounds(1, 1024)]


@dataclass(frozen=True, kw_only=True, slots=True)
class GemmWorkspace:
    """cuBLAS's workspace on one stream; capability None matches any."""

    source: Source
    kib: Count
    capability: Capability | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphEstimate:
    """The engine's own estimate; `v2_share`: of the rate, what the V2 runner finds."""

    source: Source
    v2_share: Share
    spread_share: Share


@dataclass(frozen=True, kw_only=True, slots=True)
class Workspace:
    """A workspace of one size."""

    source: Source
    mib: Count


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphTables(Reviewed):
    """graphs.toml."""

    rates: tuple[GraphRate, ...]
    driver: tuple[GraphDriver, ...]
    attention_splits: AttentionSplits
    gemm_workspace: tuple[GemmWorkspace, ...]
    estimate: GraphEstimate
    flashinfer_workspace: Workspace

    def __post_init__(self) -> None:
        if {rate.kind for rate in self.rates} != set(get_args(Layers)):
            raise ValueError(f"rates are of {', '.join(get_args(Layers))}")


ACTIVATIONS: Final = TableFile("kvcore.memory", "activations.toml", ActivationTables)
FRAMEWORK: Final = TableFile("kvcore.memory", "framework.toml", FrameworkTables)
GRAPHS: Final = TableFile("kvcore.memory", "graphs.toml", GraphTables)


def own_overheads(runner: str) -> Overheads | None:
    """The constants of the engine that `runner` names; None for vLLM's own runners."""
    return None if runner in get_args(RunnerKind) else find_engine(runner).overheads


def find_overhead(
    rows: tuple[OverheadRow, ...], *, version: Version, runner: str, vendor: str, link: str, capability: str
) -> OverheadRow | None:
    """The first row that matches."""
    for row in rows:
        if (
            row.covers(version)
            and row.runner in (None, runner)
            and row.vendor in (None, vendor)
            and row.link in (None, link)
            and row.capability in (None, capability)
        ):
            return row
    return None
