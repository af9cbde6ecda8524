"""Explore, for a mixture of experts: the fewest cards and machines when replicas share out the experts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

import pandas as pd
import streamlit as st
from msgspec import Struct
from msgspec.structs import replace

from kvcore.advice.spread import (
    MOST_CARDS,
    REPLICAS,
    Spread,
    fewest_cards,
    longest_request,
    spread_scenario,
)
from kvcore.advice.sweep import cell_scenario, sweep_of_spreads
from kvcore.advice.sweep_cell import Cell
from kvcore.base.numbers import DASH, concurrency_text, count
from kvcore.base.words import Words
from kvcore.catalogue.accelerators import Accelerator
from kvcore.catalogue.models import ModelEntry
from kvcore.charts.comparison import split_name
from kvcore.planning import Verdict
from kvcore.scenario import Scenario
from pages.ui.explore import explored
from pages.ui.shared import elements, frames, net, notes, undo

SIZES = (1, 2, 4, 8, 16)
TABLE = "explore_machines"

Found: TypeAlias = tuple[Accelerator, Spread | None]


class Shared(Struct, frozen=True, kw_only=True):
    """The fewest of each card whose replicas share out the experts."""

    rows: tuple[Found, ...]
    """Least memory in all first."""
    cells: tuple[Cell, ...]
    """All swept layouts."""
    max_model_len: int

    def within(self, most: int) -> dict[str, Cell]:
        """The layouts of at most `most` cards, by the id of the card."""
        found = ((card, one) for card, one in self.rows if one is not None and one.cards <= most)
        return {card.id: one.cell for card, one in found}


def shared_among(
    scenario: Scenario, entry: ModelEntry, cards: Sequence[Accelerator], wanted: int, t: Words
) -> Shared:
    """The answers for `cards`. Raises KvPlannerError where nothing can be planned."""
    stages = scenario.parallel.pipeline_parallel_size
    sizes = [size for size in SIZES if size * stages <= MOST_CARDS]
    request = sweep_of_spreads(scenario, entry, cards, sizes, REPLICAS, explored.own_key())
    swept = explored.found(request, t)
    cells = tuple(cell for one in swept for cell in one.cells)
    rows = [(card, fewest_cards(cells, card, wanted)) for card in cards]
    rows.sort(key=lambda row: (row[1] is None, row[1].cards * row[0].memory_gib if row[1] else 0.0))
    return Shared(rows=tuple(rows), cells=cells, max_model_len=swept[0].max_model_len)


def planned(scenario: Scenario, entry: ModelEntry, card: Accelerator, cell: Cell) -> Scenario:
    """The deployment of a cell of `Shared`."""
    return cell_scenario(spread_scenario(scenario, cell.replicas), entry, card, cell.tensor_parallel_size)


def show(
    scenario: Scenario, entry: ModelEntry, shared: Shared, wanted: int, t: Words, *, is_answered: bool
) -> None:
    """The answer for the chosen card unless it stands above, and folded a row for each card; a row takes its layout to
    Plan."""
    if not is_answered:
        _answer(scenario, entry, shared, wanted, t)
    title = t("With the experts of the model spread over the replicas")
    box, is_opened = elements.fold(title, "explore_spread", ":material/hub:")
    if is_opened:
        with box:
            _how(t)
            _table(shared.rows, scenario, entry, t)


def _how(t: Words) -> None:
    """What the layouts of the table are."""
    st.caption(
        t(
            "Data parallel replicas cut the experts over all cards (--data-parallel-size with "
            "--enable-expert-parallel), over several machines too; tensor parallelism stays inside one. At most "
            "{most} cards. Choose a row to plan it.",
            most=count(MOST_CARDS),
        )
    )


def _answer(scenario: Scenario, entry: ModelEntry, shared: Shared, wanted: int, t: Words) -> None:
    """The fewest of the chosen card, with a button that plans them."""
    rows, own = shared.rows, scenario.accelerator
    card, spread = next((row for row in rows if own is not None and row[0].id == own.id), rows[0])
    tokens = shared.max_model_len
    notes.finding(
        _sentence(scenario, entry, card, spread, wanted, tokens, t),
        found=spread is not None,
        is_tight=spread is not None and spread.cell.verdict is Verdict.TIGHT,
        t=t,
    )
    way = spread or longest_request(shared.cells, card)
    _way(scenario, entry, card, way, tokens, t, is_short=spread is None)


def _sentence(
    scenario: Scenario,
    entry: ModelEntry,
    card: Accelerator,
    spread: Spread | None,
    wanted: int,
    tokens: int,
    t: Words,
) -> str:
    facts = {"card": t.card(card.name), "wanted": count(wanted), "tokens": count(tokens)}
    if spread is None:
        return t(
            "{most} × {card} have no room for {wanted} {wanted:request|requests} of {tokens} tokens at once: allow "
            "fewer requests or fewer tokens, or choose a larger card",
            most=count(MOST_CARDS),
            **facts,
        )
    return t(
        "Fewest {card} for {wanted} {wanted:request|requests} of {tokens} tokens: {cards} in {machines}, {layout}; "
        "room for {requests} at once",
        cards=count(spread.cards),
        machines=_machines(spread.machines(card), t),
        layout=split_name(_planned(scenario, entry, card, spread).parallel),
        requests=concurrency_text(spread.requests),
        **facts,
    )


def _way(
    scenario: Scenario,
    entry: ModelEntry,
    card: Accelerator,
    spread: Spread | None,
    tokens: int,
    t: Words,
    *,
    is_short: bool,
) -> None:
    """The button that plans the answer; where there is none, the longest request that fits such cards."""
    if spread is None or (is_short and spread.cell.longest_request_tokens >= tokens):
        return
    chosen = _planned(scenario, entry, card, spread)
    name = f"{count(spread.cards)} × {t.card(card.name)}, {split_name(chosen.parallel)}"
    if is_short:
        longest = spread.cell.longest_request_tokens
        chosen = replace(chosen, max_model_len=longest)
        name = t("{deployment}, {tokens} tokens", deployment=name, tokens=count(longest))
    st.button(
        t("Plan {deployment}", deployment=name),
        key="machines.take",
        icon=":material/arrow_forward:",
        on_click=undo.take_to_plan,
        args=(chosen,),
    )


def _machines(number: int, t: Words) -> str:
    return t("one machine") if number == 1 else t("{number} {number:machine|machines}", number=count(number))


def _planned(scenario: Scenario, entry: ModelEntry, card: Accelerator, spread: Spread) -> Scenario:
    """The deployment of a row."""
    return planned(scenario, entry, card, spread.cell)


def _table(rows: Sequence[Found], scenario: Scenario, entry: ModelEntry, t: Words) -> None:
    layouts: list[object] = [
        split_name(_planned(scenario, entry, card, one).parallel) if one is not None else DASH
        for card, one in rows
    ]
    columns: dict[str, list[object]] = {
        t("Accelerator"): [t.card(card.name) for card, _ in rows],
        t("Fewest GPUs"): [one.cards if one is not None else None for _, one in rows],
        t("Machines"): [one.machines(card) if one is not None else None for card, one in rows],
        t("Layout"): layouts,
        t("Requests at once"): [round(one.requests, 2) if one is not None else None for _, one in rows],
        t("Weights (GiB per GPU)"): [
            round(one.cell.weights_gib, 2) if one is not None else None for _, one in rows
        ],
    }
    frames.show(pd.DataFrame(columns), key=TABLE, on_select=partial(_take_selected, rows, scenario, entry))


@net.callback
def _take_selected(rows: Sequence[Found], scenario: Scenario, entry: ModelEntry) -> None:
    chosen = st.session_state[TABLE].selection.rows
    if chosen and chosen[0] < len(rows):
        card, spread = rows[chosen[0]]
        if spread is not None:
            undo.take_to_plan(_planned(scenario, entry, card, spread))
