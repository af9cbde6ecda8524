"""A sweep as rows and words: for the Explore page, as JSON lines for scripts, as a table for a terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.json import Encoder

from kvcore.advice.sweep import SweptModel
from kvcore.advice.sweep_cell import Cell, Cost, cost_of, serves, smallest
from kvcore.base.numbers import count, money, rough_requests
from kvcore.base.units import rounded
from kvcore.base.words import Words, msg
from kvcore.catalogue.accelerators import Accelerator, Vendor
from kvcore.planning import Verdict
from kvcore.texts import LABELS

Row: TypeAlias = tuple[Accelerator, tuple[Cell, ...]]

VENDOR_NAMES: Final[Mapping[Vendor, str]] = {
    Vendor.NVIDIA: "NVIDIA",
    Vendor.AMD: "AMD",
    Vendor.INTEL: "Intel",
    Vendor.HUAWEI: msg("Huawei"),
    Vendor.OTHER: msg("Others"),
}
FAILURE_WORDS: Final = LABELS["failures"]
BAND_NAMES: Final[Mapping[str, str]] = {
    "up-to-24": "≤ 24",
    "25-48": "25–48",
    "49-96": "49–96",
    "above-96": "> 96",
}
ORDER_NAMES: Final = LABELS["orders"]
MEMORY_BANDS: Final[Mapping[str, tuple[float, float]]] = {
    "up-to-24": (0, 25),
    "25-48": (25, 50),
    "49-96": (50, 100),
    "above-96": (100, 1e6),
}
"""Bands by their names in a link. The names are the GB in a card's name; the bounds are the GiB that torch reports."""


class Order(StrEnum):
    """How the rows of the Explore page are sorted, best first."""

    VENDOR = "vendor"
    REQUESTS = "requests"
    PER_GPU = "per-gpu"
    FEWEST_GPUS = "fewest-gpus"
    COST = "cost"
    COST_PER_SLOT = "cost-per-slot"


class Filters(Struct, frozen=True, kw_only=True):
    """Which cards and sizes to show; empty means all."""

    vendors: Collection[str] = ()
    memory_bands: Collection[str] = ()
    with_all: bool = False
    """Whether cards that cannot serve the wanted requests are shown, and more than `MOST_ROWS`."""
    order: Order = Order.VENDOR
    kept: Collection[str] = ()
    """Ids of cards that are always shown: the person's own and the priced ones."""


MOST_ROWS: Final = 10
"""Cards that are shown at first: with the answers above them two screens."""


def usual_vendors(own: Vendor | None) -> tuple[Vendor, ...]:
    """Vendors whose cards are proposed where nobody chose: those of most data centres, or the scenario's own.

    Example:
        >>> usual_vendors(Vendor.HUAWEI), usual_vendors(None)
        ((<Vendor.HUAWEI: 'huawei'>,), (<Vendor.NVIDIA: 'nvidia'>, <Vendor.AMD: 'amd'>))
    """
    usual = (Vendor.NVIDIA, Vendor.AMD)
    return usual if own is None or own in usual else (own,)


class Target(Struct, frozen=True, kw_only=True):
    """The wanted requests at once, and the prices that a person pays per GPU and hour."""

    wanted: float
    prices: Mapping[str, float] = field(default_factory=dict)
    """By the card's id, in any currency."""
    max_num_seqs: int | None = None
    spreads: Mapping[str, Cell] = field(default_factory=dict)
    """By the card's id: the fewest GPUs whose replicas share out the experts of a mixture."""

    def smallest(self, row: Row) -> Cell | None:
        """The fewest GPUs of a row's card that fit the wanted requests; None where no number does."""
        serving = (cell for cell in self.cells(row) if self.is_met(cell, row[0]))
        return min(serving, key=lambda cell: cell.gpus, default=None)

    def cells(self, row: Row) -> tuple[Cell, ...]:
        """The cells of a row, and the replicas of its card that share out the experts."""
        spread = self.spreads.get(row[0].id)
        return row[1] if spread is None else (*row[1], spread)

    def cost(self, row: Row) -> Cost | None:
        """The cost of a row's smallest deployment; None where its card has no price."""
        price = self.prices.get(row[0].id)
        cell = None if price is None else self.smallest(row)
        return None if cell is None or price is None else cost_of(cell, price, self.max_num_seqs)

    def is_met(self, cell: Cell, card: Accelerator) -> bool:
        """Whether a deployment fits the wanted requests."""
        return serves(cell, card, self.wanted)

    def misses_alone(self, rows: Iterable[Row]) -> bool:
        """Whether a cell fits the wanted requests but is not linked: its cards stand alone in their machines."""
        return any(
            cell.starts and cell.requests >= self.wanted and not self.is_met(cell, card)
            for card, cells in rows
            for cell in cells
        )


def chosen_cards(cards: Iterable[Accelerator], filters: Filters) -> tuple[Accelerator, ...]:
    """The cards that the filters let through."""
    bands = [MEMORY_BANDS[band] for band in filters.memory_bands]
    return tuple(
        card
        for card in cards
        if card.id in filters.kept
        or (
            (not filters.vendors or card.vendor in filters.vendors)
            and (not bands or any(low <= card.memory_gib < high for low, high in bands))
        )
    )


def matrix_rows(
    cells: Iterable[Cell],
    cards: Sequence[Accelerator],
    sizes: Sequence[int],
    filters: Filters,
    target: Target,
) -> tuple[Row, ...]:
    """The cells of `cards` at `sizes` in the chosen order, without those that cannot serve the target unless asked for;
    where none serves it, without those on which nothing starts."""
    found = {(cell.accelerator, cell.tensor_parallel_size): cell for cell in cells}
    rows = [(card, tuple(found[card.id, size] for size in sizes)) for card in cards]
    if not filters.with_all:
        serving = [row for row in rows if row[0].id in filters.kept or target.smallest(row) is not None]
        starting = [row for row in rows if row[0].id in filters.kept or any(cell.starts for cell in row[1])]
        rows = serving if any(target.smallest(row) is not None for row in serving) else starting
    vendors = list(Vendor)
    rows.sort(key=lambda row: (vendors.index(row[0].vendor), -row[0].memory_gib, row[0].id))
    if filters.order is not Order.VENDOR:
        rows.sort(key=lambda row: _rank(row, filters.order, target))
    return tuple(rows)


def first_rows(
    rows: Sequence[Row], kept: Collection[str], filters: Filters, target: Target
) -> tuple[Row, ...]:
    """At most `MOST_ROWS` of `rows` besides the cards `kept`, unless all are asked for: the best ones, in the order of
    vendors as many of each, those that serve the target with the fewest GPUs."""
    if filters.with_all:
        return tuple(rows)
    others = [row for row in rows if row[0].id not in kept]
    if filters.order is Order.VENDOR:
        others.sort(key=lambda row: _size(row, target))
        places: Counter[Vendor] = Counter()
        rank = {}
        for card, _ in others:
            rank[card.id] = places[card.vendor]
            places[card.vendor] += 1
        others.sort(key=lambda row: rank[row[0].id])
    hidden = frozenset(row[0].id for row in others[MOST_ROWS:])
    return tuple(row for row in rows if row[0].id not in hidden)


def _size(row: Row, target: Target) -> tuple[float, float]:
    """GPUs of a row's smallest deployment, and their memory in GiB."""
    cell = target.smallest(row)
    return (math.inf, math.inf) if cell is None else (cell.gpus, cell.gpus * row[0].memory_gib)


def _rank(row: Row, order: Order, target: Target) -> float:
    """The sort key of a row: best first, rows without a figure last."""
    cells = [cell for cell in row[1] if cell.starts]
    smallest_cell, cost = target.smallest(row), target.cost(row)
    match order:
        case Order.REQUESTS:
            return -max((cell.requests for cell in cells), default=-1.0)
        case Order.PER_GPU:
            return -max((cell.requests_per_gpu for cell in cells), default=-1.0)
        case Order.COST:
            return math.inf if cost is None else cost.per_hour
        case Order.COST_PER_SLOT:
            return math.inf if cost is None else cost.per_slot_hour
        case _:
            return math.inf if smallest_cell is None else smallest_cell.gpus


class Answer(Struct, frozen=True, kw_only=True):
    """The sentence above the matrix, and the cells that it names."""

    text: str
    cells: tuple[Cell, ...]
    is_met: bool = True
    """Whether the named deployments serve the target."""

    @property
    def is_tight(self) -> bool:
        """Whether every named deployment starts only within the estimate's error."""
        return bool(self.cells) and all(cell.verdict is Verdict.TIGHT for cell in self.cells)


def own_answer(row: Row, target: Target, t: Words) -> Answer:
    """What the person's own card serves: the fewest that serve the target, else the most that its GPUs come to."""
    card, cell = row[0], target.smallest(row)
    cards = {card.id: card}
    if cell is not None:
        facts = {"requests": rough_requests(cell.requests), "layout": layout_name(cell, target, t)}
        text = t(LABELS["answers"]["own"], deployment=deployment_name(cell, cards, t), **facts)
        return Answer(text=text, cells=(cell,))
    best = max((one for one in target.cells(row) if one.starts), key=lambda one: one.requests, default=None)
    if best is None:
        return Answer(text=t(LABELS["answers"]["own-none"], card=t.card(card.name)), cells=())
    text = t(
        LABELS["answers"]["own-short"],
        deployment=deployment_name(best, cards, t),
        layout=layout_name(best, target, t),
        requests=rough_requests(best.requests),
        wanted=count(target.wanted),
    )
    return Answer(text=text, cells=(best,), is_met=False)


def layout_name(cell: Cell, target: Target, t: Words) -> str:
    """How the GPUs of a cell are divided: `TP 4`, with `EP` where replicas share out the experts."""
    shared = ", EP" if cell in target.spreads.values() else ""
    if cell.replicas == 1:
        return f"TP {cell.tensor_parallel_size}{shared}"
    return t(
        "TP {size} × {replicas} replicas{shared}",
        size=str(cell.tensor_parallel_size),
        replicas=count(cell.replicas),
        shared=shared,
    )


def smallest_answer(
    rows: Iterable[Row], cards: Mapping[str, Accelerator], target: Target, tokens: int, t: Words
) -> Answer:
    """The smallest deployment that fits the wanted requests: fewest GPUs, then least memory in all."""
    wanted = target.wanted
    found = smallest((cell for row in rows for cell in target.cells(row)), cards, wanted)
    texts, few, least = LABELS["answers"], found.fewest_gpus, found.least_memory
    facts = {"wanted": count(wanted), "tokens": count(tokens)}
    if few is None or least is None:
        return Answer(text=t(texts["none"], **facts), cells=())
    first = t(texts["smallest"], **_deployment(few, cards, t), **facts)
    if least == few:
        return Answer(text=first, cells=(few,))
    second = t(texts["least-memory"], **_deployment(least, cards, t))
    return Answer(text=t("{first}; {second}", first=first, second=second), cells=(few, least))


def _deployment(cell: Cell, cards: Mapping[str, Accelerator], t: Words) -> dict[str, str]:
    requests = rough_requests(cell.requests)
    return {"deployment": deployment_name(cell, cards, t), "requests": requests}


def cheapest_answer(
    rows: Iterable[Row], cards: Mapping[str, Accelerator], target: Target, t: Words
) -> Answer | None:
    """The cheapest of the smallest deployments of each priced card; None where no price is given."""
    priced = [(cost.per_hour, row, cost) for row in rows if (cost := target.cost(row)) is not None]
    if not priced:
        return None
    _, row, cost = min(priced, key=lambda one: one[0])
    cell = target.smallest(row)
    assert cell is not None
    text = t(
        LABELS["answers"]["cheapest"],
        deployment=deployment_name(cell, cards, t),
        hour=money(cost.per_hour),
        slot=money(cost.per_slot_hour),
    )
    return Answer(text=text, cells=(cell,))


def deployment_name(cell: Cell, cards: Mapping[str, Accelerator], t: Words) -> str:
    """A cell as a deployment, `4 × H200 SXM 141GB`; the number stays on the line of the name."""
    return f"{cell.gpus}\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}{t.card(cards[cell.accelerator].name)}"


class ModelRow(Struct, frozen=True, kw_only=True):
    """A model that runs on the chosen hardware, with the fewest GPUs that fit it."""

    model: str
    max_model_len: int
    cell: Cell

    @property
    def has_cache(self) -> bool:
        """Whether a KV cache bounds its requests: an encoder has none, and runs as many as may run."""
        return self.cell.tokens > 0 or self.cell.verdict is Verdict.TIGHT

    def serves(self, wanted: float) -> bool:
        """Whether so many requests run at once."""
        return not self.has_cache or self.cell.requests >= wanted


def model_row(swept: SweptModel, sizes: Collection[int], wanted: float) -> ModelRow | None:
    """The smallest of the tensor parallel `sizes` that fits `wanted` concurrent requests, else the largest that
    starts.

    None where none starts.
    """
    starting = [
        ModelRow(model=swept.model, max_model_len=swept.max_model_len, cell=cell)
        for cell in swept.cells
        if cell.starts and cell.tensor_parallel_size in sizes
    ]
    return next((row for row in starting if row.serves(wanted)), starting[-1] if starting else None)


class _JsonRow(Struct, frozen=True, gc=False, omit_defaults=True):
    """A cell with the field names of docs/contract.md: its figures, or the code of its refusal."""

    model: str
    max_model_len: int
    accelerator: str
    tensor_parallel_size: int
    status: Literal["ok", "error"]
    code: str = ""
    verdict: Verdict | None = None
    max_concurrency: float | None = None
    tokens: int | None = None
    longest_request_tokens: int | None = None
    kv_cache_gib: float | None = None
    weights_gib: float | None = None
    gpus: int | None = None
    requests_per_gpu: float | None = None
    warning: str | None = None
    """The warning that a plan has, where the length lies above the model's own."""


_JSON: Final = Encoder()


def json_lines(swept: SweptModel) -> Iterator[str]:
    """One JSON object for each cell, as docs/contract.md has it."""
    for cell in swept.cells:
        yield _JSON.encode(_json_row(swept, cell)).decode()


def _warning(swept: SweptModel) -> str | None:
    return None if swept.model_longest is None else "max-model-len-above-model"


def _json_row(swept: SweptModel, cell: Cell) -> _JsonRow:
    model, length, card, size = swept.model, swept.max_model_len, cell.accelerator, cell.tensor_parallel_size
    if cell.verdict is None:
        return _JsonRow(model, length, card, size, "error", cell.refusal, warning=_warning(swept))
    return _JsonRow(
        model,
        length,
        card,
        size,
        "ok",
        verdict=cell.verdict,
        max_concurrency=cell.max_concurrency,
        tokens=cell.tokens,
        longest_request_tokens=cell.longest_request_tokens,
        kv_cache_gib=rounded(cell.kv_cache_gib),
        weights_gib=rounded(cell.weights_gib),
        gpus=cell.gpus,
        requests_per_gpu=cell.requests_per_gpu,
        warning=_warning(swept),
    )


def table_lines(swept: SweptModel, sizes: Sequence[int]) -> Iterator[str]:
    """A line for each accelerator: requests at once at each tensor parallel size, or a word for why not."""
    above = f" (above the model's own {count(swept.model_longest)})" if swept.model_longest else ""
    yield f"{swept.model}, {count(swept.max_model_len)} tokens{above}"
    width = max((len(cell.accelerator) for cell in swept.cells), default=0)
    yield "  " + "".ljust(width) + "".join(f"TP {size}".rjust(12) for size in sizes)
    for start in range(0, len(swept.cells), len(sizes)):
        row = swept.cells[start : start + len(sizes)]
        yield f"  {row[0].accelerator.ljust(width)}" + "".join(_word(cell).rjust(12) for cell in row)


def _word(cell: Cell) -> str:
    if cell.verdict is None:
        return "refused"
    if not cell.starts:
        return FAILURE_WORDS[cell.verdict]
    return f"{cell.max_concurrency:,.2f}" + (" tight" if cell.verdict is Verdict.TIGHT else "")
