"""Templates that nobody rendered (Helm, Jinja): simple references filled in from values, the rest left as marks.

Lines keep their numbers. Only references, defaults, `toYaml` and conditions on values are followed; what needs Helm or
Ansible itself stays undefined.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from kvcore.manifests.nodes import Map, at, plain, text_of
from kvcore.manifests.unknowns import mark

MAX_EXPRESSIONS: Final = 20_000

_EXPRESSION: Final = re.compile(r"\{\{-?([^{}]{1,2000})-?\}\}|\{%-?[^%]{0,2000}-?%\}|\{#.{0,2000}?#\}")
_CONTROL: Final = re.compile(
    r"\s*\{\{-?\s*(if\b|else\b|end\b|range\b|with\b|define\b|template\b|block\b|/\*)(.{0,2000}?)-?\}\}\s*",
    re.DOTALL,
)
_VALUES: Final = re.compile(r"\$?\.Values\.([\w.-]{1,200})")
_DEFAULT: Final = re.compile(
    r"\|\s*default\s*(?:\(\s*(.{1,200}?)\s*\)|(\"[^\"]*\"|'[^']*'|[^\s|]{1,200}))|^\s*default\s+(\S{1,200})"
)
_WORD: Final = re.compile(r"[A-Za-z_][\w.]{0,80}")
_UNSAFE: Final = re.compile(r"[^\w.$ -]")


def is_template(text: str) -> bool:
    """Whether a text has expressions that a renderer would fill in."""
    return "{{" in text or "{%" in text


def rendered(text: str, values: Map) -> str:
    """A text with its expressions filled in as far as `values` go.

    Example:
        >>> from kvcore.manifests.nodes import document
        >>> rendered("a: {{ .Values.x }} {{ y | default(2) }}", document("x: 1"))
        'a: 1 2'
    """
    if not is_template(text):
        return text
    lines: list[str] = []
    waiting: list[tuple[str, bool]] = []
    left = MAX_EXPRESSIONS
    for line in text.split("\n"):
        control = _CONTROL.fullmatch(line) if "{{" in line else None
        if control is not None:
            _follow(control[1], control[2], waiting, values)
            lines.append("")
            continue
        if not all(kept for _, kept in waiting):
            lines.append("")
            continue
        left -= line.count("{{")
        lines.append(_EXPRESSION.sub(lambda found: _filled(found, values), line) if left > 0 else line)
    return "\n".join(lines)


def _follow(word: str, rest: str, waiting: list[tuple[str, bool]], values: Map) -> None:
    if word in ("if", "with", "range", "define", "block"):
        waiting.append((word, word != "if" or _is_true(rest, values)))
    elif word == "else" and waiting:
        kind, kept = waiting.pop()
        waiting.append((kind, not kept and (not rest.strip() or _is_true(rest, values))))
    elif word == "end" and waiting:
        waiting.pop()


def _is_true(condition: str, values: Map) -> bool:
    """Whether a condition holds; one that is no plain reference holds."""
    condition = condition.strip().removeprefix("if").strip()
    is_negated = condition.startswith("not ")
    found = _VALUES.fullmatch(condition.removeprefix("not ").strip())
    if found is None:
        return True
    value = at(values, found[1])
    if value is None and not values:
        return not is_negated
    holds = bool(value) and str(value).lower() not in ("false", "null", "0", "~", "")
    return holds is not is_negated


def _filled(found: re.Match[str], values: Map) -> str:
    inner = found[1]
    if inner is None or inner.strip().startswith("/*"):
        return ""
    reference = _VALUES.search(inner)
    value: Any = at(values, reference[1]) if reference is not None else None
    if value is None and reference is None:
        word = _WORD.match(inner.strip())
        value = at(values, word[0]) if word is not None and "(" not in inner.split("|")[0] else None
    if isinstance(value, str) and text_of(value) is not None:
        return str(value)
    if value is not None and not isinstance(value, str):
        return json.dumps(plain(value))
    default = _DEFAULT.search(inner)
    if default is not None:
        given = next(one for one in default.groups() if one is not None)
        if not given.startswith((".", "$")):
            return given.strip("'\"")
    name = f".Values.{reference[1]}" if reference is not None else inner.split("|")[0].strip()
    return mark(_UNSAFE.sub("", name) or "template")
