"""Steps of the lessons on precision and speculation: fewer bits, what they cost, several tokens a step."""

from __future__ import annotations

from collections.abc import Iterator
from operator import truediv
from typing import Final

from msgspec.structs import replace

from kvcore.base.numbers import concurrency_text, count, gib_text, kib_text
from kvcore.base.quantity import Grade, Quantity, Scope, Unit, explained, given
from kvcore.base.term import sum_of_products
from kvcore.base.units import KIB
from kvcore.course.equation import equations
from kvcore.course.experiments import changed, with_fp8_weights
from kvcore.course.lesson import Content, Lesson, Slip, StepName
from kvcore.explain.numbers import any_cache
from kvcore.explain.reference import largest_loss, published_scores
from kvcore.memory.shares import weight_shares
from kvcore.memory.stages import loaded_architecture
from kvcore.planning import Plan
from kvcore.scenario import SpeculativeConfig

GROUP: Final = 128
"""Weights that share a scale, as in most GPTQ and AWQ checkpoints.

Source: vllm/model_executor/layers/quantization/auto_gptq.py, auto_awq.py (0.32).
"""
FEW_BITS, SCALE_BITS = 4, 16
BITS_OF_A_BYTE: Final = 8
ACCEPTANCE: Final = 0.7
"""The share of proposed tokens that the example accepts, one by one."""
PROPOSED: Final = 3
"""Tokens that the example proposes, where the plan has no draft of its own."""
MOST_PROPOSED: Final = 5
"""Most proposed tokens whose sum is written out."""
UNDER, SOME, MANY = "under", "some", "many"
LITTLE, MUCH = 1.0, 5.0
"""Points, the bounds of the answers."""


def weight_bits_content(lesson: Lesson) -> Content:
    """Bits of a weight with its share of a scale, and what all parameters take with them."""
    base, say = lesson.plan, lesson.say
    content = lesson.content(StepName.WEIGHT_BITS, unit=say("bits"), group=count(GROUP))
    bits = [
        given(name, value)
        for name, value in (("weight_bits", FEW_BITS), ("scale_bits", SCALE_BITS), ("group_size", GROUP))
    ]
    average = explained(
        "average_bits",
        average_bits,
        *bits,
        unit=Unit.NONE,
        scope=Scope.TOTAL,
        source="vllm/model_executor/layers/quantization/auto_gptq.py (0.32)",
    )
    shares = weight_shares(
        loaded_architecture(base.architecture, base.scenario, base.resolved),
        base.quantization,
        base.scenario.parallel,
        base.resolved,
        base.stage,
    )
    ranks = base.scenario.parallel.tensor_parallel_size
    parts = (
        given("parameter_count", shares.count), average, given("bits_of_a_byte", BITS_OF_A_BYTE),
        given("tensor_parallel_size", ranks),
    )  # fmt: skip
    least = explained(
        "least_weights",
        least_weight_bytes,
        *parts,
        grade=Grade.DERIVED,
    )
    slips = (
        lesson.slip(float(FEW_BITS), "weight-bits-slip-no-scale"),
        lesson.slip(float(FEW_BITS + SCALE_BITS), "weight-bits-slip-each"),
    )
    return replace(
        content.answered(answer=average.value, slips=slips),
        points=(say("weight-bits-not-all"), say("weight-bits-speed")),
        equations=equations(lesson.t, average, least),
        remarks=tuple(_weight_bits_remarks(lesson)),
    )


def average_bits(weight_bits: int, scale_bits: int, group_size: int) -> float:
    """Bits of a weight with its share of a scale."""
    return weight_bits + scale_bits / group_size


def least_weight_bytes(
    parameter_count: int, average_bits: float, bits_of_a_byte: int, tensor_parallel_size: int
) -> float:
    """Bytes of one rank if all parameters were stored so."""
    return parameter_count * average_bits / bits_of_a_byte / tensor_parallel_size


def _weight_bits_remarks(lesson: Lesson) -> Iterator[str]:
    base, weights = lesson.plan, lesson.plan.loaded_weights
    yield lesson.say("weight-bits-now", size=gib_text(weights.value))
    other = with_fp8_weights(base)
    if other is not None:
        after = gib_text(other.loaded_weights.value)
        yield lesson.say("weight-bits-fp8", before=gib_text(weights.value), after=after)
        yield from _more_requests(lesson, other)


def _more_requests(lesson: Lesson, other: Plan) -> Iterator[str]:
    """Requests that fit in another plan, where their number differs."""
    held, more = (one.cache.max_concurrency if one.cache is not None else 0 for one in (lesson.plan, other))
    if more and held != more:
        yield lesson.say("precision-requests", held=concurrency_text(held), more=concurrency_text(more))


def cache_bits_content(lesson: Lesson) -> Content:
    """Bytes of a token with a cache of another precision, planned."""
    base, say, cache = lesson.plan, lesson.say, any_cache(lesson.plan)
    now = base.resolved.kv_cache_dtype
    other_dtype = "auto" if base.scenario.kv_cache_dtype != "auto" else "fp8"
    before = kib_text(cache.bytes_per_token) if cache is not None else ""
    content = lesson.content(StepName.CACHE_BITS, unit="KiB", now=now, other=other_dtype, before=before)
    other = changed(base, "kv_cache_dtype", other_dtype)
    after = any_cache(other) if other is not None else None
    if cache is None or not cache.bytes_per_token:
        return replace(content, missing=say("no-cache" if cache is None else "cache-bits-nothing-grows"))
    if other is None or after is None or not after.groups:
        return replace(content, missing=say("cache-bits-refused", other=other_dtype))
    kept = f"{cache.bytes_per_token / after.bytes_per_token:.2f}"
    return replace(
        content.answered(
            answer=after.bytes_per_token / KIB,
            slips=_cache_bits_slips(lesson, cache.bytes_per_token / KIB, other_dtype),
        ),
        points=(say("cache-bits-apart"), say("cache-bits-scales")),
        equations=equations(lesson.t, replace(after.figures.bytes_per_token, name="other_bytes_per_token")),
        remarks=(say("cache-bits-factor", factor=kept), *_more_requests(lesson, other)),
    )


def _cache_bits_slips(lesson: Lesson, now_kib: float, other_dtype: str) -> tuple[Slip, ...]:
    same = lesson.slip(now_kib, "cache-bits-slip-same")
    return (same, lesson.slip(now_kib / 4, "cache-bits-slip-four")) if other_dtype == "fp8" else (same,)


def quality_content(lesson: Lesson) -> Content:
    """Published results with 8 and with 4 bits."""
    say, loss = lesson.say, largest_loss(BITS_OF_A_BYTE)
    content = lesson.content(StepName.QUALITY, options=(UNDER, SOME, MANY))
    first = published_scores()[0]
    recovery = explained(
        "recovery",
        truediv,
        given("score_after", first.after, grade=Grade.MEASURED),
        given("score_before", first.before, grade=Grade.MEASURED),
        unit=Unit.NONE,
        scope=Scope.TOTAL,
        source=first.source,
    )
    return replace(
        content.answered(answer_option=UNDER if loss < LITTLE else SOME if loss <= MUCH else MANY),
        points=(say("quality-own-task"), say("quality-cache"), say("quality-long")),
        equations=equations(lesson.t, recovery),
        remarks=(
            say("quality-eight", points=f"{loss:.2f}"),
            say("quality-four", points=f"{largest_loss(FEW_BITS):.2f}"),
        ),
    )


def draft_content(lesson: Lesson) -> Content:
    """Tokens of one step with proposed ones, and what a draft takes of the memory."""
    base, say, proposed = lesson.plan, lesson.say, proposed_tokens(lesson.plan)
    seats = base.resolved.max_num_seqs
    content = lesson.content(StepName.DRAFT, unit=say("tokens"), seats=count(seats), proposed=count(proposed))
    tokens = explained(
        "speculative_step",
        speculative_step_tokens,
        given("max_num_seqs", seats),
        given("num_speculative_tokens", proposed),
        unit=Unit.TOKENS,
        grade=Grade.EXACT,
        source="vllm/v1/core/sched/scheduler.py:Scheduler.schedule (0.33.0)",
    )
    slips = (
        lesson.slip(float(seats * proposed), "draft-slip-own"),
        lesson.slip(float(seats), "draft-slip-one"),
    )
    return replace(
        content.answered(answer=tokens.value, slips=slips),
        points=(say("draft-methods"), say("draft-lossless")),
        equations=equations(lesson.t, tokens),
        remarks=tuple(_draft_remarks(lesson, tokens)),
    )


def speculative_step_tokens(max_num_seqs: int, num_speculative_tokens: int) -> int:
    """Tokens of a step: of each sequence its own and the proposed ones."""
    return max_num_seqs * (num_speculative_tokens + 1)


def _draft_remarks(lesson: Lesson, tokens: Quantity) -> Iterator[str]:
    base, say = lesson.plan, lesson.say
    if tokens.value > base.resolved.max_num_batched_tokens:
        yield say("draft-over-the-step", batch=count(base.resolved.max_num_batched_tokens))
    if base.scenario.speculative_config is not None:
        if base.weights.drafts:
            yield say("draft-loaded", size=gib_text(base.weights.drafts))
        else:
            yield say("draft-free")
        return
    if not base.architecture.draft_layers:
        yield say("draft-none")
        return
    other = changed(base, "speculative_config", SpeculativeConfig(method="mtp", num_speculative_tokens=1))
    if other is not None:
        yield say("draft-mtp", size=gib_text(other.weights.drafts))
        yield from _more_requests(lesson, other)


def proposed_tokens(base: Plan) -> int:
    """Tokens that the plan's draft proposes, or those of the example.

    Example:
        >>> PROPOSED <= MOST_PROPOSED
        True
    """
    return min(base.resolved.num_speculative_tokens, MOST_PROPOSED) or PROPOSED


def gain_content(lesson: Lesson) -> Content:
    """Tokens that a step yields where each proposed one is accepted with the same chance.

    Source: Leviathan, Kalman, Matias, Fast Inference from Transformers via Speculative Decoding (2023), equation 1.
    """
    proposed, say = proposed_tokens(lesson.plan), lesson.say
    share = f"{ACCEPTANCE:.0%}".replace("%", " %")
    content = lesson.content(StepName.GAIN, unit=say("tokens"), proposed=count(proposed), share=share)
    acceptance, one = given("acceptance", ACCEPTANCE, grade=Grade.ASSUMED), given("own_token", 1)
    runs = tuple((acceptance,) * length for length in range(1, proposed + 1))
    expected = explained(
        "tokens_per_step",
        sum_of_products,
        ((one,), *runs),
        unit=Unit.NONE,
        scope=Scope.TOTAL,
        grade=Grade.ASSUMED,
        source="Leviathan et al.: Fast Inference from Transformers via Speculative Decoding (2023), equation 1",
    )
    slips = (
        lesson.slip(float(proposed + 1), "gain-slip-all"),
        lesson.slip(1 + ACCEPTANCE * proposed, "gain-slip-each"),
        lesson.slip(ACCEPTANCE * proposed, "gain-slip-own"),
    )
    return replace(
        content.answered(answer=expected.value, slips=slips),
        points=(say("gain-order"), say("gain-when"), say("gain-log")),
        equations=equations(lesson.t, expected),
        remarks=(say("gain-bound", most=count(proposed + 1)),),
    )
