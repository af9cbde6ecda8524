"""What a row of encoders.toml says: keys of the config, sizes made of them by formulas, modules made of sizes.

The rows of whole models, `../families/multimodal.toml`, are of the same kind. A formula is arithmetic with integers and
names; `encoder.py` says what a name stands for. A condition is a number as well: 0 is false.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, Final, TypeAlias

from msgspec import field

from kvcore.base.toml_files import file_text
from kvcore.model.config import MAX_INTEGER
from kvcore.tables import Record, Source, convert, read_toml, wrong

OPERATORS: Final[Mapping[type, Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.Eq: operator.eq,
    ast.Lt: operator.lt,
}


@cache
def parse(formula: str) -> ast.expr:
    """The tree of a formula. Raises ValueError for what is none."""
    try:
        tree = ast.parse(formula, mode="eval").body
        evaluate(tree, lambda name: 1)
    except (SyntaxError, TypeError) as error:
        raise ValueError(f"{formula!r} is no formula") from error
    return tree


def evaluate(tree: ast.expr, named: Callable[[str], int]) -> int:
    """The value of a formula. Raises TypeError for anything but arithmetic, comparisons, `if` and `and`."""
    match tree:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return named(name)
        case (
            ast.BinOp(left=left, op=sign, right=right)
            | ast.Compare(left=left, ops=[sign], comparators=[right])
        ) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](evaluate(left, named), evaluate(right, named))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -evaluate(operand, named)
        case ast.IfExp(test=test, body=body, orelse=other):
            return evaluate(body if evaluate(test, named) else other, named)
        case ast.BoolOp(op=ast.And(), values=values):
            return all(evaluate(value, named) for value in values)
        case _:
            raise TypeError(ast.dump(tree))


Formula: TypeAlias = str | int | bool


def check(*formulas: Formula | None) -> None:
    """Raises ValueError where one is none."""
    for formula in formulas:
        if isinstance(formula, str):
            parse(formula)


class Kind(StrEnum):
    """What is read of a key."""

    INTEGER = "integer"
    FLAG = "flag"
    GIVEN = "given"
    """Whether there is a value."""
    WORD = "word"
    """Whether the text is `word`."""
    LENGTH = "length"
    """How many integers are listed."""
    SHARE = "share"
    """That many times the width."""
    FIRST = "first"
    """Of two integers."""
    SECOND = "second"
    SQUARE = "square"
    """An integer, or a list of it for both sides."""
    HALF = "half"
    """Of an integer that must be even."""


class Key(Record, frozen=True, kw_only=True):
    """A key of the config and what it may be."""

    key: str
    otherwise: str = ""
    """The key that is read where the section has no value of the first."""
    at: str = "own"
    """The section: `root`, the language part `text`, the row's `own`, or one of its `sections`."""
    kind: Kind = Kind.INTEGER
    default: Formula | None = None
    """Without the key, or for each of two integers; of a text the text."""
    word: str = ""
    minimum: Formula = 1
    maximum: Formula = MAX_INTEGER


class Place(Record, frozen=True, kw_only=True):
    """An object in the config."""

    key: str
    at: str = "root"
    defaults: str | None = None
    """The model_type whose class defaults apply where the object names none."""
    otherwise: str = ""
    """The section that is taken where there is none; without one it is an error."""
    constants: Mapping[str, str] = field(default_factory=dict)
    """What it says, where the engine's code says it and not the config."""


class Make(StrEnum):
    """How a module is built."""

    TENSOR = "tensor"
    CONVOLUTION = "convolution"
    QKV = "qkv"
    KV = "kv"
    REPLICATED = "replicated"
    WHOLE = "whole"
    """Replicated and never quantized."""
    COLUMN = "column"
    ROW = "row"
    MERGED = "merged"
    """Two layers as one."""
    NORM = "norm"


class Part(Record, frozen=True, kw_only=True):
    """A module, or another row's modules."""

    make: Make | None = None
    of: tuple[Formula, ...] = ()
    """Sizes: those that go in and out of a layer; those of a tensor or convolution, which are multiplied."""
    bias: Formula = True
    """Of a layer, a convolution, or the norm that is a layer norm with it."""
    parts: tuple[str, ...] = ()
    """The checkpoint's names of what the engine fuses: in a `qkv` behind its prefix, else behind the row's."""
    dtype: str = ""
    quantized: Formula = True
    is_whole: bool = False
    """Every rank has the layer whole, unquantized, whatever its class."""
    unless_divided: Formula = 0
    """As `Linear.whole_unless_divided`."""
    when: Formula = True
    use: str = ""
    """The row whose modules these are."""
    use_named: tuple[str, ...] = ()
    """Rows, of which a text of the config names one."""
    named_at: str = "own"
    named_by: str = "model_type"
    times: Formula | None = None
    """How often; `index` is the number, in names as `{index}`."""
    is_numbered: bool = False
    """The modules depend on `index`."""
    at: str = ""
    """The section that is the used row's own."""
    given: Mapping[str, Formula] = field(default_factory=dict)
    """What the used row's names stand for."""

    def __post_init__(self) -> None:
        if (self.make is not None) + bool(self.use) + bool(self.use_named) != 1:
            raise ValueError("it has one of make, use, use_named")
        check(*self.of, self.bias, self.quantized, self.unless_divided, self.when, self.times)
        check(*self.given.values())


class Limits(Record, frozen=True, kw_only=True):
    """The fields of a `VisionEncoder`."""

    tokens: Formula
    patches: Formula = 1
    width: Formula = "width"
    inner: Formula = "inner"
    deepstack: Formula = 0
    values: Formula = 588
    unit: Formula = 0
    video: Formula = False


class Audio(Record, frozen=True, kw_only=True):
    """The fields of an `AudioEncoder`."""

    tokens: Formula
    positions: Formula
    values: Formula
    width: Formula = "width"
    inner: Formula = "inner"
    chunks: Formula = "audio_chunks"
    at_once: Formula = "audio_at_once"
    most: Formula = "audio_most"
    is_whole: Formula = False
    windows: Formula = 0
    window_elements: Formula = 0
    most_windows: Formula = 0
    pairs: Formula = 0


class Rotary(Record, frozen=True, kw_only=True):
    """The fields of a `RotaryTable`."""

    positions: Formula
    dim: Formula
    dtype: str = ""
    is_plain: bool = False


class Row(Record, frozen=True, kw_only=True):
    """An encoder, a block of one, or a model's encoders and projectors."""

    source: Source = "as the row that uses it"
    classes: tuple[str, ...] = ()
    """What a config calls the model: entries of `architectures` and model_types."""
    language: str = ""
    """What reads the language part, as `LANGUAGES` calls it; empty: by the model_type of the language part."""
    layer_prefix: str = "language_model.{}"
    """Of the language part's layers, in place of `{}` as it calls them itself."""
    sections: Mapping[str, str | Place] = field(default_factory=dict)
    keys: Mapping[str, str | Key] = field(default_factory=dict)
    sizes: Mapping[str, Formula] = field(default_factory=dict)
    modules: Mapping[str, Part] = field(default_factory=dict)
    """By name, behind the name of the part that uses the row. `{}` encloses a formula."""
    limits: Limits | None = None
    audio: Audio | None = None
    rotary: tuple[Rotary, ...] = ()

    def __post_init__(self) -> None:
        check(*self.sizes.values())


def load_rows(package: str, file: str) -> Mapping[str, Row]:
    """The rows of a file. One that is `like` another has its tables, and what it says of its own.

    Raises TableError `invalid-catalogue-entry`, which names the row, for an unknown key or value.
    """
    document = read_toml(file_text(package, file), file)
    rows: dict[str, Any] = {}
    for name, row in document.items():
        liked = row.get("like")
        if liked is not None and liked not in rows:
            raise wrong(f"{file} {name} like", f"{liked!r} is no row above")
        base = {} if liked is None else {**rows[liked], "classes": []}
        for key, value in row.items():
            base[key] = {**base.get(key, {}), **value} if isinstance(value, dict) else value
        base.pop("like", None)
        rows[name] = base
    return {name: convert(row, Row, f"{file} {name}") for name, row in rows.items()}


ENCODERS: Final = load_rows(__package__, "encoders.toml")
COMMON: Final = ENCODERS["common"]
"""What names stand for that no row defines."""
