"""The source of a release: functions, model classes, flags, defaults. It is read, never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final

REGISTRY: Final = "vllm/model_executor/models/registry.py"
ARGUMENTS: Final = "vllm/engine/arg_utils.py"
CONFIGS: Final = ("vllm/config.py", "vllm/config/*.py")
FORMER_CLASSES: Final = "_PREVIOUSLY_SUPPORTED_MODELS"
TEXT_CLASSES: Final = "_TEXT_GENERATION_MODELS"
DRAFTS: Final = "_SPECULATIVE_DECODING_MODELS"


class Source:
    """One release, unpacked."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def bodies(self, path: str) -> Mapping[str, str]:
        """Every function and class of a file as code without comments and docstrings; the file itself as ''.

        A name is qualified as in `Class.method`. An absent or unreadable file has none.
        """
        return _bodies(self.root / path)

    def find(self, pattern: str) -> tuple[str, ...]:
        """Files by a path with wildcards."""
        return tuple(sorted(str(found.relative_to(self.root)) for found in self.root.glob(pattern)))

    def holders(self, name: str) -> tuple[str, ...]:
        """Files of the same release that define a function or class of that name."""
        last = name.rsplit(".", 1)[-1]
        marks = (f"def {last}(", f"class {last}(", f"class {last}:")
        return tuple(
            path
            for path in self.find("vllm/**/*.py")
            if any(mark in (self.root / path).read_text("utf-8", "replace") for mark in marks)
        )

    @cached_property
    def model_classes(self) -> Mapping[str, frozenset[str]]:
        """Names of model classes by the registry's table."""
        found: dict[str, frozenset[str]] = {}
        for name, value in _assignments(_tree(self.root / REGISTRY)):
            if name.endswith("_MODELS") and isinstance(value, ast.Dict):
                keys = (key.value for key in value.keys if isinstance(key, ast.Constant))
                found[name] = frozenset(map(str, keys))
        return found

    @cached_property
    def supported_classes(self) -> frozenset[str]:
        """Classes that the release serves by themselves: all tables but those of drafts and of dropped classes."""
        tables = (
            names for table, names in self.model_classes.items() if table not in (FORMER_CLASSES, DRAFTS)
        )
        return frozenset[str]().union(*tables)

    @cached_property
    def flags(self) -> frozenset[str]:
        """Spellings that the argument parser of the engine takes."""
        calls = (node for node in ast.walk(_tree(self.root / ARGUMENTS)) if isinstance(node, ast.Call))
        return frozenset(
            argument.value
            for call in calls
            if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
            for argument in call.args
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
        )

    @cached_property
    def defaults(self) -> Mapping[str, str]:
        """Default values of the config classes as code, by `Class.field`."""
        found = {}
        for path in (path for pattern in CONFIGS for path in self.find(pattern)):
            for node in _tree(self.root / path).body:
                for field in node.body if isinstance(node, ast.ClassDef) else ():
                    if (
                        isinstance(field, ast.AnnAssign)
                        and isinstance(field.target, ast.Name)
                        and field.value
                    ):
                        found[f"{node.name}.{field.target.id}"] = _default(field.value)
        return found

    @cached_property
    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """Texts that a flag takes, by its name in EngineArgs; only of flags that are a list of texts."""
        literals = self.literals
        found = {}
        for node in _tree(self.root / ARGUMENTS).body:
            if not isinstance(node, ast.ClassDef) or node.name != "EngineArgs":
                continue
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    names = (part.id for part in ast.walk(field.annotation) if isinstance(part, ast.Name))
                    values = [value for name in names for value in literals.get(name, ())]
                    if values:
                        found[field.target.id] = tuple(dict.fromkeys(values))
        return found

    @cached_property
    def literals(self) -> Mapping[str, tuple[str, ...]]:
        """Named lists of texts in the config modules."""
        found = {}
        for path in (path for pattern in CONFIGS for path in self.find(pattern)):
            for name, value in _assignments(_tree(self.root / path)):
                if isinstance(value, ast.Subscript) and ast.unparse(value.value) == "Literal":
                    parts = (part.value for part in ast.walk(value.slice) if isinstance(part, ast.Constant))
                    found[name] = tuple(part for part in parts if isinstance(part, str))
        return found


@lru_cache(maxsize=512)
def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text("utf-8", "replace"))
    except (OSError, SyntaxError):
        return ast.Module(body=[], type_ignores=[])


@lru_cache(maxsize=512)
def _bodies(path: Path) -> Mapping[str, str]:
    if not path.is_file():
        return {}
    tree = _tree(path)
    found = {"": _code(tree)}
    for name, node in _definitions(tree, ""):
        found[name] = _code(node)
    for name, value in _assignments(tree):
        found[name] = ast.unparse(value)
    return found


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + child.name, child
            if isinstance(child, ast.ClassDef):
                yield from _definitions(child, f"{prefix}{child.name}.")


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value


def _code(node: ast.AST) -> str:
    """Code as it runs: comments, docstrings and line breaks are no difference."""
    copied = ast.parse(ast.unparse(node))
    for part in ast.walk(copied):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            texts = [
                statement
                for statement in part.body
                if isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ]
            part.body = [statement for statement in part.body if statement not in texts] or [ast.Pass()]
    return ast.unparse(copied)


def _default(value: ast.expr) -> str:
    """`Field(default=3, ge=1)` is 3."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("Field", "field"):
        given = {word.arg: word.value for word in value.keywords}
        chosen = given.get("default") or given.get("default_factory") or next(iter(value.args), None)
        return ast.unparse(chosen) if chosen is not None else ""
    return ast.unparse(value)
