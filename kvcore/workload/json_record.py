"""A record as JSON: an OpenAI-style request, response or both, with the wrappers that gateways add."""

from __future__ import annotations

import codecs
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from kvcore.workload.lengths import Request, Unusable, UnusableLineError, checked_tokens

PROMPT_NAMES: Final = ("prompt_tokens", "input_tokens", "prompt_length", "input_length")
COMPLETION_NAMES: Final = ("completion_tokens", "output_tokens", "output_length")
MAX_TOKENS_NAMES: Final = ("max_completion_tokens", "max_tokens")
MAX_VALUES: Final = 1 << 20
"""Of one line: what one call of the parser is given is done in some hundredths of a second."""
TEXT_SLICE: Final = 1 << 18
_WRAPPERS: Final = ("request", "response", "body", "params", "data")
_NUMBERS: Final = (int, float)
_CJK: Final = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")


def json_requests(line: bytes) -> tuple[Request, ...]:
    """The requests of one line: one record, a list of records, or the detailed result of vLLM's benchmark.

    Raises UnusableLineError.

    Example:
        >>> json_requests(b'{"usage": {"prompt_tokens": 900, "completion_tokens": 80}}')[0].completion_tokens
        80
    """
    try:
        if line.count(b",") + line.count(b"[") + line.count(b"{") > MAX_VALUES:
            raise UnusableLineError(Unusable.NOT_A_RECORD)
        parsed = json.loads(line.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise UnusableLineError(Unusable.NOT_A_RECORD) from None
    if isinstance(parsed, dict):
        many = _benchmark(parsed)
        return many if many else (_request(parsed),)
    if isinstance(parsed, list) and parsed and all(isinstance(record, dict) for record in parsed):
        return tuple(_request(record) for record in parsed)
    raise UnusableLineError(Unusable.NOT_A_RECORD)


def _benchmark(record: Mapping[str, Any]) -> tuple[Request, ...]:
    """Source: vllm/benchmarks/serve.py (0.33.0), `--save-detailed`."""
    prompts, answers = record.get("input_lens"), record.get("output_lens")
    if not isinstance(prompts, list) or not isinstance(answers, list) or len(prompts) != len(answers):
        return ()
    return tuple(
        Request(prompt_tokens=checked_tokens(prompt, 1), completion_tokens=checked_tokens(answer))
        for prompt, answer in zip(prompts, answers, strict=True)
    )


def _request(record: Mapping[str, Any]) -> Request:
    layers = _layers(record)
    usages = [usage for layer in layers if isinstance(usage := layer.get("usage"), dict)]
    counted = [*usages, *layers]
    prompt = _count(counted, PROMPT_NAMES, least=1)
    estimated = prompt is None
    if prompt is None:
        prompt = next((count for layer in layers if (count := _prompt_text_tokens(layer)) is not None), None)
    if prompt is None:
        raise UnusableLineError(Unusable.NO_LENGTH)
    return Request(
        prompt_tokens=prompt,
        completion_tokens=_count(counted, COMPLETION_NAMES),
        max_tokens=_count(layers, MAX_TOKENS_NAMES),
        estimated=estimated,
    )


def _layers(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A record, what wraps a request or a response in it, and their bodies."""
    layers = [record]
    for name in _WRAPPERS:
        inner = record.get(name)
        if isinstance(inner, dict):
            layers.append(inner)
    if len(layers) > 1:
        layers += [body for layer in layers[1:] if isinstance(body := layer.get("body"), dict)]
    return layers


def _count(layers: Iterable[Mapping[str, Any]], names: tuple[str, ...], least: int = 0) -> int | None:
    for layer in layers:
        for name in names:
            value = layer.get(name)
            if value is not None and isinstance(value, _NUMBERS) and not isinstance(value, bool):
                return checked_tokens(value, least)
    return None


def _prompt_text_tokens(layer: Mapping[str, Any]) -> int | None:
    prompt = layer.get("prompt")
    if isinstance(prompt, str):
        return max(1, estimated_tokens(prompt))
    messages = layer.get("messages")
    if not isinstance(messages, list) or not messages:
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
    cjk = 0
    if not text.isascii():
        slices = (text[at : at + TEXT_SLICE] for at in range(0, len(text), TEXT_SLICE))
        cjk = sum(len(_CJK.findall(part)) for part in slices)
    return -int(
        -(cjk / rates.cjk_characters_per_token + (len(text) - cjk) / rates.other_characters_per_token) // 1
    )
