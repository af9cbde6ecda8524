"""Compare, second part: up to four pinned scenarios, which the link carries."""

from __future__ import annotations

import streamlit as st

from kvcore.advice.vary import Variant, pinned
from kvcore.base.numbers import short_tokens
from kvcore.base.words import Words, listed
from kvcore.charts.comparison import split_name
from kvcore.scenario import Scenario
from kvcore.wire import link
from kvcore.wire.link import Pin
from pages.ui.compare import table
from pages.ui.shared import state, undo
from pages.ui.shared.labels import ID


def show(t: Words) -> None:
    """The pins and the present scenario on one axis, with a button for each."""
    st.subheader(t("Pinned scenarios"), anchor=False)
    now, kept = state.scenario(), state.pinned()
    held = tuple(pin for pin in kept if pin.scenario is not None)
    is_pinned = any(pin.scenario == now for pin in held)
    is_full = len(held) >= link.MAX_PINS
    st.button(
        t("Pin this scenario"),
        key="pin",
        icon=":material/push_pin:",
        disabled=is_pinned or is_full or not link.fits_in_link(now),
        on_click=state.set_pins,
        args=((*held, Pin(scenario=now)),),
    )
    _messages(kept, now, t, is_full=is_full, is_pinned=is_pinned)
    if not held:
        st.caption(
            t(
                "Set up a scenario in the sidebar and pin it, then change the sidebar: both appear "
                "here side by side. The link keeps the pins."
            )
        )
        return
    scenarios = [pin.scenario for pin in held if pin.scenario is not None]
    shown = pinned(scenarios if is_pinned else (*scenarios, now), now)
    named = [(_name(index, variant, len(scenarios), t), variant) for index, variant in enumerate(shown)]
    short = [t("Pin {number}", number=str(index + 1)) for index in range(len(scenarios))]
    table.show(named, "pins", t, (*short, *((t("current"),) if not is_pinned else ())))
    with st.container(horizontal=True, key="pin_buttons", gap="small"):
        for index, scenario in enumerate(scenarios):
            number = str(index + 1)
            if scenario != now:
                st.button(
                    t("Use pin {number}", number=number),
                    key=f"use_pin.{index}",
                    on_click=undo.take,
                    args=(scenario,),
                )
            st.button(
                t("Remove pin {number}", number=number),
                key=f"remove_pin.{index}",
                type="tertiary",
                on_click=state.set_pins,
                args=((*held[:index], *held[index + 1 :]),),
            )


def _messages(kept: tuple[Pin, ...], now: Scenario, t: Words, *, is_full: bool, is_pinned: bool) -> None:
    for number, pin in enumerate(kept, start=1):
        for repair in pin.repairs:
            with st.container(border=True, key=f"pin_repair.{number}.{repair.field}", gap="xsmall"):
                st.markdown(
                    f":material/link_off: **{t('Part of pin {number} could not be used', number=str(number))}**"
                )
                used = repair.used or (t("the default") if pin.scenario is not None else t("ignored"))
                st.text(
                    t("{field}: {given} → {used}", field=repair.field, given=repair.given, used=used)
                    + f"\n{t.error(repair.error)}\n{t.next_step(repair.error)}"
                )
    if is_full and not is_pinned:
        st.caption(t("At most four pins: remove one first."))
    elif not link.fits_in_link(now):
        st.caption(
            t("This scenario is too long to be pinned in a link: by a config.json or by many settings.")
        )


def _name(index: int, variant: Variant, pinned_count: int, t: Words) -> str:
    scenario = variant.scenario
    model = scenario.model.rsplit("/", 1)[-1] if ID.fullmatch(scenario.model) else "config.json"
    card = t.card(scenario.accelerator.name) if scenario.accelerator is not None else t("no card")
    head = f"{index + 1}: " if index < pinned_count else ""
    length = variant.plan.resolved.max_model_len if variant.plan is not None else scenario.max_model_len or 0
    parts = [f"{head}{model}", card, split_name(scenario.parallel), short_tokens(length)]
    parts += [text for text in (scenario.quantization, _kv(scenario)) if text]
    return listed(t, parts)


def _kv(scenario: Scenario) -> str:
    return "" if scenario.kv_cache_dtype == "auto" else f"KV {scenario.kv_cache_dtype}"
