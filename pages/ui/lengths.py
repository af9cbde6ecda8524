"""Lengths of the real requests, and the context length that they need."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from kvcore.cache.capacity import max_concurrency_at
from kvcore.errors import KvPlannerError
from kvcore.plan import Plan
from kvcore.present.charts import LengthMark
from kvcore.present.text import Words, concurrency_text, count, msg
from kvcore.workload.recommend import Lengths, lengths_of
from kvcore.workload.records import MAX_LOG_BYTES, RequestLog, read_request_log
from pages.ui import notes, state
from pages.ui.fold import fold

DEFAULT_PROMPT = {"p50": 800, "p95": 1150, "p99": 1200}
DEFAULT_MAX_TOKENS = 512
LONGEST = 1 << 24
MARKS = "lengths.marks"


def panel(plan: Plan, t: Words) -> None:
    """Percentiles typed or read from a request log, the length they need, and what it buys."""
    box, is_opened = fold(t("Lengths of your requests"), "lengths", ":material/straighten:")
    if not is_opened:
        return
    with box:
        log = _read_upload(t)
        lengths = _from_log(log, t) if log is not None else _typed(t)
        _recommendation(plan, lengths, t)


def _read_upload(t: Words) -> RequestLog | None:
    upload = st.file_uploader(
        t("Request log, JSON lines with usage counts, prompt or messages"),
        type=["jsonl", "json", "log", "txt"],
        max_upload_size=MAX_LOG_BYTES >> 20,
        key="request_log",
        help=t("Read on this server for this page only; nothing is stored or sent on."),
    )
    if upload is None:
        return None
    try:
        return _read(upload)
    except KvPlannerError as error:
        notes.problem(t("This log cannot be read"), error, t)
        return None


@st.cache_data(max_entries=8, show_spinner=False, hash_funcs={UploadedFile: lambda upload: upload.file_id})
def _read(upload: UploadedFile) -> RequestLog:
    return read_request_log(upload)


def _from_log(log: RequestLog, t: Words) -> Lengths:
    st.text(
        t("{requests} requests, mean prompt {mean} tokens", requests=count(log.prompts.requests),
          mean=count(round(log.prompts.mean_tokens)))
    )  # fmt: skip
    if log.estimated:
        st.caption(
            t(
                "{share} % of the prompts had no token counts: counted from their text at 1.5 Chinese or 3.5 other "
                "characters per token.",
                share=f"{100 * log.estimated / log.prompts.requests:.0f}",
            )
        )
    if log.unusable:
        st.caption(
            t(
                "{lines} lines could not be used, the first of them: {numbers}",
                lines=count(log.unusable),
                numbers=", ".join(map(str, log.unusable_lines)),
            )
        )
    found = lengths_of(log)
    if found.max_tokens == 0:
        room = st.number_input(
            t("max_tokens of an answer"), 1, LONGEST, DEFAULT_MAX_TOKENS, key="lengths.room"
        )
        found = replace(found, max_tokens=int(room))
    return found


def _typed(t: Words) -> Lengths:
    grid = st.grid(4, min_column_width=130)
    values = [
        int(grid.cell().number_input(t(label), 1, LONGEST, default, key=f"lengths.{name}"))
        for name, label, default in (
            ("p50", msg("P50 of the prompt"), DEFAULT_PROMPT["p50"]),
            ("p95", msg("P95 of the prompt"), DEFAULT_PROMPT["p95"]),
            ("p99", msg("P99 of the prompt"), DEFAULT_PROMPT["p99"]),
            ("max_tokens", msg("max_tokens of an answer"), DEFAULT_MAX_TOKENS),
        )
    ]
    p50, p95, p99 = sorted(values[:3])
    return Lengths(p50_prompt_tokens=p50, p95_prompt_tokens=p95, p99_prompt_tokens=p99, max_tokens=values[3])


def _recommendation(plan: Plan, lengths: Lengths, t: Words) -> None:
    wanted = lengths.recommended_max_model_len
    present = plan.resolved.max_model_len
    marks = {
        "P50": lengths.p50_prompt_tokens + lengths.max_tokens,
        "P95": lengths.p95_prompt_tokens + lengths.max_tokens,
        "P99": lengths.p99_prompt_tokens + lengths.max_tokens,
    }
    held = _held(plan, (*marks.values(), wanted, present))
    _mark_chart(marks, held)
    if held is None:
        st.text(t("99 % of the requests need {tokens} tokens.", tokens=count(wanted)))
    else:
        words = {
            "tokens": count(marks["P99"]),
            "now": count(present),
            "held_now": concurrency_text(held[-1]),
            "wanted": count(wanted),
            "held": concurrency_text(held[-2]),
        }
        st.text(
            t("99 % of the requests need {tokens} tokens: {now} holds {held_now} at once.", **words)
            if wanted == present
            else t(
                "99 % of the requests need {tokens} tokens: {now} holds {held_now} at once, {wanted} holds {held}.",
                **words,
            )
        )
        st.text(
            " · ".join(
                f"{name} {count(tokens)}: {concurrency_text(requests)}"
                for (name, tokens), requests in zip(marks.items(), held, strict=False)
            )
        )
    if wanted != present:
        st.button(
            t("Use {tokens}", tokens=count(wanted)),
            icon=":material/check:",
            key="lengths.apply",
            on_click=state.set_field,
            args=("max_model_len", wanted),
        )
    st.caption(
        t(
            "max_model_len = P99 prompt + max_tokens. A shorter limit does not shrink what a short request takes: "
            "blocks are handed out as a request grows. It bounds the worst case, and what the engine promises at start."
        )
    )


def chart_marks() -> tuple[LengthMark, ...]:
    """The percentiles for the chart above, once there are any."""
    found: tuple[LengthMark, ...] = st.session_state.get(MARKS, ())
    return found


def _mark_chart(lengths: dict[str, int], held: tuple[float, ...] | None) -> None:
    """The chart stands above and is already drawn: when its marks change, the page runs once more."""
    found = tuple(
        LengthMark(name, tokens, requests)
        for (name, tokens), requests in zip(lengths.items(), held or (), strict=False)
    )
    if found != chart_marks():
        st.session_state[MARKS] = found
        st.rerun()


def _held(plan: Plan, lengths: tuple[int, ...]) -> tuple[float, ...] | None:
    available = plan.available_kv_bytes or 0
    if available <= 0 or plan.cache is None:
        return None
    return max_concurrency_at(plan.specs, available, plan.resolved, plan.scenario.parallel, lengths)
