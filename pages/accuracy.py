"""Accuracy: our predictions for published starts next to what they printed, recomputed by `make accuracy`."""

import streamlit as st

from kvcore.evidence.accuracy import (
    FITTED,
    Check,
    elsewhere,
    held_out,
    load_accuracy,
    of_one_source,
    our_points,
    summarize,
    verdicts,
)
from kvcore.views import accuracy_figures as words
from pages.ui.accuracy import tables
from pages.ui.shared import figure, notes, shell, state

shell.guard()
t = state.translator()
record = load_accuracy()

notes.repairs(t)
st.header(t("How far off is it?"), anchor=False)
memory = summarize(our_points(record.starts, Check.KV_MEMORY))
unseen = summarize(our_points(held_out(record.starts), Check.KV_MEMORY))
judged = verdicts(record.starts)
if memory is not None and memory.inside is not None:
    st.markdown(
        t(
            "On {starts} published starts the predicted KV memory is off by {median} (median) and "
            "{p90} (P90); {inside} of the measured figures lie inside their 80 % interval.",
            starts=str(memory.count),
            median=words.percent(memory.median),
            p90=words.percent(memory.p90),
            inside=words.percent(memory.inside),
        )
    )
if unseen is not None and unseen.inside is not None:
    st.markdown(
        t(
            "But most constants were fitted on these very starts. With same-source data excluded "
            "from the fit, the error is {median} (median) and {p90} (P90), and {inside} lie "
            "inside, on the {count} starts where other publications cover every constant. For the"
            " other {alone} the error is unknown.",
            median=words.percent(unseen.median),
            p90=words.percent(unseen.p90),
            inside=words.percent(unseen.inside),
            count=str(unseen.count),
            alone=str(of_one_source(record.starts, Check.KV_MEMORY)),
        )
    )
st.caption(
    t(
        "{refused} of {healthy} successful starts were predicted to fail. The cause was predicted "
        "for {named} of {failed} failed starts. Recomputed on {date} by “make accuracy” from what "
        "the authors stated, without any measured figure.",
        healthy=str(judged.healthy),
        refused=str(judged.refused),
        failed=str(judged.failed),
        named=str(judged.named_rightly),
        date=record.generated,
    )
)

st.subheader(t("All data → same-source data excluded"), anchor=False)
tables.left_out(words.left_out_rows(record.starts, t), t)
st.caption(
    t(
        "A constant that was fitted on a log fits that log. So each start is predicted a second "
        "time, with constants fitted on the other publications alone: expect at least that error on "
        "hardware that nobody has published. “Single source”: one of its constants rests on no other "
        "publication, so its error elsewhere is unknown. Weights and bytes per token are not fitted."
    )
)

st.subheader(t("One quantity, start by start"), anchor=False)
check = Check(
    st.selectbox(
        t("Quantity"),
        [check.value for check in Check],
        format_func=lambda value: t(words.CHECK_LABELS[Check(value)]),
        **state.bound("quantity", "accuracy.check"),
    )
)
apart = st.toggle(
    t("Without the largest campaign (one H100 host, on which other tools were tuned too)"),
    **state.bound("apart", "accuracy.apart"),
)
without = st.toggle(
    t("Each start with same-source data excluded"),
    disabled=check not in FITTED,
    **state.bound("unseen", "accuracy.without"),
)
published = elsewhere(record.starts) if apart else record.starts
starts = words.shown_starts(published, check, left_out=without)
if without and (alone := of_one_source(published, check)) and check in FITTED:
    st.caption(t("{count} single-source starts are excluded.", count=str(alone)))
figure.chart(
    words.scatter(starts, check, t),
    "accuracy_scatter",
    t("Predicted against measured: {quantity}", quantity=t(words.CHECK_LABELS[check])),
)

st.subheader(t("Other tools on the same starts"), anchor=False)
tables.errors(words.peer_rows(starts, record.peers, check, t), t("Tool"), t)
st.caption(
    t(
        "Each tool on the starts that it answered. The others were given the true size of the "
        "checkpoint. Tools with constants do well where the constants were measured: exclude the "
        "largest campaign to see the others."
    )
)
tables.addresses(record)

st.subheader(t("By group"), anchor=False)
by = st.segmented_control(
    t("Group"),
    list(words.GROUP_LABELS),
    required=True,
    format_func=lambda name: t(words.GROUP_LABELS[name]),
    label_visibility="collapsed",
    **state.bound("group", "accuracy.by"),
)
tables.errors(words.group_rows(starts, check, by, t), t(words.GROUP_LABELS[by]), t)

st.subheader(t("All quantities"), anchor=False)
tables.errors(words.check_rows(published, t), t("Quantity"), t)

st.subheader(t("Every start, with its source"), anchor=False)
tables.sources(published, check, t)
