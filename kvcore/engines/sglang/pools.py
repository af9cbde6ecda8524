"""The pools of a rank: tokens, windows, states, requests, and the bytes that are allocated for them.

`sized` takes the memory that is free before the weights and after them, as a start prints it, and goes on as the
release's own sizing does.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import ModelError
from kvcore.base.units import round_up
from kvcore.engines.sglang.arguments import V0_5_11, V0_5_18, V0_5_21, engine_refuses, rounded_up_thousandth
from kvcore.engines.sglang.compressed import compressed_pools
from kvcore.engines.sglang.states import GIB, Stated
from kvcore.engines.sglang.tables import sglang_release

V0_5_1: Final = sglang_release("0.5.3.post3")
LEAST_REQUESTS: Final = 2048
MOST_REQUESTS: Final = 4096
EVICTION_INTERVAL: Final = 128
"""SGLANG_SWA_EVICTION_INTERVAL.

Source: environ.py (0.5.18, 0.5.23).
"""


class Pools(Struct, frozen=True, kw_only=True):
    """The pools of one rank of each attention replica."""

    tokens: int
    """`max_total_num_tokens`."""
    swa_tokens: int | None = None
    state_slots: int | None = None
    """`max_mamba_cache_size`."""
    requests: int
    """`max_running_requests` of one attention replica."""
    cell: float
    """Bytes of a token as the release counts them."""
    rest_bytes: int
    """What the fraction leaves to keys, values and states."""
    pool_bytes: int
    """Bytes of the pools that are built, without the request table."""
    state_bytes: int = 0
    """Bytes of the pool of states in it."""
    table_bytes: int
    """The request table, outside what the fraction leaves."""
    slots_per_request: int = 0
    fixed_bytes: int = 0
    """Bytes that do not grow with the tokens."""
    viewed_bytes: int = 0
    """Bytes of views of the same memory, which the engine adds up once more."""
    row: float = 0
    """Bytes of a token of the pools that are built."""


class Sizing(Stated):
    """One start's sizing."""

    def _window_layers(self, stage: range, stages: int) -> tuple[int, int]:
        """Full and sliding layers of a stage; up to 0.5.18 every stage but the last counts one layer too many.

        Source: model_executor/model_runner.py (0.5.9, 0.5.13, 0.5.18: layer lists up to end_layer + 1), model_executor/
        model_runner_components/layer_setup.py (0.5.23).
        """
        last = stage.stop
        if stages > 1 and self.version < V0_5_21:
            last += 1
        places = range(stage.start, min(last, len(self.shape.windows)))
        sliding = sum(self.shape.windows[place] for place in places)
        return len(places) - sliding, sliding

    def sized(self, before: float, after: float) -> Pools:
        """The pools of a start with so much memory free before its weights and after them, in GiB.

        Raises EngineRefusalError in the engine's words.
        """
        arguments = self.arguments
        fraction = arguments.mem_fraction_static
        rest = after - before * (1 - fraction) - arguments.image_reserve_mib / 1024
        return self._in_rest(rest, (before, after))

    def in_rest(self, rest: float) -> Pools:
        """The pools in so many GiB. Raises EngineRefusalError in the engine's words."""
        return self._in_rest(rest, None)

    def _in_rest(self, rest: float, free: tuple[float, float] | None) -> Pools:
        arguments, shape = self.arguments, self.shape
        fraction = arguments.mem_fraction_static
        whole, slots = rest, None
        if shape.is_hybrid:
            rest, slots, _ = self._states(rest)
        if self.version >= V0_5_18 and rest <= 0:
            least = fraction if free is None else 1 - free[1] / free[0]
            raise engine_refuses(
                f"Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static={fraction}. "
                f"Raise --mem-fraction-static above {rounded_up_thousandth(least):.3f} "
                f"(minimum viable = 1 - available/pre = {least:.4f}). If using speculative decoding, draft weights "
                "are now counted.",
                "gpu_memory_utilization",
                fraction,
            )
        available = int(rest * GIB)
        if shape.compressed is not None:
            return self._compressed(available, int(whole * GIB))
        if shape.windows and arguments.has_window_pool:
            return self._windowed(available, int(whole * GIB), slots)
        return self._plain(available, int(whole * GIB), slots)

    def _plain(self, available: int, whole: int, slots: int | None) -> Pools:
        page = self.arguments.page_size
        cells, tokens = [], []
        for stage in self._stages():
            cell = self.cell(stage)
            cell += self._draft_bytes(stage, cell)
            if not cell:
                continue
            count = int(available // cell)
            cells.append(cell)
            tokens.append(count // page * page)
        if not tokens:
            raise ModelError(
                "unknown-architecture",
                field="config.architectures",
                architecture=self.shape.name,
                reason="no layer of it is read whose keys and values this engine keeps",
            )
        profiled = min(tokens)
        found = self._capped(profiled)
        place = tokens.index(min(tokens))
        row = self.cell(self._stages()[place], is_built=True)
        return self._finished(
            found, cells[place], whole, row * (found + page), slots=slots, row=row, profiled=profiled
        )

    def _capped(self, tokens: int) -> int:
        most, page = self.arguments.max_total_tokens, self.arguments.page_size
        return tokens if most is None else min(tokens, most) // page * page

    def _windowed(self, available: int, whole: int, slots: int | None) -> Pools:
        """Source: model_runner_kv_cache_mixin.py:set_num_tokens_hybrid_swa (0.5.9), pool_configurator.py:
        HybridSWAPoolConfigurator (0.5.13, 0.5.18, 0.5.23)."""
        arguments, page, ratio = self.arguments, self.arguments.page_size, self.arguments.swa_ratio
        full, sliding = self._per_layer(self.shape.heads), self._per_layer(self.shape.window_heads)
        stages, counted = self._stages(), []
        for stage in stages:
            many, few = self._window_layers(stage, len(stages))
            extra = full * arguments.draft_layers
            plain = full * many + sliding * few
            cell = full * many + extra + ratio * sliding * few if many else sliding * few + extra
            counted.append((cell, plain, many, few))
        cell, plain, many, few = counted[0]
        cap = self._window_cap()
        if self.version < V0_5_11:
            tokens = min(int(available // plain) for _, plain, _, _ in counted)
            tokens = (
                self._capped(tokens // page * page)
                if arguments.max_total_tokens is None
                else self._capped(tokens)
            )
            total = tokens * plain
            tokens = int(total / cell) if many else tokens
        elif cap is not None:
            swa = round_up(cap, page)
            tokens = int((available - swa * sliding * few) // (full * (many + arguments.draft_layers)))
            if tokens <= 0 and self.version >= V0_5_21:
                raise engine_refuses(
                    f"SWA pool cap ({swa} tokens, {swa * sliding * few / GIB:.2f} GiB) leaves no room for the full KV "
                    f"pool within the available {available / GIB:.2f} GiB. Reduce --max-running-requests, lower "
                    "SGLANG_SWA_EVICTION_INTERVAL, or increase --mem-fraction-static.",
                    "max_num_seqs",
                )
            cell = full * (many + arguments.draft_layers) + ratio * sliding * few
        else:
            tokens = min(int(available // one) for one, *_ in counted)
        tokens = tokens // page * page
        if self.version >= V0_5_11:
            tokens = self._capped(tokens)
        if cap is not None:
            swa = (
                min(round_up(cap, page), max(tokens, 0))
                if arguments.max_total_tokens
                else round_up(cap, page)
            )
        else:
            swa = int(tokens * ratio) // page * page if many else tokens
        if self.version >= V0_5_18 and cap is None and many and self.shape.window + page >= swa:
            raise engine_refuses(
                f"SWA pool ({swa} tokens) cannot hold even one request: the prefill admission floor is "
                f"sliding_window_size ({self.shape.window}) + page_size ({page}). Increase "
                "--swa-full-tokens-ratio or the total KV budget.",
                "gpu_memory_utilization",
            )
        own_many, own_few = self._built_window_layers(stages[0])
        built = full * own_many * ((tokens if many else 0) + page) + sliding * own_few * (swa + page)
        if self.version < V0_5_11:
            cell = plain
            built += (tokens + page + 1) * 8 if many else 0
        return self._finished(tokens, cell, whole, built, swa=swa, slots=slots, row=cell)

    def _built_window_layers(self, stage: range) -> tuple[int, int]:
        if self.arguments.pp_size > 1:
            return self._window_layers(stage, self.arguments.pp_size)
        sliding = sum(self.shape.windows)
        return len(self.shape.windows) - sliding, sliding

    def _window_cap(self) -> int | None:
        """Tokens that windows of all requests may take at once, where nothing else is kept of them.

        Source: pool_configurator.py:SWAChunkCapPoolConfigurator (0.5.18), compute_swa_request_cap (0.5.23).
        """
        arguments = self.arguments
        chunk = arguments.chunked_prefill_size
        if (
            self.version < V0_5_18
            or not arguments.disable_radix_cache
            or arguments.max_running_requests is None
        ):
            return None
        if chunk <= 0 and arguments.role != "decode":
            return None
        page, drafts = arguments.page_size, arguments.draft_tokens or 1
        decode = page
        if arguments.algorithm:
            decode = 2 * max(arguments.draft_steps * max(1, arguments.draft_topk), arguments.draft_tokens)
        requests = max(1, arguments.max_running_requests // arguments.attention_replicas)
        each = self.shape.window + max(1, EVICTION_INTERVAL) * drafts + page + decode
        if arguments.role == "decode":
            return each * requests
        return each * requests + (2 if arguments.is_overlapped else 1) * chunk + page

    def _compressed(self, available: int, whole: int) -> Pools:
        assert self.shape.compressed is not None
        arguments = self.arguments
        asked = arguments.max_running_requests
        found = compressed_pools(
            self.shape.compressed,
            available,
            version=self.version,
            ratio=arguments.swa_ratio,
            page=arguments.page_size,
            requests=None if asked is None else max(1, asked // arguments.attention_replicas),
            context=arguments.context_length,
            has_drafts=bool(arguments.algorithm),
            most_tokens=arguments.max_total_tokens,
        )
        pools = self._finished(
            found.tokens,
            found.bytes_per_token,
            whole,
            0,
            swa=found.swa_tokens,
            slots=None,
            row=found.bytes_per_token,
        )
        return replace(pools, pool_bytes=found.built(pools.requests), fixed_bytes=found.fixed_bytes)

    # Requests

    def _requests(self, tokens: int, slots: int | None, profiled: int | None) -> int:
        """Source: model_executor/model_runner.py:init_memory_pool (0.5.9), model_runner_kv_cache_mixin.py:
        _resolve_max_num_reqs (0.5.13), kv_cache_configurator.py:resolve_max_num_reqs (0.5.18, 0.5.23)."""
        arguments, asked = self.arguments, self.arguments.max_running_requests
        replicas = arguments.attention_replicas
        estimated = min(
            max(int((profiled or tokens) / arguments.context_length * 512), LEAST_REQUESTS), MOST_REQUESTS
        )
        if self.version < V0_5_11:
            pool = estimated if asked is None else asked
            found = min(tokens // 2 if asked is None else asked // replicas, pool)
        elif self.version < V0_5_18:
            found = min(estimated, tokens // 2) if asked is None else min(asked // replicas, estimated)
        else:
            found = min(estimated if asked is None else max(1, asked // replicas), tokens // 2)
        if slots is None:
            return found
        ratio = self.slots_per_request()
        found = min(found, slots // ratio)
        if found <= 0 and self.version >= V0_5_11:
            raise engine_refuses(
                "Hybrid (mamba/linear-attention) state cache is too small to serve any requests. "
                f"max_mamba_cache_size={slots}, mamba_ratio={ratio}, resulting max_num_reqs={found}. "
                "Try: (1) reduce --max-running-requests, (2) increase --mem-fraction-static, or "
                "(3) use GPUs with more memory.",
                "gpu_memory_utilization",
            )
        return found

    def table_bytes(self, requests: int) -> int:
        """The request table: a row of places for each request.

        Source: mem_cache/memory_pool.py:ReqToTokenPool (0.5.9, 0.5.13), mem_cache/allocation_sizing.py:
        get_req_to_token_extra_context_len (0.5.23).
        """
        arguments = self.arguments
        extra = 4 + arguments.draft_tokens
        if arguments.algorithm and arguments.page_size > 1 and self.version >= V0_5_11:
            length = max(arguments.draft_steps * max(1, arguments.draft_topk), arguments.draft_tokens)
            extra = max(extra, 2 * length + arguments.page_size - 1)
        rows = requests + (1 if self.version >= V0_5_11 else 0)
        return rows * (arguments.context_length + extra) * 4

    def _finished(
        self,
        tokens: int,
        cell: float,
        whole: int,
        built: float,
        *,
        slots: int | None,
        row: float,
        swa: int | None = None,
        profiled: int | None = None,
    ) -> Pools:
        fraction = self.arguments.mem_fraction_static
        if tokens <= 0:
            words = "Not enough memory. Please try to increase --mem-fraction-static."
            if V0_5_1 <= self.version < V0_5_11:
                words += f" Current value: self.server_args.mem_fraction_static={fraction}"
            raise engine_refuses(words, "gpu_memory_utilization", fraction)
        is_first = self.version < V0_5_11 and profiled is not None
        requests = self._requests(tokens, slots, profiled if is_first else tokens)
        states = self._built_states(slots, requests)
        return Pools(
            tokens=tokens,
            swa_tokens=swa,
            state_slots=slots,
            requests=requests,
            cell=cell,
            rest_bytes=whole,
            pool_bytes=int(built) + states,
            state_bytes=states,
            table_bytes=self.table_bytes(requests),
            slots_per_request=0 if slots is None else self.slots_per_request(),
            row=row,
            viewed_bytes=self._viewed(slots, requests),
        )
