"""Explore, first question: the chosen model on every accelerator at every size, and the smallest that fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow
import streamlit as st
from msgspec import Struct
from msgspec.structs import replace
from pyarrow import Table

from kvcore import catalogue
from kvcore.advice.sweep import SweptModel, cell_scenario, sweep, sweep_of_cards
from kvcore.advice.sweep_cell import Cell
from kvcore.base.errors import KvPlannerError
from kvcore.base.numbers import DASH, concurrency_text, count
from kvcore.base.words import Words, msg, sentences
from kvcore.catalogue.accelerators import Accelerator, Interconnect, Vendor
from kvcore.catalogue.models import ModelEntry
from kvcore.charts.heat import cell_word, head_html, heat_map
from kvcore.charts.matrix import (
    BAND_NAMES,
    MEMORY_BANDS,
    ORDER_NAMES,
    VENDOR_NAMES,
    Answer,
    Filters,
    Order,
    Row,
    Target,
    cheapest_answer,
    chosen_cards,
    deployment_name,
    first_rows,
    layout_name,
    matrix_rows,
    own_answer,
    smallest_answer,
    usual_vendors,
)
from kvcore.charts.plotting import Figure
from kvcore.controls import offers
from kvcore.flags import FLAGS
from kvcore.scenario import Scenario
from pages.ui.explore import explored, machines, prices
from pages.ui.shared import elements, net, notes, numbers, state, undo
from pages.ui.shared.parameters import GPU_LIMITS

MATRIX = "explore_matrix"
WITHOUT_TARGET = 10
"""Requests at once that are looked for where the scenario has no target."""
OTHER_CHECKPOINT = msg(
    "vllm-ascend does not take this checkpoint: on Ascend cards the 8-bit one of ModelSlim, Huawei's quantization "
    "tool, is planned (quantization ascend)."
)


def show(t: Words) -> None:
    """The answers, then the filters, the matrix and the same as a table."""
    scenario = state.scenario_at_a_length()
    cards, replicas = cards_of(scenario), scenario.parallel.data_parallel_size
    with st.container(horizontal=True, key="explore_question", gap="medium", vertical_alignment="bottom"):
        wanted, limit = wanted_requests(t), gpus_at_most(replicas, t)
        prices.show(t)
    above = st.container(key="explore_answer", gap="small")
    filters = _filters(scenario, t)
    stages = scenario.parallel.pipeline_parallel_size
    sizes = tuple(size for size in GPU_LIMITS if size * stages <= limit)
    shown = chosen_cards(cards, filters)
    if not sizes or not shown:
        st.info(
            t("No accelerator matches these filters: remove one of them."),
            icon=":material/filter_alt_off:",
        )
        return
    by_id = {card.id: card for card in cards}
    own_id = "" if scenario.accelerator is None else scenario.accelerator.id
    try:
        swept, key = _swept(scenario, t)
        shared = _spread(scenario, shown, filters, wanted, t)
        target = Target(
            wanted=wanted,
            prices=prices.prices(),
            max_num_seqs=scenario.max_num_seqs,
            spreads=shared.within(limit) if shared is not None and replicas == 1 else {},
        )
        # The texts of a language are kept as long as the server runs, and prices are the visitor's own.
        asked = key, id(t), [card.id for card in shown], sizes, filters, target, own_id
        is_shared = key and not target.prices
        seen = explored.drawn(
            repr(asked) if is_shared else "", lambda: _seen(swept, shown, sizes, filters, target, own_id, t)
        )
    except KvPlannerError as error:
        notes.problem(t("This cannot be planned"), error, t)
        return
    with above:
        _answers(scenario, seen, target, by_id, t)
    caption = t(
        "Requests of {tokens} tokens that fit in the KV cache at once. Outlined: at least {wanted}. "
        "Choose a cell to plan it.",
        tokens=count(swept.max_model_len),
        wanted=count(wanted),
    )
    more = () if not seen.left_out else (
        t("Shown: the fewest GPUs of each vendor; “Show all cards” adds {cards}.", cards=count(seen.left_out))
        if filters.order is Order.VENDOR
        else t("“Show all cards” adds {cards}.", cards=count(seen.left_out)),
    )  # fmt: skip
    st.caption(sentences(t, (caption, *more, *_caveats(scenario, shown, wanted, seen, t))))
    st.html(seen.head)
    elements.selectable(
        seen.figure,
        MATRIX,
        t("Requests at once by accelerator and tensor parallel size; the table below says the same"),
        on_select=partial(_take_selected, scenario),
    )
    st.caption(
        t(
            "Too big: no memory for the weights or the KV cache. Context too long: one request of this "
            "length does not fit. Refused: the engine stops before it looks at memory. Tight: within "
            "the estimate's error."
        )
    )
    box, is_opened = elements.fold(t("The same as a table"), "explore_as_table", ":material/table:")
    if is_opened:
        box.dataframe(seen.table, hide_index=True, placeholder=DASH, key="explore_table")
    if shared is not None:
        machines.show(scenario, entry_of(scenario), shared, wanted, t, is_answered=own_id in target.spreads)


def _answers(
    scenario: Scenario, seen: Seen, target: Target, by_id: Mapping[str, Accelerator], t: Words
) -> None:
    """The person's own card, the cheapest at their prices, the smallest: a line each, with buttons that plan it."""
    cheapest = cheapest_answer(seen.rows, by_id, target, t)
    taken: set[Cell] = set()
    for answer in (seen.own, cheapest, seen.answer):
        if answer is None:
            continue
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            notes.finding(
                answer.text, found=bool(answer.cells) and answer.is_met, is_tight=answer.is_tight, t=t
            )
            for cell in dict.fromkeys(answer.cells):
                if cell in taken:
                    continue
                taken.add(cell)
                st.button(
                    t("Plan {deployment}", deployment=deployment_name(cell, by_id, t)),
                    key=f"take.{cell.accelerator}.{cell.tensor_parallel_size}.{cell.replicas}",
                    icon=":material/arrow_forward:",
                    on_click=take,
                    args=(scenario, cell, cell in target.spreads.values()),
                )


def _caveats(
    scenario: Scenario, shown: Sequence[Accelerator], wanted: int, seen: Seen, t: Words
) -> Iterator[str]:
    """What else the figures of the matrix rest on."""
    replicas = scenario.parallel.data_parallel_size
    if other_checkpoint(scenario, entry_of(scenario), shown):
        yield t(OTHER_CHECKPOINT)
    if replicas > 1:
        yield t("Requests and GPUs are of all {replicas} data parallel replicas.", replicas=count(replicas))
    seats = None if scenario.max_num_seqs is None else scenario.max_num_seqs * replicas
    if seats is not None and seats < wanted:
        yield t(
            "max_num_seqs allows only {seats} of the target requests at once, whatever the card.",
            seats=count(seats),
        )
    if seen.misses_alone:
        yield t(
            "Cards without a link to others in their machine are outlined only where one of them is enough."
        )


def _spread(
    scenario: Scenario, shown: tuple[Accelerator, ...], filters: Filters, wanted: int, t: Words
) -> machines.Shared | None:
    """For a mixture of experts, the fewest cards whose replicas share out its experts; None where no card fills
    machines."""
    among = _shared_among(scenario, shown, filters)
    if not among or not offers.has_experts(scenario):
        return None
    return machines.shared_among(scenario, entry_of(scenario), among, wanted, t)


def _shared_among(
    scenario: Scenario, shown: tuple[Accelerator, ...], filters: Filters
) -> tuple[Accelerator, ...]:
    """The bundled cards that fill whole machines: the shown ones; without a chosen vendor, those of the scenario's."""
    own = scenario.accelerator
    vendor = Vendor.NVIDIA if own is None else own.vendor
    is_chosen = set(filters.vendors) != set(_usual(scenario))
    return tuple(
        card
        for card in shown
        if (is_chosen or card.vendor is vendor) and card.interconnect is not Interconnect.NONE
    )


def _usual(scenario: Scenario) -> tuple[str, ...]:
    """The vendors whose cards are shown until others are chosen."""
    own = scenario.accelerator
    return tuple(vendor.value for vendor in usual_vendors(None if own is None else own.vendor))


def cards_of(scenario: Scenario) -> tuple[Accelerator, ...]:
    """The catalogue's accelerators, after the scenario's own card where it is not one of them."""
    known = catalogue.load_accelerators()
    own = scenario.accelerator
    if own is None or own in known:
        return known
    return (own, *(card for card in known if card.id != own.id))


class Seen(Struct, frozen=True, kw_only=True):
    """All that is shown of a sweep except prices: the same for everybody who asks the same."""

    rows: tuple[Row, ...]
    own: Answer | None
    answer: Answer
    misses_alone: bool
    left_out: int
    """Cards that would be shown but for their number."""
    head: str
    figure: Figure
    table: Table


def _seen(
    swept: SweptModel,
    shown: tuple[Accelerator, ...],
    sizes: tuple[int, ...],
    filters: Filters,
    target: Target,
    own_id: str,
    t: Words,
) -> Seen:
    serving = matrix_rows(swept.cells, shown, sizes, filters, target)
    proposed = [row for row in serving if not row[0].is_integrated or row[0].id == own_id]
    answer = smallest_answer(proposed, {card.id: card for card in shown}, target, swept.max_model_len, t)
    own = next((own_answer(row, target, t) for row in serving if row[0].id == own_id), None)
    kept = {*filters.kept, *(cell.accelerator for cell in answer.cells)}
    rows = first_rows(serving, kept, filters, target)
    if not rows:
        rows = matrix_rows(swept.cells, shown, sizes, replace(filters, with_all=True), target)
    return Seen(
        rows=rows,
        own=own,
        answer=answer,
        misses_alone=target.misses_alone(rows),
        left_out=max(0, len(serving) - len(rows)),
        head=head_html(rows, target, t),
        figure=heat_map(rows, target, t, is_grouped=filters.order is Order.VENDOR),
        table=_table(rows, target, t),
    )


def _swept(scenario: Scenario, t: Words) -> tuple[SweptModel, str]:
    """The scenario's model on every card of `cards_of` at every size, and the key of a sweep that others may share (""
    otherwise). A card of one's own is swept apart."""
    stages = scenario.parallel.pipeline_parallel_size
    sizes = [size for size in GPU_LIMITS if size * stages <= GPU_LIMITS[-1]]
    entry, known = entry_of(scenario), catalogue.load_accelerators()
    request = sweep_of_cards(scenario, entry, known, sizes, explored.own_key())
    (swept,) = explored.found(request, t)
    own = scenario.accelerator
    if own is None or own in known:
        return swept, request.key if request.is_shared else ""
    (alone,) = sweep(scenario, [entry], [own], sizes)
    others = tuple(cell for cell in swept.cells if cell.accelerator != own.id)
    return replace(swept, cells=(*alone.cells, *others)), ""


def other_checkpoint(scenario: Scenario, entry: ModelEntry, cards: Sequence[Accelerator]) -> bool:
    """Whether any of `cards`, one of each vendor, is planned with another checkpoint than the model's own."""
    one_each = {card.vendor: card for card in reversed(cards)}
    planned = (cell_scenario(scenario, entry, card, 1).quantization for card in one_each.values())
    return scenario.quantization is None and any(one is not None for one in planned)


def entry_of(scenario: Scenario) -> ModelEntry:
    """The scenario's model as an entry of a sweep."""
    return ModelEntry(
        id=scenario.model, config=scenario.config, checkpoint=scenario.checkpoint, source="", checked=""
    )


def wanted_requests(t: Words) -> int:
    """How many requests the deployment is to serve at once: the scenario's target, and the field that sets it."""
    flag = FLAGS["wanted"]
    with st.container(width=220):
        wanted: int | None = numbers.box(
            st,
            t(flag.label),
            numbers.Limits(*flag.bounds),
            state.scenario().wanted,
            t,
            key="explore_wanted",
            take=partial(state.set_field, flag.name),
            is_optional=True,
            placeholder=count(WITHOUT_TARGET),
        )
    return wanted or WITHOUT_TARGET


def gpus_at_most(replicas: int, t: Words) -> int:
    """Most GPUs that one replica may take."""
    name = t("Max GPUs") if replicas == 1 else t("Max GPUs per replica")
    limit = st.segmented_control(
        name, GPU_LIMITS, required=True, **state.bound("gpus", "explore_gpus", takes="default")
    )
    return int(limit)


def _filters(scenario: Scenario, t: Words) -> Filters:
    with st.container(horizontal=True, key="explore_filters", gap="small", vertical_alignment="top"):
        own = scenario.accelerator
        vendors = st.pills(
            t("Vendor"),
            [vendor.value for vendor in VENDOR_NAMES],
            format_func=lambda name: t({vendor.value: text for vendor, text in VENDOR_NAMES.items()}[name]),
            selection_mode="multi",
            **state.bound("vendors", "explore_vendors", _usual(scenario), takes="default"),
        )
        bands = st.pills(
            t("Memory of a card (GB)"),
            list(MEMORY_BANDS),
            format_func=BAND_NAMES.__getitem__,
            selection_mode="multi",
            **state.bound("memory", "explore_memory", takes="default"),
        )
        order = st.selectbox(
            t("Sort by"),
            format_func=lambda name: t(ORDER_NAMES[Order(name)]),
            width=190,
            **state.bound_choice("sort", "explore_order", [order.value for order in Order]),
        )
        failing = st.toggle(
            t("Show all cards"),
            help=t("Also those that do not serve the target"),
            **state.bound("failing", "explore_failing"),
        )
    kept = (*([] if own is None else [own.id]), *prices.prices())
    return Filters(
        vendors=vendors, memory_bands=bands, with_all=failing, order=Order(order), kept=frozenset(kept)
    )


def _table(rows: tuple[Row, ...], target: Target, t: Words) -> Table:
    """The table in the form that is sent, which takes longer to make than to plan one of its rows."""
    fewest = [target.smallest(row) for row in rows]
    costs = [target.cost(row) for row in rows]
    columns: dict[str, list[object]] = {
        t("Accelerator"): [t.card(card.name) for card, _ in rows],
        t("Memory (GiB)"): [card.memory_gib for card, _ in rows],
        t("Fewest GPUs"): [cell.gpus if cell is not None else None for cell in fewest],
        t("Layout"): [layout_name(cell, target, t) if cell is not None else DASH for cell in fewest],
    }
    if target.prices:
        columns[t("Cost per hour")] = [cost.per_hour if cost is not None else None for cost in costs]
        columns[t("Cost per request slot")] = [
            cost.per_slot_hour if cost is not None else None for cost in costs
        ]
    for index, cell in enumerate(rows[0][1]):
        columns[f"TP {cell.tensor_parallel_size}"] = [cell_word(cells[index], t) for _, cells in rows]
    columns[t("Requests per GPU, best")] = [
        concurrency_text(best) if (best := max(cell.requests_per_gpu for cell in cells)) else DASH
        for _, cells in rows
    ]
    return pyarrow.table(columns)


@net.callback
def take(scenario: Scenario, cell: Cell, is_spread: bool = False) -> None:
    """Callback: plans one cell of the scenario's own model; `is_spread`: its replicas share out the experts."""
    by_id = {card.id: card for card in cards_of(scenario)}
    card = by_id.get(cell.accelerator)
    if card is not None and is_spread:
        undo.take_to_plan(machines.planned(scenario, entry_of(scenario), card, cell))
    elif card is not None:
        undo.take_to_plan(cell_scenario(scenario, entry_of(scenario), card, cell.tensor_parallel_size))


@net.callback
def _take_selected(scenario: Scenario) -> None:
    points = st.session_state[MATRIX].selection.points
    if points:
        name, size = points[0]["customdata"][:2]
        take(scenario, Cell(accelerator=str(name), tensor_parallel_size=int(size)))
