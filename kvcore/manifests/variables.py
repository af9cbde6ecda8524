"""Variables by the rules of their own world: Compose, Kubernetes, make, systemd. What is not defined stays a mark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kvcore.manifests.unknowns import mark

MAX_DEPTH: Final = 8
MAX_TEXT: Final = 1 << 16

_COMPOSE: Final = re.compile(r"\$(?:(\$)|\{([A-Za-z_]\w{0,80})(?:(:?[-+?])|\})|([A-Za-z_]\w{0,80}))")
_KUBERNETES: Final = re.compile(r"\$(?:(\$)|\(([A-Za-z_.-][\w.-]{0,80})\))")
_MAKE: Final = re.compile(r"\$(?:(\$)|[({]([A-Za-z_][\w.-]{0,80})[)}])")
_PLAIN: Final = re.compile(r"\$(?:\{([A-Za-z_]\w{0,80})\}|([A-Za-z_]\w{0,80}))")


def of_compose(text: str, values: Mapping[str, str], depth: int = 0) -> str:
    """A value of a Compose file: `${A:-b}` is b where A is unset or empty, `${A-b}` where it is unset, `${A:+c}` c
    where it is set; `$$` is a dollar sign.

    Source: Compose's specification, "Interpolation".

    Example:
        >>> of_compose("${A:-${B:-4}} ${C:+x}$$Z", {"B": "8"})
        '8 $Z'
    """
    if "$" not in text or depth > MAX_DEPTH:
        return text
    done: list[str] = []
    at = 0
    while at < len(text):
        found = _COMPOSE.search(text, at)
        if found is None:
            break
        done.append(text[at : found.start()])
        at = found.end()
        if found[1]:
            done.append("$")
            continue
        name, how = found[2] or found[4], found[3]
        value = values.get(name)
        if how is None:
            done.append(mark(name) if value is None else value)
            continue
        end = _closing(text, at)
        word = of_compose(text[at:end], values, depth + 1)
        at = end + 1
        done.append(_chosen(name, value, how, word))
    return "".join((*done, text[at:]))[:MAX_TEXT]


def _chosen(name: str, value: str | None, how: str, word: str) -> str:
    is_unset = value is None or (how.startswith(":") and not value)
    if how.endswith("+"):
        return "" if is_unset else word
    if not is_unset and value is not None:
        return value
    return word if how.endswith("-") else mark(name)


def _closing(text: str, at: int) -> int:
    """The place of the bracket that closes the one before `at`."""
    depth = 1
    for place in range(at, len(text)):
        if text[place] == "{" and text[place - 1] == "$":
            depth += 1
        elif text[place] == "}":
            depth -= 1
            if depth == 0:
                return place
    return len(text)


def of_kubernetes(text: str, values: Mapping[str, str], *, keeps: bool = False) -> str:
    """A value of a container: `$(A)` of its own environment, `$$` a dollar sign.

    With `keeps` an unknown one stays as it stands, as the kubelet leaves it to a shell.

    Example:
        >>> of_kubernetes("--model=$(M) $$(M)", {"M": "a/b"})
        '--model=a/b $(M)'
    """

    def value(found: re.Match[str]) -> str:
        if found[1]:
            return "$"
        known = values.get(found[2])
        return known if known is not None else found[0] if keeps else mark(found[2])

    return _KUBERNETES.sub(value, text)[:MAX_TEXT] if "$" in text else text


def of_make(text: str, values: Mapping[str, str], depth: int = 0) -> str:
    """A value of a makefile: `$(A)` and `${A}`, expanded when it is used; `$$` is a dollar sign.

    Example:
        >>> of_make("$(BIN) serve", {"BIN": "$(ENV)/vllm", "ENV": "/opt"})
        '/opt/vllm serve'
    """
    if "$" not in text or depth > MAX_DEPTH:
        return text

    def value(found: re.Match[str]) -> str:
        if found[1]:
            return "$"
        known = values.get(found[2])
        return mark(found[2]) if known is None else of_make(known, values, depth + 1)

    return _MAKE.sub(value, text)[:MAX_TEXT]


def of_units(text: str, values: Mapping[str, str]) -> str:
    """A value of a systemd unit: `${A}` and `$A`.

    Example:
        >>> of_units("${IMAGE} --x", {"IMAGE": "a:1"})
        'a:1 --x'
    """

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return values.get(name, mark(name))

    return _PLAIN.sub(value, text)[:MAX_TEXT] if "$" in text else text


_LINE: Final = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w{0,80})\s*=(.{0,8000})")


def env_file(text: str) -> dict[str, str]:
    """The variables of a `.env` file.

    Example:
        >>> env_file("# c\\nA=1 # one\\nexport B='x y'")
        {'A': '1', 'B': 'x y'}
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        row = _LINE.fullmatch(line)
        if row is None:
            continue
        value = row[2].strip()
        if value[:1] in ("'", '"') and value.find(value[0], 1) > 0:
            value = value[1 : value.find(value[0], 1)]
        else:
            value = value.partition(" #")[0].rstrip()
        found[row[1]] = value
    return found
