"""Shell text -> words and operators: quotes, continuations, comments and here-documents as a POSIX shell reads them."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from kvcore.manifests.unknowns import mark

MAX_TOKENS: Final = 50_000
MAX_NESTING: Final = 24

_OPERATORS: Final = (";;&", "&&", "||", ";;", ";&", "|&", "\n", ";", "|", "&", "(", ")")
_REDIRECTIONS: Final = ("<<<", "<<-", "<<", ">>", "<>", ">&", ">|", "&>>", "&>", "<&", ">", "<")
_PLACEHOLDER: Final = re.compile(r"<([A-Za-z][\w .:/-]{0,60}[\w])>(?=[\s/\"']|$)")
"""What a person is to fill in: `<model-path>`; no shell script reads from a file and writes to another so."""
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:,=+@%^~[]{}!?*")


class Part(Struct, frozen=True):
    """A piece of a word: text, or an expansion (`$X`, `${X:-y}`, `$(date)`) that is not carried out yet."""

    text: str
    is_quoted: bool
    is_expansion: bool = False


class Word(Struct, frozen=True, kw_only=True):
    """One word of a command, or an operator."""

    parts: tuple[Part, ...] = ()
    operator: str = ""
    line: int = 0
    redirects: str = ""
    """The operator of a redirection whose target this word is."""
    document: str | None = None
    """The text of a here-document."""

    @property
    def literal(self) -> str | None:
        """The word where nothing in it is quoted or expanded; for operators and others None."""
        if self.operator or self.redirects or any(part.is_expansion or part.is_quoted for part in self.parts):
            return None
        return "".join(part.text for part in self.parts)


class Lexer:
    """Reads one text once, from the left; what it cannot read as shell it reads as plain words."""

    def __init__(self, text: str, line: int = 1) -> None:
        self.text = text
        self.at = 0
        self.line = line
        self.tokens: list[Word] = []
        self.waiting: list[tuple[str, bool]] = []

    def read(self) -> list[Word]:
        """All words and operators."""
        text = self.text
        while self.at < len(text) and len(self.tokens) < MAX_TOKENS:
            character = text[self.at]
            if character == "\\" and text[self.at + 1 : self.at + 2] in ("\n", "\r"):
                self._forward(3 if text.startswith("\r\n", self.at + 1) else 2)
            elif character == "\\" and text[self.at + 1 : self.at + 2] in (" ", "\t"):
                self.at += 1  # the end of a line that YAML folded into the next
            elif character in " \t\r":
                self.at += 1
            elif character == "#":
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            elif not self._operator():
                self._word()
        return self.tokens

    def _forward(self, count: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count

    def _operator(self) -> bool:
        """Takes an operator or a redirection with its target, where one begins here."""
        text = self.text
        found = next((one for one in _REDIRECTIONS if text.startswith(one, self.at)), None)
        if found == "<" and _PLACEHOLDER.match(text, self.at) is not None:
            return False
        if found is not None and not text.startswith(("<(", ">("), self.at):
            self.at += len(found)
            self._redirection(found)
            return True
        found = next((one for one in _OPERATORS if text.startswith(one, self.at)), None)
        if found is None:
            return False
        self.tokens.append(Word(operator=found, line=self.line))
        self._forward(len(found))
        if found == "\n":
            self._documents()
        return True

    def _redirection(self, operator: str) -> None:
        number = self.tokens[-1].literal if self.tokens else None
        if number and number.isdigit() and self.text[self.at - len(operator) - 1] == number:
            self.tokens.pop()  # 2>&1
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        before = len(self.tokens)
        if self.at < len(self.text) and self.text[self.at] not in "\n;|&()":
            self._word()
        if len(self.tokens) == before:
            return
        target = self.tokens.pop()
        if operator in ("<<", "<<-"):
            self.waiting.append(("".join(part.text for part in target.parts), operator == "<<-"))
            self.tokens.append(Word(redirects=operator, line=target.line, parts=target.parts))
        else:
            self.tokens.append(Word(redirects=operator, line=target.line, parts=target.parts))

    def _documents(self) -> None:
        """The here-documents that were announced on the line before."""
        for end, is_indented in self.waiting:
            lines: list[str] = []
            while self.at < len(self.text):
                cut = self.text.find("\n", self.at)
                row = self.text[self.at : len(self.text) if cut < 0 else cut]
                self._forward(len(row) + (cut >= 0))
                if (row.lstrip("\t") if is_indented else row).rstrip("\r") == end:
                    break
                lines.append(row)
            for place in range(len(self.tokens) - 1, -1, -1):
                one = self.tokens[place]
                if one.redirects in ("<<", "<<-") and one.document is None:
                    self.tokens[place] = Word(
                        redirects=one.redirects, line=one.line, parts=one.parts, document="\n".join(lines)
                    )
                    break
        self.waiting.clear()

    def _word(self) -> None:
        parts: list[Part] = []
        line, text = self.line, self.text
        while self.at < len(text):
            character = text[self.at]
            placeholder = _PLACEHOLDER.match(text, self.at) if character == "<" else None
            if placeholder is not None:
                parts.append(Part(mark(placeholder[1]), True))
                self.at = placeholder.end()
                continue
            if character in " \t\r\n;|&()<>" and not (
                character in "<>" and text.startswith("(", self.at + 1)
            ):
                if character == "(" and parts and parts[-1].text.endswith("="):
                    parts.append(Part(self._balanced("(", ")"), False))  # an array
                    continue
                break
            if character == "\\":
                following = text[self.at + 1 : self.at + 2]
                self._forward(2)
                if following != "\n":
                    parts.append(Part(following, True))
            elif character == "'":
                end = text.find("'", self.at + 1)
                end = len(text) if end < 0 else end
                parts.append(Part(text[self.at + 1 : end], True))
                self._forward(end + 1 - self.at)
            elif character == '"':
                self._double(parts)
            elif character in "$`":
                parts.append(self._expansion(False))
            elif character in "<>":
                self.at += 1
                parts.append(Part(f"<{self._balanced('(', ')')}", True))
            else:
                end = self.at + 1
                while end < len(text) and text[end] in _PLAIN:
                    end += 1
                parts.append(Part(text[self.at : end], False))
                self.at = end
        if parts or self.at >= len(text):
            self.tokens.append(Word(parts=tuple(parts) or (Part("", True),), line=line))
        else:
            self._forward(1)

    def _double(self, parts: list[Part]) -> None:
        """What stands between double quotation marks."""
        self.at += 1
        begin, held = self.at, len(parts)
        text = self.text
        while self.at < len(text) and text[self.at] != '"':
            character = text[self.at]
            if character == "\\" and text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`", "\n"):
                parts.append(Part(text[begin : self.at], True))
                begin = self.at + (2 if text[self.at + 1] == "\n" else 1)
                self._forward(2)
            elif character == "`" or (
                character == "$" and text[self.at + 1 : self.at + 2] not in ("", '"', " ")
            ):
                parts += [Part(text[begin : self.at], True)] if begin < self.at else []
                parts.append(self._expansion(True))
                begin = self.at
            else:
                self._forward(1)
        if begin < self.at or len(parts) == held:
            parts.append(Part(text[begin : self.at], True))
        self.at += 1

    def _expansion(self, is_quoted: bool) -> Part:
        """An expansion, unread: `$X`, `${X...}`, `$(...)`, `$((...))`, or between back quotes."""
        text, begin = self.text, self.at
        if text[begin] == "`":
            end = text.find("`", begin + 1)
            end = len(text) if end < 0 else end
            inner = text[begin + 1 : end]
            self._forward(end + 1 - begin)
            return Part(f"$({inner})", is_quoted, True)
        self.at += 1
        following = text[self.at : self.at + 1]
        if following == "{":
            return Part("$" + self._balanced("{", "}"), is_quoted, True)
        if following == "(":
            return Part("$" + self._balanced("(", ")"), is_quoted, True)
        if following == "'":
            return Part("", True)
        end = self.at
        while end < len(text) and (text[end].isalnum() or text[end] == "_") and text[end].isascii():
            end += 1
            if text[self.at].isdigit():
                break
        if end == self.at and following in ("@", "*", "#", "?", "$", "!", "-"):
            end += 1
        if end == self.at:
            return Part("$", is_quoted)
        self.at = end
        return Part(text[begin:end], is_quoted, True)

    def _balanced(self, opening: str, closing: str) -> str:
        """The text from an opening bracket to its closing one, both included; quotes inside hide brackets."""
        text, begin = self.text, self.at
        depth, quote = 0, ""
        while self.at < len(text):
            character = text[self.at]
            if character == "\\":
                self._forward(1)
            elif quote:
                quote = "" if character == quote else quote
            elif character in "'\"" and not (character == "'" and opening == "{"):
                quote = character
            elif character == "#" and opening == "(" and text[self.at - 1] in " \t\n" and depth:
                end = text.find("\n", self.at)
                self.at = (len(text) if end < 0 else end) - 1
            elif character == opening:
                depth += 1
            elif character == closing:
                depth -= 1
                if depth == 0:
                    self._forward(1)
                    return text[begin : self.at]
            self._forward(1)
        return text[begin : self.at]


def words_of(text: str) -> list[str]:
    """The words of one command whose expansions stay as they are written.

    Example:
        >>> words_of("vllm serve 'a b' --x=$Y # comment")
        ['vllm', 'serve', 'a b', '--x=$Y']
    """
    return ["".join(part.text for part in word.parts) for word in Lexer(text).read() if not word.operator]
