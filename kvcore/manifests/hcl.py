"""HCL of Terraform and Nomad as plain trees: blocks, attributes, lists, locals, defaults of variables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from kvcore.manifests.nodes import Map, Row, Text, at, mapping, plain, rows
from kvcore.manifests.unknowns import mark

MAX_TOKENS: Final = 200_000
MAX_DEPTH: Final = 40

_TOKEN: Final = re.compile(
    r"(?P<space>[ \t\r]+)|(?P<comment>#[^\n]*|//[^\n]*|/\*.{0,20000}?\*/)|(?P<newline>\n)|"
    r"<<-?(?P<end>\w{1,40})\n|(?P<string>\"(?:[^\"\\\n]|\\.){0,20000}\")|(?P<number>-?\d[\d.]{0,30})|"
    r"(?P<name>[A-Za-z_](?:[\w.*-]|\[[^\]\n]{0,80}\]){0,200})|(?P<mark>[{}\[\](),=:?]|=>)|(?P<other>.)",
    re.DOTALL,
)
INSIDE: Final = re.compile(r"\$\{([^{}]{1,400})\}")
_ESCAPES: Final = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}


class Reference(str):
    """A name that stands for a value elsewhere: `local.args`."""

    __slots__ = ()


class Call(list[Any]):
    """A function with its arguments."""

    name: str = ""


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str, int]] = []
        at_line, at = 1, 0
        while at < len(text) and len(self.tokens) < MAX_TOKENS:
            found = _TOKEN.match(text, at)
            if found is None:
                break
            kind, value = found.lastgroup or "", found[0]
            at = found.end()
            if kind == "end":
                end = re.compile(rf"^[ \t]*{re.escape(found['end'])}[ \t]*$", re.MULTILINE).search(text, at)
                stop = end.start() if end is not None else len(text)
                self.tokens.append(("heredoc", text[at:stop], at_line))
                at_line += text.count("\n", found.start(), end.end() if end is not None else len(text))
                at = end.end() if end is not None else len(text)
                continue
            if kind not in ("space", "comment"):
                self.tokens.append((kind, value, at_line))
            at_line += value.count("\n")
        self.at = 0

    def peek(self) -> tuple[str, str, int]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "", 0)

    def take(self) -> tuple[str, str, int]:
        found = self.peek()
        self.at += 1
        return found

    def lines(self) -> None:
        while self.peek()[0] == "newline" or self.peek()[1] == ",":
            self.at += 1

    def body(self, depth: int = 0) -> Map:
        """Attributes and blocks up to the closing bracket; blocks of one kind are a list."""
        made = Map()
        made.line = self.peek()[2]
        while self.at < len(self.tokens):
            self.lines()
            kind, value, line = self.peek()
            if value == "}" or kind == "end":
                break
            self.take()
            if kind not in ("name", "string"):
                continue
            key = value.strip('"')
            if self.peek()[1] in ("=", ":"):
                self.take()
                made[key] = self.expression(depth + 1)
                continue
            labels = []
            while self.peek()[0] in ("string", "name"):
                labels.append(self.take()[1].strip('"'))
            if self.peek()[1] == "{" and depth < MAX_DEPTH:
                self.take()
                inner = self.body(depth + 1)
                inner.line = line
                self.take()
                if labels:
                    inner["__labels__"] = Row(Text(label) for label in labels)
                made.setdefault(key, Row()).append(inner) if isinstance(made.get(key, Row()), Row) else None
        return made

    def expression(self, depth: int) -> Any:
        while self.peek()[0] == "newline":
            self.at += 1
        kind, value, line = self.take()
        made: Any
        if depth > MAX_DEPTH:
            return None
        if kind == "string":
            made = Text(re.sub(r"\\(.)", lambda one: _ESCAPES.get(one[1], one[0]), value[1:-1]), line)
        elif kind == "heredoc":
            made = Text(value, line)
        elif kind == "number":
            made = Text(value, line, is_plain=True)
        elif value == "[":
            made = Row(self._items("]", depth))
            made.line = line
        elif value == "{":
            made = self.body(depth)
            self.take()
        elif value == "(":
            made = next(iter(self._items(")", depth)), None)
        elif kind == "name":
            if self.peek()[1] == "(":
                self.take()
                made = Call(self._items(")", depth))
                made.name = value
            elif value in ("true", "false", "null"):
                made = Text(value, line, is_plain=True)
            else:
                made = Reference(value)
        else:
            made = None
        return self._rest(made)

    def _rest(self, made: Any) -> Any:
        """Leaves out what else stands in an expression, up to the end of the line or the item."""
        depth = 0
        while self.at < len(self.tokens):
            kind, value, _ = self.peek()
            if depth == 0 and (kind == "newline" or value in (",", "]", "}", ")")):
                break
            depth += (value in ("[", "{", "(")) - (value in ("]", "}", ")"))
            self.at += 1
            made = Text(mark("expression")) if kind == "mark" and value == "?" else made
        return made

    def _items(self, end: str, depth: int) -> Iterator[Any]:
        while self.at < len(self.tokens):
            self.lines()
            if self.peek()[1] == end or self.peek()[0] == "end":
                self.take()
                return
            before = self.at
            yield self.expression(depth + 1)
            if self.at == before:
                self.take()


class _Resolver:
    """Fills in references, functions and interpolations from locals and defaults of variables."""

    def __init__(self, root: Map) -> None:
        self.known: dict[str, Any] = {}
        for block in rows(root.get("locals")):
            for key, value in mapping(block).items():
                self.known[f"local.{key}"] = value
        for block in rows(root.get("variable")):
            label = next(iter(rows(at(block, "__labels__"))), None)
            if label is not None and at(block, "default") is not None:
                self.known[f"var.{label}"] = at(block, "default")
        self.left = 100_000

    def value(self, node: Any, depth: int = 0) -> Any:
        self.left -= 1
        if depth > MAX_DEPTH or self.left < 0:
            return None
        if isinstance(node, Reference):
            found = self.known.get(str(node))
            return Text(mark(str(node))) if found is None else self.value(found, depth + 1)
        if isinstance(node, Call):
            return self._call(node, depth)
        if isinstance(node, Map):
            made = Map({key: self.value(value, depth + 1) for key, value in node.items()})
            made.line = node.line
            return made
        if isinstance(node, Row):
            row = Row(self.value(value, depth + 1) for value in node)
            row.line = node.line
            return row
        if isinstance(node, Text) and "${" in node:
            return Text(INSIDE.sub(lambda one: self._inside(one[1].strip(), depth), node), node.line)
        return node

    def _inside(self, name: str, depth: int) -> str:
        found = self.known.get(name)
        value = self.value(found, depth + 1) if found is not None else None
        return str(value) if isinstance(value, str) else "${" + name + "}"

    def _call(self, node: Call, depth: int) -> Any:
        items = [self.value(one, depth + 1) for one in node]
        if node.name == "concat":
            return Row(
                one
                for item in items
                for one in (item if isinstance(item, Row) else [item])
                if one is not None
            )
        if node.name in ("jsonencode", "yamlencode") and items:
            return Text(json.dumps(plain(items[0])))
        if node.name in (
            "tostring",
            "tonumber",
            "tolist",
            "toset",
            "flatten",
            "compact",
            "coalesce",
            "trimspace",
            "try",
        ):
            return items[0] if items else None
        if node.name == "join" and len(items) > 1 and isinstance(items[1], Row):
            return Text(str(items[0]).join(str(one) for one in items[1]))
        if node.name == "merge":
            merged = Map()
            for item in items:
                merged.update(mapping(item))
            return merged
        return Text(mark(f"{node.name}()"))


def tree(text: str) -> Map:
    """The tree of a text, references filled in."""
    root = _Parser(text).body()
    found = _Resolver(root).value(root)
    return found if isinstance(found, Map) else Map()
