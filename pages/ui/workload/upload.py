"""The Workload page without a workload: a log to upload, a sample to open, percentiles to type; then what was read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import streamlit as st

from kvcore.base.errors import WorkloadError
from kvcore.base.numbers import count
from kvcore.base.words import Words, listed, msg
from kvcore.charts.workload_summary import REASONS
from kvcore.workload.columns import columns_of_file, guessed_columns
from kvcore.workload.histogram import MAX_TOKENS
from kvcore.workload.logs import read_request_log, read_request_logs
from kvcore.workload.mix import Mix, notices_of
from kvcore.workload.opening import is_parquet
from kvcore.workload.prometheus import read_metrics
from kvcore.workload.requests import MAX_LOG_BYTES, Reading, tables
from kvcore.workload.traffic import Percentiles, typed_quantiles
from pages.ui.shared import elements, labels, net, notes, numbers
from pages.ui.workload import by_tokenizer, part, prefixes, take_away
from pages.ui.workload import source as workload_source

SAMPLES = Path(__file__).parents[1] / "samples"
UPLOADS, READ, ERROR, TYPED_ERROR = (
    "workload.uploads",
    "workload.read",
    "workload.error",
    "workload.typed_error",
)
METRICS = "workload.metrics"
MAX_PASTED_CHARACTERS = 1 << 20
SAMPLE_FILES = {
    "requests.jsonl": (
        msg("Customer service"),
        msg(
            "600 made-up requests as a gateway logs them: prompts of 765 to 1,203 tokens, max_tokens 512; one line "
            "is cut."
        ),
    ),
    "requests.csv": (
        msg("Chat and documents"),
        msg("500 made-up requests as a table: short questions, and documents of up to 22,000 tokens."),
    ),
}  # fmt: skip
TYPED = {"prompt": (800, 1150, 1200), "answer": (120, 380, 512)}
PERCENTILE_NAMES = ("P50", "P95", "P99")
DEFAULT_MAX_TOKENS = 512
LENGTHS = numbers.Limits(0, MAX_TOKENS)
LARGEST_UPLOAD_MB = 80
"""Largest upload, above what is read: a log a little too large is answered in words with a next step."""


def ask(t: Words) -> None:
    """The three ways to a workload, and what happens to a log."""
    files, other = st.columns([5, 4], gap="medium")
    with files, st.container(border=True):
        st.subheader(t("From request logs"), anchor=False)
        _upload(t)
        _samples(t)
    with other, st.container(border=True):
        st.subheader(t("From percentiles"), anchor=False)
        _percentiles(t)
        _metrics(t)
    take_away.query(t)
    st.caption(
        t(
            "A log is read in the memory of the server that runs this page, for this session only: counts and times of "
            "arrival are taken from it, nothing is stored or sent on. The link carries how many requests have which "
            "lengths: no text, no times."
        )
    )


def _upload(t: Words) -> None:
    number = st.session_state.get(UPLOADS, 0)
    uploads = st.file_uploader(
        t("Drop request logs, up to {size} MiB together", size=str(MAX_LOG_BYTES >> 20)),
        type=[*workload_source.LOG_TYPES],
        accept_multiple_files=True,
        max_upload_size=LARGEST_UPLOAD_MB,
        key=f"workload.upload.{number}",
    )
    if uploads and st.session_state.get(READ) != _asked(uploads):
        _read(uploads, t)
    error = st.session_state.get(ERROR)
    if uploads and error is not None:
        if names := _columns(uploads, error):
            _ask_columns(uploads, names, t)
        else:
            notes.problem(t("This log cannot be read"), error, t)
            st.text("\n".join(upload.name for upload in uploads))
    part.ask(t)
    with st.expander(t("Formats that are read"), icon=":material/description:"):
        _formats(t)


def _formats(t: Words) -> None:
    st.markdown(
        "\n".join(
            f"- {line}"
            for line in (
                t("**JSON lines**: requests, responses or batches of OpenAI, Anthropic, Gemini, Ollama, with `usage` "
                  "or with their text; LiteLLM, Langfuse, OpenTelemetry; Mooncake, ShareGPT, LMSYS; "
                  "`vllm bench serve`."),
                t("**CSV**: a column `prompt_tokens` (or `input_tokens`, `ContextTokens` …), and `completion_tokens` "
                  "and `max_tokens` where you have them; columns with other names are chosen from menus."),
                t("**Packed**: any of them as gzip or zstd, in UTF-16, or as Parquet; `traffic.json` of "
                  "`kvcore workload --save`."),
                t("**vLLM's own lines**: `--enable-log-requests`; newer versions print lengths only with "
                  "`VLLM_LOGGING_LEVEL=DEBUG`."),
            )
        )
    )  # fmt: skip


def _columns(uploads: Sequence[Any], error: WorkloadError) -> tuple[str, ...]:
    """The fields of a log that has none with a known name: of its records, else the columns of the first table."""
    if error.code == "request-log-fields":
        return tuple(str(error.params["fields"]).split(", "))
    for upload in uploads if error.code in ("request-log-columns", "request-log-no-length") else ():
        upload.seek(0)
        try:
            if is_parquet(upload):  # read in a process of its own, which has named them
                names = tuple(str(error.params.get("columns", "")).split(", "))
            else:
                names = columns_of_file(upload)
            if any(names):
                return names
        except WorkloadError:
            continue
    return ()


def _ask_columns(uploads: Sequence[Any], names: tuple[str, ...], t: Words) -> None:
    """Menus with the columns that the file has, for one whose columns are called otherwise."""
    guessed = guessed_columns(names)
    with st.container(border=True, gap="xsmall", key="workload.columns.ask"):
        st.warning(t("Which columns have the lengths, in tokens?"), icon=":material/table_chart:")
        st.text(", ".join(upload.name for upload in uploads))
        grid = st.grid(2, min_column_width=160)
        labels_of = {"prompt": t("Tokens of the prompt"), "completion": t("Tokens of the answer")}
        for field, label in labels_of.items():
            options = names if field == "prompt" else ("", *names)
            at = options.index(guessed[field]) if guessed[field] in options else 0
            grid.cell().selectbox(
                label,
                options,
                index=at,
                format_func=lambda name: labels.plain(name) if name else t("no such column"),
                key=f"{workload_source.COLUMNS}.{field}",
            )
        st.button(
            t("Read with these columns"),
            key="workload.columns.take",
            type="primary",
            icon=":material/check:",
            on_click=_take_columns,
        )


@net.callback
def _take_columns() -> None:
    found = {
        field: st.session_state.get(f"{workload_source.COLUMNS}.{field}")
        for field in ("prompt", "completion")
    }
    st.session_state[workload_source.COLUMNS] = tuple((field, name) for field, name in found.items() if name)


def _read(uploads: Sequence[Any], t: Words) -> None:
    """Reads and shows the progress; Cancel ends this run of the page."""
    total = max(1, sum(upload.size for upload in uploads))
    with st.container(key="workload.reading"):
        bar = st.progress(0.0, t("Reading"))
        st.button(t("Cancel"), key="workload.cancel", on_click=_forget_uploads, icon=":material/close:")

    def progress(done: int) -> None:
        of = {"done": f"{done >> 20}", "total": f"{max(1, total >> 20)}"}
        bar.progress(min(1.0, done / total), t("Reading: {done} of {total} MiB", **of))

    try:
        if total > MAX_LOG_BYTES:
            raise WorkloadError("request-log-too-large", limit=f"{MAX_LOG_BYTES >> 20} MiB")
        wanted = part.asked()
        log = read_request_logs(
            uploads, progress, Reading(columns=workload_source.columns_by_hand(), **wanted._asdict())
        )
    except WorkloadError as error:
        st.session_state[ERROR] = error
    else:
        st.session_state.pop(ERROR, None)
        names = ", ".join(upload.name for upload in uploads)
        workload_source.keep(names + wanted.named, log, prefixes=prefixes.sampled(uploads, wanted))
        workload_source.let_go(uploads)
        _forget_uploads()
    st.session_state[READ] = _asked(uploads)
    st.rerun()


def _asked(uploads: Sequence[Any]) -> tuple[str, ...]:
    """The identity of the files of one reading."""
    return (
        *(one.file_id for one in uploads),
        str(workload_source.columns_by_hand()),
        str(st.session_state.get(part.KEPT)),
    )


@net.callback
def _forget_uploads() -> None:
    st.session_state[UPLOADS] = st.session_state.get(UPLOADS, 0) + 1
    for name in (ERROR, READ):
        st.session_state.pop(name, None)


def _samples(t: Words) -> None:
    st.caption(t("No log yet? Open a sample:"))
    for name, (label, what) in SAMPLE_FILES.items():
        st.button(t(label), key=f"workload.sample.{name}", on_click=_open_sample, args=(name, t(label)))
        st.caption(t(what))
    kept = workload_source.kept_log()
    if kept is not None:
        st.button(
            t("Back to the log that was read last"),
            key="workload.again",
            type="tertiary",
            icon=":material/history:",
            on_click=workload_source.show_log,
            args=(kept.packed,),
        )


@net.callback
def _open_sample(name: str, label: str) -> None:
    with (SAMPLES / name).open("rb") as lines:
        workload_source.keep(label, read_request_log(lines))


def _percentiles(t: Words) -> None:
    for which, label in (("prompt", t("Prompt, in tokens")), ("answer", t("Answer, in tokens"))):
        st.caption(label)
        grid = st.grid(3, min_column_width=80)
        for name, default in zip(PERCENTILE_NAMES, TYPED[which], strict=True):
            numbers.of_session(grid.cell(), name, LENGTHS, f"workload.{which}.{name}", default, t)
    numbers.of_session(
        st,
        t("max_tokens that clients send (0: none)"),
        LENGTHS,
        "workload.max_tokens",
        DEFAULT_MAX_TOKENS,
        t,
        help=t("The engine counts it against the context, however long the answer becomes."),
    )
    st.button(t("Use these lengths"), key="workload.typed", type="primary", on_click=_take_typed)
    error = st.session_state.pop(TYPED_ERROR, None)
    if error is not None:
        notes.problem(t("These percentiles cannot be used"), error, t)


@net.callback
def _take_typed() -> None:
    def given(part: str) -> Percentiles:
        p50, p95, p99 = (
            numbers.held(f"workload.{part}.{name}", LENGTHS, default)
            for name, default in zip(PERCENTILE_NAMES, TYPED[part], strict=True)
        )
        if not (1 if part == "prompt" else 0) <= p50 <= p95 <= p99:
            raise WorkloadError("percentiles-order", field=part, p50=p50, p95=p95, p99=p99)
        return Percentiles(p50=p50, p95=p95, p99=p99)

    try:
        found = typed_quantiles(
            given("prompt"),
            given("answer"),
            numbers.held("workload.max_tokens", LENGTHS, DEFAULT_MAX_TOKENS) or None,
        )
    except WorkloadError as error:
        st.session_state[TYPED_ERROR] = error
        return
    workload_source.show(found)


def _metrics(t: Words) -> None:
    """A field for pasted metrics: percentiles between the edges of the engine's own histograms."""
    with st.expander(t("From vLLM's /metrics")):
        text = st.text_area(t("What /metrics says"), key=METRICS, height=120, max_chars=MAX_PASTED_CHARACTERS)
        if not text.strip():
            return
        try:
            found = read_metrics(text)
        except WorkloadError as error:
            notes.problem(t("These metrics cannot be used"), error, t)
            return
        labels = {"prompt": t("prompt"), "output": t("answer"), "max_tokens": "max_tokens"}
        for name, label in labels.items():
            if name in found:
                spans = (_span(found[name].interval(percent), t) for percent in (50, 95, 99))
                st.text(
                    f"{label}: {' · '.join(f'P{p} {s}' for p, s in zip((50, 95, 99), spans, strict=True))}"
                )
        st.caption(t("A percentile lies between two edges of the engine's histogram, no closer."))
        ends = {name: [found[name].interval(p)[1] for p in (50, 95, 99)] for name in labels if name in found}
        if all(map(math.isfinite, (*ends["prompt"], *ends.get("output", ())))):
            st.button(t("Use the upper ends"), key="workload.metrics.use", on_click=_take_ends, args=(ends,))


def _span(edges: tuple[float, float], t: Words) -> str:
    if math.isinf(edges[1]):
        return t("above {low}", low=count(edges[0]))
    return t("{low} to {high}", low=count(edges[0]), high=count(edges[1]))


@net.callback
def _take_ends(ends: dict[str, list[float]]) -> None:
    def taken(values: list[float]) -> Percentiles:
        p50, p95, p99 = (min(int(value), MAX_TOKENS) for value in values)
        return Percentiles(p50=p50, p95=p95, p99=p99)

    wanted = ends.get("max_tokens", [0.0])[-1]
    limit = min(int(wanted), MAX_TOKENS) if math.isfinite(wanted) and wanted else None
    workload_source.show(typed_quantiles(taken(ends["prompt"]), taken(ends.get("output", [0.0] * 3)), limit))


def source(mix: Mix, t: Words) -> None:
    """The source of the lengths, what could not be read, and the way back."""
    shown = workload_source.shown_log()
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="workload.source"):
        if shown is None and mix.is_from_percentiles:
            st.text(t("Lengths from percentiles"), width="content")
        elif shown is None:
            st.text(
                t(
                    "Lengths from a link: {requests} {requests:request|requests}",
                    requests=count(mix.traffic.requests),
                ),
                width="content",
            )
        else:
            st.text(
                t(
                    "{source}: {requests} {requests:request|requests}",
                    source=shown.source,
                    requests=count(shown.log.traffic.requests),
                ),
                width="content",
            )
        st.button(
            t("Other requests"),
            key="workload.clear",
            type="tertiary",
            icon=":material/arrow_back:",
            on_click=workload_source.clear,
        )


def read_notes(mix: Mix, t: Words) -> None:
    """The lengths as a small table; what they rest on, and, folded, how they were read."""
    _percentile_table(mix, t)
    shown = workload_source.shown_log()
    doubts, others = ([], []) if shown is None else _read_lines(shown, t)
    if mix.is_from_percentiles:
        doubts.append(
            t(
                "Between the percentiles a log-normal shape is assumed; the result is as exact as "
                "that assumption."
            )
        )
    if mix.traffic.error:
        others.append(
            t(
                "P50, P90, P95, P99 and the longest of each length are exact; other lengths stand at the mean of bins "
                "{share} % wide, so that the link carries what the page shows.",
                share=f"{100 * mix.traffic.error:.2g}",
            )
        )
    if doubts:
        st.text("\n".join(doubts))
    if others:
        with st.expander(t("How these lengths were read"), icon=":material/info:", key="workload.notes"):
            st.text("\n".join(others))
    if shown is not None and shown.prefixes is not None:
        prefixes.show(shown.prefixes, t)
    if shown is not None and shown.log.by_text:
        by_tokenizer.ask(t)


def _percentile_table(mix: Mix, t: Words) -> None:
    parts = (
        (t("prompt"), mix.quantiles.prompt),
        (t("answer"), mix.quantiles.answer),
        (t("both together"), mix.quantiles.taken),
        (t("context needed"), mix.quantiles.needed),
    )
    body = "".join(
        f"<tr><td>{escape(name)}</td>{elements.figure_cells(*map(count, found.values))}</tr>"
        for name, found in parts
        if found.p99
    )
    elements.table((t("Length in tokens"), *PERCENTILE_NAMES), body, "kv-lengths")


def _read_lines(kept: workload_source.KeptLog, t: Words) -> tuple[list[str], list[str]]:
    """What the lengths rest on, and what else was read or left out."""
    log = kept.log
    doubts: list[str] = []
    lines: list[str] = []
    if log.unusable:
        lines.append(
            t(
                "Lines that could not be used: {lines} ({reasons}); the first of them: {numbers}",
                lines=count(log.unusable),
                reasons=" · ".join(f"{t(REASONS[reason])} {count(number)}" for reason, number in log.reasons),
                numbers=listed(t, map(str, log.unusable_lines)),
            )
        )
    if log.estimated:
        doubts.append(
            t(
                "{share} % of the prompts had no token counts: counted from their text by a rate for each script. "
                "Against two vocabularies Chinese is right to -17 to +21 %, Latin script and code to -25 to +42 %, "
                "other scripts to -54 to +107 %.",
                share=f"{100 * log.estimated / log.traffic.requests:.0f}",
            )
        )
    if kept.tokenizer and log.by_text:
        lines.append(
            t(
                "{share} % of the prompts were counted from their text by {tokenizer}: exact for the text; for what "
                "the chat template adds, {tokens} tokens a message are taken.",
                share=f"{100 * log.by_text / log.traffic.requests:.0f}",
                tokenizer=kept.tokenizer,
                tokens=str(tables().estimate.tokens_per_message),
            )
        )
    if log.failed:
        lines.append(
            t("Requests that failed, in none of the figures: {requests}.", requests=count(log.failed))
        )
    if log.not_asked:
        lines.append(
            t(
                "Requests that were not asked for, in none of the figures: {requests}.",
                requests=count(log.not_asked),
            )
        )
    if log.other_kinds:
        lines.append(
            t(
                "Records of embeddings, tools, agents and chains, in none of the figures: {records}.",
                records=count(log.other_kinds),
            )
        )
    doubts += [f"{t.error(one)}. {t.next_step(one)}." for one in notices_of(log)]
    if log.not_counted:
        lines.append(
            t(
                "Images and audio in prompts, in none of the figures: {number}.",
                number=count(log.not_counted),
            )
        )
    if 0 < log.traffic.without_max_tokens < log.traffic.requests:
        doubts.append(
            t(
                "Requests that state no max_tokens: {missing} of {requests}; the context that they need was counted "
                "with their own answers instead, or with 1 token.",
                missing=count(log.traffic.without_max_tokens),
                requests=count(log.traffic.requests),
            )
        )
    if log.without_answer:
        doubts.append(
            t(
                (
                    "Requests without an answer in the log: {requests}; their max_tokens was used "
                    "instead, or 0."
                ),
                requests=count(log.without_answer),
            )
        )
    if log.other_lines:
        lines.append(t("Other lines of the engine's log, skipped: {lines}.", lines=count(log.other_lines)))
    return doubts, lines
