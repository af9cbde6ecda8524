"""The list of vLLM's parameters: few numbers, most of them defaults."""

from __future__ import annotations

from kvcore.base.quantity import Unit, explained, given
from kvcore.base.term import left_of
from kvcore.explain.documents.recomputed import Recomputed, cache_of, memory_of, number, oldest, planned
from kvcore.explain.reference import NGRAM

CONTEXT, MAX_TOKENS = 4097, 4000
"""Of the guide's request that leaves little room for its prompt."""


def figures() -> dict[str, Recomputed]:
    """Of the list of vLLM's parameters."""
    old, new, drafting = oldest(), planned("llama-2-7b"), planned("llama-2-7b-ngram")
    seats = new.resolved.max_num_seqs
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
        "least-batch": Recomputed(None, number("seats", seats, unit=Unit.TOKENS)),
        "default-batch": Recomputed(
            None, number("batch", new.resolved.max_num_batched_tokens, unit=Unit.TOKENS)
        ),
    }  # fmt: skip
