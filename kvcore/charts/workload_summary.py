"""The Workload page in words: the sentence, the table of limits, the panels below it, and the CSV files."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from kvcore.advice.target import served
from kvcore.base.numbers import (
    DASH,
    concurrency_text,
    count,
    plain,
    preemption_text,
    rough_requests,
    share_text,
)
from kvcore.base.units import ceil_div, round_up
from kvcore.base.words import Words
from kvcore.charts.summary import Card, Outcome, Sentence
from kvcore.planning import Plan
from kvcore.texts import LABELS
from kvcore.workload.limits import (
    Conversation,
    LimitChoice,
    PrefixSharing,
    is_above_model,
    refuses_longer,
    requests_at,
)
from kvcore.workload.mix import PERCENT, ROUND_TO, Mix
from kvcore.workload.steady import PREEMPTED

ENOUGH_SHARE = 0.01
REASONS: Final = LABELS["unusable"]


class ChoiceRow(Struct, frozen=True, kw_only=True):
    """One row of the table of limits, as text."""

    limit: str
    marks: tuple[str, ...]
    verdict: str
    left_out: str
    worst_case: str
    at_mean: str
    preempted: str


def sentence(mix: Mix, recommended: LimitChoice, now: LimitChoice, t: Words) -> Sentence:
    """The length that 99 % of the requests need, how many fit at it and at the present one, and how many of the real
    mix."""
    outcome, answer = _judged(recommended, now)
    said = t(
        LABELS["limit-answers"][answer],
        need=count(mix.needed.percentile_tokens(PERCENT)),
        limit=count(recommended.limit_tokens),
        held=rough_requests(recommended.worst_case_requests),
        now=count(now.limit_tokens),
        held_now=rough_requests(now.worst_case_requests),
        left_out=share_text(now.share_left_out, t),
    )
    return Sentence(outcome=outcome, text=said)


def _judged(recommended: LimitChoice, now: LimitChoice) -> tuple[Outcome, str]:
    """The outcome, and the key of its sentence."""
    if not recommended.starts:
        return Outcome.FAILS, "nothing-starts"
    if now.limit_tokens == recommended.limit_tokens:
        return Outcome.FITS, "right"
    if not now.starts:
        return Outcome.CAUTION, "starts-shorter"
    if now.share_left_out > ENOUGH_SHARE:
        return Outcome.CAUTION, "too-short"
    return Outcome.FITS, "enough" if now.limit_tokens < recommended.limit_tokens else "roomy"


def mix_sentence(recommended: LimitChoice, now: LimitChoice, t: Words) -> str:
    """How many of the real requests run at once: a limit does not make short requests shorter. "" where none do."""
    here, there = recommended.running_requests, now.running_requests
    if not here:
        return ""
    answer = "under-that"
    if recommended.limit_tokens == now.limit_tokens:
        answer = "at-limit"
    elif math.isclose(here, there, rel_tol=0.02):
        answer = "under-either"
    return t(LABELS["mix-answers"][answer], count=rough_requests(here))


def target_sentence(choice: LimitChoice, t: Words) -> Sentence | None:
    """The requests at once that are wanted, against those that run at full length and with the traffic's own lengths;
    None without a target, and where this limit does not start."""
    found = None if choice.plan is None else served(choice.plan)
    real = math.floor(choice.running_requests)
    if found is None or not real:
        return None
    here = real * found.replicas
    said = t(
        LABELS["target-answers"]["served" if here >= found.wanted else "short"],
        wanted=count(found.wanted),
        full=count(found.total),
        length=count(choice.limit_tokens),
        real=count(here),
    )
    return Sentence(outcome=Outcome.FITS if here >= found.wanted else Outcome.CAUTION, text=said)


def left_out_note(choice: LimitChoice, t: Words) -> str:
    """How the engine treats a request that needs more than the limit."""
    if choice.plan is None:
        return ""
    resolved = choice.plan.resolved
    refuses = refuses_longer(resolved)
    what = "by-release" if refuses is None else "refused" if refuses else "stopped"
    return t(LABELS["over-limit"][what], version=f"{resolved.engine.name} {resolved.engine_version}")


def choice_rows(
    choices: Sequence[LimitChoice], recommended: int, now: int, tried: int, t: Words
) -> tuple[ChoiceRow, ...]:
    """The table of limits as text."""
    names = ((now, t("now")), (recommended, t("recommended")), (tried, t("tried")))
    return tuple(
        ChoiceRow(
            limit=count(choice.limit_tokens),
            marks=tuple(name for tokens, name in names if tokens == choice.limit_tokens),
            verdict=verdict_text(choice, t),
            left_out=share_text(choice.share_left_out, t),
            worst_case=rough_requests(choice.worst_case_requests) if choice.starts else DASH,
            at_mean=rough_requests(choice.mean_requests) if choice.starts else DASH,
            preempted=preemption_text(choice.preemptions),
        )
        for choice in choices
    )


def verdict_text(choice: LimitChoice, t: Words) -> str:
    """Whether the engine starts with a limit, in words."""
    if choice.error is not None:
        return t.error(choice.error)
    if choice.plan is None:
        return DASH
    if is_above_model(choice.plan):
        return t(
            "does not start: the model itself allows {tokens}",
            tokens=count(choice.plan.resolved.derived_max_model_len),
        )
    return t(LABELS["limit-verdicts"][choice.plan.verdict])


def choices_csv(choices: Sequence[LimitChoice]) -> str:
    """The table for a spreadsheet: numbers and fixed words only, so that no cell can be a formula.

    Source of the columns: `kvcore.workload.limits.LimitChoice`.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ("max_model_len", "verdict", "share_left_out", "requests_at_limit", "mean_tokens", "requests_at_mean",
         "max_num_seqs", "requests_running", "preemptions_per_request")
    )  # fmt: skip
    for choice in choices:
        rate = choice.preemptions
        steady = ("", "") if rate is None else (f"{choice.running_requests:.4f}", f"{rate:.4f}")
        verdict = choice.plan.verdict.value if choice.plan is not None else "refused"
        seats = choice.plan.resolved.max_num_seqs if choice.plan is not None else ""
        writer.writerow(
            (choice.limit_tokens, verdict, f"{choice.share_left_out:.6f}", f"{choice.worst_case_requests:.4f}",
             f"{choice.mean_tokens:.2f}", f"{choice.mean_requests:.4f}", seats, *steady)
        )  # fmt: skip
    return out.getvalue()


def histogram_csv(mix: Mix) -> str:
    """Both histograms for a spreadsheet: a length, and how many requests take and need it; numbers only."""
    taken, needed = (dict(zip(one.lengths, one.counts, strict=True)) for one in (mix.taken, mix.needed))
    rows = (
        f"{length},{taken.get(length, 0)},{needed.get(length, 0)}" for length in sorted({*taken, *needed})
    )
    return "\n".join(("tokens,requests_taking,requests_needing", *rows)) + "\n"


def steady_figures(choice: LimitChoice, t: Words) -> tuple[Card, ...]:
    """The steady state under one limit: running requests, the `max_num_seqs` that fits, and preemptions at the present
    one."""
    steady, planned = choice.steady, choice.plan
    if steady is None or planned is None:
        return ()
    seats, reach = planned.resolved.max_num_seqs, steady.reach()
    running, most = choice.running_requests, steady.most_seats()
    figures: tuple[tuple[str, str, str], ...] = (
        (
            t("Running at once"),
            rough_requests(running),
            t("{low} to {high} in 80 % of such mixes", low=count(int(running * (1 - reach))),
              high=count(math.ceil(running * (1 + reach)))),
        ),
        (
            t("Largest max_num_seqs"),
            t("any") if most is None else count(most),
            t("with at most {rate} preemptions a request", rate=plain(PREEMPTED))
            if most is None
            else t("{low} to {high}, with at most {rate} preemptions a request", rate=plain(PREEMPTED),
                   low=count(int(most * (1 - reach))), high=count(math.ceil(most * (1 + reach)))),
        ),
        (
            t("Preemptions a request"),
            preemption_text(choice.preemptions),
            t("{seats} {seats:request|requests} at once, your max_num_seqs", seats=count(seats)),
        ),
    )  # fmt: skip
    if steady.admission_binds:
        figures = (
            *figures,
            (
                t("By the engine's count"),
                concurrency_text(choice.mean_requests),
                t("at mean length, each with what it may take while its prompt is computed; one is admitted when "
                  "{share} of the cache is free", share=share_text(steady.admitted_share, t)),
            ),
        )  # fmt: skip
    return tuple(Card(label=label, value=value, note=note) for label, value, note in figures)


class TurnRow(Struct, frozen=True, kw_only=True):
    """One turn of a conversation, as text."""

    turn: str
    taken: str
    new: str
    requests: str
    fits: str


def turn_rows(chat: Conversation, choice: LimitChoice, turns: Sequence[int], t: Words) -> tuple[TurnRow, ...]:
    """Tokens and requests at once, for each turn."""
    lengths = tuple(max(1, chat.taken_tokens(turn)) for turn in turns)
    held: Sequence[float] = (0.0,) * len(lengths)
    if choice.plan is not None and choice.starts:
        held = requests_at(choice.plan, lengths)
    return tuple(
        TurnRow(
            turn=str(turn),
            taken=count(length),
            new=count(chat.new_tokens(turn)),
            requests=rough_requests(requests) if requests and length <= choice.limit_tokens else DASH,
            fits=t("fits") if length <= choice.limit_tokens else t("beyond the limit"),
        )
        for turn, length, requests in zip(turns, lengths, held, strict=True)
    )


def conversation_sentence(chat: Conversation, limit_tokens: int, t: Words) -> str:
    """The last turn up to which a conversation fits."""
    last = chat.last_turn_within(limit_tokens)
    reach = "all" if last is None else "until" if last else "none"
    return t(LABELS["conversations"][reach], turn=count(last or 0), limit=count(limit_tokens))


def prefix_sentence(found: PrefixSharing, t: Words) -> str:
    """How many more requests fit because a prefix is shared."""
    return t(
        LABELS["prefixes"]["shared" if found.shared_blocks else "none"],
        blocks=count(found.shared_blocks),
        before=rough_requests(found.requests_without),
        after=rough_requests(found.requests_with),
    )


def advice_lines(plan: Plan, mix: Mix, recommended: LimitChoice, t: Words) -> tuple[tuple[str, str], ...]:
    """Pairs of a flag or field and the advice on it."""
    block, mean = plan.resolved.block_size, recommended.mean_tokens
    needed, taken = mix.needed.percentile_tokens(PERCENT), mix.taken.percentile_tokens(PERCENT)
    shorter = round_up(max(1, taken), ROUND_TO)
    texts = dict(LABELS["workload-advice"])
    too_high = texts.pop("max_tokens-too-high")
    if shorter < round_up(max(1, needed), ROUND_TO):
        # Clients that ask for far more than answers take make the limit longer than it need be.
        texts["max_tokens"] = too_high
    params = {
        "limit": count(recommended.limit_tokens),
        "mean": count(mean),
        "blocks": count(ceil_div(max(1, round(mean)), block)),
        "block": count(block),
        "seats": DASH
        if recommended.steady is None
        else count(recommended.steady.most_seats() or plan.resolved.max_num_seqs),
        "waste": _waste(block, mean),
        "large": _waste(64, mean),
        "taken": count(taken),
        "needed": count(needed),
        "shorter": count(shorter),
    }
    return tuple((flag, t(text, **params)) for flag, text in texts.items())


def _waste(block: int, tokens: float) -> str:
    return f"{100 * block / 2 / (tokens + block / 2):.1f}" if tokens else "0"
