"""The numbers of the source documents, computed by the documents' own rules and by the engine's.

Both are computed when they are asked for, so that a change of the tables shows in the stories (texts/stories.toml) and
in the test of every number (tests/test_documents.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import prod, trunc
from operator import truediv
from typing import Final, NamedTuple

from msgspec.structs import replace

from kvcore.advice.roofline import decode_bound
from kvcore.base.quantity import Quantity, Unit, explained, figure, given
from kvcore.base.term import added, left_of
from kvcore.base.units import GB, GIB, MIB, ceil_div
from kvcore.cache.capacity import CachePlan
from kvcore.cache.kv_formats import keys_and_values
from kvcore.deploy.going_live import FIRST_TOKEN_SECONDS, OVERLOAD_PERCENT, SECONDS
from kvcore.deploy.launch import PORT
from kvcore.engine.rank_memory import RankMemory
from kvcore.engine.setting import DTYPE_BYTES
from kvcore.evidence.prerun import (
    LEVEL_VARIABLE,
    VARIABLES,
    PreRun,
    PreRunResult,
    documented_bytes_per_token,
    out_of_memory_remedies,
)
from kvcore.explain.reference import BATCH, LATENT_POOL_GIB, NGRAM, PROMPT_TOKENS, SMALL_STEP
from kvcore.explain.stories import oldest, planned
from kvcore.planning import Plan
from kvcore.scenario import Parallel
from kvcore.texts import Source
from kvcore.workload.limits import Arrivals, Conversation, requests_at


class Recomputed(NamedTuple):
    """A number by the document's own rule and by the engine's; None without such a rule."""

    own: Quantity | None = None
    engine: Quantity | None = None


def bytes_of(name: str, value: float) -> Quantity:
    """A size in bytes."""
    return figure(name, value)


def number(name: str, value: float, unit: Unit = Unit.NONE) -> Quantity:
    """A number in another unit, or in none."""
    return figure(name, value, unit=unit)


def whole_tokens(pool: float, token: float) -> int:
    """Tokens that a pool has room for; the documents round down without saying so."""
    return trunc(pool / token)


def memory_of(plan: Plan) -> RankMemory:
    """The memory of a plan whose card is known; every scenario of a story names one."""
    if plan.memory is None:
        raise ValueError(f"no card: {plan.scenario.model}")
    return plan.memory


def cache_of(plan: Plan) -> CachePlan:
    """The KV cache of a plan that has memory for one."""
    if plan.cache is None:
        raise ValueError(f"no KV cache: {plan.scenario.model}")
    return plan.cache


def all_ranks(plan: Plan, part: str) -> Quantity:
    """A part of the memory of every card together."""
    cards = plan.scenario.parallel.tensor_parallel_size
    one = given("one", getattr(memory_of(plan), part).value, Unit.BYTES)
    return explained(part, prod, (one, given("cards", cards)))


PARAMETERS_BILLION: Final = 32
INT4_BITS: Final = 4


def _rule_of_thumb() -> dict[str, Recomputed]:
    """Qwen3-32B on eight RTX 4090: tokens and requests from the memory of the cards."""
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
        "bytes-int4": Recomputed(number("int4", INT4_BITS / 8)),
        "total": Recomputed(total, all_ranks(real, "total")),
        "usable": Recomputed(usable, all_ranks(real, "budget")),
        "parameters": Recomputed(
            explained("product", prod, (given("parameters", PARAMETERS_BILLION * GB), parts["bytes"]))
        ),
        "weights": Recomputed(weights, all_ranks(real, "weights")),
        "fixed-card": Recomputed(bytes_of("fixed", fixed.value / cards), _fixed_bytes(real)),
        "fixed": Recomputed(fixed, bytes_of("fixed", _fixed_bytes(real).value * cards)),
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


def _fixed_bytes(plan: Plan) -> Quantity:
    """Bytes that the engine counts on a card in addition to weights and the KV cache."""
    memory = memory_of(plan)
    parts = (memory.framework, memory.activations, memory.cuda_graphs)
    return bytes_of("fixed", sum(part.value for part in parts))


CARD_GB: Final = 80
"""GB in the name of the card."""
PROMPTS: Final = (800, 1200)
ANSWER: Final = 512
PER_SECOND: Final = 50.0
ANSWER_SPEED: Final = 15.0
"""Tokens per second that the post-mortem measured for one request."""
BASELINE_GB: Final = 68.42
PEAKS_GB: Final = {"short": 69.58, "long": 75.23}
"""Peaks that the post-mortem's script printed, before any prompt and with one of either length."""
SMALL_REQUEST: Final = 1000
LARGER_BLOCK: Final = 64
TURNS, KEPT_TURNS = 5, 3
LOG_BYTES: Final = (51_380_224, 45_749_248)
"""The post-mortem's bytes of the pool, and of its allocated part."""


def _post_mortem() -> dict[str, Recomputed]:
    """Llama-2-70B on four A100 that ran out of memory."""
    long, short = planned("post-mortem"), planned("short-post-mortem")
    memory, cache = memory_of(long), cache_of(long)
    shape, cards = long.architecture, long.scenario.parallel.tensor_parallel_size
    length, width = long.resolved.max_model_len, DTYPE_BYTES[long.resolved.dtype]
    names = (
        ("layers", shape.num_layers),
        ("hidden_size", shape.hidden_size),
        ("length", length),
        ("element_bytes", width),
    )
    request = explained("request", request_bytes, *(given(name, value) for name, value in names))
    per_request = bytes_of("request", cache.bytes_per_token * cards * length)
    batch = given("batch", BATCH)
    share = given("share", long.resolved.gpu_memory_utilization)
    blocks = ceil_div(SMALL_REQUEST, LARGER_BLOCK)
    last = SMALL_REQUEST - (blocks - 1) * LARGER_BLOCK
    stay = Arrivals(
        per_second=PER_SECOND, prompt_tokens=PROMPTS[1], answer_tokens=ANSWER, first_token_seconds=0,
        tokens_per_second=ANSWER_SPEED,
    )  # fmt: skip
    seconds = given("seconds", stay.seconds_in_system)
    chat = Conversation(system_tokens=0, user_tokens=100, answer_tokens=500)
    return {
        "cards": Recomputed(number("cards", cards)),
        "layers": Recomputed(number("layers", shape.num_layers)),
        "hidden-size": Recomputed(number("hidden_size", shape.hidden_size)),
        "bytes": Recomputed(number("bytes", width)),
        "batch-size": Recomputed(number("batch", BATCH)),
        "length": Recomputed(number("length", length)),
        "short-length": Recomputed(number("length", short.resolved.max_model_len)),
        "share": Recomputed(number("share", share.value)),
        "weights": Recomputed(None, long.loaded_weights),
        "request": Recomputed(request, per_request),
        "batch": Recomputed(
            explained("batch", prod, (batch, request)),
            explained("batch", prod, (batch, per_request)),
        ),
        "budget": Recomputed(
            explained("budget", prod, (share, given("card", CARD_GB * GIB, Unit.BYTES))),
            memory.budget,
        ),
        "short-budget": Recomputed(None, memory_of(short).budget),
        "pool": Recomputed(None, memory.kv_cache),
        **{
            f"increase-{name}": Recomputed(
                explained("increase", left_of, given("peak", peak * GIB, Unit.BYTES),
                          (given("baseline", BASELINE_GB * GIB, Unit.BYTES),))
            )
            for name, peak in PEAKS_GB.items()
        },
        **{
            f"longest-answer-{at}": Recomputed(None, number("answer", at - PROMPTS[1], unit=Unit.TOKENS))
            for at in (2048, 4096, 8192)
        },
        "old-pool": Recomputed(None, memory_of(planned("old-post-mortem")).kv_cache),
        "old-short-pool": Recomputed(None, memory_of(planned("old-short-post-mortem")).kv_cache),
        "pool-tokens": Recomputed(None, number("tokens", cache.tokens, unit=Unit.TOKENS)),
        **{
            f"requests-{at}": Recomputed(None, number("requests", requests_at(long, (at,))[0]))
            for at in (2048, 4096, 8192)
        },
        "model-limit": Recomputed(None, number("limit", long.resolved.derived_max_model_len, unit=Unit.TOKENS)),
        "needed": Recomputed(
            explained("needed", added, (given("prompt", PROMPTS[1]), given("answer", ANSWER)), unit=Unit.TOKENS)
        ),
        "block": Recomputed(number("block", long.resolved.block_size)),
        "prompt-blocks": Recomputed(None, number("blocks", ceil_div(PROMPT_TOKENS, long.resolved.block_size))),
        "larger-blocks": Recomputed(number("blocks", SMALL_REQUEST / LARGER_BLOCK), number("blocks", blocks)),
        "last-block": Recomputed(None, number("last", 100 * last / LARGER_BLOCK)),
        "wasted": Recomputed(None, number("wasted", 100 * (1 - SMALL_REQUEST / (blocks * LARGER_BLOCK)))),
        "log-share": Recomputed(number("share", 100 * LOG_BYTES[1] / LOG_BYTES[0])),
        "log-pool": Recomputed(bytes_of("pool", LOG_BYTES[0]), memory.kv_cache),
        "history": Recomputed(number("tokens", chat.taken_tokens(TURNS), unit=Unit.TOKENS)),
        "history-kept": Recomputed(
            None, number("tokens", replace(chat, kept_turns=KEPT_TURNS).taken_tokens(TURNS), unit=Unit.TOKENS)
        ),
        "speed-one": Recomputed(None, _most_tokens_per_second(long, 1)),
        "speed-four": Recomputed(None, _most_tokens_per_second(long, 4)),
        "seconds": Recomputed(
            explained("seconds", truediv, given("answer", ANSWER), given("speed", ANSWER_SPEED), unit=Unit.NONE)
        ),
        "at-once": Recomputed(
            None,
            explained("at_once", prod, (given("arrivals", PER_SECOND), seconds), unit=Unit.NONE),
        ),
        **{
            name: Recomputed(number(name, value, unit=Unit.TOKENS))
            for name, value in {
                "prompt-low": PROMPTS[0], "prompt-high": PROMPTS[1], "answer": ANSWER, "larger-block": LARGER_BLOCK,
                "small-request": SMALL_REQUEST, "turn-question": chat.user_tokens, "turn-answer": chat.answer_tokens,
            }.items()
        },
        "arrivals": Recomputed(number("arrivals", PER_SECOND)),
        "turns": Recomputed(number("turns", TURNS)),
        "kept-turns": Recomputed(number("turns", KEPT_TURNS)),
        "port": Recomputed(number("port", PORT)),
        "first-token-seconds": Recomputed(number("seconds", FIRST_TOKEN_SECONDS)),
        "pool-share": Recomputed(
            None, number("share", 100 * memory.kv_cache.value / memory.total.value)
        ),
        "log-allocated": Recomputed(bytes_of("allocated", LOG_BYTES[1])),
        "overload": Recomputed(number("percent", OVERLOAD_PERCENT)),
        "minutes": Recomputed(number("minutes", SECONDS / 60)),
        "seconds-of-load": Recomputed(number("seconds", SECONDS)),
    }  # fmt: skip


def request_bytes(layers: int, hidden_size: int, length: int, element_bytes: int) -> int:
    """The post-mortem's KV cache of a request: keys and values as wide as the hidden size."""
    return layers * 2 * hidden_size * length * element_bytes


def _most_tokens_per_second(plan: Plan, at_once: int) -> Quantity | None:
    """The most tokens per second that the memory bandwidth lets that many requests have together."""
    bound = decode_bound(plan, at_once, PROMPTS[1])
    return None if bound is None else number("speed", bound.tokens_per_second)


CONTEXT, MAX_TOKENS = 4097, 4000
"""The guide's request that leaves little room for its prompt."""


def _parameters() -> dict[str, Recomputed]:
    """The list of vLLM's parameters: few numbers, most of them defaults."""
    old, new, drafting = oldest(), planned("llama-2-7b"), planned("llama-2-7b-ngram")
    seats = planned("llama-2-7b-small-steps").resolved.max_num_seqs
    return {
        "share": Recomputed(
            number("share", old.resolved.gpu_memory_utilization),
            number("share", new.resolved.gpu_memory_utilization),
        ),
        "llama-2": Recomputed(number("limit", old.resolved.derived_max_model_len, unit=Unit.TOKENS)),
        "context": Recomputed(number("context", CONTEXT, unit=Unit.TOKENS)),
        "max-tokens": Recomputed(number("max_tokens", MAX_TOKENS, unit=Unit.TOKENS)),
        "draft-tokens": Recomputed(number("tokens", NGRAM.num_speculative_tokens or 0, unit=Unit.TOKENS)),
        "room": Recomputed(
            explained("room", left_of, given("context", CONTEXT), (given("max_tokens", MAX_TOKENS),),
                      unit=Unit.TOKENS)
        ),
        "graphs": Recomputed(None, memory_of(new).cuda_graphs),
        "tokens-without": Recomputed(None, number("tokens", cache_of(new).tokens, unit=Unit.TOKENS)),
        "tokens-with": Recomputed(None, number("tokens", cache_of(drafting).tokens, unit=Unit.TOKENS)),
        "small-step": Recomputed(number("step", SMALL_STEP, unit=Unit.TOKENS)),
        "small-step-seats": Recomputed(None, number("seats", seats)),
        "default-batch": Recomputed(
            None, number("batch", new.resolved.max_num_batched_tokens, unit=Unit.TOKENS)
        ),
    }  # fmt: skip


NAMED: Final = {"more": 2, "lower-share": 3, "shorter": 2}
"""Values of each remedy that the guide names."""
PEAK_MB: Final = 29614
"""From the guide's log line."""


def _ascend_tuning() -> dict[str, Recomputed]:
    """The pre-run of vllm-mindspore on an NPU of 64 GB."""
    deepseek, final, prerun = planned("latent"), planned("fitting-pre-run"), PreRun()
    config = deepseek.scenario.config.raw
    result = PreRunResult(
        prerun=prerun,
        peak_gb=PEAK_MB * MIB / GIB,
        bytes_per_token=cache_of(final).bytes_per_token,
        weights_gb=final.loaded_weights.value / GIB,
    )
    latent_bytes = cache_of(deepseek).bytes_per_token
    shape = deepseek.architecture
    by_heads = documented_bytes_per_token(
        shape.num_layers, shape.num_attention_heads, int(config["v_head_dim"])
    )
    eight = given("pool", LATENT_POOL_GIB * GIB, Unit.BYTES)
    token, latent = (
        given("token", by_heads, Unit.BYTES),
        given("token", latent_bytes, Unit.BYTES),
    )
    total = given("total", prerun.total_gb * GIB, Unit.BYTES)
    share, model = (
        given("share", prerun.gpu_memory_utilization),
        given("model", prerun.model_gb * GIB, Unit.BYTES),
    )
    both = given("token", 2 * by_heads, Unit.BYTES)
    budget = explained("budget", prod, (total, share))
    pool = explained("pool", pool_bytes, total, share, model)
    peak = given("peak", result.peak_gb * GIB, Unit.BYTES)
    weights = explained("weights", left_of, peak, (pool,))
    return {
        "total": Recomputed(bytes_of("total", VARIABLES.default_total_gb * GIB)),
        "system": Recomputed(bytes_of("system", VARIABLES.system_gib * GIB)),
        "framework": Recomputed(bytes_of("framework", VARIABLES.framework_gib * GIB)),
        "model-share": Recomputed(bytes_of("model", VARIABLES.default_model_gb * GIB)),
        "share": Recomputed(number("share", final.resolved.gpu_memory_utilization)),
        "seats": Recomputed(number("seats", final.resolved.max_num_seqs)),
        "length": Recomputed(number("length", prerun.max_model_len, unit=Unit.TOKENS)),
        "batch": Recomputed(number("batch", prerun.step_tokens, unit=Unit.TOKENS)),
        "pre-run-seats": Recomputed(number("seats", prerun.requests)),
        "log-level": Recomputed(number("level", int(prerun.exports[LEVEL_VARIABLE]))),
        "log-peak": Recomputed(bytes_of("peak", peak.value)),
        "bytes": Recomputed(number("bytes", DTYPE_BYTES[final.resolved.dtype])),
        **_remedies(prerun),
        "budget": Recomputed(budget),
        "pool": Recomputed(pool),
        "weights": Recomputed(weights),
        "model-weights": Recomputed(None, deepseek.loaded_weights),
        "fitting-weights": Recomputed(None, final.loaded_weights),
        "final-pool": Recomputed(
            explained("final", left_of, budget, (weights,)),
            bytes_of("final", result.final_kv_gb * GIB),
        ),
        "token": Recomputed(bytes_of("token", by_heads), bytes_of("token", latent_bytes)),
        "keys-and-values": Recomputed(bytes_of("token", both.value)),
        "tokens-of-both": Recomputed(explained("tokens", whole_tokens, eight, both, unit=Unit.TOKENS)),
        "eight-gib": Recomputed(bytes_of("pool", eight.value)),
        "tokens-of-eight": Recomputed(
            explained("tokens", whole_tokens, eight, token, unit=Unit.TOKENS),
            explained("tokens", whole_tokens, eight, latent, unit=Unit.TOKENS),
        ),
        "final-share": Recomputed(None, bytes_of("share", result.final_model_gb * GIB)),
        "final-tokens": Recomputed(None, number("tokens", result.final_tokens, unit=Unit.TOKENS)),
        "final-seats": Recomputed(None, number("seats", result.max_num_seqs)),
        "final-batch": Recomputed(None, number("batch", result.max_num_batched_tokens, unit=Unit.TOKENS)),
    }  # fmt: skip


def pool_bytes(total: float, share: float, model: float) -> float:
    """The guide's KV cache: the share of the NPU that the model leaves."""
    return total * share - model


def _remedies(prerun: PreRun) -> dict[str, Recomputed]:
    """The guide's changes after an out-of-memory."""
    tried = {one.field: one.values for one in out_of_memory_remedies(prerun, Parallel())}
    names = {VARIABLES.model: "more", "gpu_memory_utilization": "lower-share", "max_model_len": "shorter"}
    return {
        f"{name}-{place}": Recomputed(
            bytes_of(name, float(value) * GIB) if name == "more" else number(name, float(value))
        )
        for field, name in names.items()
        for place, value in enumerate(tried[field][: NAMED[name]], 1)
    }


_FIGURES: Final = {
    Source.RULE_OF_THUMB: _rule_of_thumb,
    Source.POST_MORTEM: _post_mortem,
    Source.PARAMETERS: _parameters,
    Source.ASCEND_TUNING: _ascend_tuning,
}


@cache
def figures(document: Source) -> Mapping[str, Recomputed]:
    """Every figure of a document that can be computed, by its name.

    Example:
        >>> found = figures(Source.RULE_OF_THUMB)["tokens"]
        >>> found.own.value, found.own.substituted
        (163840, '40.00 GiB / 256.00 KiB')
    """
    return _FIGURES[document]()
