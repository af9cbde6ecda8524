"""Memory of the framework inside the budget of one rank, and of the system outside.

Memory beyond torch's allocator, and torch buffers that are neither weights nor activations.
"""

import math
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Final, NamedTuple

from msgspec.structs import replace
from packaging.version import Version

from kvcore.base.kept import kept
from kvcore.base.quantity import Grade, Quantity, Unit, explained, figure, given
from kvcore.base.term import added
from kvcore.base.units import GIB, ceil_div
from kvcore.catalogue.accelerators import Accelerator, Vendor
from kvcore.engine.overheads import OverheadRow
from kvcore.engine.protocol import Engine, Setting
from kvcore.engine.setting import own_overheads
from kvcore.memory.collectives import (
    AllReduceFusion,
    exchange_bytes,
    fusion_workspace_bytes,
    heap_of,
)
from kvcore.scenario import Host
from kvcore.tables import Amount, Count, Reviewed, TableFile

COUNTED_BUFFERS: Final = ("absolute", "consumed")
"""Budgets that see the runner's own buffers. Source: vllm/v1/worker/gpu_worker.py (0.9.0.1, 0.27.1)."""


class Start(NamedTuple):
    """All that the rows of the framework tell starts apart by, but for the link."""

    engine: Engine
    runner: str
    version: Version
    vendor: Vendor
    capability: str
    cards: frozenset[str]
    """The names by which rows know this card."""
    ranks: int
    experts: bool
    host: Host | None


class FrameworkRow(OverheadRow, frozen=True, kw_only=True):
    """An overhead of so many ranks or more, of models with or without experts, on one host; None matches any."""

    more_gib: Amount = 0.0
    """How far above it may be, where that is further than below."""
    ranks: Count = 1
    experts: bool | None = None
    host: Host | None = None

    def covers_start(self, start: Start) -> bool:
        """Whether ranks, experts and host are those of the start."""
        return (
            start.ranks >= self.ranks
            and self.experts in (None, start.experts)
            and self.host in (None, start.host)
        )


class FrameworkTables(Reviewed, frozen=True, kw_only=True):
    """framework.toml."""

    non_torch: tuple[FrameworkRow, ...]
    collectives: tuple[FrameworkRow, ...]
    context: tuple[FrameworkRow, ...]
    communication: tuple[FrameworkRow, ...]
    allreduce_fusion: AllReduceFusion


TABLES: Final = ("non_torch", "collectives", "context", "communication")
"""Tables whose rows are looked up by the start."""
FRAMEWORK: Final = TableFile("kvcore.memory", "framework.toml", FrameworkTables)


def non_torch_bytes(setting: Setting) -> Quantity:
    """Bytes of the framework inside the budget of one rank.

    Kernels, libraries and communicators made while profiling; before 0.9.2 on V1 the context too; where the budget
    counts what the device lost, the runner's buffers too. With several `links` its interval spans the case of each.

    Source: vllm/utils/mem_utils.py:memory_profiling (0.19.0, 0.27.1).
    """
    budget, fusion = budget_kind(setting), FRAMEWORK.load().allreduce_fusion
    communicators = setting.engine.communicators(setting)
    is_absolute = budget == "absolute"
    return _spanned(
        "framework",
        setting,
        fitted_tables(setting),
        [
            fusion_workspace_bytes(fusion, setting, link) + exchange_bytes(setting) + communicators.value
            for link in setting.links
        ],
        runner_buffer_bytes(setting) if budget in COUNTED_BUFFERS else 0,
        taken_bytes(setting) if is_absolute else 0,
        (communicators.spread, communicators.more),
    )


def system_bytes(setting: Setting) -> Quantity:
    """Bytes that are taken outside the budget of one rank: driver, context and, from 0.11 on, communicators.

    Buffers of the runner that the budget does not count are here too, what was taken before the start, and MoRI's heap,
    which comes with its communicator (0.16.0 on).

    Source: vllm/v1/worker/gpu_worker.py:Worker.init_device (0.10.2, 0.11.0).
    """
    budget = budget_kind(setting)
    buffers = 0 if budget in COUNTED_BUFFERS else runner_buffer_bytes(setting)
    taken = 0 if budget == "absolute" else taken_bytes(setting)
    heap = heap_of(setting)
    workspaces = [heap.value] * len(setting.links)
    return _spanned("system", setting, outside_tables(setting), workspaces, buffers, taken, (heap.less, 0))


def outside_tables(setting: Setting) -> list[str]:
    """The tables that the memory outside the budget takes a row of."""
    tables = [] if budget_kind(setting) == "absolute" else ["context"]
    is_early = not setting.engine.counts_communicators and not communication_in_budget(setting)
    joined = setting.ranks > 1 and is_early
    return [*tables, "communication"] if joined else tables


def fitted_tables(setting: Setting) -> list[str]:
    """The tables that the framework inside the budget takes a row of."""
    tables = ["non_torch", *(["context"] if budget_kind(setting) == "absolute" else [])]
    joined = setting.ranks > 1 and own_overheads(setting) is None
    return [*tables, "collectives"] if joined else tables


def taken_bytes(setting: Setting) -> int:
    """Bytes that displays and other processes took of the card before the start."""
    return int((setting.scenario.surroundings.taken_gib or 0) * GIB)


def budget_kind(setting: Setting) -> str:
    """How the budget is made up: v0, absolute, parts or consumed."""
    return "v0" if setting.runner == "v0" else setting.engine.budget(setting)


def communication_in_budget(setting: Setting) -> bool:
    """Whether communicators come after the snapshot."""
    return setting.runner == "v0" or setting.switches.communication_in_budget


def runner_buffer_bytes(setting: Setting) -> int:
    """Torch buffers of the model runner: token ids, positions, slots, embeddings of a multimodal batch, drafts.

    The V2 runner adds its sampler's state: max_num_seqs × vocabulary counters of 4 bytes and two bit masks.

    Source: vllm/v1/worker/gpu/sample/penalties.py:PenaltiesState, structured_outputs.py, input_batch.py (0.28.0).
    """
    architecture, resolved = setting.architecture, setting.resolved
    tokens, sequences = resolved.max_num_batched_tokens, resolved.max_num_seqs
    total = tokens * 24
    hidden = tokens * architecture.hidden_size * setting.element_bytes
    if architecture.is_multimodal:
        total += hidden
    if resolved.speculative_method and not resolved.speculative_method.startswith("ngram"):
        total += hidden * (2 if architecture.is_multimodal else 1)
    if setting.runner == "v2":
        queries = 1 + resolved.num_speculative_tokens
        mask = ceil_div(architecture.vocab_size, 32) * 4
        total += sequences * (architecture.vocab_size * 4 + mask + mask * queries)
    return total


def overhead_rows(setting: Setting) -> tuple[Mapping[str, OverheadRow], ...]:
    """For each link of the setting, by table, the first row that matches; an engine's own rows come before vLLM's.

    The last row of each table matches all.
    """
    start = Start(
        engine=setting.engine,
        runner=setting.runner,
        version=setting.resolved.version,
        vendor=setting.accelerator.vendor,
        capability=setting.capability,
        cards=_names_of(setting.accelerator, setting.engine),
        ranks=setting.ranks,
        experts=setting.architecture.moe is not None,
        host=setting.scenario.surroundings.host,
    )
    return _rows_of(start, setting.links)


@kept
def _names_of(accelerator: Accelerator, engine: Engine) -> frozenset[str]:
    """Names of cards in rows that the card's own names contain; cached with the card, which a visitor may name."""
    label = f"{accelerator.id} {accelerator.name}"
    return frozenset(name for name in _card_names(engine) if name in label)


@cache
def _card_names(engine: Engine) -> frozenset[str]:
    """By which rows know single cards."""
    tables = FRAMEWORK.load(), engine.facts.overheads
    rows = (row for name in TABLES for table in tables for row in getattr(table, name, ()))
    return frozenset(row.card for row in rows if row.card is not None)


@lru_cache(maxsize=1024)
def _rows_of(start: Start, links: tuple[str, ...]) -> tuple[Mapping[str, OverheadRow], ...]:
    own, shared = start.engine.facts.overheads, FRAMEWORK.load()
    return tuple(
        {table: _row_of(getattr(own, table, ()), getattr(shared, table), start, link) for table in TABLES}
        for link in links
    )


def _row_of(
    own: tuple[OverheadRow, ...], shared: tuple[FrameworkRow, ...], start: Start, link: str
) -> OverheadRow:
    rows = (*own, *(row for row in shared if row.covers_start(start)))
    return next(row for row in rows if _matches(row, start, link))


def _matches(row: OverheadRow, start: Start, link: str) -> bool:
    return (
        row.covers(start.version)
        and row.runner in (None, start.runner)
        and row.vendor in (None, start.vendor)
        and row.link in (None, link)
        and row.capability in (None, start.capability)
        and (row.card is None or row.card in start.cards)
    )


def _spanned(
    name: str,
    setting: Setting,
    tables: list[str],
    workspaces: list[int],
    buffer_bytes: int,
    taken: int,
    spread: tuple[int, int] = (0, 0),
) -> Quantity:
    """The figure with the likeliest link; its interval spans that of every link."""
    rows = tuple(tuple([of_link[table] for table in tables]) for of_link in overhead_rows(setting))
    return _span(name, rows, tuple(workspaces), buffer_bytes, taken, spread)


@lru_cache(maxsize=4096)
def _span(
    name: str,
    rows_by_link: tuple[tuple[OverheadRow, ...], ...],
    workspaces: tuple[int, ...],
    buffer_bytes: int,
    taken: int,
    spread: tuple[int, int],
) -> Quantity:
    cases = [
        _case(name, rows, workspace, buffer_bytes, taken, spread)
        for rows, workspace in zip(rows_by_link, workspaces, strict=True)
    ]
    if len(cases) == 1:
        return cases[0]
    lows, highs = zip(*(case.interval or (case.value, case.value) for case in cases), strict=True)
    return replace(cases[0], interval=(min(lows), max(highs)))


def _case(
    name: str,
    rows: tuple[OverheadRow, ...],
    workspace: int,
    buffer_bytes: int,
    taken: int,
    spread: tuple[int, int],
) -> Quantity:
    parts = {
        "measured": figure("measured", int(sum(row.gib for row in rows) * GIB), grade=Grade.FITTED),
        "buffers": figure("buffers", buffer_bytes, grade=Grade.DERIVED),
        "workspace": figure("workspace", workspace, grade=Grade.DERIVED),
        "taken": given("taken", taken, Unit.BYTES, Grade.MEASURED),
    }
    used = [part for part in parts.values() if part.value or part.name in ("measured", "buffers")]
    found = explained(name, added, tuple(used), source="; ".join(row.source for row in rows))
    less = math.hypot(*(row.spread_gib * GIB for row in rows), spread[0])
    more = math.hypot(*(max(row.spread_gib, getattr(row, "more_gib", 0.0)) * GIB for row in rows), spread[1])
    return replace(found, interval=(found.value - less, found.value + more))
