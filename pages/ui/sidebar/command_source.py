"""A start pasted as a command, `docker run`, Compose, Kubernetes or YAML becomes the scenario."""

from __future__ import annotations

import re
from typing import NamedTuple

import streamlit as st
from msgspec.structs import replace

from kvcore.base.errors import HubError, KvPlannerError, Notice
from kvcore.base.words import Words
from kvcore.charts.comparison import BORROWED_LABELS
from kvcore.evidence.log.reader import read_log
from kvcore.evidence.recognized import scenario_from_log
from kvcore.preflight.limits import shared_memory_of_text_gib
from kvcore.scenario import Scenario
from kvcore.wire.request import known_checkpoint
from pages.ui.shared import net, problems, state, undo
from pages.ui.sidebar import model_source

FIELD = "command_text"
POPOVER = "command_source"
"""Whether the popover is open."""
OUTCOME = "command_outcome"
REFUSED = "command_refused"
"""The parts of the last pasted command that were not used, shown with the error where it was refused."""
NEWEST = re.compile(r"\bvllm[\w-]*:latest\b")
"""An image without a release: the newest one."""


class Outcome(NamedTuple):
    """Notes about a command, shown while its scenario stands."""

    scenario: Scenario
    unknown_model: str = ""
    notices: tuple[Notice, ...] = ()
    borrowed: tuple[str, ...] = ()
    """Settings that the command leaves open: keys of `BORROWED_LABELS`."""


def field(t: Words) -> None:
    """The field and its button."""
    st.text_area(
        t("Command, docker run, Compose, Kubernetes or YAML"),
        key=FIELD,
        height=100,
        placeholder="vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2",
    )
    st.button(t("Use this command"), key="use_command", on_click=_use)
    error = problems.at(FIELD)
    if error is not None and error.code == "log-not-recognized":
        st.warning(
            t("No vLLM command found in this text; the scenario is unchanged."), icon=":material/search_off:"
        )
    else:
        problems.show(FIELD, t("The scenario was not changed."), t)
    for notice in st.session_state.get(REFUSED, ()) if error is not None else ():
        st.text(f"{t.error(notice)}\n→ {t.next_step(notice)}")


def outcome(t: Words) -> None:
    """Below it: the parts of the command that were not used."""
    said: Outcome | None = st.session_state.get(OUTCOME)
    if said is None or said.scenario != state.scenario():
        return
    lines = [f"{t.error(notice)}\n→ {t.next_step(notice)}" for notice in said.notices]
    if said.unknown_model:
        lines.insert(
            0,
            t(
                "The command names the model {model}, which is not known here: the model is unchanged.",
                model=said.unknown_model,
            ),
        )
    if said.borrowed:
        names = ", ".join(t(BORROWED_LABELS[name]) for name in said.borrowed)
        lines.append(t("Not in the command, taken from the sidebar: {names}", names=names))
    if lines:
        st.text("\n".join(lines))


@net.callback
def _use() -> None:
    text = st.session_state.get(FIELD, "")
    if not text.strip():
        return
    st.session_state.pop(OUTCOME, None)
    st.session_state[REFUSED] = ()
    problems.clear()
    try:
        log = read_log(text)
        st.session_state[REFUSED] = log.notices
        current = state.scenario()
        asks_newest = log.version is None and NEWEST.search(text) is not None
        if asks_newest:
            current = replace(current, engine_version=None)
        found = scenario_from_log(log, current)
        own = found.scenario
        if (shared := shared_memory_of_text_gib(text)) is not None:
            own = replace(own, shm_gib=shared)
        scenario, unknown = _with_its_model(own, found.unknown_model)
    except KvPlannerError as error:
        problems.keep(FIELD, error)
        return
    st.session_state[POPOVER] = False
    undo.take(scenario)
    hidden = {"model"} if unknown or scenario.model != found.scenario.model else set()
    if asks_newest:
        hidden.add("engine_version")
    borrowed = tuple(name for name in found.borrowed if name not in hidden)
    st.session_state[OUTCOME] = Outcome(scenario, unknown, log.notices, borrowed)


def _with_its_model(scenario: Scenario, name: str) -> tuple[Scenario, str]:
    """`scenario` with the Hub's model of that name, and the name again where the Hub has none."""
    if not name:
        return scenario, ""
    try:
        model = model_source.fetched(name)
    except HubError:
        return scenario, name
    checkpoint = known_checkpoint(name, model.config, model.checkpoint)
    return replace(scenario, model=name, config=model.config, checkpoint=checkpoint), ""
