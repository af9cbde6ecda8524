"""Experiments for each step, and exercises: the effect of another setting is planned, not guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from kvcore.base.errors import KvPlannerError
from kvcore.base.numbers import (
    DASH,
    concurrency_text,
    count,
    exact_gib_text,
    gib_text,
    kib_text,
    plain,
    size_text,
)
from kvcore.base.units import GIB, ceil_div
from kvcore.base.words import msg, sentences
from kvcore.controls import edit, offers
from kvcore.course.lesson import Effect, Exercise, Experiment, Lesson, StepName
from kvcore.explain.numbers import any_cache
from kvcore.flags import FLAGS
from kvcore.model.quantization import NOT_QUANTIZED
from kvcore.planning import Plan, plan

IN_MORE_OPTIONS: Final = ("max_num_batched_tokens", "max_num_seqs")
LOW_SHARE: Final = 0.6
STEPS_OF_SHARE: Final = (0.1, 0.05, 0.02)
MAX_RANKS: Final = 16
"""The largest size that the sidebar offers."""
PROMPT_TOKENS: Final = 1000
SMALLER_CARD_GIB: Final = 24


class Figure(NamedTuple):
    """One figure of a plan, as text; `of` gives None where the plan has none."""

    meaning: str
    of: Callable[[Plan], float | None]
    written: Callable[[float], str]

    def text(self, planned: Plan) -> str:
        """A dash where there is none."""
        value = self.of(planned)
        return DASH if value is None else self.written(value)


def _part(name: str) -> Callable[[Plan], float | None]:
    return lambda one: getattr(one.memory, name).value if one.memory else None


def _cached(name: str) -> Callable[[Plan], float | None]:
    return lambda one: getattr(one.cache, name, None)


def _of_any_cache(name: str) -> Callable[[Plan], float | None]:
    return lambda one: getattr(any_cache(one), name, None)


BUDGET: Final = Figure(msg("Budget"), _part("budget"), size_text)
WEIGHTS: Final = Figure(
    msg("Weights"), lambda one: (one.memory.weights if one.memory else one.loaded_weights).value, size_text
)
ACTIVATIONS: Final = Figure(msg("Activations"), _part("activations"), size_text)
FRAMEWORK: Final = Figure(msg("Framework"), _part("framework"), size_text)
AVAILABLE: Final = Figure(msg("Available for the KV cache"), lambda one: one.available_kv_bytes, size_text)
PER_TOKEN: Final = Figure(msg("KV per token"), _of_any_cache("bytes_per_token"), kib_text)
REQUEST: Final = Figure(msg("One request of the full length"), _of_any_cache("needed_bytes"), size_text)
TOKENS: Final = Figure(msg("KV cache tokens"), _cached("tokens"), count)
BLOCKS: Final = Figure(msg("Blocks of the pool"), _cached("num_blocks"), count)
REQUESTS: Final = Figure(msg("Requests at once"), _cached("max_concurrency"), concurrency_text)

Move = tuple[str, object]


def _other_share(base: Plan) -> Iterator[Move]:
    share = base.resolved.gpu_memory_utilization
    goes_up = share < LOW_SHARE or not _fits_something(base)
    for step in STEPS_OF_SHARE:
        other = round(share + step if goes_up else share - step, 4)
        if 0 < other <= 1:
            yield "gpu_memory_utilization", other


def _enough_cards(base: Plan) -> Iterator[Move]:
    """The sizes that divide the weights further, where nothing is left for the KV cache."""
    size = 2 * base.scenario.parallel.tensor_parallel_size
    while not _fits_something(base) and size <= MAX_RANKS:
        yield "tensor_parallel_size", size
        size *= 2


def _other_size(base: Plan) -> Iterator[Move]:
    size = base.scenario.parallel.tensor_parallel_size
    yield from (("tensor_parallel_size", other) for other in (2 * size, size // 2) if 1 <= other <= MAX_RANKS)


def _other_batch(base: Plan) -> Iterator[Move]:
    batch = base.resolved.max_num_batched_tokens
    yield from (("max_num_batched_tokens", other) for other in (2 * batch, batch // 2) if other)


def _other_dtype(base: Plan) -> Iterator[Move]:
    yield "kv_cache_dtype", "fp8" if base.scenario.kv_cache_dtype == "auto" else "auto"


def _fp8_weights(base: Plan) -> Iterator[Move]:
    offered = offers.weight_precisions(base.scenario)
    if base.scenario.quantization is None and base.quantization.method == NOT_QUANTIZED and "fp8" in offered:
        yield "quantization", "fp8"


def _fewer_seats(base: Plan) -> Iterator[Move]:
    yield from (("max_num_seqs", base.resolved.max_num_seqs // by) for by in (2, 4, 8))


def _half_length(base: Plan) -> Iterator[Move]:
    if base.resolved.max_model_len > 1:
        yield "max_model_len", base.resolved.max_model_len // 2


def _longer(base: Plan) -> Iterator[Move]:
    length = 2 * base.resolved.max_model_len
    if length <= base.resolved.derived_max_model_len:
        yield "max_model_len", length


MOVES: Final[dict[StepName, tuple[tuple[Callable[[Plan], Iterator[Move]], ...], tuple[Figure, ...]]]] = {
    StepName.PARTS: ((_enough_cards, _other_size, _other_share), (WEIGHTS, AVAILABLE)),
    StepName.BUDGET: ((_other_share,), (BUDGET, WEIGHTS, AVAILABLE)),
    StepName.WEIGHTS: ((_enough_cards, _other_size, _other_share), (WEIGHTS, AVAILABLE)),
    StepName.ACTIVATIONS: ((_other_batch, _other_share), (ACTIVATIONS, AVAILABLE)),
    StepName.FRAMEWORK: ((_enough_cards, _other_size, _other_share), (FRAMEWORK, WEIGHTS, AVAILABLE)),
    StepName.TOKEN: ((_other_dtype, _other_size), (PER_TOKEN, REQUEST)),
    StepName.POOL: ((_enough_cards, _other_share), (AVAILABLE, TOKENS)),
    StepName.REQUESTS: ((_enough_cards, _half_length), (REQUESTS, REQUEST)),
    StepName.LIMITS: ((_enough_cards, _longer, _half_length), (REQUEST, REQUESTS)),
    StepName.BLOCKS: ((_enough_cards, _other_share), (BLOCKS, TOKENS)),
    StepName.BATCHING: ((_other_batch,), (ACTIVATIONS, REQUESTS)),
    StepName.CARDS: ((_other_size,), (WEIGHTS, PER_TOKEN, REQUESTS)),
    StepName.WEIGHT_BITS: ((_fp8_weights, _other_size), (WEIGHTS, AVAILABLE, REQUESTS)),
    StepName.CACHE_BITS: ((_other_dtype,), (PER_TOKEN, TOKENS, REQUESTS)),
    StepName.QUALITY: ((_fp8_weights, _other_dtype), (WEIGHTS, PER_TOKEN, REQUESTS)),
    StepName.DRAFT: ((_other_batch,), (ACTIVATIONS, REQUESTS)),
    StepName.GAIN: ((_fewer_seats,), (ACTIVATIONS, REQUESTS)),
    StepName.TIER: ((_other_dtype, _other_size), (PER_TOKEN, TOKENS, REQUESTS)),
    StepName.ENGINES: ((_other_share,), (BUDGET, AVAILABLE, TOKENS)),
    StepName.LOG: ((_enough_cards, _half_length), (AVAILABLE, REQUESTS)),
    StepName.OWN: ((_enough_cards, _half_length), (REQUEST, REQUESTS)),
}
"""The moves to try in turn on each step, and the figures to look at; one of them has to change."""


def _fits_something(planned: Plan) -> bool:
    """Whether blocks are left for the KV cache, or none are asked for."""
    return planned.available_kv_bytes is None or planned.available_kv_bytes > 0


def experiment(lesson: Lesson, name: StepName) -> Experiment | None:
    """The first move that the engine takes, that changes something and leaves a KV cache where there is one.

    None where there is none.
    """
    base, t = lesson.plan, lesson.t
    moves, figures = MOVES[name]
    for candidates in moves:
        for field, value in candidates(base):
            after = changed(base, field, value)
            if after is None:
                continue
            if not _fits_something(after) and (_fits_something(base) or candidates is _enough_cards):
                continue
            effects = tuple(
                Effect(meaning=t(figure.meaning), before=figure.text(base), after=figure.text(after))
                for figure in figures
            )
            if any(effect.before != effect.after for effect in effects):
                return Experiment(
                    field=field,
                    value=value,
                    control=t(FLAGS[field].label),
                    before=_now(base, field),
                    after=_text(value),
                    effects=effects,
                    scenario=after.scenario,
                )
    return None


def changed(base: Plan, field: str, value: object) -> Plan | None:
    """The plan with one field changed; None where the engine refuses it."""
    try:
        return plan(edit.with_field(base.scenario, field, value))
    except KvPlannerError:
        return None


def _now(base: Plan, field: str) -> str:
    if field == "tensor_parallel_size":
        return str(base.scenario.parallel.tensor_parallel_size)
    if field == "kv_cache_dtype":
        return base.scenario.kv_cache_dtype
    if field == "quantization":
        return base.scenario.quantization or "auto"
    return _text(getattr(base.resolved, field))


def _text(value: object) -> str:
    if isinstance(value, float):
        return plain(value)
    return count(value) if isinstance(value, int) and value >= 1000 else str(value)


def with_fp8_weights(base: Plan) -> Plan | None:
    """The plan with fp8 weights, None where it has fewer bits already or the engine does not take them."""
    moves = (changed(base, field, value) for field, value in _fp8_weights(base))
    return next(moves, None)


def exercises(lesson: Lesson) -> tuple[Exercise, ...]:
    """Questions that this scenario has an answer to."""
    asked = (_last_block, _fp8, _share, _ranks, _hidden_size, _smaller_card)
    return tuple(one for found in asked if (one := found(lesson)) is not None)


def _last_block(lesson: Lesson) -> Exercise | None:
    cache, say = any_cache(lesson.plan), lesson.say
    if cache is None or len(cache.groups) != 1 or not cache.bytes_per_token:
        return None
    size = cache.groups[0].block_size
    blocks = ceil_div(PROMPT_TOKENS, size)
    slots, empty = blocks * size, blocks * size - PROMPT_TOKENS
    asked = {"tokens": count(PROMPT_TOKENS), "size": count(size)}
    found = {"blocks": count(blocks), "slots": count(slots), "empty": count(empty)}
    percent = f"{100 * empty / slots:.1f}"
    return Exercise(
        question=say("exercise-block", **asked),
        answer=say("exercise-block-answer", **asked, **found, percent=percent),
    )


def _fp8(lesson: Lesson) -> Exercise | None:
    base, cache, say = lesson.plan, lesson.plan.cache, lesson.say
    if base.scenario.kv_cache_dtype != "auto" or cache is None:
        return None
    other = changed(base, "kv_cache_dtype", "fp8")
    if other is None or other.cache is None or not cache.bytes_per_token:
        return None
    if other.cache.bytes_per_token == cache.bytes_per_token:
        return None
    return Exercise(
        question=say("exercise-fp8"),
        answer=say(
            "exercise-fp8-answer",
            before=kib_text(cache.bytes_per_token),
            after=kib_text(other.cache.bytes_per_token),
            held=concurrency_text(cache.max_concurrency),
            more=concurrency_text(other.cache.max_concurrency),
        ),
    )


def _share(lesson: Lesson) -> Exercise | None:
    base, say = lesson.plan, lesson.say
    share = round(base.resolved.gpu_memory_utilization - 0.05, 4)
    other = changed(base, "gpu_memory_utilization", share) if share > 0 else None
    if other is None or other.memory is None or base.memory is None:
        return None
    before, after = base.available_kv_bytes or 0, other.available_kv_bytes or 0
    if before == after or before <= 0:
        return None
    size = gib_text(base.memory.budget.value - other.memory.budget.value)
    return Exercise(
        question=say("exercise-share", share=f"{share:g}"),
        answer=say("exercise-share-answer", size=size, before=gib_text(before), after=gib_text(after)),
    )


def _ranks(lesson: Lesson) -> Exercise | None:
    base, say = lesson.plan, lesson.say
    size = 2 * base.scenario.parallel.tensor_parallel_size
    other = changed(base, "tensor_parallel_size", size)
    if other is None or other.cache is None or base.cache is None or not base.cache.max_concurrency:
        return None
    held, more = base.cache.max_concurrency, other.cache.max_concurrency
    cost, less = kib_text(base.cache.bytes_per_token), kib_text(other.cache.bytes_per_token)
    fitting = say(
        "exercise-ranks-answer",
        before=concurrency_text(held),
        after=concurrency_text(more),
        factor=f"{more / held:.2f}",
    )
    token = say("exercise-ranks-copied" if cost == less else "exercise-ranks-divided", cost=cost, less=less)
    return Exercise(
        question=say("exercise-ranks", size=str(size)), answer=sentences(lesson.t, (fitting, token))
    )


def _hidden_size(lesson: Lesson) -> Exercise | None:
    architecture, cache, say = lesson.plan.architecture, any_cache(lesson.plan), lesson.say
    kept = architecture.num_kv_heads * architecture.head_dim
    if cache is None or architecture.is_mla or not kept or architecture.hidden_size <= kept:
        return None
    if len(cache.groups) != 1 or not cache.bytes_per_token:
        return None
    return Exercise(
        question=say("exercise-hidden-size"),
        answer=say(
            "exercise-hidden-size-answer",
            hidden=count(architecture.hidden_size),
            heads=count(architecture.num_kv_heads),
            head_dim=count(architecture.head_dim),
            kept=count(kept),
            factor=f"{architecture.hidden_size / kept:.3g}",
        ),
    )


def _smaller_card(lesson: Lesson) -> Exercise | None:
    base, say = lesson.plan, lesson.say
    other = changed(base, "accelerator.memory_gib", SMALLER_CARD_GIB)
    if other is None or other.memory is None or base.memory is None:
        return None
    if base.memory.total.value <= SMALLER_CARD_GIB * GIB:
        return None
    left, budget = other.available_kv_bytes or 0, exact_gib_text(other.memory.budget.value)
    key = "exercise-card-starts" if left > 0 else "exercise-card-too-small"
    return Exercise(
        question=say("exercise-card", size=str(SMALLER_CARD_GIB)),
        answer=say(key, budget=budget, rest=gib_text(left), missing=gib_text(-left)),
    )
