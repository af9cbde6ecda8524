"""Steps 9 to 12: blocks and their table, prompts and answers in one step, several cards, a start-up log."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from kvcore.base.numbers import count
from kvcore.base.quantity import Grade, Quantity, Scope, Unit, explained, given
from kvcore.base.term import most
from kvcore.base.units import ceil_div
from kvcore.cache.spec import demand_of
from kvcore.course.equation import equations
from kvcore.course.lesson import Content, Lesson, Slip, StepName
from kvcore.deploy.going_live import expected_log_lines
from kvcore.explain.numbers import any_cache

EXAMPLE_TOKENS: Final = 1000
"""Of the document on Llama-2-70B, whose last block is the example."""
LEFT, FREE, USED = "left", "free", "used"


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
    """KV heads of one card, or copies of the latent vector; what is cut and what is copied."""
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


def _wrong(slips: tuple[Slip, ...], right: Quantity) -> tuple[Slip, ...]:
    return tuple(slip for slip in slips if slip.value not in (0, right.value))
