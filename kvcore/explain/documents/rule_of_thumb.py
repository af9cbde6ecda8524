"""Qwen3-32B on eight RTX 4090: tokens and requests from the memory of the cards."""

from __future__ import annotations

from math import prod
from operator import truediv
from typing import Final

from kvcore.base.quantity import Quantity, Unit, explained, given
from kvcore.base.term import left_of
from kvcore.base.units import GB
from kvcore.cache.kv_formats import keys_and_values
from kvcore.engine.setting import DTYPE_BYTES
from kvcore.explain.documents.recomputed import (
    Recomputed,
    all_ranks,
    bytes_of,
    cache_of,
    memory_of,
    number,
    oldest,
    planned,
    whole_tokens,
)
from kvcore.planning import Plan

PARAMETERS_BILLION: Final = 32


def figures() -> dict[str, Recomputed]:
    """Of tokens and requests from the memory of eight cards."""
    thumb, real = planned("rule-of-thumb"), planned("planned-qwen")
    cache = cache_of(real)
    config, cards = thumb.scenario.config.raw, thumb.scenario.parallel.tensor_parallel_size
    kv_heads, head, layers = (
        int(config[name]) for name in ("num_key_value_heads", "head_dim", "num_hidden_layers")
    )
    width = DTYPE_BYTES[thumb.resolved.dtype]
    total, usable = all_ranks(thumb, "total"), all_ranks(thumb, "budget")
    share = given("share", thumb.resolved.gpu_memory_utilization)
    weights, fixed, kv = (all_ranks(thumb, part) for part in ("weights", "framework", "remainder"))
    usable = explained("usable", prod, (total, share))
    kv = explained("kv", left_of, usable, (weights, fixed))
    parts = {name: given(name, value) for name, value in
             (("kv_heads", kv_heads), ("head_dim", head), ("bytes", width), ("layers", layers))}  # fmt: skip
    layer = explained("layer", keys_and_values, parts["kv_heads"], parts["head_dim"], parts["bytes"])
    token = explained("token", prod, (parts["layers"], layer))
    tokens = explained("tokens", whole_tokens, kv, token, unit=Unit.TOKENS)
    length = given("length", thumb.resolved.max_model_len, Unit.TOKENS)
    return {
        "cards": Recomputed(number("cards", cards)),
        "card": Recomputed(bytes_of("card", total.value / cards), memory_of(real).total),
        "share": Recomputed(number("share", share.value)),
        "length": Recomputed(number("length", length.value, unit=Unit.TOKENS)),
        **{name: Recomputed(number(name, float(value))) for name, value in config.items() if _is_number(value)},
        "head-by-hidden-size": Recomputed(
            number("head", int(config["hidden_size"]) / int(config["num_attention_heads"])), number("head", head)
        ),
        **{f"bytes-{dtype}": Recomputed(number(dtype, DTYPE_BYTES[dtype])) for dtype in ("float32", "float16", "int8")},
        "total": Recomputed(total, all_ranks(real, "total")),
        "usable": Recomputed(usable, all_ranks(real, "budget")),
        "parameters": Recomputed(
            explained("product", prod, (given("parameters", PARAMETERS_BILLION * GB), parts["bytes"]))
        ),
        "weights": Recomputed(weights, all_ranks(real, "weights")),
        "fixed-card": Recomputed(bytes_of("fixed", fixed.value / cards), _fixed(real)),
        "fixed": Recomputed(fixed, bytes_of("fixed", _fixed(real).value * cards)),
        "kv": Recomputed(kv, all_ranks(real, "remainder")),
        "parameters-counted": Recomputed(None, number("parameters", real.weights.parameters * cards / width / GB)),
        "default-share": Recomputed(number("share", oldest().resolved.gpu_memory_utilization)),
        "default-share-percent": Recomputed(number("share", 100 * oldest().resolved.gpu_memory_utilization)),
        "layer": Recomputed(layer, bytes_of("layer", cache.bytes_per_token * cards / layers)),
        "token": Recomputed(token, bytes_of("token", cache.bytes_per_token * cards)),
        "tokens": Recomputed(tokens, number("tokens", cache.tokens, unit=Unit.TOKENS)),
        "requests": Recomputed(
            explained("requests", truediv, tokens, length, unit=Unit.NONE),
            number("requests", cache.max_concurrency),
        ),
    }  # fmt: skip


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fixed(plan: Plan) -> Quantity:
    """What the engine counts on a card in addition to weights and the KV cache."""
    memory = memory_of(plan)
    parts = (memory.framework, memory.activations, memory.cuda_graphs)
    return bytes_of("fixed", sum(part.value for part in parts))
