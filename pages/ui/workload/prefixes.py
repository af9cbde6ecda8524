"""What breaks the prefix cache, of the log just read: counted from the texts of its first megabytes, none of which is
kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import islice
from typing import Any, Final

import streamlit as st

from kvcore.base.errors import WorkloadError
from kvcore.base.numbers import count
from kvcore.base.words import Words
from kvcore.workload.logs import read_request_log
from kvcore.workload.opening import is_parquet
from kvcore.workload.prefixes import PrefixCounter, PrefixReport
from kvcore.workload.requests import Reading
from pages.ui.shared import elements
from pages.ui.workload.part import Part

SAMPLE_BYTES: Final = 4 << 20
"""Of each file; texts are read more slowly than counts."""
SAMPLE_LINES: Final = 4000
SHOWN: Final = 5


def sampled(uploads: Sequence[Any], wanted: Part) -> PrefixReport | None:
    """The report of the beginning of these files; None where no difference costs a hit, or there are no texts."""
    counter = PrefixCounter()
    for upload in uploads:
        if is_parquet(upload):
            continue
        upload.seek(0)
        try:
            read_request_log(_head(upload), reading=Reading(prefixes=counter, **wanted._asdict()))
        except WorkloadError:  # the reader of the whole log says what is wrong with it
            continue
    found = counter.report()
    return found if found.breaks else None


def _head(upload: Any) -> Iterator[bytes]:
    left = SAMPLE_BYTES
    for line in islice(upload, SAMPLE_LINES):
        left -= len(line)
        if left < 0:
            return
        yield line


def show(found: PrefixReport, t: Words) -> None:
    """The differences that cost the most hits, as a table."""
    share = f"{100 * found.lost_tokens / found.prompt_tokens:.0f}"
    with st.expander(
        t("What breaks the prefix cache: {share} % of the prompt tokens", share=share),
        icon=":material/content_cut:",
        key="workload.prefixes",
    ):
        st.caption(
            t(
                "Prompts with much in common, one after the other: where they differ first, all behind it is lost "
                "for a hit. Move what changes behind what stays the same. Of the first {requests} "
                "{requests:prompt|prompts} with texts; no text is kept.",
                requests=count(found.requests),
            )
        )
        body = "".join(
            f"<tr><td>{escape(_named(one.part, t))}</td>"
            + elements.figure_cells(
                count(one.line),
                count(round(one.tokens_before)),
                count(one.times),
                f"{100 * one.lost_tokens / found.lost_tokens:.0f} %",
            )
            + "</tr>"
            for one in found.breaks[:SHOWN]
        )
        names = (
            t("Part of the prompt"),
            t("Line"),
            t("Tokens before it"),
            t("Prompts"),
            t("Of the lost hits"),
        )
        elements.table(names, body, "kv-lengths")


def _named(part: str, t: Words) -> str:
    """A part of a prompt in words."""
    role, message, number = part.partition(" message ")
    return t("{role} message {number}", role=role, number=number) if message else part
