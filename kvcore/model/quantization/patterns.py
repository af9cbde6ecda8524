"""Patterns that checkpoints write about module names, matched in time linear in the name.

Python's `re` tries one alternative after the other, and a short pattern of a stranger's can keep it busy for hours.
Here its parser reads a pattern, and the tree becomes an automaton that follows all alternatives at once: no pattern
backtracks. All patterns of a list are one automaton, built further only as names need it.

What needs memory of the text matched so far (references, atomic groups, possessive repeats) and inline flags are
refused; groups, classes, repeats, anchors, lookaheads and lookbehinds mean what they mean to `re`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import translate
from itertools import takewhile
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final, NamedTuple, TypeAlias

from kvcore.errors import ModelError
from kvcore.model.quantization.automaton import FIELD, Allowance, Machine, State, Test

MAX_PATTERN_CHARACTERS: Final = 512
MAX_GROUPS: Final = 64
"""Of one pattern, nested or not: the parser recurses."""
MAX_FORKS: Final = 8
"""How often patterns that begin alike may part before each is an automaton by itself."""
SHOWN_CHARACTERS: Final = 60
CHARACTERS: Final = (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN)
REPEATS: Final = (codes.MAX_REPEAT, codes.MIN_REPEAT)

Condition: TypeAlias = Callable[[str, list[int]], Iterator[int]]
"""The places of a name where an anchor or what looks around matches."""


class Patterns:
    """Patterns in order; a name is asked once for all of them.

    `whole`: a pattern matches all of a name, and not only its beginning. `wildcards`: patterns of `fnmatch`.

    Raises ModelError `unsupported-pattern`, `too-many-patterns`, and when asked `module-lists-too-costly`.

    Example:
        >>> patterns = Patterns([r".*mlp\\.(gate|up)_proj", r"(?!.*mlp).*"], Allowance())
        >>> patterns.first("model.layers.0.mlp.up_proj"), patterns.first("lm_head"), patterns.first("mlp.x")
        (0, 1, None)
    """

    __slots__ = ("_allowance", "_conditions", "_machine", "_whole")

    def __init__(
        self, texts: Sequence[str], allowance: Allowance, *, whole: bool = False, wildcards: bool = False
    ) -> None:
        builder = _Builder(allowance, are_wildcards=wildcards)
        starts = builder.together([builder.read(number, text) for number, text in enumerate(texts)])
        self._whole = whole or wildcards
        self._allowance = allowance
        self._conditions = builder.conditions
        self._machine = Machine(builder.states, starts, allowance)

    def first(self, name: str) -> int | None:
        """The first pattern that matches `name`, by its place in the list."""
        truths = self._truths(name)
        hits = 0
        for reached in self._machine.run(name, truths):
            hits = reached.hits if self._whole else hits | reached.hits
        return (hits & -hits).bit_length() - 1 if hits else None

    def _truths(self, name: str) -> list[int]:
        """Which conditions are true at each place of `name`, one bit each; inner conditions come before outer ones."""
        truths = [0] * (len(name) + 1)
        for number, condition in enumerate(self._conditions):
            self._allowance.spend(1 + len(name) // 2)
            for place in condition(name, truths):
                truths[place] |= 1 << number
        return truths


class _Read(NamedTuple):
    """A pattern as `re` reads it, and the state in which it has matched."""

    text: str
    parts: list[Any]
    hit: int


def _key(part: Any) -> object:
    """Equal for parts that read the same; groups and what looks around are never taken for the same."""
    operation, argument = part
    if operation in REPEATS and len(argument[2]) == 1 and argument[2][0][0] in CHARACTERS:
        return operation, *argument[:2], repr(argument[2][0])
    return repr(part) if operation in CHARACTERS else id(part)


def _are_alike(keys: Sequence[object]) -> bool:
    return all(key == keys[0] for key in keys)


class _Builder:
    """States made from the trees of `re`'s parser, backwards: each part is given the state that comes after it."""

    def __init__(self, allowance: Allowance, *, are_wildcards: bool) -> None:
        self.states: list[State] = []
        self.conditions: list[Condition] = []
        self._allowance = allowance
        self._are_wildcards = are_wildcards
        self._anchors: dict[Any, int] = {}
        self._text = ""

    def read(self, number: int, text: str) -> _Read:
        """Pattern `number`, parsed."""
        self._text = text
        self._allowance.take_pattern(len(text))
        if len(text) > MAX_PATTERN_CHARACTERS:
            raise self._refused(reason=f"longer than {MAX_PATTERN_CHARACTERS} characters")
        if text.count("(") > MAX_GROUPS:
            raise self._refused(reason=f"more than {MAX_GROUPS} groups")
        try:
            tree = parser.parse(translate(text) if self._are_wildcards else text)
        except (re.error, OverflowError) as error:
            raise self._refused(reason=getattr(error, "msg", str(error))) from None
        if tree.state.flags & ~re.UNICODE:
            raise self._refused(reason="inline flags")
        return _Read(text, tree.data, self._new(hit=1 << number))

    def together(self, patterns: list[_Read], forks: int = MAX_FORKS) -> list[int]:
        """The states in which the patterns begin; what several begin with alike is made once."""
        groups: dict[object, list[_Read]] = {}
        for pattern in patterns:
            groups.setdefault(_key(pattern.parts[0]) if pattern.parts else (), []).append(pattern)
        starts = []
        for group in groups.values():
            alike = takewhile(_are_alike, zip(*(map(_key, pattern.parts) for pattern in group), strict=False))
            shared = len(list(alike))
            if len(group) > 1 and shared and forks:
                self._text, parts = group[0].text, group[0].parts[:shared]
                rests = [pattern._replace(parts=pattern.parts[shared:]) for pattern in group]
                fork = self._new(exits=self.together(rests, forks - 1))
                starts.append(self._sequence(parts, fork, forward=True))
                continue
            for self._text, parts, hit in group:
                starts.append(self._sequence(parts, hit, forward=True))
        return starts

    def _refused(self, *, reason: str) -> ModelError:
        return ModelError(
            "unsupported-pattern", field=FIELD, pattern=self._text[:SHOWN_CHARACTERS], reason=reason
        )

    def _new(self, **parts: Any) -> int:
        self._allowance.take_state()
        self.states.append(State(**parts))
        return len(self.states) - 1

    def _sequence(self, parts: Any, after: int, *, forward: bool) -> int:
        for operation, argument in reversed(parts) if forward else parts:
            after = self._part(operation, argument, after, forward)
        return after

    def _part(self, operation: Any, argument: Any, after: int, forward: bool) -> int:
        if operation is codes.LITERAL:
            return self._new(literal=chr(argument), after=after)
        if operation in CHARACTERS:
            return self._new(test=self._test(operation, argument), after=after)
        if operation is codes.BRANCH:
            branches = [self._sequence(branch, after, forward=forward) for branch in argument[1]]
            return self._new(exits=branches)
        if operation is codes.SUBPATTERN:
            if (argument[1] or argument[2]) and not self._are_wildcards:
                raise self._refused(reason="inline flags")
            return self._sequence(argument[3], after, forward=forward)
        if operation in REPEATS:
            least, most, body = argument
            return self._repeat(least, most, body, after, forward=forward)
        if operation is codes.AT:
            return self._under(self._anchor(argument), after, wants=True)
        if operation in (codes.ASSERT, codes.ASSERT_NOT):
            return self._under(self._around(*argument), after, wants=operation is codes.ASSERT)
        if operation is codes.FAILURE:
            return self._new()
        if operation is codes.ATOMIC_GROUP and self._are_wildcards:
            # `fnmatch` makes each of its pieces atomic, which changes how long it searches, not what it finds.
            return self._sequence(argument, after, forward=forward)
        raise self._refused(reason="a reference, a condition, an atomic group or a possessive repeat")

    def _repeat(self, least: int, most: Any, body: Any, after: int, *, forward: bool) -> int:
        entry = after
        if most is codes.MAXREPEAT:
            entry = self._new()
            self.states[entry].exits = [self._sequence(body, entry, forward=forward), after]
        else:
            for _ in range(most - least):
                entry = self._new(exits=[self._sequence(body, entry, forward=forward), after])
        for _ in range(least):
            self._allowance.take_state()
            entry = self._sequence(body, entry, forward=forward)
        return entry

    def _under(self, condition: int, after: int, *, wants: bool) -> int:
        return self._new(exits=[after], condition=1 << condition, wants=wants)

    def _anchor(self, kind: Any) -> int:
        if kind not in self._anchors:
            self._anchors[kind] = self._condition(ANCHORS[kind])
        return self._anchors[kind]

    def _around(self, direction: int, tree: Any) -> int:
        """What looks ahead is read from the end of the name, what looks behind from its beginning."""
        is_ahead = direction > 0
        if not is_ahead and len(set(tree.getwidth())) > 1:
            raise self._refused(reason="look-behind requires fixed-width pattern")
        start = self._sequence(tree, self._new(hit=1), forward=not is_ahead)
        machine = Machine(self.states, [start], self._allowance, everywhere=True)

        def matches(name: str, truths: list[int]) -> Iterator[int]:
            text, order = (name[::-1], truths[::-1]) if is_ahead else (name, truths)
            found = [place for place, reached in enumerate(machine.run(text, order)) if reached.hits]
            return (len(name) - place if is_ahead else place for place in found)

        return self._condition(matches)

    def _condition(self, condition: Condition) -> int:
        self.conditions.append(condition)
        return len(self.conditions) - 1

    def _test(self, operation: Any, argument: Any) -> Test:
        if operation is codes.NOT_LITERAL:
            return chr(argument).__ne__
        if operation is codes.ANY:
            return _anything if self._are_wildcards else "\n".__ne__
        return _class(argument)


def _anything(character: str) -> bool:
    return True


def _class(parts: Any) -> Test:
    """Whether a character is in a class like `[a-z\\d_]`."""
    is_negated = bool(parts) and parts[0][0] is codes.NEGATE
    tests: list[Test] = []
    for operation, argument in parts[is_negated:]:
        if operation is codes.LITERAL:
            tests.append(chr(argument).__eq__)
        elif operation is codes.RANGE:
            low, high = map(chr, argument)
            tests.append(lambda character, low=low, high=high: low <= character <= high)  # type: ignore[misc]
        else:
            tests.append(CATEGORIES[argument])
    return lambda character: any(test(character) for test in tests) is not is_negated


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


CATEGORIES: Final[dict[Any, Test]] = {
    codes.CATEGORY_DIGIT: str.isdecimal,
    codes.CATEGORY_NOT_DIGIT: lambda character: not character.isdecimal(),
    codes.CATEGORY_SPACE: str.isspace,
    codes.CATEGORY_NOT_SPACE: lambda character: not character.isspace(),
    codes.CATEGORY_WORD: _is_word,
    codes.CATEGORY_NOT_WORD: lambda character: not _is_word(character),
}
"""Source: Modules/_sre/sre.c:sre_category, the categories of unicode texts (CPython 3.13)."""


def _boundaries(name: str) -> Iterator[int]:
    words = [False, *map(_is_word, name), False]
    return (place for place in range(len(name) + 1) if words[place] is not words[place + 1])


def _inner_places(name: str) -> Iterator[int]:
    boundaries = set(_boundaries(name))
    return (place for place in range(len(name) + 1) if place not in boundaries)


def _ends(name: str) -> Iterator[int]:
    return iter((len(name) - 1, len(name)) if name.endswith("\n") else (len(name),))


ANCHORS: Final[dict[Any, Condition]] = {
    codes.AT_BEGINNING: lambda name, truths: iter((0,)),
    codes.AT_BEGINNING_STRING: lambda name, truths: iter((0,)),
    codes.AT_END: lambda name, truths: _ends(name),
    codes.AT_END_STRING: lambda name, truths: iter((len(name),)),
    codes.AT_BOUNDARY: lambda name, truths: _boundaries(name),
    codes.AT_NON_BOUNDARY: lambda name, truths: _inner_places(name),
}
