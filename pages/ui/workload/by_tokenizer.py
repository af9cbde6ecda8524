"""Below a log whose texts were estimated: the log counted again by the model's tokenizer, in a separate process."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import streamlit as st

from kvcore.base.errors import WorkloadError
from kvcore.base.words import Words
from kvcore.workload.logs import counted_apart
from kvcore.workload.requests import MAX_LOG_BYTES
from kvcore.workload.texts import MAX_TOKENIZER_BYTES
from pages.ui.shared import labels, net, notes
from pages.ui.workload import part, source

UPLOADS, READ, ERROR = "workload.tokenizer.uploads", "workload.tokenizer.read", "workload.tokenizer.error"
LONGEST_NAME = 80
LARGEST_LOG_MB = 80
"""Largest upload, above what is read: a log a little too large is answered in words."""


def ask(t: Words) -> None:
    """Asks for a tokenizer.json and the log again, of whose text nothing was kept."""
    with st.expander(t("Count with the model's tokenizer")):
        if find_spec("tokenizers") is None:
            missing = WorkloadError("request-log-needs", format="tokenizer.json", package="tokenizers")
            notes.problem(t("No tokenizer can be read here"), missing, t)
            return
        st.caption(
            t(
                "The text of the log was not kept: drop it once more, with the tokenizer.json of the model. A process "
                "of its own counts, and ends with its counts; nothing is stored or sent on."
            )
        )
        number = st.session_state.get(UPLOADS, 0)
        tokenizer = st.file_uploader(
            labels.upload("tokenizer.json", ("json",), t, MAX_TOKENIZER_BYTES >> 20),
            type=["json"],
            max_upload_size=MAX_TOKENIZER_BYTES >> 20,
            key=f"workload.tokenizer.{number}",
        )
        logs = st.file_uploader(
            labels.upload(
                t("The log once more, up to {size} MiB together", size=str(MAX_LOG_BYTES >> 20)),
                source.LOG_TYPES,
                t,
            ),
            type=[*source.LOG_TYPES],
            accept_multiple_files=True,
            max_upload_size=LARGEST_LOG_MB,
            key=f"workload.tokenizer.log.{number}",
        )
        if tokenizer is None or not logs:
            return
        read = tuple(upload.file_id for upload in (tokenizer, *logs))
        if st.session_state.get(READ) != read:
            _count(tokenizer, logs, read, t)
        error = st.session_state.get(ERROR)
        if error is not None:
            notes.problem(t("This log cannot be counted by this tokenizer"), error, t)


def _count(tokenizer: Any, logs: Sequence[Any], read: tuple[str, ...], t: Words) -> None:
    """Counts and shows the progress; Cancel ends this run of the page, and the process with it."""
    total = max(1, sum(upload.size for upload in logs))
    with st.container(key="workload.tokenizer.reading"):
        bar = st.progress(0.0, t("Counting"))
        st.button(t("Cancel"), key="workload.tokenizer.cancel", on_click=_forget, icon=":material/close:")

    def look(taken: int) -> None:
        bar.progress(min(1.0, taken / total), t("Counting"))

    try:
        if total > MAX_LOG_BYTES:
            raise WorkloadError("request-log-too-large", limit=f"{MAX_LOG_BYTES >> 20} MiB")
        files = [upload.getvalue() for upload in logs]
        wanted = part.asked()
        log = counted_apart(tokenizer.getvalue(), files, source.columns_by_hand(), look, **wanted._asdict())
    except WorkloadError as error:
        st.session_state[ERROR], st.session_state[READ] = error, read
    else:
        names = ", ".join(upload.name for upload in logs)
        source.keep(names + wanted.named, log, tokenizer.name[:LONGEST_NAME])
        source.let_go([tokenizer, *logs])
        _forget()
    st.rerun()


@net.callback
def _forget() -> None:
    st.session_state[UPLOADS] = st.session_state.get(UPLOADS, 0) + 1
    for name in (READ, ERROR):
        st.session_state.pop(name, None)
