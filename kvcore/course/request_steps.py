"""Steps of the requests: how many run at once, and what breaks first."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, prod
from typing import Final

from msgspec.structs import replace

from kvcore.base.numbers import concurrency_text, count, gib_text, kib_text
from kvcore.base.quantity import Grade, Quantity, Scope, Unit, explained, given
from kvcore.base.term import least, left_of
from kvcore.cache.capacity import CachePlan
from kvcore.course.cache_steps import blocks_of_a_request, filled_from
from kvcore.course.equation import equations
from kvcore.course.experiments import exercises
from kvcore.course.lesson import Content, Lesson, StepName
from kvcore.planning import Plan, Verdict

SHORTER: Final = 4
"""The shorter request of step 7 has full length divided by this."""
START, BLOCKS, SEATS = "start", "blocks", "seats"
FAILURES: Final = {
    Verdict.WEIGHTS_DO_NOT_FIT: "limits-weights",
    Verdict.NO_KV_MEMORY: "limits-no-memory",
    Verdict.CONTEXT_TOO_LONG: "limits-too-long",
}
"""What is said of a start that fails, by its verdict."""


def requests_content(lesson: Lesson) -> Content:
    """Concurrency in the worst case and in a typical one, and where max_num_seqs cuts it off."""
    base, say, cache = lesson.plan, lesson.say, lesson.plan.cache
    seats, length = count(base.resolved.max_num_seqs), count(base.resolved.max_model_len)
    content = lesson.content(StepName.REQUESTS, unit=say("requests"), seats=seats, tokens=length)
    if cache is None or not cache.num_blocks or not cache.groups:
        if not any(base.specs):
            return replace(content, missing=say("requests-no-cache"))
        if base.available_kv_bytes is None:
            return replace(content, missing=say("no-card"))
        return replace(content.answered(answer=0.0), missing=say("requests-no-blocks"))
    ranks, held = base.scenario.parallel.tensor_parallel_size, cache.max_concurrency
    slips = (lesson.slip(held * ranks, "requests-slip-ranks"),) if ranks > 1 else ()
    return replace(
        content.answered(answer=held, slips=slips),
        points=(_half_the_length(lesson, cache),),
        equations=equations(lesson.t, *_requests_quantities(base, cache)),
        remarks=tuple(_requests_remarks(lesson, cache)),
    )


def _half_the_length(lesson: Lesson, cache: CachePlan) -> str:
    """What half the length makes of the number of requests: of this plan's groups, not of a rule."""
    say, half = lesson.say, max(1, cache.max_model_len // 2)
    factor = f"{cache.concurrency_at(half).value / cache.max_concurrency:.2f}"
    fixed, slope = gib_text(cache.request_fixed_bytes), kib_text(cache.bytes_per_token)
    if not cache.request_fixed_bytes:
        return say("requests-half")
    full_from = filled_from(cache)
    if full_from >= cache.max_model_len:
        return say("requests-half-filling", tokens=count(full_from), factor=factor)
    if not cache.bytes_per_token:
        return say("requests-half-bounded", fixed=fixed)
    return say("requests-half-fixed", fixed=fixed, slope=slope, factor=factor)


def _shorter_length(base: Plan) -> int:
    return max(1, base.resolved.max_model_len // SHORTER)


def _requests_quantities(base: Plan, cache: CachePlan) -> tuple[Quantity, ...]:
    """Blocks of a request of full length, how many such fit in the pool, and how many shorter ones run."""
    full, shorter = cache.figures.concurrency, cache.concurrency_at(_shorter_length(base))
    seats = given("max_num_seqs", base.resolved.max_num_seqs)
    running = explained(
        "running",
        running_requests,
        shorter,
        seats,
        unit=Unit.REQUESTS,
        scope=Scope.PER_REPLICA,
        grade=shorter.grade,
        source="vllm/v1/core/sched/scheduler.py (0.32.0)",
    )
    return (*blocks_of_a_request(cache), full, shorter, running)


def running_requests(concurrency: float, max_num_seqs: int) -> int:
    """Whole requests that fit at once, up to the seats."""
    return least(floor(concurrency), max_num_seqs)


def _requests_remarks(lesson: Lesson, cache: CachePlan) -> Iterator[str]:
    length, seats = _shorter_length(lesson.plan), lesson.plan.resolved.max_num_seqs
    held = cache.concurrency_at(length).value
    yield lesson.say("requests-shorter", tokens=count(length), count=concurrency_text(held))
    if cache.max_concurrency >= seats:
        yield lesson.say("requests-seats")
    elif held >= seats:
        yield lesson.say("requests-seats-shorter")
    if not cache.fits:
        yield lesson.say("requests-too-long")


def limits_content(lesson: Lesson) -> Content:
    """Out of memory at start against preemption at run time, and exercises."""
    base, cache = lesson.plan, lesson.plan.cache
    content = lesson.content(StepName.LIMITS, options=(START, BLOCKS, SEATS))
    content = replace(content, points=tuple(_limits_points(lesson)))
    if base.memory is None and base.available_kv_bytes is None:
        return replace(content, missing=lesson.say("limits-no-card"))
    shown: tuple[Quantity, ...] = ()
    if cache is not None and cache.groups and cache.num_blocks:
        shown = _limits_quantities(base, cache)
    return replace(
        content.answered(answer_option=first_limit(base)),
        exercises=exercises(lesson),
        remarks=tuple(_limits_remarks(lesson)),
        equations=equations(lesson.t, *shown),
    )


def first_limit(base: Plan) -> str:
    """What stops requests of full length: the start itself, the blocks, or max_num_seqs."""
    cache = base.cache
    if base.verdict in FAILURES:
        return START
    if cache is None or not cache.groups or cache.max_concurrency >= base.resolved.max_num_seqs:
        return SEATS
    return BLOCKS


def _limits_quantities(base: Plan, cache: CachePlan) -> tuple[Quantity, ...]:
    needed, request = cache.figures.needed, cache.figures.blocks_per_request
    available, seats = base.stage_kv[base.stage], given("max_num_seqs", base.resolved.max_num_seqs)
    spare = explained("spare", left_of, available, (needed,), source=needed.source)
    wanted = explained(
        "wanted_blocks",
        prod,
        (seats, request),
        unit=Unit.BLOCKS,
        scope=Scope.PER_REPLICA,
        grade=Grade.EXACT,
    )
    return (needed, spare, wanted)


def _limits_points(lesson: Lesson) -> Iterator[str]:
    metrics = lesson.plan.resolved.engine.metrics(lesson.plan.resolved.version, lesson.plan.resolved.is_v0)
    yield lesson.say("limits-crash")
    if "preemptions" in metrics and "kv_cache_usage" in metrics:
        usage, preemptions = (f"`{metrics[role].name}`" for role in ("kv_cache_usage", "preemptions"))
        yield lesson.say("limits-metrics", usage=usage, preemptions=preemptions)


def _limits_remarks(lesson: Lesson) -> Iterator[str]:
    base, cache, memory = lesson.plan, lesson.plan.cache, lesson.plan.memory
    seats = count(base.resolved.max_num_seqs)
    if base.verdict in FAILURES and (cache is not None or base.verdict is not Verdict.CONTEXT_TOO_LONG):
        longest = count(cache.longest_request_tokens) if cache is not None else ""
        yield lesson.say(FAILURES[base.verdict], longest=longest)
    elif cache is not None and cache.groups:
        key = "limits-blocks-first" if first_limit(base) == BLOCKS else "limits-seats-first"
        yield lesson.say(key, held=concurrency_text(cache.max_concurrency), seats=seats)
    if memory is not None and memory.unused.value < 0 <= (base.available_kv_bytes or -1):
        yield lesson.say("limits-overrun", size=gib_text(-memory.unused.value))
