"""Trace files as untrusted input: when requests come, how long they are, and which tokens of their prompts are equal.

A line of JSON has `timestamp` in seconds, prompt and answer tokens, and may have `hash_ids` or `prompt` (pieces, as in
a case of the step contract). A table has the same in columns. Mooncake's traces have milliseconds, by their keys.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from kvcore.base.errors import KvPlannerError, WorkloadError
from kvcore.base.untrusted import parse_json_object
from kvcore.replay.steps import MAX_COUNT, MAX_PIECES, MAX_REQUESTS
from kvcore.replay.trace import Piece, TraceRequest

MAX_LINE_BYTES: Final = 1 << 20
MAX_ALL_PIECES: Final = 1_000_000
"""Of the prompts of all requests, hash_ids among them: a choice. What bounds the memory of a trace."""
HASH_TOKENS: Final = 512
"""Tokens that each of Mooncake's `hash_ids` stands for."""
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
    left = MAX_ALL_PIECES
    for number, row in _rows(lines):
        if len(found) == MAX_REQUESTS:
            raise WorkloadError("replay-too-long", field="trace", limit=f"{MAX_REQUESTS:,}")
        try:
            found.append(_request(row, str(len(found)), known))
        except (ValueError, OverflowError) as error:
            raise WorkloadError("trace-unusable", field="trace", line=number, reason=_words(error)) from None
        left -= len(found[-1].prompt)
        if left < 0:
            raise WorkloadError(
                "trace-too-many-pieces", field="trace", line=number, limit=f"{MAX_ALL_PIECES:,}"
            )
    if not found:
        raise WorkloadError("trace-unusable", field="trace", line=1, reason="there is no request")
    first = min(request.arrival for request in found)
    placed = sorted(found, key=lambda request: request.arrival)
    return tuple(
        TraceRequest(
            id=one.id, arrival=one.arrival - first, prompt=one.prompt, answer_tokens=one.answer_tokens
        )
        for one in placed
    )


def _words(error: Exception) -> str:
    return error.message if isinstance(error, KvPlannerError) else str(error)[:80]


def _rows(lines: Iterable[bytes]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Each line with its number: an object of JSON, or a row of a table by the names of its head."""
    head: list[str] | None = None
    for number, line in enumerate(lines, start=1):
        text = line[: MAX_LINE_BYTES + 1].decode("utf-8-sig", "replace").strip()
        if len(line) > MAX_LINE_BYTES:
            raise WorkloadError(
                "trace-unusable", field="trace", line=number, reason="it is longer than 1 MiB"
            )
        if not text:
            continue
        if text.startswith("{"):
            try:
                yield number, parse_json_object(text)
            except KvPlannerError as error:
                raise WorkloadError(
                    "trace-unusable", field="trace", line=number, reason=error.message
                ) from None
            continue
        try:
            cells = next(csv.reader([text]))
        except csv.Error as error:
            raise WorkloadError("trace-unusable", field="trace", line=number, reason=str(error)) from None
        if head is None:
            head = [cell.strip().lower() for cell in cells]
        else:
            yield number, dict(zip(head, cells, strict=False))


def _request(row: Mapping[str, Any], name: str, known: dict[Piece, Piece]) -> TraceRequest:
    """`known` has the pieces of earlier requests, so that each is kept once."""
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
