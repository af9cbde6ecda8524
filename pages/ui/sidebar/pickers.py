"""Search fields for model and accelerator: typed text finds what is meant, with facts next to each name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from typing import NamedTuple

import streamlit as st

from kvcore import catalogue
from kvcore.base.errors import KvPlannerError
from kvcore.base.words import Words
from kvcore.catalogue.accelerators import Interconnect
from kvcore.charts import catalogue_rows, summary
from kvcore.charts.matrix import VENDOR_NAMES
from pages.ui.shared import elements, net, numbers, problems, state
from pages.ui.sidebar import model_source

PICKED = "_picked"
MODEL, CARD = "model_search", "accelerator_search"
MODEL_SOURCES, CARD_SOURCES = model_source.POPOVER, "accelerator_sources"
OWN_NAME, OWN_MEMORY, OWN_VENDOR, OWN_LINK = (
    "own_card.name", "own_card.memory_gib", "own_card.vendor", "own_card.interconnect",
)  # fmt: skip
LONGEST_TEXT = 100
MOST_HITS = 8
"""Names that are shown below a search field."""
OWN_LIMITS = numbers.Limits(0.25, 1024, is_whole=False)


class Hit(NamedTuple):
    """One search result."""

    id: str
    name: str
    facts: str


class Picker(NamedTuple):
    """A search field: its results, its callback, the other ways without a result, and its texts."""

    kind: str
    key: str
    label: str
    help_text: str
    find: Callable[[str], list[Hit]]
    take: Callable[[str], None]
    nothing: str
    other: str
    popover: str
    ask: Callable[[], None]


def model(t: Words) -> None:
    """The model: a search field, its facts, and the other ways to name one."""
    st.session_state.pop(PICKED, None)
    scenario = state.scenario()
    lost = state.lost_model()
    shown = summary.model_name(scenario) if lost is None else t("None chosen")
    _search(
        Picker(
            kind="model",
            key=MODEL,
            label=t("Model"),
            help_text=t(
                "Type a few words: `llama 3.3 70b`. Any other model comes from the Hub or from its config.json."
            ),
            find=lambda text: [
                Hit(name, name, catalogue_rows.bundled_facts(name, t))
                for name in catalogue.search_models(text, limit=MOST_HITS + 1)
            ],
            take=_take_model,
            nothing=t("No bundled model has this name."),
            other=t("Another model"),
            popover=MODEL_SOURCES,
            ask=_ask_for_model,
        ),
        shown,
        t,
    )
    model_source.show_error("model", t)
    known = catalogue.bundled_model(scenario.model)
    license_name = catalogue.license_of(scenario.model) if known and known.config == scenario.config else ""
    facts = catalogue_rows.model_facts(scenario.config, scenario.checkpoint, license_name, t)
    with st.container(key="model_facts", gap=None):
        if lost is None:
            st.caption(facts)
        box, is_opened = elements.other_ways(t("Another model"), MODEL_SOURCES)
        if is_opened:
            with box:
                _all_models(t, shown)
                model_source.other_model(t)
    model_source.unsaved(t)


def accelerator(t: Words) -> None:
    """The accelerator: a search field, its facts, and a card of one's own."""
    card = state.scenario().accelerator
    _search(
        Picker(
            kind="accelerator",
            key=CARD,
            label=t("Accelerator"),
            help_text=t("The memory is what the driver shows, a little less than the figure in the name."),
            find=lambda text: [
                Hit(found.id, t.card(found.name), catalogue_rows.accelerator_facts(found, t))
                for found in catalogue.search_accelerators(text, limit=MOST_HITS + 1)
            ],
            take=_take_card,
            nothing=t("No bundled accelerator has this name."),
            other=t("Another accelerator"),
            popover=CARD_SOURCES,
            ask=_ask_for_card,
        ),
        t.card(card.name) if card is not None else t("None chosen"),
        t,
    )
    with st.container(key="accelerator_facts", gap=None):
        if card is not None:
            st.caption(catalogue_rows.accelerator_facts(card, t))
        box, is_opened = elements.other_ways(t("Another accelerator"), CARD_SOURCES)
        if is_opened:
            with box:
                _all_cards(t)
                _own_card(t)


@st.fragment
def _search(one: Picker, now: str, t: Words) -> None:
    """The field and its results; without a result, the other ways to name one."""
    with net.under(one.key, t):
        text = _field(one.key, one.label, now, one.help_text)
        if text:
            hits = one.find(text)
            _hits(hits[:MOST_HITS], text, one.kind, one.take)
            if len(hits) > MOST_HITS:
                st.caption(t("There are more: type another word of the name."))
            if not hits:
                st.caption(one.nothing)
                st.button(
                    one.other,
                    key=f"{one.popover}.open",
                    icon=":material/arrow_forward:",
                    on_click=one.ask,
                    width="stretch",
                )
        if st.session_state.pop(PICKED, False):  # a choice made inside a fragment changes the whole page
            st.rerun()


def _field(key: str, label: str, now: str, help_text: str) -> str:
    """The typed text. An empty field shows the present choice."""
    typed = st.text_input(
        label,
        key=key,
        type="search",
        live="200ms",
        placeholder=now,
        max_chars=LONGEST_TEXT,
        help=help_text,
        autocomplete="off",
    )
    return typed.strip()


def _hits(hits: Sequence[Hit], text: str, kind: str, take: Callable[[str], None]) -> None:
    """A button for each; Enter in the field presses the first once they are those of its text (`shell.SCRIPT`)."""
    with st.container(key=f"{kind}_hits", gap=None):
        st.html(f'<i class="kv-for" hidden data-text="{escape(text)}"></i>')
        for hit in hits:
            st.button(
                f"{hit.name}  \n:small[:gray[{hit.facts}]]" if hit.facts else hit.name,
                key=f"{kind}_hit.{hit.id}",
                type="tertiary",
                width="stretch",
                on_click=take,
                args=(hit.id,),
            )


def _take_model(name: str) -> None:
    st.session_state[MODEL], st.session_state[PICKED] = "", True
    model_source.choose(name)


def _take_card(card: str) -> None:
    st.session_state[CARD], st.session_state[PICKED] = "", True
    state.set_field("accelerator", card)


@net.callback
def _ask_for_model() -> None:
    """Callback: opens the other ways, with the typed text where it can be an id of the Hub."""
    typed = st.session_state[MODEL].strip()
    st.session_state[PICKED] = True
    model_source.ask(typed if "/" in typed else "")


@net.callback
def _ask_for_card() -> None:
    st.session_state[CARD_SOURCES], st.session_state[PICKED] = True, True
    st.session_state[OWN_NAME] = st.session_state[CARD].strip()


def _all_models(t: Words, shown: str) -> None:
    now, ids = state.scenario().model if state.lost_model() is None else None, catalogue.known_ids()
    options = ids if now in ids or now is None else (now, *ids)
    st.selectbox(
        t("All bundled models"),
        options,
        index=None if now is None else options.index(now),
        key=state.seed("model", now),
        format_func=lambda name: shown if name == now else name,
        on_change=net.taking("model", model_source.choose, options),
    )


def _all_cards(t: Words) -> None:
    card = state.scenario().accelerator
    names = {entry.id: t.card(entry.name) for entry in catalogue.load_accelerators()}
    if card is not None:
        names.setdefault(card.id, t.card(card.name))
    st.selectbox(
        t("All bundled accelerators"),
        list(names),
        index=list(names).index(card.id) if card is not None else None,
        key=state.seed("accelerator", card.id if card is not None else None),
        format_func=lambda name: names.get(name, name),
        on_change=net.taking("accelerator", partial(state.set_field, "accelerator"), names),
    )


def _own_card(t: Words) -> None:
    """A card that the catalogue does not have."""
    st.text_input(
        t("Or describe one: its name"), key=OWN_NAME, max_chars=LONGEST_TEXT, placeholder="RTX 6090 32GB"
    )
    numbers.of_session(
        st,
        t("Memory as the driver reports it (GiB)"),
        OWN_LIMITS,
        OWN_MEMORY,
        None,
        t,
        is_optional=True,
        step=1.0,
    )
    st.selectbox(
        t("Vendor"),
        list(VENDOR_NAMES),
        format_func=lambda vendor: t(VENDOR_NAMES[vendor]),
        key=OWN_VENDOR,
    )
    st.selectbox(
        t("Link between cards"),
        list(catalogue_rows.LINK_NAMES),
        index=list(catalogue_rows.LINK_NAMES).index(Interconnect.PCIE),
        format_func=lambda link: t(catalogue_rows.LINK_NAMES[link]),
        key=OWN_LINK,
    )
    st.button(t("Use this accelerator"), key="own_card.use", on_click=_use_own_card)
    problems.show(OWN_NAME, t("The accelerator was not changed."), t)


@net.callback
def _use_own_card() -> None:
    facts = st.session_state
    if facts[OWN_VENDOR] not in VENDOR_NAMES or facts[OWN_LINK] not in catalogue_rows.LINK_NAMES:
        return  # a browser may still send the words of the other language
    try:
        card = catalogue.accelerator_from_facts(
            numbers.held(OWN_MEMORY, OWN_LIMITS, None),
            facts[OWN_VENDOR].value,
            catalogue.checked_name(facts[OWN_NAME]) or None,
        )
    except KvPlannerError as error:
        problems.keep(OWN_NAME, error)
        return
    problems.clear()
    state.set_accelerator(catalogue.with_interconnect(card, facts[OWN_LINK]))
    facts[CARD_SOURCES] = False
    facts[CARD] = ""
