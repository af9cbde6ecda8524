"""Every model on every accelerator at every tensor parallel size: what starts there, and what fits.

A row is what `plan` says of `cell_scenario`, digit by digit, for a small part of the work: cards that the engine treats
alike resolve to the same flags, pages and overheads, and differ in their budget alone (`sweep_cell.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvcore.advice.sweep_cell import Cell, Sweeper, cell_of
from kvcore.catalogue.accelerators import Accelerator
from kvcore.catalogue.models import ModelEntry
from kvcore.engine.rooms import with_accelerator
from kvcore.engine.vllm.versions import planned_release
from kvcore.errors import KvPlannerError
from kvcore.model.families import read_architecture
from kvcore.model.rope import derived_max_model_len
from kvcore.planning import plan
from kvcore.scenario import Measured, Runner, Scenario, without_state_flags

SIZES: Final = (1, 2, 4, 8)
DEFAULT_LENGTH: Final = 8192


@dataclass(frozen=True, kw_only=True, slots=True)
class SweptModel:
    """One model's cells, by accelerator in the order given, then by tensor parallel size."""

    model: str
    max_model_len: int
    """As planned, in tokens; the asked one where the config cannot be read."""
    cells: tuple[Cell, ...]


def sweep(
    base: Scenario, models: Iterable[ModelEntry], cards: Sequence[Accelerator], sizes: Sequence[int] = SIZES
) -> Iterator[SweptModel]:
    """The cells of each of `models` under the flags of `base`, one model after the other.

    What `base` measured or fixed for one deployment does not count here; `cell_scenario` says exactly what does.
    A length above what a model allows is cut to that, but for the model of `base` itself, which is planned as asked.
    """
    sweeper = Sweeper(cards=tuple(cards), sizes=tuple(sizes))
    for entry in models:
        scenario = model_scenario(base, entry)
        cells: dict[tuple[int, int], Cell] = {}
        engines = [engine_for(scenario, card) for card in cards]
        for engine in dict.fromkeys(engines):
            own = [index for index, found in enumerate(engines) if found == engine]
            for size in sizes:
                found = sweeper.cells(_with_engine(scenario, engine), own, size)
                cells |= {(index, size): cell for index, cell in found}
        yield SweptModel(
            model=entry.id,
            max_model_len=scenario.max_model_len or 0,
            cells=tuple(cells[index, size] for index in range(len(cards)) for size in sizes),
        )


def plan_cell(base: Scenario, entry: ModelEntry, card: Accelerator, size: int) -> Cell:
    """The same cell, planned alone: what the rows of `sweep` are compared with."""
    scenario = cell_scenario(base, entry, card, size)
    try:
        return cell_of(plan(scenario), card, size)
    except KvPlannerError as error:
        return Cell(accelerator=card.id, tensor_parallel_size=size, refusal=error.code)


def cell_scenario(base: Scenario, entry: ModelEntry, card: Accelerator, size: int) -> Scenario:
    """The deployment that the cell of `entry` on `card` at tensor parallel size `size` stands for.

    Ascend cards run vllm-ascend and others vLLM, in the version of `base` where that is its own engine and in the
    newest one otherwise.

    Example:
        >>> from kvcore import catalogue
        >>> from kvcore.scenario.request import scenario_from_request
        >>> base = scenario_from_request({"model": "Qwen/Qwen3-32B", "max_model_len": 65536})
        >>> entry, card = catalogue.find_model("Qwen/Qwen3-8B"), catalogue.find_accelerator("L40S-48GB")
        >>> cell = cell_scenario(base, entry, card, 2)
        >>> cell.max_model_len, cell.parallel.tensor_parallel_size
        (40960, 2)
    """
    scenario = model_scenario(base, entry)
    scenario = with_accelerator(scenario, card)
    return replace(scenario, parallel=replace(scenario.parallel, tensor_parallel_size=size))


def model_scenario(base: Scenario, entry: ModelEntry) -> Scenario:
    """`base` with another model, at a length that the model allows, without what one deployment measured.

    A runner and flags about recurrent states that are asked for stay with their own model.
    """
    length = base.max_model_len or DEFAULT_LENGTH
    if entry.config != base.config or base.max_model_len is None:
        length = _capped(base, entry, length)
    is_same = entry.config == base.config
    return replace(
        base if is_same else without_state_flags(base),
        model=entry.id,
        config=entry.config,
        checkpoint=entry.checkpoint,
        accelerator=None,
        runner=base.runner if is_same else Runner.AUTO,
        max_model_len=length,
        kv_cache_memory_bytes=None,
        num_gpu_blocks_override=None,
        measured=Measured(),
    )


def engine_for(scenario: Scenario, card: Accelerator) -> tuple[str, str | None]:
    """The engine that runs on `card`, with its version; None is the newest."""
    changed = with_accelerator(scenario, card)
    return changed.engine, changed.engine_version


def _with_engine(scenario: Scenario, engine: tuple[str, str | None]) -> Scenario:
    return replace(scenario, engine=engine[0], engine_version=engine[1])


def _capped(base: Scenario, entry: ModelEntry, length: int) -> int:
    try:
        context = read_architecture(entry.config).context
    except KvPlannerError:
        return length
    version = planned_release(replace(base, config=entry.config)).version
    return min(length, derived_max_model_len(context, version)) if length > 0 else length
