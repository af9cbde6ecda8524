"""English as the field speaks it: nothing shown or written here has a word of tools/plain_words.toml."""

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import messages

ROOT = Path(__file__).parents[1]
WORDS = tomllib.loads((ROOT / "tools" / "plain_words.toml").read_text("utf-8"))
SOURCES = [
    ROOT / "app.py",
    *sorted(
        path for room in ("kvcore", "pages", "tools", "benchmarks") for path in (ROOT / room).rglob("*.py")
    ),
]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = re.compile(r"`[^`\n]*`|\{\w+\}")
"""Code within a text, and its parameters."""


def pattern(*, names: bool = False) -> re.Pattern[str]:
    words = [word for row in WORDS.values() if row.get("names", False) or not names for word in row["words"]]
    return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, words))})(?![\w-])", re.IGNORECASE)


IN_TEXT, IN_NAMES = pattern(), pattern(names=True)


def prose(source: str) -> Iterator[str]:
    """Docstrings, as lines without examples and sources, and comments."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            for line in node.value.value.splitlines():
                if not line.strip().startswith((">>>", "...", "Source:")):
                    yield line
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def names(source: str) -> set[str]:
    """Names as words: `FooBar_baz` is "foo bar baz"."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = {token.string for token in tokens if token.type == tokenize.NAME}
    return {re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("_", " ").strip() for name in found}


def offending(texts: Iterator[str], words: re.Pattern[str]) -> list[str]:
    return [text.strip() for text in texts if words.search(CODE.sub("", text))]


def test_the_list_says_what_to_write_instead() -> None:
    for row in WORDS.values():
        assert set(row) <= {"words", "instead", "names"}
        assert not IN_TEXT.search(row["instead"])


def test_what_the_test_looks_for_is_found() -> None:
    assert offending(iter(["one knob mends it", "thresholds and household"]), IN_TEXT) == [
        "one knob mends it"
    ]
    assert list(prose('"""A tower."""\nx = 1  # at hand')) == ["A tower.", "# at hand"]
    assert names("isTold = KNOB_NAMES") == {"is Told", "KNOB NAMES"}


def test_no_text_that_is_shown_has_one() -> None:
    assert offending((text for _, text in messages.wanted()), IN_TEXT) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_docstring_comment_or_name_has_one(path: Path) -> None:
    source = path.read_text("utf-8")
    assert offending(prose(source), IN_TEXT) == []
    assert sorted(name for name in names(source) if IN_NAMES.search(name)) == []


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_page_of_docs_has_one(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert offending(iter(text.splitlines()), IN_TEXT) == []
