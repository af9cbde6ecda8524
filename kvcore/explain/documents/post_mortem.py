"""Llama-2-70B on four A100 that ran out of memory."""

from __future__ import annotations

from math import prod
from operator import truediv
from typing import Final

from msgspec.structs import replace

from kvcore.advice.vary import decode_bound
from kvcore.base.quantity import Quantity, Unit, explained, given
from kvcore.base.term import added
from kvcore.base.units import GIB, ceil_div
from kvcore.deploy.going_live import FIRST_TOKEN_SECONDS, OVERLOAD_PERCENT, SECONDS
from kvcore.deploy.launch import PORT
from kvcore.engine.setting import DTYPE_BYTES
from kvcore.explain.documents.recomputed import Recomputed, bytes_of, cache_of, memory_of, number, planned
from kvcore.explain.reference import BATCH, PROMPT_TOKENS
from kvcore.planning import Plan
from kvcore.workload.limits import Arrivals, Conversation, requests_at

CARD_GB: Final = 80
"""By the name of the card."""
PROMPTS: Final = (800, 1200)
ANSWER: Final = 512
PER_SECOND: Final = 50.0
ANSWER_SPEED: Final = 15.0
"""Tokens per second that the post-mortem measured for one request."""
SMALL_REQUEST: Final = 1000
LARGER_BLOCK: Final = 64
TURNS, KEPT_TURNS = 5, 3
LOG_BYTES: Final = (51_380_224, 45_749_248)
"""What the post-mortem takes for the size of the pool, and for what is allocated of it."""


def figures() -> dict[str, Recomputed]:
    """Of Llama-2-70B on four cards."""
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
        **{name: Recomputed(None, _speed(long, at_once)) for name, at_once in (("speed-one", 1), ("speed-four", 4))},
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


def _speed(plan: Plan, at_once: int) -> Quantity | None:
    """The most tokens per second that the memory bandwidth lets that many requests have together."""
    bound = decode_bound(plan, at_once, PROMPTS[1])
    return None if bound is None else number("speed", bound.tokens_per_second)
