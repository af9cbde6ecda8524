"""A number that explains itself.

Every figure of a plan is a `Quantity`: its value, and the rule that computed the value from other quantities. The
page's help, the "All numbers" table, the ticket text, the lessons and the JSON all render this one tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.numbers import format_bytes, significant
from kvcore.base.term import Term, as_term


class Grade(StrEnum):
    """The certainty of a number, best first."""

    EXACT = "exact"
    """Equal to what the engine's own code computes."""
    DERIVED = "derived"
    """Arithmetic on exact values."""
    MEASURED = "measured"
    """Given by the user, from a log or as their own assumption."""
    FITTED = "fitted"
    """A mechanism with constants fitted to published logs; carries an interval."""
    ASSUMED = "assumed"
    """No evidence; carries a wide interval."""


class Unit(StrEnum):
    BYTES = "bytes"
    TOKENS = "tokens"
    BLOCKS = "blocks"
    REQUESTS = "requests"
    LAYERS = "layers"
    HEADS = "heads"
    NONE = ""


class Scope(StrEnum):
    PER_RANK = "per rank"
    """One GPU or NPU."""
    PER_REPLICA = "per replica"
    """All ranks of one engine."""
    TOTAL = "total"
    """All replicas."""


_RANKS = {grade: rank for rank, grade in enumerate(Grade)}


class Quantity(Struct, frozen=True, kw_only=True):
    """One number with its unit, scope, rule, arguments, grade, source and 80 % interval.

    `explained` makes one by running its rule; `figure` and `given` make one that has no rule.

    Example:
        >>> total = Quantity(name="total", value=24 * 2**30, unit=Unit.BYTES, grade=Grade.MEASURED)
        >>> share = Quantity(name="share", value=0.75, grade=Grade.MEASURED)
        >>> budget = explained("budget", lambda total, share: total * share, total, share)
        >>> budget.formula, budget.substituted, budget.text
        ('total × share', '24.00 GiB × 0.75', '18.00 GiB')
    """

    name: str
    value: float
    unit: Unit = Unit.NONE
    scope: Scope = Scope.PER_RANK
    rule: Callable[..., Any] | None = None
    """Computes the value of the values of the arguments, and the formula of their names."""
    arguments: tuple[Any, ...] = ()
    """Arguments of the rule: quantities, numbers that are written as they are, and tuples of these."""
    set_by: str = ""
    """The flag or variable that gives the value, where that is all there is to say."""
    grade: Grade = Grade.DERIVED
    source: str = ""
    interval: tuple[float, float] | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """The ends of the interval; the value twice without one."""
        return (self.value, self.value) if self.interval is None else self.interval

    @property
    def inputs(self) -> tuple[Quantity, ...]:
        """The quantities that the formula names, numbered where several have one name."""
        return tuple(self._named().values())

    @property
    def term(self) -> Term | None:
        """The result of the rule for the names of the inputs; None without a rule."""
        if self.rule is None:
            return None
        names = {number: Term.named(part.name) for number, part in self._named().items()}
        return as_term(self.rule(*(_term_of(argument, names) for argument in self.arguments)))

    @property
    def formula(self) -> str:
        """The rule with the names of the inputs, or what sets the value; "" without either."""
        term = self.term
        return self.set_by if term is None else term.text()

    @property
    def substituted(self) -> str:
        """The rule with the inputs' values; a negative one changes the sign before it.

        Example:
            >>> weights, dropped = Quantity(name="a", value=3), Quantity(name="b", value=-2)
            >>> explained("sum", lambda a, b: a + b, weights, dropped).substituted
            '3 − 2'
        """
        term = self.term
        return self.set_by if term is None else term.text({part.name: part.text for part in self.inputs})

    def _named(self) -> dict[int, Quantity]:
        """The inputs by the identity of the arguments that they are."""
        parts = {id(part): part for part in _leaves(self.arguments)}
        return dict(zip(parts, _numbered(tuple(parts.values())), strict=True))

    @property
    def text(self) -> str:
        """The value as a person reads it, with its unit.

        Example:
            >>> Quantity(name="page", value=32768, unit=Unit.BYTES).text
            '32.00 KiB'
        """
        if self.unit is Unit.BYTES:
            return format_bytes(self.value)
        return f"{significant(self.value)} {self.unit}".strip()

    def walk(self) -> Iterator[Quantity]:
        """This quantity and all those it was computed from, each once, in the order of first use."""
        seen: set[int] = set()
        stack = [self]
        while stack:
            quantity = stack.pop()
            if id(quantity) in seen:
                continue
            seen.add(id(quantity))
            yield quantity
            stack.extend(reversed(quantity.inputs))


class Inline(Struct, frozen=True):
    """An argument whose own formula stands in the formula, in place of its name."""

    quantity: Quantity


def explained(
    name: str,
    rule: Callable[..., Any],
    *arguments: Any,
    unit: Unit = Unit.BYTES,
    scope: Scope = Scope.PER_RANK,
    grade: Grade | None = None,
    source: str = "",
    spread: float | None = None,
    interval: tuple[float, float] | None = None,
) -> Quantity:
    """The value that `rule` gives for `arguments`: bytes of one rank, as well known as they are, unless said otherwise.

    Arguments are quantities, plain numbers, and tuples of these. `spread` is half of an interval around the value,
    `interval` one that is not around it. A rule at the top of a module makes equal quantities equal.

    Example:
        >>> pool, page = given("pool", 96), given("page", 16)
        >>> blocks = explained("blocks", lambda pool, page: pool // page, pool, page, unit=Unit.BLOCKS)
        >>> blocks.value, blocks.substituted, blocks.grade.value
        (6, '⌊96 / 16⌋', 'exact')
        >>> explained("all", lambda parts: sum(parts), (pool, page)).formula
        'pool + page'
    """
    value = rule(*_values_of(arguments))
    return Quantity(
        name=name,
        value=value,
        unit=unit,
        scope=scope,
        rule=rule,
        arguments=arguments,
        grade=weakest(_leaves(arguments)) if grade is None else grade,
        source=source,
        interval=interval if spread is None else (value - spread, value + spread),
    )


def figure(
    name: str,
    value: float,
    *,
    unit: Unit = Unit.BYTES,
    scope: Scope = Scope.PER_RANK,
    grade: Grade = Grade.EXACT,
    source: str = "",
    spread: float | None = None,
    interval: tuple[float, float] | None = None,
) -> Quantity:
    """A number without a rule: bytes of one rank, unless said otherwise. Of `spread` and `interval` as in `explained`.

    Example:
        >>> figure("system", 512, spread=12).interval
        (500, 524)
    """
    return Quantity(
        name=name,
        value=value,
        unit=unit,
        scope=scope,
        grade=grade,
        source=source,
        interval=interval if spread is None else (value - spread, value + spread),
    )


def given(name: str, value: float, unit: Unit = Unit.NONE, grade: Grade = Grade.EXACT) -> Quantity:
    """A number that a rule starts from."""
    return Quantity(name=name, value=value, unit=unit, grade=grade)


def weakest(parts: Iterable[Quantity]) -> Grade:
    """The grade of what is computed from `parts`: that of the least known of them.

    Example:
        >>> weakest((given("layers", 64), given("budget", 2**30, Unit.BYTES, Grade.FITTED))).value
        'fitted'
    """
    return max([part.grade for part in parts], key=_RANKS.__getitem__, default=Grade.EXACT)


def _values_of(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([one.value if type(one) is Quantity else _value_of(one) for one in arguments])


def _value_of(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return _values_of(argument)
    return argument.quantity.value if isinstance(argument, Inline) else argument


def _term_of(argument: Any, names: dict[int, Term]) -> Any:
    if isinstance(argument, Quantity):
        return names[id(argument)]
    if isinstance(argument, Inline):
        inner = argument.quantity
        return inner.rule(*(_term_of(one, names) for one in inner.arguments)) if inner.rule else inner.value
    return tuple(_term_of(one, names) for one in argument) if isinstance(argument, tuple) else argument


def _leaves(arguments: Iterable[Any]) -> list[Quantity]:
    found: list[Quantity] = []
    for argument in arguments:
        if isinstance(argument, Quantity):
            found.append(argument)
        elif isinstance(argument, Inline):
            found += _leaves(argument.quantity.arguments)
        elif isinstance(argument, tuple):
            found += _leaves(argument)
    return found


def _numbered(parts: tuple[Quantity, ...]) -> tuple[Quantity, ...]:
    """The same, numbered where several have one name: "layers_1", "layers_2"."""
    names = Counter(part.name for part in parts)
    if len(names) == len(parts):
        return parts
    seen: Counter[str] = Counter()
    found = []
    for part in parts:
        seen[part.name] += 1
        found.append(replace(part, name=f"{part.name}_{seen[part.name]}") if names[part.name] > 1 else part)
    return tuple(found)
