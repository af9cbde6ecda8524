"""Traces: requests with their arrival, and which of their tokens are the same; of a log, from a file, or at random."""

from __future__ import annotations

import re
import secrets
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from random import Random
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError, WorkloadError
from kvcore.base.untrusted import parse_json_object
from kvcore.workload.fields import record_requests
from kvcore.workload.logs import read_request_log
from kvcore.workload.requests import Reading, Request, UnusableLineError
from kvcore.workload.timeline import MAX_ARRIVALS, Arrival, Timeline

MAX_REQUESTS: Final = MAX_ARRIVALS
MAX_COUNT: Final = 1 << 26
"""Largest number in a case."""
MAX_PIECES: Final = 4096
MAX_KNOWN: Final = 3_000_000
"""Shared contents remembered, which bounds the memory of a replay."""
Piece = tuple[str, int]
"""The first so many tokens of a named text: equal names mean equal tokens at equal positions."""


class TraceRequest(Struct, frozen=True, kw_only=True):
    """A request: its arrival, its prompt, and the tokens of its answer."""

    id: str
    arrival: float
    """Arrival in the unit of the clock: seconds or steps."""
    prompt: tuple[Piece, ...]
    answer_tokens: int

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt.

        Example:
            >>> TraceRequest(id="a", arrival=0, prompt=(("system", 40), ("a", 9)), answer_tokens=5).prompt_tokens
            49
        """
        return sum(tokens for _, tokens in self.prompt)


def answer_name(request_id: str) -> str:
    """Name of the text of an answer, under which a later turn has it in its prompt.

    Example:
        >>> answer_name("c3t1")
        'answer:c3t1'
    """
    return f"answer:{request_id}"


class Contents:
    """Numbers for the contents of full blocks: equal numbers mean equal tokens and equal tokens before them.

    A text that only one request has needs no look-up: from the first block that has a token of it, the blocks are the
    request's own.

    Source: vllm/v1/core/kv_cache_utils.py:hash_block_tokens (0.32.0), with numbers in place of hashes.
    """

    def __init__(self, requests: Sequence[TraceRequest], block_size: int) -> None:
        self._block_size = block_size
        uses: Counter[str] = Counter()
        for request in requests:
            uses.update({name for name, tokens in request.prompt if tokens} | {answer_name(request.id)})
        # Numbers start at a secret, so that a trace cannot choose tuples whose hashes collide.
        first = secrets.randbits(60)
        shared = (name for name, count in uses.items() if count > 1)
        self._shared = {name: at for at, name in enumerate(shared, start=first)}
        self._known: dict[tuple[object, ...], int] = {}
        self._next = 0

    def of(self, request: TraceRequest, blocks: int) -> list[int]:
        """The numbers of the first `blocks` blocks of a request with its answer.

        Example:
            >>> def one(name):
            ...     prompt = (("system", 20), (name, 30))
            ...     return TraceRequest(id=name, arrival=0, prompt=prompt, answer_tokens=9)
            >>> contents = Contents((one("a"), one("b")), 16)
            >>> contents.of(one("a"), 3), contents.of(one("b"), 3)
            ([0, 1, 2], [0, 3, 4])
        """
        found: list[int] = []
        parent = -1
        for key in self._shared_keys(request):
            if len(found) == blocks:
                return found
            number = self._known.setdefault((parent, *key), self._next)
            if len(self._known) > MAX_KNOWN:
                raise WorkloadError("replay-too-long", field="requests", limit=f"{MAX_KNOWN:,}")
            self._next += number == self._next
            found.append(number)
            parent = number
        first = self._next
        self._next += blocks - len(found)
        found.extend(range(first, self._next))
        return found

    def _shared_keys(self, request: TraceRequest) -> Iterator[tuple[int, ...]]:
        """Contents of each block, up to the first token that only this request has."""
        size = self._block_size
        open_parts: tuple[int, ...] = ()
        missing = size
        for name, tokens in (*request.prompt, (answer_name(request.id), request.answer_tokens)):
            number = self._shared.get(name)
            if number is None and tokens:
                return
            start = 0
            while tokens - start >= missing:
                yield (*open_parts, number or 0, start)
                start += missing
                open_parts, missing = (), size
            if start < tokens:
                open_parts = (*open_parts, number or 0, start)
                missing -= tokens - start


SEED: Final = 20_240_117


def random_arrivals(
    cells: Sequence[tuple[int, int, int]], *, per_second: float, requests: int
) -> tuple[TraceRequest, ...]:
    """Poisson arrivals of requests drawn from (prompt, answer, weight); no two share a token.

    Example:
        >>> trace = random_arrivals([(100, 20, 3), (900, 5, 1)], per_second=2, requests=1000)
        >>> 400 < trace[-1].arrival < 600, 700 < sum(one.answer_tokens == 20 for one in trace) < 800
        (True, True)
    """
    random = Random(SEED)
    chosen = random.choices(cells, cum_weights=list(accumulate(count for *_, count in cells)), k=requests)
    now, found = 0.0, []
    for at, (prompt, answer, _) in enumerate(chosen):
        now += random.expovariate(per_second)
        piece = (f"{_OWN}{at}", max(1, prompt))
        found.append(TraceRequest(id=f"{at}", arrival=now, prompt=(piece,), answer_tokens=max(1, answer)))
    return tuple(found)


MAX_LINE_BYTES: Final = 1 << 20
MAX_ALL_PIECES: Final = 1_000_000
"""Pieces of all prompts: a choice that bounds the memory of a trace."""


def trace_of(timeline: Timeline) -> tuple[TraceRequest, ...]:
    """The requests of a log in order of arrival, the first at 0 seconds: what a replay takes.

    Two prompts share the blocks that have the same hash in the log; without hashes no two share a token.

    Example:
        >>> from kvcore.workload.logs import read_request_log
        >>> line = b'{"timestamp": 5000, "input_length": 600, "output_length": 7, "hash_ids": [1, 2]}'
        >>> [one] = trace_of(read_request_log([line]).timeline)
        >>> [tokens for _, tokens in one.prompt], one.answer_tokens, one.arrival
        ([512, 88], 7, 0.0)
    """
    size, known = timeline.block_tokens, dict[Piece, Piece]()
    found = sorted(timeline.arrivals(), key=attrgetter("seconds"))
    first = found[0].seconds if found else 0.0
    return tuple(
        TraceRequest(
            id=str(at),
            arrival=one.seconds - first,
            prompt=_prompt(one, at, size, known),
            answer_tokens=max(1, one.answer_tokens),
        )
        for at, one in enumerate(found)
    )


def _prompt(one: Arrival, at: int, size: int | None, known: dict[Piece, Piece]) -> tuple[Piece, ...]:
    """The pieces of a prompt; equal ones are the same object in all prompts."""
    left, found = one.prompt_tokens, list[Piece]()
    for number in one.hashes if size is not None else ():
        if tokens := min(size or 0, left):
            piece = (f"hash {number}", tokens)
            found.append(known.setdefault(piece, piece))
            left -= tokens
    if left:
        found.append((f"{_OWN}{at}", left))
    return tuple(found)


class LeftOut(Struct, frozen=True, kw_only=True):
    """Lines of a log that are in no trace, by reason."""

    failed: int = 0
    other_kinds: int = 0
    """Embeddings, tools, agents and the like."""
    unusable: int = 0
    untimed: int = 0
    not_asked: int = 0

    @property
    def named(self) -> dict[str, int]:
        """Those that there are.

        Example:
            >>> LeftOut(failed=2).named
            {'failed': 2}
        """
        return {name: number for name in self.__struct_fields__ if (number := getattr(self, name))}


def read_trace(lines: Iterable[bytes], reading: Reading | None = None) -> tuple[TraceRequest, ...]:
    """The requests of a trace, as `read_whole_trace` gives them.

    Example:
        >>> own = b'{"timestamp": 3, "prompt": [["system", 20], ["a", 5]], "completion_tokens": 9}'
        >>> log = b'{"created": 1760000000, "usage": {"prompt_tokens": 25, "completion_tokens": 9}}'
        >>> [read_trace([one])[0].prompt for one in (own, log)]
        [(('system', 20), ('a', 5)), (('own 0', 25),)]
    """
    return read_whole_trace(lines, reading)[0]


def read_whole_trace(
    lines: Iterable[bytes], reading: Reading | None = None
) -> tuple[tuple[TraceRequest, ...], LeftOut]:
    """The requests of a trace in order of arrival, the first at 0 seconds, and what of it is left out: of a request log
    in any format that has times, or of JSON lines whose `prompt` is a list of pieces. `reading` says which requests of
    a log count.

    Raises WorkloadError as `read_request_log`; `trace-without-times` for a log that has none; `trace-unusable` with the
    first line of prompts in pieces of which none can be read; `replay-too-long` above MAX_REQUESTS,
    `trace-too-many-pieces` above MAX_ALL_PIECES.
    """
    given = iter(lines)
    head = next((line for line in given if line.strip()), b"")
    lines = chain((head,), given)
    if _IN_PIECES.search(head[:MAX_LINE_BYTES]):
        return _of_pieces(lines)
    log = read_request_log(lines, reading=reading or Reading(max_bytes=None))
    times = log.timeline
    if not len(times):
        raise WorkloadError("trace-without-times", field="trace")
    if times.left_out:
        raise WorkloadError("replay-too-long", field="trace", limit=f"{MAX_REQUESTS:,}")
    left = LeftOut(
        failed=log.failed, other_kinds=log.other_kinds, unusable=log.unusable, untimed=times.untimed + times.odd,
        not_asked=log.not_asked,
    )  # fmt: skip
    return trace_of(times), left


def knows_texts(requests: Iterable[TraceRequest]) -> bool:
    """Whether a trace says which prompts begin alike: without that no hit of the prefix cache can be known.

    Example:
        >>> knows_texts(random_arrivals([(100, 20, 3)], per_second=2, requests=5))
        False
    """
    return any(not name.startswith(_OWN) for request in requests for name, _ in request.prompt)


def admitted(requests: Sequence[TraceRequest], max_model_len: int) -> tuple[TraceRequest, ...]:
    """The requests without those that the engine refuses for the length of their prompts; all where none is left."""
    return tuple(one for one in requests if one.prompt_tokens < max_model_len) or tuple(requests)


def busiest(requests: Sequence[TraceRequest], most: int) -> tuple[TraceRequest, ...]:
    """The `most` consecutive requests that came in the shortest time.

    Example:
        >>> rows = [TraceRequest(id=f"{at}", arrival=at, prompt=(("a", 5),), answer_tokens=2) for at in (0, 9, 10, 20)]
        >>> [one.arrival for one in busiest(rows, 2)]
        [9, 10]
    """
    if len(requests) <= most:
        return tuple(requests)
    times = [one.arrival for one in requests]
    start = min(range(len(times) - most + 1), key=lambda at: times[at + most - 1] - times[at])
    return tuple(requests[start : start + most])


def copied(requests: Sequence[TraceRequest], times: int) -> tuple[TraceRequest, ...]:
    """The traffic so many times over, one copy a little after the other; no two copies share a token.

    Example:
        >>> rows = [TraceRequest(id=f"{at}", arrival=at, prompt=(("a", 5),), answer_tokens=2) for at in (0, 8)]
        >>> [(one.arrival, one.prompt[0][0]) for one in copied(rows, 2)]
        [(0.0, 'a'), (2.0, '1 a'), (8.0, 'a'), (10.0, '1 a')]
    """
    gap = (requests[-1].arrival - requests[0].arrival) / len(requests) / times
    found = [
        replace(
            one,
            id=f"{copy} {one.id}" if copy else one.id,
            arrival=one.arrival + copy * gap,
            prompt=tuple((_name(name, copy), tokens) for name, tokens in one.prompt) if copy else one.prompt,
        )
        for copy in range(times)
        for one in requests
    ]
    return tuple(sorted(found, key=attrgetter("arrival")))


def _name(name: str, copy: int) -> str:
    """The name of a text in a copy; one that nobody knows stays so."""
    own = name.removeprefix(_OWN)
    return f"{_OWN}{copy} {own}" if own != name else f"{copy} {name}"


def busiest_minute(requests: Sequence[TraceRequest]) -> tuple[TraceRequest, ...]:
    """The requests of the minute in which most came, and of the minute before it, whose answers may still run.

    Example:
        >>> rows = [TraceRequest(id=f"{at}", arrival=at, prompt=(("a", 5),), answer_tokens=2)
        ...         for at in (0, 50, 100, 110, 120, 300)]
        >>> [one.arrival for one in busiest_minute(rows)]
        [50, 100, 110, 120]
    """
    times = [one.arrival for one in requests]
    ends = [bisect_left(times, time + MINUTE) for time in times]
    start = max(range(len(times)), key=lambda at: ends[at] - at, default=0)
    first = bisect_left(times, times[start] - MINUTE) if times else 0
    return tuple(requests[first : ends[start]]) if times else ()


MINUTE: Final = 60.0
"""Seconds."""
_OWN: Final = "own "
"""Before the number of a request whose prompt nobody knows: no other prompt shares a token of it."""
_IN_PIECES: Final = re.compile(rb'^\s*\{.{0,400}?"prompt"\s*:\s*\[\s*(?:\[|\])', re.DOTALL)
"""A line of JSON whose prompt is a list of lists."""


def _of_pieces(lines: Iterable[bytes]) -> tuple[tuple[TraceRequest, ...], LeftOut]:
    found: list[TraceRequest] = []
    bad: list[WorkloadError] = []
    known: dict[Piece, Piece] = {}
    left = MAX_ALL_PIECES
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if len(found) == MAX_REQUESTS:
            raise WorkloadError("replay-too-long", field="trace", limit=f"{MAX_REQUESTS:,}")
        try:
            found.append(_of_line(line, str(len(found)), known))
        except (KvPlannerError, UnusableLineError, ValueError) as error:
            words = error.message if isinstance(error, KvPlannerError) else str(error)[:80]
            bad.append(WorkloadError("trace-unusable", field="trace", line=number, reason=words))
            continue
        left -= len(found[-1].prompt)
        if left < 0:
            limit = f"{MAX_ALL_PIECES:,}"
            raise WorkloadError("trace-too-many-pieces", field="trace", line=number, limit=limit)
    if not found:
        raise bad[0]
    first = min(request.arrival for request in found)
    placed = sorted(found, key=attrgetter("arrival"))
    return tuple(replace(one, arrival=one.arrival - first) for one in placed), LeftOut(unusable=len(bad))


def _of_line(line: bytes, name: str, known: dict[Piece, Piece]) -> TraceRequest:
    """A request whose prompt is in pieces: `known` has those of earlier ones, so that equal ones are shared."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError("it is longer than 1 MiB")
    row = parse_json_object(line.decode("utf-8", "replace"))
    pieces = row.get("prompt")
    if not isinstance(pieces, list):
        raise ValueError("its prompt is no list of pieces")
    prompt = _pieces(pieces, known)
    tokens = sum(tokens for _, tokens in prompt)
    # Its time and its answer are called as in any log.
    lengths = {key: value for key, value in row.items() if key not in ("prompt", "id")}
    found = next(record_requests({**lengths, "prompt_tokens": tokens}), None)
    if not isinstance(found, Request) or found.seconds is None:
        raise ValueError("a time of arrival is missing")
    if found.completion_tokens is None:
        raise ValueError("completion_tokens is missing")
    return TraceRequest(
        id=str(row.get("id", name))[:80],
        arrival=found.seconds,
        prompt=prompt,
        answer_tokens=max(1, found.completion_tokens),
    )


def _pieces(pieces: list[Any], known: dict[Piece, Piece]) -> tuple[Piece, ...]:
    if not 0 < len(pieces) <= MAX_PIECES:
        raise ValueError(f"prompt is a list of 1 to {MAX_PIECES} pieces")
    found: list[Piece] = []
    for piece in pieces:
        if not (isinstance(piece, list) and len(piece) == 2 and isinstance(piece[0], str)):
            raise ValueError("a piece is a name and a number of tokens")
        if type(piece[1]) is not int or not 0 <= piece[1] <= MAX_COUNT:
            raise ValueError("a piece is a name and a number of tokens")
        found.append(known.setdefault((piece[0], piece[1]), (piece[0], piece[1])))
    if not sum(tokens for _, tokens in found):
        raise ValueError("the prompt has no token")
    return tuple(found)
