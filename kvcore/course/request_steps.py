"""Steps of the requests: blocks, batches, how many run at once, what breaks first, several cards, a start's log."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, prod
from typing import Final

from msgspec.structs import replace

from kvcore.advice.target import served, served_at_once
from kvcore.base.numbers import concurrency_text, count, gib_text, kib_text
from kvcore.base.quantity import Grade, Quantity, Scope, Unit, explained, given
from kvcore.base.term import least, left_of, most
from kvcore.base.units import ceil_div
from kvcore.cache.capacity import CachePlan
from kvcore.cache.spec import demand_of
from kvcore.course.cache_steps import blocks_of_a_request, filled_from
from kvcore.course.equation import equations
from kvcore.course.experiments import exercises
from kvcore.course.lesson import Content, Lesson, Slip, StepName
from kvcore.deploy.going_live import expected_log_lines
from kvcore.explain.numbers import any_cache
from kvcore.planning import Plan, Verdict

SHORTER: Final = 4
"""The shorter request of step 7 has full length divided by this."""
EXAMPLE_TOKENS: Final = 1000
"""From the document on Llama-2-70B, whose last block is the example."""
LEFT, FREE, USED = "left", "free", "used"
START, BLOCKS, SEATS = "start", "blocks", "seats"
FAILURES: Final = {
    Verdict.WEIGHTS_DO_NOT_FIT: "limits-weights",
    Verdict.NO_KV_MEMORY: "limits-no-memory",
    Verdict.CONTEXT_TOO_LONG: "limits-too-long",
}
"""Sentences for a start that fails, by its verdict."""


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
    """The effect of half the length on the number of requests, from this plan's groups."""
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
    """The limit that stops requests of full length: the start itself, the blocks, or max_num_seqs."""
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


def blocks_content(lesson: Lesson) -> Content:
    """Slots of the last block that a request leaves empty, and what a block table makes possible."""
    base, say = lesson.plan, lesson.say
    cache = any_cache(base)
    size = cache.groups[0].block_size if cache is not None and cache.groups else 0
    content = lesson.content(
        StepName.BLOCKS, unit=say("tokens"), size=count(size), tokens=count(EXAMPLE_TOKENS)
    )
    if not size:
        return replace(content, missing=say("no-cache"))
    tokens = given("example_tokens", EXAMPLE_TOKENS, Unit.TOKENS)
    blocks = explained(
        "example_blocks",
        ceil_div,
        tokens,
        given("block_size", size),
        unit=Unit.BLOCKS,
        scope=Scope.PER_REPLICA,
        grade=Grade.EXACT,
    )
    empty = explained(
        "empty_slots",
        empty_slots,
        blocks,
        given("block_size", size),
        tokens,
        unit=Unit.TOKENS,
        scope=Scope.PER_REPLICA,
        grade=Grade.EXACT,
    )
    slips = (
        lesson.slip(float(EXAMPLE_TOKENS % size), "blocks-slip-used"),
        lesson.slip(float(base.resolved.max_model_len - EXAMPLE_TOKENS), "blocks-slip-reserved"),
    )
    return replace(
        content.answered(answer=empty.value, slips=_wrong(slips, empty)),
        points=(say("blocks-table"), say("blocks-shared"), say("blocks-class")),
        equations=equations(lesson.t, blocks, empty),
    )


def empty_slots(example_blocks: int, block_size: int, example_tokens: int) -> int:
    """Slots of the last block that stay empty."""
    return example_blocks * block_size - example_tokens


def batching_content(lesson: Lesson) -> Content:
    """Steps of a prompt of full length that comes alone, and who goes first when a step is full."""
    base, say = lesson.plan, lesson.say
    batch, length = base.resolved.max_num_batched_tokens, base.resolved.max_model_len
    content = lesson.content(StepName.BATCHING, unit=say("steps"), batch=count(batch), tokens=count(length))
    steps = explained(
        "prefill_steps",
        ceil_div,
        given("max_model_len", length, Unit.TOKENS),
        given("max_num_batched_tokens", batch, Unit.TOKENS),
        unit=Unit.NONE,
        scope=Scope.PER_REPLICA,
        grade=Grade.EXACT,
        source="vllm/v1/core/sched/scheduler.py:Scheduler.schedule (0.33.0)",
    )
    if not base.resolved.enable_chunked_prefill:
        return replace(content.answered(answer=1.0), points=(say("batching-whole"),))
    slips = (
        lesson.slip(float(length), "batching-slip-each"),
        lesson.slip(length / batch, "batching-slip-part"),
    )
    return replace(
        content.answered(answer=steps.value, slips=_wrong(slips, steps)),
        points=(say("batching-order"), say("batching-preempted"), say("blocks-class")),
        equations=equations(lesson.t, steps),
        remarks=(say("batching-chunk"),),
    )


def cards_content(lesson: Lesson) -> Content:
    """KV heads of one card, or copies of the latent vector: the parts that are divided and copied."""
    base, say = lesson.plan, lesson.say
    parallel, heads = base.scenario.parallel, base.architecture.num_kv_heads
    ranks = parallel.tensor_parallel_size
    if base.architecture.is_mla:
        shared = demand_of(base.resolved, parallel).context_ranks
        content = lesson.content(StepName.CARDS, unit=say("cards"), ranks=str(ranks), heads=count(heads))
        copies = ranks // shared
        return replace(
            content.answered(
                question=say("cards-guess-latent", ranks=str(ranks)),
                answer=float(copies),
                slips=(lesson.slip(1.0, "cards-slip-latent"),) if copies != 1 else (),
            ),
            points=(say("cards-exchange"),),
        )
    content = lesson.content(StepName.CARDS, unit=say("heads"), ranks=str(ranks), heads=count(heads))
    if not heads:
        return replace(content, missing=say("cards-no-heads"))
    kept = explained(
        "kv_heads_per_rank",
        kv_heads_per_rank,
        given("num_kv_heads", heads),
        given("tensor_parallel_size", ranks),
        unit=Unit.NONE,
        grade=Grade.EXACT,
        source="vllm/config/model.py:ModelConfig.get_num_kv_heads (0.33.0)",
    )
    slips = (
        lesson.slip(float(heads), "cards-slip-all"),
        lesson.slip(base.architecture.num_attention_heads / ranks, "cards-slip-query"),
    )
    return replace(
        content.answered(answer=kept.value, slips=_wrong(slips, kept)),
        points=(say("cards-exchange"),),
        equations=equations(lesson.t, kept),
    )


def kv_heads_per_rank(num_kv_heads: int, tensor_parallel_size: int) -> int:
    """KV heads of one card; where there are fewer heads than cards, they are copied."""
    return most(1, num_kv_heads // tensor_parallel_size)


def log_content(lesson: Lesson) -> Content:
    """The lines that a start prints, with this plan's figures."""
    content = lesson.content(StepName.LOG, options=(LEFT, FREE, USED))
    lines = expected_log_lines(lesson.plan)
    memory = lesson.plan.memory
    if not lines or memory is None:
        return replace(content.answered(answer_option=LEFT), missing=lesson.say("log-no-start"))
    return replace(
        content.answered(answer_option=LEFT),
        equations=equations(lesson.t, memory.available_kv),
        remarks=(*(f"`{line}`" for line in lines), lesson.say("log-check")),
    )


def own_content(lesson: Lesson) -> Content:
    """What the class's own deployment serves, and whether that is what it is to serve; three things to remember."""
    base, say, held = lesson.plan, lesson.say, lesson.plan.cache
    length = count(base.resolved.max_model_len)
    content = replace(
        lesson.content(StepName.OWN, unit=say("requests"), tokens=length),
        points=(say("own-kept"), say("own-left"), say("own-waits")),
    )
    if base.memory is None:
        return replace(content, missing=say("no-card"))
    at_once = served_at_once(base)
    content = content.answered(answer=float(at_once))
    target = served(base)
    if target is None:
        said = say("own-no-target", count=count(at_once), tokens=length)
    else:
        key = "own-enough" if target.enough else "own-short"
        said = say(key, count=count(target.total), wanted=count(target.wanted), tokens=length)
    content = replace(content, remarks=(said,))
    if held is None or not held.num_blocks or not held.groups:
        return content
    replicas = base.scenario.parallel.data_parallel_size
    slips = (lesson.slip(float(at_once // replicas), "own-slip-replica"),) if replicas > 1 else ()
    return replace(content.answered(slips=slips), equations=equations(lesson.t, held.figures.concurrency))


def _wrong(slips: tuple[Slip, ...], right: Quantity) -> tuple[Slip, ...]:
    return tuple(slip for slip in slips if slip.value not in (0, right.value))
