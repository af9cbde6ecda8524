"""What is replayed: requests with their arrival, and which of their tokens are the same."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from kvcore.base.errors import WorkloadError

MAX_KNOWN: Final = 3_000_000
"""Shared contents that are remembered; what bounds the memory of a replay."""
Piece = tuple[str, int]
"""The first so many tokens of a named text: equal names mean equal tokens at equal positions."""


class TraceRequest(Struct, frozen=True, kw_only=True):
    """A request: when it comes, what it carries, and how many tokens it is answered with."""

    id: str
    arrival: float
    """In the unit of the clock: seconds, or steps."""
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
    """The name of the text that a request is answered with; a later turn carries it under this name.

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
        # Tuples of numbers that a trace chooses have hashes that it could make meet: they begin where nobody knows.
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
        """What is in each block, until the first token that only this request has."""
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
