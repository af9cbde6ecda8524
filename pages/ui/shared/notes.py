"""Sentences of the pages: scenario line, verdict, fixes, warnings, unusable values of a link, chips of given parts.

Text that comes from a link, a config or the Hub is shown with `st.text` or as an id in code marks, never as markdown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import streamlit as st
from msgspec.structs import replace

from kvcore import catalogue
from kvcore.advice.fixes import Fix, FixPair, falls_short, fewer_gpus, fix_pairs, refusal_fixes
from kvcore.base.errors import DefectError, EngineRefusalError, KvPlannerError, Notice
from kvcore.base.numbers import count
from kvcore.base.parts import GIVEN_LABELS
from kvcore.base.words import Words, listed
from kvcore.charts import summary
from kvcore.charts.comparison import ORIGIN_LABELS
from kvcore.charts.summary import Outcome, Sentence, accepted_label
from kvcore.controls.in_force import settings_in_force
from kvcore.evidence.calibration import fields_by_origin
from kvcore.planning import Plan
from kvcore.scenario import Measured, Origin, Scenario
from kvcore.wire.link_names import Repair
from kvcore.workload.limits import ALLOW_LONG, is_above_model, stretch_for
from pages.ui.shared import labels, net, state, undo
from pages.ui.sidebar import model_source

ENGINE_NOT_ON_CARD = "engine-not-on-card"
ABOVE_MODEL = "max-model-len-above-model"
MOST_NEAR = 6
"""Bundled models that are offered in place of an unknown one."""


def scenario_line(plan: Plan, t: Words) -> None:
    """The settings in one line: they survive a screenshot, and show on a phone what the sidebar says."""
    _line(plan.scenario, summary.scenario_line(plan, t))


def scenario_line_of(scenario: Scenario, planned: Plan | KvPlannerError, t: Words) -> None:
    """The scenario line for pages that are shown even where the scenario cannot be planned."""
    if isinstance(planned, Plan):
        scenario_line(planned, t)
        return
    _line(scenario, summary.refused_line(scenario, t))


def scenario_head(plan: Plan, t: Words) -> None:
    """The scenario line without the settings that the chips below it show."""
    _line(plan.scenario, summary.scenario_head(plan, t))


def _line(scenario: Scenario, parts: Sequence[str]) -> None:
    st.caption(" · ".join((f"`{summary.model_name(scenario)}`", *parts)))


def setting_chips(scenario: Scenario, t: Words) -> None:
    """A chip for every setting that the main controls do not show; a click takes it back to the default."""
    found = settings_in_force(scenario, t)
    if not found:
        return
    with st.container(horizontal=True, key="settings", gap="xsmall", vertical_alignment="center"):
        st.caption(t("Also set:"), width="content")
        for setting in found:
            st.button(
                setting.text,
                key=f"setting.{setting.field}",
                icon=":material/close:",
                help=t("Remove this setting"),
                on_click=undo.change,
                args=(setting.removal,),
            )


def verdict(sentence: Sentence) -> None:
    """The verdict sentence, with an icon and a word besides its colour."""
    match sentence.outcome:
        case Outcome.FITS:
            st.success(sentence.text, icon=":material/check_circle:")
        case Outcome.CAUTION:
            st.warning(sentence.text, icon=":material/change_history:")
        case Outcome.FAILS:
            st.error(sentence.text, icon=":material/cancel:")


def other_platform(plan: Plan, t: Words) -> None:
    """Under the verdict: the engine does not run on this card, with the button that takes the one that does."""
    for notice in plan.notices:
        if notice.code == ENGINE_NOT_ON_CARD:
            other = notice.params["other"]
            with st.container(border=True, key="other_platform", gap="xsmall"):
                st.markdown(f":material/change_history: **{t('This engine does not run on this card')}**")
                st.text(f"{t.error(notice)}\n→ {t.next_step(notice)}")
                st.button(
                    t("Use {name}", name=other),
                    key="other_platform.use",
                    on_click=undo.change,
                    args=((("engine", other), ("engine_version", None)),),
                )


def above_model(plan: Plan, t: Words) -> None:
    """Under the verdict: the length exceeds the model's own limit, with two buttons that make it start."""
    if not is_above_model(plan):
        return
    limit, env = plan.resolved.derived_max_model_len, {**plan.scenario.env, ALLOW_LONG: "1"}
    with st.container(horizontal=True, key="above_model", gap="small", vertical_alignment="center"):
        st.caption(
            t(
                "The engine refuses {asked} tokens without {variable}=1: the model was made for {limit}, and answers "
                "may be worse above. The start command below sets it.",
                asked=count(plan.resolved.max_model_len),
                limit=count(limit),
                variable=ALLOW_LONG,
            ),
            width="content",
        )
        ways: list[tuple[str, str, tuple[tuple[str, object], ...]]] = [
            ("limit", t("Context length {value}", value=count(limit)), (("max_model_len", limit),))
        ]
        yarn = stretch_for(plan)
        if yarn is not None:
            label = t(
                "YaRN × {factor}, up to {tokens} tokens",
                factor=f"{yarn.factor:g}",
                tokens=count(yarn.max_model_len),
            )
            ways.append(("yarn", label, (("hf_overrides", yarn.text),)))
        allowed = t(
            "Keep {tokens} tokens with {variable}=1",
            tokens=count(plan.resolved.max_model_len),
            variable=ALLOW_LONG,
        )
        ways.append(("allow", allowed, (("env", env),)))
        for name, label, changes in ways:
            st.button(label, key=f"above_model.{name}", on_click=undo.change, args=(changes,))
        if yarn is not None:
            st.caption(
                t(
                    "The model's publisher tested YaRN (--hf-overrides) for this length. It "
                    "applies to all requests: answers to short ones may be a little worse."
                )
            )


def finding(text: str, *, found: bool, is_tight: bool = False, t: Words | None = None) -> None:
    """The answer to a question, with an icon besides its colour; worded like Plan where it may not start."""
    if is_tight and t is not None:
        text = t("{finding}. Tight: within the estimate's error", finding=text)
        st.warning(text, icon=":material/warning:")
    elif found:
        st.success(text, icon=":material/check_circle:")
    else:
        st.warning(text, icon=":material/search_off:")


def fixes(plan: Plan, found: Sequence[Fix], t: Words, *, of_traffic: Fix | None = None) -> None:
    """The single changes that fix the plan, each a button with one step back, the length of the session's own requests
    first; pairs of changes where no single one does."""
    if of_traffic is not None:
        found = (of_traffic, *(fix for fix in found if fix.field != of_traffic.field))
    pairs = fewer_gpus(plan, found) if found else fix_pairs(plan)
    if not found and not pairs:
        st.caption(t("No one or two changes fix it: choose a smaller model, or more and larger GPUs."))
        return
    head = t("Fix it with one change:") if found else t("No single change fixes it; two together do:")
    if found and falls_short(plan):
        head = t("One change serves them all:")
    with st.container(key="fixes", gap="xsmall"):
        if found and pairs:
            st.caption(t("Two changes together need the fewest of these GPUs:"))
            _pairs(pairs, t)
        st.caption(head)
        # A grid keeps the height of its rows before the browser has drawn a button.
        grid = st.grid(3, min_column_width=240)
        for fix in found:
            grid.cell().button(
                summary.fix_text(summary.fix_label(fix, t, is_of_traffic=fix is of_traffic), fix, t),
                key=f"fix.{fix.key}",
                width="stretch",
                on_click=undo.change,
                args=(((fix.field, fix.value),),),
            )
        if not found:
            _pairs(pairs, t)


def _pairs(pairs: Sequence[FixPair], t: Words) -> None:
    """A button for each pair of changes."""
    grid = st.grid(3, min_column_width=240)
    for number, pair in enumerate(pairs):
        grid.cell().button(
            summary.fix_text(summary.pair_label(pair, t), pair.second, t),
            key=f"fix_pair.{number}",
            width="stretch",
            on_click=undo.change,
            args=(pair.changes,),
        )


def accepted(scenario: Scenario, refused: EngineRefusalError, t: Words) -> tuple[Fix, ...]:
    """The single changes with which the engine accepts the scenario, each a button with one step back; returns them."""
    found = refusal_fixes(scenario, refused)
    if not found:
        return found
    with st.container(horizontal=True, key="accepted", gap="small", vertical_alignment="center"):
        if len(found) == 1:
            head = t("One change makes the engine accept it:")
        else:
            head = t("Any one of these changes makes the engine accept it:")
        st.caption(head, width="content")
        for one in found:
            st.button(
                summary.fix_text(accepted_label(one, t), one, t),
                key=f"accepted.{one.field}",
                on_click=undo.change,
                args=(((one.field, one.value),),),
            )
    return found


def what_this_is(t: Words) -> None:
    """One line for first-time visitors, until the scenario changes."""
    if state.is_as_found():
        st.caption(t("Choose model and card in the sidebar; every number says how it was computed."))


def repairs(t: Words) -> None:
    """The unusable values of a link, shown once; the page goes on with their replacements."""
    found = st.session_state.get("repairs", ())
    if found:
        with st.container(border=True, key="repairs", gap="xsmall"):
            st.markdown(f":material/link_off: **{t('Part of this link could not be used')}**")
            for repair in found:
                if isinstance(repair.error, DefectError):
                    st.text(t.error(repair.error))
                    continue
                used = repair.used or t("the default")
                line = t("{field}: {given} → {used}", field=repair.field, given=repair.given, used=used)
                if repair.error.code in ("unknown-parameter", "named-twice"):
                    line = f"{repair.field}={repair.given}"
                st.text(f"{line}\n{t.error(repair.error)}")
    error = st.session_state.pop("input_error", None)
    st.session_state.pop(state.ERROR_FIELD, None)
    if error is not None:
        refusal(error, t)
    followed = st.session_state.pop("followed", ())
    if followed:
        st.toast(t("Changed with the model: {fields}", fields=listed(t, followed)))
    engine = st.session_state.pop("followed_card", "")
    if engine:
        st.toast(t("Changed with the card: the engine, now {engine}", engine=engine))


def refusal(error: KvPlannerError, t: Words) -> None:
    """Why there is no plan, and the next step, with a button where the error itself says the value."""
    is_engine = isinstance(error, EngineRefusalError)
    problem(t("The engine refuses this start") if is_engine else t("This cannot be planned"), error, t)
    if error.code == "state-blocks-too-few":
        blocks = error.params["blocks"]
        st.button(
            t("At most {value} {value:sequence|sequences}", value=blocks),
            key="refusal.max_num_seqs",
            on_click=undo.change,
            args=((("max_num_seqs", int(blocks)),),),
        )


def unknown_model(lost: Repair, t: Words) -> None:
    """In place of a plan: the model of the link is not known, with the ways to name one."""
    with st.container(border=True, key="unknown_model", gap="small"):
        st.error(f"**{t('This link names a model that is not known here')}**", icon=":material/block:")
        st.text(t.error(lost.error))
        st.text(t("Nothing is planned until a model is chosen; the other settings of the link are kept."))
        found = [
            name for name in lost.error.params.get("near", "").split(", ") if catalogue.bundled_model(name)
        ]
        near = (found or catalogue.search_models(lost.given, limit=MOST_NEAR))[:MOST_NEAR]
        if near:
            st.caption(t("Bundled models with a name like it:"))
            with st.container(horizontal=True, gap="small"):
                for name in near:
                    st.button(name, key=f"near.{name}", on_click=model_source.choose, args=(name,))
        if "/" in lost.given:
            st.button(
                t("Look it up on the Hub"),
                key="unknown_model.hub",
                icon=":material/travel_explore:",
                disabled=model_source.is_offline(),
                on_click=model_source.fetch_and_use,
                args=(lost.given, "unknown_model"),
            )
            model_source.show_error("unknown_model", t)
        st.button(
            t("Give its config.json"),
            key="unknown_model.config",
            icon=":material/data_object:",
            on_click=model_source.ask,
            args=(lost.given if "/" in lost.given else "",),
        )
        st.caption(t("Or search for any other model in the sidebar, under “Model”."))
        labels.code(lost.error)


def refused(error: KvPlannerError, t: Words) -> tuple[Fix, ...]:
    """The refusal of the scenario on any page: the reason, the single changes that end it, and every setting in force.

    Gives the changes.
    """
    lost = state.lost_model()
    if lost is not None:
        unknown_model(lost, t)
        return ()
    refusal(error, t)
    found = accepted(state.scenario(), error, t) if isinstance(error, EngineRefusalError) else ()
    setting_chips(state.scenario(), t)
    undo.offer(t)
    return found


def problem(title: str, error: KvPlannerError, t: Words) -> None:
    """An error in words with its next step and its code; `title` is a text of the catalogue.

    Two parts of a page may have the same error.
    """
    with st.container(border=True, gap="xsmall"):
        st.error(f"**{title}**", icon=":material/block:")
        st.text(f"{t.error(error)}\n{t('Next: {step}', step=t.next_step(error))}")
        labels.code(error)


def notices(found: Sequence[Notice], t: Words) -> None:
    """The warnings of a plan, each with what can be done about it."""
    if found:
        with st.container(border=True, gap="xsmall"):
            st.markdown(f":material/info: **{t('Note')}**")
            for notice in found:
                st.text(f"{t.error(notice)}\n→ {t.next_step(notice)}")


LOOKS: Final[Mapping[Origin, tuple[str, Literal["violet", "blue", "orange"]]]] = {
    Origin.MEASURED: (":material/straighten:", "violet"),
    Origin.FITTED: (":material/join_inner:", "blue"),
    Origin.CARRIED: (":material/redo:", "orange"),
}


def measurements(t: Words) -> None:
    """A chip for each origin of given parts, and the button that removes them; nothing where no part is given."""
    given = fields_by_origin(state.scenario().measured)
    if not given:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="measurements"):
        for origin, parts in given.items():
            names = listed(t, (t(GIVEN_LABELS[part]) for part in parts))
            icon, color = LOOKS[origin]
            st.badge(t(ORIGIN_LABELS[origin], parts=names), icon=icon, color=color)
        st.button(
            t("Back to the estimate"),
            key="measurements.remove",
            icon=":material/close:",
            type="tertiary",
            on_click=_remove,
        )


@net.callback
def _remove() -> None:
    state.set_scenario(replace(state.scenario(), measured=Measured()))
