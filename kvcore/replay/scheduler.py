"""vLLM's V1 scheduler, one step after another: who runs, waits and is preempted, and which blocks are taken.

A request that only decodes takes one token a step and needs no look until it fills a block or ends: until that step
(`due`) it is counted, not visited.

Source: vllm/v1/core/sched/scheduler.py:Scheduler.schedule, update_from_output; async_scheduler.py:AsyncScheduler;
vllm/v1/core/kv_cache_manager.py:KVCacheManager.allocate_slots (0.19.0-0.33.0): first come, first served, chunked
prefill. Several groups, and groups of other kinds, are in hybrid.py.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from kvcore.replay.pool import CachedPool, CountedPool
from kvcore.replay.settings import Settings
from kvcore.replay.trace import Contents, TraceRequest

ALWAYS: Final = -1
"""`due` of a request that is visited in every step."""


class Live:
    """A request inside the engine."""

    __slots__ = (
        "arrival", "at", "blocks", "computed", "contents", "due", "end", "first", "flying", "known",
        "preempted", "registered", "since", "trace",
    )  # fmt: skip

    def __init__(self, at: int, trace: TraceRequest, end: int) -> None:
        self.at = at
        self.trace = trace
        self.end = end
        """Tokens at which its answer ends: prompt + answer, or max_model_len."""
        self.known = trace.prompt_tokens
        self.computed = 0
        self.blocks: list[int] = []
        self.contents: list[int] | None = None
        self.registered = 0
        self.flying = False
        """Whether a token of the previous step is in flight (async)."""
        self.due = ALWAYS
        self.since = 0
        """The step before which `computed` was exact, if `due` is a step."""
        self.preempted = 0
        self.first = False
        """Whether its first answer token was computed."""


class Totals:
    """Sums over a replay."""

    __slots__ = ("answers_cut", "hit_tokens", "preemptions", "query_tokens", "resumed_hit_tokens",
                 "resumed_query_tokens")  # fmt: skip

    def __init__(self) -> None:
        self.preemptions = 0
        self.query_tokens = 0
        self.hit_tokens = 0
        self.resumed_query_tokens = 0
        self.resumed_hit_tokens = 0
        self.answers_cut = 0


class Scheduler:
    """The engine's queues and its pool; `step` is one `schedule()` and the handling of its output."""

    def __init__(self, settings: Settings, contents: Contents) -> None:
        self.settings = settings
        self.running: list[Live] = []
        self.waiting: deque[Live] = deque()
        self.totals = Totals()
        self.finished: list[Live] = []
        """Requests that ended in the last step."""
        self.started: list[Live] = []
        """Requests whose first token was computed in the last step."""
        self.used_blocks = self.running_requests = self.waiting_requests = 0
        self.tokens = self.preempted = self.context_tokens = self.prefill_tokens = 0
        """Values of the last step right after `schedule()`."""
        self._context = 0
        self._step = -1
        self._next_due = 0
        self._contents = contents
        self._found: list[int] = []
        """Blocks found by the last look-up."""
        rules = settings.rules
        self._pool = (
            CachedPool(settings.usable_blocks, rules.free_order)
            if settings.enable_prefix_caching
            else CountedPool(settings.usable_blocks)
        )

    def add(self, at: int, request: TraceRequest) -> None:
        """Appends a request to the waiting queue."""
        end = min(request.prompt_tokens + request.answer_tokens, self.settings.max_model_len)
        self.waiting.append(Live(at, request, end))

    def skip(self, steps: int) -> None:
        """Counts idle steps after an idle one."""
        self._step += steps

    def step(self) -> None:
        """One engine step; afterwards the scheduler has the values of this step."""
        self._step += 1
        self.finished = []
        self.started = []
        self.prefill_tokens = 0
        settings = self.settings
        alone = len(self.running) + len(self.waiting) == 1
        threshold = settings.long_prefill_token_threshold
        if alone and settings.rules.spares_lone_request:
            threshold = 0
        running = self.running
        waiting = self.waiting
        if self._step < self._next_due and len(running) <= settings.max_num_batched_tokens:
            self.preempted = 0
            budget = settings.max_num_batched_tokens - len(running)
            ended: list[Live] = []
            lost: list[Live] = []
            next_due = self._next_due
            self._context += len(running)
            left: list[Live] = []
        else:
            budget, ended, lost, left, next_due = self._serve(threshold)
            self.preempted = len(lost)
        if waiting and not lost and budget > 0 and len(running) < settings.max_num_seqs:
            budget, due = self._admit(threshold, budget, ended)
            next_due = min(next_due, due)
        self.used_blocks = settings.usable_blocks - self._pool.free
        self.running_requests = len(running)
        self.waiting_requests = len(waiting)
        # Async, who ended computes nothing in this step any more.
        idle = sum([request.computed for request in ended]) if settings.async_scheduling and ended else 0
        self.context_tokens = self._context - idle
        self.tokens = settings.max_num_batched_tokens - budget
        if settings.async_scheduling and (lost or left):
            self._land(lost, left, ended)
        for request in ended:
            if settings.async_scheduling:
                self._register(request, request.computed)
            self._end(request)
        if ended:
            gone = {request.at for request in ended}
            self.running = [request for request in running if request.at not in gone]
        self._next_due = next_due

    def _serve(self, threshold: int) -> tuple[int, list[Live], list[Live], list[Live], int]:
        """Serves the running list: budget left, who ends, who was preempted, who got nothing, the next due step."""
        step, running, settings = self._step, self.running, self.settings
        budget = settings.max_num_batched_tokens
        ended: list[Live] = []
        lost: list[Live] = []
        next_due = 1 << 62
        at = 0
        while at < len(running) and budget > 0:
            request = running[at]
            due = request.due
            at += 1
            if due > step:
                budget -= 1
                self._context += 1
                if due < next_due:
                    next_due = due
                continue
            if due != ALWAYS:
                self._settle(request)
            computed = request.computed
            if request.flying and computed + 1 >= request.end:
                ended.append(request)
                continue
            tokens = request.known + request.flying - computed
            if 0 < threshold < tokens:
                tokens = threshold
            tokens = self._clipped(request, computed, min(tokens, budget))
            if not tokens:
                next_due = ALWAYS
                continue
            while not self._grow(request, computed + tokens):
                victim = running.pop()
                self._preempt(victim)
                lost.append(victim)
                if victim is request:
                    break
            if lost and lost[-1] is request:
                at -= 1
                break
            budget -= tokens
            due = self._scheduled(request, tokens, ended)
            if due < next_due:
                next_due = due
        left = running[at:]
        if left:
            next_due = ALWAYS
        for request in left:
            if request.due != ALWAYS:
                self._settle(request)
        return budget, ended, lost, left, next_due

    def _admit(self, threshold: int, budget: int, ended: list[Live]) -> tuple[int, int]:
        """Admits requests from the front of the queue while they fit: budget left, and their next due step."""
        settings, running, waiting = self.settings, self.running, self.waiting
        next_due = 1 << 62
        while waiting and budget > 0 and len(running) < settings.max_num_seqs:
            request = waiting[0]
            known = request.known
            spare = settings.watermark_blocks if running else 0
            hit = self._look_up(request, spare)
            if hit < 0:
                break
            tokens = known - hit
            if 0 < threshold < tokens:
                tokens = threshold
            tokens = self._clipped(request, hit, min(tokens, budget))
            if not tokens or not self._enter(request, hit, tokens, spare):
                break
            waiting.popleft()
            request.computed = hit
            running.append(request)
            self._count_look_up(request, known, hit)
            self._context += hit
            budget -= tokens
            next_due = min(next_due, self._scheduled(request, tokens, ended))
        return budget, next_due

    def _clipped(self, request: Live, start: int, tokens: int) -> int:
        """Tokens of a step that starts with so many computed, cut where the cache needs it."""
        del request, start
        return tokens

    def _grow(self, request: Live, tokens: int) -> bool:
        """Gives a running request blocks for so many tokens; False if the pool has too few."""
        need = -(-tokens // self.settings.block_size) - len(request.blocks)
        if need > 0:
            if self._pool.free < need:
                return False
            self._pool.take(request.blocks, need)
        return True

    def _look_up(self, request: Live, spare: int) -> int:
        """Tokens of a waiting request found in the cache; -1 if it cannot fit with any hit."""
        size, caching = self.settings.block_size, self.settings.enable_prefix_caching
        most = (request.known - 1) // size if caching else 0
        if self.settings.rules.reserves_whole and -(-request.known // size) - most + spare > self._pool.free:
            return -1
        if caching and request.contents is None:
            request.contents = self._contents.of(request.trace, (request.end - 1) // size)
        self._found = self._pool.find(request.contents[:most]) if request.contents else []
        return len(self._found) * size

    def _enter(self, request: Live, hit: int, tokens: int, spare: int) -> bool:
        """Gives a waiting request the found blocks and those for its first tokens, if it fits."""
        size, pool, found = self.settings.block_size, self._pool, self._found
        whole = hit + tokens
        if self.settings.rules.reserves_whole:
            whole = max(whole, request.known)
        if -(-whole // size) - len(found) + pool.unheld(found) + spare > pool.free:
            return False
        pool.hold(request.blocks, found)
        request.registered = len(found)
        pool.take(request.blocks, -(-(hit + tokens) // size) - len(found))
        return True

    def _give_back(self, request: Live) -> None:
        """Frees all blocks of a request."""
        self._pool.give_back(request.blocks)
        request.registered = 0

    def _count_look_up(self, request: Live, known: int, hit: int) -> None:
        if not self.settings.enable_prefix_caching:
            return
        if request.preempted:
            self.totals.resumed_query_tokens += known
            self.totals.resumed_hit_tokens += hit
        else:
            self.totals.query_tokens += known
            self.totals.hit_tokens += hit

    def _scheduled(self, request: Live, tokens: int, ended: list[Live]) -> int:
        """Books `tokens` of a request in this step: contents, its new token, and its next due step."""
        is_async = self.settings.async_scheduling
        computed = request.computed = request.computed + tokens
        self._context += tokens
        if tokens > 1 or not request.first:
            self.prefill_tokens += tokens
        self._register(request, min(computed, request.known))
        flew, request.flying = request.flying, False
        if computed < request.known + flew:
            request.known += flew
            request.due = ALWAYS
            return ALWAYS
        if not request.first:
            request.first = True
            self.started.append(request)
        if is_async:
            request.known += flew
            request.flying = True
        else:
            request.known += 1
            if request.known >= request.end:
                ended.append(request)
                return 1 << 62
        return self._cruise(request)

    def _cruise(self, request: Live) -> int:
        """Sets the step in which a decoding request is visited again: for a block, a content, or its end."""
        is_async = self.settings.async_scheduling
        computed = request.computed
        ahead = min(self._quiet(computed), request.end - (1 if is_async else 2) - computed)
        request.since = self._step + 1
        request.due = request.since + ahead
        return request.due

    def _quiet(self, computed: int) -> int:
        """Number of one-token steps in which nothing happens to the blocks of a request."""
        size = self.settings.block_size
        ahead = -computed % size
        if self.settings.enable_prefix_caching and not self.settings.async_scheduling:
            ahead = min(ahead, -(computed + 1) % size)
        return ahead

    def _settle(self, request: Live) -> None:
        """Updates a request that was not visited to its state before this step."""
        request.computed += self._step - request.since
        request.due = ALWAYS
        if self.settings.async_scheduling:
            request.known = request.computed
            request.flying = True
        else:
            request.known = request.computed + 1

    def _register(self, request: Live, tokens: int) -> None:
        full = tokens // self.settings.block_size
        if full > request.registered and request.contents is not None:
            self._pool.register(request.blocks, request.contents, request.registered, full)
            request.registered = full

    def _preempt(self, request: Live) -> None:
        """Preempts a request: its blocks are freed, and it goes to the front of the queue with its answer so far."""
        if request.due != ALWAYS:
            self._settle(request)
        self._context -= request.computed
        self._give_back(request)
        request.computed = 0
        request.preempted += 1
        self.totals.preemptions += 1
        self.waiting.appendleft(request)

    def _land(self, lost: list[Live], left: list[Live], ended: list[Live]) -> None:
        """Async: delivers tokens in flight of requests that were preempted or got no budget."""
        for request in lost:
            if request.flying:
                request.flying = False
                request.known += 1
                if request.known >= request.end:
                    self.waiting.remove(request)
                    self._leave(request)
        for request in left:
            if request.flying:
                request.flying = False
                request.known += 1
                self._register(request, request.computed)
                if request.known >= request.end:
                    ended.append(request)

    def _end(self, request: Live) -> None:
        self._context -= request.computed
        self._give_back(request)
        self._leave(request)

    def _leave(self, request: Live) -> None:
        trace = request.trace
        self.totals.answers_cut += trace.prompt_tokens + trace.answer_tokens > self.settings.max_model_len
        request.contents = None
        self.finished.append(request)
