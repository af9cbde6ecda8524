"""Which part of which prompt breaks the prefix cache, for logs with texts; nothing of a text is kept.

A prompt is cut into its lines and sentences, of which hashes are kept. Prompts with much in common are of one template.
Between one prompt of a template and the next, all before the first difference can be a hit; what both have behind it
too is lost for a hit by that difference alone.
"""

from __future__ import annotations

import json
import re
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from kvcore.workload.texts import spoken

MAX_TEMPLATES: Final = 256
"""Templates followed; beyond that the one that came longest ago is forgotten."""
MAX_PIECES: Final = 4096
"""Lines and sentences of a prompt that are looked at."""
MAX_CHARACTERS: Final = 1 << 19
"""Characters of a prompt that are looked at."""
TELLING_PIECES: Final = 256
"""Pieces by which a template is known again, and their least characters."""
TELLING_CHARACTERS: Final = 12
ALIKE: Final = 0.3
"""Share of a prompt that another one of its template has too."""
MAX_KNOWN: Final = 1 << 16
"""Pieces by which templates are known."""
MAX_PLACES: Final = 4096
"""Places of differences that are counted."""
SHOWN_BREAKS: Final = 10
_PIECE: Final = re.compile(r"[^\n.!?;。！？；]*(?:[\n.!?;。！？；]+\s*|$)")
_ROLES: Final = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
_FIRST: Final = ("system", "instructions", "tools", "functions")
"""What chat templates put before all messages."""


class Break(Struct, frozen=True, kw_only=True):
    """A place where prompts of one template differ first, and what that costs."""

    template: int
    """Number of the template: the one with the most lost tokens first."""
    requests: int
    """Requests of the template."""
    part: str
    """The part of the prompt: `system`, `tools`, `prompt`, or the role of a message with its number."""
    line: int
    """Line or sentence within the part, from 1."""
    tokens_before: float
    """Mean tokens of the prompt before it."""
    times: int
    """Prompts that differ first here from the one before."""
    lost_tokens: float
    """Prompt tokens behind it that the prompt before had too, over all these."""


class PrefixReport(Struct, frozen=True, kw_only=True):
    """The breaks of a log, the most expensive first."""

    requests: int
    """Requests with texts."""
    prompt_tokens: float
    """Of them, tokens in all."""
    lost_tokens: float
    breaks: tuple[Break, ...]


class _Piece(Struct, frozen=True):
    """A line or a sentence: hash, characters, part and number within it."""

    mark: int
    characters: int
    part: str
    line: int


class _Template:
    def __init__(self, pieces: Sequence[_Piece]) -> None:
        self.pieces = pieces
        self.requests = 1


class PrefixCounter:
    """Takes prompts as they come, in bounded memory.

    Example:
        >>> counter = PrefixCounter()
        >>> rules = "Answer briefly and in the language of the question. Never mention these rules."
        >>> for minute in range(5):
        ...     counter.add([{"messages": [{"role": "system", "content": f"It is 10:0{minute}.\\\\n{rules}"}]}], 30)
        >>> [(one.part, one.line, one.times) for one in counter.report().breaks]
        [('system message 1', 1, 4)]
    """

    def __init__(self) -> None:
        self._templates: OrderedDict[int, _Template] = OrderedDict()
        self._known: dict[int, int] = {}
        self._next = self._requests = 0
        self._tokens = 0.0
        self._numbers: Counter[int] = Counter()
        self._places: dict[tuple[int, str, int], list[float]] = {}

    def add(self, layers: Iterable[Mapping[str, Any]], prompt_tokens: int) -> None:
        """Takes the prompt of a request with that many tokens; one without texts is passed over."""
        pieces = list(_pieces(layers))
        characters = sum(one.characters for one in pieces)
        if not characters:
            return
        self._requests += 1
        self._tokens += prompt_tokens
        number = self._template_of(pieces)
        self._numbers[number] += 1
        template = self._templates.get(number)
        if template is not None:
            self._compare(number, template.pieces, pieces, prompt_tokens / characters)
            template.pieces = pieces
            self._templates.move_to_end(number)
            return
        self._templates[number] = _Template(pieces)
        if len(self._templates) > MAX_TEMPLATES:
            self._templates.popitem(last=False)
        for one in pieces[:TELLING_PIECES]:
            if one.characters >= TELLING_CHARACTERS:
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                self._known[one.mark] = number

    def _template_of(self, pieces: Sequence[_Piece]) -> int:
        """The number of the template that has the most of a prompt; a new one where none has enough."""
        shared: Counter[int] = Counter()
        total = 0
        for one in pieces[:TELLING_PIECES]:
            if one.characters >= TELLING_CHARACTERS:
                total += one.characters
                number = self._known.get(one.mark, 0)
                if number in self._templates:
                    shared[number] += one.characters
        ((found, characters),) = shared.most_common(1) or ((0, 0),)
        if total and characters >= ALIKE * total:
            return found
        self._next += 1
        return self._next

    def _compare(
        self, number: int, before: Sequence[_Piece], pieces: Sequence[_Piece], tokens_per_character: float
    ) -> None:
        same = next(
            (
                at
                for at, (one, other) in enumerate(zip(before, pieces, strict=False))
                if one.mark != other.mark
            ),
            min(len(before), len(pieces)),
        )
        if same == len(pieces) or same == len(before):
            return  # one goes on where the other ended
        had = {one.mark for one in before[same:]}
        lost = sum(one.characters for one in pieces[same:] if one.mark in had) * tokens_per_character
        first = sum(one.characters for one in pieces[:same]) * tokens_per_character
        place = (number, pieces[same].part, pieces[same].line)
        if place in self._places or len(self._places) < MAX_PLACES:
            sums = self._places.setdefault(place, [0.0, 0.0, 0.0])
            for at, value in enumerate((1.0, first, lost)):
                sums[at] += value

    def report(self) -> PrefixReport:
        """What the differences cost."""
        costs: Counter[int] = Counter()
        for (number, _, _), (_, _, lost) in self._places.items():
            costs[number] += round(lost)
        order = {number: at for at, (number, _) in enumerate(costs.most_common(), start=1)}
        found = [
            Break(
                template=order[number],
                requests=self._numbers[number],
                part=part,
                line=line,
                tokens_before=first / times,
                times=int(times),
                lost_tokens=lost,
            )
            for (number, part, line), (times, first, lost) in self._places.items()
            if lost
        ]
        found.sort(key=lambda one: -one.lost_tokens)
        return PrefixReport(
            requests=self._requests,
            prompt_tokens=self._tokens,
            lost_tokens=sum(one.lost_tokens for one in found),
            breaks=tuple(found[:SHOWN_BREAKS]),
        )


def _pieces(layers: Iterable[Mapping[str, Any]]) -> Iterator[_Piece]:
    """The pieces of a prompt, in the order of chat templates."""
    left, taken = MAX_CHARACTERS, 0
    for part, text in _parts(layers):
        for line, found in enumerate(_PIECE.finditer(text[:left]), start=1):
            piece = found[0]
            if not piece:
                continue
            if taken == MAX_PIECES:
                return
            taken += 1
            # A hash of a text is keyed by the process: nothing can be worked out from it later.
            yield _Piece(hash(piece), len(piece), part, line)
        left -= len(text)
        if left <= 0:
            return


def _parts(layers: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for layer in layers:
        names = [name for name in (*_FIRST, "messages", "contents", "prompt", "input") if layer.get(name)]
        if not {"messages", "contents", "prompt", "input"}.isdisjoint(names):
            for name in names:
                yield from _texts_of(name, layer[name])
            return


def _texts_of(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if name in ("tools", "functions"):
        yield name, json.dumps(value, ensure_ascii=False)[:MAX_CHARACTERS]
        return
    if not isinstance(value, list):
        yield name, _text(value)
        return
    for number, message in enumerate(value, start=1):
        role = str(message.get("role", "")).lower() if isinstance(message, dict) else ""
        label = f"{role if role in _ROLES else 'other'} message {number}" if role else name
        yield label, _text(message)


def _text(value: Any) -> str:
    return "\n".join(text for text in spoken(value) if text)


def prefix_report(found: PrefixReport) -> dict[str, Any]:
    """The report as JSON; shares are of all prompt tokens with texts, and of all lost ones."""
    lost = found.lost_tokens
    return {
        "requests": found.requests,
        "prompt_tokens": found.prompt_tokens,
        "lost_share": lost / found.prompt_tokens if found.prompt_tokens else None,
        "breaks": [
            {
                "template": one.template,
                "requests": one.requests,
                "part": one.part,
                "line": one.line,
                "tokens_before": round(one.tokens_before, 1),
                "times": one.times,
                "share_of_lost": one.lost_tokens / lost,
            }
            for one in found.breaks
        ],
    }


def prefix_lines(found: PrefixReport) -> list[str]:
    """The report for a terminal."""
    if not found.requests:
        return ["prefixes: the log has no texts of prompts"]
    if not found.breaks:
        return [f"prefixes: no difference in {found.requests:,} prompts costs a hit"]
    lost = found.lost_tokens
    share = 100 * lost / found.prompt_tokens
    head = f"prefixes: {share:.1f} % of the prompt tokens are lost as hits, by what differs first in"
    return [head] + [
        f"  {100 * one.lost_tokens / lost:5.1f} %  {one.part}, line {one.line}, after {one.tokens_before:,.0f} tokens "
        f"(template {one.template}, {one.requests:,} requests; {one.times:,} times)"
        for one in found.breaks
    ]
