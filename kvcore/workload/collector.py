"""Adds requests up as they come, in bounded memory whatever comes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from hashlib import blake2b
from operator import add
from typing import Final

from kvcore.workload.histogram import EXACT_BITS, CellSums, Folding, LengthHistogram, cells_of, error_of
from kvcore.workload.requests import Request, Rows
from kvcore.workload.timeline import Timekeeper, Timeline
from kvcore.workload.traffic import MAX_CELLS, Traffic, added, needed_tokens

MAX_FRESH: Final = 1 << 17
"""Different lengths, and pairs of them, that are counted exactly before they are added up."""
MAX_LATELY: Final = 1 << 12
"""Single requests that are counted together."""
MAX_SESSIONS: Final = 1 << 17
"""Sessions followed. Beyond that, half of them are followed, chosen by their hash, then half of those."""
MAX_MODELS: Final = 256
"""Different models that are counted by name."""
MAX_MODEL_CHARACTERS: Final = 120
OTHER_MODELS: Final = ""
"""The name of all further models."""
MAX_BLOCKS: Final = 1 << 20
"""Hashes of prompt blocks remembered; further blocks count as new."""


_Lengths = tuple[int, int | None, int | None]


class _Counts:
    """How many requests have each length, exactly until there are too many lengths."""

    def __init__(self) -> None:
        self.numbers: Counter[int] = Counter()
        self.bits = EXACT_BITS

    def add(self, lengths: Iterable[int]) -> None:
        self.numbers.update(lengths)
        self._bound()

    def merge(self, numbers: Mapping[int, int]) -> None:
        self.numbers.update(numbers)
        self._bound()

    def _bound(self) -> None:
        if len(self.numbers) > MAX_FRESH:
            found, bits = LengthHistogram.from_counts(self.numbers).binned(MAX_CELLS)
            self.numbers, self.bits = Counter(dict(found.items)), min(bits, self.bits)


class Collector:
    """The sum of all requests so far.

    Example:
        >>> collector = Collector()
        >>> collector.add(Request(prompt_tokens=900, completion_tokens=80, max_tokens=512))
        >>> found = collector.traffic()
        >>> found.taken.lengths, found.needed.lengths, found.joint.running_tokens
        ((980,), (1412,), 940.5)
    """

    def __init__(self) -> None:
        self.requests = 0
        self._lately: list[_Lengths] = []
        self._counts = {name: _Counts() for name in ("prompts", "answers", "max_tokens", "taken", "needed")}
        self._fresh: Counter[int] = Counter()
        self._cells = CellSums(MAX_CELLS)
        self._taken: list[Traffic] = []
        self._sessions: Counter[int] = Counter()
        self._followed = 1
        self._blocks: set[int] = set()
        self._cached = self._shared = 0
        self._first, self._last = math.inf, -math.inf
        self._times = Timekeeper()
        self.models: Counter[str] = Counter()
        """Requests of each model, of the first MAX_MODELS."""

    def add(self, request: Request) -> None:
        """Counts one request."""
        self.requests += 1
        self._lately.append(request[:3])
        if len(self._lately) >= MAX_LATELY:
            self._count_lately()
        if request.cached_tokens:
            self._cached += request.cached_tokens
        if request.session is not None:
            self._follow(request.session)
        if request.seconds is not None:
            self._last = max(self._last, request.seconds)
            self._first = min(self._first, request.seconds)
        if request.blocks:
            self._share(request.prompt_tokens, request.blocks)
        if request.model:
            self._name((request.model,))
        answer = request.completion_tokens
        longest = answer if answer is not None else request.max_tokens or 0
        self._times.add(request.seconds, request.prompt_tokens, longest, request.blocks)

    def add_rows(self, rows: Rows) -> None:
        """Counts requests as `add` would, one after the other."""
        self.requests += len(rows.prompts)
        self._count(rows.prompts, rows.answers, rows.asked)
        for prompt, blocks in zip(rows.prompts, rows.blocks or (), strict=False):
            if blocks:
                self._share(prompt, blocks)
        self.say(rows, len(rows.prompts))

    def add_counted(self, requests: int, counts: Mapping[str, Mapping[int, int]], folding: Folding) -> None:
        """Counts requests whose lengths are counted already; what else they say comes with `say`."""
        self.requests += requests
        for name, numbers in counts.items():
            self._counts[name].merge(numbers)
        self._add_up()
        self._cells.fold(folding, requests)

    @property
    def room(self) -> int:
        """How many more arrivals are kept."""
        return self._times.room

    def say(self, rows: Rows, number: int) -> None:
        """Takes sessions, models and times of so many requests, whose lengths come with `add_counted`; `rows` has those
        of the first ones."""
        self._cached += rows.cached_tokens
        for session, turns in Counter(rows.sessions or ()).items():
            self._follow(session, turns)
        if rows.seconds is not None:
            self._first, self._last = min(self._first, rows.seconds[0]), max(self._last, rows.seconds[1])
        if rows.models is not None:
            self._name(rows.models)
        self._keep_times(rows, number)

    def _keep_times(self, rows: Rows, number: int) -> None:
        keeper = self._times
        times = () if rows.times is None else rows.times(keeper.room)
        unknown = [None] * len(times)
        answers, asked = rows.answers or unknown, rows.asked or unknown
        longest = [
            answer if answer is not None else most or 0 for answer, most in zip(answers, asked, strict=False)
        ]
        if rows.blocks is None:
            keeper.extend(times, rows.prompts, longest)
        else:
            for at, seconds in enumerate(times):
                keeper.add(seconds, rows.prompts[at], longest[at], rows.blocks[at])
        if rows.times is None:
            keeper.untimed += number
        else:
            keeper.left_out += number - len(times)

    def _name(self, models: Sequence[str] | Mapping[str, int]) -> None:
        known = self.models
        for model, number in Counter(models).items():
            name = model[:MAX_MODEL_CHARACTERS]
            known[name if name in known or len(known) < MAX_MODELS else OTHER_MODELS] += number

    def timeline(self) -> Timeline:
        """The arrivals of the requests counted so far; those of traffic counted before have none."""
        return self._times.timeline()

    def take(self, traffic: Traffic) -> None:
        """Adds traffic that was counted before."""
        self.requests += traffic.requests
        self._taken.append(traffic)

    def traffic(self) -> Traffic:
        """The traffic counted so far."""
        self._count_lately()
        self._add_up()
        found: dict[str, LengthHistogram] = {}
        errors = [0.0]
        for name, counts in self._counts.items():
            found[name], bits = LengthHistogram.from_counts(counts.numbers).binned(MAX_CELLS)
            errors.append(error_of(min(bits, counts.bits)))
        counted = Traffic(
            **found,
            joint=self._cells.joint(),
            turns=LengthHistogram.from_lengths(self._sessions.values()),
            cached_tokens=self._cached,
            shared_tokens=self._shared,
            span_seconds=max(0.0, self._last - self._first),
            error=max(errors),
            joint_error=error_of(self._cells.bits),
        )
        return reduce(added, self._taken, counted) if counted.requests else reduce(added, self._taken)

    def _count_lately(self) -> None:
        if self._lately:
            self._count(*zip(*self._lately, strict=True))
            self._lately.clear()

    def _count(
        self, prompts: Sequence[int], answers: Sequence[int | None] | None, asked: Sequence[int | None] | None
    ) -> None:
        """Counts requests whose lengths are in columns; None: unknown."""
        unknown = [None] * len(prompts)
        known = [one for one in answers or () if one is not None]
        # Most logs have every answer, and all in one column.
        longest = known
        if len(known) < len(prompts):
            pairs = zip(answers or unknown, asked or unknown, strict=True)
            longest = [answer if answer is not None else wanted or 0 for answer, wanted in pairs]
        taken = list(map(add, prompts, longest))
        needed: Iterable[int] = taken
        if asked is not None or min(longest) < 1:
            needed = map(needed_tokens, prompts, answers or unknown, asked or unknown)
        columns = {
            "prompts": prompts,
            "answers": known,
            "max_tokens": [one for one in asked or () if one is not None],
            "taken": taken,
            "needed": needed,
        }
        for name, column in columns.items():
            self._counts[name].add(column)
        self._fresh.update(cells_of(prompts, longest))
        if len(self._fresh) > MAX_FRESH:
            self._add_up()

    def _add_up(self) -> None:
        self._cells.add(self._fresh)
        self._fresh.clear()

    def _follow(self, session: str, turns: int = 1) -> None:
        number = int.from_bytes(blake2b(session.encode("utf-8", "replace"), digest_size=8).digest())
        if number % self._followed == 0:
            self._sessions[number] += turns
            if len(self._sessions) > MAX_SESSIONS:
                self._followed *= 2
                kept = {one: each for one, each in self._sessions.items() if one % self._followed == 0}
                self._sessions = Counter(kept)

    def _share(self, prompt_tokens: int, blocks: Sequence[str]) -> None:
        # Hashes of texts are keyed; numbers hash to themselves, and a log could choose numbers that collide in a set.
        seen, known, hashes = self._blocks, 0, list(map(hash, blocks))
        if hashes[0] in seen:
            known = next((at for at, one in enumerate(hashes) if one not in seen), len(hashes))
        self._shared += min(prompt_tokens * known // len(hashes), prompt_tokens - 1)
        if len(seen) < MAX_BLOCKS and known < len(hashes):
            seen.update(hashes)
