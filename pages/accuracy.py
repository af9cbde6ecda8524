"""Accuracy: our predictions for published starts beside what they printed, recomputed by `make accuracy`."""

import streamlit as st

from kvcore.evidence.accuracy import Check, elsewhere, load_accuracy, our_points, summarize, verdicts
from kvcore.present import accuracy as words
from pages.ui import accuracy_tables, figure, notes, shell, state

shell.guard()
t = state.translator()
record = load_accuracy()

notes.repairs(t)
st.header(t("How far off is it?"), anchor=False)
memory = summarize(our_points(record.starts, Check.KV_MEMORY))
told = verdicts(record.starts)
if memory is not None and memory.inside is not None:
    st.markdown(
        t(
            "On {starts} published starts the predicted KV memory is off by {median} in the median and by {p90} at the "
            "ninth decile; {inside} of the measured figures lie inside their 80 % interval.",
            starts=str(memory.count),
            median=words.percent(memory.median),
            p90=words.percent(memory.p90),
            inside=words.percent(memory.inside),
        )
    )
st.caption(
    t(
        "{healthy} starts that succeeded: {refused} predicted to fail. {failed} failed ones: {named} named rightly. "
        "Recomputed on {date} by “make accuracy” from what the authors stated, with nothing measured given. Constants "
        "of activations, framework and graphs were fitted on part of these starts, so expect more on new hardware.",
        healthy=str(told.healthy),
        refused=str(told.refused),
        failed=str(told.failed),
        named=str(told.named_rightly),
        date=record.generated,
    )
)
check = Check(
    st.selectbox(
        t("Quantity"),
        [check.value for check in Check],
        format_func=lambda value: t(words.CHECK_LABELS[Check(value)]),
        key="accuracy.check",
    )
)
apart = st.toggle(
    t("Without the largest campaign (one H100 host, on which other tools were tuned too)"),
    key="accuracy.apart",
)
starts = elsewhere(record.starts) if apart else record.starts
figure.chart(
    words.scatter(starts, check, t),
    "accuracy_scatter",
    t("Predicted against measured: {quantity}", quantity=t(words.CHECK_LABELS[check])),
)

st.subheader(t("Other tools on the same starts"), anchor=False)
accuracy_tables.errors(words.peer_rows(starts, record.peers, check, t), t("Tool"), t)
st.caption(
    t(
        "Each tool on the starts that it answered. The others were given the true size of the checkpoint. Tools with "
        "constants do well where the constants were measured: leave the largest campaign out to see the others."
    )
)
accuracy_tables.addresses(record)

st.subheader(t("By group"), anchor=False)
by = st.segmented_control(
    t("Group"),
    list(words.GROUP_LABELS),
    default="version",
    required=True,
    format_func=lambda name: t(words.GROUP_LABELS[name]),
    key="accuracy.by",
    label_visibility="collapsed",
)
accuracy_tables.errors(words.group_rows(starts, check, by, t), t(words.GROUP_LABELS[by]), t)

st.subheader(t("All quantities"), anchor=False)
accuracy_tables.errors(words.check_rows(starts, t), t("Quantity"), t)

st.subheader(t("Every start, with its source"), anchor=False)
accuracy_tables.sources(starts, check, t)
