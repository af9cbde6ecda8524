"""The log on the Check page: pasted, uploaded or a sample; read once, kept in the session; and a log whose model is
unknown.

A log is untrusted: it is shown as plain text or code, never as markdown or HTML, and only its numbers leave the page.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import NamedTuple

import streamlit as st
from msgspec.structs import replace

from kvcore.base.errors import LogError
from kvcore.base.words import Words, listed, msg
from kvcore.charts.comparison import FIGURE_LABELS, reading_text
from kvcore.evidence.log.reader import StartupLog, read_log
from kvcore.evidence.recognized import Recognized
from kvcore.preflight.limits import shared_memory_of_text_gib
from pages.ui.check import taken
from pages.ui.shared import elements, labels, net, notes, state
from pages.ui.sidebar import model_source

SAMPLES = Path(__file__).parents[1] / "samples"
LARGEST_UPLOAD_MIB = 50
TYPES = ("txt", "log", "yaml", "yml", "sh")
LONGEST_SHOWN_LINE = 300
KEPT = "check.log"
"""Key of this session's log, however it arrived."""
FIELD = "check.text"
UPLOAD = "check.upload"
EMPTY = "check.empty"
"""Whether the button was pressed without a text."""


class KeptLog(NamedTuple):
    """A log of this session and what was read from it."""

    source: str
    """Name of the file; empty for pasted text."""
    content: str | bytes
    """The pasted text, or the part of a file that was read."""
    read: StartupLog | LogError


def with_its_room(found: Recognized, kept: KeptLog) -> Recognized:
    """What was recognized with the /dev/shm of the container, where the text is a deployment file."""
    content = kept.content
    text = content if isinstance(content, str) else content.decode("utf-8", "replace")
    shared = shared_memory_of_text_gib(text)
    if shared is None:
        return found
    return replace(found, scenario=replace(found.scenario, shm_gib=shared))


def ask(t: Words) -> None:
    """The field, the upload, and sample logs."""
    kept = kept_log()
    pasted = kept.content if kept is not None and isinstance(kept.content, str) else ""
    st.text_area(
        t(
            "Paste a start-up log of vLLM, vllm-ascend or vllm-mindspore, or the command, docker run or YAML of a start"
        ),
        key=state.seed(FIELD, pasted),
        height=180,
        placeholder="INFO 04-14 09:02:00 [gpu_worker.py:456] Available KV cache memory: 52.80 GiB",
        on_change=_take_pasted,
    )
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.button(
            t("Check"), key="check.go", type="primary", icon=":material/fact_check:", on_click=_take_pasted
        )
        if kept is not None and isinstance(kept.read, LogError):
            st.button(
                t("Clear"), icon=":material/close:", on_click=_clear, type="tertiary", key="check.clear"
            )
        if st.session_state.pop(EMPTY, False) and kept is None:
            st.caption(t("Nothing to check yet: paste a text above."))
    if kept is not None and isinstance(kept.read, LogError) and not kept.source:
        refusal(kept.read, "", t)
    left, right = st.columns([3, 2], gap="medium")
    with left:
        st.file_uploader(
            labels.upload(t("Or upload it"), TYPES, t, LARGEST_UPLOAD_MIB),
            type=[*TYPES],
            key=UPLOAD,
            max_upload_size=LARGEST_UPLOAD_MIB,
            on_change=_take_upload,
        )
        if kept is not None and isinstance(kept.read, LogError) and kept.source:
            refusal(kept.read, kept.source, t)
    with right:
        st.caption(t("No log yet?"))
        with st.container(horizontal=True, gap="small"):
            st.button(
                t("A start on two H100"), on_click=_take_sample, args=("start.log",), key="sample.start"
            )
            st.button(t("A failed start"), on_click=_take_sample, args=("failed.log",), key="sample.failed")
    st.caption(
        t(
            "The text is read in the memory of the server that runs this page, for this session "
            "only; it is neither stored nor sent on. Only numbers that you use go into the link."
        )
    )


def checked(kept: KeptLog, t: Words) -> None:
    """What was checked, in one line above its result, and the way to the next log."""
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="check.source"):
        st.text(kept.source or t("Pasted text"), width="content")
        st.button(
            t("Check another"), icon=":material/close:", on_click=_clear, type="tertiary", key="check.clear"
        )


def another(t: Words) -> None:
    """The field with the text, folded below its result: to change a line and check again, or to paste the next."""
    with st.expander(
        t("The text that was checked, or another one"), icon=":material/edit_note:", key="check.input"
    ):
        ask(t)


def kept_log() -> KeptLog | None:
    """The log of this session."""
    kept: KeptLog | None = st.session_state.get(KEPT)
    return kept


def keep(content: str | bytes, source: str = "") -> None:
    """Reads a log and keeps it, also when it cannot be read."""
    if not content.strip():
        st.session_state.pop(KEPT, None)
        return
    kept = kept_log()
    if kept is not None and not kept.source and kept.content == content:
        return
    taken.forget()
    try:
        read: StartupLog | LogError = read_log(content)
    except LogError as error:
        read = error
    st.session_state[KEPT] = KeptLog(source, content if isinstance(content, str) else b"", read)


@net.callback
def _take_pasted() -> None:
    text = st.session_state[FIELD]
    kept = kept_log()
    st.session_state[EMPTY] = not text.strip()
    if text.strip() or kept is None or not kept.source:
        keep(text)


@net.callback
def _take_upload() -> None:
    """Callback: reads the chosen file; without one, drops the refusal of the one before.

    A result stays until the next file has come: to choose it takes the one before away first, and a field that
    moved to its place without a result would lose a file on its way.
    """
    uploaded, kept = st.session_state[UPLOAD], kept_log()
    if uploaded is not None:
        keep(uploaded.getvalue(), uploaded.name)
    elif kept is not None and kept.source and isinstance(kept.read, LogError):
        _clear()


@net.callback
def _take_sample(name: str) -> None:
    keep((SAMPLES / name).read_text("utf-8"))


@net.callback
def _clear() -> None:
    taken.forget()
    st.session_state.pop(KEPT, None)


def refusal(error: LogError, source: str, t: Words) -> None:
    """Why a log cannot be read; the pasted text stays in the field."""
    if source:
        st.text(source)
    notes.problem(t("This log cannot be read"), error, t)


FLAG_LINES = {
    "arguments": msg("engine arguments"),
    "namespace": msg("engine arguments"),
    "config": msg("engine configuration"),
    "command": msg("command line"),
    "manifest": msg("container file or YAML config"),
    "environment": msg("environment"),
    "compilation": msg("compilation"),
}


def found(kept: KeptLog, log: StartupLog, t: Words) -> None:
    """The lines that were found, and the usual ones that are missing."""
    readings = log.readings
    parts = [t("{count} {count:figure|figures} found", count=str(len(readings)))]
    if kinds := dict.fromkeys(t(FLAG_LINES[line.kind]) for line in log.flag_lines):
        parts.append(t("flags from: {kinds}", kinds=listed(t, kinds)))
    else:
        parts.append(t("no flags found"))
    if log.missing:
        names = listed(t, (t(FIGURE_LABELS[name]) for name in log.missing))
        parts.append(t("not found: {figures}", figures=names))
    summary = " · ".join(parts)
    with st.expander(summary, icon=":material/search:"):
        if kept.source:
            st.text(kept.source)
        head = (t("Figure"), t("Value"), t("Line"), t("As printed"))
        body = "".join(
            f"<tr><td>{escape(t(FIGURE_LABELS[reading.figure]))}</td>"
            f'<td class="kv-figure">{escape(reading_text(reading))}</td>'
            f'<td class="kv-figure">{reading.line_number}</td>'
            f'<td class="kv-source">{escape(reading.line[:LONGEST_SHOWN_LINE])}</td></tr>'
            for reading in readings
        )
        body += "".join(
            f"<tr><td>{escape(t(FLAG_LINES[line.kind]))}</td><td></td>"
            f'<td class="kv-figure">{line.line_number}</td>'
            f'<td class="kv-source">{escape(line.line[:LONGEST_SHOWN_LINE])}</td></tr>'
            for line in log.flag_lines
        )
        elements.table(head, body)


SAME = "check.same_model"
"""The log's name for a model, and the sidebar's name for it."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


def knows_model(found: Recognized) -> bool:
    """Whether the plan is of the log's model."""
    return not found.unknown_model or st.session_state.get(SAME) == (
        found.unknown_model,
        found.scenario.model,
    )


def unknown_model(found: Recognized, t: Words) -> None:
    """The log's name for its model, and the ways to say which one it is."""
    if knows_model(found):
        return
    with st.container(border=True, key="check.unknown", gap="xsmall"):
        st.text(
            t(
                "The log names the model {model}, which is not bundled. Identify it to compare "
                "the log and to get fixes.",
                model=found.unknown_model,
            )
        )
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            if HUB_ID.fullmatch(found.unknown_model) and not model_source.is_offline():
                st.button(
                    t("Look it up on the Hub"),
                    key="check.look_up",
                    icon=":material/search:",
                    on_click=model_source.fetch_and_use,
                    args=(found.unknown_model, "check"),
                )
            st.button(t("It is the model in the sidebar"), key="check.same", on_click=_is_same, args=(found,))
        model_source.show_error("check", t)


@net.callback
def _is_same(found: Recognized) -> None:
    st.session_state[SAME] = (found.unknown_model, state.scenario().model)
