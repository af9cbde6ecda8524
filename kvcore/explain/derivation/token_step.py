"""Step 5: what one token's keys and values take, by kind of layer."""

from __future__ import annotations

from typing import Final

from kvcore.cache.capacity import CachePlan
from kvcore.cache.kv_formats import kv_format
from kvcore.cache.spec import FULL_KINDS, WINDOW_KINDS, CacheKind, LayerSpec, demand_of
from kvcore.explain.derivation.equation import equation
from kvcore.explain.derivation.lesson import Content, Prediction, Slip
from kvcore.explain.numbers import any_cache, bytes_per_token_in_all
from kvcore.model.architecture import Mla
from kvcore.planning import Plan
from kvcore.quantity import Quantity
from kvcore.texts.words import Words, count, gib_text, kib_text
from kvcore.units import KIB

_BITS: Final = 8


def token_content(plan: Plan, t: Words) -> Content:
    """Bytes of a further token on one GPU, and what does not grow with a request."""
    cache = any_cache(plan)
    question = t("What does one token cost?")
    if cache is None or not cache.groups:
        return Content(
            question=question,
            idea=t("This model keeps nothing of a request between two steps."),
            prediction=Prediction(question=t("How much does one token take on one GPU?"), unit="KiB"),
            missing=t("There is no KV cache to derive."),
        )
    figures = cache.figures
    per_token = figures.bytes_per_token
    is_whole = plan.scenario.parallel.ranks_per_replica == 1 or not per_token.value
    shown = [
        *([figures.layer_token] if figures.layer_token is not None else []),
        per_token,
        *([] if is_whole else [bytes_per_token_in_all(plan)]),
        *((*figures.bounded_blocks, figures.request_fixed) if cache.request_fixed_bytes else ()),
    ]
    return Content(
        question=question,
        idea=_idea(plan, t),
        points=_points(plan, t),
        prediction=Prediction(
            question=t("How much does one further token of a request take on one GPU?"),
            unit="KiB",
            answer=per_token.value / KIB,
            slips=_slips(plan, per_token, t),
        ),
        equations=tuple(equation(quantity, t) for quantity in shown),
        remarks=_remarks(plan, cache, t),
    )


def _idea(plan: Plan, t: Words) -> str:
    architecture = plan.architecture
    latent = _latent_state(plan)
    if latent is not None:
        return t(
            "This model has latent attention (MLA): each layer keeps one compressed vector per token, {rank} "
            "numbers and {rope} for the position, instead of keys and values of {heads} heads.",
            rank=count(latent.kv_lora_rank),
            rope=count(latent.qk_rope_head_dim),
            heads=count(architecture.num_attention_heads),
        )
    if not any(spec.kind in FULL_KINDS for spec in _stage_specs(plan)):
        return t(
            "No layer of this model keeps every token: beyond some length, a request takes no more memory."
        )
    return t(
        "For every token, each attention layer keeps one key and one value per KV head, so that "
        "later tokens need not compute them again. Query heads keep nothing. This model has "
        "{heads} query heads and {kv_heads} KV heads; only the KV heads count, divided over the "
        "GPUs.",
        heads=count(architecture.num_attention_heads),
        kv_heads=count(architecture.num_kv_heads),
    )


def _points(plan: Plan, t: Words) -> tuple[str, ...]:
    kinds = {spec.kind for spec in _stage_specs(plan)}
    layers = {kind: sum(spec.layers for spec in _stage_specs(plan) if spec.kind is kind) for kind in kinds}
    ranks, heads = plan.scenario.parallel.tensor_parallel_size, plan.architecture.num_kv_heads
    found = []
    shared = demand_of(plan.resolved, plan.scenario.parallel).context_ranks
    if _latent_state(plan) is not None and ranks > 1 and shared == 1:
        found.append(
            t(
                "Tensor parallelism does not divide the vector: each of the {ranks} GPUs stores a copy.",
                ranks=str(ranks),
            )
        )
    if shared > 1:
        found.append(t("{ranks} GPUs share the tokens of each request.", ranks=str(shared)))
    if _latent_state(plan) is None and 0 < heads < ranks:
        found.append(
            t(
                "{ranks} GPUs share {heads} KV heads: each GPU keeps one, so more GPUs no longer make a token "
                "cheaper.",
                ranks=str(ranks),
                heads=str(heads),
            )
        )
    windows = sum(layers[kind] for kind in kinds & WINDOW_KINDS)
    if windows:
        found.append(
            t(
                "{count} layers use a sliding window. What they keep stops growing once it is full.",
                count=count(windows),
            )
        )
    if CacheKind.CHUNKED_LOCAL_ATTENTION in kinds:
        found.append(
            t(
                "{count} layers attend to the current chunk only and keep nothing of earlier chunks.",
                count=count(layers[CacheKind.CHUNKED_LOCAL_ATTENTION]),
            )
        )
    if CacheKind.MAMBA in kinds:
        found.append(
            t(
                "{count} layers keep a recurrent state of fixed size, however long the request is.",
                count=count(layers[CacheKind.MAMBA]),
            )
        )
    if CacheKind.CROSS_ATTENTION in kinds:
        found.append(
            t("Cross attention layers keep the encoder's output; its length follows the audio or image.")
        )
    return tuple(found)


def _stage_specs(plan: Plan) -> tuple[LayerSpec, ...]:
    """The cache specs of the stage with the most bytes per block, which the figures are those of."""
    return max(plan.specs, key=lambda specs: sum(spec.layers * spec.page_size_bytes for spec in specs))


def _latent_state(plan: Plan) -> Mla | None:
    layers = dict.fromkeys(plan.architecture.layers)
    return next((cache for layer in layers for cache in layer.caches if isinstance(cache, Mla)), None)


def _remarks(plan: Plan, cache: CachePlan, t: Words) -> tuple[str, ...]:
    length = plan.resolved.max_model_len
    found = [
        t(
            "A request of {tokens} tokens takes {size} on one GPU.",
            tokens=count(length),
            size=gib_text(cache.needed_bytes),
        )
    ]
    if cache.request_fixed_bytes and cache.bytes_per_token:
        found.append(
            t(
                "Of that, {fixed} are fixed: they do not grow with the request.",
                fixed=gib_text(cache.request_fixed_bytes),
            )
        )
    return tuple(found)


def _slips(plan: Plan, per_token: Quantity, t: Words) -> tuple[Slip, ...]:
    architecture, parallel = plan.architecture, plan.scenario.parallel
    if not per_token.value:
        return ()
    element = kv_format(plan.resolved.kv_cache_dtype).key_bits / _BITS
    by_hidden_size = 2 * architecture.num_layers * architecture.hidden_size * element
    reason = t(
        "That is the formula with the hidden size, {size}: it counts all query heads.",
        size=count(architecture.hidden_size),
    )
    sizes = (by_hidden_size, by_hidden_size / parallel.tensor_parallel_size)
    found = [Slip(value=size / KIB, reason=reason) for size in sizes]
    found.append(Slip(value=per_token.value / 2 / KIB, reason=t("Keys and values: is the factor 2 there?")))
    if parallel.ranks_per_replica > 1:
        whole = bytes_per_token_in_all(plan).value
        found.append(
            Slip(value=whole / KIB, reason=t("That is {size} on all GPUs together.", size=kib_text(whole)))
        )
    answer = per_token.value / KIB
    return tuple(slip for slip in found if slip.value != answer)
