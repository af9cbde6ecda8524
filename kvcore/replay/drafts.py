"""The scheduler with speculative decoding: drafts take budget and blocks, and rejected drafts are taken back.

The number of accepted drafts per step is given, the same pattern for each request; all other rules are the engine's.

Source: vllm/v1/core/sched/scheduler.py:Scheduler.schedule, update_from_output, _preempt_request,
vllm/v1/core/sched/async_scheduler.py:AsyncScheduler (0.32.0).
"""

from __future__ import annotations

from msgspec import Struct

from kvcore.replay.scheduler import Live, Scheduler
from kvcore.replay.settings import Drafts, Padding, Settings
from kvcore.replay.trace import Contents


class Drafting:
    """State of a request with drafts."""

    __slots__ = ("drafted", "drafts", "is_prefill", "lost", "on_the_way", "verified")

    def __init__(self) -> None:
        self.drafts = 0
        """Drafts of its next step."""
        self.is_prefill = False
        """Whether known tokens remained to be computed after its last step."""
        self.on_the_way = 0
        """Tokens expected from steps in flight: `num_output_placeholders`."""
        self.verified = 0
        """Steps that verified drafts of it."""
        self.drafted = 0
        """Steps that gave it a token and new drafts."""
        self.lost = 0
        """Times it was preempted."""


class Sent(Struct, frozen=True):
    """A request in one step, with what it gets when the output of the step is handled."""

    request: Live
    drafts: int
    accepted: int
    lost: int
    """Times it had been preempted when the step was scheduled."""


class DraftScheduler(Scheduler):
    """The scheduler for one group of full attention with drafts; it visits every request in every step."""

    def __init__(self, settings: Settings, contents: Contents, drafts: Drafts) -> None:
        super().__init__(settings, contents)
        self._drafts = drafts
        self._of: dict[int, Drafting] = {}
        self._flight: list[Sent] = []
        self._sent: list[Sent] = []
        self._has_prefill = self._has_served = False
        """Whether this step schedules a running request with known tokens left, and whether any running request."""
        self._slots_left = 0
        """Tokens left for this step, including the drafter's slots."""
        taken = 0 if settings.rules.slots_by_request else drafts.slots * settings.max_num_seqs
        self._most_tokens = settings.max_num_batched_tokens - taken
        self._slots = drafts.slots if settings.rules.slots_by_request else 0

    def _own(self, request: Live) -> Drafting:
        return self._of.setdefault(request.at, Drafting())

    def step(self) -> None:
        """One engine step."""
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
        self.tokens = self._most_tokens - budget
        self.context_tokens = sum(request.computed for request in self.running)
        arrived, self._flight = (
            (self._flight, self._sent) if settings.async_scheduling else (self._sent, self._flight)
        )
        for sent in arrived:
            self._handle(sent)

    def _serve_all(self, threshold: int) -> int:
        settings, running = self.settings, self.running
        budget, at = self._most_tokens, 0
        self._slots_left = settings.max_num_batched_tokens
        self._has_prefill = self._has_served = False
        while at < len(running) and budget > 0 and self._slots_left > self._slots:
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
            tokens = min(
                tokens, budget, self._slots_left - self._slots, settings.max_model_len - 1 - request.computed
            )
            if tokens <= 0:
                continue
            victim = None
            while not self._grow(request, self._with_room(request.computed + tokens)):
                victim = running.pop()
                self._preempt(victim)
                if victim is request:
                    break
            if victim is request:
                break
            budget -= tokens
            self._slots_left -= tokens + self._slots
            self._has_served = True
            self._has_prefill |= own.is_prefill
            self._send(request, tokens)
        return budget

    def _admit_all(self, threshold: int, budget: int) -> int:
        settings, running, waiting = self.settings, self.running, self.waiting
        while (
            waiting and budget > 0 and len(running) < settings.max_num_seqs and self._slots_left > self._slots
        ):
            request = waiting[0]
            most = min(budget, self._slots_left - self._slots)
            spare = settings.watermark_blocks if running else 0
            hit = self._look_up(request, spare)
            if hit < 0:
                break
            tokens, padding = request.known - hit, 0
            padded = 1 + self._drafts.tokens
            if tokens == 1 and self._may_pad(hit, padded):
                if padded > most or hit + padded > settings.max_model_len:
                    break
                tokens, padding = padded, self._drafts.tokens
            if 0 < threshold < tokens:
                tokens = threshold
            tokens = min(tokens, most)
            if not self._enter(request, hit, self._with_room(hit + tokens) - hit, spare):
                break
            waiting.popleft()
            request.computed = hit
            running.append(request)
            self._count_look_up(request, request.known, hit)
            budget -= tokens
            self._slots_left -= tokens + self._slots
            self._send(request, tokens, padding)
        return budget

    def _may_pad(self, hit: int, padded: int) -> bool:
        """Whether the one token of an admitted request is padded with drafts, so that all decode equally many."""
        pads = self.settings.rules.pads_drafts
        joins = self._has_served or (hit > 0 and pads is Padding.AFTER_HIT)
        if pads is Padding.NOBODY or self._has_prefill or not joins:
            return False
        return pads is Padding.JOINING or hit + padded + 1 <= self.settings.max_model_len

    def _with_room(self, tokens: int) -> int:
        """Tokens that need blocks in a step, including those that the drafter writes ahead."""
        ahead = self._drafts.tokens if self._drafts.writes_ahead else 0
        return min(tokens + ahead, self.settings.max_model_len)

    def _look_up(self, request: Live, spare: int) -> int:
        """Tokens found in the cache; the last block is computed again for a drafter that needs its hidden states."""
        hit = super()._look_up(request, spare)
        if hit > 0 and self._drafts.drops_last_block:
            self._found = self._found[:-1]
            hit = len(self._found) * self.settings.block_size
        return hit

    def _send(self, request: Live, tokens: int, padding: int = 0) -> None:
        """Books `tokens` of a request in this step."""
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
        found = self._drafts.proposed or (self._drafts.tokens,)
        own.drafts = found[own.drafted % len(found)]
        own.drafted += 1
        self._sent.append(Sent(request, drafts, accepted, own.lost))

    def _preempt(self, request: Live) -> None:
        own = self._own(request)
        own.drafts = own.on_the_way = 0
        own.lost += 1
        super()._preempt(request)

    def _handle(self, sent: Sent) -> None:
        """Handles the output of a step: one token and the accepted drafts; rejected drafts are taken back."""
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
