"""The go-live checklist: what the plan already answers, and what only the deployment can."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kvcore.deploy.monitoring import Load, Thresholds
from kvcore.planning import Plan, Verdict
from kvcore.texts.words import Words, concurrency_text, count, gib_text

COMFORTABLE_SHARE: Final = 0.97
"""Of the card that may be taken after start; the rest is what other processes and fragments need."""


class Tick(StrEnum):
    """Whether the plan answers an item."""

    ANSWERED = "answered"
    FAILS = "fails"
    OPEN = "open"


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One line of the checklist."""

    tick: Tick
    title: str
    detail: str


def checklist(plan: Plan, load: Load, limits: Thresholds, t: Words) -> tuple[Item, ...]:
    """The items in the order in which they are done."""
    return (
        _starts(plan, t),
        _memory(plan, t),
        _target_fits(plan, load, t),
        _longest(plan, load, t),
        Item(
            tick=Tick.OPEN,
            title=t("Lengths of real requests counted"),
            detail=t(
                "max_model_len = P99 of prompt + max_tokens. The Workload page counts a request log; "
                "now {tokens} tokens are planned.",
                tokens=count(plan.resolved.max_model_len),
            ),
        ),
        Item(
            tick=Tick.OPEN,
            title=t("Start-up log compared with the plan"),
            detail=t("Paste the first start's log on the Check page: every part is compared."),
        ),
        Item(
            tick=Tick.OPEN,
            title=t("Load test at 150 % of the target for five minutes"),
            detail=t("The command below. It passes when nothing stops, and preemptions stay at zero up to the target."),
        ),
        Item(
            tick=Tick.OPEN,
            title=t("Long requests and whole answers checked"),
            detail=t("A request of the full length is answered, one token more is refused, no answer is cut short."),
        ),
        Item(
            tick=Tick.OPEN,
            title=t("Latency before and after compared"),
            detail=t("P50, P95 and P99 of the load test, with the old and the new flags."),
        ),
        Item(
            tick=Tick.OPEN,
            title=t("History of conversations limited"),
            detail=t("In the application: the last rounds only. A conversation grows until max_model_len refuses it."),
        ),
        Item(
            tick=Tick.OPEN,
            title=t("Alerts set"),
            detail=t(
                "The rules below: KV cache above {usage} %, more than {waiting} waiting, any preemption, p99 above "
                "{seconds} s.",
                usage=f"{limits.kv_cache_usage * 100:g}",
                waiting=str(limits.waiting_requests),
                seconds=f"{limits.request_seconds:g}",
            ),
        ),
    )  # fmt: skip


def _starts(plan: Plan, t: Words) -> Item:
    tick = {Verdict.FITS: Tick.ANSWERED, Verdict.TIGHT: Tick.OPEN}.get(plan.verdict, Tick.FAILS)
    detail = {
        Tick.ANSWERED: t("Weights, activations, graphs and one request of the full length fit."),
        Tick.OPEN: t("Tight: within the estimate's error. Start it once and compare the log."),
        Tick.FAILS: t("The engine would stop at start. The Plan page lists changes that fix it."),
    }[tick]
    return Item(tick=tick, title=t("The engine starts"), detail=detail)


def _memory(plan: Plan, t: Words) -> Item:
    title = t("Peak memory leaves room")
    memory = plan.memory
    if memory is None:
        return Item(tick=Tick.OPEN, title=title, detail=t("The memory of the card is not known."))
    parts = (
        memory.system,
        memory.framework,
        memory.weights,
        memory.activations,
        memory.cuda_graphs,
        memory.unaccounted,
        memory.kv_cache,
    )
    taken = sum(part.value for part in parts)
    share = taken / memory.total.value
    return Item(
        tick=Tick.ANSWERED if share <= COMFORTABLE_SHARE else Tick.OPEN if share <= 1 else Tick.FAILS,
        title=title,
        detail=t(
            "{taken} of {total} per GPU at the peak ({share} %). The pool takes its memory at start "
            "and keeps it, so an alert on GPU memory above 90 % would always fire: watch the KV "
            "cache instead.",
            taken=gib_text(taken),
            total=gib_text(memory.total.value),
            share=f"{share * 100:.0f}",
        ),
    )  # fmt: skip


def _target_fits(plan: Plan, load: Load, t: Words) -> Item:
    held = plan.cache.max_concurrency if plan.cache is not None and plan.cache.fits else 0.0
    enough = held >= load.requests and plan.resolved.max_num_seqs >= load.requests
    return Item(
        tick=Tick.ANSWERED if enough else Tick.FAILS,
        title=t("The target fits at once"),
        detail=t(
            "{held} requests of {tokens} tokens fit at once, {seats} may run (--max-num-seqs); the target is {target}.",
            held=concurrency_text(held),
            tokens=count(plan.resolved.max_model_len),
            seats=count(plan.resolved.max_num_seqs),
            target=count(load.requests),
        ),
    )


def _longest(plan: Plan, load: Load, t: Words) -> Item:
    wanted = load.prompt_tokens + load.answer_tokens
    return Item(
        tick=Tick.ANSWERED if wanted <= plan.resolved.max_model_len else Tick.FAILS,
        title=t("Prompt and answer fit into the context"),
        detail=t(
            "{prompt} + {answer} tokens of {tokens}.",
            prompt=count(load.prompt_tokens),
            answer=count(load.answer_tokens),
            tokens=count(plan.resolved.max_model_len),
        ),
    )
