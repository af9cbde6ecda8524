"""Step 8: what breaks first, at start or at run time, and exercises."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.engine.vllm.metrics import exported_metrics
from kvcore.explain.derivation.equation import equation
from kvcore.explain.derivation.exercises import exercises
from kvcore.explain.derivation.lesson import Content, Option, Prediction, part
from kvcore.planning import Plan, Verdict
from kvcore.quantity import Grade, Quantity, Scope, Unit, given, weakest
from kvcore.texts.words import Words, concurrency_text, count, gib_text, msg

START, BLOCKS, SEATS = "start", "blocks", "seats"
OPTIONS: Final = {
    START: msg("The engine does not even start"),
    BLOCKS: msg("The blocks run out: requests wait or are preempted"),
    SEATS: msg("max_num_seqs is reached: requests wait while blocks are free"),
}
_REFUSED: Final = (Verdict.WEIGHTS_DO_NOT_FIT, Verdict.NO_KV_MEMORY, Verdict.CONTEXT_TOO_LONG)


def limits_content(plan: Plan, t: Words) -> Content:
    """Out of memory at start against preemption at run time."""
    cache = plan.cache
    content = Content(
        question=t("What breaks first?"),
        idea=t(
            "Two things are called “out of memory”. At start the engine refuses when the weights exceed the "
            "budget, when nothing is left for the {kv_cache}, or when one request of full length does not fit. At "
            "run time the pool cannot overflow: when no block is free, the engine preempts a request, takes its "
            "blocks away and computes them again later. That costs time, not the process.",
            kv_cache=part("kv_cache"),
        ),
        prediction=Prediction(
            question=t("More and more requests of full length arrive. What happens first?"),
            options=tuple(Option(name=name, label=t(label)) for name, label in OPTIONS.items()),
        ),
        points=_points(plan, t),
    )
    if plan.memory is None and plan.available_kv_bytes is None:
        missing = t("This scenario names no card, so its memory is unknown: choose one in the sidebar.")
        return replace(content, missing=missing)
    content = replace(
        content,
        prediction=replace(content.prediction, answer_option=first_limit(plan)),
        exercises=exercises(plan, t),
        remarks=_remarks(plan, t),
    )
    if cache is None or not cache.groups or not cache.num_blocks:
        return content
    return replace(content, equations=tuple(equation(quantity, t) for quantity in _quantities(plan)))


def first_limit(plan: Plan) -> str:
    """What stops requests of full length: the start itself, the blocks, or max_num_seqs."""
    cache = plan.cache
    if plan.verdict in _REFUSED:
        return START
    if cache is None or not cache.groups or cache.max_concurrency >= plan.resolved.max_num_seqs:
        return SEATS
    return BLOCKS


def _quantities(plan: Plan) -> tuple[Quantity, ...]:
    cache = plan.cache
    assert cache is not None, "asked only of plans with blocks"
    needed, request = cache.figures.needed, cache.figures.blocks_per_request
    available = plan.stage_kv[plan.stage]
    spare = Quantity(
        name="spare",
        value=available.value - needed.value,
        unit=Unit.BYTES,
        formula="{available_kv} − {needed}",
        inputs=(available, needed),
        grade=weakest((available, needed)),
        source=needed.source,
    )
    seats = given("max_num_seqs", plan.resolved.max_num_seqs)
    wanted = Quantity(
        name="wanted_blocks",
        value=seats.value * request.value,
        unit=Unit.BLOCKS,
        scope=Scope.PER_REPLICA,
        formula="{max_num_seqs} × {blocks_per_request}",
        inputs=(seats, request),
        grade=Grade.EXACT,
    )
    return (needed, spare, wanted)


def _points(plan: Plan, t: Words) -> tuple[str, ...]:
    metrics = exported_metrics(plan.resolved.version, plan.resolved.is_v0)
    found = [
        t(
            "A crash at run time comes from outside the pool: {cuda_graphs} and kernels beyond the budget, or "
            "another process on the same GPU. Lower the utilization then; a smaller context length does not help.",
            cuda_graphs=part("cuda_graphs"),
        )
    ]
    if "preemptions" in metrics and "kv_cache_usage" in metrics:
        found.append(
            t(
                "Watch {usage} and {preemptions}; the memory that `nvidia-smi` shows says nothing about requests.",
                usage=f"`{metrics['kv_cache_usage'].name}`",
                preemptions=f"`{metrics['preemptions'].name}`",
            )
        )
    return tuple(found)


def _remarks(plan: Plan, t: Words) -> tuple[str, ...]:
    cache, memory, seats = plan.cache, plan.memory, plan.resolved.max_num_seqs
    found = []
    match plan.verdict:
        case Verdict.WEIGHTS_DO_NOT_FIT:
            found.append(t("Here the weights alone exceed the budget: the engine fails while it loads."))
        case Verdict.NO_KV_MEMORY:
            found.append(
                t("Here the weights load, but nothing is left for the KV cache: the engine refuses to start.")
            )
        case Verdict.CONTEXT_TOO_LONG if cache is not None:
            found.append(
                t(
                    "Here one request of full length does not fit: the engine refuses to start, and names "
                    "{longest} tokens as the longest it could take.",
                    longest=count(cache.longest_request_tokens),
                )
            )
    if not found and cache is not None and cache.groups:
        held = concurrency_text(cache.max_concurrency)
        if first_limit(plan) == BLOCKS:
            found.append(
                t(
                    "Here the blocks run out first: {held} requests of full length fit, {seats} are "
                    "allowed to run. The rest wait, or are preempted while they grow.",
                    held=held,
                    seats=count(seats),
                )
            )
        else:
            found.append(
                t(
                    "Here `--max-num-seqs` comes first: {held} requests of full length would fit, "
                    "{seats} are allowed to run.",
                    held=held,
                    seats=count(seats),
                )
            )
    if memory is not None and memory.unused.value < 0 <= (plan.available_kv_bytes or -1):
        found.append(
            t(
                "In total the parts need {size} more than the card has: expect a crash during "
                "graph capture or later.",
                size=gib_text(-memory.unused.value),
            )
        )
    return tuple(found)
