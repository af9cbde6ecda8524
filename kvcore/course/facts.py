"""Facts that questions may name: figures of a plan, and numbers drawn for a student by the seed of a link.

The same seed draws the same numbers on every machine, and varies the scenario in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Final, TypeVar

from kvcore.base.errors import KvPlannerError
from kvcore.base.quantity import Grade, Quantity, Unit, given
from kvcore.base.units import GB, GIB, KIB, MIB
from kvcore.controls import edit
from kvcore.explain.numbers import any_cache
from kvcore.explain.reference import WEIGHTS, published_scores
from kvcore.memory.shares import weight_shares
from kvcore.memory.stages import loaded_architecture
from kvcore.planning import Plan, plan

Drawn = TypeVar("Drawn")
TRIES: Final = 8
"""Variants of a scenario that are planned before it stays as it is."""
EIGHTHS: Final = (4, 5, 6, 7, 8)
"""Eighths of the context length that a variant may have."""
SHARES: Final = (0.86, 0.88, 0.9, 0.92, 0.94)
SEATS: Final = (32, 48, 64, 96, 128, 192)
LEAST_TOKENS: Final = 256
CARD_GIB: Final = 80
"""A card to compute with where the scenario names none."""
COUNTS: Final[Mapping[str, Sequence[float]]] = {
    "example_bits": (4, 8, 16),
    "example_seats": (32, 64, 128, 256),
    "example_batch": (2048, 4096, 8192),
    "example_tokens": (700, 1000, 1300, 1900, 2500),
    "longer_tokens": (5000, 7500, 9900, 12300, 15700),
    "example_layers": (28, 34, 46, 62),
    "example_dim": (64, 128, 192),
    "example_ranks": (2, 4),
    "example_stages": (3, 5),
    "example_replicas": (3, 4, 6),
    "example_small_batch": (96, 128, 192),
    "example_pool": (14000, 15000, 17000, 20000),
    "example_requests": (7, 9, 11, 13),
    "shared_tokens": (1210, 2030, 3050),
    "answer_tokens": (200, 350, 600),
    "cache_bits": (8, 4),
    "weight_bits": (3, 4, 8),
    "group_size": (32, 64, 128),
    "test_questions": (1000, 1319, 2500),
    "score_difference": (1.2, 1.67, 2.4),
    "standard_error": (0.8, 1.15, 1.5),
    "proposed": (2, 3, 4, 5),
    "example_chance": (0.5, 0.6, 0.8, 0.9),
    "accepted": (5300, 7100, 9800),
    "drafts_made": (4000, 5000),
    "slower": (1.2, 1.3, 1.5),
    "example_yield": (1.9, 2.4, 3.1),
    "example_concurrency": (3.4, 8.7, 21.5),
    "example_logged": (150000, 240000, 410000),
    "example_share": (0.75, 0.8, 0.85, 0.95),
}
"""Numbers that are drawn. None of them makes a typical slip come out right."""
SIZES: Final[Mapping[str, Sequence[float]]] = {
    "example_size": (1.5 * GIB, 2 * GIB, 3 * GIB),
    "example_pool_size": (18 * GIB, 25 * GIB, 37 * GIB),
    "example_block": (1.25 * MIB, 2 * MIB, 3.5 * MIB),
    "example_fixed": (150 * MIB, 300 * MIB, 450 * MIB),
    "example_slope": (24 * KIB, 40 * KIB, 96 * KIB, 160 * KIB),
    "example_loaded": (15.4 * GIB, 20.2 * GIB, 31.1 * GIB),
}
GIGABYTES: Final = (16, 24, 65, 140)
GIGABYTES_A_SECOND: Final = (900, 1600, 3350)
HEADS: Final = ((32, 8), (64, 8), (40, 4), (28, 4))
"""Query heads and KV heads."""


def drawn(seed: int, name: str, options: Sequence[Drawn]) -> Drawn:
    """One of `options`, the same for the same seed and name.

    Example:
        >>> drawn(7, "ranks", (2, 4, 8)) == drawn(7, "ranks", (2, 4, 8))
        True
    """
    digest = sha256(f"{seed}/{name}".encode()).digest()
    return options[int.from_bytes(digest[:8]) % len(options)]


def variant(base: Plan, seed: int) -> Plan:
    """`base` with its length, utilization and seats drawn anew, as far as that plans and fits what `base` fits.

    Seed 0 is the scenario itself, and so is a seed for which no draw plans.
    """
    if not seed:
        return base
    for number in range(TRIES):
        name = f"variant {number}"
        length = base.resolved.max_model_len * drawn(seed, f"{name} length", EIGHTHS) // 8
        changes = (
            ("max_model_len", max(LEAST_TOKENS, length // 64 * 64)),
            ("gpu_memory_utilization", drawn(seed, f"{name} share", SHARES)),
            ("max_num_seqs", drawn(seed, f"{name} seats", SEATS)),
        )
        try:
            scenario = base.scenario
            for field, value in changes:
                scenario = edit.with_field(scenario, field, value)
            found = plan(scenario)
        except KvPlannerError:
            continue
        if found.verdict is base.verdict and bool(found.cache) == bool(base.cache):
            return found
    return base


def facts(base: Plan, seed: int) -> dict[str, Quantity]:
    """Every fact that questions about `base` may name; what the plan does not have is missing."""
    return {one.name: one for one in (*_drawn_facts(seed), *_facts_of(base))}


def parameter_count(base: Plan) -> Quantity:
    """Parameters of the plan's stage; apart from the other facts, because every tensor is counted for it."""
    loaded = loaded_architecture(base.architecture, base.scenario, base.resolved)
    shares = weight_shares(loaded, base.quantization, base.scenario.parallel, base.resolved, base.stage)
    return given("parameter_count", shares.count)


def _drawn_facts(seed: int) -> Iterator[Quantity]:
    for name, options in COUNTS.items():
        yield given(name, drawn(seed, name, options))
    for name, options in SIZES.items():
        yield given(name, drawn(seed, name, options), Unit.BYTES)
    query_heads, kv_heads = drawn(seed, "heads", HEADS)
    yield given("example_query_heads", query_heads)
    yield given("example_heads", kv_heads)
    yield given("example_file", drawn(seed, "file", GIGABYTES) * GB, Unit.BYTES)
    yield given("example_bandwidth", drawn(seed, "bandwidth", GIGABYTES_A_SECOND) * GB, Unit.BYTES)
    yield given("bits_of_a_byte", 8)
    yield given("latent_rank", 512)
    yield given("rope_dim", 64)
    score = drawn(seed, "score", [row for row in published_scores() if row.kept == WEIGHTS])
    yield given("score_before", score.before, grade=Grade.MEASURED)
    yield given("score_after", score.after, grade=Grade.MEASURED)


def _facts_of(base: Plan) -> Iterator[Quantity]:
    resolved, parallel, architecture = base.resolved, base.scenario.parallel, base.architecture
    yield given("gpu_memory_utilization", resolved.gpu_memory_utilization)
    yield given("tensor_parallel_size", parallel.tensor_parallel_size)
    yield given("hidden_size", architecture.hidden_size)
    yield given("vocab_size", architecture.vocab_size)
    yield base.loaded_weights
    if base.memory is None:
        yield given("total", CARD_GIB * GIB, Unit.BYTES, Grade.ASSUMED)
    else:
        yield from (base.memory.total, base.memory.budget, base.memory.activations, base.memory.framework)
        if (base.available_kv_bytes or 0) > 0:
            yield given("available_kv", base.available_kv_bytes or 0, Unit.BYTES)
    cache = any_cache(base)
    size = resolved.block_size
    if cache is not None and cache.groups:
        size = cache.groups[0].block_size
        yield cache.figures.bytes_per_token
    yield given("block_size", size)
    held = base.cache
    if held is not None and held.num_blocks > 0 and held.groups:
        yield held.figures.blocks
        if any(part.name == "blocks_per_request" for part in held.figures.concurrency.inputs):
            yield held.figures.blocks_per_request
