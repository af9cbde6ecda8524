"""How far off plans are, in sentences: on all starts, on the last batch, and in what was predicted of success."""

from __future__ import annotations

import streamlit as st

from kvcore.base.numbers import error_percent
from kvcore.base.words import Words
from kvcore.evidence import accuracy


def how_far_off(record: accuracy.Accuracy, t: Words) -> None:
    """The sentences above the tables."""
    _errors(record, t)
    _last_batch(record, t)
    _verdicts(record, t)


def _errors(record: accuracy.Accuracy, t: Words) -> None:
    unseen, fitted = accuracy.headline(accuracy.held_out(record.starts)), accuracy.headline(record.starts)
    if unseen is not None and fitted is not None:
        st.markdown(
            t(
                "On {starts} published starts, with constants and intervals fitted without their own "
                "publication, the KV memory is off by {median} (median) and {p90} (P90): {share} and "
                "{share_p90} of the card’s memory. {inside} of the measured figures lie inside their 80 % "
                "interval, {each} where each publication counts once; its median width is {width} of the "
                "figure.",
                each=error_percent(unseen.inside_by_publication, t),
                starts=str(unseen.found.count),
                median=error_percent(unseen.found.median, t),
                p90=error_percent(unseen.found.p90, t),
                share=error_percent(unseen.share_median, t),
                share_p90=error_percent(unseen.share_p90, t),
                inside=error_percent(unseen.found.inside or 0.0, t),
                width=error_percent(unseen.width, t),
            )
        )
        st.markdown(
            t(
                "With all data in the fit, as the product ships: {median} (median), {p90} (P90), {inside} inside. "
                "{alone} starts rest on a constant that no other publication informs, so it is kept in both.",
                alone=str(sum(start.one_source for start in record.starts)),
                median=error_percent(fitted.found.median, t),
                p90=error_percent(fitted.found.p90, t),
                inside=error_percent(fitted.found.inside or 0.0, t),
            )
        )


def _last_batch(record: accuracy.Accuracy, t: Words) -> None:
    days, every = accuracy.batches(record.starts), accuracy.headline(accuracy.without_batch(record.starts))
    last = record.batches[-1] if record.batches else None
    newest = accuracy.headline(days.get(last.date, ())) if last is not None else None
    if last is not None and newest is not None and every is not None:
        st.markdown(
            t(
                "The last starts came in on {date}, of authors nobody had seen: as the planner stood before it knew "
                "them, {fresh} of {seen} lay inside their interval. With intervals fitted on the earlier starts "
                "alone {inside} do, and {each} of all starts where each batch is left out in turn.",
                date=last.date,
                fresh=str(last.inside),
                seen=str(last.starts),
                inside=error_percent(newest.found.inside or 0.0, t),
                each=error_percent(every.found.inside or 0.0, t),
            )
        )


def _verdicts(record: accuracy.Accuracy, t: Words) -> None:
    judged = accuracy.verdicts(record.starts)
    st.caption(
        t(
            "{refused} of {healthy} successful starts were predicted to fail. Of {failed} failed starts the "
            "cause was predicted for {named}; {tight} more were called tight. Recomputed on {date} by “make "
            "accuracy” from what the authors stated, without any measured figure.",
            healthy=str(judged.healthy),
            refused=str(judged.refused),
            failed=str(judged.failed),
            named=str(judged.named_rightly),
            tight=str(judged.called_tight),
            date=record.generated,
        )
    )
