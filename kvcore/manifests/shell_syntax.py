"""The structure of a shell script: commands, `if`, `case`, loops, groups and functions, as a tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct, field

from kvcore.manifests.shell_words import Word

MAX_NESTING: Final = 8


class Node(Struct, kw_only=True):
    """A command, or a structure of them."""

    kind: str
    words: list[Word] = field(default_factory=list)
    parts: list[list[Node]] = field(default_factory=list)
    patterns: list[list[Word]] = field(default_factory=list)
    joint: str = ""
    """`&&` or `||` before it."""


class Syntax:
    """Reads words and operators once, from the left."""

    def __init__(self, tokens: list[Word]) -> None:
        self.tokens = tokens
        self.at = 0

    def statements(self) -> Iterator[list[Node]]:
        """All statements; a word that closes nothing is left out."""
        while self.at < len(self.tokens):
            before = self.at
            yield self._list(frozenset())
            if self.at == before:
                self.at += 1

    def _peek(self) -> Word | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def _list(self, ends: frozenset[str], depth: int = 0) -> list[Node]:
        """Statements up to a word or an operator of `ends`, which is left where it is."""
        found: list[Node] = []
        joint = ""
        while (word := self._peek()) is not None:
            if word.operator in ends or (word.literal in ends and word.literal):
                break
            if word.operator:
                joint = (
                    word.operator
                    if word.operator in ("&&", "||", "|")
                    else ("" if word.operator != "\n" else joint)
                )
                self.at += 1
                if word.operator == "(" and depth < MAX_NESTING:
                    found.append(
                        Node(kind="group", parts=[self._list(frozenset((")",)), depth + 1)], joint=joint)
                    )
                    self.at += 1
                elif word.operator in (")", ";;"):
                    break
                continue
            if depth > MAX_NESTING:
                self.at += 1
                continue
            node = self._statement(depth)
            node.joint, joint = joint, ""
            found.append(node)
        return found

    def _statement(self, depth: int) -> Node:
        word = self._peek()
        literal = word.literal if word is not None else None
        if literal == "if":
            return self._if(depth)
        if literal in ("while", "until", "for", "select"):
            return self._loop(depth)
        if literal == "case":
            return self._case(depth)
        if literal == "{":
            self.at += 1
            body = self._list(frozenset(("}",)), depth + 1)
            self.at += 1
            return Node(kind="group", parts=[body])
        if literal == "function" and self.at + 1 < len(self.tokens):
            self.at += 1
        return self._command(depth)

    def _command(self, depth: int) -> Node:
        words: list[Word] = []
        while (word := self._peek()) is not None and not word.operator:
            words.append(word)
            self.at += 1
        following = self.tokens[self.at : self.at + 2]
        if len(words) == 1 and [one.operator for one in following] == ["(", ")"]:
            self.at += 2
            while (after := self._peek()) is not None and after.operator == "\n":
                self.at += 1
            body = self._statement(depth + 1) if after is not None else Node(kind="group", parts=[[]])
            return Node(kind="function", words=words, parts=[[body]])
        return Node(kind="command", words=words)

    def _if(self, depth: int) -> Node:
        node = Node(kind="if")
        self.at += 1
        while True:
            condition = self._list(frozenset(("then",)), depth + 1)
            self.at += 1
            body = self._list(frozenset(("elif", "else", "fi")), depth + 1)
            node.parts += [condition, body]
            word = self._peek()
            self.at += 1
            if word is None or word.literal == "fi":
                return node
            if word.literal == "else":
                node.parts += [[], self._list(frozenset(("fi",)), depth + 1)]
                self.at += 1
                return node

    def _loop(self, depth: int) -> Node:
        kind = (self.tokens[self.at].literal or "") if self.at < len(self.tokens) else ""
        self.at += 1
        if kind in ("while", "until"):
            condition = self._list(frozenset(("do",)), depth + 1)
            words: list[Word] = []
        else:
            condition, words = [], []
            while (word := self._peek()) is not None and word.literal != "do":
                words.append(word)
                self.at += 1
        self.at += 1
        body = self._list(frozenset(("done",)), depth + 1)
        self.at += 1
        return Node(kind=kind, words=words, parts=[condition, body])

    def _case(self, depth: int) -> Node:
        node = Node(kind="case")
        self.at += 1
        while (word := self._peek()) is not None and word.literal != "in":
            node.words.append(word)
            self.at += 1
        self.at += 1
        while (word := self._peek()) is not None and word.literal != "esac":
            if word.operator in ("\n", ";", "(", ";;", ")", ";&", ";;&"):
                self.at += 1
                continue
            patterns: list[Word] = []
            while (word := self._peek()) is not None and word.operator != ")":
                if not word.operator:
                    patterns.append(word)
                self.at += 1
            self.at += 1
            node.patterns.append(patterns)
            node.parts.append(self._list(frozenset((";;", "esac", ";&", ";;&")), depth + 1))
        self.at += 1
        return node
