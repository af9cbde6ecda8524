"""Step 6: from bytes to blocks to tokens."""

from __future__ import annotations

from dataclasses import replace

from kvcore.cache.capacity import CachePlan
from kvcore.explain.derivation.equation import equation
from kvcore.explain.derivation.lesson import Content, Prediction, Slip, part
from kvcore.explain.derivation.parts_step import no_card
from kvcore.explain.numbers import any_cache
from kvcore.planning import Plan
from kvcore.quantity import Quantity, format_bytes
from kvcore.texts.words import Words, count, exact_gib_text, gib_text, sentences


def pool_content(plan: Plan, t: Words) -> Content:
    """Blocks and tokens of the pool, with what the floor throws away."""
    cache, size = any_cache(plan), count(plan.resolved.block_size)
    question = t("How many tokens fit in the KV cache?")
    is_one_group = cache is None or len(cache.groups) < 2
    idea = sentences(
        t,
        (
            t("The engine allocates blocks, not bytes: {size} tokens in all layers at once.", size=size)
            if is_one_group
            else t(
                "The engine allocates blocks, not bytes: {size} tokens in the layers of one group.",
                size=size,
            ),
            t(
                "It cuts what is left into whole blocks and drops the rest. The {kv_cache} is reserved once, at "
                "start, whatever `--max-model-len`; a request takes another block whenever its last one is full.",
                kv_cache=part("kv_cache"),
            ),
        ),
    )
    prediction = Prediction(question=t("How many tokens fit into what is left?"), unit=t("tokens"))
    if cache is None or not cache.groups:
        return Content(
            question=question, idea=idea, prediction=prediction, missing=t("There is no KV cache to derive.")
        )
    per_block = cache.figures.bytes_per_block
    if plan.available_kv_bytes is None:
        missing = no_card(t)
        return Content(
            question=question,
            idea=idea,
            prediction=prediction,
            equations=(equation(per_block, t),),
            missing=missing,
        )
    available, held = plan.available_kv_bytes, plan.cache
    if held is None or not held.num_blocks:
        return Content(
            question=question,
            idea=idea,
            prediction=replace(prediction, answer=0.0),
            equations=(equation(per_block, t),),
            missing=t(
                "{size} is left for the KV cache: not one block. The parts before it have to become smaller.",
                size=gib_text(available),
            ),
        )
    blocks, tokens = held.figures.blocks, held.figures.tokens
    stages = blocks.inputs if blocks.formula.startswith("min(") else ()
    shown = (*_padded_pages(per_block), per_block, *stages, blocks, tokens)
    return Content(
        question=question,
        idea=idea,
        points=_points(plan, held, t),
        prediction=Prediction(
            question=t(
                "{size} is left on one GPU, and a token takes what the last step says. How many tokens fit?",
                size=exact_gib_text(available),
            ),
            unit=t("tokens"),
            answer=float(held.tokens),
            slips=_slips(plan, held, t),
        ),
        equations=tuple(equation(quantity, t) for quantity in shown),
        remarks=(*_rest(available, held, blocks, t), *_remarks(held, tokens, plan.resolved.block_size, t)),
    )


def _padded_pages(per_block: Quantity) -> tuple[Quantity, ...]:
    """Pages that are larger than what they store."""
    return tuple(page for page in per_block.inputs if "{padding}" in page.formula)


def _points(plan: Plan, cache: CachePlan, t: Words) -> tuple[str, ...]:
    found = []
    if plan.scenario.parallel.pipeline_parallel_size > 1:
        found.append(t("Every pipeline stage keeps as many blocks; the stage with the fewest decides."))
    if plan.resolved.num_gpu_blocks_override is not None:
        found.append(t("`--num-gpu-blocks-override` gives the number of blocks, whatever the memory."))
    if len(cache.groups) > 1:
        found.append(
            t(
                "The layers form {count} groups that share the pool. A request takes blocks for each group.",
                count=str(len(cache.groups)),
            )
        )
    return tuple(found)


def _rest(available: int, cache: CachePlan, blocks: Quantity, t: Words) -> tuple[str, ...]:
    if not blocks.formula.startswith("⌊"):
        return ()
    return (
        t(
            "Rounding down drops {size}, less than one block of {block}.",
            size=format_bytes(available - cache.num_blocks * cache.bytes_per_block),
            block=format_bytes(cache.bytes_per_block),
        ),
    )


def _remarks(cache: CachePlan, tokens: Quantity, block_size: int, t: Words) -> tuple[str, ...]:
    found = [
        t(
            "The engine prints this as “GPU KV cache size”: {tokens} tokens, of all requests together.",
            tokens=count(cache.tokens),
        )
    ]
    if "max_model_len" in tokens.formula:
        found.append(
            t(
                "Here it prints requests × full length, because not all layers keep every token; the next step "
                "counts the requests."
            )
            if len(cache.groups) > 1
            else t(
                "It multiplies requests of full length by that length: blocks × {size}, but for what their last blocks "
                "leave empty.",
                size=count(block_size),
            )
        )
    return tuple(found)


def _slips(plan: Plan, cache: CachePlan, t: Words) -> tuple[Slip, ...]:
    found = [Slip(value=float(cache.num_blocks), reason=t("That is the number of blocks."))]
    ranks = plan.scenario.parallel.tensor_parallel_size
    if ranks > 1:
        found.append(
            Slip(
                value=float(cache.tokens * ranks),
                reason=t("Every GPU keeps its share of the same tokens: they do not add up over the GPUs."),
            )
        )
    return tuple(found)
