"""The panels of the Workload page in words: random batches, conversations, shared prefixes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvcore.present.text import DASH, Words, concurrency_text, count
from kvcore.present.workload import share_text
from kvcore.workload.batch import Batches
from kvcore.workload.growth import Conversation, PrefixSharing
from kvcore.workload.limits import LimitChoice, requests_at
from kvcore.workload.mix import Mix


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
