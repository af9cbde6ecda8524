"""The panels of the Workload page in words: random batches, conversations, shared prefixes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvcore.planning import Plan
from kvcore.texts.words import DASH, Words, concurrency_text, count
from kvcore.units import ceil_div, round_up
from kvcore.views.workload_summary import share_text
from kvcore.workload.limits import Conversation, LimitChoice, PrefixSharing, requests_at
from kvcore.workload.mix import PERCENT, ROUND_TO, Mix
from kvcore.workload.random_batch import Batches


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A labelled number."""

    label: str
    value: str
    note: str


def batch_figures(choice: LimitChoice, mix: Mix, t: Words) -> tuple[Figure, ...]:
    """Random batches of the mix under one limit: what fits, and how often max_num_seqs requests do not."""
    batches, planned = choice.batches, choice.plan
    if batches is None or planned is None:
        return ()
    seats = planned.resolved.max_num_seqs
    figures = [
        Figure(
            label=t("Fit at once, on average"),
            value=concurrency_text(batches.mean_requests),
            note=t("{count} random batches", count=count(len(batches.held))),
        ),
        Figure(
            label=t("Fit in 95 % of the batches"),
            value=count(batches.requests_in(95)),
            note=t("the largest max_num_seqs without much preemption"),
        ),
        Figure(
            label=t("Preemption risk"),
            value=share_text(batches.overflow(seats).value, t),
            note=t("{seats} requests at once, your max_num_seqs", seats=count(seats)),
        ),
    ]
    if mix.running_tokens:
        (running,) = requests_at(planned, (max(1, min(choice.limit_tokens, math.ceil(mix.running_tokens))),))
        figures.append(
            Figure(
                label=t("Running at once, steady"),
                value=concurrency_text(running),
                note=t("answers half written: {tokens} tokens each", tokens=count(mix.running_tokens)),
            )
        )
    return tuple(figures)


def wanted_seats(batches: Batches | None) -> int:
    """The max_num_seqs at which 95 % of the batches fit; 0 where there is no such number."""
    return 0 if batches is None else batches.requests_in(95)


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnRow:
    """One turn of a conversation, as text."""

    turn: str
    taken: str
    new: str
    requests: str
    fits: str


def turn_rows(chat: Conversation, choice: LimitChoice, turns: Sequence[int], t: Words) -> tuple[TurnRow, ...]:
    """Tokens and requests at once, turn by turn."""
    lengths = tuple(max(1, chat.taken_tokens(turn)) for turn in turns)
    held = (
        requests_at(choice.plan, lengths)
        if choice.plan is not None and choice.starts
        else (0.0,) * len(lengths)
    )
    return tuple(
        TurnRow(
            turn=str(turn),
            taken=count(length),
            new=count(chat.new_tokens(turn)),
            requests=concurrency_text(requests) if requests and length <= choice.limit_tokens else DASH,
            fits=t("fits") if length <= choice.limit_tokens else t("beyond the limit"),
        )
        for turn, length, requests in zip(turns, lengths, held, strict=True)
    )


def conversation_sentence(chat: Conversation, limit_tokens: int, t: Words) -> str:
    """Up to which turn a conversation fits."""
    last = chat.last_turn_within(limit_tokens)
    limit = count(limit_tokens)
    if last is None:
        return t("Every turn fits into {limit} tokens: old turns are dropped before that.", limit=limit)
    if last == 0:
        return t("Not even the first turn fits into {limit} tokens.", limit=limit)
    return t("Up to turn {turn} the conversation fits into {limit} tokens; the next one exceeds it.", turn=count(last),
             limit=limit)  # fmt: skip


def prefix_sentence(found: PrefixSharing, t: Words) -> str:
    """What sharing a prefix buys."""
    if not found.shared_blocks:
        return t(
            "Nothing is shared: the prefix is shorter than one block, or this model keeps no block that could be."
        )
    return t(
        (
            "{blocks} blocks are stored once instead of in every request: {before} requests at once "
            "become {after}."
        ),
        blocks=count(found.shared_blocks),
        before=concurrency_text(found.requests_without),
        after=concurrency_text(found.requests_with),
    )


def advice_lines(
    plan: Plan, mix: Mix, recommended: LimitChoice, now: LimitChoice, t: Words
) -> tuple[tuple[str, str], ...]:
    """A flag or a field, and what to do with it."""
    lines = [
        (
            "--max-model-len",
            t(
                "The P99 of prompt + max_tokens, rounded up: {limit}. It is a promise for the "
                "worst case, not a reservation: a request of {mean} tokens takes {blocks} blocks "
                "of {block} under any limit. A shorter limit starts in less memory, and no single"
                " request can preempt the others.",
                limit=count(recommended.limit_tokens),
                mean=count(recommended.mean_tokens),
                blocks=count(ceil_div(max(1, round(recommended.mean_tokens)), plan.resolved.block_size)),
                block=count(plan.resolved.block_size),
            ),
        ),
        (
            "--max-num-seqs",
            t(
                "As many as fit in the cache in 95 % of the batches of your mix: {seats}. Too "
                "many do not run out of memory: requests wait, or are preempted and computed "
                "again.",
                seats=DASH if recommended.batches is None else count(recommended.batches.requests_in(95)),
            ),
        ),
        ("max_tokens", _max_tokens(mix, t)),
        (
            "--block-size",
            t(
                "Leave it: the last block of a request is on average half empty. At {mean} tokens that is {waste} % "
                "with blocks of {block}, and {large} % with blocks of 64.",
                mean=count(recommended.mean_tokens),
                waste=_waste(plan.resolved.block_size, recommended.mean_tokens),
                large=_waste(64, recommended.mean_tokens),
                block=count(plan.resolved.block_size),
            ),
        ),
        (
            "messages",
            t(
                "History grows with each turn: keep the last turns only, or summarise them, in the client. A smaller "
                "max_tokens does not shorten the history that is already there."
            ),
        ),
        (
            "--enable-prefix-caching",
            t(
                "Saves computing a common prefix again, and keeps its blocks once. It does not lower max_model_len: "
                "the prefix counts in the length of every request."
            ),
        ),
    ]
    return tuple(lines)


def _waste(block: int, tokens: float) -> str:
    return f"{100 * block / 2 / (tokens + block / 2):.1f}" if tokens else "0"


def _max_tokens(mix: Mix, t: Words) -> str:
    """Clients that ask for far more than answers take make the limit longer than it need be."""
    needed, taken = mix.needed.percentile_tokens(PERCENT), mix.taken.percentile_tokens(PERCENT)
    shorter = round_up(max(1, taken), ROUND_TO)
    if shorter < round_up(max(1, needed), ROUND_TO):
        return t(
            "It takes no memory in advance, but it counts against max_model_len. 99 % of the requests end at {taken} "
            "tokens and ask for {needed}: if clients ask for less, {shorter} is enough.",
            taken=count(taken),
            needed=count(needed),
            shorter=count(shorter),
        )
    return t(
        "It takes no memory in advance: blocks are allocated as the answer grows. Here it asks for "
        "little more than answers take."
    )
