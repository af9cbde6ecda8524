"""The answers to the questions of a step (texts/questions.toml) and the typical wrong ones, as rules of facts.

With facts in numbers a rule gives the answer, with their names the formula of the solution. A factor of 1,024, GB for
GiB and one card for all of them are known for every question: `questions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, floor
from typing import Any, Final, NamedTuple, TypeAlias

from kvcore.base.term import Term, as_term, least, most


class Facts:
    """The facts of a plan (`facts.py`) as attributes: their values, or their names as terms."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        return Term.named(name) if self._values is None else self._values[name]


Rule: TypeAlias = Callable[[Facts], Any]


class Slip(NamedTuple):
    """A wrong answer that is often given, and the key of lessons.toml that says why."""

    reason: str
    rule: Rule


class Answer(NamedTuple):
    """The answer to a question, and how it is missed."""

    rule: Rule
    slips: tuple[Slip, ...]

    @property
    def term(self) -> Term:
        """The formula."""
        return as_term(self.rule(Facts()))

    def computed(self, *values: Any) -> Any:
        """The rule on values of the names of `term`, in their order."""
        return self.rule(Facts(dict(zip(self.term.names, values, strict=True))))


def _answer(rule: Rule, *slips: tuple[str, Rule]) -> Answer:
    return Answer(rule, tuple(Slip(*slip) for slip in slips))


ANSWERS: Final[Mapping[str, Answer]] = {
    "parts-share": _answer(
        lambda q: 100 * q.weights / q.total,
        ("slip-share", lambda q: q.weights / q.total),
        ("slip-upside-down", lambda q: 100 * q.total / q.weights),
    ),
    "parts-rest": _answer(lambda q: q.total - q.available_kv),
    "parts-gigabytes": _answer(lambda q: q.example_file),
    "parts-several": _answer(lambda q: q.example_replicas * q.total, ("slip-one-card", lambda q: q.total)),
    "budget-other": _answer(
        lambda q: q.total * q.example_share,
        ("budget-slip-card", lambda q: q.total),
        ("slip-outside", lambda q: q.total - q.total * q.example_share),
    ),
    "budget-outside": _answer(
        lambda q: q.total - q.total * q.gpu_memory_utilization,
        ("slip-inside", lambda q: q.total * q.gpu_memory_utilization),
    ),
    "budget-hundredths": _answer(
        lambda q: 100 * q.example_size / q.total, ("slip-share", lambda q: q.example_size / q.total)
    ),
    "weights-bits": _answer(
        lambda q: q.parameter_count * q.example_bits / q.bits_of_a_byte / q.tensor_parallel_size,
        ("slip-bits", lambda q: q.parameter_count * q.example_bits / q.tensor_parallel_size),
    ),
    "weights-matrix": _answer(
        lambda q: q.hidden_size * q.hidden_size * q.example_bits / q.bits_of_a_byte,
        ("slip-bits", lambda q: q.hidden_size * q.hidden_size * q.example_bits),
        ("slip-one-side", lambda q: q.hidden_size * q.example_bits / q.bits_of_a_byte),
    ),
    "weights-reading": _answer(
        lambda q: 1000 * q.weights / q.example_bandwidth,
        ("slip-seconds", lambda q: q.weights / q.example_bandwidth),
        ("slip-upside-down", lambda q: q.example_bandwidth / q.weights),
    ),
    "activations-logits": _answer(
        lambda q: q.vocab_size * q.example_seats * 4,
        ("slip-bytes", lambda q: q.vocab_size * q.example_seats),
        ("slip-one-sequence", lambda q: q.vocab_size * 4),
    ),
    "activations-hidden": _answer(
        lambda q: q.example_batch * q.hidden_size * 2,
        ("slip-bytes", lambda q: q.example_batch * q.hidden_size),
    ),
    "activations-longer": _answer(
        lambda q: least(q.longer_tokens, q.example_batch), ("slip-whole-prompt", lambda q: q.longer_tokens)
    ),
    "framework-left": _answer(
        lambda q: q.budget - q.weights - q.activations - q.framework,
        ("slip-only-weights", lambda q: q.budget - q.weights),
    ),
    "framework-graphs": _answer(
        lambda q: 3 + q.example_seats / 8,
        ("slip-every-size", lambda q: q.example_seats),
        ("slip-small-sizes", lambda q: q.example_seats / 8),
    ),
    "framework-tokens": _answer(lambda q: q.example_size / q.example_slope),
    "framework-cards": _answer(
        lambda q: q.example_ranks * q.example_size, ("slip-one-card", lambda q: q.example_size)
    ),
    "token-model": _answer(
        lambda q: 2 * q.example_layers * q.example_heads * q.example_dim * 2,
        ("token-slip-pair", lambda q: q.example_layers * q.example_heads * q.example_dim * 2),
        ("slip-query-heads", lambda q: 2 * q.example_layers * q.example_query_heads * q.example_dim * 2),
        ("slip-one-layer", lambda q: 2 * q.example_heads * q.example_dim * 2),
        ("slip-bytes", lambda q: 2 * q.example_layers * q.example_heads * q.example_dim),
    ),
    "token-several": _answer(lambda q: q.longer_tokens * q.bytes_per_token),
    "token-fewer-heads": _answer(
        lambda q: q.example_query_heads / q.example_heads,
        ("slip-query-heads", lambda q: q.example_query_heads),
    ),
    "token-latent": _answer(
        lambda q: (q.latent_rank + q.rope_dim) * 2 * q.example_layers,
        ("slip-bytes", lambda q: (q.latent_rank + q.rope_dim) * q.example_layers),
        ("slip-no-pair", lambda q: 4 * (q.latent_rank + q.rope_dim) * q.example_layers),
    ),
    "pool-blocks": _answer(
        lambda q: floor(q.example_pool_size / q.example_block),
        ("slip-tokens", lambda q: floor(q.example_pool_size / q.example_block) * q.block_size),
    ),
    "pool-size": _answer(lambda q: q.example_pool * q.example_block),
    "pool-tokens": _answer(
        lambda q: q.example_pool * q.block_size,
        ("pool-slip-blocks", lambda q: q.example_pool),
        ("pool-slip-ranks", lambda q: q.example_pool * q.block_size * q.example_ranks),
    ),
    "blocks-request": _answer(
        lambda q: ceil(q.example_tokens / q.block_size),
        ("slip-tokens", lambda q: q.example_tokens),
        ("slip-round-up", lambda q: floor(q.example_tokens / q.block_size)),
    ),
    "blocks-shared": _answer(
        lambda q: (q.example_requests - 1) * floor(q.shared_tokens / q.block_size),
        ("slip-first-request", lambda q: q.example_requests * floor(q.shared_tokens / q.block_size)),
        ("slip-full-blocks", lambda q: (q.example_requests - 1) * ceil(q.shared_tokens / q.block_size)),
        ("slip-tokens", lambda q: (q.example_requests - 1) * q.shared_tokens),
    ),
    "blocks-grow": _answer(
        lambda q: ceil(q.longer_tokens / q.block_size) - ceil(q.example_tokens / q.block_size),
        ("slip-all-blocks", lambda q: ceil(q.longer_tokens / q.block_size)),
        ("slip-tokens", lambda q: q.longer_tokens - q.example_tokens),
    ),
    "batching-steps": _answer(
        lambda q: ceil(q.longer_tokens / q.example_batch),
        ("batching-slip-each", lambda q: q.longer_tokens),
        ("slip-round-up", lambda q: floor(q.longer_tokens / q.example_batch)),
    ),
    "batching-left": _answer(
        lambda q: q.example_small_batch - q.example_requests,
        ("slip-no-shares", lambda q: q.example_small_batch / q.example_requests),
        ("slip-decode-first", lambda q: q.example_small_batch),
    ),
    "batching-answer": _answer(
        lambda q: ceil(q.longer_tokens / q.example_batch) + q.answer_tokens - 1,
        ("slip-prefill", lambda q: q.answer_tokens),
        ("slip-decode", lambda q: ceil(q.longer_tokens / q.example_batch)),
    ),
    "requests-fit": _answer(
        lambda q: floor(q.example_pool / ceil(q.longer_tokens / 16)),
        ("slip-blocks-of-tokens", lambda q: q.example_pool / q.longer_tokens),
        (
            "requests-slip-ranks",
            lambda q: floor(q.example_pool / ceil(q.longer_tokens / 16)) * q.example_ranks,
        ),
    ),
    "requests-here": _answer(
        lambda q: q.blocks / q.blocks_per_request,
        ("slip-all-blocks", lambda q: q.blocks),
        ("slip-upside-down", lambda q: q.blocks_per_request / q.blocks),
    ),
    "requests-fixed": _answer(
        lambda q: q.example_fixed + q.example_slope * q.longer_tokens,
        ("slip-no-fixed", lambda q: q.example_slope * q.longer_tokens),
        ("slip-fixed-grows", lambda q: q.example_fixed * q.longer_tokens + q.example_slope * q.longer_tokens),
    ),
    "requests-seats": _answer(
        lambda q: least(q.example_pool, q.example_seats), ("slip-seats", lambda q: q.example_pool)
    ),
    "limits-free": _answer(
        lambda q: q.example_pool - q.example_requests * ceil(q.longer_tokens / 16),
        ("slip-used-blocks", lambda q: q.example_requests * ceil(q.longer_tokens / 16)),
    ),
    "limits-usage": _answer(
        lambda q: 100 * q.example_requests * ceil(q.longer_tokens / 16) / q.example_pool,
        ("slip-share", lambda q: q.example_requests * ceil(q.longer_tokens / 16) / q.example_pool),
        ("slip-one-request", lambda q: 100 * ceil(q.longer_tokens / 16) / q.example_pool),
    ),
    "limits-again": _answer(
        lambda q: q.example_tokens + q.answer_tokens, ("slip-recomputed", lambda q: q.answer_tokens)
    ),
    "cards-heads": _answer(
        lambda q: most(1, q.example_heads / q.example_ranks),
        ("cards-slip-all", lambda q: q.example_heads),
        ("cards-slip-query", lambda q: q.example_query_heads / q.example_ranks),
    ),
    "cards-layers": _answer(
        lambda q: ceil(q.example_layers / q.example_stages), ("slip-all-layers", lambda q: q.example_layers)
    ),
    "cards-all": _answer(
        lambda q: q.example_ranks * q.example_stages * q.example_replicas,
        ("slip-sum", lambda q: q.example_ranks + q.example_stages + q.example_replicas),
        ("slip-replicas", lambda q: q.example_ranks * q.example_stages),
    ),
    "weight-bits-average": _answer(
        lambda q: q.weight_bits + 16 / q.group_size, ("weight-bits-slip-each", lambda q: q.weight_bits + 16)
    ),
    "weight-bits-matrix": _answer(
        lambda q: q.hidden_size * q.hidden_size * (q.weight_bits + 16 / q.group_size) / q.bits_of_a_byte,
        ("slip-bits", lambda q: q.hidden_size * q.hidden_size * (q.weight_bits + 16 / q.group_size)),
        ("slip-sixteen", lambda q: q.hidden_size * q.hidden_size * 16 / q.bits_of_a_byte),
    ),
    "weight-bits-tokens": _answer(
        lambda q: q.example_size / q.example_slope,
        ("pool-slip-ranks", lambda q: q.example_size / q.example_slope * q.example_ranks),
    ),
    "cache-bits-half": _answer(
        lambda q: q.example_slope * q.cache_bits / 16, ("cache-bits-slip-same", lambda q: q.example_slope)
    ),
    "cache-bits-scales": _answer(
        lambda q: 2 * (q.example_dim + 4),
        ("token-slip-pair", lambda q: q.example_dim + 4),
        ("slip-no-scales", lambda q: 2 * q.example_dim),
    ),
    "cache-bits-tokens": _answer(
        lambda q: q.example_pool_size * 16 / q.cache_bits / q.example_slope,
        ("cache-bits-slip-same", lambda q: q.example_pool_size / q.example_slope),
    ),
    "quality-points": _answer(
        lambda q: q.score_before - q.score_after,
        ("slip-kept", lambda q: 100 * q.score_after / q.score_before),
        ("slip-perfect", lambda q: 100 - q.score_after),
    ),
    "quality-answers": _answer(
        lambda q: q.test_questions * (q.score_before - q.score_after) / 100,
        ("slip-per-cent", lambda q: q.test_questions * (q.score_before - q.score_after)),
    ),
    "quality-errors": _answer(
        lambda q: q.score_difference / q.standard_error,
        ("slip-upside-down", lambda q: q.standard_error / q.score_difference),
        ("slip-difference", lambda q: q.score_difference - q.standard_error),
    ),
    "draft-step": _answer(
        lambda q: q.example_requests * (q.proposed + 1),
        ("draft-slip-own", lambda q: q.example_requests * q.proposed),
        ("draft-slip-one", lambda q: q.example_requests),
    ),
    "draft-fit": _answer(
        lambda q: floor(q.example_batch / (q.proposed + 1)),
        ("draft-slip-own", lambda q: floor(q.example_batch / q.proposed)),
        ("draft-slip-one", lambda q: q.example_batch),
    ),
    "draft-tokens": _answer(lambda q: q.example_size / q.example_slope),
    "tier-tokens": _answer(lambda q: q.example_pool_size / q.example_slope),
    "tier-machine": _answer(
        lambda q: q.example_replicas * q.example_pool_size, ("tier-slip-once", lambda q: q.example_pool_size)
    ),
    "tier-process": _answer(
        lambda q: q.example_ranks * q.example_pool_size, ("tier-slip-once", lambda q: q.example_pool_size)
    ),
    "engines-static": _answer(
        lambda q: (q.total - q.example_size) * q.example_share,
        ("engines-slip-card", lambda q: q.total * q.example_share),
        ("engines-slip-slack", lambda q: (q.total - q.example_size) * (1 - q.example_share)),
    ),
    "engines-slack": _answer(
        lambda q: (q.total - q.example_size) * (1 - q.example_share),
        ("engines-slip-card", lambda q: q.total * (1 - q.example_share)),
        ("slip-inside", lambda q: (q.total - q.example_size) * q.example_share),
    ),
    "engines-table": _answer(
        lambda q: q.example_seats * q.longer_tokens * 4,
        ("slip-bytes", lambda q: q.example_seats * q.longer_tokens),
        ("slip-one-sequence", lambda q: q.longer_tokens * 4),
    ),
    "gain-two": _answer(
        lambda q: 1 + q.example_chance + q.example_chance * q.example_chance,
        ("gain-slip-each", lambda q: 1 + 2 * q.example_chance),
        ("gain-slip-own", lambda q: q.example_chance + q.example_chance * q.example_chance),
        ("gain-slip-all", lambda q: 3),
    ),
    "gain-logged": _answer(
        lambda q: 1 + q.accepted / q.drafts_made, ("gain-slip-own", lambda q: q.accepted / q.drafts_made)
    ),
    "gain-worth": _answer(
        lambda q: q.example_yield / q.slower,
        ("slip-slower", lambda q: q.example_yield),
        ("slip-upside-down", lambda q: q.example_yield * q.slower),
    ),
    "log-per-token": _answer(lambda q: q.example_pool_size / q.example_logged),
    "log-concurrency": _answer(
        lambda q: q.longer_tokens * q.example_concurrency,
        ("slip-upside-down", lambda q: q.longer_tokens / q.example_concurrency),
    ),
    "log-loading": _answer(
        lambda q: q.example_loaded * q.example_ranks, ("slip-one-card", lambda q: q.example_loaded)
    ),
}
