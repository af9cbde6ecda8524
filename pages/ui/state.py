"""The session: one Scenario, its language, and the link that carries both.

The query string is the state. Whoever changes the scenario writes the whole link, which adds one entry to the
browser's history; back and forward bring another query string, which is decoded like the first. Widgets hold no state
of their own: they are seeded from the scenario on every run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import streamlit as st

from kvcore.errors import KvPlannerError
from kvcore.model.config import ModelConfig
from kvcore.plan import Plan, plan
from kvcore.present import edit, link, pins
from kvcore.present.pins import Pin
from kvcore.present.text import Language, Words, words
from kvcore.scenario import Checkpoint, Scenario

LANGUAGE_PARAMETER = "lang"
UNDO = "undo"
"""The scenario before a change that is not plain to see, and the one after it."""
PAGE_PARAMETERS = ("vary", "lengths", "step")
"""Parameters of the link that one page reads."""


def adopt_link() -> None:
    """Takes over the query string when it is not the one this session wrote."""
    state, params = st.session_state, st.query_params.to_dict()
    if state.get("link") == params:
        return
    given = params.get(LANGUAGE_PARAMETER)
    known = given in tuple(Language)
    state["language"] = Language(given) if known else Language.of_browser(st.context.locale)
    decoded = link.decode(params if link.is_scenario(params) else {**_start(), **params})
    state["scenario"] = decoded.scenario
    state["repairs"] = decoded.repairs
    state["pins"] = pins.decode_pins(params)
    state["page_parameters"] = {name: params[name] for name in PAGE_PARAMETERS if name in params}
    state["link"] = params


@st.cache_resource
def _start() -> dict[str, str]:
    return {name: str(value) for name, value in link.START.items()}


def language() -> Language:
    """The language of this session."""
    chosen: Language = st.session_state["language"]
    return chosen


def translator() -> Words:
    """The words of this session's language."""
    return words(language())


def scenario() -> Scenario:
    """What this session plans."""
    planned: Scenario = st.session_state["scenario"]
    return planned


def scenario_at_a_length() -> Scenario:
    """The scenario with the length that it is planned at written out, for pages that plan other models and cards."""
    result = planned()
    if scenario().max_model_len is None and isinstance(result, Plan):
        return replace(scenario(), max_model_len=result.resolved.max_model_len)
    return scenario()


def planned() -> Plan | KvPlannerError:
    """The plan of this run, or why there is none."""
    result: Plan | KvPlannerError = st.session_state["planned"]
    return result


def make_plan() -> Plan | KvPlannerError:
    """Plans the scenario once per run, for every page."""
    try:
        result: Plan | KvPlannerError = plan(scenario())
    except KvPlannerError as error:
        result = error
    st.session_state["planned"] = result
    return result


def params() -> dict[str, str]:
    """The link of this session as query parameters, the language with it once it was chosen."""
    chosen = st.session_state["link"].get(LANGUAGE_PARAMETER)
    return {
        **link.encode(scenario()),
        **pins.encode_pins(pinned()),
        **st.session_state.get("page_parameters", {}),
        **({LANGUAGE_PARAMETER: chosen} if chosen else {}),
    }


def set_scenario(changed: Scenario) -> None:
    """Makes `changed` the scenario and writes the link. For callbacks."""
    st.session_state["scenario"] = changed
    st.session_state["repairs"] = ()
    _write(params())


def pinned() -> tuple[Pin, ...]:
    """The pinned scenarios of this session."""
    found: tuple[Pin, ...] = st.session_state.get("pins", ())
    return found


def set_pins(changed: tuple[Pin, ...]) -> None:
    """Changes the pins and writes the link. For callbacks."""
    st.session_state["pins"] = changed
    _write(params())


def page_parameter(name: str) -> str:
    """What the link says to one page, "" for nothing."""
    text: str = st.session_state.get("page_parameters", {}).get(name, "")
    return text


def set_page_parameter(name: str, value: str) -> None:
    """Tells one page something in the link, or with "" no longer. For callbacks."""
    told = {**st.session_state.get("page_parameters", {}), name: value}
    st.session_state["page_parameters"] = {key: text for key, text in told.items() if text}
    _write(params())


def adopt(changed: Scenario) -> dict[str, str]:
    """Makes `changed` the scenario and gives its link, for a page to go to."""
    st.session_state["scenario"] = changed
    st.session_state["repairs"] = ()
    st.session_state["link"] = params()
    return params()


def set_field(field: str, value: Any) -> None:
    """Changes one field. For callbacks; what cannot be done is kept for the page to say."""
    before = scenario()
    try:
        changed = edit.with_field(before, field, value)
    except KvPlannerError as error:
        st.session_state["input_error"] = error
        return
    set_scenario(changed)
    tell_of_the_card(before, changed)


def tell_of_the_card(before: Scenario, after: Scenario) -> None:
    """Has the page say what followed another accelerator, and offer the way back. For callbacks."""
    if edit.engine_followed(before, after):
        st.session_state["followed_card"] = after.engine.value
        st.session_state[UNDO] = (before, after)


def set_model(model: str, config: ModelConfig, checkpoint: Checkpoint) -> None:
    """Changes the model, and what has to follow it. Raises ModelError when its config cannot be read."""
    adjusted = edit.with_model(scenario(), model, config, checkpoint)
    set_scenario(adjusted.scenario)
    st.session_state["followed"] = adjusted.fields


def set_language(chosen: Language) -> None:
    """Changes the language and nothing else. For callbacks."""
    st.session_state["language"] = chosen
    kept = {name: value for name, value in st.session_state["link"].items() if name != LANGUAGE_PARAMETER}
    _write((kept if link.is_scenario(kept) else {}) | {LANGUAGE_PARAMETER: chosen.value})


def _write(parameters: dict[str, str]) -> None:
    st.query_params.from_dict(parameters)
    st.session_state["link"] = st.query_params.to_dict()


def seed(key: str, value: Any) -> str:
    """The key of a widget, after making sure that it shows `value`.

    A widget of the sidebar takes `value` as its default too: where a second run overtakes the first before the
    browser has drawn the widget, only the default arrives, and an unset one would come back as what the person chose.
    """
    if key not in st.session_state or st.session_state[key] != value:
        st.session_state[key] = value
    return key
