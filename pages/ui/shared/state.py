"""The session: one Scenario, its language, and the link that carries both.

The query string is the state. Whoever changes the scenario writes the whole link, which adds one entry to the
browser's history; back and forward bring another query string, which is decoded like the first. Widgets keep no state
of their own: they are seeded from the scenario on every run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st
from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError, ScenarioError, defect, shorten
from kvcore.base.words import Language, Words, platform_words, words
from kvcore.catalogue.accelerators import Accelerator
from kvcore.catalogue.models import Checkpoint
from kvcore.controls import edit
from kvcore.engines.registry import find_engine
from kvcore.model.config import ModelConfig
from kvcore.planning import Plan, plan
from kvcore.scenario import Scenario
from kvcore.wire import link
from kvcore.wire.link import Pin
from kvcore.wire.link_names import LANGUAGE, Repair, is_ours
from pages.ui.shared import net, parameters
from pages.ui.shared.parameters import PARAMETERS
from pages.ui.shared.reconnect import REPEATED

ERROR_FIELD = "input_error_field"
"""The field whose change was refused; its control says so where it is on the page."""
UNDO = "undo"
"""The scenario before a change that is not obvious, and the one after it."""


def adopt_link() -> None:
    """Adopts the query string unless this session wrote it."""
    state, params = st.session_state, st.query_params.to_dict()
    if state.get("link") == params:
        return
    given = {name: st.query_params.get_all(name)[0] for name in params}
    try:
        _adopt_parameters(given)
    except Exception as error:  # the last net: a link that nobody can read shows the start, and says so
        _adopt_parameters({name: given[name] for name in (LANGUAGE,) if name in given})
        state["repairs"] = (Repair(field="", given="", used="", error=defect(error)),)
    state["link"] = params


def _adopt_parameters(given: dict[str, str]) -> None:
    state = st.session_state
    asked, refused_language = parameters.decode_language(given)
    state["asked_language"] = asked
    state["language"] = asked or Language.of_browser(st.context.locale)
    decoded = link.decode(given if link.is_scenario(given) else {**_start(), **given}, PARAMETERS)
    shown = parameters.decode_page(given)
    state["scenario"] = decoded.scenario
    state.setdefault("found", decoded.scenario)
    state["page_parameters"] = dict(shown.values)
    state["lost_model"] = lost = decoded.lost_model
    # The page says of a lost model that nothing is planned; the rest of what could not be used stands beside it.
    others = (
        one for one in decoded.repairs if lost is None or (one.field, one.error) != (lost.field, lost.error)
    )
    state["repairs"] = (*others, *shown.repairs, *refused_language, *_given_twice())
    state["pins"] = link.decode_pins(given, PARAMETERS)


def lost_model() -> Repair | None:
    """The model of the link, which is not known, until one is chosen: no page judges another in its place."""
    lost: Repair | None = st.session_state.get("lost_model")
    return lost


def is_as_found() -> bool:
    """Whether the scenario is still the one that the visit began with."""
    return bool(st.session_state["found"] == st.session_state["scenario"])


def _given_twice() -> tuple[Repair, ...]:
    """Parameters that the link repeats with another value: the first one counts."""
    found = {name: tuple(dict.fromkeys(st.query_params.get_all(name))) for name in st.query_params}
    return tuple(
        Repair(
            field=shorten(name, 60),
            given=shorten(values[1], 60),
            used=shorten(values[0], 60),
            error=ScenarioError("named-twice", field=name, value=values[1]),
        )
        for name, values in found.items()
        if len(values) > 1 and (is_ours(name) or name in (LANGUAGE, *PARAMETERS, *link.PIN_NAMES))
    )


@st.cache_resource
def _start() -> dict[str, str]:
    return {name: str(value) for name, value in link.START.items()}


def language() -> Language:
    """The language of this session."""
    chosen: Language = st.session_state["language"]
    return chosen


def translator(engine: str | None = None) -> Words:
    """The words of this session's language, with the graphs of the platform of `engine`, else of the scenario's."""
    graphs = find_engine(engine or scenario().engine).graph_api
    return platform_words(language(), graphs)


def plain_translator() -> Words:
    """The words of this session's language for texts about every platform."""
    return words(language())


def scenario() -> Scenario:
    """The scenario of this session."""
    planned: Scenario = st.session_state["scenario"]
    return planned


def scenario_at_a_length() -> Scenario:
    """The scenario with its planned length written out, for pages that plan other models and cards."""
    result = planned()
    if scenario().max_model_len is None and isinstance(result, Plan):
        return replace(scenario(), max_model_len=result.resolved.max_model_len)
    return scenario()


def planned() -> Plan | KvPlannerError:
    """The plan of this run, or the error that there is instead."""
    result: Plan | KvPlannerError = st.session_state["planned"]
    return result


def make_plan() -> Plan | KvPlannerError:
    """Plans the scenario once per run, for every page."""
    lost = lost_model()
    try:
        result: Plan | KvPlannerError = plan(scenario()) if lost is None else lost.error
    except KvPlannerError as error:
        result = error
    except Exception as error:  # the last net: every page draws a refusal
        result = defect(error)
    st.session_state["planned"] = result
    return result


def params(kept: Scenario | None = None) -> dict[str, str]:
    """The link of this session as query parameters, with the language once it was chosen; `kept` replaces the
    scenario."""
    asked: Language | None = st.session_state.get("asked_language")
    lost = lost_model() if kept is None else None
    written = link.encode(scenario() if kept is None else kept)
    if lost is not None:
        del written["model"]
        written[lost.field] = lost.given
    return {
        **written,
        **link.encode_pins(pinned()),
        **parameters.encode_page(st.session_state.get("page_parameters", {})),
        **({LANGUAGE: asked.value} if asked is not None else {}),
    }


def set_scenario(changed: Scenario) -> None:
    """Makes `changed` the scenario and writes the link. For callbacks."""
    _make(changed)
    _write(params())


def _make(changed: Scenario) -> None:
    """Makes `changed` the scenario; with another model, that is the chosen one."""
    before = scenario()
    if (changed.model, changed.config) != (before.model, before.config):
        st.session_state["lost_model"] = None
    st.session_state["scenario"] = changed
    st.session_state["repairs"] = ()


def pinned() -> tuple[Pin, ...]:
    """The pinned scenarios of this session."""
    found: tuple[Pin, ...] = st.session_state.get("pins", ())
    return found


@net.callback
def set_pins(changed: tuple[Pin, ...]) -> None:
    """Changes the pins and writes the link. For callbacks."""
    st.session_state["pins"] = changed
    _write(params())


def page_parameter(name: str) -> Any:
    """The value of a page parameter, by a name of `parameters.PARAMETERS`; else its default."""
    return st.session_state.get("page_parameters", {}).get(name, PARAMETERS[name].default)


@net.callback
def set_page_parameter(name: str, value: Any) -> None:
    """Sets one page parameter in the link; None removes it. For callbacks."""
    set_page_parameters({name: value})


@net.callback
def set_page_parameters(changed: Mapping[str, Any]) -> None:
    """Sets several page parameters as one change of the link. For callbacks."""
    shown = {**st.session_state.get("page_parameters", {}), **changed}
    st.session_state["page_parameters"] = {key: shown[key] for key in shown if shown[key] is not None}
    _write(params())


def bound(name: str, key: str, default: Any = None, *, takes: str = "value") -> dict[str, Any]:
    """Arguments of a widget that shows a page parameter and changes it: `st.toggle(label, **bound(name, key))`.

    `default` stands for a parameter that is absent and has no default of its own: one that the plan suggests.
    `takes` is what the widget calls its default, which it needs next to its value: see `seed`.
    """
    value = page_parameter(name)
    value = default if value is None else value
    shown = list(value) if isinstance(value, tuple) else value
    return {
        "key": seed(key, shown),
        takes: shown,
        "on_change": _take_page_parameter,
        "args": (name, key),
    }


def bound_choice(name: str, key: str, options: Sequence[Any]) -> dict[str, Any]:
    """`bound` for a list to choose one of `options` from, shown in place of the default."""
    found = bound(name, key, takes="index")
    return {**found, "options": options, "index": options.index(page_parameter(name))}


@net.callback
def _take_page_parameter(name: str, key: str) -> None:
    text = parameters.text_of(st.session_state[key])
    try:
        set_page_parameter(name, PARAMETERS[name].read(name, text) if text else None)
    except KvPlannerError as error:
        st.session_state["input_error"] = error


def adopt(changed: Scenario) -> dict[str, str]:
    """Makes `changed` the scenario and returns its link, for a page to go to."""
    _make(changed)
    st.session_state["link"] = params()
    return params()


@net.callback
def set_field(field: str, value: Any) -> None:
    """Changes one field. For callbacks; an error is kept for the page to show."""
    before = scenario()
    try:
        changed = edit.with_field(before, field, value)
    except KvPlannerError as error:
        st.session_state["input_error"] = error
        st.session_state[ERROR_FIELD] = field
        return
    set_scenario(changed)
    tell_of_the_card(before, changed)


def set_accelerator(card: Accelerator) -> None:
    """Changes the accelerator, which the catalogue need not have. For callbacks."""
    before = scenario()
    changed = edit.with_card(before, card)
    set_scenario(changed)
    tell_of_the_card(before, changed)


def tell_of_the_card(before: Scenario, after: Scenario) -> None:
    """Has the page say what changed with the accelerator, and offer the way back. For callbacks."""
    if edit.engine_followed(before, after):
        st.session_state["followed_card"] = after.engine
        st.session_state[UNDO] = (before, after)


def set_model(model: str, config: ModelConfig, checkpoint: Checkpoint) -> None:
    """Changes the model and the fields that depend on it. Raises ModelError when its config cannot be read."""
    adjusted = edit.with_model(scenario(), model, config, checkpoint)
    st.session_state["lost_model"] = None
    set_scenario(adjusted.scenario)
    st.session_state["followed"] = adjusted.fields


@net.callback
def set_language(chosen: Language) -> None:
    """Changes the language alone. For callbacks."""
    st.session_state["language"] = st.session_state["asked_language"] = chosen
    own = {name: value for name, value in st.session_state["link"].items() if name != LANGUAGE}
    says_something = link.is_scenario(own) or any(name in own for name in (*PARAMETERS, *link.PIN_NAMES))
    _write(params() if says_something else {LANGUAGE: chosen.value})


def _write(parameters: dict[str, str]) -> None:
    st.query_params.from_dict(parameters)
    st.session_state["link"] = st.query_params.to_dict()


def seed(key: str, value: Any) -> str:
    """The key of a widget, after making sure that it shows `value`.

    The widget takes `value` as its default too: where a second run overtakes the first before the
    browser has drawn the widget, only the default arrives, and an unset one would come back as what the person chose.
    """
    is_shown = key in st.session_state and st.session_state[key] == value
    if not is_shown or st.session_state.get(REPEATED):
        st.session_state[key] = value
    return key
