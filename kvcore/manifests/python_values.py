"""Values of a Python program's expressions, by their syntax tree: constants and what is made of them, nothing run."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any, Final

from kvcore.manifests.unknowns import has_mark, mark

MAX_DEPTH: Final = 30
MAX_TEXT: Final = 1 << 16
UNKNOWN: Final = object()


class Names:
    """The values of names: constants, what is made of them, and what the environment would give."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env
        self.values: dict[str, Any] = {}
        self.defaults: dict[str, Any] = {}
        """Defaults of an argument parser, by destination."""

    def value(self, node: ast.expr | None, depth: int = 0) -> Any:
        """The value of an expression; a mark, or `UNKNOWN`, where it is not known."""
        if node is None or depth > MAX_DEPTH:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str | int | float | bool | None) else UNKNOWN
        if isinstance(node, ast.Name):
            return self.values.get(node.id, UNKNOWN)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, depth)
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return self._items(node.elts, depth)
        if isinstance(node, ast.Dict):
            return self._dict(node, depth)
        if isinstance(node, ast.JoinedStr):
            return self._joined(node, depth)
        if isinstance(node, ast.IfExp):
            test = self.value(node.test, depth + 1)
            if test is UNKNOWN or (isinstance(test, str) and has_mark(test)):
                return UNKNOWN
            return self.value(node.body if test else node.orelse, depth + 1)
        if isinstance(node, ast.BinOp):
            return self._binary(node, depth)
        if isinstance(node, ast.BoolOp):
            return self._either(node, depth)
        if isinstance(node, ast.UnaryOp):
            inner = self.value(node.operand, depth + 1)
            if isinstance(node.op, ast.Not) and inner is not UNKNOWN:
                return not inner
            return -inner if isinstance(node.op, ast.USub) and isinstance(inner, int | float) else UNKNOWN
        if isinstance(node, ast.Subscript):
            return self._subscript(node, depth)
        return self._call(node, depth) if isinstance(node, ast.Call) else UNKNOWN

    def _items(self, nodes: list[ast.expr], depth: int) -> list[Any]:
        found: list[Any] = []
        for one in nodes:
            if isinstance(one, ast.Starred):
                inner = self.value(one.value, depth + 1)
                found += inner if isinstance(inner, list) else [UNKNOWN]
            else:
                found.append(self.value(one, depth + 1))
        return found

    def _dict(self, node: ast.Dict, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            read = self.value(value, depth + 1)
            if key is None:
                found |= read if isinstance(read, dict) else {}
            elif isinstance(name := self.value(key, depth + 1), str):
                found[name] = read
        return found

    def _joined(self, node: ast.JoinedStr, depth: int) -> str:
        parts = []
        for one in node.values:
            value = self.value(one.value if isinstance(one, ast.FormattedValue) else one, depth + 1)
            name = ast.unparse(one.value) if isinstance(one, ast.FormattedValue) else ""
            parts.append(mark(name) if value is UNKNOWN else str(value))
        return "".join(parts)[:MAX_TEXT]

    def _binary(self, node: ast.BinOp, depth: int) -> Any:
        left, right = self.value(node.left, depth + 1), self.value(node.right, depth + 1)
        if isinstance(node.op, ast.Add):
            if isinstance(left, str) and isinstance(right, str):
                return left + right if len(left) + len(right) < MAX_TEXT else UNKNOWN
            if isinstance(left, list) and isinstance(right, list):
                return left + right if len(left) + len(right) < MAX_TEXT else UNKNOWN
        numbers = all(
            isinstance(one, int) and not isinstance(one, bool) and abs(one) < 1 << 40 for one in (left, right)
        )
        if not numbers:
            return UNKNOWN
        if isinstance(node.op, ast.Add | ast.Sub):
            return left + right if isinstance(node.op, ast.Add) else left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.LShift | ast.Pow):
            is_small = 0 <= right < 64 and abs(left) < 1 << 20
            return (
                (left << right if isinstance(node.op, ast.LShift) else left**right) if is_small else UNKNOWN
            )
        return left // right if isinstance(node.op, ast.FloorDiv) and right else UNKNOWN

    def _attribute(self, node: ast.Attribute, depth: int) -> Any:
        """What `args.x` has by default, or the number of the cards of `GPU.count`."""
        if not isinstance(node.value, ast.Name):
            return UNKNOWN
        held = self.value(node.value, depth + 1)
        count = held.rpartition(":")[2] if isinstance(held, str) and node.attr == "count" else ""
        return int(count) if count.isdigit() and len(count) < 4 else self.defaults.get(node.attr, UNKNOWN)

    def _either(self, node: ast.BoolOp, depth: int) -> Any:
        found: Any = UNKNOWN
        for one in node.values:
            found = self.value(one, depth + 1)
            if found is UNKNOWN or bool(found) is isinstance(node.op, ast.Or):
                return found
        return found

    def _subscript(self, node: ast.Subscript, depth: int) -> Any:
        if dotted(node.value) in ("os.environ", "environ"):
            return self._variable(self.value(node.slice, depth + 1), UNKNOWN)
        held, key = self.value(node.value, depth + 1), self.value(node.slice, depth + 1)
        if isinstance(held, dict):
            return held.get(key, UNKNOWN) if isinstance(key, str) else UNKNOWN
        if isinstance(held, list) and isinstance(key, int) and -len(held) <= key < len(held):
            return held[key]
        return UNKNOWN

    def _variable(self, name: Any, default: Any) -> Any:
        if not isinstance(name, str):
            return UNKNOWN
        return self.env.get(name, default if default is not UNKNOWN else mark(name))

    def _call(self, node: ast.Call, depth: int) -> Any:
        name = dotted(node.func)
        first = node.args[0] if node.args else None
        if name in ("os.environ.get", "os.getenv", "environ.get", "getenv"):
            default = self.value(node.args[1], depth + 1) if len(node.args) > 1 else UNKNOWN
            return self._variable(self.value(first, depth + 1), default)
        if name.startswith("modal.gpu."):
            found = {one.arg: self.value(one.value, depth + 1) for one in node.keywords}
            size, count = found.get("size"), found.get("count", 1)
            return f"{name[10:]}{f'-{size}' if isinstance(size, str) else ''}:{count if isinstance(count, int) else 1}"
        if name in ("str", "int", "float", "bool", "Path", "pathlib.Path"):
            return _converted(name, self.value(first, depth + 1))
        if name == "dict":
            return {one.arg: self.value(one.value, depth + 1) for one in node.keywords if one.arg is not None}
        if name in ("json.dumps", "list", "tuple", "shlex.quote"):
            inner = self.value(first, depth + 1)
            return json.dumps(known(inner)) if name == "json.dumps" and inner is not UNKNOWN else inner
        if name.endswith("Config") and node.keywords and not node.args:
            return {one.arg: self.value(one.value, depth + 1) for one in node.keywords if one.arg is not None}
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func, depth)
        return UNKNOWN

    def _method(self, node: ast.Call, function: ast.Attribute, depth: int) -> Any:
        held = self.value(function.value, depth + 1)
        first = self.value(node.args[0], depth + 1) if node.args else UNKNOWN
        if function.attr == "join" and isinstance(held, str) and isinstance(first, list):
            return held.join(word_of(one) for one in first)[:MAX_TEXT]
        if function.attr == "split" and isinstance(held, str):
            return held.split()
        if function.attr in ("strip", "lower", "copy") and held is not UNKNOWN:
            return held.strip() if function.attr == "strip" and isinstance(held, str) else held
        if function.attr == "get" and isinstance(held, dict) and isinstance(first, str):
            default = self.value(node.args[1], depth + 1) if len(node.args) > 1 else UNKNOWN
            return held.get(first, default)
        return UNKNOWN


def _converted(name: str, value: Any) -> Any:
    if value is UNKNOWN or (isinstance(value, str) and has_mark(value)):
        return value
    try:
        if name == "int":
            return int(value)
        if name == "float":
            return float(value)
    except (TypeError, ValueError):
        return UNKNOWN
    return bool(value) if name == "bool" else str(value)


def word_of(value: Any) -> str:
    return mark("expression") if value is UNKNOWN else str(value)


def known(value: Any, depth: int = 0) -> Any:
    """A value as JSON has it, unknown parts as marks."""
    if value is UNKNOWN or depth > MAX_DEPTH:
        return mark("expression")
    if isinstance(value, dict):
        return {key: known(one, depth + 1) for key, one in value.items()}
    return [known(one, depth + 1) for one in value] if isinstance(value, list) else value


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else node.attr
    return ""
