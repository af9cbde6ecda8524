"""The pool of a start as the rest of the program sees it: pages, tokens, requests, each with the rule that gave it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from kvcore.base.quantity import Quantity, Scope, Unit, explained, figure, given
from kvcore.base.term import least
from kvcore.base.units import ceil_div
from kvcore.cache.capacity import CacheGroup, CachePlan
from kvcore.cache.spec import CacheKind
from kvcore.engines.sglang.arguments import Arguments
from kvcore.engines.sglang.pools import Pools
from kvcore.engines.sglang.shapes import Shape

SIZING = (
    "model_runner_kv_cache_mixin.py:profile_max_num_token (0.5.9), model_executor/pool_configurator.py (0.5.13, "
    "0.5.18, 0.5.23)"
)
REQUESTS = "kv_cache_configurator.py:resolve_max_num_reqs (0.5.18, 0.5.23)"


def tokens_in(available: Any, bytes_per_token: Any, page_size: Any) -> Any:
    """Tokens that so many bytes have room for, in whole pages."""
    return available // bytes_per_token // page_size * page_size


def requests_in(tokens: Any, length: Any) -> Any:
    """Requests of a length that the tokens have room for."""
    return tokens / length


def pages_of(tokens: Any, page_size: Any) -> Any:
    """Pages of so many tokens."""
    return tokens // page_size


def pages_for(length: Any, page_size: Any) -> Any:
    """Pages of a request."""
    return ceil_div(length, page_size)


def bytes_for(length: Any, bytes_per_token: Any) -> Any:
    """Bytes of a request's tokens."""
    return length * bytes_per_token


class PoolFigures:
    """The figures of one start's pool, as quantities."""

    def __init__(self, pools: Pools, arguments: Arguments, available: Quantity | None) -> None:
        self._pools, self._arguments = pools, arguments
        self._page = given("page_size", arguments.page_size, Unit.TOKENS)
        self._length = given("context_length", arguments.context_length, Unit.TOKENS)
        self._available = available
        self.layer_token = None
        self.bounded_blocks: tuple[Quantity, ...] = ()
        self.stages: tuple[Quantity, ...] = ()

    @cached_property
    def bytes_per_token(self) -> Quantity:
        """Bytes of a token on a rank, as the release counts them."""
        return figure("bytes_per_token", self._pools.cell, source=SIZING)

    @cached_property
    def tokens(self) -> Quantity:
        """`max_total_num_tokens`."""
        pools, scope = self._pools, Scope.PER_REPLICA
        plain = int(pools.rest_bytes // pools.cell) // self._arguments.page_size * self._arguments.page_size
        if self._available is not None and plain == pools.tokens:
            return explained(
                "tokens", tokens_in, self._available, self.bytes_per_token, self._page, unit=Unit.TOKENS, scope=scope,
                source=SIZING,
            )  # fmt: skip
        return figure("tokens", pools.tokens, unit=Unit.TOKENS, scope=scope, source=SIZING)

    @cached_property
    def bytes_per_block(self) -> Quantity:
        """Bytes of a page on a rank."""
        return explained("bytes_per_block", bytes_for, self._page, self.bytes_per_token, source=SIZING)

    @cached_property
    def blocks(self) -> Quantity:
        """Pages of the pool."""
        return explained(
            "blocks",
            pages_of,
            self.tokens,
            self._page,
            unit=Unit.BLOCKS,
            scope=Scope.PER_REPLICA,
            source=SIZING,
        )

    @cached_property
    def pool(self) -> Quantity:
        """All pools that are built, on a rank."""
        return figure("kv_cache", self._pools.pool_bytes, source="mem_cache/memory_pool.py (0.5.9, 0.5.23)")

    @cached_property
    def blocks_per_request(self) -> Quantity:
        """Pages of a request of the whole context."""
        return explained(
            "blocks_per_request", pages_for, self._length, self._page, unit=Unit.BLOCKS, source=SIZING
        )

    @cached_property
    def needed(self) -> Quantity:
        """Bytes of a request of the whole context: nothing checks at start that they are there."""
        return explained("needed", bytes_for, self._length, self.bytes_per_token, source=SIZING)

    @cached_property
    def request_fixed(self) -> Quantity:
        """Bytes of a request that do not grow: its slots of states."""
        pools = self._pools
        slots = pools.state_slots
        each = pools.state_bytes * pools.slots_per_request // (slots + 1) if slots else 0
        return figure("request_fixed", each, source=SIZING)

    @cached_property
    def concurrency(self) -> Quantity:
        """Requests of the whole context at once."""
        return self.concurrency_of(self._arguments.context_length, "concurrency")

    def concurrency_of(self, length: int, name: str = "typical_concurrency") -> Quantity:
        """Requests of a length at once: what the tokens hold, and what may run."""
        tokens = given("length", length, Unit.TOKENS)
        held = explained(
            "held",
            requests_in,
            self.tokens,
            tokens,
            unit=Unit.REQUESTS,
            scope=Scope.PER_REPLICA,
            source=SIZING,
        )
        most = given("max_running_requests", self._pools.requests, Unit.REQUESTS)
        return explained(
            name, least, held, most, unit=Unit.REQUESTS, scope=Scope.PER_REPLICA, source=REQUESTS
        )

    @cached_property
    def longest(self) -> Quantity:
        """Tokens of the longest request that is taken.

        Source: managers/scheduler.py (0.5.9, 0.5.23: max_req_len).
        """
        tokens = explained("tokens_but_one", less_one, self.tokens, unit=Unit.TOKENS, source=SIZING)
        context = explained("context_but_one", less_one, self._length, unit=Unit.TOKENS, source=SIZING)
        return explained(
            "longest", least, tokens, context, unit=Unit.TOKENS, scope=Scope.PER_REPLICA,
            source="managers/scheduler.py: max_req_len (0.5.9, 0.5.23)",
        )  # fmt: skip


def less_one(count: Any) -> Any:
    """One fewer."""
    return count - 1


class PoolPlan(CachePlan, frozen=True, kw_only=True, dict=True):
    """The KV plan of a start of SGLang."""

    trace: Any = None
    """None: no block is cut as vLLM cuts them."""
    pools: Pools
    arguments: Arguments
    available: Quantity | None = None

    @property
    def stage(self) -> int:
        return 0

    @cached_property
    def figures(self) -> Any:
        return PoolFigures(self.pools, self.arguments, self.available)

    def concurrency_at(self, tokens: int) -> Quantity:
        found: Quantity = self.figures.concurrency_of(tokens)
        return found


def pool_plan(pools: Pools, arguments: Arguments, shape: Shape, available: Quantity | None) -> PoolPlan:
    """The plan of those pools."""
    page, context = arguments.page_size, arguments.context_length
    block = int(pools.cell * page)
    groups = [
        CacheGroup(
            kind=CacheKind.FULL_ATTENTION if shape.latent is None else CacheKind.MLA_ATTENTION,
            layers=len(shape.attention) if shape.is_hybrid else shape.layers,
            block_size=page,
            block_tokens=page,
            page_size_bytes=block,
            blocks_per_request=ceil_div(context, page),
        )
    ]
    if pools.swa_tokens is not None and shape.window:
        groups.append(
            CacheGroup(
                kind=CacheKind.SLIDING_WINDOW,
                layers=sum(shape.windows),
                block_size=page,
                block_tokens=page,
                page_size_bytes=block,
                blocks_per_request=ceil_div(shape.window + page, page),
                window_tokens=shape.window + 1,
            )
        )
    held = min(pools.requests, pools.tokens / context)
    slots = pools.state_slots
    fixed = pools.state_bytes * pools.slots_per_request // (slots + 1) if slots else 0
    return PoolPlan(
        num_blocks=pools.tokens // page,
        tokens=pools.tokens,
        max_concurrency=held,
        groups=tuple(groups),
        bytes_per_block=block,
        bytes_per_token=pools.cell,
        request_fixed_bytes=fixed,
        needed_bytes=int(context * pools.cell) + fixed,
        fits=True,
        longest_request_tokens=max(0, min(pools.tokens, context) - 1),
        max_model_len=context,
        pools=pools,
        arguments=arguments,
        available=available,
    )


def no_pool(arguments: Arguments) -> PoolPlan:
    """The plan of memory that no pool can be made of."""
    empty = Pools(tokens=0, requests=0, cell=1, rest_bytes=0, pool_bytes=0, table_bytes=0)
    context = arguments.context_length
    return PoolPlan(
        num_blocks=0,
        tokens=0,
        max_concurrency=0.0,
        groups=(),
        bytes_per_block=0,
        bytes_per_token=0.0,
        request_fixed_bytes=0,
        needed_bytes=0,
        fits=False,
        longest_request_tokens=0,
        max_model_len=context,
        pools=empty,
        arguments=arguments,
    )
