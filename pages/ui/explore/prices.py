"""The visitor's own prices per GPU and hour, kept in the link, for the cost of a deployment."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import streamlit as st

from kvcore import catalogue
from kvcore.base.words import Words
from pages.ui.shared import net, numbers, state
from pages.ui.shared.parameters import LARGEST_PRICE

PRICED = "explore_priced"
MAX_PRICED = 24


def prices() -> Mapping[str, float]:
    """The prices by the id of the card."""
    found: Mapping[str, float] = state.page_parameter("prices")
    return found


def show(t: Words) -> None:
    """The cards that have a price, with a field for each."""
    box = st.popover(
        t("Your prices per GPU-hour"), icon=":material/payments:", key="explore_prices", on_change="rerun"
    )
    if not box.open:
        return
    names = {card.id: t.card(card.name) for card in catalogue.load_accelerators()}
    now = prices()
    with box:
        st.caption(t("In any currency; they stay in the link. The cheapest card is named above the matrix."))
        if PRICED not in st.session_state:
            st.session_state[PRICED] = list(now)
        st.session_state[PRICED] = [*dict.fromkeys((*st.session_state[PRICED], *now))]
        chosen = st.multiselect(
            t("Accelerators with a price"),
            list(names),
            format_func=lambda card: names.get(card, card),
            key=PRICED,
            max_selections=MAX_PRICED,
            placeholder=t("Choose accelerators"),
            on_change=_drop_others,
        )
        with st.container(horizontal=True, key="explore_price_fields"):
            for card in chosen:
                numbers.box(
                    st.container(width=190),
                    names[card],
                    numbers.Limits(0.0, LARGEST_PRICE, is_whole=False),
                    now.get(card),
                    t,
                    key=f"price.{card}",
                    take=partial(_set_price, card),
                    is_optional=True,
                    placeholder=t("per GPU-hour"),
                )


def _set_price(card: str, price: float | None) -> None:
    kept = {name: amount for name, amount in prices().items() if name != card}
    _tell(kept | ({card: round(price, 6)} if price else {}))


@net.callback
def _drop_others() -> None:
    """Callback: removes the price of a card that is no longer listed."""
    _tell({card: price for card, price in prices().items() if card in st.session_state[PRICED]})


def _tell(changed: Mapping[str, float]) -> None:
    state.set_page_parameter("prices", MappingProxyType(dict(changed)) if changed else None)
