"""Sweeps for a server: each worked out once for all visitors who ask for the same.

The key of a sweep is a digest of what decides it: flags, card and sizes. Shared and kept are only sweeps of bundled
models on bundled cards; with a model, a draft model or a card of a visitor's own, what was found is handed to that
visitor and forgotten.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from kvcore import catalogue
from kvcore.advice.sweep import SweptModel, sweep
from kvcore.advice.sweep_cell import Cell
from kvcore.catalogue.accelerators import Accelerator
from kvcore.catalogue.models import Checkpoint, ModelEntry
from kvcore.model.config import ModelConfig
from kvcore.scenario import Measured, Runner, Scenario, without_state_flags
from kvcore.shared_work import Progress, SharedWork, Work

Swept: TypeAlias = tuple[SweptModel, ...]

MAX_BYTES: Final = 48 << 20
"""Of one process: some hundred sweeps."""
LONGEST_LINE: Final = 64
"""Different sweeps that wait at the same time; each takes at most a second or so."""
_NO_CONFIG: Final = ModelConfig.from_mapping({})


def bytes_of(swept: Swept) -> int:
    """Bytes that a sweep takes in memory, but for the texts, which are shared."""
    return sum(
        sys.getsizeof(cell) + sum(sys.getsizeof(value) for value in cell if isinstance(value, int | float))
        for model in swept
        for cell in model.cells
    )


SWEEPS: Final[SharedWork[Swept]] = SharedWork(
    bytes_of=bytes_of, most_bytes=MAX_BYTES, longest_line=LONGEST_LINE
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepRequest:
    """One sweep that a page asks for: `SWEEPS.asked(request.key, request.work, is_kept=request.is_shared)`."""

    key: str
    work: Work[Swept]
    is_shared: bool
    """Whether nothing in it is the visitor's own, so that others may have it too."""


def sweep_of_cards(
    base: Scenario, entry: ModelEntry, cards: Sequence[Accelerator], sizes: Sequence[int], own_key: str
) -> SweepRequest:
    """One model on all of `cards`. `own_key` tells the sweeps apart that are one visitor's alone."""
    is_shared = _is_bundled(entry) and _is_open(base, cards)
    flags = _flags_of(replace(base, accelerator=None), keeps_model=True)
    label = entry.id if is_shared else f"{own_key} {entry.config.text} {entry.config.hf_quant_config_text}"

    def work() -> Generator[Progress, None, Swept]:
        cells: dict[tuple[int, int], Cell] = {}
        for number, size in enumerate(sizes):
            (swept,) = sweep(base, [entry], cards, (size,))
            cells |= {(index, size): cell for index, cell in enumerate(swept.cells)}
            yield number + 1, len(sizes)
        ordered = tuple(cells[index, size] for index in range(len(cards)) for size in sizes)
        return (replace(swept, cells=ordered),)

    return SweepRequest(key=_digest("cards", flags, label, cards, sizes), work=work, is_shared=is_shared)


def sweep_of_models(base: Scenario, card: Accelerator, sizes: Sequence[int], own_key: str) -> SweepRequest:
    """Every bundled model on `card` under the flags of `base`, each as a model that is not the one of `base`."""
    is_shared = _is_open(base, [card])
    flags = _flags_of(base, keeps_model=False)

    def work() -> Generator[Progress, None, Swept]:
        names, found = catalogue.model_ids(), []
        for swept in sweep(flags, (catalogue.find_model(name) for name in names), [card], sizes):
            found.append(swept)
            yield len(found), len(names)
        return tuple(found)

    label = "" if is_shared else own_key
    return SweepRequest(key=_digest("models", flags, label, [card], sizes), work=work, is_shared=is_shared)


def _flags_of(base: Scenario, *, keeps_model: bool) -> Scenario:
    """`base` with what a sweep takes from it, and nothing of its model but, with `keeps_model`, its own flags."""
    kept = base if keeps_model else replace(without_state_flags(base), runner=Runner.AUTO)
    return replace(
        kept,
        model="",
        config=_NO_CONFIG,
        checkpoint=Checkpoint(),
        accelerator=None,
        parallel=replace(base.parallel, tensor_parallel_size=1),
        kv_cache_memory_bytes=None,
        num_gpu_blocks_override=None,
        env=dict(sorted(base.env.items())),
        measured=Measured(),
    )  # fmt: skip


def _digest(
    kind: str, flags: Scenario, label: str, cards: Sequence[Accelerator], sizes: Sequence[int]
) -> str:
    names = [card.id if _is_known(card) else repr(card) for card in cards]
    facts = repr((kind, flags, label, names, tuple(sizes)))
    return hashlib.blake2b(facts.encode("utf-8", "replace"), digest_size=32).hexdigest()


def _is_open(base: Scenario, cards: Sequence[Accelerator]) -> bool:
    """Whether nothing but flags is the visitor's own."""
    draft = base.speculative_config
    if draft is not None and draft.config is not None:
        known = catalogue.bundled_model(draft.model or "")
        if known is None or known.config != draft.config:
            return False
    return all(_is_known(card) for card in cards)


def _is_known(card: Accelerator) -> bool:
    return catalogue.bundled_accelerator(card.id) == card


def _is_bundled(entry: ModelEntry) -> bool:
    known = catalogue.bundled_model(entry.id)
    return known is not None and (known.config, known.checkpoint) == (entry.config, entry.checkpoint)
