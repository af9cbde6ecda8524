"""Expansions of a shell: `$X`, `${X:-y}`, arrays, arithmetic. Nothing is run; what is not defined stays a mark."""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kvcore.manifests.shell_words import Lexer, Part, Word
from kvcore.manifests.unknowns import has_mark, is_mark, mark, names_in

Value = str | list[str]
MAX_FIELDS: Final = 4096
MAX_TEXT: Final = 1 << 18
MAX_DEPTH: Final = 12

_PARAMETER: Final = re.compile(r"(#|!)?(\w{1,80}|[@*#?$!-])(\[[^\]]{0,80}\])?(.{0,4000})", re.DOTALL)
_OPERATION: Final = re.compile(r"(:?[-=+?]|##?|%%?|//?|\^\^?|,,?|:)(.{0,4000})", re.DOTALL)
_ALL: Final = ("[@]", "[*]")
_NAME: Final = re.compile(r"[A-Za-z_]\w{0,79}")
_NUMBERS: Final = re.compile(r"[\d\s()+*/%-]{1,200}")
_ARITHMETIC: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


class Variables:
    """The variables of a shell, its arguments, and how both are expanded."""

    def __init__(
        self, given: Mapping[str, Value] | None = None, arguments: Sequence[str] | None = None
    ) -> None:
        self.values: dict[str, Value] = dict(given or {})
        self.arguments = None if arguments is None else list(arguments)
        """None where nobody says how the script is called."""
        self.left = MAX_TEXT

    def copy(self) -> Variables:
        """The same variables, to be changed apart."""
        made = Variables(self.values, self.arguments)
        made.left = self.left
        return made

    def get(self, name: str) -> Value | None:
        """The value of a variable or an argument; None where it is not set."""
        if name.isdigit():
            if name == "0":
                return "sh"
            given = self.arguments
            if given is None:
                return None
            return given[int(name) - 1] if int(name) <= len(given) else None
        if name in ("@", "*"):
            return self.arguments
        if name == "#":
            return str(len(self.arguments or ()))
        if name in ("?", "$", "!", "-"):
            return mark(f"${name}")
        return self.values.get(name)

    def text(self, word: Word) -> str:
        """A word as one text, as in an assignment."""
        return "".join(self._text(part) for part in word.parts)

    def fields(self, word: Word, depth: int = 0) -> list[str]:
        """The words that a word becomes: expansions outside of quotes are split at white space."""
        done: list[str] = []
        current: str | None = None
        for part in word.parts:
            if not part.is_expansion:
                current = (current or "") + part.text
                continue
            pieces = self._pieces(part, depth)
            if not pieces:
                current = (
                    current
                    if current is not None
                    else ("" if part.is_quoted and not _is_list(part) else None)
                )
                continue
            current = (current or "") + pieces[0]
            for piece in pieces[1:]:
                done.append(current or "")
                current = piece
            if len(done) > MAX_FIELDS:
                break
        if current is not None and (current or any(part.is_quoted for part in word.parts)):
            done.append(current)
        return done[:MAX_FIELDS]

    def _pieces(self, part: Part, depth: int) -> list[str]:
        value = self.expand(part.text, depth)
        if isinstance(value, list):
            return list(value)
        if part.is_quoted:
            return [value]
        return _split(value)

    def _text(self, part: Part) -> str:
        if not part.is_expansion:
            return part.text
        value = self.expand(part.text)
        return " ".join(value) if isinstance(value, list) else value

    def string(self, text: str, depth: int = 0) -> str:
        """A text with its expansions, as between double quotation marks but with quotes read."""
        if depth > MAX_DEPTH:
            return mark("...")
        words = [word for word in Lexer(text).read() if not word.operator]
        found = [field for word in words for field in self._string_fields(word, depth + 1)]
        return " ".join(found)

    def _string_fields(self, word: Word, depth: int) -> list[str]:
        value = ""
        for part in word.parts:
            if part.is_expansion:
                inner = self.expand(part.text, depth)
                value += " ".join(inner) if isinstance(inner, list) else inner
            else:
                value += part.text
        return [value]

    def expand(self, text: str, depth: int = 0) -> Value:
        """The value of one expansion; a mark for a variable that is not set."""
        self.left -= len(text) + 8
        if self.left < 0 or depth > MAX_DEPTH:
            return mark("...")
        if text.startswith("$(("):
            return self.arithmetic(text[3:].removesuffix("))"), depth)
        if text.startswith("$("):
            return self._command(text[2:-1], depth)
        if text.startswith("${"):
            return self._braced(text[2:-1], depth)
        return self._plain(text[1:])

    def _plain(self, name: str) -> Value:
        value = self.get(name)
        if value is None:
            return [] if name in ("@", "*") else mark(name)
        self.left -= len(value)
        return value

    def _command(self, inner: str, depth: int) -> str:
        """`$(echo text)` and `$(cat <<EOF)` by their text; a mark for the output of every other command."""
        words = Lexer(inner).read()
        if words and words[0].literal in ("echo", "printf") and not any(word.operator for word in words):
            shown = [" ".join(self.fields(word, depth + 1)) for word in words[1:]]
            return " ".join(one for one in shown if one not in ("-n", "-e", "%s", "%s\\n"))
        documents = [word.document for word in words if word.document is not None]
        if words and words[0].literal == "cat" and len(documents) == 1:
            return documents[0] or ""
        return mark(f"$({inner})")

    def _braced(self, inner: str, depth: int) -> Value:
        found = _PARAMETER.fullmatch(inner)
        if found is None:
            return mark(inner)
        special, name, index, rest = found[1], found[2], found[3] or "", found[4]
        if special == "!":
            pointed = self.get(name)
            value = self.get(pointed) if isinstance(pointed, str) and _NAME.fullmatch(pointed) else None
            return value if value is not None else mark(name)
        if special == "#":
            value = self.get(name) or ""
            return str(len(value))
        value = self._indexed(name, index, depth)
        if not rest:
            if value is None:
                is_empty = index in _ALL or name in ("@", "*") or self.get(name) is not None
                return [] if is_empty else mark(name)
            return value
        operation = _OPERATION.fullmatch(rest)
        return (
            mark(name) if operation is None else self._changed(name, value, operation[1], operation[2], depth)
        )

    def _indexed(self, name: str, index: str, depth: int) -> Value | None:
        """A variable's items, or the one at an index; the mark of what an index is not known by."""
        value = self.get(name)
        if not index or value is None:
            return value
        items = value if isinstance(value, list) else [value]
        if index in _ALL:
            return items
        text = self.string(index[1:-1], depth + 1) if "$" in index else index[1:-1]
        at = whole(self.arithmetic(text, depth + 1))
        if at is None:
            return mark(", ".join(names_in(text)) or f"{name}{index}")
        return items[at] if -len(items) <= at < len(items) else None

    def _changed(self, name: str, value: Value | None, how: str, by: str, depth: int) -> Value:
        text = " ".join(value) if isinstance(value, list) else value
        is_unset = text is None or (how.startswith(":") and text == "")
        kind = how.lstrip(":")
        if kind in ("-", "="):
            if not is_unset and value is not None:
                return value
            made = self.string(by, depth)
            if kind == "=":
                self.values[name] = made
            return made
        if kind == "+":
            return "" if is_unset else self.string(by, depth)
        if kind == "?":
            return mark(name) if is_unset or value is None else value
        if text is None:
            return mark(name)
        if has_mark(text):
            return text
        by = self.string(by, depth) if "$" in by else by
        return _trimmed(text, how, by)

    def arithmetic(self, text: str, depth: int = 0) -> str:
        """`$((A * B))` of whole numbers; a mark where a part of it is not known."""
        plain = self.string(text, depth + 1) if "$" in text else text
        plain = _NAME.sub(lambda found: str(self.get(found[0]) or found[0]), plain)
        value = None if has_mark(plain) or len(plain) > 200 else whole(plain)
        return mark(", ".join(names_in(plain)) or f"$(({text}))") if value is None else str(value)


def whole(text: str) -> int | None:
    """The value of an expression of whole numbers; None for every other text.

    Example:
        >>> whole("8 * 2"), whole("2 ** 99")
        (16, None)
    """

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 1 << 50:
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            found = _ARITHMETIC[type(node.op)](value(node.left), value(node.right))
            if abs(found) < 1 << 50:
                return found
        raise ValueError

    if _NUMBERS.fullmatch(text) is None:
        return None
    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _is_list(part: Part) -> bool:
    return part.text in ("$@", "${@}") or part.text.endswith("[@]}")


def _split(text: str) -> list[str]:
    """Fields at white space, a mark being one field whatever its name."""
    if not has_mark(text):
        return text.split()
    if is_mark(text):
        return [text]
    return re.findall("(?:\ue000[^\ue001]{0,80}\ue001|\\S)+", text)


def _trimmed(text: str, how: str, pattern: str) -> str:
    pattern = pattern.strip("'\"")
    if how in ("#", "##"):
        cuts = range(len(text) + 1) if how == "#" else range(len(text), -1, -1)
        return next((text[at:] for at in cuts if fnmatch.fnmatchcase(text[:at], pattern)), text)
    if how in ("%", "%%"):
        cuts = range(len(text), -1, -1) if how == "%" else range(len(text) + 1)
        return next((text[:at] for at in cuts if fnmatch.fnmatchcase(text[at:], pattern)), text)
    if how in ("/", "//"):
        old, _, new = pattern.partition("/")
        return text.replace(old, new, -1 if how == "//" else 1) if old else text
    if how == ":":
        begin, _, count = pattern.partition(":")
        if begin.strip().isdigit() and (not count or count.strip().isdigit()):
            at = int(begin)
            return text[at : at + int(count)] if count else text[at:]
        return text
    if how in ("^^", "^"):
        return text.upper() if how == "^^" else text[:1].upper() + text[1:]
    return text.lower() if how == ",," else text[:1].lower() + text[1:]
