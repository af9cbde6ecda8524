"""Memory outside torch's allocator, and torch buffers that are neither weights nor activations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from packaging.version import Version

from kvcore.catalogue.accelerators import Vendor
from kvcore.engine.protocol import OverheadRow
from kvcore.memory.setting import Setting, own_overheads
from kvcore.quantity import Grade, Quantity, figure
from kvcore.units import GIB, ceil_div
from kvcore.versioned import Reviewed, TableFile

COUNTED_BUFFERS = ("absolute", "consumed")
"""Budgets that see the runner's own buffers. Source: vllm/v1/worker/gpu_worker.py (0.9.0.1, 0.27.1)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameworkTables(Reviewed):
    """framework.toml."""

    non_torch: tuple[OverheadRow, ...]
    context: tuple[OverheadRow, ...]
    communication: tuple[OverheadRow, ...]


FRAMEWORK: Final = TableFile("kvcore.memory", "framework.toml", FrameworkTables)


def non_torch_bytes(setting: Setting) -> Quantity:
    """Bytes of the framework inside the budget of one rank.

    Kernels, workspaces and communicators made while profiling; before 0.9.2 on V1 the context too; where the budget
    counts what the device lost, the runner's buffers too.

    Source: vllm/utils/mem_utils.py:memory_profiling (0.19.0, 0.27.1).
    """
    rows = [find_overhead_of("non_torch", setting)]
    budget = budget_kind(setting)
    if budget == "absolute":
        rows.append(find_overhead_of("context", setting))
    buffers = runner_buffer_bytes(setting) if budget in COUNTED_BUFFERS else 0
    return _quantity("framework", rows, buffers)


def system_bytes(setting: Setting) -> Quantity:
    """Bytes that are taken outside the budget of one rank: driver, context and, from 0.11 on, communicators.

    Buffers of the runner that the budget does not count are here too.

    Source: vllm/v1/worker/gpu_worker.py:Worker.init_device (0.10.2, 0.11.0).
    """
    budget = budget_kind(setting)
    rows = [] if budget == "absolute" else [find_overhead_of("context", setting)]
    if setting.parallel.tensor_parallel_size > 1 and not communication_in_budget(setting):
        rows.append(find_overhead_of("communication", setting))
    buffers = 0 if budget in COUNTED_BUFFERS else runner_buffer_bytes(setting)
    return _quantity("system", rows, buffers)


def budget_kind(setting: Setting) -> str:
    """How the budget is made up: v0, absolute, parts or consumed."""
    if setting.runner == "v0":
        return "v0"
    return setting.rules.budget or setting.switches.budget


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


def find_overhead_of(table: str, setting: Setting) -> OverheadRow:
    """The first row of one of the framework's tables that matches the setting; the last of each matches anything."""
    card = setting.accelerator
    return overhead_row(
        table,
        setting.resolved.version,
        setting.runner,
        card.vendor,
        setting.link,
        card.compute_capability or (),
    )


@lru_cache(maxsize=4096)
def overhead_row(
    table: str, version: Version, runner: str, vendor: Vendor, link: str, capability: tuple[int, ...]
) -> OverheadRow:
    """The first row that matches all of these, of the engine's own before vLLM's."""
    own, dotted = own_overheads(runner), ".".join(map(str, capability))
    rows: tuple[OverheadRow, ...] = (*(getattr(own, table) if own else ()), *getattr(FRAMEWORK.load(), table))
    return next(
        row
        for row in rows
        if row.covers(version)
        and row.runner in (None, runner)
        and row.vendor in (None, vendor)
        and row.link in (None, link)
        and row.capability in (None, dotted)
    )


def _quantity(name: str, rows: list[OverheadRow], buffer_bytes: int) -> Quantity:
    spread = sum(row.spread_gib**2 for row in rows) ** 0.5
    measured = figure("measured", int(sum(row.gib for row in rows) * GIB), grade=Grade.FITTED)
    buffers = figure("buffers", buffer_bytes, grade=Grade.DERIVED)
    return figure(
        name,
        measured.value + buffers.value,
        "{measured} + {buffers}",
        measured,
        buffers,
        source="; ".join(row.source for row in rows),
        spread=spread * GIB,
    )
