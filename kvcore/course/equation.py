"""A quantity as an equation: with letters, with today's numbers, and its value.

The formula is the term of the quantity's own rule.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from kvcore.base.numbers import (
    count,
    format_bytes,
    in_unit,
    latex,
    latex_in_powers,
    plain,
    significant,
    single_bytes,
)
from kvcore.base.quantity import Grade, Quantity, Scope, Unit
from kvcore.base.term import Sign
from kvcore.base.units import GIB, KIB, MIB
from kvcore.base.words import Words
from kvcore.texts import LETTERS

LINE_LENGTH: Final = 34
"""A sum is broken before it has more signs in a line, for a phone."""
TALL: Final = r"\\[6pt]"
"""Line end after a fraction."""
SMALLEST_IN_GIB: Final = GIB // 100
_BLOCKS_OF_BYTES: Final = ("bytes_per_block", "stage_block_bytes", "checked_block_bytes")
_PER_TOKEN: Final = ("layer_token_bytes", "bytes_per_token", "other_bytes_per_token")


class Symbol(Struct, frozen=True, kw_only=True):
    """A letter in LaTeX, and what it stands for in the reader's language."""

    latex: str
    meaning: str


class Equation(Struct, frozen=True, kw_only=True):
    """One line of the derivation. `formula` and `substituted` are the right-hand sides in LaTeX, "" where given."""

    name: str
    symbol: str
    meaning: str
    formula: str
    substituted: str
    value: float
    unit: Unit
    scope: Scope
    grade: Grade
    source: str
    interval: tuple[float, float] | None
    result: str
    """The value in LaTeX, with its unit."""
    terms: tuple[Symbol, ...]
    """The letters on the right-hand side, with their meaning in the reader's language."""

    @property
    def latex(self) -> str:
        """Letters, numbers and result under each other."""
        rows = []
        for side in (self.formula, self.substituted, self.result):
            first, *more = _lines(side)
            rows += [f"&= {first}", *(rf"&\quad {line}" for line in more)] if first else []
        ends = [TALL if r"\frac" in row else r"\\" for row in rows[:-1]]
        body = " ".join(f"{row} {end}" for row, end in zip(rows, [*ends, ""], strict=True)).strip()
        return rf"\begin{{aligned}} {self.symbol} {body} \end{{aligned}}"


def equations(t: Words, *quantities: Quantity) -> tuple[Equation, ...]:
    """`equation` of each quantity."""
    return tuple(equation(quantity, t) for quantity in quantities)


def equation(quantity: Quantity, t: Words) -> Equation:
    """`quantity` with its formula in letters and in today's numbers."""
    own = symbol_of(quantity, "", t)
    letters = {part.name: symbol_of(part, quantity.name, t) for part in quantity.inputs}
    term = quantity.term
    used = () if term is None else term.names
    formula = rf"\texttt{{{escaped(quantity.formula)}}}" if quantity.formula else ""
    substituted = ""
    if term is not None and used:
        formula = term.latex({name: letter.latex for name, letter in letters.items()})
        substituted = term.latex({part.name: number(part, context=quantity) for part in quantity.inputs})
    return Equation(
        name=quantity.name,
        symbol=own.latex,
        meaning=own.meaning,
        formula=formula,
        substituted=substituted,
        value=quantity.value,
        unit=quantity.unit,
        scope=quantity.scope,
        grade=quantity.grade,
        source=quantity.source,
        interval=quantity.interval,
        result=_result(quantity),
        terms=tuple(letters[name] for name in used),
    )


def symbol_of(quantity: Quantity, parent: str, t: Words) -> Symbol:
    """The letter of an input of `parent`, from letters.toml; what has none stands under its own name.

    Example:
        >>> from kvcore.base.words import Language, words
        >>> t = words(Language.ENGLISH)
        >>> symbol_of(Quantity(name="layers", value=2, unit=Unit.BYTES), "activations", t).latex
        'A_{l}'
        >>> symbol_of(Quantity(name="odd_one", value=2), "weights", t).latex
        '\\\\mathit{odd\\\\_one}'
    """
    name = quantity.name
    found = LETTERS.get(f"{parent}.{name}") or LETTERS.get(name)
    if found is not None:
        return Symbol(latex=found.latex, meaning=t(found.meaning))
    kind, _, number = name.rpartition("_")
    found = LETTERS.get(kind)
    if found is not None and number.isdecimal():
        return Symbol(latex=_indexed(found.latex, number), meaning=f"{t(found.meaning)} ({number})")
    return Symbol(latex=rf"\mathit{{{escaped(name)}}}", meaning=t(name))


def _indexed(latex: str, number: str) -> str:
    """The letter with a number in its index, behind what stands there."""
    return f"{latex[:-1]},{number}}}" if latex.endswith("}") else f"{latex}_{{{number}}}"


def escaped(text: str) -> str:
    """Letters, digits and a few signs for LaTeX; anything else is dropped.

    Example:
        >>> escaped("--max_len $x$")
        '--max\\\\_len x'
    """
    kept = "".join(sign for sign in text if sign.isascii() and (sign.isalnum() or sign in " -_.,"))
    return kept.replace("_", r"\_")


def _result(quantity: Quantity) -> str:
    """The value; what a token takes in bytes first, so that it can be checked by hand."""
    text = number(quantity)
    if quantity.name not in _PER_TOKEN or not KIB <= quantity.value < MIB:
        return text
    return f"{latex(single_bytes(quantity.value))} = {text}"


def number(quantity: Quantity, context: Quantity | None = None) -> str:
    """A value with its unit in LaTeX; a part of a sum in the unit of the sum, what is cut into blocks in theirs.

    Example:
        >>> number(Quantity(name="budget", value=72.5 * GIB, unit=Unit.BYTES))
        '72.50\\\\,\\\\text{GiB}'
        >>> number(Quantity(name="tokens", value=163840, unit=Unit.TOKENS))
        '163{,}840'
    """
    if quantity.name == "layer_token_bytes" and context is not None:
        return latex(single_bytes(quantity.value))
    if quantity.name in _BLOCKS_OF_BYTES and context is not None:
        return _exact(quantity.value, quantity.value)
    if quantity.name == "available_kv" and context is not None and context.unit is Unit.BLOCKS:
        block_bytes = next(part.value for part in context.inputs if part.name in _BLOCKS_OF_BYTES)
        return _exact(quantity.value, block_bytes)
    if quantity.unit is Unit.BYTES:
        whole = context if context is not None and context.unit is Unit.BYTES else None
        in_gib = whole is not None and abs(whole.value) >= GIB and not _multiplies(whole)
        return _size(quantity.value, in_gib=in_gib)
    if quantity.name.endswith("parameter_count"):
        return latex_in_powers(quantity.value)
    if float(quantity.value).is_integer():
        return latex(count(quantity.value))
    if quantity.name == "bytes_per_parameter":
        return plain(quantity.value)
    if quantity.unit is Unit.REQUESTS:
        return latex(f"{quantity.value:,.2f}")
    return latex(significant(quantity.value))


def _multiplies(quantity: Quantity) -> bool:
    return quantity.term is not None and quantity.term.uses(Sign.PRODUCT)


def _exact(size_bytes: float, block_bytes: float) -> str:
    """A size in the largest unit that shows a block to the last digit, so that products and quotients come out."""
    in_mib = block_bytes >= MIB and (100 * block_bytes / MIB).is_integer()
    return latex(in_unit(size_bytes, "MiB" if in_mib else "KiB"))


def _size(size_bytes: float, *, in_gib: bool) -> str:
    if not size_bytes:
        return "0"
    if in_gib and abs(size_bytes) >= SMALLEST_IN_GIB:
        return latex(in_unit(size_bytes, "GiB"))
    return latex(format_bytes(size_bytes) if abs(size_bytes) >= KIB else single_bytes(size_bytes))


def _lines(side: str) -> list[str]:
    """A sum of numbers in lines of a few terms; anything else stays whole."""
    if r"\text" not in side or r"\frac" in side:
        return [side]
    first, *terms = re.split(r" (?=[+-] )", side)
    lines = [first]
    for term in terms:
        if _length(f"{lines[-1]} {term}") > LINE_LENGTH:
            lines.append(term)
        else:
            lines[-1] += f" {term}"
    return lines


def _length(latex: str) -> int:
    """Signs of a line as a reader sees them."""
    return len(re.sub(r"\\text\{(\w+)\}|\\(\w)\w*|\\,|[{}]", r"\1\2", latex))
