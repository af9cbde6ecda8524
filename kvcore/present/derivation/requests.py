"""Step 7: how many requests the pool holds, of full length and of a shorter one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from kvcore.cache.capacity import CachePlan, max_concurrency_at
from kvcore.cache.rules import planner_rules
from kvcore.planning import Plan
from kvcore.present.derivation.equation import equation, given
from kvcore.present.derivation.parts import no_card
from kvcore.present.derivation.pool import blocks_of, blocks_of_request, plan_grade
from kvcore.present.derivation.step import Content, Prediction, Slip
from kvcore.present.text import Words, concurrency_text, count
from kvcore.quantity import Grade, Quantity, Scope, Unit
from kvcore.units import ceil_div

_PLANNER: Final = "vllm/v1/core/kv_cache_utils.py:get_max_concurrency_for_kv_cache_config (0.32.0)"
SHORTER: Final = 4
"""The shorter request of the step has full length divided by this."""


def requests_content(plan: Plan, t: Words) -> Content:
    """Concurrency in the worst case and in a typical one, and where max_num_seqs cuts it off."""
    resolved, cache = plan.resolved, plan.cache
    question = t("How many requests fit at once?")
    idea = t(
        "The engine's “Maximum concurrency” is the worst case: every request grows to the full `--max-model-len`. "
        "Requests that stay shorter take fewer blocks, so of half the length about twice as many fit: the curve "
        "falls as 1 / length. `--max-num-seqs` cuts it off: one step never computes more than {seats} sequences.",
        seats=count(resolved.max_num_seqs),
    )
    prediction = Prediction(
        question=t("How many requests of {tokens} tokens fit at once?", tokens=count(resolved.max_model_len)),
        unit=t("requests"),
    )
    if cache is None or not cache.num_blocks or not cache.groups:
        no_cache = not any(plan.specs)
        missing = t("Nothing is kept of a request, so memory sets no limit.") if no_cache else (
            no_card(t) if plan.available_kv_bytes is None
            else t("There are no blocks, so there are no requests either: the engine stops at start.")
        )  # fmt: skip
        if plan.available_kv_bytes is not None and not no_cache:
            prediction = replace(prediction, answer=0.0)
        return Content(question=question, idea=idea, prediction=prediction, missing=missing)
    blocks = blocks_of(plan, cache)
    full, shorter = _full(plan, cache, blocks), _shorter(plan, cache)
    return Content(
        question=question,
        idea=idea,
        prediction=Prediction(
            question=prediction.question,
            unit=prediction.unit,
            answer=cache.max_concurrency,
            slips=_slips(plan, cache, t),
        ),
        equations=tuple(equation(quantity, t) for quantity in (*full, *shorter)),
        remarks=_remarks(plan, cache, t),
    )


def _full(plan: Plan, cache: CachePlan, blocks: Quantity) -> tuple[Quantity, ...]:
    """Blocks of a request of full length, and how many such the pool holds."""
    resolved = plan.resolved
    length = given("max_model_len", resolved.max_model_len)
    tokens_rule = resolved.is_v0 or planner_rules(resolved.version).reported_concurrency == "tokens"
    divisor = blocks_of_request(plan, cache)
    block_size = given("block_size", cache.groups[0].block_size)
    fixed = cache.request_fixed_bytes // cache.bytes_per_block if cache.bytes_per_block else 0
    growing = sum(group.blocks_per_request for group in cache.groups) - fixed
    formula = ""
    if len(cache.groups) == 1 and divisor == ceil_div(resolved.max_model_len, cache.groups[0].block_size):
        formula = "⌈{max_model_len} / {block_size}⌉"
    elif len(cache.groups) > 1 and divisor == growing + fixed:
        formula = "{growing_blocks} + {fixed_blocks}"
    request = Quantity(
        name="blocks_per_request",
        value=divisor,
        unit=Unit.BLOCKS,
        formula=formula,
        inputs=(length, block_size, given("growing_blocks", growing), given("fixed_blocks", fixed)),
        grade=Grade.EXACT,
        source="vllm/v1/kv_cache_interface.py (0.33.0)",
    )
    inputs: tuple[Quantity, ...]
    if tokens_rule:
        formula = "{blocks} × {block_size} / {max_model_len}"
        inputs = (blocks, given("block_size", resolved.block_size), length)
        is_right = cache.num_blocks * resolved.block_size / resolved.max_model_len == cache.max_concurrency
    else:
        formula, inputs = "{blocks} / {blocks_per_request}", (blocks, request)
        is_right = bool(divisor) and math.isclose(
            cache.num_blocks / divisor, cache.max_concurrency, rel_tol=1e-9
        )
    concurrency = Quantity(
        name="concurrency",
        value=cache.max_concurrency,
        unit=Unit.REQUESTS,
        scope=Scope.PER_REPLICA,
        formula=formula if is_right else "",
        inputs=inputs,
        grade=plan_grade(plan),
        source=_PLANNER,
    )
    return (request, concurrency)


def shorter_length(plan: Plan) -> int:
    """Tokens of the shorter request."""
    return max(1, plan.resolved.max_model_len // SHORTER)


def shorter_concurrency(plan: Plan) -> float:
    """Requests of the shorter length that fit at once; 0 without memory for the KV cache."""
    if not plan.available_kv_bytes or plan.available_kv_bytes <= 0:
        return 0.0
    return max_concurrency_at(
        plan.specs, plan.available_kv_bytes, plan.resolved, plan.scenario.parallel, (shorter_length(plan),)
    )[0]


def _shorter(plan: Plan, cache: CachePlan) -> tuple[Quantity, ...]:
    length, held = shorter_length(plan), shorter_concurrency(plan)
    seats = plan.resolved.max_num_seqs
    size = cache.groups[0].block_size
    needed = ceil_div(length, size) if len(cache.groups) == 1 or not held else round(cache.num_blocks / held)
    is_quotient = math.isclose(cache.num_blocks / needed, held, rel_tol=1e-9)
    shorter = Quantity(
        name="typical_concurrency",
        value=held,
        unit=Unit.REQUESTS,
        scope=Scope.PER_REPLICA,
        formula="{blocks} / {typical_blocks}" if is_quotient else "",
        inputs=(
            given("blocks", cache.num_blocks, Unit.BLOCKS),
            given("typical_blocks", needed, Unit.BLOCKS),
        ),
        grade=plan_grade(plan),
        source=_PLANNER,
    )
    running = Quantity(
        name="running",
        value=min(math.floor(held), seats),
        unit=Unit.REQUESTS,
        scope=Scope.PER_REPLICA,
        formula="min(⌊{typical_concurrency}⌋, {max_num_seqs})",
        inputs=(shorter, given("max_num_seqs", seats)),
        grade=plan_grade(plan),
        source="vllm/v1/core/sched/scheduler.py (0.32.0)",
    )
    return (shorter, running)


def _remarks(plan: Plan, cache: CachePlan, t: Words) -> tuple[str, ...]:
    held, seats = shorter_concurrency(plan), plan.resolved.max_num_seqs
    found = [
        t(
            "Of {tokens} tokens, a quarter of the full length, {count} fit.",
            tokens=count(shorter_length(plan)),
            count=concurrency_text(held),
        )
    ]
    if cache.max_concurrency >= seats:
        found.append(
            t(
                "More full-length requests fit than `--max-num-seqs` allows to run: here it is "
                "the limit, not memory."
            )
        )
    elif held >= seats:
        found.append(
            t("For the shorter ones `--max-num-seqs` is the limit, for full-length ones memory.")
        )  # fmt: skip
    if not cache.fits:
        found.append(t("One request of full length does not fit, so the engine refuses to start."))
    return tuple(found)


def _slips(plan: Plan, cache: CachePlan, t: Words) -> tuple[Slip, ...]:
    ranks = plan.scenario.parallel.tensor_parallel_size
    if ranks == 1:
        return ()
    return (
        Slip(
            value=cache.max_concurrency * ranks,
            reason=t("Every request is spread over all GPUs: they do not add up."),
        ),
    )
