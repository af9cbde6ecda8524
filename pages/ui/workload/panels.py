"""Panels of the Workload page: the steady state, conversations whose history grows, shared prefixes, what to set."""

from __future__ import annotations

from html import escape

import streamlit as st
from msgspec.structs import replace

from kvcore.base.numbers import count
from kvcore.base.words import Words
from kvcore.charts.summary import Card
from kvcore.charts.workload_summary import (
    advice_lines,
    conversation_sentence,
    prefix_sentence,
    steady_figures,
    turn_rows,
)
from kvcore.planning import Plan
from kvcore.workload.histogram import MAX_TOKENS
from kvcore.workload.limits import Conversation, LimitChoice, prefix_sharing, steady_of
from kvcore.workload.mix import Mix
from pages.ui.shared import elements, numbers, state, undo
from pages.ui.workload.result import Choices

TURNS = (1, 2, 3, 5, 8, 12, 20)
DEFAULT_SYSTEM, DEFAULT_USER = 500, 100


def steady(plan: Plan, choice: LimitChoice, t: Words) -> None:
    """How many requests of the real mix run at once, and the max_num_seqs that this suggests."""
    figures = steady_figures(choice, t)
    if not figures or choice.steady is None:
        return
    st.subheader(t("Your requests under constant load"), anchor=False)
    elements.card_grid(st.grid(len(figures), min_column_width=190), figures)
    seats, wanted = plan.resolved.max_num_seqs, choice.steady.most_seats()
    if wanted is not None and wanted < seats:
        st.text(
            t("With more than {wanted} requests at once growing answers overflow the cache often: with max_num_seqs "
              "{wanted} the rest waits in the queue instead, and little is computed twice.", wanted=count(wanted))
        )  # fmt: skip
        st.button(
            t("Use max_num_seqs {value}", value=count(wanted)),
            key="workload.seats",
            icon=":material/check:",
            on_click=undo.change,
            args=((("max_num_seqs", wanted),),),
        )
    else:
        st.text(
            t("All {seats} requests that max_num_seqs allows fit in the cache: preemption is rare.",
              seats=count(seats))
        )  # fmt: skip
    st.caption(
        t(
            "Counted while others always wait. A request counts as long as it stays, with the blocks that it holds at "
            "each moment. Against a replay of vLLM's own scheduler, eight kinds of traffic on seven models of all "
            "cache kinds, nearly all such figures are right to 5 % and none is more than 5 % too high. Where the "
            "tokens of a step bind, more run if the cache still has earlier turns."
        )
    )


def conversation(mix: Mix, choice: LimitChoice, t: Words) -> None:
    """The tokens of a conversation, turn by turn."""
    is_given = any(state.page_parameter(name) is not None for name in ("system", "user", "reply", "kept"))
    with st.expander(t("Conversations"), expanded=is_given, icon=":material/forum:"):
        _conversation(mix, choice, t)


def _conversation(mix: Mix, choice: LimitChoice, t: Words) -> None:
    st.caption(
        t(
            "A chat client sends the whole history with each turn, so turns grow until the limit ends the conversation."
        )
    )
    grid = st.grid(4, min_column_width=150)
    system = _tokens(grid, t("System prompt"), "system", DEFAULT_SYSTEM, 0, t)
    user = _tokens(grid, t("Each question"), "user", DEFAULT_USER, 1, t)
    reply = _tokens(grid, t("Each answer"), "reply", max(1, mix.quantiles.answer.p50), 1, t)
    kept = _tokens(grid, t("Earlier turns kept (0: all)"), "kept", 0, 0, t)
    chat = Conversation(system_tokens=system, user_tokens=user, answer_tokens=reply, kept_turns=kept)
    st.text(conversation_sentence(chat, choice.limit_tokens, t))
    head = (
        t("Turn"),
        t("Tokens at its end"),
        t("New to the cache"),
        t("At once, all at this turn"),
        t("Limit {tokens}", tokens=count(choice.limit_tokens)),
    )
    body = "".join(
        f"<tr>{elements.figure_cells(row.turn, row.taken, row.new, row.requests)}<td>{escape(row.fits)}</td></tr>"
        for row in turn_rows(chat, choice, TURNS, t)
    )
    elements.table(head, body)
    st.caption(
        t(
            "New to the cache: prompt tokens that prefix caching does not find, while nothing was evicted. Dropping "
            "old turns bounds the length, but what follows the system prompt then has to be computed anew in each turn."
        )
    )


def prefix(mix: Mix, choice: LimitChoice, t: Words) -> None:
    """A system prompt that all requests share."""
    is_given = any(state.page_parameter(name) is not None for name in ("prefix",))
    with st.expander(t("Shared prefix"), expanded=is_given, icon=":material/content_copy:"):
        _prefix(mix, choice, t)


def _prefix(mix: Mix, choice: LimitChoice, t: Words) -> None:
    grid = st.grid(4, min_column_width=150)
    shared = _tokens(grid, t("Tokens that all share"), "prefix", DEFAULT_SYSTEM, 0, t)
    request = max(1, round(choice.mean_tokens))
    if choice.plan is None or not choice.starts:
        st.text(t("At this length the engine does not start."))
        return
    found = prefix_sharing(choice.plan, shared, request)
    if found is None:
        st.text(t("This model keeps nothing of a request, so nothing can be shared."))
        return
    found_cards = (
        (t("Blocks of one request"), count(found.request_blocks),
         t("mean length, {tokens} tokens", tokens=count(request))),
        (t("Stored once"), count(found.shared_blocks), t("blocks, {tokens} tokens", tokens=count(found.shared_tokens))),
        (t("At once, with sharing"), count(int(found.requests_with)),
         t("{requests} without", requests=count(int(found.requests_without)))),
    )  # fmt: skip
    elements.card_grid(
        grid, (Card(label=label, value=value, note=note) for label, value, note in found_cards)
    )
    st.text(prefix_sentence(found, t))
    steady = steady_of(choice.plan, mix, found.shared_tokens) if found.shared_blocks else None
    if steady is not None and choice.plan.resolved.enable_prefix_caching:
        figures = steady_figures(replace(choice, steady=steady), t)
        st.caption(t("Your requests in the steady state, with this prefix stored once:"))
        elements.card_grid(st.grid(len(figures), min_column_width=190), figures)
    if not choice.plan.resolved.enable_prefix_caching:
        st.warning(
            t("Prefix caching is off in this scenario: {flag} turns it on.", flag="--enable-prefix-caching"),
            icon=":material/info:",
        )
    st.caption(
        t(
            "Only whole blocks from the first token on are shared: put what varies, such as the date "
            "or the user's name, after the common part."
        )
    )


def advice(plan: Plan, mix: Mix, choices: Choices, t: Words) -> None:
    """The advice on flags and fields, with today's numbers."""
    with st.expander(t("What to set, and what it does not do"), icon=":material/lightbulb:"):
        for flag, text in advice_lines(plan, mix, choices[mix.recommended_max_model_len], t):
            st.markdown(f"`{flag}`")
            st.text(text)


def _tokens(
    grid: st.delta_generator.DeltaGenerator, label: str, name: str, default: int, least: int, t: Words
) -> int:
    usual = max(least, min(default, MAX_TOKENS))
    limits = numbers.Limits(least, MAX_TOKENS)
    cell = grid.cell()  # type: ignore[attr-defined]
    return int(numbers.of_parameter(cell, label, limits, name, f"workload.given.{name}", t, usual))
