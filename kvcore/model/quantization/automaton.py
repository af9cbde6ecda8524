"""An automaton that is in many states at once, so that it reads each character of a name once.

Sets of states and the moves between them are remembered as names need them; what that costs is counted.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kvcore.errors import ModelError

FIELD: Final = "config.quantization_config"
MAX_PATTERNS: Final = 1024
MAX_CHARACTERS: Final = 1 << 15
MAX_STATES: Final = 1 << 15
MAX_STEPS: Final = 150_000
"""Of one config: its patterns, all of their characters, the states of their automata, and the steps over all names.

The longest lists that are published take 8 % of the steps.
"""
CHARACTERS_PER_STEP: Final = 8
"""A remembered move takes less time than one of the states that a new move looks at."""
JUMPS_PER_STEP: Final = 4
REMEMBERED_EXTRA: Final = 16
MAX_REMEMBERED: Final = 200_000
"""States in all that an automaton remembers, before it begins to remember anew."""

Test: TypeAlias = Callable[[str], bool]


@dataclass(kw_only=True, slots=True)
class Allowance:
    """What the lists of modules of one config may cost; every list of it draws on the same."""

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


@dataclass(slots=True)
class Reached:
    """The states that the automaton is in together, of those that read a character; and the patterns that matched."""

    alive: array[int]
    hits: int
    moves: dict[str | tuple[str, int], Reached] = field(default_factory=dict)


@dataclass(slots=True)
class State:
    """Reads `literal`, or a character that passes `test`, and goes to `after`; or reads nothing and has `exits`."""

    literal: str = ""
    test: Test | None = None
    after: int = 0
    exits: list[int] = field(default_factory=list)
    hit: int = 0
    condition: int = 0
    """Bit of the condition under which the exits are open; 0 for none."""
    wants: bool = True

    @property
    def is_reading(self) -> bool:
        return bool(self.literal) or self.test is not None


class Machine:
    """An automaton over names: sets of states, and the moves between them as they were asked for."""

    __slots__ = ("_allowance", "_everywhere", "_jumps", "_known", "_remembered", "_starts", "_states")

    def __init__(
        self, states: list[State], starts: list[int], allowance: Allowance, *, everywhere: bool = False
    ) -> None:
        self._states = states
        self._starts = starts
        self._everywhere = everywhere
        """Whether a match may begin at any place."""
        self._allowance = allowance
        self._known: dict[tuple[bytes, int], Reached] = {}
        self._jumps: dict[tuple[int, int], tuple[tuple[int, ...], int]] = {}
        self._remembered = 0

    def run(self, name: str, truths: Sequence[int]) -> Iterator[Reached]:
        """What is reached at each place of `name`, its beginning and its end among them; nothing where all is lost."""
        spend = self._allowance.spend
        spend(1 + len(name) // CHARACTERS_PER_STEP)
        reached = self._closed(self._starts, truths[0])
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
            if not (reached.alive or reached.hits or self._everywhere):
                break
            yield reached
        else:
            return
        yield reached

    def _move(self, reached: Reached, character: str, truth: int) -> Reached:
        states = self._states
        after = {
            state.after
            for state in map(states.__getitem__, reached.alive)
            if (state.literal == character if state.test is None else state.test(character))
        }
        if self._everywhere:
            after.update(self._starts)
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
        self._allowance.spend(looked_at)
        together = array("I", sorted(alive))
        key = (together.tobytes(), hits)
        known = self._known.get(key)
        if known is None:
            self._remember(len(alive))
            known = self._known[key] = Reached(together, hits)
        return known

    def _jump(self, entered: int, truth: int) -> tuple[tuple[int, ...], int]:
        """The reading states that `entered` leads to under the conditions of a place, and what matched on the way."""
        states, seen, waiting = self._states, {entered}, [entered]
        alive, hits = [], 0
        while waiting:
            number = waiting.pop()
            state = states[number]
            hits |= state.hit
            if state.is_reading:
                alive.append(number)
            elif not state.condition or bool(truth & state.condition) is state.wants:
                new = [other for other in state.exits if other not in seen]
                seen.update(new)
                waiting.extend(new)
        self._allowance.spend(len(seen))
        self._remember(len(alive))
        found = self._jumps[entered, truth] = tuple(alive), hits
        return found

    def _remember(self, states: int) -> None:
        self._remembered += states + REMEMBERED_EXTRA
        if self._remembered > MAX_REMEMBERED:
            self._known, self._jumps, self._remembered = {}, {}, 0
