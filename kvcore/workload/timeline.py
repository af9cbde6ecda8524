"""When the requests of a log came, and with which lengths: what a replay takes of a log. No text is in it."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import gt
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.units import ceil_div

MAX_ARRIVALS: Final = 100_000
"""Arrivals kept of a log, the first ones: as many as a replay takes."""
MAX_HASHES: Final = 1_000_000
"""Hashes of prompt blocks kept with them."""
BLOCK_TOKENS: Final = (512, 16, 32, 64, 128, 256, 1024)
"""Tokens that a hash may stand for: Mooncake's traces have 512, engines their block size."""
FITTING_SHARE: Final = 0.9
MINUTE: Final = 60.0
"""Seconds."""
OLDEST_TIME: Final = 1e8
"""Seconds since 1970 below which times of a log are counted from its own start, and say no hour of the day."""
YEAR: Final = 365 * 24 * 3600.0
MAX_YEARS: Final = 5
"""A time farther from the others is in another unit."""
_TOKENS, _HASHES = "i", "q"


class Arrival(NamedTuple):
    """One request of a log: its time in seconds, its lengths in tokens, and hashes of its prompt's blocks."""

    seconds: float
    prompt_tokens: int
    answer_tokens: int
    hashes: Sequence[int]


class Timeline(Struct, frozen=True, kw_only=True):
    """The arrivals of a log, packed: a few bytes each, in the order of the log."""

    seconds: bytes = b""
    prompts: bytes = b""
    answers: bytes = b""
    hashes: bytes = b""
    hashed: bytes = b""
    """How many of `hashes` each request has; empty where none has any."""
    left_out: int = 0
    """Requests with a time beyond MAX_ARRIVALS or MAX_HASHES."""
    untimed: int = 0
    """Requests without a time, or with a negative one."""
    odd: int = 0
    """Requests whose time is years from the others: in another unit, or wrong. They are in no figure of times."""

    def __len__(self) -> int:
        return len(_times(self.seconds))

    @property
    def block_tokens(self) -> int | None:
        """Tokens that one hash stands for: the first of BLOCK_TOKENS by which prompts have as many blocks as hashes,
        all but a tenth of them; None where no request has hashes or no size fits.

        Example:
            >>> taken = Timekeeper()
            >>> taken.add(0.0, 600, 7, (1, 2))
            >>> taken.timeline().block_tokens
            512
        """
        if not self.hashed:
            return None
        pairs = Counter(zip(_whole(_TOKENS, self.prompts), _whole(_TOKENS, self.hashed), strict=True))
        known = {pair: times for pair, times in pairs.items() if pair[1]}
        fitting = (
            size
            for size in BLOCK_TOKENS
            if sum(
                n
                for (prompt, number), n in known.items()
                if number in (ceil_div(prompt, size), prompt // size)
            )
            >= FITTING_SHARE * sum(known.values())
        )
        return next(fitting, None)

    @property
    def starts(self) -> float | None:
        """Seconds since 1970 of the first arrival; None where times are counted from the log's own start.

        Example:
            >>> taken = Timekeeper()
            >>> taken.add(5.0, 600, 7)
            >>> print(taken.timeline().starts)
            None
        """
        first = min(_times(self.seconds), default=0.0)
        return first if first > OLDEST_TIME else None

    @property
    def span_seconds(self) -> float:
        """Time from the first arrival to the last."""
        times = _times(self.seconds)
        return max(times) - min(times) if times else 0.0

    @property
    def per_second(self) -> float | None:
        """Mean rate; None where no two times differ.

        Example:
            >>> taken = Timekeeper()
            >>> for second in (0.0, 1.0, 4.0):
            ...     taken.add(second, 600, 7)
            >>> taken.timeline().per_second
            0.75
        """
        span = self.span_seconds
        return len(self) / span if span else None

    @property
    def busiest_minute(self) -> int:
        """Most requests within 60 seconds."""
        times = sorted(_times(self.seconds))
        return max((bisect_left(times, time + MINUTE) - at for at, time in enumerate(times)), default=0)

    @property
    def out_of_order(self) -> int:
        """Requests whose time is before that of the line above."""
        times = _times(self.seconds)
        return sum(map(gt, times, times[1:]))

    @property
    def same_time(self) -> int:
        """Requests whose time an earlier one has too."""
        times = _times(self.seconds)
        return len(times) - len({*times})

    def arrivals(self) -> Iterator[Arrival]:
        """The requests, in the order of the log."""
        times, prompts, answers = (
            _times(self.seconds),
            _whole(_TOKENS, self.prompts),
            _whole(_TOKENS, self.answers),
        )
        hashes, hashed, at = _whole(_HASHES, self.hashes), _whole(_TOKENS, self.hashed), 0
        for place, time in enumerate(times):
            number = hashed[place] if hashed else 0
            yield Arrival(time, prompts[place], answers[place], hashes[at : at + number])
            at += number


def _times(packed: bytes) -> array[float]:
    return array("d", packed)


def _whole(kind: str, packed: bytes) -> array[int]:
    return array(kind, packed)


class Timekeeper:
    """Collects the arrivals of a log, in bounded memory whatever comes.

    Example:
        >>> taken = Timekeeper()
        >>> taken.add(1760000000.5, 900, 80)
        >>> found = taken.timeline()
        >>> len(found), next(found.arrivals())[:3]
        (1, (1760000000.5, 900, 80))
    """

    def __init__(self) -> None:
        self._seconds, self._prompts, self._answers = _times(b""), _whole(_TOKENS, b""), _whole(_TOKENS, b"")
        self._hashes, self._hashed = _whole(_HASHES, b""), _whole(_TOKENS, b"")
        self.left_out = self.untimed = 0

    @property
    def room(self) -> int:
        """How many more arrivals are kept."""
        return MAX_ARRIVALS - len(self._seconds) if len(self._hashes) < MAX_HASHES else 0

    def add(self, seconds: float | None, prompt: int, answer: int, blocks: Sequence[str | int] = ()) -> None:
        """Keeps one request; one without a time, or beyond the limits, is only counted."""
        if seconds is None:
            self.untimed += 1
        elif self.room and len(self._hashes) + len(blocks) <= MAX_HASHES:
            self._seconds.append(seconds)
            self._prompts.append(prompt)
            self._answers.append(answer)
            # Hashes of texts are keyed: nothing of what the log calls its blocks is kept.
            self._hashes.extend(map(hash, map(str, blocks)))
            self._hashed.append(len(blocks))
        else:
            self.left_out += 1

    def extend(self, seconds: Sequence[float | None], prompts: Sequence[int], answers: Sequence[int]) -> None:
        """Keeps requests without hashes, as `add` would one after the other."""
        timed = [at for at, one in enumerate(seconds) if one is not None]
        kept = timed[: self.room]
        self._seconds.extend([seconds[at] or 0.0 for at in kept])
        self._prompts.extend([prompts[at] for at in kept])
        self._answers.extend([answers[at] for at in kept])
        self._hashed.extend([0] * len(kept))
        self.untimed += len(seconds) - len(timed)
        self.left_out += len(timed) - len(kept)

    def timeline(self) -> Timeline:
        """The arrivals so far, without those whose time is years from the middle one."""
        times, odd = self._seconds, 0
        if times:
            middle = sorted(times)[len(times) // 2]
            odd = sum(abs(time - middle) > MAX_YEARS * YEAR for time in times)
        return (
            Timeline(
                seconds=times.tobytes(),
                prompts=self._prompts.tobytes(),
                answers=self._answers.tobytes(),
                hashes=self._hashes.tobytes(),
                hashed=self._hashed.tobytes() if self._hashes else b"",
                left_out=self.left_out,
                untimed=self.untimed,
            )
            if not odd
            else self._without(middle, odd)
        )

    def _without(self, middle: float, odd: int) -> Timeline:
        """The timeline without times far from `middle`."""
        kept, at = Timekeeper(), 0
        for time, prompt, answer, number in zip(
            self._seconds, self._prompts, self._answers, self._hashed, strict=True
        ):
            if abs(time - middle) <= MAX_YEARS * YEAR:
                kept.add(time, prompt, answer)
                kept._hashes.extend(self._hashes[at : at + number])
                kept._hashed[-1] = number
            at += number
        kept.left_out, kept.untimed = self.left_out, self.untimed
        return replace(kept.timeline(), odd=odd)
