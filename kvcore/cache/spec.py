"""The engine's cache specs: bytes of a layer of one rank in a block, and the blocks of a request."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from inspect import signature
from typing import Final, assert_never

from msgspec import Struct

from kvcore.base.errors import EngineRefusalError
from kvcore.base.quantity import Grade, Quantity, Unit, explained, given
from kvcore.base.term import least, sum_of_products
from kvcore.base.units import ceil_div
from kvcore.cache.kv_formats import LAYER_TOKEN
from kvcore.cache.rules import EncoderTokens, MambaBlocks, PlannerRules, rules_in_force
from kvcore.engine.protocol import Resolved
from kvcore.scenario import Parallel


class CacheKind(StrEnum):
    """The engine's names of cache spec kinds."""

    FULL_ATTENTION = "full_attention"
    SLIDING_WINDOW = "sliding_window"
    CHUNKED_LOCAL_ATTENTION = "chunked_local_attention"
    MLA_ATTENTION = "mla_attention"
    SLIDING_WINDOW_MLA = "sliding_window_mla"
    CIRCULAR_BUFFER = "circular_buffer"
    MAMBA = "mamba"
    CROSS_ATTENTION = "cross_attention"


FULL_KINDS = frozenset({CacheKind.FULL_ATTENTION, CacheKind.MLA_ATTENTION})
WINDOW_KINDS = frozenset({CacheKind.SLIDING_WINDOW, CacheKind.SLIDING_WINDOW_MLA})


SPECS: Final = "vllm/v1/kv_cache_interface.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSpec:
    """`layers` layers of one rank that store the same thing. Order matters where groups are made in it.

    `page_size_bytes` is one layer's share of one block, padding included. Fields that do not apply are 0.
    """

    kind: CacheKind
    layers: int = 1
    block_size: int
    """Tokens per block."""
    page_size_bytes: int
    num_kv_heads: int = 0
    head_size: int = 0
    head_size_v: int = 0
    dtype: str = ""
    sliding_window: int = 0
    attention_chunk_size: int = 0
    encoder_tokens: int = 0
    num_speculative_blocks: int = 0
    num_checkpoint_blocks: int = 0
    tokens_per_state: int = 1
    """Tokens that one stored vector stands for."""
    stated_block_size: int = 0
    """The engine's own block size where that counts vectors; 0 where it is `block_size`."""
    stride_alignment: int = 1
    """Bytes that packed blocks are a multiple of."""
    is_draft: bool = False
    """Whether it is a draft's, where the engine keeps its blocks apart."""
    made_of: Quantity | None = field(default=None, compare=False, repr=False)
    """One token of a layer (`LAYER_TOKEN`), or all that a page stores, before padding; None where it is not known."""


def page_of(spec: LayerSpec) -> Quantity:
    """One layer's share of a block: its tokens, or what it stores at once, and what that is padded with.

    Example:
        >>> made = Quantity(name="layer_state_bytes", value=900, unit=Unit.BYTES)
        >>> spec = LayerSpec(kind=CacheKind.MAMBA, layers=1, block_size=16, page_size_bytes=1000, made_of=made)
        >>> page_of(spec).formula
        'layer_state_bytes + padding'
    """
    made, page = spec.made_of, spec.page_size_bytes
    if made is None:
        return given("page_size_bytes", page, Unit.BYTES)
    stored: tuple[Quantity, ...] = (made,)
    if made.name == LAYER_TOKEN:
        stored = given("block_size", spec.block_size), made
    padding = page - math.prod(part.value for part in stored)
    parts = (stored, (given("padding", padding, Unit.BYTES),)) if padding else (stored,)
    source = f"{SPECS} (0.33.0)"
    return explained("page_size_bytes", sum_of_products, parts, grade=Grade.EXACT, source=source)


class Demand(Struct, frozen=True, kw_only=True):
    """The inputs of the block rules that are not in the spec, but for the length of the request."""

    rules: PlannerRules
    in_flight_tokens: int
    """Tokens that are scheduled and not settled, at most."""
    batch_tokens: int
    """max_num_batched_tokens."""
    context_ranks: int
    """Ranks that share the tokens of one sequence (decode context parallelism)."""
    mamba_cache_mode: str


def demand_of(resolved: Resolved, parallel: Parallel) -> Demand:
    """The demand under these flags."""
    rules = rules_in_force(resolved.engine, resolved.version)
    counts = rules.in_flight_batches or resolved.counts_in_flight
    batches = resolved.max_concurrent_batches if counts else 1
    return Demand(
        rules=rules,
        in_flight_tokens=resolved.max_num_batched_tokens * batches,
        batch_tokens=resolved.max_num_batched_tokens,
        context_ranks=context_ranks(parallel, rules),
        mamba_cache_mode=resolved.mamba_cache_mode,
    )


def context_ranks(parallel: Parallel, rules: PlannerRules) -> int:
    """Ranks that share the tokens of one sequence in the cache."""
    ranks = parallel.decode_context_parallel_size if rules.context_parallel_divides else 1
    return ranks * parallel.prefill_context_parallel_size if rules.prefill_context_divides else ranks


def grows_with_length(spec: LayerSpec, demand: Demand) -> bool:
    """Whether every further token of a request, however long it is, takes more of this spec."""
    if spec.kind is CacheKind.MAMBA:
        return _keeps_every_state(demand)
    return spec.kind in FULL_KINDS


class BlockRule:
    """The blocks that one request takes of a spec: a rule whose parameters are fields of the spec and of the demand.

    Its first parameter may be `max_model_len`, the length of the request.
    """

    __slots__ = ("_owned", "fields", "has_length", "name", "rule", "source")

    def __init__(self, name: str, rule: Callable[..., int], source: str) -> None:
        self.name, self.rule, self.source = name, rule, source
        names = tuple(signature(rule).parameters)
        self.has_length = names[:1] == ("max_model_len",)
        self.fields = names[self.has_length :]
        self._owned = tuple((field, field in _SPEC_FIELDS) for field in self.fields)

    def arguments(self, spec: LayerSpec, demand: Demand) -> tuple[int, ...]:
        """The values of `fields`."""
        return tuple([getattr(spec if is_own else demand, field) for field, is_own in self._owned])

    def by_length(self, spec: LayerSpec, demand: Demand) -> Callable[[int], int]:
        """Blocks of one request of a length."""
        rule, arguments = self.rule, self.arguments(spec, demand)
        if not self.has_length:
            blocks = rule(*arguments)
            return lambda length: blocks
        return lambda length: rule(length, *arguments)

    def explained(self, length: Quantity, spec: LayerSpec, demand: Demand) -> Quantity:
        """Blocks of one request of `length`."""
        arguments = map(given, self.fields, self.arguments(spec, demand))
        lengths = (length,) if self.has_length else ()
        return explained(self.name, self.rule, *lengths, *arguments, unit=Unit.BLOCKS, source=self.source)


def growing_blocks(max_model_len: int, block_size: int) -> int:
    """Blocks of a cache that keeps every token."""
    return ceil_div(max_model_len, block_size)


def shared_growing_blocks(max_model_len: int, context_ranks: int, block_size: int) -> int:
    """Blocks of a cache that keeps every token, divided over ranks."""
    return ceil_div(ceil_div(max_model_len, context_ranks), block_size)


def window_tokens(sliding_window: int, in_flight_tokens: int) -> int:
    """Tokens of a request that a sliding window keeps at most."""
    return sliding_window - 1 + in_flight_tokens


def chunk_tokens(attention_chunk_size: int, in_flight_tokens: int) -> int:
    """Tokens of a request that chunked local attention keeps at most."""
    return attention_chunk_size + in_flight_tokens


def window_blocks(max_model_len: int, sliding_window: int, in_flight_tokens: int, block_size: int) -> int:
    """Blocks of a sliding window: one more than its tokens fill, since it may begin anywhere in a block."""
    return ceil_div(least(window_tokens(sliding_window, in_flight_tokens), max_model_len), block_size) + 1


def chunk_blocks(
    max_model_len: int, attention_chunk_size: int, in_flight_tokens: int, block_size: int
) -> int:
    """Blocks of chunked local attention, whose chunks begin with a block."""
    return ceil_div(least(chunk_tokens(attention_chunk_size, in_flight_tokens), max_model_len), block_size)


def encoder_blocks(encoder_tokens: int, block_size: int) -> int:
    """Blocks of the keys and values of an encoder."""
    return ceil_div(encoder_tokens, block_size)


def encoder_batch_blocks(batch_tokens: int, block_size: int) -> int:
    """The same, sized for a whole batch."""
    return ceil_div(batch_tokens, block_size)


def one_block() -> int:
    """The block of a state or ring that a request keeps once."""
    return 1


def state_blocks(num_speculative_blocks: int) -> int:
    """Blocks of the current state and of those after each proposed token."""
    return 1 + num_speculative_blocks


def aligned_state_blocks(num_speculative_blocks: int, num_checkpoint_blocks: int) -> int:
    """Blocks of the current and the previous state, of proposed tokens and of checkpoints."""
    return 2 + num_speculative_blocks + num_checkpoint_blocks


def every_state_blocks(max_model_len: int, block_size: int, num_speculative_blocks: int) -> int:
    """Blocks of a state for each block of tokens, and of those after each proposed token."""
    return ceil_div(max_model_len, block_size) + num_speculative_blocks


_SPEC_FIELDS: Final = frozenset(LayerSpec.__dataclass_fields__)
_STATES: Final = f"{SPECS}:MambaSpec.max_memory_usage_bytes"
FULL_RULE: Final = BlockRule(
    "growing_blocks", growing_blocks, f"{SPECS}:FullAttentionSpec.max_memory_usage_bytes (0.33.0)"
)
_SHARED: Final = BlockRule("growing_blocks", shared_growing_blocks, FULL_RULE.source)
_WINDOW: Final = BlockRule(
    "window_blocks", window_blocks, f"{SPECS}:SlidingWindowSpec.max_memory_usage_bytes (0.33.0)"
)
_CHUNK: Final = BlockRule(
    "window_blocks", chunk_blocks, f"{SPECS}:ChunkedLocalAttentionSpec.max_memory_usage_bytes (0.33.0)"
)
_RING: Final = BlockRule(
    "ring_blocks", one_block, f"{SPECS}:CircularBufferSpec.max_memory_usage_bytes (0.33.0)"
)
_ENCODER: Final = BlockRule(
    "encoder_blocks", encoder_blocks, f"{SPECS}:CrossAttentionSpec.max_memory_usage_bytes (0.10.2)"
)
_ENCODER_BATCH: Final = BlockRule(
    "encoder_blocks", encoder_batch_blocks, "vllm/config/scheduler.py:max_num_encoder_input_tokens (0.13.0)"
)
_ONE_STATE: Final = BlockRule("state_blocks", one_block, f"{_STATES} (0.11.0)")
_STATE: Final = BlockRule("state_blocks", state_blocks, f"{_STATES} (0.15.1)")
_ALIGNED_STATES: Final = BlockRule("state_blocks", aligned_state_blocks, f"{_STATES} (0.15.1)")
_EVERY_STATE: Final = BlockRule("growing_blocks", growing_blocks, f"{_STATES} (0.15.1)")
_EVERY_STATE_AND_DRAFTS: Final = BlockRule("growing_blocks", every_state_blocks, f"{_STATES} (0.22.1)")
_NEVER_EVERY_STATE: Final = (MambaBlocks.ONE, MambaBlocks.MODE_WITHOUT_ALL)


def block_rule(spec: LayerSpec, demand: Demand) -> BlockRule:
    """The rule by which this version counts the blocks of a request.

    Raises EngineRefusalError for a window under decode context parallelism.

    Source: vllm/v1/kv_cache_interface.py:max_memory_usage_bytes of each spec (0.8.5 to 0.33.0).
    """
    kind = spec.kind
    if kind in FULL_KINDS:
        return FULL_RULE if demand.context_ranks == 1 else _SHARED
    if kind in WINDOW_KINDS:
        if demand.context_ranks > 1:
            raise EngineRefusalError("context-parallel-window", field="decode_context_parallel_size")
        return _WINDOW
    if kind is CacheKind.CHUNKED_LOCAL_ATTENTION:
        return _CHUNK
    if kind is CacheKind.CIRCULAR_BUFFER:
        return _RING
    if kind is CacheKind.CROSS_ATTENTION:
        return _ENCODER if demand.rules.encoder_tokens is EncoderTokens.ENCODER else _ENCODER_BATCH
    return _state_rule(demand)


def _keeps_every_state(demand: Demand) -> bool:
    return demand.mamba_cache_mode == "all" and demand.rules.mamba_blocks not in _NEVER_EVERY_STATE


def _state_rule(demand: Demand) -> BlockRule:
    by_mode = _ALIGNED_STATES if demand.mamba_cache_mode == "align" else _STATE
    every = _keeps_every_state(demand)
    match demand.rules.mamba_blocks:
        case MambaBlocks.ONE:
            return _ONE_STATE
        case MambaBlocks.LENGTH:
            return _EVERY_STATE if every else _ONE_STATE
        case MambaBlocks.MODE:
            return _EVERY_STATE if every else by_mode
        case MambaBlocks.MODE_AND_SPECULATIVE:
            return _EVERY_STATE_AND_DRAFTS if every else by_mode
        case MambaBlocks.MODE_WITHOUT_ALL:
            return by_mode
        case other:
            assert_never(other)


def blocks_per_request(spec: LayerSpec, length: int, demand: Demand) -> int:
    """Blocks that one request of `length` tokens may take at once, by `block_rule`.

    Raises EngineRefusalError for a window under decode context parallelism.

    Example:
        >>> from packaging.version import Version
        >>> from kvcore.cache.rules import planner_rules
        >>> demand = Demand(rules=planner_rules(Version("0.33.0")), in_flight_tokens=16384, batch_tokens=8192,
        ...                 context_ranks=1, mamba_cache_mode="none")
        >>> window = LayerSpec(kind=CacheKind.SLIDING_WINDOW, layers=1, block_size=16, page_size_bytes=65536,
        ...                    sliding_window=1024)
        >>> blocks_per_request(window, 131_072, demand)
        1089
    """
    return block_rule(spec, demand).by_length(spec, demand)(length)
