"""Step 5: what one token's keys and values take, by kind of layer."""

from __future__ import annotations

from typing import Final

from kvcore.cache.capacity import CachePlan
from kvcore.cache.formats import kv_format
from kvcore.cache.spec import FULL_KINDS, WINDOW_KINDS, CacheKind
from kvcore.planning import Plan
from kvcore.present.derivation.equation import equation, given
from kvcore.present.derivation.kept import (
    SPECS,
    demand_of_plan,
    fixed_part,
    growing_specs,
    latent_state,
    stage_specs,
)
from kvcore.present.derivation.step import Content, Prediction, Slip
from kvcore.present.explain import any_cache, bytes_per_token_in_all
from kvcore.present.text import Words, count, gib_text, kib_text
from kvcore.quantity import Grade, Quantity, Scope, Unit
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
    per_token, per_layer = _per_token(plan, cache), _per_layer(plan)
    whole = _in_all(plan, per_token)
    shown = [*per_layer, per_token, *([whole] if whole is not None else []), *fixed_part(plan, cache)]
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
    latent = latent_state(plan)
    if latent is not None:
        return t(
            "This model has latent attention (MLA): each layer keeps one compressed vector per token, {rank} "
            "numbers and {rope} for the position, instead of keys and values of {heads} heads.",
            rank=count(latent.kv_lora_rank),
            rope=count(latent.qk_rope_head_dim),
            heads=count(architecture.num_attention_heads),
        )
    if not any(spec.kind in FULL_KINDS for spec in stage_specs(plan)):
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
    kinds = {spec.kind for spec in stage_specs(plan)}
    layers = {kind: sum(spec.layers for spec in stage_specs(plan) if spec.kind is kind) for kind in kinds}
    ranks, heads = plan.scenario.parallel.tensor_parallel_size, plan.architecture.num_kv_heads
    found = []
    shared = demand_of_plan(plan).context_ranks
    if latent_state(plan) is not None and ranks > 1 and shared == 1:
        found.append(
            t(
                "Tensor parallelism does not divide the vector: each of the {ranks} GPUs holds a copy.",
                ranks=str(ranks),
            )
        )
    if shared > 1:
        found.append(t("{ranks} GPUs share the tokens of each request.", ranks=str(shared)))
    if latent_state(plan) is None and 0 < heads < ranks:
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


def _per_layer(plan: Plan) -> tuple[Quantity, ...]:
    """One token in one layer, where all growing layers are alike."""
    specs = growing_specs(plan)
    if len(specs) != 1:
        return ()
    spec = specs[0]
    value = spec.page_size_bytes / spec.block_size
    element_bytes = kv_format(spec.dtype).key_bits / _BITS if spec.dtype else 0
    latent = latent_state(plan)
    heads, key, values = spec.num_kv_heads, spec.head_size, spec.head_size_v
    element = given("element_bytes", element_bytes)
    forms: tuple[tuple[str, tuple[Quantity, ...], float], ...]
    if latent is not None and spec.kind is CacheKind.MLA_ATTENTION:
        rank, rope = latent.kv_lora_rank, latent.qk_rope_head_dim
        forms = (
            ("({latent_rank} + {rope_dim}) × {element_bytes}",
             (given("latent_rank", rank), given("rope_dim", rope), element), (rank + rope) * element_bytes),
        )  # fmt: skip
    else:
        head = given("kv_heads", heads)
        forms = (
            ("2 × {kv_heads} × {head_dim} × {element_bytes}", (head, given("head_dim", key), element),
             2 * heads * key * element_bytes if key == values else 0),
            ("{kv_heads} × ({key_dim} + {value_dim}) × {element_bytes}",
             (head, given("key_dim", key), given("value_dim", values), element),
             heads * (key + values) * element_bytes),
        )  # fmt: skip
    formula, inputs = next(
        ((formula, inputs) for formula, inputs, product in forms if product == value),
        (
            "{page_size_bytes} / {block_size}",
            (
                given("page_size_bytes", spec.page_size_bytes, Unit.BYTES),
                given("block_size", spec.block_size),
            ),
        ),
    )
    return (
        Quantity(
            name="layer_token_bytes", value=value, unit=Unit.BYTES, formula=formula, inputs=inputs, grade=Grade.EXACT,
            source=SPECS,
        ),
    )  # fmt: skip


def _per_token(plan: Plan, cache: CachePlan) -> Quantity:
    """One token in all layers: layers × one layer, or by the groups that grow where layers differ."""
    specs, ranks = growing_specs(plan), demand_of_plan(plan).context_ranks
    formula = ""
    inputs: tuple[Quantity, ...] = ()
    if len(specs) == 1:
        spec = specs[0]
        product = spec.layers * spec.page_size_bytes / spec.block_size / ranks
        if product == cache.bytes_per_token:
            formula = "{layers_of_kind} × {layer_token_bytes}" + (" / {context_ranks}" if ranks > 1 else "")
            per_layer = spec.page_size_bytes / spec.block_size
            inputs = (
                given("layers_of_kind", spec.layers),
                given("layer_token_bytes", per_layer, Unit.BYTES),
                given("context_ranks", ranks),
            )
    if not formula and cache.bytes_per_token:
        growing = [group for group in cache.groups if group.kind in FULL_KINDS]
        sizes = {group.block_size for group in growing}
        block = given("bytes_per_block", cache.bytes_per_block, Unit.BYTES)
        if len(sizes) == 1:
            size = sizes.pop()
            if cache.bytes_per_block * len(growing) / size / ranks == cache.bytes_per_token:
                formula = "{bytes_per_block} / {block_size}" if len(growing) == 1 else (
                    "{growing_groups} × {bytes_per_block} / {block_size}"
                )  # fmt: skip
                inputs = (block, given("growing_groups", len(growing)), given("block_size", size * ranks))
    return Quantity(
        name="bytes_per_token",
        value=cache.bytes_per_token,
        unit=Unit.BYTES,
        formula=formula,
        inputs=inputs,
        grade=Grade.EXACT,
        source=SPECS,
    )


def _in_all(plan: Plan, per_token: Quantity) -> Quantity | None:
    """One token on all GPUs of a replica, copies with it; None with one GPU."""
    parallel = plan.scenario.parallel
    if parallel.ranks_per_replica == 1 or not per_token.value:
        return None
    value = bytes_per_token_in_all(plan)
    ranks = parallel.tensor_parallel_size
    is_product = value == per_token.value * ranks
    return Quantity(
        name="bytes_per_token_in_all",
        value=value,
        unit=Unit.BYTES,
        scope=Scope.PER_REPLICA,
        formula="{bytes_per_token} × {tensor_parallel_size}" if is_product else "",
        inputs=(per_token, given("tensor_parallel_size", ranks)),
        grade=Grade.EXACT,
        source=SPECS,
    )


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
        found.append(
            Slip(
                value=bytes_per_token_in_all(plan) / KIB,
                reason=t("That is {size} on all GPUs together.", size=kib_text(bytes_per_token_in_all(plan))),
            )
        )
    answer = per_token.value / KIB
    return tuple(slip for slip in found if slip.value != answer)
