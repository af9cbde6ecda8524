"""Tokens of the texts in a record, by the model's own tokenizer or by the stated approximation; images are named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from kvcore.workload.requests import estimated_tokens, tables

Counter = Callable[[str], int]
"""Tokens of a text."""
MAX_DEPTH: Final = 8
_IMAGES: Final = frozenset(("image", "image_url", "input_image", "inline_data", "inlineData", "input_audio"))
_SPOKEN: Final = (
    "content",
    "text",
    "parts",
    "value",
    "message",
    "arguments",
    "function",
    "tool_calls",
    "output",
)
"""Keys under which a message keeps what is said."""


_ANSWERING: Final = ("gpt", "assistant", "chatgpt", "bing", "bard")
"""Who answers in a conversation, by the names of the data sets."""


class TextCount(Struct, frozen=True, kw_only=True):
    """Tokens of a prompt or an answer, and images and audio that are not in them."""

    tokens: int
    not_counted: int


def text_tokens(
    layer: Mapping[str, Any], names: tuple[str, ...], counter: Counter | None
) -> TextCount | None:
    """Tokens of what stands under `names`, with what a chat template adds to each message; None without any text.

    A definition of tools counts as the JSON that it is.

    Example:
        >>> messages = [{"role": "user", "content": [{"type": "text", "text": "aaaaaaa " * 5}, {"type": "image_url"}]}]
        >>> text_tokens({"messages": messages}, ("messages",), None)
        TextCount(tokens=14, not_counted=1)
    """
    count = counter or estimated_tokens
    tokens = images = 0
    found = False
    for name in names:
        value = layer.get(name)
        if name in ("tools", "functions") and value:
            tokens += count(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
            continue
        if isinstance(value, list):
            messages = sum(isinstance(one, dict) and ("role" in one or "content" in one) for one in value)
            tokens += messages * tables().estimate.tokens_per_message
            found |= bool(messages)
        for text in spoken(value):
            found = True
            if text is None:
                images += 1
            else:
                tokens += count(text)
    return TextCount(tokens=tokens, not_counted=images) if found else None


def spoken(value: object, depth: int = 0) -> Iterator[str | None]:
    """The texts in a message, None for each image or audio."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and depth < MAX_DEPTH:
        for one in value:
            yield from spoken(one, depth + 1)
    elif isinstance(value, dict) and depth < MAX_DEPTH:
        kind = value.get("type")
        if (isinstance(kind, str) and kind in _IMAGES) or not _IMAGES.isdisjoint(value):
            yield None
            return
        for key in _SPOKEN:
            if key in value:
                yield from spoken(value[key], depth + 1)


def conversation(record: Mapping[str, Any], counter: Counter | None) -> Iterator[tuple[int, int]]:
    """Prompt and answer of each turn of a whole conversation: ShareGPT's `conversations`, LMSYS' `conversation`.

    Each answer is one request, and its prompt is all that stands before it.

    Example:
        >>> said = [{"from": "human", "value": "aaaaaaa " * 5}, {"from": "gpt", "value": "bbbbbbb " * 10}]
        >>> list(conversation({"conversations": said}, None))
        [(18, 19)]
    """
    count, more = counter or estimated_tokens, tables().estimate.tokens_per_message
    turns = record.get("conversations", record.get("conversation"))
    before = 0
    for turn in turns if isinstance(turns, list) else ():
        if not isinstance(turn, dict):
            continue
        tokens = sum(count(text) for text in spoken(turn) if text)
        speaker = str(turn.get("from", turn.get("role", ""))).lower()
        if before and speaker in _ANSWERING:
            yield before + more, tokens
        before += tokens + more
