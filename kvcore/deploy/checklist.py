"""The go-live checklist: what the plan already answers, and what only the deployment can; the lines of a good start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kvcore.deploy.monitoring import Load, Thresholds
from kvcore.engine.vllm.versions import switches_of
from kvcore.memory.parts import PART_NAMES
from kvcore.planning import Plan, Verdict
from kvcore.texts import CHECKS, Check
from kvcore.texts.words import Words, concurrency_text, count, gib_text
from kvcore.units import gib

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
    seats, length = plan.resolved.max_num_seqs, plan.resolved.max_model_len
    fitting = plan.cache.max_concurrency if plan.cache is not None and plan.cache.fits else 0.0
    answers = {
        "starts": {Verdict.FITS: Tick.ANSWERED, Verdict.TIGHT: Tick.OPEN}.get(plan.verdict, Tick.FAILS),
        "target": _tick(fitting >= load.requests and seats >= load.requests),
        "longest": _tick(load.prompt_tokens + load.answer_tokens <= length),
    }
    facts = {
        "held": concurrency_text(fitting),
        "tokens": count(length),
        "seats": count(seats),
        "target": count(load.requests),
        "prompt": count(load.prompt_tokens),
        "answer": count(load.answer_tokens),
        "usage": f"{limits.kv_cache_usage * 100:g}",
        "waiting": str(limits.waiting_requests),
        "seconds": f"{limits.request_seconds:g}",
    }
    if plan.memory is not None:
        taken = sum(getattr(plan.memory, part).value for part in PART_NAMES if part != "unused")
        share = taken / plan.memory.total.value
        answers["memory"] = (
            Tick.ANSWERED if share <= COMFORTABLE_SHARE else Tick.OPEN if share <= 1 else Tick.FAILS
        )
        facts |= {
            "taken": gib_text(taken),
            "total": gib_text(plan.memory.total.value),
            "share": f"{share * 100:.0f}",
        }
    hidden = "memory" if plan.memory is None else "memory-unknown"
    return tuple(
        _item(check, answers.get(key, Tick.OPEN), facts, t) for key, check in CHECKS.items() if key != hidden
    )


def _tick(is_met: bool) -> Tick:
    return Tick.ANSWERED if is_met else Tick.FAILS


def _item(check: Check, tick: Tick, facts: Mapping[str, str], t: Words) -> Item:
    other = {Tick.OPEN: check.open, Tick.FAILS: check.fails}.get(tick)
    return Item(tick=tick, title=t(check.title), detail=t(other or check.detail, **facts))


def expected_log_lines(plan: Plan) -> tuple[str, ...]:
    """What to look for at start, to check the plan against; empty where the start fails or the card is unknown.

    Figures are the predicted ones: weights exact, KV memory within the interval of the plan.
    Source: docs of the log reader (kvcore/evidence/log/line_formats.toml).
    """
    cache, resolved = plan.cache, plan.resolved
    if cache is None or plan.available_kv_bytes is None or not cache.fits:
        return ()
    weights = f"{gib(plan.loaded_weights.value):.2f}"
    concurrency = (
        f"Maximum concurrency for {resolved.max_model_len:,} tokens per request: {cache.max_concurrency:.2f}x"
    )
    if resolved.is_v0:
        return (
            f"Loading model weights took {weights} GiB",
            f"# cuda blocks: {cache.num_blocks}, # CPU blocks: ...",
            concurrency,
        )
    switches = switches_of(resolved.version)
    lines = [f"Model loading took {weights} GiB"]
    if switches.logs_available_memory:
        lines.append(f"Available KV cache memory: {gib(plan.available_kv_bytes):.2f} GiB")
    size = f"GPU KV cache size: {cache.tokens:,} tokens"
    if switches.logs_capacity_in_one_line:
        return (*lines, f"{size}, {concurrency}")
    return (*lines, size, concurrency)
