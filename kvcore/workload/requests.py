"""Requests of a log: their lengths in tokens, why a line has none, and the names of fields (requests.toml)."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache, lru_cache
from typing import Annotated, Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from kvcore.base.errors import WorkloadError
from kvcore.tables import Amount, Count, Record, Source, TableFile
from kvcore.workload.histogram import MAX_TOKENS

MAX_DIGITS: Final = 9
"""Digits of a count that `int` may read."""
MAX_LOG_BYTES: Final = 50 << 20
MAX_REQUESTS: Final = 1_000_000
MAPPED: Final = (
    "prompt",
    "completion",
    "max_tokens",
    "cached",
    "session",
    "seconds",
    "status",
    "model",
    "kind",
)
"""Fields whose names the user may give."""
TEXT_SLICE: Final = 1 << 18
_ASCII: Final = range(128)
_NOISE: Final = 1e-9
"""Rounding error of quotients that sum to a whole number."""
_BLANK: Final = b" " * len(_ASCII) + bytes(range(len(_ASCII), 256))
LONGEST_NAME: Final = 60
_NUMBERS: Final = (int, float)
_NOT_IN_A_NAME: Final = re.compile(r"[\s_\-.()（）#@]+")

Error = Annotated[float, Meta(ge=-1.0, le=10.0)]
Name = Annotated[str, Meta(pattern=r"^\w{1,60}$")]


class Names(Record, frozen=True, kw_only=True):
    """Names of fields, in order of preference."""

    prompt: tuple[Name, ...]
    completion: tuple[Name, ...]
    max_tokens: tuple[Name, ...]
    cached: tuple[Name, ...]
    session: tuple[Name, ...]
    seconds: tuple[Name, ...]
    blocks: tuple[Name, ...]
    model: tuple[Name, ...]
    error: tuple[Name, ...]
    status: tuple[Name, ...]
    sums: tuple[Name, ...]
    kind: tuple[Name, ...]
    path: tuple[Name, ...]


class Inside(Record, frozen=True, kw_only=True):
    """Fields that contain an object: with counts, or with anything."""

    usage: tuple[Name, ...]
    other: tuple[Name, ...]
    counts: tuple[Name, ...]
    """With counts where it has any."""
    envelopes: tuple[Name, ...]
    """With anything where it is an object."""
    many: tuple[Name, ...]
    """A list of further records."""
    failed: tuple[Name, ...]
    """A list of requests that failed."""


class Other(Record, frozen=True, kw_only=True):
    """Records that are no request: their kinds, and parts of the paths of their requests."""

    kinds: tuple[Name, ...]
    paths: tuple[Annotated[str, Meta(pattern=r"^/[a-z/]{1,40}$")], ...]


class Texts(Record, frozen=True, kw_only=True):
    """Fields with the text of a prompt, and of an answer."""

    prompt: tuple[Name, ...]
    answer: tuple[Name, ...]


class Rate(Record, frozen=True, kw_only=True):
    """Characters of one kind per token, and the smallest and largest relative error for such a text."""

    characters_per_token: Amount
    error: tuple[Error, Error]


class Estimate(Record, frozen=True, kw_only=True):
    """Approximate tokens of a text without its tokenizer, and those that a chat template adds to a message."""

    kinds: Mapping[str, Rate]
    """By a pattern of characters; a character counts as the first kind that matches."""
    tokens_per_message: Count
    sources: tuple[Source, ...]
    checked: datetime.date


class RequestTables(Record, frozen=True, kw_only=True):
    """requests.toml."""

    names: Names
    plus: Mapping[str, tuple[Name, ...]]
    inside: Inside
    within: Mapping[Name, Mapping[Name, Name]]
    """By the name of a field that holds others: what those are called elsewhere."""
    other: Other
    texts: Texts
    estimate: Estimate


tables: Final = TableFile("kvcore.workload", "requests.toml", RequestTables).load
"""Gives the tables of requests.toml."""


class Prompts(Protocol):
    """Takes the texts of prompts."""

    def add(self, layers: Iterable[Mapping[str, Any]], prompt_tokens: int) -> None:
        """Takes the objects of a record with texts, and the tokens of its prompt."""


class Reading(Struct, frozen=True, kw_only=True):
    """Options of reading logs: what counts texts, names of columns, and limits."""

    counter: Callable[[str], int] | None = None
    """Counts a text by the model's tokenizer; None: the stated approximation."""
    columns: tuple[tuple[str, str], ...] = ()
    """Fields of `Names` with the name in this log, which is preferred to known names."""
    max_bytes: int | None = MAX_LOG_BYTES
    """Bytes of all files together, unpacked; None for no limit, as on the command line."""
    max_requests: int | None = MAX_REQUESTS
    """Lines, or requests if a line has several."""
    only: tuple[tuple[str, str], ...] = ()
    """Fields and the value that a request must have in each: `model`, `kind`, `status`, `session`, or a name in this
    log; a value may end with a star."""
    since: float | None = None
    """Seconds since 1970: earlier requests do not count, nor those without a time."""
    until: float | None = None
    prefixes: Prompts | None = None
    """Takes the texts of prompts, to find what breaks the prefix cache."""
    seen: set[str] = msgspec.field(default_factory=set)
    """Plain names of `columns` found in the log so far."""

    @property
    def unseen(self) -> tuple[str, ...]:
        """Names of `columns`, as given, that no record has had so far."""
        return tuple(name for _, name in self.columns if plain_name(name) not in self.seen)

    @property
    def picks(self) -> bool:
        """Whether not every request counts."""
        return bool(self.only) or self.since is not None or self.until is not None

    @property
    def dotted(self) -> tuple[str, ...]:
        """Names of `columns` that are paths of fields within others."""
        return tuple(name for _, name in self.columns if "." in name)

    def note(self, layers: Sequence[Collection[str]]) -> None:
        """Notes the plain names that the log has."""
        for name in map(plain_name, self.unseen):
            if any(name in layer for layer in layers):
                self.seen.add(name)

    @property
    def names(self) -> Names:
        """Names of the fields in this log."""
        return names_with(self.columns)


@lru_cache(maxsize=32)
def names_with(columns: tuple[tuple[str, str], ...]) -> Names:
    """The names of requests.toml, preceded by those of the user.

    Raises WorkloadError `unknown-column-field`.
    """
    names = tables().names
    for field, name in columns:
        if field not in MAPPED:
            raise WorkloadError("unknown-column-field", field=field, value=name, allowed=", ".join(MAPPED))
        names = replace(names, **{field: (plain_name(name), *getattr(names, field))})
    return names


class Unusable(StrEnum):
    """Why a line is not counted."""

    NOT_A_RECORD = "not-a-record"
    NO_LENGTH = "no-length"
    ABSURD_LENGTH = "absurd-length"
    FAILED = "failed"
    """The request itself failed: not a fault of the log."""
    OTHER_KIND = "other-kind"
    """Not about a request that generates, or the sum of those below it: not a fault of the log."""
    SUM = "sum"
    """The sum of several requests."""
    NOT_ASKED = "not-asked"
    """A request that was not asked for: of another model, kind, status or time."""


class UnusableLineError(Exception):
    """A line that is not counted; raised and caught within this package."""

    def __init__(self, reason: Unusable) -> None:
        super().__init__(reason.value)
        self.reason = reason


class Request(NamedTuple):
    """One request: its lengths in tokens, and what else a record has. A tuple, because a log has a million."""

    prompt_tokens: int
    completion_tokens: int | None = None
    max_tokens: int | None = None
    estimated: bool = False
    """Whether the prompt was counted from its text by the approximation."""
    cached_tokens: int = 0
    """Prompt tokens found in a cache; `prompt_tokens` includes them."""
    session: str | None = None
    seconds: float | None = None
    """Arrival, since 1970 or since the start of the log."""
    blocks: tuple[str, ...] = ()
    """Hashes of the prompt's blocks, each over all tokens up to its end; numbers as digits."""
    not_counted: int = 0
    """Images and audio of the prompt, which no count includes."""
    by_text: bool = False
    """Whether the prompt was counted from its text, by a tokenizer or by the approximation."""
    model: str = ""
    call: str = ""
    """The call that other lines may be about too, of which the last counts; empty where a line is a request."""


class Rows(NamedTuple):
    """Requests in columns, one for each thing that a request says; None: no request says it."""

    prompts: Sequence[int]
    answers: Sequence[int] | None
    asked: Sequence[int] | None
    cached_tokens: int
    """The sum over all requests."""
    sessions: Sequence[str] | Mapping[str, int] | None
    """The session of each request that has one, or the number of requests of each."""
    seconds: tuple[float, float] | None
    """The first and the last time."""
    blocks: Sequence[Sequence[str]] | None
    times: Callable[[int], Sequence[float | None]] | None = None
    """The times of the first so many, worked out when asked for."""
    models: Sequence[str] | Mapping[str, int] | None = None
    """As `sessions`."""


def checked_tokens(value: object, least: int = 0) -> int:
    """A token count of a log: a whole number from `least` to 2**24, also as text or as 900.0.

    Raises UnusableLineError, `absurd-length` for a number out of this range, else `no-length`.

    Example:
        >>> checked_tokens("1,712"), checked_tokens(900.0)
        (1712, 900)
    """
    if isinstance(value, str):
        if value.isdecimal() and len(value) <= MAX_DIGITS and least <= (count := int(value)) <= MAX_TOKENS:
            return count
        if _DOTTED_GROUPS.fullmatch(value):
            value = value.replace(".", "")  # no count has three decimals
        value = int(value) if value.isdecimal() and len(value) <= MAX_DIGITS else number_of(value)
    if isinstance(value, bool) or not isinstance(value, _NUMBERS):
        raise UnusableLineError(Unusable.NO_LENGTH)
    if not least <= value <= MAX_TOKENS or value != int(value):
        raise UnusableLineError(Unusable.ABSURD_LENGTH)
    return int(value)


_GROUPS: Final = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d{1,9})?")
_DOTTED_GROUPS: Final = re.compile(r"\d{1,3}(?:\.\d{3})+")
_DECIMAL_COMMA: Final = re.compile(r"-?\d{1,12},\d{1,2}")
_BETWEEN_DIGITS: Final = re.compile(r"(?<=\d)['’ \u00a0\u202f](?=\d{3})")


def number_of(text: str, longest: int = 24) -> float | None:
    """A number as spreadsheets write it, with separators of thousands or a decimal comma; None for anything else.

    Example:
        >>> number_of("1,712"), number_of("1 712,50"), number_of("1'712"), number_of("x")
        (1712.0, 1712.5, 1712.0, None)
    """
    digits = text.strip()
    if not digits or len(digits) > longest + longest // 3:
        return None
    if not digits.isdecimal():
        digits = _BETWEEN_DIGITS.sub("", digits)
        is_decimal = _GROUPS.fullmatch(digits) is None and _DECIMAL_COMMA.fullmatch(digits) is not None
        digits = digits.replace(",", "." if is_decimal else "")
    if len(digits) > longest:
        return None
    try:
        return float(digits)
    except ValueError:
        return None


def estimated_tokens(text: str) -> int:
    """Tokens of `text` by the stated approximation, rounded up: characters of each kind over its rate.

    Source: requests.toml.

    Example:
        >>> estimated_tokens("plain words"), estimated_tokens("显存容量规划"), estimated_tokens("12345")
        (3, 6, 5)
    """
    kinds = _kinds()
    found = [0] * len(kinds.rates)
    for at in range(0, len(text), TEXT_SLICE):
        part = text[at : at + TEXT_SLICE]
        parts = _between_long_runs(part, kinds)
        found[0] += len(part) - sum(map(len, parts))
        rest = " ".join(parts)
        data = rest.encode("utf-8", "surrogatepass")
        for kind, characters in kinds.ascii:
            before, data = len(data), data.translate(None, characters)
            found[kind] += before - len(data)
        if not data.isascii():
            # A run of the last kind continues over all other kinds up to the next ASCII character.
            other = b" ".join(rest.encode("utf-8", "surrogatepass").translate(_BLANK).split())
            for run in kinds.runs.finditer(other.decode("utf-8", "surrogatepass")):
                found[(run.lastindex or 1) - 1] += run.end() - run.start()
    total = math.fsum(number / rate for number, rate in zip(found, kinds.rates, strict=True))
    return math.ceil(total - _NOISE)


def _between_long_runs(text: str, kinds: _Kinds) -> list[str]:
    """`text` without the runs of the first kind."""
    kept: list[str] = []
    at = 0
    for found in kinds.long_run.finditer(text):
        start, end = found.span()
        before = kinds.of.get(text[start - 1]) if start else None
        # A run of another kind before it extends into it.
        while before is not None and start < end and kinds.of.get(text[start]) == before:
            start += 1
        if kinds.long_run.match(text, start):
            kept.append(text[at:start])
            at = end
    return [*kept, text[at:]]


class _Kinds(NamedTuple):
    """The kinds of requests.toml: the first is a long run, the others are sets of characters."""

    rates: tuple[float, ...]
    long_run: re.Pattern[str]
    runs: re.Pattern[str]
    of: Mapping[str, int]
    """The kind of each ASCII character that is in a set."""
    ascii: tuple[tuple[int, bytes], ...]
    """Kinds with their ASCII characters."""


@cache
def _kinds() -> _Kinds:
    kinds = tables().estimate.kinds
    runs = re.compile("|".join(f"({pattern})" for pattern in kinds))
    of = {chr(one): (found.lastindex or 1) - 1 for one in _ASCII if (found := runs.fullmatch(chr(one)))}
    sets = ((kind, "".join(one for one in of if of[one] == kind).encode()) for kind in sorted({*of.values()}))
    rates = tuple(rate.characters_per_token for rate in kinds.values())
    return _Kinds(rates, re.compile(next(iter(kinds))), runs, of, tuple(sets))


@lru_cache(maxsize=4096)
def field_name(name: str) -> str:
    """The plain name of a field; of a path with dots whose end alone is the name of a count, that end.

    Example:
        >>> field_name("response.usage.prompt_tokens"), field_name("pod.status")
        ('usageprompttokens', 'podstatus')
    """
    whole = plain_name(name)
    counts, rest = _counts(), name[: 2 * LONGEST_NAME]
    while "." in rest and plain_name(rest) not in counts:
        rest = rest.partition(".")[2]
    found = plain_name(rest)
    return found if found in counts else whole


@cache
def _counts() -> frozenset[str]:
    names = tables().names
    return frozenset((*names.prompt, *names.completion, *names.cached, *names.max_tokens))


@lru_cache(maxsize=4096)
def plain_name(name: str) -> str:
    """The name of a field as requests.toml writes it.

    Example:
        >>> plain_name("Prompt_Tokens"), plain_name("gen_ai.usage.input_tokens")
        ('prompttokens', 'genaiusageinputtokens')
    """
    return _NOT_IN_A_NAME.sub("", name[:LONGEST_NAME].strip().strip("\ufeff\"'")).lower()
