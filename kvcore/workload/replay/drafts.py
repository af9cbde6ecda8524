"""The scheduler with speculative decoding: drafts take budget and blocks, and what is not accepted is taken back.

How many drafts of a step are accepted is given, request by request the same pattern; every other rule is the engine's.

Source: vllm/v1/core/sched/scheduler.py:Scheduler.schedule, update_from_output, _preempt_request,
vllm/v1/core/sched/async_scheduler.py:AsyncScheduler (0.32.0).
"""

from __future__ import annotations

from msgspec import Struct

from kvcore.workload.replay.scheduler import Live, Scheduler
from kvcore.workload.replay.settings import Drafts, Settings
from kvcore.workload.replay.trace import Contents


class Drafting:
    """Drafts of a request and what is on the way for it."""

    __slots__ = ("drafts", "is_prefill", "lost", "on_the_way", "verified")

    def __init__(self) -> None:
        self.drafts = 0
        """Of its next step."""
        self.is_prefill = False
        """Whether its last step left known tokens to compute."""
        self.on_the_way = 0
        """Tokens that computed steps may yet give it: `num_output_placeholders`."""
        self.verified = 0
        """Steps in which drafts of it were verified."""
        self.lost = 0
        """How often it was preempted."""


class Sent(Struct, frozen=True):
    """A request in one step: what it gets when the step's output is handled."""

    request: Live
    drafts: int
    accepted: int
    lost: int
    """How often the request had been preempted."""


class DraftScheduler(Scheduler):
    """The same queues for one group of full attention; every request is looked at in every step."""

    def __init__(self, settings: Settings, contents: Contents, drafts: Drafts) -> None:
        super().__init__(settings, contents)
        self._drafts = drafts
        self._of: dict[int, Drafting] = {}
        self._flight: list[Sent] = []
        self._sent: list[Sent] = []
        self._has_prefill = False

    def _own(self, request: Live) -> Drafting:
        return self._of.setdefault(request.at, Drafting())

    def step(self) -> None:
        """One engine step, as of every scheduler."""
        self._step += 1
        self.finished, self.started, self._sent = [], [], []
        self.prefill_tokens = 0
        settings = self.settings
        threshold = settings.long_prefill_token_threshold
        if settings.rules.spares_lone_request and len(self.running) + len(self.waiting) == 1:
            threshold = 0
        preemptions = self.totals.preemptions
        budget = self._serve_all(threshold)
        self.preempted = self.totals.preemptions - preemptions
        if not self.preempted:
            budget = self._admit_all(threshold, budget)
        self.used_blocks = settings.usable_blocks - self._pool.free
        self.running_requests, self.waiting_requests = len(self.running), len(self.waiting)
        self.tokens = settings.max_num_batched_tokens - budget
        self.context_tokens = sum(request.computed for request in self.running)
        arrived, self._flight = (
            (self._flight, self._sent) if settings.async_scheduling else (self._sent, self._flight)
        )
        for sent in arrived:
            self._handle(sent)

    def _serve_all(self, threshold: int) -> int:
        settings, running = self.settings, self.running
        budget, at = settings.max_num_batched_tokens, 0
        self._has_prefill = False
        while at < len(running) and budget > 0:
            request = running[at]
            own = self._own(request)
            at += 1
            trace = request.trace
            if own.on_the_way and request.computed + 2 - own.on_the_way >= (
                trace.prompt_tokens + trace.answer_tokens
            ):
                continue
            tokens = request.known + own.drafts + own.on_the_way - request.computed
            if 0 < threshold < tokens:
                tokens = threshold
            tokens = min(tokens, budget, settings.max_model_len - 1 - request.computed)
            if tokens <= 0:
                continue
            victim = None
            while not self._grow(request, self._slots(request.computed + tokens)):
                victim = running.pop()
                self._preempt(victim)
                if victim is request:
                    break
            if victim is request:
                break
            budget -= tokens
            self._has_prefill |= own.is_prefill
            self._send(request, tokens)
        return budget

    def _admit_all(self, threshold: int, budget: int) -> int:
        settings, running, waiting = self.settings, self.running, self.waiting
        while waiting and budget > 0 and len(running) < settings.max_num_seqs:
            request = waiting[0]
            spare = settings.watermark_blocks if running else 0
            hit = self._look_up(request, spare)
            if hit < 0:
                break
            tokens, padding = request.known - hit, 0
            padded = 1 + self._drafts.tokens
            has_room = hit + padded + 1 <= settings.max_model_len
            if tokens == 1 and has_room and not self._has_prefill and (self._sent or hit):
                if padded > budget:
                    break
                tokens, padding = padded, self._drafts.tokens
            if 0 < threshold < tokens:
                tokens = threshold
            tokens = min(tokens, budget)
            if not self._enter(request, hit, self._slots(hit + tokens) - hit, spare):
                break
            waiting.popleft()
            request.computed = hit
            running.append(request)
            self._count_look_up(request, request.known, hit)
            budget -= tokens
            self._send(request, tokens, padding)
        return budget

    def _slots(self, tokens: int) -> int:
        """Tokens that a step has blocks for: also those that the drafter writes ahead."""
        return min(tokens + self._drafts.tokens, self.settings.max_model_len)

    def _look_up(self, request: Live, spare: int) -> int:
        """As without drafts, but the last block found is computed again: the drafter needs its hidden states."""
        hit = super()._look_up(request, spare)
        if hit > 0:
            self._found = self._found[:-1]
            hit = len(self._found) * self.settings.block_size
        return hit

    def _send(self, request: Live, tokens: int, padding: int = 0) -> None:
        """What follows from `tokens` of a request in this step."""
        own = self._own(request)
        before = request.known + own.on_the_way
        drafts = max(0, request.computed + tokens - before)
        own.drafts = 0
        if tokens > 1 and not request.first:
            self.prefill_tokens += tokens
        request.computed += tokens
        self._register(request, min(request.computed, request.known))
        own.is_prefill = request.computed < before
        if own.is_prefill:
            return
        accepted = 0
        if drafts and not padding:
            pattern = self._drafts.accepted
            accepted = min(drafts, pattern[own.verified % len(pattern)])
            own.verified += 1
        if not request.first:
            request.first = True
            self.started.append(request)
        if self.settings.async_scheduling:
            own.on_the_way += 1 + drafts
        own.drafts = self._drafts.tokens
        self._sent.append(Sent(request, drafts, accepted, own.lost))

    def _preempt(self, request: Live) -> None:
        own = self._own(request)
        own.drafts = own.on_the_way = 0
        own.lost += 1
        super()._preempt(request)

    def _handle(self, sent: Sent) -> None:
        """The output of a step: one token and the drafts that were accepted; the others are taken back."""
        request = sent.request
        own = self._of.get(request.at)
        if own is None:
            return
        is_stale = own.lost > sent.lost
        tokens = min(1 + sent.accepted, request.end - request.known)
        request.known += tokens
        if is_stale:
            if request.known >= request.end:
                self.waiting.remove(request)
                self._gone(request)
            return
        request.computed -= sent.drafts - sent.accepted
        if self.settings.async_scheduling:
            own.on_the_way -= sent.drafts - sent.accepted + tokens
            self._register(request, request.computed - own.on_the_way)
        if request.known >= request.end:
            self.running = [other for other in self.running if other is not request]
            self._give_back(request)
            self._gone(request)

    def _gone(self, request: Live) -> None:
        del self._of[request.at]
        self._leave(request)
