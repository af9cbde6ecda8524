"""Files that people deploy on the Check page: dropped or pasted, each engine with its verdict, a way to Plan, a patch.

What stands in a file is shown as plain text or code, never as markdown or HTML. A file and its secrets stay in this
session: of the answer nothing but the plan goes into a link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import streamlit as st
from msgspec import Struct

from kvcore import catalogue
from kvcore.base.errors import KvPlannerError, Notice, notice, shorten
from kvcore.base.words import Words, msg
from kvcore.contract.deployed import NO_CARD, cells, reported
from kvcore.manifests.files import Source
from kvcore.preflight.outcome import Asked, Checks, Outcome, checks_of
from kvcore.scenario import Scenario
from pages.ui.shared import elements, labels, net, notes, undo

KEPT: Final = "check.files.kept"
FIELD: Final = "check.files.text"
UPLOAD: Final = "check.files.upload"
CARD: Final = "check.files.card"
TARGET: Final = "check.files.target"
EMPTY: Final = "check.files.empty"
PASTED: Final = "pasted"
"""The name of a pasted text: what it is follows from its content."""
LARGEST_UPLOAD_MIB: Final = 4
MOST_FILES: Final = 60
MOST_WORKLOADS: Final = 24
"""Most engines that are planned at once; a folder of more is one for the command line."""
LARGEST_TARGET: Final = 1_000_000
TYPES: Final = (
    "yaml", "yml", "json", "sh", "py", "env", "service", "container", "conf", "tf", "hcl", "sbatch", "txt", "mk", "j2",
)  # fmt: skip
WORDS: Final[Mapping[Outcome, str]] = {
    Outcome.STARTS: msg("Starts as it is"),
    Outcome.FALLS_SHORT: msg("Starts, and serves less than the target"),
    Outcome.DOES_NOT_START: msg("Does not start"),
    Outcome.CANNOT_BE_KNOWN: msg("Cannot be known"),
}
ICONS: Final[Mapping[Outcome, str]] = {
    Outcome.STARTS: ":material/check_circle:",
    Outcome.FALLS_SHORT: ":material/trending_down:",
    Outcome.DOES_NOT_START: ":material/cancel:",
    Outcome.CANNOT_BE_KNOWN: ":material/help:",
}
COLOURS: Final[Mapping[Outcome, str]] = {Outcome.STARTS: "green", Outcome.CANNOT_BE_KNOWN: "orange"}
TIGHT: Final = msg("Starts, but tight")
"""The words of a start that the estimate's error may turn into none; its row says by how much."""
_AS_THE_FILES_SAY: Final = ""
_EXAMPLE: Final = (
    "services:\n  llm:\n    image: vllm/vllm-openai:v0.33.0\n    command: --model Qwen/Qwen3-8B\n"
)


class Row(Struct, frozen=True, kw_only=True):
    """One engine of the files as the page shows it."""

    outcome: Outcome
    is_tight: bool
    cells: tuple[str, ...]
    """Name, model, cards, engine, weights, KV cache, place."""
    reasons: tuple[Notice, ...]
    warnings: tuple[Notice, ...]
    assumed: tuple[Notice, ...]
    diff: str | None
    scenario: Scenario | None


class Kept(Struct, frozen=True, kw_only=True):
    """The answer of this session."""

    rows: tuple[Row, ...]
    more: int
    """Engines beyond those that are planned at once."""
    others: tuple[tuple[str, str, str], ...]
    """Name, role and place of what is no engine."""
    problems: tuple[tuple[str, KvPlannerError], ...]
    """Place and error of what cannot be read."""


def section(t: Words) -> None:
    """The whole tab."""
    undo.follow()
    kept: Kept | None = st.session_state.get(KEPT)
    _ask(t)
    if st.session_state.pop(EMPTY, False):
        st.caption(t("Nothing to check yet: paste a text above, or drop files."))
    if kept is not None:
        _answer(kept, t)


def _ask(t: Words) -> None:
    st.text_area(
        t("Paste a manifest, a Compose file, values of a chart, a script or a program that starts an engine"),
        key=FIELD, height=160, placeholder=_EXAMPLE,
    )  # fmt: skip
    st.file_uploader(
        labels.upload(t("Or drop files that belong together"), TYPES, t, LARGEST_UPLOAD_MIB),
        type=[*TYPES], key=UPLOAD, accept_multiple_files=True, max_upload_size=LARGEST_UPLOAD_MIB, on_change=_check,
    )  # fmt: skip
    left, right = st.columns(2, gap="medium")
    with left:
        ids = [_AS_THE_FILES_SAY, *(card.id for card in catalogue.load_accelerators())]
        st.selectbox(
            t("Card"), ids, key=CARD, format_func=lambda one: one or t("as the files say"),
            help=t("Takes this card in place of what the files say."), on_change=_check_again,
        )  # fmt: skip
    with right:
        st.number_input(
            t("Requests at once wanted"), min_value=1, max_value=LARGEST_TARGET, value=None, step=1, key=TARGET,
            placeholder=t("no target"), help=t("Of full length, over all replicas that the files start."),
            on_change=_check_again,
        )  # fmt: skip
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.button(
            t("Check"), key="check.files.go", type="primary", icon=":material/fact_check:", on_click=_check
        )
        if KEPT in st.session_state:
            st.button(
                t("Clear"), key="check.files.clear", type="tertiary", icon=":material/close:", on_click=_clear
            )
    st.caption(
        t(
            "Files are read in the memory of the server that runs this page, for this session only; nothing in them is "
            "run, stored or sent on. Variables that hold keys, tokens or passwords are left out of the answer."
        )
    )


@net.callback
def _check() -> None:
    """Callback: reads the pasted text and the files, judges each engine, and keeps the answer."""
    text = str(st.session_state.get(FIELD) or "")
    sources = [Source(PASTED, text)] if text.strip() else []
    uploads: list[Any] = list(st.session_state.get(UPLOAD) or [])[:MOST_FILES]
    sources += [Source(str(one.name), one.getvalue()) for one in uploads]
    st.session_state[EMPTY] = not sources
    if not sources:
        st.session_state.pop(KEPT, None)
        return
    card = st.session_state.get(CARD) or _AS_THE_FILES_SAY
    asked = Asked(
        accelerator=catalogue.find_accelerator(card) if card else None, target=st.session_state.get(TARGET)
    )
    st.session_state[KEPT] = answered(checks_of(tuple(sources), asked, MOST_WORKLOADS))


@net.callback
def _check_again() -> None:
    """Callback: judges the same files by another card or target, once there is an answer to renew."""
    if KEPT in st.session_state:
        _check()


@net.callback
def _clear() -> None:
    for key in (KEPT, FIELD):
        st.session_state.pop(key, None)


def answered(found: Checks) -> Kept:
    """What the page keeps of checked files: no plan and no text of a file but the patch."""
    rows = tuple(
        Row(
            outcome=one.checked.outcome, is_tight=one.checked.is_tight, cells=cells(one.checked)[1:],
            reasons=one.checked.reasons, warnings=one.checked.warnings, assumed=one.checked.assumed,
            diff=None if one.patch is None else one.patch.diff,
            scenario=one.checked.plans[0].scenario if one.checked.plans else None,
        )
        for one in reported(found, "")
    )  # fmt: skip
    return Kept(
        rows=rows,
        more=max(0, len(found.read.workloads) - len(rows)),
        others=tuple(
            (one.name, one.role, _place(one.place.file, one.place.line)) for one in found.read.others
        ),
        problems=tuple((_place(one.file, one.line), one.error) for one in found.read.problems),
    )


def _place(file: str, line: int) -> str:
    return shorten(f"{file}:{line}" if line else file, 160)


def _answer(kept: Kept, t: Words) -> None:
    """The sum, then each engine, then what is none and what cannot be read."""
    looks = Counter(map(_look, sorted(kept.rows, key=lambda row: [*Outcome].index(row.outcome))))
    with st.container(horizontal=True, gap="small", key="check.files.sum"):
        for (verdict, icon, colour), count in looks.items():
            st.badge(f"{count} · {t(verdict)}", icon=icon, color=colour)
    if not kept.rows and not kept.problems:
        nothing = notice("check-nothing-found")
        st.text(t.error(nothing))
        st.text(t("Next: {step}", step=t.next_step(nothing)))
    for at, row in enumerate(kept.rows):
        _row(at, row, t)
    if kept.more:
        st.caption(
            t("{count} more engines are in these files: `kvcore check` plans them all.", count=str(kept.more))
        )
    for place, error in kept.problems:
        st.text(place)
        notes.problem(t("This file cannot be read"), error, t)
    if kept.others:
        fold, is_open = elements.fold(
            t("Not planned: {count}", count=str(len(kept.others))), "check.files.others", ":material/block:"
        )
        if is_open:
            with fold:
                for name, role, place in kept.others[:MOST_FILES]:
                    st.text(f"{shorten(name, 60)}: {role} ({place})")


def _look(row: Row) -> tuple[str, str, Any]:
    """Words, icon and colour of a verdict."""
    if row.outcome is Outcome.STARTS and row.is_tight:
        return TIGHT, ":material/warning:", "orange"
    return WORDS[row.outcome], ICONS[row.outcome], COLOURS.get(row.outcome, "red")


def _row(at: int, row: Row, t: Words) -> None:
    name, model, cards, engine, weights, kv, place = row.cells
    with st.container(border=True, key=f"check.files.row.{at}", gap="xsmall"):
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            verdict, icon, colour = _look(row)
            st.badge(t(verdict), icon=icon, color=colour)
            if (title := name if name != "-" else model) != "-":
                st.text(title, width="content")
            st.text(place, width="content")
        cards = t("no card named") if cards == NO_CARD else cards
        st.text(" · ".join(part for part in (model, cards, engine) if part != "-"))
        if row.scenario is not None:
            known = [] if kv == "-" else [t("KV cache: {tokens} tokens", tokens=kv.removesuffix(" tokens"))]
            st.text(" · ".join((t("{weights} of weights a GPU", weights=weights), *known)))
        for said in row.reasons:
            st.text(t.error(said))
            st.text(t("Next: {step}", step=t.next_step(said)))
        for said in row.warnings:
            st.text(t("Note: {text}", text=t.error(said)))
        for said in row.assumed:
            st.text(t("Assumed: {text}", text=t.error(said)))
        if row.diff is not None:
            st.text(t("With this patch of the file it starts:"))
            st.code(row.diff, language="diff")
        if row.scenario is not None:
            st.button(
                t("Open in Plan"), key=f"check.files.plan.{at}", icon=":material/memory:",
                on_click=undo.take_to_plan, args=(row.scenario,),
            )  # fmt: skip
