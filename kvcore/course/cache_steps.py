"""Steps of the cache: bytes of a token, and tokens of the pool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from kvcore.base.numbers import count, exact_gib_text, format_bytes, gib_text, kib_text
from kvcore.base.quantity import Quantity
from kvcore.base.units import KIB
from kvcore.base.words import sentences
from kvcore.cache.capacity import CachePlan
from kvcore.cache.kv_formats import kv_format
from kvcore.cache.spec import (
    FULL_KINDS,
    WINDOW_KINDS,
    CacheKind,
    LayerSpec,
    chunk_tokens,
    demand_of,
    window_tokens,
)
from kvcore.course.equation import equations
from kvcore.course.lesson import Content, Lesson, Prediction, Slip, StepName
from kvcore.explain.numbers import any_cache, bytes_per_token_in_all
from kvcore.model.caches import Mla
from kvcore.planning import Plan

_BITS: Final = 8


def token_content(lesson: Lesson) -> Content:
    """Bytes of a further token on one GPU, by kind of layer, and what does not grow with a request."""
    base, say = lesson.plan, lesson.say
    cache = any_cache(base)
    if cache is None or not cache.groups:
        return Content(
            question=say("token-question"),
            idea=say("token-idea-nothing"),
            prediction=Prediction(question=say("token-guess-nothing"), unit="KiB"),
            missing=say("no-cache"),
        )
    figures, per_token = cache.figures, cache.figures.bytes_per_token
    is_whole = base.scenario.parallel.ranks_per_replica == 1 or not per_token.value
    shown = [
        *([figures.layer_token] if figures.layer_token is not None else []),
        per_token,
        *([] if is_whole else [bytes_per_token_in_all(base)]),
        *((*figures.bounded_blocks, figures.request_fixed) if cache.request_fixed_bytes else ()),
    ]
    content = lesson.content(
        StepName.TOKEN,
        unit="KiB",
        heads=count(base.architecture.num_attention_heads),
        kv_heads=count(base.architecture.num_kv_heads),
    )
    return replace(
        content.answered(answer=per_token.value / KIB, slips=tuple(_token_slips(lesson, per_token))),
        idea=_other_token_idea(lesson) or content.idea,
        points=tuple(_token_points(lesson)),
        equations=equations(lesson.t, *shown),
        remarks=tuple(_token_remarks(lesson, cache)),
    )


def _other_token_idea(lesson: Lesson) -> str:
    """The idea for a model whose growing cache is not the keys and values of heads; "" for the others."""
    latent = _latent_state(lesson.plan)
    if latent is not None:
        return lesson.say(
            "token-idea-latent",
            rank=count(latent.kv_lora_rank),
            rope=count(latent.qk_rope_head_dim),
            heads=count(lesson.plan.architecture.num_attention_heads),
        )
    grows = any(spec.kind in FULL_KINDS for spec in _stage_specs(lesson.plan))
    return "" if grows else lesson.say("token-idea-bounded")


def _token_points(lesson: Lesson) -> Iterator[str]:
    base, say = lesson.plan, lesson.say
    layers = dict.fromkeys(CacheKind, 0)
    for spec in _stage_specs(base):
        layers[spec.kind] += spec.layers
    ranks, heads = base.scenario.parallel.tensor_parallel_size, base.architecture.num_kv_heads
    shared, is_latent = (
        demand_of(base.resolved, base.scenario.parallel).context_ranks,
        _latent_state(base) is not None,
    )
    if is_latent and ranks > 1 and shared == 1:
        yield say("token-latent-copied", ranks=str(ranks))
    if shared > 1:
        yield say("token-shared", ranks=str(shared))
    if not is_latent and 0 < heads < ranks:
        yield say("token-heads-copied", ranks=str(ranks), heads=str(heads))
    if windows := sum(layers[kind] for kind in WINDOW_KINDS):
        yield say("token-windows", count=count(windows))
    if chunks := layers[CacheKind.CHUNKED_LOCAL_ATTENTION]:
        yield say("token-chunks", count=count(chunks))
    if states := layers[CacheKind.MAMBA]:
        yield say("token-states", count=count(states))
    if layers[CacheKind.CROSS_ATTENTION]:
        yield say("token-encoder")


def _stage_specs(base: Plan) -> tuple[LayerSpec, ...]:
    """The cache specs of the stage with the most bytes per block, which the figures are those of."""
    return max(base.specs, key=lambda specs: sum(spec.layers * spec.page_size_bytes for spec in specs))


def _latent_state(base: Plan) -> Mla | None:
    layers = dict.fromkeys(base.architecture.layers)
    return next((cache for layer in layers for cache in layer.caches if isinstance(cache, Mla)), None)


def _token_remarks(lesson: Lesson, cache: CachePlan) -> Iterator[str]:
    say, fixed = lesson.say, gib_text(cache.request_fixed_bytes)
    length, size = count(lesson.plan.resolved.max_model_len), gib_text(cache.needed_bytes)
    yield say("token-request", tokens=length, size=size)
    full_from = filled_from(cache)
    if full_from >= lesson.plan.resolved.max_model_len:
        yield say("token-filling", fixed=fixed, tokens=count(full_from))
        return
    for blocks in cache.figures.bounded_blocks:
        inputs = {one.name: count(int(one.value)) for one in blocks.inputs}
        if "sliding_window" in inputs:
            yield say("token-window-blocks", blocks=count(int(blocks.value)), **inputs)
            break
    if cache.request_fixed_bytes and cache.bytes_per_token:
        yield say("token-fixed", fixed=fixed, slope=kib_text(cache.bytes_per_token))


def filled_from(cache: CachePlan) -> int:
    """Tokens from which on no window or chunk of a request takes another block; 0 where there are none.

    Source: vllm/v1/kv_cache_interface.py:SlidingWindowSpec.max_memory_usage_bytes (0.33.0).
    """
    found = [0]
    for blocks in cache.figures.bounded_blocks:
        values = {one.name: int(one.value) for one in blocks.inputs}
        in_flight = values.get("in_flight_tokens", 0)
        if "sliding_window" in values:
            found.append(window_tokens(values["sliding_window"], in_flight))
        elif "attention_chunk_size" in values:
            found.append(chunk_tokens(values["attention_chunk_size"], in_flight))
    return max(found)


def _token_slips(lesson: Lesson, per_token: Quantity) -> Iterator[Slip]:
    base, architecture, parallel = lesson.plan, lesson.plan.architecture, lesson.plan.scenario.parallel
    if not per_token.value:
        return
    element = kv_format(base.resolved.kv_cache_dtype).key_bits / _BITS
    by_hidden_size = 2 * architecture.num_layers * architecture.hidden_size * element
    hidden_size = count(architecture.hidden_size)
    found = [
        lesson.slip(by_hidden_size / ranks / KIB, "token-slip-hidden-size", size=hidden_size)
        for ranks in (1, parallel.tensor_parallel_size)
    ]
    found.append(lesson.slip(per_token.value / 2 / KIB, "token-slip-pair"))
    if parallel.ranks_per_replica > 1:
        whole = bytes_per_token_in_all(base).value
        found.append(lesson.slip(whole / KIB, "token-slip-whole", size=kib_text(whole)))
    yield from (slip for slip in found if slip.value != per_token.value / KIB)


def pool_content(lesson: Lesson) -> Content:
    """From bytes to blocks to tokens of the pool, with what the floor throws away."""
    base, say = lesson.plan, lesson.say
    cache, block_size = any_cache(base), count(base.resolved.block_size)
    is_one_group = cache is None or len(cache.groups) < 2
    blocks_of = say("pool-idea-all-layers" if is_one_group else "pool-idea-one-group", size=block_size)
    content = lesson.content(StepName.POOL, unit=say("tokens"))
    content = replace(content, idea=sentences(lesson.t, (blocks_of, content.idea)))
    if cache is None or not cache.groups:
        return replace(content, missing=say("no-cache"))
    per_block, available, held = cache.figures.bytes_per_block, base.available_kv_bytes, base.cache
    if available is None or held is None or not held.num_blocks:
        content = replace(content, equations=equations(lesson.t, per_block))
        if available is None:
            return replace(content, missing=say("no-card"))
        return replace(content.answered(answer=0.0), missing=say("pool-no-block", size=gib_text(available)))
    blocks, tokens = held.figures.blocks, held.figures.tokens
    padded = (page for page in per_block.inputs if any(one.name == "padding" for one in page.inputs))
    stages = blocks.inputs if len(held.figures.stages) > 1 else ()
    ranks = base.scenario.parallel.tensor_parallel_size
    slips = [lesson.slip(float(held.num_blocks), "pool-slip-blocks")]
    if ranks > 1:
        slips.append(lesson.slip(float(held.tokens * ranks), "pool-slip-ranks"))
    question = say("pool-guess-of-size", size=exact_gib_text(available))
    requests: tuple[Quantity, ...] = ()
    if is_counted_in_requests(held):
        requests = blocks_of_a_request(held)
        question = say(
            "pool-guess-of-requests",
            size=exact_gib_text(available),
            block=format_bytes(held.bytes_per_block),
            tokens=count(held.max_model_len),
            blocks=count(int(requests[-1].value)),
        )
        slips = [*_slips_of_one_slope(lesson, held, available), *slips]
    content = content.answered(question=question, answer=float(held.tokens), slips=tuple(slips))
    return replace(
        content,
        points=tuple(_pool_points(lesson, held)),
        equations=equations(lesson.t, *padded, per_block, *stages, blocks, *requests, tokens),
        remarks=tuple(_pool_remarks(lesson, held, available)),
    )


def is_counted_in_requests(cache: CachePlan) -> bool:
    """Whether the tokens of the pool are requests × full length, and no product of blocks and their size."""
    has_parts = len(cache.groups) > 1 or bool(cache.request_fixed_bytes)
    return has_parts and _depends_on_length(cache.figures.tokens)


def _depends_on_length(quantity: Quantity) -> bool:
    return any(part.name == "max_model_len" for part in quantity.inputs)


def blocks_of_a_request(cache: CachePlan) -> tuple[Quantity, ...]:
    """Blocks of a request of full length, and where the engine counts them otherwise, as it counts them."""
    counted = (one for one in cache.figures.concurrency.inputs if one.name == "counted_blocks_per_request")
    return (cache.figures.blocks_per_request, *counted)


def _slips_of_one_slope(lesson: Lesson, cache: CachePlan, available: int) -> list[Slip]:
    """Memory divided by bytes per token, and blocks times their size: as if every layer kept every token."""
    by_blocks = float(cache.num_blocks * cache.groups[0].block_tokens)
    found = [lesson.slip(by_blocks, "pool-slip-one-group")] if len(cache.groups) > 1 else []
    if cache.bytes_per_token:
        size, fixed = available / cache.bytes_per_token, gib_text(cache.request_fixed_bytes)
        found.insert(0, lesson.slip(size, "pool-slip-per-token", fixed=fixed))
    return found


def _pool_points(lesson: Lesson, cache: CachePlan) -> Iterator[str]:
    if lesson.plan.scenario.parallel.pipeline_parallel_size > 1:
        yield lesson.say("pool-stages")
    if lesson.plan.resolved.num_gpu_blocks_override is not None:
        yield lesson.say("pool-override")
    if len(cache.groups) > 1:
        yield lesson.say("pool-groups", count=str(len(cache.groups)))
        widths = [pages for group in cache.trace.groups for pages in group.pages]
        bounded = [
            group.layers
            for group in cache.groups
            if group.kind in (*WINDOW_KINDS, CacheKind.CHUNKED_LOCAL_ATTENTION)
        ]
        if bounded and len(widths) == len(cache.groups) and len({size for _, size in widths}) == 1:
            yield lesson.say(
                "pool-groups-why",
                layers=count(sum(bounded)),
                groups=str(len(bounded)),
                widest=str(max(number for number, _ in widths)),
            )


def _pool_remarks(lesson: Lesson, cache: CachePlan, available: int) -> Iterator[str]:
    say, block_bytes = lesson.say, cache.bytes_per_block
    if lesson.plan.resolved.num_gpu_blocks_override is None and len(cache.figures.stages) == 1:
        dropped = available - cache.num_blocks * block_bytes
        yield say("pool-rest", size=format_bytes(dropped), block=format_bytes(block_bytes))
    yield say("pool-printed", tokens=count(cache.tokens))
    if is_counted_in_requests(cache):
        yield say("pool-printed-requests")
    elif _depends_on_length(cache.figures.tokens):
        yield say("pool-printed-product", size=count(lesson.plan.resolved.block_size))
