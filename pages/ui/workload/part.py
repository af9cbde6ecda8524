"""Which part of a log counts: fields for model, kind, status and time, filled in before the log is dropped."""

from __future__ import annotations

from typing import NamedTuple

import streamlit as st

from kvcore.base.errors import WorkloadError
from kvcore.base.words import Words, msg
from kvcore.workload.layers import seconds_of
from kvcore.workload.picking import LONGEST_VALUE
from pages.ui.shared import net, notes

KEY = "workload.part"
KEPT = f"{KEY}.kept"
VALUES = {"model": msg("Model"), "kind": msg("Kind of call"), "status": msg("Status")}
TIMES = {"since": msg("From this time on"), "until": msg("Before this time")}
EXAMPLES = {
    "model": "Qwen/*", "kind": "chat*", "status": "200", "since": "2026-11-27T08:00:00Z",
    "until": "2026-11-27T18:00:00Z",
}  # fmt: skip


class Part(NamedTuple):
    """What was asked for; nothing: all."""

    only: tuple[tuple[str, str], ...] = ()
    since: float | None = None
    until: float | None = None

    @property
    def named(self) -> str:
        """The fields as the command line has them, after the name of a log.

        Example:
            >>> Part(only=(("model", "m*"),)).named
            ' (model=m*)'
        """
        times = ((name, getattr(self, name)) for name in TIMES)
        said = [f"{name}={value}" for name, value in self.only]
        said += [f"{name}={value:.10g}" for name, value in times if value is not None]
        return f" ({', '.join(said)})" if said else ""


def asked() -> Part:
    """The part that the fields ask for.

    Raises WorkloadError `request-log-time` for a time that is none.
    """
    given: dict[str, str] = st.session_state.get(KEPT, {})
    times = {name: seconds_of(given[name]) if name in given else None for name in TIMES}
    for name, seconds in times.items():
        if seconds is None and name in given:
            raise WorkloadError("request-log-time", field=name, value=given[name])
    return Part(tuple((name, given[name]) for name in VALUES if name in given), **times)


def ask(t: Words) -> None:
    """The fields, folded; they stay as they are for the logs that are dropped later."""
    with st.expander(t("Count only a part of a log"), icon=":material/filter_alt:"):
        given: dict[str, str] = st.session_state.get(KEPT, {})
        for fields in (VALUES, TIMES):
            grid = st.grid(len(fields), min_column_width=130)
            for name, label in fields.items():
                key = f"{KEY}.{name}"
                if key not in st.session_state:
                    st.session_state[key] = given.get(name, "")
                grid.cell().text_input(
                    t(label), key=key, placeholder=EXAMPLES[name], max_chars=LONGEST_VALUE, on_change=_keep
                )
        st.caption(
            t(
                "Filled in before the log is dropped. A value may end with a star; times are ISO 8601, or seconds "
                "since 1970. What was not asked for is counted apart."
            )
        )
        try:
            asked()
        except WorkloadError as error:
            notes.problem(t("This part cannot be read"), error, t)


@net.callback
def _keep() -> None:
    found = {name: str(st.session_state.get(f"{KEY}.{name}") or "").strip() for name in (*VALUES, *TIMES)}
    st.session_state[KEPT] = {name: value for name, value in found.items() if value}
