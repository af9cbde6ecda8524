"""Patterns that checkpoints write about module names, matched in time linear in the name.

Python's `re` tries one alternative after the other, and a short pattern of a stranger's can keep it busy for hours.
Here its parser reads a pattern, and the tree becomes an automaton that follows all alternatives at once: no pattern
backtracks. All patterns of a list are one automaton, in many states at once, so that it reads each character of a name
once. Sets of states and the moves between them are remembered as names need them; their cost is counted.

References, atomic groups, possessive repeats (which need the text matched so far) and inline flags are refused; groups,
classes, repeats, anchors, lookaheads and lookbehinds mean what they mean to `re`.

RE2 (google-re2 1.1.20251105), which does not backtrack either, was tried in its place. It has no lookaheads, which
checkpoints use: `^(?!.*lm_head).*`. And it counts no steps: the cost of a config could be bounded only by patterns ×
names × characters, which refuses long lists that cost little, or by the clock, which answers differently on a busy
machine. Pattern by pattern it took 6.3 s for 1,024 patterns and 2,048 names; as one set 9 ms.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import translate
from itertools import takewhile
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct, field

from kvcore.base.errors import ModelError

FIELD: Final = "config.quantization_config"
MAX_PATTERNS: Final = 1024
MAX_CHARACTERS: Final = 1 << 15
MAX_STATES: Final = 1 << 15
MAX_STEPS: Final = 150_000
"""Bounds of one config: its patterns, their characters, the states of their automata, the steps over all names.

The longest lists that are published take 8 % of the steps.
"""
CHARACTERS_PER_STEP: Final = 8
"""A remembered move takes less time than one of the states that a new move looks at."""
JUMPS_PER_STEP: Final = 4
REMEMBERED_EXTRA: Final = 16
MAX_REMEMBERED: Final = 200_000
"""States in all that an automaton remembers, before it begins to remember anew."""

Test: TypeAlias = Callable[..., object]
"""Whether a character is one that a state reads, or a place of a name one that an anchor means."""

MAX_PATTERN_CHARACTERS: Final = 512
MAX_GROUPS: Final = 64
"""Groups of one pattern, nested or not: the parser recurses."""
MAX_FORKS: Final = 8
"""How often patterns that begin alike may part before each is an automaton by itself."""
SHOWN_CHARACTERS: Final = 60
WRITTEN: Final = {
    "ANY": ".",
    "AT_BEGINNING": "^",
    "AT_BEGINNING_STRING": r"\A",
    "AT_END": "$",
    "AT_END_STRING": r"\Z",
    "AT_BOUNDARY": r"\b",
    "AT_NON_BOUNDARY": r"\B",
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}
"""Patterns of one character or one place, where nothing can backtrack, so that `re` itself may answer."""
CHARACTERS: Final = (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN)
REPEATS: Final = (codes.MAX_REPEAT, codes.MIN_REPEAT)

Condition: TypeAlias = Callable[[str, list[int]], Iterator[int]]
"""Places of a name where an anchor or a lookaround matches."""


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
        truths = [0] * (len(name) + 1)
        """Conditions that are true at each place, one bit each; inner ones come before outer ones."""
        for number, condition in enumerate(self._conditions):
            self._allowance.spend(1 + len(name) // 2)
            for place in condition(name, truths):
                truths[place] |= 1 << number
        hits = 0
        for reached in self._machine.run(name, truths):
            hits = reached.hits if self._whole else hits | reached.hits
        return (hits & -hits).bit_length() - 1 if hits else None


class _Read(NamedTuple):
    """A pattern as `re` reads it, and the state in which it has matched."""

    text: str
    parts: list[Any]
    hit: int


def _key(part: Any) -> object:
    """Equal for parts that read the same characters; groups and lookarounds are never equal."""
    operation, argument = part
    if operation in REPEATS and len(argument[2]) == 1 and argument[2][0][0] in CHARACTERS:
        return operation, *argument[:2], repr(argument[2][0])
    return repr(part) if operation in CHARACTERS else id(part)


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
        """The states in which the patterns begin; a common beginning is built once."""
        groups: dict[object, list[_Read]] = {}
        for pattern in patterns:
            groups.setdefault(_key(pattern.parts[0]) if pattern.parts else (), []).append(pattern)
        starts = []
        for group in groups.values():
            keys = zip(*(map(_key, pattern.parts) for pattern in group), strict=False)
            shared = len(list(takewhile(lambda alike: len(set(alike)) == 1, keys)))
            if len(group) > 1 and shared and forks:
                rests = [pattern._replace(parts=pattern.parts[shared:]) for pattern in group]
                fork = self._new(exits=self.together(rests, forks - 1))
                group = [group[0]._replace(parts=group[0].parts[:shared], hit=fork)]
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
            return self._new(test=self._character(operation, argument), after=after)
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
        if operation in (codes.AT, codes.ASSERT, codes.ASSERT_NOT):
            number = self._anchor(argument) if operation is codes.AT else self._around(*argument)
            return self._new(exits=[after], condition=1 << number, wants=operation is not codes.ASSERT_NOT)
        if operation is codes.FAILURE:
            return self._new()
        if operation is codes.ATOMIC_GROUP and self._are_wildcards:
            # `fnmatch` makes each of its pieces atomic, which changes how long it searches, not what it finds.
            return self._sequence(argument, after, forward=forward)
        raise self._refused(reason="a reference, a condition, an atomic group or a possessive repeat")

    def _repeat(self, least: int, most: Any, body: Any, after: int, *, forward: bool) -> int:
        is_endless = most is codes.MAXREPEAT
        entry = self._new() if is_endless else after
        if is_endless:
            self.states[entry].exits = [self._sequence(body, entry, forward=forward), after]
        for _ in range(0 if is_endless else most - least):
            entry = self._new(exits=[self._sequence(body, entry, forward=forward), after])
        for _ in range(least):
            self._allowance.take_state()
            entry = self._sequence(body, entry, forward=forward)
        return entry

    def _anchor(self, kind: Any) -> int:
        if kind not in self._anchors:
            matches = self._alone(kind)
            self._anchors[kind] = self._condition(
                lambda name, truths: (place for place in range(len(name) + 1) if matches(name, place))
            )
        return self._anchors[kind]

    def _around(self, direction: int, tree: Any) -> int:
        """Lookaheads are read from the end of the name, lookbehinds from its beginning."""
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

    def _alone(self, code: Any) -> Test:
        """`re`'s own answer for one character or one place."""
        flags = re.DOTALL if self._are_wildcards else 0
        return re.compile(WRITTEN[code.name], flags).match

    def _character(self, operation: Any, argument: Any) -> Test:
        """Whether a character is one that this part reads."""
        if operation is codes.NOT_LITERAL:
            return chr(argument).__ne__
        return self._class(argument) if operation is codes.IN else self._alone(operation)

    def _class(self, parts: Any) -> Test:
        """Whether a character is in a class like `[a-z\\d_]`, of which strangers write too many to compile each."""
        wanted = parts[0][0] is not codes.NEGATE
        categories = [self._alone(part[1]) for part in parts if part[0] is codes.CATEGORY]
        literals = {argument for operation, argument in parts if operation is codes.LITERAL}
        ranges = [argument for operation, argument in parts if operation is codes.RANGE]

        def is_in(character: str) -> bool:
            place = ord(character)
            found = place in literals or any(low <= place <= high for low, high in ranges)
            return (found or any(test(character) for test in categories)) is wanted

        return is_in


class Allowance(Struct, kw_only=True):
    """Budget for the lists of modules of one config; all its lists draw on it."""

    patterns: int = MAX_PATTERNS
    characters: int = MAX_CHARACTERS
    states: int = MAX_STATES
    steps: int = MAX_STEPS

    def take_pattern(self, characters: int) -> None:
        """Counts one pattern. Raises ModelError `too-many-patterns`."""
        self.patterns -= 1
        self.characters -= characters
        if self.patterns < 0 or self.characters < 0:
            limit = f"{MAX_PATTERNS:,}" if self.patterns < 0 else f"{MAX_CHARACTERS:,}"
            raise ModelError("too-many-patterns", field=FIELD, limit=limit)

    def take_state(self) -> None:
        """Counts one state of an automaton. Raises ModelError `too-many-patterns`."""
        self.states -= 1
        if self.states < 0:
            raise ModelError("too-many-patterns", field=FIELD, limit=f"{MAX_STATES:,}")

    def spend(self, steps: int) -> None:
        """Counts steps over a module name. Raises ModelError `module-lists-too-costly`."""
        self.steps -= steps
        if self.steps < 0:
            raise ModelError("module-lists-too-costly", field=FIELD, limit=f"{MAX_STEPS:,}")


class Reached(Struct):
    """The states that the automaton is in together, of those that read a character; and the patterns that matched."""

    alive: array[int]
    hits: int
    moves: dict[str | tuple[str, int], Reached] = field(default_factory=dict)


class State(Struct):
    """Reads `literal`, or a character that passes `test`, and goes to `after`; or reads nothing and has `exits`."""

    literal: str = ""
    test: Test | None = None
    after: int = 0
    exits: list[int] = field(default_factory=list)
    hit: int = 0
    condition: int = 0
    """Bit of the condition under which the exits are open; 0 for none."""
    wants: bool = True


class Machine(Struct):
    """An automaton over names: sets of states, and the moves between them as they were asked for."""

    states: list[State]
    starts: list[int]
    allowance: Allowance
    everywhere: bool = False
    """Whether a match may begin at any place."""
    _known: dict[tuple[bytes, int], Reached] = field(default_factory=dict)
    _jumps: dict[tuple[int, int], tuple[tuple[int, ...], int]] = field(default_factory=dict)
    _remembered: int = 0

    def run(self, name: str, truths: Sequence[int]) -> Iterator[Reached]:
        """States reached at each place of `name`, from its beginning to its end; it stops where none is left."""
        spend = self.allowance.spend
        spend(1 + len(name) // CHARACTERS_PER_STEP)
        reached = self._closed(self.starts, truths[0])
        yield reached
        for place, character in enumerate(name, 1):
            truth = truths[place]
            key = (character, truth) if truth else character
            following = reached.moves.get(key)
            if following is None:
                spend(len(reached.alive))
                following = self._move(reached, character, truth)
                reached.moves[key] = following
            reached = following
            yield reached
            if not (reached.alive or reached.hits or self.everywhere):
                return

    def _move(self, reached: Reached, character: str, truth: int) -> Reached:
        states = self.states
        after = {
            state.after
            for state in map(states.__getitem__, reached.alive)
            if (state.literal == character if state.test is None else state.test(character))
        }
        if self.everywhere:
            after.update(self.starts)
        return self._closed(after, truth)

    def _closed(self, entered: Iterable[int], truth: int) -> Reached:
        """Everything that is reached from `entered` without reading a character."""
        alive: set[int] = set()
        hits = looked_at = 0
        for number in entered:
            found = self._jumps.get((number, truth)) or self._jump(number, truth)
            alive.update(found[0])
            hits |= found[1]
            looked_at += 1 + len(found[0]) // JUMPS_PER_STEP
        self.allowance.spend(looked_at)
        together = array("I", sorted(alive))
        key = (together.tobytes(), hits)
        known = self._known.get(key)
        if known is None:
            self._remember(len(alive))
            known = self._known[key] = Reached(together, hits)
        return known

    def _jump(self, entered: int, truth: int) -> tuple[tuple[int, ...], int]:
        """The reading states behind `entered` under the conditions of a place, and the patterns matched on the way."""
        states, seen, waiting = self.states, {entered}, [entered]
        alive, hits = [], 0
        while waiting:
            number = waiting.pop()
            state = states[number]
            hits |= state.hit
            if state.literal or state.test is not None:
                alive.append(number)
            elif not state.condition or bool(truth & state.condition) is state.wants:
                new = [other for other in state.exits if other not in seen]
                seen.update(new)
                waiting.extend(new)
        self.allowance.spend(len(seen))
        self._remember(len(alive))
        found = self._jumps[entered, truth] = tuple(alive), hits
        return found

    def _remember(self, states: int) -> None:
        self._remembered += states + REMEMBERED_EXTRA
        if self._remembered > MAX_REMEMBERED:
            self._known, self._jumps, self._remembered = {}, {}, 0
