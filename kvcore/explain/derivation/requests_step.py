"""Step 7: how many requests fit in the pool, of full length and of a shorter one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from kvcore.cache.capacity import CachePlan
from kvcore.explain.derivation.equation import equation
from kvcore.explain.derivation.lesson import Content, Prediction, Slip
from kvcore.explain.derivation.parts_step import no_card
from kvcore.planning import Plan
from kvcore.quantity import Quantity, Scope, Unit, given
from kvcore.texts.words import Words, concurrency_text, count

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
    return Content(
        question=question,
        idea=idea,
        prediction=Prediction(
            question=prediction.question,
            unit=prediction.unit,
            answer=cache.max_concurrency,
            slips=_slips(plan, cache, t),
        ),
        equations=tuple(equation(quantity, t) for quantity in _quantities(plan, cache)),
        remarks=_remarks(plan, cache, t),
    )


def shorter_length(plan: Plan) -> int:
    """Tokens of the shorter request."""
    return max(1, plan.resolved.max_model_len // SHORTER)


def shorter_concurrency(plan: Plan) -> float:
    """Requests of the shorter length that fit at once; 0 without memory for the KV cache."""
    if plan.cache is None or not plan.cache.num_blocks:
        return 0.0
    return plan.cache.concurrency_at(shorter_length(plan)).value if plan.cache.groups else math.inf


def _quantities(plan: Plan, cache: CachePlan) -> tuple[Quantity, ...]:
    """Blocks of a request of full length, how many such fit in the pool, and how many shorter ones run."""
    full, shorter = cache.figures.concurrency, cache.concurrency_at(shorter_length(plan))
    counted = (one for one in full.inputs if one.name == "counted_blocks_per_request")
    seats = given("max_num_seqs", plan.resolved.max_num_seqs)
    running = Quantity(
        name="running",
        value=min(math.floor(shorter.value), plan.resolved.max_num_seqs),
        unit=Unit.REQUESTS,
        scope=Scope.PER_REPLICA,
        formula="min(⌊{typical_concurrency}⌋, {max_num_seqs})",
        inputs=(shorter, seats),
        grade=shorter.grade,
        source="vllm/v1/core/sched/scheduler.py (0.32.0)",
    )
    return (cache.figures.blocks_per_request, *counted, full, shorter, running)


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
