"""How long a step of the replay takes: the bound, the person's own rates, or a fit to an uploaded benchmark."""

from __future__ import annotations

from typing import Any, Final

import streamlit as st

from kvcore.base.errors import KvPlannerError, WorkloadError
from kvcore.base.numbers import count, short_number
from kvcore.base.untrusted import utf8_text
from kvcore.base.words import Words, msg
from kvcore.charts.replay_figures import bound_clock, error_text
from kvcore.planning import Plan
from kvcore.replay.bench import read_bench
from kvcore.replay.clock import Clock, ClockKind, FittedClock, UserClock
from kvcore.replay.fitting import fitted_clock
from kvcore.replay.settings import settings_of
from pages.ui.shared import labels, notes, numbers
from pages.ui.shared.numbers import Limits
from pages.ui.workload import source

PREFILL: Final = Limits(1, 1e9, is_whole=False)
DECODE: Final = Limits(0.1, 1e6, is_whole=False)
LARGEST_BENCH: Final = 16 << 20
MOST_VALUES: Final = 1 << 20
"""Most values in a benchmark's result: the gaps between tokens of all answers."""
"""Largest benchmark result on the page, in bytes."""
NUMBER, FITTED = "workload.replay.benches", "workload.replay.fitted"
NAMES: Final = {
    ClockKind.BOUND: msg("The fastest possible"),
    ClockKind.USER: msg("My own rates"),
    ClockKind.FITTED: msg("Fitted on my benchmark"),
}


def chosen(planned: Plan, t: Words) -> Clock | None:
    """The chosen clock; None until a benchmark was given. Raises WorkloadError as the clocks do."""
    kind = st.segmented_control(
        t("A step takes"),
        tuple(ClockKind),
        format_func=lambda one: t(NAMES[one]),
        default=ClockKind.BOUND,
        required=True,
        key="workload.replay.clock",
    )
    if kind is ClockKind.USER:
        return _own(t)
    if kind is ClockKind.FITTED:
        return _fitted(planned, t)
    st.caption(
        t(
            "Steps take as long as reading weights and cache does, or computing their tokens, whichever is longer: the "
            "fastest possible, so no latency is shown."
        )
    )
    return bound_clock(planned)


def _own(t: Words) -> UserClock:
    grid = st.grid(2, min_column_width=190)
    prefill = numbers.of_session(
        grid.cell(),
        t("Prompt tokens a second, of the engine"),
        PREFILL,
        "workload.replay.prefill",
        10_000.0,
        t,
    )
    decode = numbers.of_session(
        grid.cell(), t("Answer tokens a second, of one request"), DECODE, "workload.replay.decode", 40.0, t
    )
    return UserClock(prefill_tokens_per_second=float(prefill), decode_tokens_per_second=float(decode))


def _fitted(planned: Plan, t: Words) -> FittedClock | None:
    """A clock fitted to a result file, whose answers' texts leave the session once it was fitted."""
    number = st.session_state.get(NUMBER, 0)
    upload = st.file_uploader(
        labels.upload(
            t(
                "A result of this deployment: vllm bench serve --save-result --save-detailed, AIPerf, GuideLLM"
            ),
            ("json", "jsonl"),
            t,
            LARGEST_BENCH >> 20,
        ),
        type=["json", "jsonl"],
        max_upload_size=LARGEST_BENCH >> 20,
        key=f"workload.replay.bench.{number}",
    )
    if upload is not None:
        st.session_state[FITTED] = _read(upload, planned)
        st.session_state[NUMBER] = number + 1
        source.let_go([upload])
        st.rerun()
    found: FittedClock | KvPlannerError | None = st.session_state.get(FITTED)
    if isinstance(found, KvPlannerError):
        notes.problem(t("This benchmark cannot be used"), found, t)
        return None
    if found is not None:
        st.caption(
            t(
                "A step takes {fixed} ms + {tokens} µs a token + {context} ns a token in the caches; {outside} ms of a "
                "TTFT are outside of steps. Fitted on half of the benchmark and replayed, this is {ttft} off for the "
                "TTFT and {tpot} for the TPOT of the {requests} {requests:request|requests} held out, in the median; "
                "for their P95 {ttft95} and {tpot95}.",
                fixed=short_number(found.a * 1e3),
                tokens=short_number(found.b * 1e6),
                context=short_number(found.c * 1e9),
                outside=short_number(found.outside * 1e3),
                ttft=error_text(found.held_out.ttft),
                tpot=error_text(found.held_out.tpot),
                ttft95=error_text(found.held_out.ttft_p95, "+"),
                tpot95=error_text(found.held_out.tpot_p95, "+"),
                requests=count(found.held_out.requests),
            )
        )
    return found


def _read(upload: Any, planned: Plan) -> FittedClock | KvPlannerError:
    try:
        if upload.size > LARGEST_BENCH:
            raise WorkloadError("request-log-too-large", field="bench", limit=f"{LARGEST_BENCH >> 20} MiB")
        text = utf8_text(upload.getvalue())
        return fitted_clock(read_bench(text, LARGEST_BENCH, MOST_VALUES), settings_of(planned))
    except KvPlannerError as error:
        return error
