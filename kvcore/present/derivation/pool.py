"""Step 6: from bytes to blocks to tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.cache.capacity import CachePlan
from kvcore.cache.rules import planner_rules
from kvcore.cache.spec import demand_of
from kvcore.planning import Plan
from kvcore.present.derivation.equation import equation, given
from kvcore.present.derivation.parts import no_card
from kvcore.present.derivation.step import Content, Prediction, Slip, part
from kvcore.present.explain import any_cache, given_kv_grade
from kvcore.present.text import Words, count, exact_gib_text, gib_text, sentences
from kvcore.quantity import Grade, Quantity, Scope, Unit, format_bytes
from kvcore.units import ceil_div

_PLANNER: Final = "vllm/v1/core/kv_cache_utils.py (0.32.0)"
_PAGES: Final = "vllm/v1/core/kv_cache_planning.py:get_kv_cache_config_from_groups (0.33.0)"


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
    per_block = bytes_per_block(cache)
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
    blocks = blocks_of(plan, held)
    tokens = tokens_of(plan, held, blocks)
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
        equations=tuple(equation(quantity, t) for quantity in (per_block, blocks, tokens)),
        remarks=(*_rest(available, held, blocks, t), *_remarks(held, tokens, t)),
    )


def bytes_per_block(cache: CachePlan) -> Quantity:
    """One block: a page of each layer of the widest group."""
    widest = max(cache.groups, key=lambda group: group.layers)
    is_product = widest.layers * widest.page_size_bytes == cache.bytes_per_block
    return Quantity(
        name="bytes_per_block",
        value=cache.bytes_per_block,
        unit=Unit.BYTES,
        formula="{layers} × {page_size_bytes}" if is_product else "",
        inputs=(
            given("layers", widest.layers),
            given("page_size_bytes", widest.page_size_bytes, Unit.BYTES),
        ),
        grade=Grade.EXACT,
        source=_PAGES,
    )


def blocks_of(plan: Plan, cache: CachePlan) -> Quantity:
    """⌊available / block⌋; without a formula where another stage or a flag decides."""
    available = plan.available_kv_bytes or 0
    is_floor = (
        plan.resolved.num_gpu_blocks_override is None
        and cache.num_blocks == available // cache.bytes_per_block
    )
    return Quantity(
        name="blocks",
        value=cache.num_blocks,
        unit=Unit.BLOCKS,
        scope=Scope.PER_REPLICA,
        formula="⌊{available_kv} / {bytes_per_block}⌋" if is_floor else "",
        inputs=(
            given("available_kv", available, Unit.BYTES, plan_grade(plan)),
            given("bytes_per_block", cache.bytes_per_block, Unit.BYTES),
        ),
        grade=plan_grade(plan),
        source=_PLANNER,
    )


def plan_grade(plan: Plan) -> Grade:
    """How well the memory for the KV cache is known."""
    return given_kv_grade(plan) if plan.memory is None else plan.memory.available_kv.grade


def tokens_of(plan: Plan, cache: CachePlan, blocks: Quantity) -> Quantity:
    """The figure behind "GPU KV cache size", by the rule of this version.

    Source: vllm/v1/core/kv_cache_utils.py:report_kv_cache_config (0.11.0, 0.33.0).
    """
    resolved = plan.resolved
    rule = planner_rules(resolved.version).reported_tokens
    ranks = demand_of(resolved, plan.scenario.parallel).context_ranks
    size, groups = resolved.block_size, len(cache.groups)
    formula = ""
    inputs: tuple[Quantity, ...] = ()
    if (resolved.is_v0 or groups == 1) and cache.num_blocks * size * ranks == cache.tokens:
        formula = "{blocks} × {block_size}" + (" × {context_ranks}" if ranks > 1 else "")
        inputs = (blocks, given("block_size", size), given("context_ranks", ranks))
    elif rule == "concurrency" and int(cache.max_concurrency * resolved.max_model_len) == cache.tokens:
        formula = "⌊{blocks} × {max_model_len} / {blocks_per_request}⌋"
        inputs = (
            blocks,
            given("max_model_len", resolved.max_model_len),
            given("blocks_per_request", blocks_of_request(plan, cache)),
        )
    elif cache.num_blocks * size == cache.tokens:
        formula = "{blocks} × {block_size}"
        inputs = (blocks, given("block_size", size))
    else:
        smallest = min(group.block_size for group in cache.groups)
        if cache.num_blocks // groups * smallest * ranks == cache.tokens:
            formula = "⌊{blocks} / {group_count}⌋ × {block_size}" + (
                " × {context_ranks}" if ranks > 1 else ""
            )
            inputs = (
                blocks, given("group_count", groups), given("block_size", smallest), given("context_ranks", ranks),
            )  # fmt: skip
    return Quantity(
        name="tokens",
        value=cache.tokens,
        unit=Unit.TOKENS,
        scope=Scope.PER_REPLICA,
        formula=formula,
        inputs=inputs,
        grade=plan_grade(plan),
        source=_PLANNER,
    )


def blocks_of_request(plan: Plan, cache: CachePlan) -> int:
    """Blocks of one request of full length, as the version's own figure of concurrency counts them.

    Source: vllm/v1/core/kv_cache_utils.py:get_max_concurrency_for_kv_cache_config (0.11.0, 0.32.0).
    """
    blocks = sum(group.blocks_per_request for group in cache.groups)
    rule = planner_rules(plan.resolved.version).reported_concurrency
    if rule != "bytes" or len(cache.groups) == 1:
        return blocks
    taken = sum(group.blocks_per_request * group.page_size_bytes for group in cache.groups)
    return ceil_div(taken, cache.groups[0].page_size_bytes)


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
    if not blocks.formula:
        return ()
    return (
        t(
            "Rounding down drops {size}, less than one block of {block}.",
            size=format_bytes(available - cache.num_blocks * cache.bytes_per_block),
            block=format_bytes(cache.bytes_per_block),
        ),
    )


def _remarks(cache: CachePlan, tokens: Quantity, t: Words) -> tuple[str, ...]:
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
