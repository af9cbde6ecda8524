"""Exercises about the present scenario; what another setting gives is planned, not guessed."""

from __future__ import annotations

from kvcore.errors import KvPlannerError
from kvcore.explain.derivation.lesson import Exercise
from kvcore.explain.numbers import any_cache
from kvcore.planning import Plan, plan
from kvcore.scenario import edit
from kvcore.texts.words import Words, concurrency_text, count, exact_gib_text, gib_text, kib_text, sentences
from kvcore.units import GIB, ceil_div

PROMPT_TOKENS = 1000
SMALLER_CARD_GIB = 24


def exercises(base: Plan, t: Words) -> tuple[Exercise, ...]:
    """Questions that this scenario has an answer to."""
    found = (
        _last_block(base, t),
        _fp8(base, t),
        _utilization(base, t),
        _tensor_parallel(base, t),
        _hidden_size(base, t),
        _smaller_card(base, t),
    )
    return tuple(one for one in found if one is not None)


def changed(base: Plan, field: str, value: object) -> Plan | None:
    """The plan with one field changed; None where the engine refuses it."""
    try:
        return plan(edit.with_field(base.scenario, field, value))
    except KvPlannerError:
        return None


def _last_block(base: Plan, t: Words) -> Exercise | None:
    cache = any_cache(base)
    if cache is None or len(cache.groups) != 1 or not cache.bytes_per_token:
        return None
    size = cache.groups[0].block_size
    blocks = ceil_div(PROMPT_TOKENS, size)
    empty = blocks * size - PROMPT_TOKENS
    return Exercise(
        question=t(
            "A request has {tokens} tokens, and a block has {size}. How much of its memory is empty?",
            tokens=count(PROMPT_TOKENS),
            size=count(size),
        ),
        answer=t(
            "{tokens} / {size}, rounded up: {blocks} blocks, {slots} slots. {empty} of them are "
            "empty: {percent} %. Only the last block can have empty slots.",
            tokens=count(PROMPT_TOKENS),
            size=count(size),
            blocks=count(blocks),
            slots=count(blocks * size),
            empty=count(empty),
            percent=f"{100 * empty / (blocks * size):.1f}",
        ),
    )


def _fp8(base: Plan, t: Words) -> Exercise | None:
    if base.scenario.kv_cache_dtype != "auto" or base.cache is None:
        return None
    other = changed(base, "kv_cache_dtype", "fp8")
    if other is None or other.cache is None or not base.cache.bytes_per_token:
        return None
    if other.cache.bytes_per_token == base.cache.bytes_per_token:
        return None
    return Exercise(
        question=t("The KV cache is kept in fp8. What does a token cost then, and how many requests fit?"),
        answer=t(
            "{after} per token instead of {before}, and {more} requests instead of {held}. The weights stay as "
            "they are.",
            before=kib_text(base.cache.bytes_per_token),
            after=kib_text(other.cache.bytes_per_token),
            held=concurrency_text(base.cache.max_concurrency),
            more=concurrency_text(other.cache.max_concurrency),
        ),
    )


def _utilization(base: Plan, t: Words) -> Exercise | None:
    share = round(base.resolved.gpu_memory_utilization - 0.05, 4)
    other = changed(base, "gpu_memory_utilization", share) if share > 0 else None
    if other is None or other.memory is None or base.memory is None:
        return None
    before, after = base.available_kv_bytes or 0, other.available_kv_bytes or 0
    if before == after or before <= 0:
        return None
    return Exercise(
        question=t(
            "Another process needs 5 % of the card, so the utilization falls to {share}. Which part pays for it?",
            share=f"{share:g}",
        ),
        answer=t(
            "The budget falls by {size}, and the KV cache pays for all of it: {before} become {after}. The other "
            "parts are as large as before.",
            size=gib_text(base.memory.budget.value - other.memory.budget.value),
            before=gib_text(before),
            after=gib_text(after),
        ),
    )


def _tensor_parallel(base: Plan, t: Words) -> Exercise | None:
    size = base.scenario.parallel.tensor_parallel_size
    other = changed(base, "tensor_parallel_size", 2 * size)
    if other is None or other.cache is None or base.cache is None or not base.cache.max_concurrency:
        return None
    factor = other.cache.max_concurrency / base.cache.max_concurrency
    cost, less = kib_text(base.cache.bytes_per_token), kib_text(other.cache.bytes_per_token)
    return Exercise(
        question=t(
            "The tensor parallel size is doubled to {size}. Do twice as many requests fit?",
            size=str(2 * size),
        ),
        answer=sentences(
            t,
            (
                t(
                    "{after} instead of {before}: {factor} times as many. The weights are divided once more, so "
                    "each GPU has more room.",
                    before=concurrency_text(base.cache.max_concurrency),
                    after=concurrency_text(other.cache.max_concurrency),
                    factor=f"{factor:.2f}",
                ),
                t("What a token takes on each GPU stays at {cost}: it is copied, not divided.", cost=cost)
                if cost == less
                else t("What a token takes on each GPU goes from {cost} to {less}.", cost=cost, less=less),
            ),
        ),
    )


def _hidden_size(base: Plan, t: Words) -> Exercise | None:
    architecture, cache = base.architecture, any_cache(base)
    kept = architecture.num_kv_heads * architecture.head_dim
    if cache is None or architecture.is_mla or not kept or architecture.hidden_size <= kept:
        return None
    if len(cache.groups) != 1 or not cache.bytes_per_token:
        return None
    return Exercise(
        question=t(
            "A text computes the KV cache as layers × 2 × hidden size × length × bytes. How far off is it for this "
            "model?"
        ),
        answer=t(
            "The hidden size is {hidden}, but what is kept are {heads} KV heads of {head_dim}: {kept} numbers. The "
            "text is {factor} times too high.",
            hidden=count(architecture.hidden_size),
            heads=count(architecture.num_kv_heads),
            head_dim=count(architecture.head_dim),
            kept=count(kept),
            factor=f"{architecture.hidden_size / kept:.3g}",
        ),
    )


def _smaller_card(base: Plan, t: Words) -> Exercise | None:
    size = SMALLER_CARD_GIB * GIB
    other = changed(base, "accelerator.memory_gib", SMALLER_CARD_GIB)
    if other is None or other.memory is None or base.memory is None or base.memory.total.value <= size:
        return None
    left = other.available_kv_bytes or 0
    budget = exact_gib_text(other.memory.budget.value)
    rest = gib_text(left)
    answer = (
        t("Its budget is {budget}, and {rest} are left for the KV cache: whether it starts "
          "depends on the length of a request.",
          budget=budget, rest=rest)
        if left > 0
        else t("No. Its budget is {budget}, and the other parts need {missing} more than that.", budget=budget,
               missing=gib_text(-left))
    )  # fmt: skip
    return Exercise(
        question=t("Would the same deployment start on cards of {size} GiB?", size=str(SMALLER_CARD_GIB)),
        answer=answer,
    )
