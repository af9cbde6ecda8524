"""The step of the lesson on two engines: what the fraction of each is of, and what each holds on the same card."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError
from kvcore.base.numbers import count, format_bytes, gib_text, significant
from kvcore.base.quantity import Quantity, explained
from kvcore.base.term import left_of
from kvcore.controls import edit
from kvcore.course.equation import equations
from kvcore.course.lesson import Content, Lesson, StepName
from kvcore.engine.protocol import Engine
from kvcore.engine.rank_memory import RankMemory
from kvcore.engines.registry import engines
from kvcore.planning import Plan, plan
from kvcore.scenario import Measured

FIELD: Final = "engine"


def engines_content(lesson: Lesson) -> Content:
    """The budgets of two engines that take their fraction of different things, from a plan of each."""
    say = lesson.say
    content = lesson.content(StepName.ENGINES, unit=say("tokens"))
    pair = both(lesson.plan)
    if pair is None:
        return replace(content, missing=say("no-card" if lesson.plan.memory is None else "engines-none"))
    of_card, of_free = pair
    card, free = _memory(of_card), _memory(of_free)
    held, other = tokens_of(of_card), tokens_of(of_free)
    figures = {
        "card": product(of_card),
        "free": product(of_free),
        "share": significant(of_card.resolved.gpu_memory_utilization),
        "card_flag": flag_of(of_card),
        "free_flag": flag_of(of_free),
        "fraction": significant(of_free.resolved.gpu_memory_utilization),
        "held": count(held),
    }
    if held and other and of_free.cache is not None:
        whole = free.total.value * of_free.resolved.gpu_memory_utilization - free.weights.value
        content = content.answered(
            question=say("engines-guess-here", **figures),
            answer=float(other),
            slips=(
                lesson.slip(float(held), "engines-slip-same"),
                lesson.slip(whole // of_free.cache.bytes_per_token, "engines-slip-card"),
            ),
        )
    return replace(
        content,
        points=(say("engines-of-card", **figures), say("engines-of-free", **figures)),
        equations=equations(lesson.t, *budgets(card, free)),
        remarks=tuple(_remarks(lesson, of_card, of_free, figures)),
    )


def both(base: Plan) -> tuple[Plan, Plan] | None:
    """The plan of an engine whose fraction is of the whole card, and of one whose fraction is of what was free.

    One of them is `base`, the other the same scenario in the first engine of the other kind that runs on its card; no
    measurement of a start follows. None where there is no such engine, it refuses, or no card is named.
    """
    card, own = base.scenario.accelerator, base.resolved.engine
    if card is None or base.memory is None:
        return None
    is_of_free = own.starts_without_room
    others = (one for one in engines() if one.starts_without_room is not is_of_free and one.runs_on(card))
    engine = next(others, None)
    found = None if engine is None else _in(base, engine)
    if found is None or found.memory is None:
        return None
    return (found, base) if is_of_free else (base, found)


def _in(base: Plan, engine: Engine) -> Plan | None:
    try:
        there = edit.with_field(base.scenario, FIELD, engine.name)
        return plan(replace(there, engine_version=None, additional_config=None, measured=Measured()))
    except KvPlannerError:
        return None


def tokens_of(of: Plan) -> int:
    """Tokens of a plan's cache; 0 without one."""
    return 0 if of.cache is None else of.cache.tokens


def product(of: Plan) -> str:
    """The name of a plan's engine."""
    return of.resolved.engine.facts.watching.product


def flag_of(of: Plan) -> str:
    """The flag of the fraction, by the name that the engine gives it."""
    own = of.resolved.engine.own_name("gpu_memory_utilization")
    return "--gpu-memory-utilization" if own is None else own.spelling


def budgets(card: RankMemory, free: RankMemory) -> tuple[Quantity, ...]:
    """The budget of the card, then what is free, the part of it for weights and pools, the slack, and the pools."""
    static = replace(free.budget, name="budget_of_free")
    found = [replace(card.budget, name="budget_of_card")]
    before = next((one for one in free.budget.inputs if one.name == "free_memory"), None)
    if before is not None:
        found += [before, static, explained("slack", left_of, before, (static,), grade=static.grade)]
    pools = free.remainder
    if pools.arguments is not None and len(pools.arguments) > 1:
        found.append(replace(pools, name="rest_of_free", arguments=(static, *pools.arguments[1:])))
    return tuple(found)


def _memory(of: Plan) -> RankMemory:
    assert of.memory is not None
    return of.memory


def _remarks(lesson: Lesson, of_card: Plan, of_free: Plan, figures: dict[str, str]) -> Iterator[str]:
    card, free = _memory(of_card), _memory(of_free)
    yield lesson.say(
        "engines-inside",
        **figures,
        loaded=gib_text(card.weights.value),
        step=gib_text(card.activations.value),
    )
    outside = (free.cuda_graphs, free.activations, free.after_pool)
    yield lesson.say("engines-outside", **figures, taken=gib_text(sum(one.value for one in outside)))
    yield lesson.say("engines-result", **figures, other=count(tokens_of(of_free)))
    if of_card.cache is not None and of_free.cache is not None and of_free.cache.tokens:
        own, other = (format_bytes(one.bytes_per_token) for one in (of_card.cache, of_free.cache))
        if own != other:
            yield lesson.say("engines-tokens", **figures, own=own, other=other)
