"""A formula as a tree: the result of a rule that is run on names instead of numbers.

A rule is a plain function. With numbers it computes; with terms, `Term.named("blocks")`, the same function builds the
tree that is printed as text or as LaTeX. What is shown can therefore not differ from what ran.

A rule uses + − × /, `//`, `ceil_div`, `math.floor`, `math.trunc`, `sum`, `least`, `most` and `rounded_up`. It cannot
branch on its arguments: a term has no truth value and no order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from math import ceil, prod
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast, overload

from msgspec import Struct

MINUS: Final = "−"
Part: TypeAlias = "Term | float | str"
Number = TypeVar("Number", int, float)


class Sign(StrEnum):
    """The operation at the top of a term."""

    NAME = "name"
    NUMBER = "number"
    SUM = "+"
    DIFFERENCE = "−"
    NEGATIVE = "negative"
    PRODUCT = "×"
    QUOTIENT = "/"
    FLOOR = "floor"
    CEILING = "ceiling"
    WHOLE = "whole"
    """Rounded to a whole number; not printed, because sizes are shown with far fewer digits."""
    LEAST = "min"
    MOST = "max"
    LONGEST = "longest"
    """The largest length that passes a check, which is searched for."""


class Term(Struct, frozen=True):
    """An operation and its operands; a name or a number at the ends.

    Example:
        >>> tokens, size = Term.named("tokens"), Term.named("block_size")
        >>> blocks = -(-tokens // size) + 1
        >>> blocks.text(), blocks.text({"tokens": "1,000", "block_size": "16"})
        ('⌈tokens / block_size⌉ + 1', '⌈1,000 / 16⌉ + 1')
        >>> blocks.latex({"tokens": "n", "block_size": "b"})
        '\\\\left\\\\lceil \\\\frac{n}{b} \\\\right\\\\rceil + 1'
    """

    sign: Sign
    parts: tuple[Part, ...]

    @staticmethod
    def named(name: str) -> Term:
        """The quantity of that name."""
        return Term(Sign.NAME, (name,))

    @property
    def names(self) -> tuple[str, ...]:
        """The names in it, each once, in the order of the text."""
        return tuple(dict.fromkeys(str(one.parts[0]) for one in self.walk() if one.sign is Sign.NAME))

    def walk(self) -> Iterator[Term]:
        """The term and all terms inside it."""
        yield self
        for part in self.parts:
            if isinstance(part, Term):
                yield from part.walk()

    def uses(self, sign: Sign) -> bool:
        """Whether the operation stands anywhere in it."""
        return any(one.sign is sign for one in self.walk())

    def text(self, values: Mapping[str, str] | None = None) -> str:
        """As a line of text, with the names or with `values` in their place.

        A negative value changes the sign before it: "3 − 2", not "3 + −2".
        """
        known = values or {}

        def leaf(name: str) -> str:
            value = known.get(name, name)
            return f"{MINUS}{value[1:]}" if value.startswith("-") else value

        return _written(self, leaf, _TEXT)

    def latex(self, values: Mapping[str, str]) -> str:
        """As LaTeX, with `values` in place of the names. A negative value in a sum stands in brackets."""
        in_sum = self.uses(Sign.SUM) or self.uses(Sign.DIFFERENCE)

        def leaf(name: str) -> str:
            return f"({values[name]})" if in_sum and values[name].startswith("-") else values[name]

        return _written(self, leaf, _LATEX)

    def __bool__(self) -> bool:
        raise TypeError("a rule must not branch on its arguments")

    def __add__(self, other: Term | float) -> Term:
        return _both(Sign.SUM, self, other)

    def __radd__(self, other: float) -> Term:
        # `sum` starts at 0.
        return _both(Sign.SUM, other, self) if other else self

    def __sub__(self, other: Term | float) -> Term:
        return _both(Sign.DIFFERENCE, self, other)

    def __rsub__(self, other: float) -> Term:
        return _both(Sign.DIFFERENCE, other, self)

    def __mul__(self, other: Term | float) -> Term:
        return self if type(other) is int and other == 1 else _both(Sign.PRODUCT, self, other)

    def __rmul__(self, other: float) -> Term:
        # `math.prod` starts at 1.
        return self if type(other) is int and other == 1 else _both(Sign.PRODUCT, other, self)

    def __truediv__(self, other: Term | float) -> Term:
        return _both(Sign.QUOTIENT, self, other)

    def __rtruediv__(self, other: float) -> Term:
        return _both(Sign.QUOTIENT, other, self)

    def __floordiv__(self, other: Term | float) -> Term:
        return Term(Sign.FLOOR, (_both(Sign.QUOTIENT, self, other),))

    def __rfloordiv__(self, other: float) -> Term:
        return Term(Sign.FLOOR, (_both(Sign.QUOTIENT, other, self),))

    def __neg__(self) -> Term:
        """−⌊−a / b⌋ is ⌈a / b⌉, by which Python rounds up in integers."""
        if self.sign is Sign.FLOOR:
            (inner,) = self.parts
            if isinstance(inner, Term) and inner.sign is Sign.QUOTIENT:
                top, bottom = inner.parts
                if isinstance(top, Term) and top.sign is Sign.NEGATIVE:
                    return Term(Sign.CEILING, (_both(Sign.QUOTIENT, top.parts[0], bottom),))
        return Term(Sign.NEGATIVE, (self,))

    def __floor__(self) -> Term:
        return self if self.sign is Sign.FLOOR else Term(Sign.FLOOR, (self,))

    def __ceil__(self) -> Term:
        return self if self.sign is Sign.CEILING else Term(Sign.CEILING, (self,))

    def __trunc__(self) -> Term:
        return Term(Sign.WHOLE, (self,))

    __round__ = __trunc__


def _both(sign: Sign, left: Part, right: Part) -> Term:
    return Term(sign, (as_term(left), as_term(right)))


def as_term(value: Part) -> Term:
    """A number as a term; a term as it is."""
    return value if isinstance(value, Term) else Term(Sign.NUMBER, (value,))


def least(first: Number, *others: Number) -> Number:
    """The smallest of the values, also of terms.

    Example:
        >>> least(3, 2), least(Term.named("tokens"), Term.named("limit")).text()
        (2, 'min(tokens, limit)')
    """
    try:
        return min(first, *others) if others else first
    except TypeError:
        return cast(Number, _chosen(Sign.LEAST, first, others))


def most(first: Number, *others: Number) -> Number:
    """The largest of the values, also of terms."""
    try:
        return max(first, *others) if others else first
    except TypeError:
        return cast(Number, _chosen(Sign.MOST, first, others))


def _chosen(sign: Sign, first: Any, others: tuple[Any, ...]) -> Term:
    return Term(sign, tuple(map(as_term, (first, *others))))


@overload
def rounded_up(value: float) -> int: ...
@overload
def rounded_up(value: Term) -> Term: ...
def rounded_up(value: float | Term) -> int | Term:
    """Up to a whole number. `math.trunc` rounds down likewise; of neither is anything printed."""
    return Term(Sign.WHOLE, (value,)) if isinstance(value, Term) else ceil(value)


def same(value: Number) -> Number:
    """The value itself."""
    return value


def added(parts: tuple[Number, ...]) -> Number:
    """The sum of the parts."""
    return sum(parts)


def left_of(whole: Number, parts: tuple[Number, ...]) -> Number:
    """The whole without the parts.

    Example:
        >>> left_of(10, (2, 3)), left_of(Term.named("total"), (Term.named("system"), Term.named("weights"))).text()
        (5, 'total − system − weights')
    """
    for part in parts:
        whole = whole - part
    return whole


def sum_of_products(products: tuple[tuple[int, ...], ...]) -> int:
    """The sum of products of a few factors each.

    Example:
        >>> sum_of_products(((2, 8), (3,)))
        19
    """
    return sum(map(prod, products))


class _Style(NamedTuple):
    """The signs of a notation."""

    minus: str
    times: str
    floor: tuple[str, str]
    ceiling: tuple[str, str]
    function: str
    """Prefix of the name of a function."""
    longest: str
    """The search for the largest length."""
    has_fractions: bool
    """Whether a quotient is set as a fraction, which needs no brackets."""


_TEXT: Final = _Style(
    MINUS, " × ", ("⌊", "⌋"), ("⌈", "⌉"), "", "max(ℓ ≤ {limit}: needed(ℓ) ≤ {budget})", has_fractions=False
)
_LATEX: Final = _Style(
    "-",
    r" \times ",
    (r"\left\lfloor ", r" \right\rfloor"),
    (r"\left\lceil ", r" \right\rceil"),
    "\\",
    r"\max(\ell \le {limit}: \text{{needed}}(\ell) \le {budget})",
    has_fractions=True,
)
_IN_SUMS: Final = frozenset((Sign.SUM, Sign.DIFFERENCE, Sign.NEGATIVE))
_IN_PRODUCTS: Final = frozenset((Sign.PRODUCT, Sign.QUOTIENT))


def _written(term: Part, leaf: Callable[[str], str], style: _Style) -> str:
    """One term in one notation; its parts in brackets where they bind less."""
    if not isinstance(term, Term):
        return f"{term:g}" if isinstance(term, float) else str(term)
    parts = term.parts

    def inner(part: Part) -> str:
        return _written(part, leaf, style)

    def bracketed(part: Part, signs: frozenset[Sign]) -> str:
        return f"({inner(part)})" if _bare(part).sign in signs else inner(part)

    match term.sign:
        case Sign.NAME:
            return leaf(str(parts[0]))
        case Sign.NUMBER | Sign.WHOLE:
            return inner(parts[0])
        case Sign.SUM | Sign.DIFFERENCE:
            is_sum = term.sign is Sign.SUM
            right = inner(parts[1]) if is_sum else bracketed(parts[1], _IN_SUMS)
            if right.startswith(MINUS):
                is_sum, right = not is_sum, right[1:]
            return f"{inner(parts[0])} {'+' if is_sum else style.minus} {right}"
        case Sign.NEGATIVE:
            return f"{style.minus}{bracketed(parts[0], _IN_SUMS)}"
        case Sign.PRODUCT:
            first, *others = (bracketed(factor, _IN_SUMS) for factor in _factors(term))
            # "a / b", not "a × 1 / b".
            return first + "".join(
                f" {one[2:]}" if one.startswith("1 / ") else f"{style.times}{one}" for one in others
            )
        case Sign.QUOTIENT if style.has_fractions:
            top, divisors = _fraction(term)
            bottom = style.times.join(
                bracketed(one, _IN_SUMS) if divisors[1:] else inner(one) for one in divisors
            )
            return rf"\frac{{{inner(top)}}}{{{bottom}}}"
        case Sign.QUOTIENT:
            return f"{bracketed(parts[0], _IN_SUMS)} / {bracketed(parts[1], _IN_SUMS | _IN_PRODUCTS)}"
        case Sign.FLOOR | Sign.CEILING:
            opened, closed = style.floor if term.sign is Sign.FLOOR else style.ceiling
            return f"{opened}{inner(parts[0])}{closed}"
        case Sign.LEAST | Sign.MOST:
            return f"{style.function}{term.sign}({', '.join(map(inner, parts))})"
        case Sign.LONGEST:
            limit, budget = map(inner, parts)
            return style.longest.format(limit=limit, budget=budget)


def _bare(term: Part) -> Term:
    """The term that is printed for it."""
    found = as_term(term)
    while found.sign is Sign.WHOLE:
        found = as_term(found.parts[0])
    return found


def _fraction(term: Term) -> tuple[Term, list[Part]]:
    """The top and all divisors of a quotient of quotients."""
    divisors: list[Part] = []
    while term.sign is Sign.QUOTIENT:
        divisors.insert(0, term.parts[1])
        term = _bare(term.parts[0])
    return term, divisors


def _factors(term: Term) -> list[Term]:
    """The factors of a product. A number that an inner product begins with stands first: "2 × layers × heads"."""
    left, right = (_factors(part) if part.sign is Sign.PRODUCT else [part] for part in map(_bare, term.parts))
    if len(right) > 1 and right[0].sign is Sign.NUMBER:
        return [right[0], *left, *right[1:]]
    return left + right
