"""Traces: requests with their arrival, and which of their tokens are the same; read from files or made at random.

A line of JSON has `timestamp` in seconds, prompt and answer tokens, and may have `hash_ids` or `prompt` (pieces, as in
a case of the step contract). A table has the same in columns. Mooncake's traces have milliseconds, by their keys.
"""

from __future__ import annotations

import csv
import math
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from random import Random
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError, WorkloadError
from kvcore.base.untrusted import parse_json_object

MAX_REQUESTS: Final = 100_000
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
        piece = (f"own {at}", max(1, prompt))
        found.append(TraceRequest(id=f"{at}", arrival=now, prompt=(piece,), answer_tokens=max(1, answer)))
    return tuple(found)


MAX_LINE_BYTES: Final = 1 << 20
MAX_ALL_PIECES: Final = 1_000_000
"""Pieces of all prompts, including hash_ids: a choice that bounds the memory of a trace."""
HASH_TOKENS: Final = 512
"""Tokens of each of Mooncake's `hash_ids`."""
TIMES: Final = ("timestamp", "arrival", "arrival_time", "time", "start_time", "starttime")
PROMPTS: Final = ("prompt_tokens", "input_length", "input_tokens", "contexttokens", "request tokens")
ANSWERS: Final = ("completion_tokens", "output_length", "output_tokens", "answer_tokens", "generatedtokens",
                  "response tokens")  # fmt: skip


def read_trace(lines: Iterable[bytes]) -> tuple[TraceRequest, ...]:
    """The requests of a trace in order of arrival, the first at 0 seconds.

    Raises WorkloadError `trace-unusable` with the line, `replay-too-long` above MAX_REQUESTS, `trace-too-many-pieces`
    above MAX_ALL_PIECES.

    Example:
        >>> [one] = read_trace([b'{"timestamp": 5000, "input_length": 600, "output_length": 7, "hash_ids": [1, 2]}'])
        >>> one.prompt, one.answer_tokens
        ((('hash 1', 512), ('hash 2', 88)), 7)
    """
    found: list[TraceRequest] = []
    known: dict[Piece, Piece] = {}
    left, number, table = MAX_ALL_PIECES, 0, _Table()
    try:
        for number, line in enumerate(lines, start=1):
            if (row := table.row(line)) is None:
                continue
            if len(found) == MAX_REQUESTS:
                raise WorkloadError("replay-too-long", field="trace", limit=f"{MAX_REQUESTS:,}")
            found.append(_request(row, str(len(found)), known))
            left -= len(found[-1].prompt)
            if left < 0:
                limit = f"{MAX_ALL_PIECES:,}"
                raise WorkloadError("trace-too-many-pieces", field="trace", line=number, limit=limit)
        if not found:
            number = 1
            raise ValueError("there is no request")
    except (csv.Error, ValueError, OverflowError) as error:
        if isinstance(error, WorkloadError):
            raise
        words = error.message if isinstance(error, KvPlannerError) else str(error)[:80]
        raise WorkloadError("trace-unusable", field="trace", line=number, reason=words) from None
    first = min(request.arrival for request in found)
    placed = sorted(found, key=lambda request: request.arrival)
    return tuple(replace(one, arrival=one.arrival - first) for one in placed)


class _Table:
    """Reads lines: JSON objects, or the rows of a table by the names of its header."""

    def __init__(self) -> None:
        self._head: list[str] | None = None

    def row(self, line: bytes) -> Mapping[str, Any] | None:
        """The fields of a line; None for an empty line and for the header. Raises ValueError, csv.Error."""
        if len(line) > MAX_LINE_BYTES:
            raise ValueError("it is longer than 1 MiB")
        text = line.decode("utf-8-sig", "replace").strip()
        if text.startswith("{"):
            return parse_json_object(text)
        cells = next(csv.reader([text])) if text else []
        if self._head is None:
            self._head = [cell.strip().lower() for cell in cells] or None
            return None
        return dict(zip(self._head, cells, strict=False)) if text else None


def _request(row: Mapping[str, Any], name: str, known: dict[Piece, Piece]) -> TraceRequest:
    """Reads one request; `known` has the pieces of earlier requests, so that equal ones are shared."""
    pieces = row.get("prompt")
    answer = _tokens(row, ANSWERS, least=1)
    time = _time(row)
    if isinstance(pieces, list):
        return TraceRequest(
            id=str(row.get("id", name))[:80],
            arrival=time,
            prompt=_pieces(pieces, known),
            answer_tokens=answer,
        )
    tokens = _tokens(row, PROMPTS, least=1)
    hashes = row.get("hash_ids")
    if isinstance(hashes, list) and "input_length" in row:
        return TraceRequest(
            id=name, arrival=time / 1000, prompt=_hashed(hashes, tokens, name, known), answer_tokens=answer
        )
    return TraceRequest(id=name, arrival=time, prompt=((f"own {name}", tokens),), answer_tokens=answer)


def _hashed(hashes: list[Any], tokens: int, name: str, known: dict[Piece, Piece]) -> tuple[Piece, ...]:
    if len(hashes) > MAX_PIECES:
        raise ValueError(f"more than {MAX_PIECES} hash_ids")
    found: list[Piece] = []
    for part in hashes:
        if type(part) not in (int, str):
            raise ValueError("hash_ids are numbers or texts")
        size = min(HASH_TOKENS, tokens)
        if size:
            piece = (f"hash {part}"[:80], size)
            found.append(known.setdefault(piece, piece))
        tokens -= size
    if tokens:
        found.append((f"own {name}", tokens))
    return tuple(found)


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


def _tokens(row: Mapping[str, Any], names: tuple[str, ...], *, least: int) -> int:
    for name in names:
        value = row.get(name)
        if value is None or value == "" or isinstance(value, bool):
            continue
        if not isinstance(value, int | float | str):
            raise ValueError(f"{name} is no number of tokens")
        number = float(value)
        if not number.is_integer() or not 0 <= number <= MAX_COUNT:
            raise ValueError(f"{name} is no number of tokens")
        return max(least, int(number))
    raise ValueError(f"{names[0]} is missing")


def _time(row: Mapping[str, Any]) -> float:
    """Seconds, from a number or a date."""
    for name in TIMES:
        value = row.get(name)
        if value is None or value == "" or isinstance(value, bool):
            continue
        if isinstance(value, str):
            value = _read_time(value)
        if not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > 1e13:
            raise ValueError(f"{name} is no time")
        return float(value)
    raise ValueError("timestamp is missing")


def _read_time(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text.strip()[:26]).timestamp()
