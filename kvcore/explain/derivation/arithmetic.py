"""What a formula of questions.toml comes to with the values of the facts that it names."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

_SIGNS: Final = str.maketrans({"×": "*", "−": "-"})
_BRACKETS: Final = {"⌊": "floor(", "⌋": ")", "⌈": "ceil(", "⌉": ")"}
_OPERATIONS: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "min": min,
    "max": max,
}


def value_of(formula: str, values: Mapping[str, float]) -> float:
    """The value of `formula`, which has numbers, {names}, + − × /, brackets, ⌊⌋ ⌈⌉, min and max.

    Raises KeyError for a name that has no value, ZeroDivisionError, ValueError for any other sign.

    Example:
        >>> value_of("⌈{tokens} / {size}⌉ × {size} − {tokens}", {"tokens": 1000, "size": 16})
        8.0
    """
    text = re.sub(r"\{(\w+)\}", r"\1", formula.translate(_SIGNS))
    for sign, python in _BRACKETS.items():
        text = text.replace(sign, python)
    return float(_value(ast.parse(text, mode="eval").body, values))


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATIONS:
            return float(_OPERATIONS[type(sign)](_value(left, values), _value(right, values)))
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in _FUNCTIONS:
            return float(_FUNCTIONS[name](*(_value(one, values) for one in arguments)))
    raise ValueError(f"a formula has what is none of its signs: {ast.dump(node)[:80]}")
