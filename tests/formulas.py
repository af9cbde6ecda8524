"""The value of a figure's formula, computed from its text and its inputs alone."""

from __future__ import annotations

import math
import re
from typing import Final

from kvcore.base.quantity import Quantity

_SIGNS: Final = {"×": "*", "−": "-", "⌊": "floor(", "⌋": ")", "⌈": "ceil(", "⌉": ")"}
_FUNCTIONS: Final = {"floor": math.floor, "ceil": math.ceil, "min": min, "max": max, "__builtins__": {}}


def evaluated(figure: Quantity) -> float:
    """What the formula of `figure` gives with the values of its inputs."""
    values = {part.name: part.value for part in figure.inputs}
    assert len(values) == len(figure.inputs), f"two inputs of one name in {figure.formula}"
    text = re.sub(r"\{(\w+)\}", lambda match: f"({values[match[1]]!r})", figure.formula)
    for sign, python in _SIGNS.items():
        text = text.replace(sign, python)
    # A formula is our own text, and Python's arithmetic is not the code under test.
    return float(eval(text, _FUNCTIONS))
