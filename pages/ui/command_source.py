"""A start pasted as a command, `docker run`, Compose, Kubernetes or YAML: it becomes the scenario."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import streamlit as st

from kvcore.errors import HubError, KvPlannerError, Notice
from kvcore.evidence.logs import read_log
from kvcore.evidence.recognized import scenario_from_log
from kvcore.present.text import Words
from kvcore.scenario import Scenario
from pages.ui import model_source, state, undo

FIELD = "command_text"
TOLD = "command_told"


class Told(NamedTuple):
    """What is said about a command for as long as its scenario stands."""

    scenario: Scenario
    unknown_model: str
    notices: tuple[Notice, ...]


def field(t: Words) -> None:
    """Inside the popover of the model: the field and its button."""
    st.text_area(
        t("Or paste a command, docker run or YAML"),
        key=FIELD,
        height=100,
        placeholder="vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2",
    )
    st.button(t("Use this command"), key="use_command", on_click=_use)


def told(t: Words) -> None:
    """Below the choice of model: what of the command was not taken."""
    said: Told | None = st.session_state.get(TOLD)
    if said is None or said.scenario != state.scenario():
        return
    lines = [f"{t.error(notice)}\n→ {t.next_step(notice)}" for notice in said.notices]
    if said.unknown_model:
        lines.insert(
            0,
            t(
                "The command names the model {model}, which is not known here: the model stays.",
                model=said.unknown_model,
            ),
        )
    if lines:
        st.text("\n".join(lines))


def _use() -> None:
    text = st.session_state.get(FIELD, "")
    if not text.strip():
        return
    try:
        log = read_log(text)
        found = scenario_from_log(log, state.scenario())
        scenario, unknown = _with_its_model(found.scenario, found.unknown_model)
    except KvPlannerError as error:
        st.session_state["input_error"] = error
        return
    undo.take(scenario)
    st.session_state[TOLD] = Told(scenario, unknown, log.notices)


def _with_its_model(scenario: Scenario, name: str) -> tuple[Scenario, str]:
    """`scenario` with the Hub's model of that name; the name where the Hub has none."""
    if not name:
        return scenario, ""
    try:
        model = model_source.fetched(name)
    except HubError:
        return scenario, name
    return replace(scenario, model=name, config=model.config, checkpoint=model.checkpoint), ""
