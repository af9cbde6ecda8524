"""Python programs that start an engine, read by their syntax tree and never run: `LLM(...)`, `AsyncEngineArgs(...)`,
commands for `subprocess`, Ray's `LLMConfig`, Modal's functions."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kvcore.base.errors import ManifestError
from kvcore.manifests.build import Facts, built, pairs_given
from kvcore.manifests.images import image_of, pinned
from kvcore.manifests.nodes import Map, Text, document
from kvcore.manifests.plain_yaml import COMMANDS
from kvcore.manifests.pods import Found, Input, distinct
from kvcore.manifests.programs import Launch, script_launches
from kvcore.manifests.python_values import MAX_DEPTH, UNKNOWN, Names, dotted, known, word_of
from kvcore.manifests.unknowns import mark
from kvcore.manifests.workload import Workload, whole

MAX_NODES: Final = 100_000

_ENGINES: Final = {"LLM": "vllm", "AsyncEngineArgs": "vllm", "EngineArgs": "vllm", "AsyncLLMEngine": "vllm"}
_SGLANG: Final = ("Engine", "ServerArgs")
_ARGUMENTS: Final = ("AsyncEngineArgs", "EngineArgs", "ServerArgs")
"""Calls whose result is only arguments: what a program sets on it afterwards counts too."""


@dataclass
class _Made:
    """The arguments of an engine that a name stands for."""

    found: dict[str, Any]
    engine: str
    name: str
    line: int
    facts: Facts
    branches: int
    """Undecided branches around the call."""
    at: int | None = None
    """The place of its workload among those found; None before it has a model."""


def python_workloads(
    text: str, facts: Facts, given: Input, env: Mapping[str, str] | None = None
) -> Iterator[Found]:
    """The engines that a program starts.

    Raises ManifestError `manifest-not-python` for what is no Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a stranger's text, which is not run
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ManifestError("manifest-not-python", line=getattr(error, "lineno", 1) or 1) from None
    reader = _Reader(Names(env or {}), facts, given)
    reader.body(tree.body, 0)
    yield from reader.found


def _of_bento(stated: Iterator[Any]) -> dict[str, Any]:
    """The cards of a BentoML service by its resources, as Modal writes them.

    Source: BentoML, `@bentoml.service(resources={"gpu": 1, "gpu_type": ...})`.
    """
    resources = next(stated, None)
    count = resources.get("gpu") if isinstance(resources, dict) else None
    kind = resources.get("gpu_type") if isinstance(resources, dict) else None
    if not isinstance(count, int):
        return {}
    return {"gpu": f"{kind}:{count}" if isinstance(kind, str) else None, "gpus": count}


class _Reader:
    """Goes through statements in their order, and keeps what each name stands for."""

    def __init__(self, names: Names, facts: Facts, given: Input) -> None:
        self.names = names
        self.facts = facts
        self.given = given
        self.found: list[Found] = []
        self.left = MAX_NODES
        self.installs = ""
        self.environment: dict[str, str] = {}
        self.image: str | None = None
        self.takes_kwargs = ""
        """An engine whose arguments a class passes on."""
        self.functions: list[str] = []
        self.modal: dict[str, Any] = {}
        self.made: dict[str, _Made] = {}
        """Arguments of engines by the names that stand for them."""
        self.last: _Made | None = None
        self.branches = 0
        """Branches around a statement that nothing decides."""

    def body(self, statements: list[ast.stmt], depth: int) -> None:
        """All statements, those inside of others too."""
        if depth > MAX_DEPTH:
            return
        for one in statements:
            self.left -= 1
            if self.left < 0:
                return
            self._statement(one, depth)

    def _statement(self, one: ast.stmt, depth: int) -> None:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._definition(one, depth)
            return
        if isinstance(one, ast.If):
            test = self.names.value(one.test)
            self._calls(one.test)
            self.branches += test is UNKNOWN
            if test is UNKNOWN or test:
                self.body(one.body, depth + 1)
            if test is UNKNOWN or not test:
                self.body(one.orelse, depth + 1)
            self.branches -= test is UNKNOWN
            return
        self.last = None
        for inner in ast.iter_child_nodes(one):
            if isinstance(inner, ast.expr):
                self._calls(inner)
        self._assign(one)
        self._arguments(one)
        for name in ("body", "orelse", "finalbody"):
            self.body([inner for inner in getattr(one, name, []) if isinstance(inner, ast.stmt)], depth + 1)
        for handler in getattr(one, "handlers", []):
            self.body(handler.body, depth + 1)

    def _definition(self, one: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, depth: int) -> None:
        before = dict(self.modal)
        for decorator in one.decorator_list:
            self._calls(decorator)
            if isinstance(decorator, ast.Call) and dotted(decorator.func).endswith(
                (".function", ".cls", ".deployment")
            ):
                self.modal = {key.arg: self.names.value(key.value) for key in decorator.keywords if key.arg}
            if isinstance(decorator, ast.Call) and dotted(decorator.func).endswith(".service"):
                self.modal = _of_bento(
                    self.names.value(key.value) for key in decorator.keywords if key.arg == "resources"
                )
        if not isinstance(one, ast.ClassDef):
            pairs = zip(reversed(one.args.args), reversed(one.args.defaults), strict=False)
            for argument, default in pairs:
                self.names.values[argument.arg] = self.names.value(default)
        self.functions.append(one.name)
        self.body(one.body, depth + 1)
        self.functions.pop()
        self.modal = before if not isinstance(one, ast.ClassDef) else self.modal

    def _assign(self, one: ast.stmt) -> None:
        if isinstance(one, ast.Assign) and len(one.targets) == 1:
            target = one.targets[0]
            value = self.names.value(one.value)
            if isinstance(target, ast.Name):
                self.names.values[target.id] = value
            elif isinstance(target, ast.Subscript) and dotted(target.value) == "os.environ":
                name = self.names.value(target.slice)
                if isinstance(name, str) and value is not UNKNOWN:
                    self.environment[name] = str(value)
            elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                key = self.names.value(target.slice)
                self._put(target.value.id, {key: value} if isinstance(key, str) else {})
        elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and one.value is not None:
            self.names.values[one.target.id] = self.names.value(one.value)
        elif isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name):
            before, added = self.names.values.get(one.target.id, UNKNOWN), self.names.value(one.value)
            both = (isinstance(before, list) and isinstance(added, list)) or (
                isinstance(before, str) and isinstance(added, str)
            )
            self.names.values[one.target.id] = before + added if both else UNKNOWN

    def _arguments(self, one: ast.stmt) -> None:
        """`args = AsyncEngineArgs(...)`, then `args.max_model_len = 8192`; what a branch may set is not known."""
        if not isinstance(one, ast.Assign | ast.AnnAssign | ast.AugAssign) or one.value is None:
            return
        for target in one.targets if isinstance(one, ast.Assign) else [one.target]:
            self.made.pop(dotted(target), None)
            if self.last is not None and self.last.line == one.value.lineno:
                self.made[dotted(target)] = self.last
            held = self.made.get(dotted(target.value)) if isinstance(target, ast.Attribute) else None
            if held is None or not isinstance(target, ast.Attribute):
                continue
            value = UNKNOWN if isinstance(one, ast.AugAssign) else self.names.value(one.value)
            if self.branches > held.branches or value is UNKNOWN:
                value = mark(ast.unparse(target))
            held.found[target.attr] = value
            self._arguments_given(held)

    def _put(self, name: str, items: Mapping[Any, Any]) -> None:
        """Items set in a dictionary that a name stands for; a list, or a key that is not known, is left as it is."""
        held = self.names.values.get(name)
        if isinstance(held, dict):
            self.names.values[name] = held | {key: one for key, one in items.items() if isinstance(key, str)}

    # -- calls

    def _calls(self, node: ast.expr) -> None:
        for one in ast.walk(node):
            self.left -= 1
            if self.left < 0:
                return
            if isinstance(one, ast.Call):
                self._call(one)

    def _call(self, node: ast.Call) -> None:
        name = dotted(node.func)
        last = name.rpartition(".")[2]
        if last == "add_argument":
            self._argument(node)
        elif last in ("pip_install", "uv_pip_install", "run_commands"):
            self.installs += " " + " ".join(str(self.names.value(one)) for one in node.args)
        elif last == "env" and node.args and isinstance(found := self.names.value(node.args[0]), dict):
            self.environment |= {key: str(value) for key, value in found.items() if value is not UNKNOWN}
        elif (
            last == "from_registry" and node.args and isinstance(found := self.names.value(node.args[0]), str)
        ):
            self.image = found
        elif (
            last in ("append", "extend")
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            self._grow(node, node.func.value.id, last)
        elif (
            last in ("update", "setdefault")
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            self._update(node, node.func.value.id, last)
        elif last in _ENGINES and not name.startswith("AsyncLLMEngine."):
            self._engine(node, _ENGINES[last], last)
        elif last in _SGLANG and name.startswith(("sgl.", "sglang.", "Engine", "ServerArgs")):
            self._engine(node, "sglang", last)
        elif last == "LLMConfig":
            self._llm_config(node)
        elif last in ("bind", "options") and self.takes_kwargs and node.keywords:
            self._engine(node, self.takes_kwargs, last)
        elif last in ("Popen", "run", "call", "check_call", "check_output", "system", "create_subprocess_exec",
                      "create_subprocess_shell", "execvp", "execv"):  # fmt: skip
            self._command(node)

    def _update(self, node: ast.Call, name: str, how: str) -> None:
        """`kwargs.update(a=1)`, `kwargs.update({...})` and `kwargs.setdefault("a", 1)`."""
        given = [self.names.value(one) for one in node.args]
        if how == "setdefault":
            held = self.names.values.get(name)
            if (
                len(given) == 2
                and isinstance(held, dict)
                and isinstance(given[0], str)
                and given[0] not in held
            ):
                self._put(name, {given[0]: given[1]})
            return
        for one in given:
            if isinstance(one, dict):
                self._put(name, one)
        self._put(name, {one.arg: self.names.value(one.value) for one in node.keywords if one.arg})

    def _argument(self, node: ast.Call) -> None:
        """`parser.add_argument("--model", default=...)`: what `args.model` is."""
        name = next(
            (
                one
                for arg in node.args
                if isinstance(one := self.names.value(arg), str) and one.startswith("--")
            ),
            None,
        )
        keywords = {one.arg: one.value for one in node.keywords}
        dest = self.names.value(keywords["dest"]) if "dest" in keywords else UNKNOWN
        name = dest if isinstance(dest, str) else name
        if name is not None:
            default = self.names.value(keywords["default"]) if "default" in keywords else mark(name)
            self.names.defaults[name.lstrip("-").replace("-", "_")] = default

    def _grow(self, node: ast.Call, name: str, how: str) -> None:
        held = self.names.values.get(name)
        added = self.names.value(node.args[0]) if node.args else UNKNOWN
        if isinstance(held, list) and len(held) < 4096:
            more = added if how == "extend" and isinstance(added, list) else [added]
            self.names.values[name] = held + more

    def _keywords(self, node: ast.Call) -> dict[str, Any] | None:
        """The arguments of a call by name; None where they are passed on from elsewhere."""
        found: dict[str, Any] = {}
        for one in node.keywords:
            value = self.names.value(one.value)
            if one.arg is None:
                if not isinstance(value, dict):
                    return None if not found and len(node.keywords) == 1 else found
                found |= {key: mark(key) if held is UNKNOWN else held for key, held in value.items()}
            else:
                found[one.arg] = mark(ast.unparse(one.value)) if value is UNKNOWN else value
        return found

    def _engine(self, node: ast.Call, engine: str, name: str) -> None:
        found = self._keywords(node)
        if found is None:
            self.takes_kwargs = engine
            return
        if node.args and "model" not in found and name != "bind":
            first = self.names.value(node.args[0])
            found["model"] = mark(ast.unparse(node.args[0])) if first is UNKNOWN else first
        owner = self._owner() if name == "bind" else None
        facts = replace(self._facts(node.lineno), name=owner or self.facts.name)
        made = _Made(found, engine, name, node.lineno, facts, self.branches)
        self._arguments_given(made)
        self.last = made if name in _ARGUMENTS else None

    def _arguments_given(self, made: _Made) -> None:
        """The workload of an engine's arguments, once they name a model; again where one of them changed."""
        if not made.found.keys() & {"model", "model_path"}:
            return
        pairs = Map(
            {key: self._node(value, made.line) for key, value in made.found.items() if value is not None}
        )
        flags = pairs_given(pairs, made.engine)
        self._add(Launch(engine=made.engine, words=(), line=made.line), replace(made.facts, before=flags))
        if made.at is None:
            made.at = len(self.found) - 1
        else:
            self.found[made.at] = self.found.pop()

    def _owner(self) -> str | None:
        return self.modal.get("name") if isinstance(self.modal.get("name"), str) else None

    def _node(self, value: Any, line: int) -> Any:
        if isinstance(value, dict | list):
            node = document(json.dumps(known(value)), line)
            return node if node is not None and not isinstance(node, ManifestError) else Text("", line)
        return Text(str(value), line, is_plain=not isinstance(value, str))

    def _llm_config(self, node: ast.Call) -> None:
        from kvcore.manifests.ray import llm_config

        found = self._keywords(node)
        config = self._node(found, node.lineno) if found else None
        if isinstance(config, Map):
            self.found.append(llm_config(config, self.given, self._facts(node.lineno)))

    def _facts(self, line: int) -> Facts:
        gpu = self.modal.get("gpu")
        card = gpu if isinstance(gpu, str) else None
        count = None if card is None else whole(card.partition(":")[2]) or 1
        image = self.image if self.image is not None and image_of(self.image).engine else None
        return replace(
            self.facts, line=line, image=image, installs=self.installs, environment=dict(self.environment),
            card=card or self.facts.card, gpus=count if count is not None else self.modal.get("gpus", self.facts.gpus),
        )  # fmt: skip

    def _command(self, node: ast.Call) -> None:
        value = self.names.value(node.args[0]) if node.args else UNKNOWN
        if isinstance(value, str):
            text = value
        elif isinstance(value, list):
            import shlex

            text = " ".join(shlex.quote(word_of(one)) for one in value)
        else:
            return
        if not COMMANDS.search(" ".join(text.replace("'", "").split())):
            return
        launched = script_launches(text, self.environment, self.given.scripts, line=node.lineno)
        facts = self._facts(node.lineno)
        facts.name = self.functions[-1] if self.functions and self.modal else facts.name
        for launch in distinct(launched) if launched else ():
            if launch.engine:
                self._add(launch, facts)

    def _add(self, launch: Launch, facts: Facts) -> None:
        found = built(launch, facts, self.given.scripts)
        if (
            isinstance(found, Workload)
            and found.release is None
            and (own := pinned(self.installs, launch.engine))
        ):
            from msgspec.structs import replace as changed

            found = changed(found, release=own)
        self.found.append(found)
