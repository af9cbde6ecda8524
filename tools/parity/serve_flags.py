"""The flags of `vllm serve` with the types that its parser reads them as, from a release's source: no import of it.

    python tools/parity/serve_flags.py FOLDER RELEASE     prints a row of tests/data/serve_flags.jsonl

FOLDER has the unpacked source of that release (`pip download --no-binary :all: --no-deps vllm==RELEASE`). A kind is
`switch` (--x and --no-x), `on`, `int`, `float`, `str`, `human` (1k, 1K), `human-auto` (that, -1 or auto), `json`,
`dict` (JSON or a word), a list of choices, or {"each": kind, "count": n or "+"} for several words.

Source: vllm/engine/arg_utils.py:EngineArgs.add_cli_args, _compute_kwargs, vllm/entrypoints/openai/cli_args.py:
make_arg_parser (0.11.0, 0.13.0, 0.18.0, 0.23.0).
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ENGINE: Final = "vllm/engine/arg_utils.py"
FRONTENDS: Final = ("vllm/entrypoints/openai/cli_args.py", "vllm/entrypoints/common/cli_args.py")
SERVE: Final = "vllm/entrypoints/cli/serve.py"
HUMAN: Final = ("max_model_len", "max_num_batched_tokens", "kv_cache_memory_bytes")
UNIONS: Final = ("Optional", "Union", "Annotated", "SkipValidation")
PLAIN: Final = ("int", "float", "str")
TYPES_OF_JSON: Final = ("json.loads", "parse_type(json.loads)", "optional_type(json.loads)")


def frontend(root: Path) -> str:
    """The file with the flags of the server itself, which moved after 0.23."""
    return next(name for name in FRONTENDS if (root / name).is_file())


class Source:
    """Classes and names of types that the parser's modules define."""

    def __init__(self, root: Path) -> None:
        self.classes: dict[str, ast.ClassDef] = {}
        self.aliases: dict[str, ast.expr] = {}
        self.takes_auto = "human_readable_int_or_auto" in (root / ENGINE).read_text("utf-8")
        for file in (*sorted(root.glob("vllm/config/*.py")), root / ENGINE, root / frontend(root)):
            for node in ast.parse(file.read_text("utf-8")).body:
                self._add(node)

    def _add(self, node: ast.stmt) -> None:
        if isinstance(node, ast.ClassDef):
            self.classes[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self.aliases.setdefault(node.targets[0].id, node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            self.aliases.setdefault(node.target.id, node.value)

    def annotation(self, name: str, field: str) -> ast.expr | None:
        """The annotation of a field, of the class or of one that it is made from."""
        found = self.classes.get(name)
        if found is None:
            return None
        for node in found.body:
            if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == field:
                return node.annotation
        bases = (self.annotation(ast.unparse(base), field) for base in found.bases)
        return next((one for one in bases if one is not None), None)

    def fields(self, name: str) -> Iterator[str]:
        """The fields of a class and of those that it is made from."""
        found = self.classes.get(name)
        if found is None:
            return
        for base in found.bases:
            yield from self.fields(ast.unparse(base))
        for node in found.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id

    def leaves(self, node: ast.expr) -> Iterator[ast.expr]:
        """The types of a union, with named ones in place of their names."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.parse(node.value, mode="eval").body
        if isinstance(node, ast.BinOp):
            yield from self.leaves(node.left)
            yield from self.leaves(node.right)
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) in UNIONS:
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            for part in parts[:1] if ast.unparse(node.value) == "Annotated" else parts:
                yield from self.leaves(part)
        elif isinstance(node, ast.Name) and isinstance(self.aliases.get(node.id), ast.Subscript | ast.BinOp):
            yield from self.leaves(self.aliases[node.id])
        else:
            yield node

    def kind(self, node: ast.expr, field: str) -> Any:
        """The kind that the parser reads a field of that annotation as, by its checks in their order."""
        leaves = list(self.leaves(node))
        heads = {ast.unparse(leaf.value if isinstance(leaf, ast.Subscript) else leaf) for leaf in leaves}
        if any(head in self.classes for head in heads):
            return "json"
        if "bool" in heads:
            return "switch"
        if "Literal" in heads:
            return "str" if "str" in heads else self._choices(leaves, "None" in heads)
        for name in ("tuple", "list", "set"):
            if name in heads:
                return self._several(
                    next(leaf for leaf in leaves if ast.unparse(leaf).startswith(f"{name}[")), name
                )
        if "int" in heads:
            is_length = field == "max_model_len"
            return "human-auto" if is_length and self.takes_auto else "human" if field in HUMAN else "int"
        if "float" in heads:
            return "float"
        if heads & {"dict", "Dict"}:
            others = heads - {"dict", "Dict", "None", "Any"}
            return "dict" if others else "json"
        return "str"

    def _choices(self, leaves: list[ast.expr], is_optional: bool) -> list[str]:
        found: list[str] = []
        for leaf in leaves:
            if isinstance(leaf, ast.Subscript) and ast.unparse(leaf.value) == "Literal":
                found += self._words(leaf)
        return sorted({*found, *(["None"] if is_optional else [])})

    def _words(self, literal: ast.Subscript) -> Iterator[str]:
        """The words of a Literal, those of another one that it names among them."""
        for part in literal.slice.elts if isinstance(literal.slice, ast.Tuple) else [literal.slice]:
            named = self.aliases.get(part.id) if isinstance(part, ast.Name) else None
            if isinstance(named, ast.Subscript):
                yield from self._words(named)
            elif isinstance(part, ast.Constant):
                yield str(part.value)

    def _several(self, leaf: ast.expr, name: str) -> dict[str, Any]:
        assert isinstance(leaf, ast.Subscript)
        parts = leaf.slice.elts if isinstance(leaf.slice, ast.Tuple) else [leaf.slice]
        is_open = name != "tuple" or any(ast.unparse(part) == "..." for part in parts)
        each = self.kind(parts[0], "")
        return {"each": each if each in PLAIN else "str", "count": "+" if is_open else len(parts)}


def flags_of(root: Path) -> dict[str, Any]:
    """Every spelling with its kind."""
    source, found = Source(root), dict[str, Any]()
    trees = {name: ast.parse((root / name).read_text("utf-8")) for name in (ENGINE, frontend(root), SERVE)}
    tables: dict[str, str] = {}
    for node in ast.walk(trees[ENGINE]):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
            continue
        if ast.unparse(node.value.func) == "get_kwargs" and isinstance(node.targets[0], ast.Name):
            tables[node.targets[0].id] = ast.unparse(node.value.args[0])
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                words = [word.value for word in node.args if isinstance(word, ast.Constant)]
                spellings = [word for word in words if isinstance(word, str) and word.startswith("-")]
                if spellings:
                    found |= dict.fromkeys(spellings, _kind(node, source, tables))
    served = next((name for name in ("FrontendArgs",) if name in source.classes), "")
    for field in dict.fromkeys(source.fields(served)):
        annotation = source.annotation(served, field)
        if annotation is not None:
            found.setdefault(f"--{field.replace('_', '-')}", source.kind(annotation, field))
    return dict(sorted(found.items()))


def _kind(call: ast.Call, source: Source, tables: dict[str, str]) -> Any:
    given = {word.arg: word.value for word in call.keywords if word.arg is not None}
    action = ast.unparse(given["action"]) if "action" in given else ""
    if action == "'store_true'":
        return "on"
    if action.endswith("BooleanOptionalAction"):
        return "switch"
    if "type" in given:
        name = ast.unparse(given["type"])
        kind: Any = name if name in PLAIN else "json" if name in TYPES_OF_JSON else "str"
        return (
            {"each": kind, "count": "+"}
            if "nargs" in given and ast.unparse(given["nargs"]) != "'?'"
            else kind
        )
    for word in call.keywords:
        # **table["field"], or {**table["field"], "default": None} in its place
        inside = word.value.values if isinstance(word.value, ast.Dict) else [word.value]
        for one in inside if word.arg is None else ():
            if isinstance(one, ast.Subscript):
                table, field = ast.unparse(one.value), ast.literal_eval(one.slice)
                annotation = source.annotation(tables.get(table, ""), field)
                return "str" if annotation is None else source.kind(annotation, field)
    return "str"


if __name__ == "__main__":
    row = {
        "release": sys.argv[2],
        "source": f"{ENGINE}:EngineArgs.add_cli_args, _compute_kwargs, {frontend(Path(sys.argv[1]))}:make_arg_parser",
        "flags": flags_of(Path(sys.argv[1])),
    }
    print(json.dumps(row))
