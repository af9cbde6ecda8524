"""A number that carries its reason.

A `Quantity` is what every figure of a plan is made of. The page's help, the "All numbers" table, the ticket
text, the derivation and the JSON all render this one tree, so an explanation cannot disagree with the number.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.numbers import format_bytes, significant


class Grade(StrEnum):
    """How well a number is known, best first."""

    EXACT = "exact"
    """Equal to what the engine's own code computes."""
    DERIVED = "derived"
    """Arithmetic on exact values."""
    MEASURED = "measured"
    """Given by the person, from a log or as an assumption of his own."""
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
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_SIGNED_PLACEHOLDER = re.compile(r"(?P<sign> [+−] )?\{(?P<name>\w+)\}")
_OPPOSITE: Final = {" + ": " − ", " − ": " + ", "": "−"}


class Quantity(Struct, frozen=True, kw_only=True):
    """One number with unit, scope, formula, inputs, grade, source and 80 % interval.

    `formula` names its inputs in braces, `"{total} × {gpu_memory_utilization}"`; `substituted` puts today's
    numbers there.

    Example:
        >>> total = Quantity(name="total", value=24 * 2**30, unit=Unit.BYTES, grade=Grade.MEASURED)
        >>> share = Quantity(name="share", value=0.75, grade=Grade.MEASURED)
        >>> budget = Quantity(name="budget", value=18 * 2**30, unit=Unit.BYTES,
        ...                   formula="{total} × {share}", inputs=(total, share))
        >>> budget.substituted
        '24.00 GiB × 0.75'
    """

    name: str
    value: float
    unit: Unit = Unit.NONE
    scope: Scope = Scope.PER_RANK
    formula: str = ""
    inputs: tuple[Quantity, ...] = ()
    grade: Grade = Grade.DERIVED
    source: str = ""
    interval: tuple[float, float] | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """The ends of the interval; the value twice without one."""
        return (self.value, self.value) if self.interval is None else self.interval

    @property
    def substituted(self) -> str:
        """The formula with the inputs' values in place of their names; what is negative changes the sign before it.

        Example:
            >>> weights, dropped = Quantity(name="a", value=3), Quantity(name="b", value=-2)
            >>> Quantity(name="sum", value=1, formula="{a} + {b}", inputs=(weights, dropped)).substituted
            '3 − 2'
        """
        values = {q.name: q for q in self.inputs}

        def written(match: re.Match[str]) -> str:
            sign, name = match["sign"] or "", match["name"]
            value = values.get(name)
            if value is None:
                return sign + name
            if value.value >= 0:
                return sign + value.text
            return f"{_OPPOSITE[sign]}{replace(value, value=-value.value).text}"

        return _SIGNED_PLACEHOLDER.sub(written, self.formula)

    @property
    def symbolic(self) -> str:
        """The formula with the inputs' names."""
        return _PLACEHOLDER.sub(lambda match: match[1], self.formula)

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
        """This quantity and all it was made of, each once, in the order of first use."""
        seen: set[int] = set()
        stack = [self]
        while stack:
            quantity = stack.pop()
            if id(quantity) in seen:
                continue
            seen.add(id(quantity))
            yield quantity
            stack.extend(reversed(quantity.inputs))


def placeholders(formula: str) -> tuple[str, ...]:
    """The names in a formula, each once, in their order.

    Example:
        >>> placeholders("⌈{tokens} / {block_size}⌉ × {tokens}")
        ('tokens', 'block_size')
    """
    return tuple(dict.fromkeys(_PLACEHOLDER.findall(formula)))


def given(name: str, value: float, unit: Unit = Unit.NONE, grade: Grade = Grade.EXACT) -> Quantity:
    """A number that a formula starts from."""
    return Quantity(name=name, value=value, unit=unit, grade=grade)


def figure(
    name: str,
    value: float,
    formula: str = "",
    *inputs: Quantity,
    unit: Unit = Unit.BYTES,
    scope: Scope = Scope.PER_RANK,
    grade: Grade | None = None,
    source: str = "",
    spread: float | None = None,
    interval: tuple[float, float] | None = None,
) -> Quantity:
    """What `formula` makes of `inputs`: bytes of one rank, and known as well as they are, unless said otherwise.

    `spread` is half of an interval around the value; `interval` is one that is not around it.

    Example:
        >>> blocks = figure("blocks", 6, "{pool} / {page}", given("pool", 96), given("page", 16), unit=Unit.BLOCKS)
        >>> blocks.substituted, blocks.grade.value, figure("system", 512, spread=12).interval
        ('96 / 16', 'exact', (500, 524))
    """
    return Quantity(
        name=name,
        value=value,
        unit=unit,
        scope=scope,
        formula=formula,
        inputs=inputs,
        grade=weakest(inputs) if grade is None else grade,
        source=source,
        interval=interval if spread is None else (value - spread, value + spread),
    )


def weakest(parts: Iterable[Quantity]) -> Grade:
    """How well a figure is known that is computed from `parts`: no better than the least known of them.

    Example:
        >>> weakest((given("layers", 64), given("budget", 2**30, Unit.BYTES, Grade.FITTED))).value
        'fitted'
    """
    return max((part.grade for part in parts), key=_RANKS.__getitem__, default=Grade.EXACT)


def numbered(parts: Iterable[Quantity]) -> tuple[Quantity, ...]:
    """The same, numbered where several have one name, so that a formula can tell them apart.

    Example:
        >>> [part.name for part in numbered((given("layers", 2), given("page", 8), given("layers", 3)))]
        ['layers_1', 'page', 'layers_2']
    """
    parts = tuple(parts)
    if len({part.name for part in parts}) == len(parts):
        return parts
    names = Counter(part.name for part in parts)
    seen: Counter[str] = Counter()
    found = []
    for part in parts:
        seen[part.name] += 1
        found.append(replace(part, name=f"{part.name}_{seen[part.name]}") if names[part.name] > 1 else part)
    return tuple(found)


def sum_of_products(products: Iterable[tuple[Quantity, ...]]) -> tuple[str, tuple[Quantity, ...]]:
    """A formula, "0" of nothing, and what it names.

    Example:
        >>> sum_of_products([(given("layers", 2), given("page", 8)), (given("layers", 3),)])[0]
        '{layers_1} × {page} + {layers_2}'
    """
    products = tuple(products)
    parts = numbered(part for product in products for part in product)
    names = (f"{{{part.name}}}" for part in parts)
    terms = (" × ".join(islice(names, len(product))) for product in products)
    return " + ".join(terms) or "0", parts
