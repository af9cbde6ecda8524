"""Request logs as JSON lines -> how long prompts and answers are.

A record may carry token counts (`usage`, `prompt_tokens`, `completion_tokens`), or text (`prompt`, `messages`) that
is counted by a stated approximation. Wrappers that gateways add (`request`, `response`, `body`) are looked into.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from kvcore.errors import WorkloadError
from kvcore.workload.histogram import LengthHistogram

MAX_LOG_BYTES: Final = 50 << 20
MAX_LINE_BYTES: Final = 8 << 20
MAX_TOKENS: Final = 1 << 31
SHOWN_BAD_LINES: Final = 5
_WRAPPERS: Final = ("request", "response", "body", "params", "data")
_CJK: Final = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestLog:
    """What a request log says about lengths."""

    prompts: LengthHistogram
    """Prompt tokens of each request."""
    completions: LengthHistogram
    """Completion tokens, where the log has them."""
    max_tokens: LengthHistogram
    """The `max_tokens` that requests asked for, where they did."""
    estimated: int
    """How many prompts were counted from text by the approximation."""
    unusable: int
    unusable_lines: tuple[int, ...]
    """The first few line numbers that could not be used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """The lengths of one record, in tokens."""

    prompt_tokens: int
    completion_tokens: int | None = None
    max_tokens: int | None = None
    estimated: bool = False


def read_request_log(lines: Iterable[bytes]) -> RequestLog:
    """Lengths of all usable records.

    Raises WorkloadError `request-log-too-large`, or `request-log-empty` when no line is a request.

    Example:
        >>> log = read_request_log([b'{"usage": {"prompt_tokens": 900, "completion_tokens": 80}}', b'oops'])
        >>> log.prompts.requests, log.unusable_lines
        (1, (2,))
    """
    prompts: dict[int, int] = {}
    completions: dict[int, int] = {}
    wanted: dict[int, int] = {}
    estimated = unusable = read_bytes = 0
    bad: list[int] = []
    for number, line in enumerate(lines, start=1):
        read_bytes += len(line)
        if read_bytes > MAX_LOG_BYTES:
            raise WorkloadError("request-log-too-large", limit=f"{MAX_LOG_BYTES >> 20} MiB")
        if not line.strip():
            continue
        request = _request(line)
        if request is None:
            unusable += 1
            if len(bad) < SHOWN_BAD_LINES:
                bad.append(number)
            continue
        estimated += request.estimated
        prompts[request.prompt_tokens] = prompts.get(request.prompt_tokens, 0) + 1
        if request.completion_tokens is not None:
            completions[request.completion_tokens] = completions.get(request.completion_tokens, 0) + 1
        if request.max_tokens is not None:
            wanted[request.max_tokens] = wanted.get(request.max_tokens, 0) + 1
    if not prompts:
        raise WorkloadError("request-log-empty", lines=unusable)
    return RequestLog(
        prompts=LengthHistogram.from_counts(prompts),
        completions=LengthHistogram.from_counts(completions),
        max_tokens=LengthHistogram.from_counts(wanted),
        estimated=estimated,
        unusable=unusable,
        unusable_lines=tuple(bad),
    )


def _request(line: bytes) -> Request | None:
    if len(line) > MAX_LINE_BYTES:
        return None
    try:
        record = json.loads(line.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    layers = [record, *(inner for name in _WRAPPERS if isinstance(inner := record.get(name), dict))]
    layers += [body for layer in layers[1:] if isinstance(body := layer.get("body"), dict)]
    usages = [usage for layer in layers if isinstance(usage := layer.get("usage"), dict)]
    prompt = _count([*usages, *layers], ("prompt_tokens", "input_tokens", "prompt_length", "input_length"))
    estimated = False
    if prompt is None:
        prompt = next((count for layer in layers if (count := _prompt_text_tokens(layer)) is not None), None)
        estimated = prompt is not None
    if prompt is None:
        return None
    return Request(
        prompt_tokens=prompt,
        completion_tokens=_count([*usages, *layers], ("completion_tokens", "output_tokens", "output_length")),
        max_tokens=_count(layers, ("max_completion_tokens", "max_tokens")),
        estimated=estimated,
    )


def _count(layers: Iterable[Mapping[str, Any]], names: tuple[str, ...]) -> int | None:
    for layer in layers:
        for name in names:
            value = layer.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS:
                return value
    return None


def _prompt_text_tokens(layer: Mapping[str, Any]) -> int | None:
    prompt = layer.get("prompt")
    if isinstance(prompt, str):
        return estimated_tokens(prompt)
    messages = layer.get("messages")
    if not isinstance(messages, list):
        return None
    total = 0
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        parts = content if isinstance(content, list) else [content]
        for part in parts:
            text = part.get("text") if isinstance(part, dict) else part
            total += estimated_tokens(text) if isinstance(text, str) else 0
        total += _rates().tokens_per_message
    return total


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rates:
    cjk_characters_per_token: float
    other_characters_per_token: float
    tokens_per_message: int


@cache
def _rates() -> _Rates:
    table = tomllib.loads(files("kvcore.workload").joinpath("token_estimate.toml").read_text("utf-8"))
    return _Rates(
        cjk_characters_per_token=table["characters_per_token"]["cjk"],
        other_characters_per_token=table["characters_per_token"]["other"],
        tokens_per_message=table["per_message"]["tokens"],
    )


def estimated_tokens(text: str) -> int:
    """Tokens of `text` by the stated approximation, rounded up. Source: token_estimate.toml.

    Example:
        >>> estimated_tokens("a" * 35), estimated_tokens("显存容量规划")
        (10, 4)
    """
    rates = _rates()
    cjk = len(_CJK.findall(text))
    return -int(
        -(cjk / rates.cjk_characters_per_token + (len(text) - cjk) / rates.other_characters_per_token) // 1
    )
