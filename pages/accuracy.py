"""Accuracy: predictions for published starts next to what the starts printed, recomputed by `make accuracy`."""

import streamlit as st

from kvcore.charts import accuracy_figures as words
from kvcore.evidence import accuracy
from pages.ui.accuracy import opening, tables
from pages.ui.shared import elements, notes, shell, state

shell.guard()
t = state.plain_translator()
record = accuracy.load_accuracy()

notes.repairs(t)
st.header(t("How far off is it?"), anchor=False)
opening.how_far_off(record, t)

st.subheader(t("One quantity, start by start"), anchor=False)
check = accuracy.Check(
    st.selectbox(
        t("Quantity"),
        format_func=lambda value: t(words.CHECK_LABELS[accuracy.Check(value)]),
        **state.bound_choice("quantity", "accuracy.check", [check.value for check in accuracy.Check]),
    )
)
apart = st.toggle(
    t("Without the largest campaign (one H100 host, on which other tools were tuned too)"),
    **state.bound("apart", "accuracy.apart"),
)
without = st.toggle(
    t("Each start with same-source data excluded"),
    disabled=check not in accuracy.FITTED,
    **state.bound("unseen", "accuracy.without"),
)
published = accuracy.elsewhere(record.starts) if apart else record.starts
starts = words.shown_starts(published, check, left_out=without)
if without and (alone := accuracy.of_one_source(published, check)) and check in accuracy.FITTED:
    st.caption(
        t("{count} {count:single-source start is|single-source starts are} excluded.", count=str(alone))
    )
elements.chart(
    words.scatter(starts, check, t),
    "accuracy_scatter",
    t("Predicted against measured: {quantity}", quantity=t(words.CHECK_LABELS[check])),
)

st.subheader(t("Other tools on the same starts"), anchor=False)
tables.same_starts(words.same_starts_rows(published, record.peers, check, t), t)
st.caption(
    t(
        "Each row is on the starts that the tool answered; KV Planner predicts each of them with constants fitted "
        "without its publication. The others were given the true size of the checkpoint. Tools with constants do well "
        "where the constants were measured: exclude the largest campaign to see the others."
    )
)
tables.addresses(record)

st.subheader(t("How often the interval is right"), anchor=False)
tables.coverage(words.coverage_rows(record.starts, t), t)
st.caption(
    t(
        "Each start is judged by an interval that was fitted without its publication. 80 % should lie "
        "inside; a group of fewer than eight starts says little. TP is the number of cards that share "
        "each layer; the figures behind it are releases of vLLM."
    )
)

st.subheader(t("Surroundings that the starts state"), anchor=False)
tables.stated(words.stated_rows(record.starts, t), t)
st.caption(
    t(
        "Where an author does not state a surrounding, it is planned as unknown: the figure is that of the "
        "likelier case, and the interval spans the others."
    )
)

st.subheader(t("With its own publication in the fit, and without"), anchor=False)
tables.left_out(words.left_out_rows(record.starts, t), t)
st.caption(
    t(
        "A constant that was fitted on a log fits that log. So each start is predicted a second "
        "time, with constants fitted on the other publications alone: expect at least that error on "
        "hardware that nobody has published. “Single source”: one of its constants rests on no other "
        "publication, so its error elsewhere is unknown. Weights and bytes per token are not fitted."
    )
)

st.subheader(t("By group"), anchor=False)
by = st.segmented_control(
    t("Group"),
    list(words.GROUP_LABELS),
    required=True,
    format_func=lambda name: t(words.GROUP_LABELS[name]),
    label_visibility="collapsed",
    **state.bound("group", "accuracy.by", takes="default"),
)
tables.errors(words.group_rows(starts, check, by, t), t(words.GROUP_LABELS[by]), t)

st.subheader(t("All quantities"), anchor=False)
tables.errors(words.check_rows(published, t), t("Quantity"), t)

st.subheader(t("Every start, with its source"), anchor=False)
tables.sources(published, check, t)
