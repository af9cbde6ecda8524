"""The sidebar's controls for `--additional-config`: the keys that the release reads, and the rest as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import streamlit as st

from kvcore.base.errors import KvPlannerError, notice
from kvcore.base.words import Words, listed
from kvcore.controls import additional
from kvcore.engine.facts import ADDITIONAL as FIELD
from kvcore.engines.registry import engine_of
from kvcore.flags import Flag
from kvcore.wire.fields import MAX_OBJECT_CHARACTERS
from pages.ui.shared import net, problems, state
from pages.ui.shared.state import seed

REST = f"{FIELD}.rest"
DRAFT = f"{FIELD}.draft"
"""The typed text that was refused, to be corrected."""


def keys(is_of_use: Callable[[Flag], bool], draw: Callable[[Flag], None], t: Words) -> None:
    """A control for each useful key that the release reads, then a field for the rest."""
    scenario = state.scenario()
    if not additional.is_taken_apart(scenario):
        return
    try:
        rows = [flag for flag in additional.rows_of(scenario) if is_of_use(flag)]
    except KvPlannerError:  # a release that nobody knows: the page says so, and every key stays in the text
        rows = []
    st.caption(
        t(
            "Settings that the plug-in alone reads: `--additional-config`. Only keys of this release have a control."
        )
    )
    for flag in rows:
        draw(flag)
    _rest(tuple(flag.name for flag in rows), t)
    _unread(t)


def _rest(shown: tuple[str, ...], t: Words) -> None:
    now = additional.rest_of(state.scenario(), shown)
    if problems.at(REST) is not None:
        now = st.session_state.get(DRAFT, now)
    st.text_area(
        t("Other keys, as JSON"),
        value=now,
        key=seed(REST, now),
        height="content",
        max_chars=2 * MAX_OBJECT_CHARACTERS,
        placeholder='{"weight_prefetch_config": {"enabled": true}}',
        help=t(
            "Everything else that `--additional-config` says. The whole flag of a command can be pasted here."
        ),
        on_change=_take_rest,
        args=(shown,),
    )
    problems.show(REST, t("This setting was not changed."), t)


@net.callback
def _take_rest(shown: Iterable[str]) -> None:
    text = st.session_state[REST]
    try:
        changed = additional.with_rest(state.scenario(), shown, text)
    except KvPlannerError as error:
        st.session_state[DRAFT] = text
        problems.keep(REST, error)
        return
    problems.clear()
    state.set_scenario(changed)


def _unread(t: Words) -> None:
    """The keys that this release ignores, each with the releases that read it."""
    scenario = state.scenario()
    engine = engine_of(scenario)
    try:
        found = engine.unread_keys(scenario)
    except KvPlannerError:
        return
    if not found:
        return
    release = f"{scenario.engine} {scenario.engine_version or engine.assumed_version(scenario)}"
    passed = notice("additional-config-not-read", FIELD, release=release, keys=", ".join(found))
    lines = [t.error(passed)]
    for key in found:
        readers = additional.readers_of(scenario, key)
        if readers:
            lines.append(t("{key}: read by {releases}", key=key, releases=listed(t, readers)))
    with st.container(key="additional_unread"):
        st.text("\n".join((*lines, f"→ {t.next_step(passed)}")))
