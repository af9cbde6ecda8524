"""The value of a term, computed by walking its tree: a reading of what is printed, apart from the rule that made it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from kvcore.base.quantity import Quantity
from kvcore.base.term import Part, Sign, Term

_OPERATIONS: Final[Mapping[Sign, Callable[..., Any]]] = {
    Sign.SUM: lambda left, right: left + right,
    Sign.DIFFERENCE: lambda left, right: left - right,
    Sign.NEGATIVE: lambda value: -value,
    Sign.PRODUCT: lambda left, right: left * right,
    Sign.QUOTIENT: lambda top, bottom: top / bottom,
    Sign.FLOOR: math.floor,
    Sign.CEILING: math.ceil,
    Sign.WHOLE: lambda value: value,
    Sign.LEAST: min,
    Sign.MOST: max,
}


def value_of(term: Part, values: Mapping[str, float]) -> Any:
    """The value of a term with `values` for its names, in Python's own arithmetic."""
    if not isinstance(term, Term):
        return term
    if term.sign is Sign.NAME:
        return values[str(term.parts[0])]
    if term.sign is Sign.NUMBER:
        return term.parts[0]
    return _OPERATIONS[term.sign](*(value_of(part, values) for part in term.parts))


def evaluated(figure: Quantity) -> float:
    """What the formula of `figure` gives with the values of its inputs."""
    values = {part.name: part.value for part in figure.inputs}
    assert len(values) == len(figure.inputs), f"two inputs of one name in {figure.formula}"
    assert figure.term is not None
    return float(value_of(figure.term, values))
