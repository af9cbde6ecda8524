"""The parameters as a searchable list, each with its effect on the present scenario; corrections; glossary.

Charts are bars of HTML that stand next to their figures: they take the theme's colours, and say nothing by
colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import streamlit as st

from kvcore.base.numbers import DASH, concurrency_text, count
from kvcore.base.words import Words
from kvcore.engine.protocol import Engine
from kvcore.engines.registry import engine_of, former_flag
from kvcore.explain.reference import (
    POST_MORTEM,
    RULE_OF_THUMB,
    DefaultRun,
    Effect,
    defaults_by_version,
    effects,
    facts,
    matching,
    present_value,
    takes_part,
    truth,
    value_text,
)
from kvcore.planning import Plan
from kvcore.texts import CORRECTIONS, GLOSSARY, PARAMETERS, SOURCES, Document, Parameter
from kvcore.wire import link
from pages.ui.check import tabs
from pages.ui.shared import elements, net, state, undo


def parameters(plan: Plan | None, t: Words) -> None:
    """The search field, the list, and the corrections of the source documents."""
    st.text_input(
        t("Search parameters"),
        placeholder="max_model_len, fp8, graphs …",
        icon=":material/search:",
        **state.bound("find", "reference_query"),
    )
    engine = engine_of(state.scenario())
    if engine.own_name("max_model_len") is not None:
        _own_parameters(engine, plan, t)
        return
    found = matching(PARAMETERS.values(), state.page_parameter("find"), t)
    st.caption(
        t("{count} parameters. Bars: requests of the full length at once, with this scenario.", count=str(len(found)))
    )  # fmt: skip
    if found:
        defaults = defaults_by_version(plan) if plan is not None else {}
        st.html("".join(_parameter(parameter, plan, defaults, t) for parameter in found))
    else:
        st.info(t("No results."))
    if plan is not None:
        _corrections(plan, t)


def _own_parameters(engine: Engine, plan: Plan | None, t: Words) -> None:
    """The arguments of an engine with names of its own, each with its effect on the present scenario."""
    asked = state.page_parameter("find").lower()
    by_field = {one.field: one for one in PARAMETERS.values() if one.field}
    rows = []
    for field, own in engine.own_names().items():
        one = by_field.get(field)
        meaning = t(own.help) if own.help else t(one.meaning) if one is not None else ""
        chart = _bars(effects(plan, one, t), t) if plan is not None and one is not None else ""
        badge = _badge(one, plan, t) if one is not None else ""
        rows.append((own.spelling, badge, meaning, chart))
    rows += [
        (
            f"--{one.name.replace('_', '-')}",
            "",
            t(one.help).partition("`: ")[2] or t(one.help).partition("`：")[2],
            "",
        )
        for one in engine.own_controls(state.scenario())
    ]
    found = [row for row in rows if asked in f"{row[0]} {row[2]}".lower()]
    if not found:
        st.info(t("No results."))
        return
    st.caption(
        t("{count} parameters. Bars: requests of the full length at once, with this scenario.", count=str(len(found)))
    )  # fmt: skip
    st.html(
        "".join(
            f'<details class="kv-parameter"><summary><code>{escape(flag)}</code> {badge}<span>{escape(meaning)}</span>'
            f'</summary><div class="kv-parameter-body">{chart}</div></details>'
            if chart
            else f'<p class="kv-parameter"><code>{escape(flag)}</code> <span>{escape(meaning)}</span></p>'
            for flag, badge, meaning, chart in found
        )
    )


def glossary(t: Words) -> None:
    """Every term with its meaning, in the page's language; the English word next to a Chinese one."""
    query = (
        st.text_input(t("Search terms"), icon=":material/search:", **state.bound("find", "glossary_query"))
        or ""
    )
    rows = [
        (t(term.name), term.name, t(term.meaning))
        for term in GLOSSARY.values()
        if query.lower() in f"{term.name} {t(term.name)} {t(term.meaning)}".lower()
    ]
    if not rows:
        st.info(t("No results."))
        return
    items = "".join(
        f"<dt>{escape(name)}{f' <span class=kv-soft>{escape(english)}</span>' if english != name else ''}</dt>"
        f"<dd>{escape(meaning)}</dd>"
        for name, english, meaning in rows
    )
    st.html(f'<dl class="kv-glossary">{items}</dl>')


def _parameter(
    parameter: Parameter, plan: Plan | None, defaults: Mapping[str, Sequence[DefaultRun]], t: Words
) -> str:
    runs = defaults.get(parameter.field or "", ())
    rows = [
        (t("Memory"), t(parameter.memory)),
        (t("Common mistake"), t(parameter.mistake)),
        (t("Advice"), t(parameter.advice)),
        (t("Default"), _runs_text(runs, t)),
        (t("Documents"), "; ".join(t(SOURCES[source].name) for source in parameter.sources)),
    ]
    former = former_flag(parameter.flag)
    if former is not None:
        rows.insert(0, (t("Since"), _former_text(parameter.flag, t)))
        rows.append((t("Source"), former.source))
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in rows if text)
    chart = _bars(effects(plan, parameter, t), t) if plan is not None else ""
    return (
        '<details class="kv-parameter"><summary>'
        f"<code>{escape(parameter.flag)}</code> {_badge(parameter, plan, t)}"
        f"<span>{escape(t(parameter.meaning))}</span></summary>"
        f'<div class="kv-parameter-body">{chart}<dl>{items}</dl></div></details>'
    )


def _badge(parameter: Parameter, plan: Plan | None, t: Words) -> str:
    former = former_flag(parameter.flag)
    if former is not None:
        text = t("removed in {gone}", gone=str(former.gone)) if former.seen is not None else t("no such flag")
        return f'<b class="kv-badge kv-gone">{escape(text)}</b>'
    if plan is None or parameter.field is None or not takes_part(plan, parameter):
        return ""
    value = present_value(plan, parameter.field)
    return f'<b class="kv-badge">{escape(t("now: {count}", count=value_text(value, t)))}</b>'


def _former_text(flag: str, t: Words) -> str:
    former = former_flag(flag)
    if former is None:
        return ""
    if former.seen is None:
        text = t("No version we read has this flag.")
    else:
        text = t("Last in {seen}, removed in {gone}.", seen=str(former.seen), gone=str(former.gone))
    return f"{text} {t('Replaced by: {flag}', flag=former.replaced_by)}" if former.replaced_by else text


def _runs_text(runs: Sequence[DefaultRun], t: Words) -> str:
    return "; ".join(
        f"{value_text(run.value, t)} ({run.first}{f' – {run.last}' if run.last != run.first else ''})"
        for run in runs
    )


def _bars(found: Sequence[Effect], t: Words) -> str:
    """A row for each value: bar, requests at once, tokens. The present value is marked."""
    if not found:
        return ""
    most = max(effect.concurrency for effect in found) or 1.0
    rows = "".join(
        f'<tr{" class=kv-now" if effect.is_present else ""}><th scope="row">{escape(effect.label)}'
        f"{escape(t(' (now)')) if effect.is_present else ''}</th>"
        f'<td class="kv-bar"><span style="width:{100 * effect.concurrency / most:.1f}%"></span></td>'
        f"<td>{escape(_requests(effect, t))}</td>"
        f"<td>{count(effect.tokens) if effect.tokens else DASH}</td></tr>"
        for effect in found
    )
    head = (
        f"<th></th><th></th><th>{escape(t('Requests at once'))}</th><th>{escape(t('KV cache tokens'))}</th>"
    )
    return f'<table class="kv-bars"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _requests(effect: Effect, t: Words) -> str:
    if effect.refusal is not None:
        return t("refused")
    return concurrency_text(effect.concurrency) if effect.concurrency else t("does not start")


def _corrections(plan: Plan, t: Words) -> None:
    st.subheader(t("What the source documents get wrong"), anchor=False)
    st.caption(
        t("Four guides that this planner grew from, checked against the engine. Figures are computed here.")
    )
    known = facts(plan)
    heads = (t("Document"), t("Says"), t("Correct"))
    rows, before = "", None
    for one in CORRECTIONS.values():
        # A phone stacks the cells of a row: there the document is said once for the rows of it that follow each other.
        again = ' class="kv-again"' if one.source == before else ""
        rows += (
            f"<tr><td{again}>{escape(t(SOURCES[one.source].name))}</td>"
            f'<td data-head="{escape(heads[1])}">{escape(t(one.claim))}</td>'
            f'<td data-head="{escape(heads[2])}">{escape(truth(one, known, t))}</td></tr>'
        )
        before = one.source
    elements.table(heads, rows, "kv-corrections")
    with st.container(horizontal=True):
        for key, label, example in (
            (
                "load_rule_of_thumb",
                t("Load Qwen3-32B on 8 × RTX 4090, with its assumptions"),
                RULE_OF_THUMB,
            ),
            ("load_post_mortem", t("Load Llama-2-70B on 4 × A100"), POST_MORTEM),
        ):
            params = {name: str(value) for name, value in example.items()}
            st.button(label, key=key, on_click=_plan, args=(params,))
    st.html(f'<dl class="kv-glossary">{"".join(_document(one, t) for one in SOURCES.values())}</dl>')
    st.page_link(
        "pages/check.py",
        label=t("The pre-run for Ascend, step by step, on the Check page"),
        icon=":material/fact_check:",
        query_params={**state.params(), tabs.NAME: tabs.PRERUN},
    )


def _document(document: Document, t: Words) -> str:
    """A source's name, title, author and licence where known, and what is taken from it."""
    by = "; ".join(escape(text) for text in (document.title, document.author, document.license) if text)
    return f"<dt>{escape(t(document.name))} <span class=kv-soft>{by}</span></dt><dd>{escape(t(document.taken))}</dd>"


@net.callback
def _plan(params: dict[str, str]) -> None:
    undo.take_to_plan(link.decode(params).scenario)
