"""Shell scripts read without running them: the commands that they would start, with the variables in force.

Assignments, arrays, functions and tests of known values are followed. Of a branch that nothing decides both sides are
read, and a variable that they set differently is undefined afterwards.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from kvcore.manifests.expansion import Value, Variables
from kvcore.manifests.shell_syntax import Node, Syntax
from kvcore.manifests.shell_words import Lexer, Word
from kvcore.manifests.unknowns import has_mark, mark, names_in

MAX_RUNS: Final = 2000
MAX_STEPS: Final = 20_000
MAX_CALLS: Final = 8

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w{0,79})(\[[^\]]{0,40}\])?(\+?=)(.{0,1})", re.DOTALL)
_DECLARING: Final = ("export", "declare", "typeset", "local", "readonly", "env")
_SKIPPED: Final = ("then", "do", "else", "{", "}", "!", "time", "fi", "done", "esac")
_NUMBERS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "-eq": int.__eq__, "-ne": int.__ne__, "-gt": int.__gt__, "-ge": int.__ge__, "-lt": int.__lt__, "-le": int.__le__,
}  # fmt: skip


class Run(Struct, frozen=True, kw_only=True):
    """A command that a script would start."""

    words: tuple[str, ...]
    variables: Mapping[str, str]
    """Variables that are set there, whether exported or not."""
    exported: frozenset[str] = frozenset()
    line: int = 0
    document: str | None = None
    """The text of its here-document."""
    target: str = ""
    """The file that its output goes to."""


class Script:
    """One script with the variables from outside: reads on, statement by statement."""

    def __init__(
        self,
        text: str,
        given: Mapping[str, str],
        arguments: Sequence[str] | None = None,
        line: int = 1,
        exported: frozenset[str] | None = None,
    ) -> None:
        self.variables = Variables(given, arguments)
        self.exported = set(given if exported is None else exported)
        self.syntax = Syntax(Lexer(text, line).read())
        self.steps = MAX_STEPS
        self.runs: list[Run] = []
        self.functions: dict[str, list[Node]] = {}
        self.calls = 0
        self.sourced: Callable[[str], str | None] = lambda _: None

    def read(self) -> list[Run]:
        """The commands that the script would start, in its order."""
        for statements in self.syntax.statements():
            self._run(statements)
        return self.runs

    def _run(self, nodes: list[Node]) -> bool | None:
        """Goes through statements; what the last of them answers, where it is known."""
        status: bool | None = True
        for node in nodes:
            self.steps -= 1
            if self.steps < 0 or len(self.runs) >= MAX_RUNS:
                return None
            if (node.joint == "&&" and status is False) or (node.joint == "||" and status is not False):
                continue
            status = self._one(node)
        return status

    def _one(self, node: Node) -> bool | None:
        if node.kind == "command":
            return self._simple(node.words)
        if node.kind == "group":
            return self._run(node.parts[0])
        if node.kind == "function":
            self.functions[node.words[0].literal or ""] = node.parts[0]
        elif node.kind == "if":
            self._branches(list(zip(node.parts[::2], node.parts[1::2], strict=True)))
        elif node.kind == "case":
            self._cases(node)
        elif node.kind in ("while", "until"):
            if self._run(node.parts[0]) is not (node.kind == "until"):
                self._run(node.parts[1])
        elif node.words:
            self._each(node)
        return True

    def _each(self, node: Node) -> None:
        """The body of a `for` once, with the first value of its list."""
        name = node.words[0].literal or ""
        items = [one for word in node.words[2:] if not word.operator for one in self.variables.fields(word)]
        if len(node.words) > 2 or self.variables.arguments:
            self.variables.values[name] = items[0] if len(items) == 1 else mark(name)
            self._run(node.parts[1])

    def _branches(self, branches: list[tuple[list[Node], list[Node]]]) -> None:
        if not branches:
            return
        (condition, body), *rest = branches
        decided = True if not condition else self._run(condition)
        if decided is True:
            self._run(body)
        elif decided is False:
            self._branches(rest)
        else:
            self._both(lambda: self._run(body), lambda: self._branches(rest))

    def _both(self, *sides: Callable[[], object]) -> None:
        """Reads sides of which one is taken; what they set differently is undefined afterwards."""
        start, ends = self.variables.copy(), []
        for side in sides:
            self.variables = start.copy()
            side()
            ends.append(self.variables)
        merged = start.copy()
        merged.left = min(one.left for one in ends)
        for name in {name for one in ends for name in one.values}:
            values = [one.values.get(name) for one in ends]
            first = values[0]
            if first is not None and all(value == first for value in values):
                merged.values[name] = first
            else:
                merged.values[name] = mark(name)
        self.variables = merged

    def _cases(self, node: Node) -> None:
        subject = " ".join(self.variables.text(word) for word in node.words)
        if has_mark(subject):
            known = _as_empty(subject)
            if known is None:
                self._both(*(lambda body=body: self._run(body) for body in node.parts), lambda: None)
                return
            subject = known
        for patterns, body in zip(node.patterns, node.parts, strict=True):
            if any(fnmatch.fnmatchcase(subject, self.variables.text(one)) for one in patterns):
                self._run(body)
                return

    def _simple(self, given: list[Word]) -> bool | None:
        words = [word for word in given if not word.redirects]
        own: dict[str, Value] = {}
        while words and (made := self._assigned(words[0])) is not None:
            own[made[0]] = made[1]
            words = words[1:]
        if not words:
            self.variables.values.update(own)
            return True
        head = words[0].literal
        if head in _SKIPPED:
            return self._simple(words[1:])
        if head in ("[", "[[", "test"):
            return self._test([word for word in words[1:] if word.literal not in ("]", "]]")])
        if head in _DECLARING and head != "env":
            self._declare(head or "", words[1:])
            return True
        fields = [one for word in words for one in self.variables.fields(word)]
        return self._started(fields, own, given) if fields else True

    def _declare(self, head: str, words: list[Word]) -> None:
        for word in words:
            made = self._assigned(word)
            if made is not None:
                self.variables.values[made[0]] = made[1]
            name = made[0] if made is not None else word.literal or ""
            if head == "export":
                self.exported.add(name)

    def _assigned(self, word: Word) -> tuple[str, Value] | None:
        """The name and value of `NAME=value`, `NAME+=value` and `NAME=(a b)`; None for other words."""
        first = word.parts[0] if word.parts else None
        found = (
            None if first is None or first.is_quoted or first.is_expansion else _ASSIGNMENT.match(first.text)
        )
        if first is None or found is None:
            return None
        name, adds = found[1], found[3] == "+="
        rest = first.text[found.end(3) :]
        value: Value
        if (
            not rest
            and len(word.parts) == 2
            and word.parts[1].text.startswith("(")
            and not word.parts[1].is_quoted
        ):
            inner = Lexer(word.parts[1].text[1:-1], word.line).read()
            value = [one for item in inner if not item.operator for one in self.variables.fields(item)]
        else:
            tail = Word(parts=word.parts[1:])
            value = rest + self.variables.text(tail)
        before = self.variables.values.get(name)
        if adds and before is not None:
            if isinstance(value, list):
                value = ([before] if isinstance(before, str) else before) + value
            elif isinstance(before, list):
                value = [*before, value]
            else:
                value = before + value
        return name, value[:4096] if isinstance(value, list) else value[: 1 << 16]

    def _started(self, fields: list[str], own: Mapping[str, Value], given: list[Word]) -> bool | None:
        head = fields[0]
        if head in self.functions and self.calls < MAX_CALLS:
            before, self.variables.arguments = self.variables.arguments, fields[1:]
            self.calls += 1
            status = self._run(self.functions[head])
            self.calls -= 1
            self.variables.arguments = before
            return status
        if head in ("true", ":"):
            return True
        if head == "false":
            return False
        if head == "set" and "--" in fields:
            self.variables.arguments = fields[fields.index("--") + 1 :]
        elif head == "shift" and self.variables.arguments is not None:
            count = int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else 1
            self.variables.arguments = self.variables.arguments[count:]
        elif head in (".", "source") and len(fields) > 1 and self.calls < MAX_CALLS:
            self._source(fields[1])
        elif head == "eval":
            fields = self.variables.string(" ".join(fields[1:])).split()
        elif head == "read" or head == "unset":
            for name in fields[1:]:
                self.variables.values.pop(name, None)
        redirects = [word for word in given if word.redirects]
        document = next((word.document for word in redirects if word.document is not None), None)
        target = next((self.variables.text(word) for word in redirects if word.redirects in (">", ">>")), "")
        if fields and head not in ("set", "shift", ".", "source", "read", "unset", "cd"):
            now = {**self.variables.values, **own}
            self.runs.append(
                Run(
                    words=tuple(fields),
                    variables={name: value for name, value in now.items() if isinstance(value, str)},
                    exported=frozenset(self.exported | own.keys()),
                    line=given[0].line,
                    document=document,
                    target=target,
                )
            )
        return None

    def _source(self, name: str) -> None:
        text = self.sourced(name)
        if text is None:
            return
        self.calls += 1
        inner = Script(text, {}, self.variables.arguments)
        inner.variables, inner.exported, inner.functions = self.variables, self.exported, self.functions
        inner.calls, inner.steps, inner.sourced = self.calls, self.steps, self.sourced
        self.runs += inner.read()
        self.variables, self.steps = inner.variables, inner.steps
        self.calls -= 1

    # -- tests

    def _test(self, words: list[Word]) -> bool | None:
        """What a test answers; None where a value in it is not known."""
        texts = [word.operator or self.variables.text(word) for word in words]
        for joint in ("||", "-o", "&&", "-a"):
            if joint in texts:
                at = texts.index(joint)
                left, right = self._test(words[:at]), self._test(words[at + 1 :])
                if joint in ("||", "-o"):
                    return True if True in (left, right) else None if None in (left, right) else False
                return False if False in (left, right) else None if None in (left, right) else True
        if texts and texts[0] == "!":
            inner = self._test(words[1:])
            return None if inner is None else not inner
        values = [_as_empty(text) for text in texts]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        return _answer(known)


def _answer(texts: list[str]) -> bool | None:
    if len(texts) == 1:
        return bool(texts[0])
    if len(texts) == 2 and texts[0] in ("-n", "-z"):
        return bool(texts[1]) is (texts[0] == "-n")
    if len(texts) == 2 and texts[0] == "-v":
        return None
    if len(texts) == 3:
        left, how, right = texts
        if how in ("=", "=="):
            return fnmatch.fnmatchcase(left, right)
        if how == "!=":
            return not fnmatch.fnmatchcase(left, right)
        if (
            how in _NUMBERS
            and left.lstrip("-").isdigit()
            and right.lstrip("-").isdigit()
            and len(left + right) < 40
        ):
            return _NUMBERS[how](int(left), int(right))
    return None


def _as_empty(text: str) -> str | None:
    """A text with variables that are not set as a shell has them, empty; None where a command's output is in it."""
    if not has_mark(text):
        return text
    if any(not name.isidentifier() for name in names_in(text)):
        return None
    return re.sub("\ue000[^\ue001]{0,80}\ue001", "", text)


def runs_of(
    text: str, given: Mapping[str, str], arguments: Sequence[str] | None = None, line: int = 1
) -> Iterator[Run]:
    """The commands of a script that stands alone.

    Example:
        >>> [run.words for run in runs_of('M=${M:-a/b}; A=(--x 1); vllm serve "$M" "${A[@]}" $Z', {})]
        [('vllm', 'serve', 'a/b', '--x', '1', '\\ue000Z\\ue001')]
    """
    yield from Script(text, given, arguments, line).read()
