"""Every model on every accelerator at every tensor parallel size: what starts there, and what fits.

A cell is what `plan` says of `cell_scenario`, digit by digit, for a small part of the work: `OnCards` works each stage
of the plan out once for all cards that it cannot tell apart.

A server works each sweep out once for all visitors who ask for the same. The key of a sweep is a digest of what decides
it: flags, card and sizes. Shared and kept are only sweeps of bundled models on bundled cards; with a model, a draft
model or a card of a visitor's own, what was found is handed to that visitor and forgotten.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import cache
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import astuple, replace

from kvcore import catalogue
from kvcore.advice.checkpoints import as_served, other_checkpoints
from kvcore.advice.spread import spread_scenario
from kvcore.advice.sweep_cell import Cell, cell_of, planned_alone, refused_cell
from kvcore.base.errors import KvPlannerError
from kvcore.base.shared_work import Progress, SharedWork, Work
from kvcore.catalogue.accelerators import Accelerator
from kvcore.catalogue.models import Checkpoint, ModelEntry
from kvcore.engines.registry import (
    engine_for,
    engine_of,
    format_refusals,
    planned_release,
    with_accelerator,
    with_engine,
)
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.model.rope import derived_max_model_len
from kvcore.planning.numbers import OnCards
from kvcore.scenario import Measured, Runner, Scenario, without_state_flags

SIZES: Final = (1, 2, 4, 8)
DEFAULT_LENGTH: Final = 8192
MAX_BYTES: Final = 48 << 20
"""Bytes in one process: some hundred sweeps."""
LONGEST_LINE: Final = 64
"""Different sweeps that wait at the same time; each takes at most a second or so."""
_NO_CONFIG: Final = ModelConfig.from_mapping({})


class SweptModel(Struct, frozen=True, kw_only=True):
    """One model's cells, by accelerator in the order given, then by tensor parallel size."""

    model: str
    max_model_len: int
    """As planned, in tokens; the asked one where the config cannot be read."""
    model_longest: int | None = None
    """Tokens of the model's own context, where the length that was asked for it lies above."""
    cells: tuple[Cell, ...]


Swept: TypeAlias = tuple[SweptModel, ...]


def sweep(
    base: Scenario, models: Iterable[ModelEntry], cards: Sequence[Accelerator], sizes: Sequence[int] = SIZES
) -> Iterator[SweptModel]:
    """The cells of each of `models` under the flags of `base`, one model after the other.

    What `base` measured or fixed for one deployment does not count here; `cell_scenario` says exactly what does.
    A length above what a model allows is cut to that, but for the model of `base` itself, which is planned as asked.
    """
    for entry in models:
        scenario = model_scenario(base, entry)
        by_engine: dict[tuple[str, str | None], list[int]] = {}
        named = engine_of(scenario)
        for index, card in enumerate(cards):
            is_own = named.runs_on(card)
            runs = (named.name, scenario.engine_version) if is_own else (engine_for(card).name, None)
            by_engine.setdefault(runs, []).append(index)
        cells: dict[int, Cell] = {}
        for (engine, version), own in by_engine.items():
            asked = with_engine(scenario, engine, version)
            for place, size in enumerate(sizes):
                published, *others = (_at_size(one, size) for one in (asked, *other_checkpoints(asked)))
                for index in own:
                    cells[index * len(sizes) + place] = _served(cards[index], published, others)
        yield SweptModel(
            model=entry.id,
            max_model_len=scenario.max_model_len or 0,
            model_longest=_exceeded(scenario),
            cells=tuple(cells[place] for place in range(len(cards) * len(sizes))),
        )


def _at_size(scenario: Scenario, size: int) -> Callable[[Accelerator], Cell]:
    """Plans `scenario` at one tensor parallel size, on one card after another."""

    @cache
    def on_cards() -> OnCards | KvPlannerError:
        try:
            return OnCards(replace(scenario, parallel=replace(scenario.parallel, tensor_parallel_size=size)))
        except KvPlannerError as error:
            return error

    def on_card(card: Accelerator) -> Cell:
        planned = on_cards()
        if isinstance(planned, KvPlannerError):
            return refused_cell(card, size, planned)
        try:
            return cell_of(planned.numbers(card), card)
        except KvPlannerError as error:
            return refused_cell(card, size, error)

    return on_card


def _served(
    card: Accelerator,
    published: Callable[[Accelerator], Cell],
    others: Sequence[Callable[[Accelerator], Cell]],
) -> Cell:
    """The cell of the published checkpoint, or of the first other one where its format is not taken on that card."""
    cell = published(card)
    if cell.refusal in format_refusals():
        found = (other(card) for other in others)
        return next((one for one in found if one.refusal not in format_refusals()), cell)
    return cell


def plan_cell(base: Scenario, entry: ModelEntry, card: Accelerator, size: int) -> Cell:
    """The same cell, planned alone: what the rows of `sweep` are compared with."""
    return planned_alone(cell_scenario(base, entry, card, size), card, size)


def cell_scenario(base: Scenario, entry: ModelEntry, card: Accelerator, size: int) -> Scenario:
    """The deployment that the cell of `entry` on `card` at tensor parallel size `size` stands for.

    Ascend cards run vllm-ascend and others vLLM, in the version of `base` where that is its own engine and in the
    newest one otherwise; a checkpoint that is not taken there gives way to ModelSlim's of the same model.

    Example:
        >>> from kvcore import catalogue
        >>> from kvcore.wire.request import scenario_from_request
        >>> base = scenario_from_request({"model": "Qwen/Qwen3-32B", "max_model_len": 65536})
        >>> entry, card = catalogue.find_model("Qwen/Qwen3-8B"), catalogue.find_accelerator("L40S-48GB")
        >>> cell = cell_scenario(base, entry, card, 2)
        >>> cell.max_model_len, cell.parallel.tensor_parallel_size
        (40960, 2)
    """
    scenario = with_accelerator(model_scenario(base, entry), card)
    return as_served(replace(scenario, parallel=replace(scenario.parallel, tensor_parallel_size=size)))


def model_scenario(base: Scenario, entry: ModelEntry) -> Scenario:
    """`base` with another model, at a length that the model allows, without what one deployment measured.

    A runner and flags about recurrent states that are asked for stay with their own model.
    """
    is_same = entry.config == base.config
    length = base.max_model_len or DEFAULT_LENGTH
    if not is_same or base.max_model_len is None:
        length = _capped(base, entry, length)
    return replace(
        _without_own_facts(base if is_same else _for_other_models(base)),
        model=entry.id,
        config=entry.config,
        checkpoint=entry.checkpoint,
        max_model_len=length,
    )


def _for_other_models(base: Scenario) -> Scenario:
    """`base` without the flags that stay with its own model."""
    return replace(without_state_flags(base), runner=Runner.AUTO)


def _without_own_facts(base: Scenario) -> Scenario:
    """`base` without its card, and without what was measured or fixed on it."""
    return replace(
        base,
        accelerator=None,
        kv_cache_memory_bytes=None,
        num_gpu_blocks_override=None,
        measured=Measured(),
    )


def _capped(base: Scenario, entry: ModelEntry, length: int) -> int:
    longest = model_longest(replace(base, config=entry.config))
    return min(length, longest) if length > 0 and longest is not None else length


def model_longest(scenario: Scenario) -> int | None:
    """Tokens of the longest context that the model itself allows; None where its config cannot be read.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> model_longest(scenario_from_request({"model": "Qwen/Qwen3-8B"}))
        40960
    """
    try:
        context = read_architecture(scenario.config).context
    except KvPlannerError:
        return None
    return derived_max_model_len(context, planned_release(scenario).version)


def _exceeded(scenario: Scenario) -> int | None:
    longest = model_longest(scenario)
    return longest if longest is not None and (scenario.max_model_len or 0) > longest else None


def bytes_of(swept: Swept) -> int:
    """Bytes that a sweep takes in memory, but for the texts, which are shared."""
    return sum(
        sys.getsizeof(cell)
        + sum(sys.getsizeof(value) for value in astuple(cell) if isinstance(value, int | float))
        for model in swept
        for cell in model.cells
    )


SWEEPS: Final[SharedWork[Swept]] = SharedWork(
    bytes_of=bytes_of, most_bytes=MAX_BYTES, longest_line=LONGEST_LINE
)


class SweepRequest(Struct, frozen=True, kw_only=True):
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
    flags = _flags_of(base, keeps_model=True)
    own = entry.config
    label = entry.id if is_shared else f"{own_key} {own.text} {own.hf_quant_config_text} {own.headers}"

    def work() -> Generator[Progress, None, Swept]:
        cells: dict[tuple[int, int], Cell] = {}
        for number, size in enumerate(sizes):
            (swept,) = sweep(base, [entry], cards, (size,))
            cells |= {(index, size): cell for index, cell in enumerate(swept.cells)}
            yield number + 1, len(sizes)
        ordered = tuple(cells[index, size] for index in range(len(cards)) for size in sizes)
        return (replace(swept, cells=ordered),)

    return SweepRequest(key=_digest("cards", flags, label, cards, sizes), work=work, is_shared=is_shared)


def sweep_of_spreads(
    base: Scenario,
    entry: ModelEntry,
    cards: Sequence[Accelerator],
    sizes: Sequence[int],
    replicas: Sequence[int],
    own_key: str,
) -> SweepRequest:
    """One model on all of `cards` as each number of replicas that share out its experts, in their order."""
    is_shared = _is_bundled(entry) and _is_open(base, cards)
    flags = _flags_of(spread_scenario(base, 1), keeps_model=True)
    own = entry.config
    label = entry.id if is_shared else f"{own_key} {own.text} {own.hf_quant_config_text} {own.headers}"

    def work() -> Generator[Progress, None, Swept]:
        found: list[SweptModel] = []
        for number in replicas:
            found += sweep(spread_scenario(base, number), [entry], cards, sizes)
            yield len(found), len(replicas)
        return tuple(found)

    key = _digest("spreads", flags, f"{label} {tuple(replicas)}", cards, sizes)
    return SweepRequest(key=key, work=work, is_shared=is_shared)


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
    return replace(
        _without_own_facts(base if keeps_model else _for_other_models(base)),
        wanted=None,
        model="",
        config=_NO_CONFIG,
        checkpoint=Checkpoint(),
        parallel=replace(base.parallel, tensor_parallel_size=1),
        env=dict(sorted(base.env.items())),
    )


def _digest(
    kind: str, flags: Scenario, label: str, cards: Sequence[Accelerator], sizes: Sequence[int]
) -> str:
    names = [card.id if _is_known(card) else repr(card) for card in cards]
    facts = repr((kind, astuple(flags), label, names, tuple(sizes)))
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
