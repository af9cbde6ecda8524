"""The sidebar's controls for arguments that the engine alone has, by its own names."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import streamlit as st

from kvcore.base.words import Words
from kvcore.controls.edit import OWN
from kvcore.engine.names import OwnArgument
from kvcore.engines.registry import engine_of
from kvcore.scenario import AUTO
from pages.ui.shared import net, numbers, problems, state
from pages.ui.shared.state import seed, set_field


def show(t: Words) -> None:
    """A control for each; nothing for an engine without any."""
    scenario = state.scenario()
    arguments = engine_of(scenario).own_controls(scenario)
    if not arguments:
        return
    said: dict[str, Any] = json.loads(scenario.server_args) if scenario.server_args else {}
    st.markdown(f"**{t('Arguments of this engine alone')}**")
    for argument in arguments:
        _control(argument, said.get(argument.name), t)
        problems.next_to_control(f"{OWN}.{argument.name}", t)


def _control(argument: OwnArgument, now: Any, t: Words) -> None:
    field, label, help_text = f"{OWN}.{argument.name}", t(argument.label), t(argument.help)
    take = partial(set_field, field)
    if argument.kind == "choice":
        options = (AUTO, *argument.choices)
        value = AUTO if now is None else str(now)
        shown = options if value in options else (value, *options)
        key = seed(field, value)
        st.selectbox(
            label,
            shown,
            index=shown.index(value),
            key=key,
            help=help_text,
            on_change=net.taking(key, lambda asked: take(None if asked == AUTO else asked), shown),
        )
    elif argument.kind == "switch":
        st.toggle(
            label,
            value=bool(now),
            key=seed(field, bool(now)),
            help=help_text,
            on_change=net.taking(field, lambda asked: take(True if asked else None)),
        )
    else:
        is_whole = argument.kind == "whole"
        limits = (
            numbers.Limits(1, argument.largest) if is_whole else numbers.Limits(0.01, 10.0, is_whole=False)
        )
        numbers.box(
            st,
            label,
            limits,
            now,
            t,
            key=field,
            take=take,
            is_optional=True,
            placeholder=AUTO,
            help=help_text,
        )
