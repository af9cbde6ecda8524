"""Lines of a layout that was seen before, many at a time: one pattern for a line, and what each value in it is for.

A layout is learned by asking the general reader: each value of a line is changed alone, and what the answer then says
is what the value is for. What differs from every known layout is read by the general reader.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from kvcore.workload.fields import MAX_SECONDS, MAX_SESSION_CHARACTERS, seconds_of
from kvcore.workload.histogram import MAX_TOKENS
from kvcore.workload.requests import Request, UnusableLineError
from kvcore.workload.shapes import POSITIVE, Kind, NoShapeError, Piece

MAX_LAYOUTS: Final = 8
MAX_TRIES: Final = 16
"""Lines of which one log's layouts are learned."""
MAX_CHARACTERS: Final = 4096
MAX_VALUES: Final = 24
MAX_PATTERN_CHARACTERS: Final = 1 << 14
"""Of all layouts of one log, those that were not kept among them: a character takes some microseconds to compile."""
MAX_LINE_BYTES: Final = 1 << 16
"""A longer line is read alone."""
CHECKS: Final = 3
_MILLISECONDS_BELOW: Final = 1e8

Read = Callable[[str], Request]
"""The general reader: a line's one request. Raises UnusableLineError."""


class Rows(NamedTuple):
    """Requests, a column for each of what a request says; None where none of them says it."""

    prompts: Sequence[int]
    answers: Sequence[int] | None
    asked: Sequence[int] | None
    cached_tokens: int
    sessions: Sequence[str] | None
    seconds: tuple[float, float] | None
    """The first and the last."""
    blocks: Sequence[Sequence[str]] | None


class Lines:
    """The lines of a file, taken one by one or several at a time."""

    def __init__(self, slices: Iterator[list[bytes]], lines: list[bytes], number: int) -> None:
        self._slices = slices
        self.slice = lines
        self.at = 0
        """Of the next line in its slice."""
        self.number = number
        """Of the next line in its file."""

    def more(self) -> bool:
        """Whether there is a next line."""
        while self.at >= len(self.slice):
            found = next(self._slices, None)
            if found is None:
                return False
            self.slice, self.at = found, 0
        return True

    def take(self, lines: int = 1) -> bytes:
        """The next line; further lines of its slice with it, which are not given."""
        found = self.slice[self.at]
        self.at, self.number = self.at + lines, self.number + lines
        return found

    def rest(self) -> bytes:
        """All lines that are left."""
        parts = [b"".join(self.slice[self.at :]), *map(b"".join, self._slices)]
        self.at = len(self.slice)
        return b"".join(parts)


class _Layout(NamedTuple):
    """A pattern, and which of its groups are which."""

    pattern: str
    groups: int
    prompt: tuple[int, ...]
    answer: tuple[int, ...] | None
    cached: tuple[int, ...]
    asked: int | None
    session: int | None
    seconds: tuple[int, str, bool] | None
    """The group, what stands behind the time in every line, and whether it counts milliseconds."""
    blocks: int | None

    def rows(self, found: Sequence[Sequence[str]], first: int = 0) -> Rows | None:
        """The requests of lines, by their groups from `first` on; None where one of them is not plain."""
        columns = list(zip(*found, strict=True))

        def sums(groups: tuple[int, ...]) -> list[int]:
            parts = [map(int, columns[first + group]) for group in groups]
            return list(map(sum, zip(*parts, strict=True))) if len(parts) > 1 else list(parts[0])

        prompts = sums(self.prompt)
        answers = sums(self.answer) if self.answer is not None else None
        cached = sums(self.cached) if self.cached else [0]
        if min(prompts) < 1 or max(*prompts, *(answers or ()), *cached) > MAX_TOKENS:
            return None
        seconds = None
        if self.seconds is not None:
            group, behind, are_milliseconds = self.seconds
            seconds = _first_and_last(columns[first + group], behind, are_milliseconds)
            if seconds is None:
                return None
        return Rows(
            prompts,
            answers,
            list(map(int, columns[first + self.asked])) if self.asked is not None else None,
            sum(cached),
            [one[:MAX_SESSION_CHARACTERS] for one in columns[first + self.session]]
            if self.session is not None
            else None,
            seconds,
            [tuple(one.replace(" ", "").split(",")) if one else () for one in columns[first + self.blocks]]
            if self.blocks is not None
            else None,
        )


def _first_and_last(times: Sequence[str], behind: str, are_milliseconds: bool) -> tuple[float, float] | None:
    """Of numbers, or of dates that are written alike, whose texts are in the order of the times."""
    ends: Sequence[str | float]
    if "-" in times[0]:
        ends = min(times) + behind, max(times) + behind
    else:
        ends = numbers = list(map(float, times))
        if max(numbers) <= MAX_SECONDS:
            ends = min(numbers), max(numbers)
        # In different units a larger number may be an earlier time.
    found = [one for one in map(seconds_of, ends) if one is not None]
    if not found:
        return None
    first, last = (
        one / 1e3 if are_milliseconds and one < _MILLISECONDS_BELOW else one
        for one in (min(found), max(found))
    )
    return first, last


class Layouts:
    """The layouts of one log, learned from its own lines."""

    def __init__(self, pieces_of: Callable[[str], list[Piece]], read: Read, behind: str) -> None:
        self._pieces_of, self._read, self._behind = pieces_of, read, behind
        self._layouts: list[tuple[int, _Layout]] = []
        self._pattern: re.Pattern[str] | None = None
        self._compiled = 0
        """Layouts in the pattern."""
        self._each: list[re.Pattern[str]] = []
        self._tries = 0
        self._left = MAX_PATTERN_CHARACTERS

    def learn(self, text: str) -> None:
        """Takes the layout of a line that the general reader has read as one request, if it can be known."""
        if len(text) > MAX_CHARACTERS or self._tries == MAX_TRIES or len(self._layouts) == MAX_LAYOUTS:
            return
        if any(one.fullmatch(text) for one in self._each):
            return
        self._tries += 1
        try:
            pieces = self._pieces_of(text)
            layout = _learned(pieces, self._read)
            self._left -= len(layout.pattern)
            if self._left < 0:
                return
            self._each.append(_checked(layout, pieces, self._read))
        except (NoShapeError, UnusableLineError):
            return
        start = sum(known.groups for _, known in self._layouts)
        self._layouts.append((start, layout))

    def _compile(self) -> None:
        """Takes what was learned into the pattern."""
        self._compiled = len(self._layouts)
        every = "".join(rf"{known.pattern}{self._behind}(?:\n|\Z)|" for _, known in self._layouts)
        # The last group: with fewer than two, `findall` gives no tuples.
        self._pattern = re.compile(rf"(?:{every}[^\n]*+(?:\n|\Z))()")

    def read(
        self,
        lines: Lines,
        decode: Callable[[list[bytes]], str],
        alone: Callable[[], bool],
        add: Callable[[Rows], None],
    ) -> None:
        """Reads all lines: those of known layouts with `add`, each other with `alone`, which takes it from `lines`, and
        says whether the lines behind it belong to it whatever they look like."""
        is_open = False
        slice_, pattern, first = None, None, 0
        rows: list[tuple[str, ...]] = []
        while lines.more():
            if lines.slice is not slice_ or (self._layouts and pattern is None):
                # The first layout at once, further ones with the next slice: each of them has all patterns compiled.
                if self._compiled < len(self._layouts):
                    self._compile()
                slice_, pattern, first = lines.slice, self._pattern, lines.at
                rows = self._rows(slice_[first:], decode)
            at = lines.at - first
            known = None if is_open or not rows else self._known(rows[at])
            if known is None:
                is_open = alone()
                continue
            start, layout = known
            group, end = start + layout.prompt[0], at + 1
            while end < len(rows) and rows[end][group]:
                end += 1
            found = layout.rows(rows[at:end], start)
            if found is not None:
                add(found)
                lines.take(end - at)
                continue
            for _ in range(end - at):
                alone()

    def _rows(self, lines: list[bytes], decode: Callable[[list[bytes]], str]) -> list[tuple[str, ...]]:
        """The groups of each line; nothing where lines are no lines of a text."""
        if self._pattern is None or max(map(len, lines)) > MAX_LINE_BYTES:
            return []
        found: list[tuple[str, ...]] = self._pattern.findall(decode(lines))
        return found[:-1] if len(found) == len(lines) + 1 else []

    def _known(self, row: tuple[str, ...]) -> tuple[int, _Layout] | None:
        return next((one for one in self._layouts[: self._compiled] if row[one[0] + one[1].prompt[0]]), None)


def _learned(pieces: list[Piece], read: Read) -> _Layout:
    """Raises NoShapeError, or UnusableLineError where a change makes a line that cannot be used."""
    base = read("".join(piece.text for piece in pieces))
    at = [place for place, piece in enumerate(pieces) if piece.kind is not None]
    if base.by_text or len(at) > MAX_VALUES:
        raise NoShapeError

    def changed(place: int, text: str) -> Request:
        return read("".join(text if one == place else piece.text for one, piece in enumerate(pieces)))

    prompt: list[int] = []
    answer: list[int] = []
    cached: list[int] = []
    asked = session = seconds = blocks = None
    patterns = [piece.pattern for piece in pieces]
    for group, place in enumerate(at):
        piece = pieces[place]
        if piece.kind in (Kind.COUNT, Kind.ASKED):
            found = changed(place, str(int(piece.text) + 1))
            for groups, new, old in (
                (prompt, found.prompt_tokens, base.prompt_tokens),
                (answer, found.completion_tokens or 0, base.completion_tokens or 0),
                (cached, found.cached_tokens, base.cached_tokens),
            ):
                if new != old:
                    groups.append(group)
            if found.max_tokens != base.max_tokens:
                asked = group
            if piece.kind is Kind.COUNT and not _may_be_none(changed, place):
                patterns[place] = POSITIVE
        elif piece.kind is Kind.SESSION:
            if changed(place, _other(piece.text)).session != base.session:
                session = group
        elif piece.kind is Kind.SECONDS:
            is_date = "-" in piece.text
            other = _other(piece.text) if is_date else "5" if piece.text != "5" else "7"
            found = changed(place, other)
            if seconds is None and found.seconds != base.seconds:
                behind = re.match('[^",;\t]*', pieces[place + 1].text) if place + 1 < len(pieces) else None
                tail = behind[0] if behind is not None and is_date else ""
                seconds = group, tail, not is_date and found.seconds != float(other)
        elif piece.kind is Kind.BLOCKS and changed(place, "1, 2, 3").blocks == ("1", "2", "3"):
            blocks = group
    if not prompt:
        raise NoShapeError
    return _Layout(
        pattern="".join(patterns),
        groups=len(at),
        prompt=tuple(prompt),
        answer=tuple(answer) if answer else None,
        cached=tuple(cached),
        asked=asked,
        session=session,
        seconds=seconds,
        blocks=blocks,
    )


def _may_be_none(changed: Callable[[int, str], Request], place: int) -> bool:
    """Whether a count of 0 is one less than a count of 1, and nothing else."""
    try:
        none, one = changed(place, "0"), changed(place, "1")
    except UnusableLineError:
        return False
    counts = ("prompt_tokens", "completion_tokens", "cached_tokens")
    steps = {(getattr(one, name) or 0) - (getattr(none, name) or 0) for name in counts}
    return steps <= {0, 1} and one._replace(**{n: getattr(none, n) for n in counts}) == none


def _other(text: str) -> str:
    """Another text of the same form, also of a date."""
    return ("3" if text.startswith("2") else "2") + text[1:]


def _checked(layout: _Layout, pieces: list[Piece], read: Read) -> re.Pattern[str]:
    """The pattern of a layout. Raises NoShapeError where the layout does not say what the general reader says."""
    pattern, chosen = re.compile(layout.pattern), random.Random(1)
    for _ in range(CHECKS):
        text = "".join(
            str(chosen.randint(1, 9999)) if piece.kind in (Kind.COUNT, Kind.ASKED) else piece.text
            for piece in pieces
        )
        found, said = pattern.fullmatch(text), read(text)
        rows = layout.rows([found.groups()]) if found is not None else None
        if (
            rows is None
            or Request(
                rows.prompts[0],
                rows.answers[0] if rows.answers is not None else None,
                rows.asked[0] if rows.asked is not None else None,
                cached_tokens=rows.cached_tokens,
                session=rows.sessions[0] if rows.sessions is not None else None,
                seconds=rows.seconds[0] if rows.seconds is not None else None,
                blocks=tuple(rows.blocks[0]) if rows.blocks is not None else (),
            )
            != said
        ):
            raise NoShapeError
    return pattern
