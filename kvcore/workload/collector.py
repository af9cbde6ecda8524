"""Requests added up as they come: what is kept is bounded, whatever comes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import repeat
from typing import Final

from kvcore.workload.histogram import LengthHistogram
from kvcore.workload.layouts import Rows
from kvcore.workload.requests import Request
from kvcore.workload.traffic import Traffic, added, traffic_of_counts, with_counts

MAX_FRESH: Final = 1 << 17
"""Different requests that are kept as they are until they are added up; within it nothing is binned."""
MAX_SESSIONS: Final = 1 << 17
"""Sessions that are followed; of more than that half are followed, chosen by their hash, then half of those."""
MAX_BLOCKS: Final = 1 << 20
"""Hashes of blocks of prompts that are remembered; blocks beyond them count as new."""


class Collector:
    """Requests, added up as they come.

    Example:
        >>> collector = Collector()
        >>> collector.add(Request(prompt_tokens=900, completion_tokens=80, max_tokens=512))
        >>> found = collector.traffic()
        >>> found.taken.lengths, found.needed.lengths, found.joint.running_tokens
        ((980,), (1412,), 940.5)
    """

    def __init__(self) -> None:
        self.requests = 0
        self._fresh: Counter[tuple[int, int | None, int | None]] = Counter()
        self._old: Traffic | None = None
        self._sessions: Counter[int] = Counter()
        self._followed = 1
        self._blocks: set[int | str] = set()
        self._cached = self._shared = 0
        self._first, self._last = math.inf, -math.inf

    def add(self, request: Request) -> None:
        """Counts one request."""
        self.requests += 1
        self._fresh[request[:3]] += 1
        if len(self._fresh) > MAX_FRESH:
            self._add_up()
        if request.cached_tokens:
            self._cached += request.cached_tokens
        if request.session is not None:
            self._follow(request.session)
        if request.seconds is not None:
            self._last = max(self._last, request.seconds)
            self._first = min(self._first, request.seconds)
        if request.blocks:
            self._share(request.prompt_tokens, request.blocks)

    def add_rows(self, rows: Rows) -> None:
        """Counts requests as `add` would one after the other."""
        number = len(rows.prompts)
        self.requests += number
        columns = (rows.prompts, *(column or repeat(None) for column in (rows.answers, rows.asked)))
        lengths = list(zip(*columns, strict=False))
        if len(self._fresh) + number <= MAX_FRESH:
            self._fresh.update(lengths)
        else:
            for one in lengths:
                self._fresh[one] += 1
                if len(self._fresh) > MAX_FRESH:
                    self._add_up()
        self._cached += rows.cached_tokens
        for session in rows.sessions or ():
            self._follow(session)
        if rows.seconds is not None:
            self._first, self._last = min(self._first, rows.seconds[0]), max(self._last, rows.seconds[1])
        for prompt, blocks in zip(rows.prompts, rows.blocks or (), strict=False):
            if blocks:
                self._share(prompt, blocks)

    def take(self, traffic: Traffic) -> None:
        """Adds what was counted before."""
        self.requests += traffic.requests
        self._old = traffic if self._old is None else added(self._old, traffic)

    def traffic(self) -> Traffic:
        """All that was counted."""
        self._add_up()
        found = self._old if self._old is not None else traffic_of_counts({})
        turns = LengthHistogram.from_lengths(self._sessions.values())
        aside = traffic_of_counts({})
        aside = replace(
            aside,
            turns=turns,
            cached_tokens=self._cached,
            shared_tokens=self._shared,
            span_seconds=max(0.0, self._last - self._first),
        )
        return added(found, aside)

    def _add_up(self) -> None:
        old = self._old
        self._old = traffic_of_counts(self._fresh) if old is None else with_counts(old, self._fresh)
        self._fresh.clear()

    def _follow(self, session: str) -> None:
        number = int.from_bytes(blake2b(session.encode("utf-8", "replace"), digest_size=8).digest())
        if number % self._followed == 0:
            self._sessions[number] += 1
            if len(self._sessions) > MAX_SESSIONS:
                self._followed *= 2
                kept = {one: turns for one, turns in self._sessions.items() if one % self._followed == 0}
                self._sessions = Counter(kept)

    def _share(self, prompt_tokens: int, blocks: Sequence[int | str]) -> None:
        known = 0
        for one in blocks:
            if one not in self._blocks:
                break
            known += 1
        self._shared += min(prompt_tokens * known // len(blocks), prompt_tokens - 1)
        if len(self._blocks) < MAX_BLOCKS:
            self._blocks.update(blocks)
