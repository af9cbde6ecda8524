"""Number boxes that accept what people type, and say below the box, in the page's language, what they refuse.

Streamlit's own bounds are in English alone, for whoever hovers, and its box of whole numbers cuts "1e4" to 1 and "2.5"
to 2 without a word. So every box takes any number, which is judged here.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from kvcore.base.numbers import DASH
from kvcore.base.words import Words
from pages.ui.shared import net, state

REFUSED = "refused_number"
FORMAT = "%.12g"
DECIMALS_OF_LINK = 6


class Limits(NamedTuple):
    """The numbers that a box accepts."""

    low: float
    high: float
    is_whole: bool = True

    def taken(self, given: float | None) -> float | None:
        """`given` as the number to use; None where the box does not accept it."""
        if given is None or not self.low <= given <= self.high or (self.is_whole and given % 1):
            return None
        return int(given) if self.is_whole else given


def box(
    place: DeltaGenerator | ModuleType,
    label: str,
    limits: Limits,
    now: float | None,
    t: Words,
    *,
    key: str,
    take: Callable[[Any], object],
    is_optional: bool = False,
    step: float | None = None,
    **options: Any,
) -> Any:
    """A number box; returns the number in force: `now`, until `take` was given what somebody typed.

    An emptied box gives None to `take` where it `is_optional`; otherwise it shows its number again. A browser fills an
    emptied field with the default again, so that an optional box has none.
    """
    shown = None if now is None else float(now)
    place.number_input(
        label,
        value=None if is_optional else shown,
        step=float(step or (1 if limits.is_whole else 0.1)),
        format=FORMAT,
        key=state.seed(key, shown),
        on_change=_take,
        args=(key, limits, take, is_optional),
        **options,
    )
    of, given = st.session_state.get(REFUSED, ("", None))
    if of == key:
        del st.session_state[REFUSED]
        with place.container(key=f"refused_entry.{key}"):
            st.text(_words(limits, given, t))
    return now


def of_parameter(
    place: DeltaGenerator | ModuleType,
    label: str,
    limits: Limits,
    name: str,
    key: str,
    t: Words,
    default: Any = None,
    **options: Any,
) -> Any:
    """A box for a page parameter; `default` stands for a parameter without a default of its own."""

    def take(given: float) -> None:
        state.set_page_parameter(name, round(given, DECIMALS_OF_LINK))

    value = state.page_parameter(name)
    now = default if value is None else value
    return box(place, label, limits, now, t, key=key, take=take, **options)


def of_session(
    place: DeltaGenerator | ModuleType,
    label: str,
    limits: Limits,
    key: str,
    default: float | None,
    t: Words,
    **options: Any,
) -> Any:
    """A box for a number of this visit alone."""
    kept = f"{key}.kept"

    def take(given: float) -> None:
        st.session_state[kept] = given

    now = st.session_state.get(kept, default)
    return box(place, label, limits, now, t, key=key, take=take, **options)


def held(key: str, limits: Limits, default: float | None) -> Any:
    """The number of a box `of_session`, for a button's callback: what was typed may arrive with the press."""
    taken = limits.taken(st.session_state.get(key))
    return st.session_state.get(f"{key}.kept", default) if taken is None else taken


@net.callback
def _take(key: str, limits: Limits, take: Callable[[Any], object], is_optional: bool) -> None:
    if key not in st.session_state:
        return
    given = st.session_state[key]
    taken = limits.taken(given)
    if taken is not None or (given is None and is_optional):
        take(taken)
    else:
        st.session_state[REFUSED] = (key, given)


def _words(limits: Limits, given: float | None, t: Words) -> str:
    said = {
        "given": DASH if given is None else f"{given:,.12g}",
        "low": f"{limits.low:,.12g}",
        "high": f"{limits.high:,.12g}",
    }
    if limits.is_whole:
        return t("Not taken: {given} is not a whole number from {low} to {high}.", **said)
    return t("Not taken: {given} is not a number from {low} to {high}.", **said)
