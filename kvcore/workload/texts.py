"""Tokens of the texts in a record, by the model's own tokenizer or by the stated approximation.

Patterns of a tokenizer may take for ever: a stranger's tokenizer counts in a process of its own (logs.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from kvcore.base.errors import WorkloadError
from kvcore.workload.opening import needed
from kvcore.workload.requests import estimated_tokens, tables

Counter = Callable[[str], int]
"""Counts the tokens of a text."""
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
"""Keys of the text of a message."""


_ANSWERING: Final = ("gpt", "assistant", "chatgpt", "bing", "bard")
"""Names of the answering speaker in public data sets."""


class TextCount(Struct, frozen=True, kw_only=True):
    """Tokens of a prompt or an answer, and its images and audio, which they do not include."""

    tokens: int
    not_counted: int


def text_tokens(
    layer: Mapping[str, Any], names: tuple[str, ...], counter: Counter | None
) -> TextCount | None:
    """Tokens of the texts under `names`, with those that a chat template adds to each message; None without any text.

    Tool definitions count as their JSON.

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
    """The texts of a message; None for each image or audio."""
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

    Each answer is one request; its prompt is all that precedes it.

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


MAX_TOKENIZER_BYTES: Final = 64 << 20
MAX_REASON_CHARACTERS: Final = 200
"""Characters of the package's error message, which may repeat parts of the file."""
PANIC: Final = "PanicException"
"""Raised by a Rust package that panics; it is no Exception, and no module exports it."""


def read_tokenizer(name: str) -> Callable[[str], int]:
    """Counts tokens by a tokenizer.json: a file, or that of a model on the Hub.

    Raises WorkloadError `tokenizer-unreadable`, `request-log-needs`.
    """
    needed("tokenizers", "tokenizer.json")
    try:
        path = Path(name) if Path(name).is_file() else Path(_from_hub(name))
        if path.stat().st_size > MAX_TOKENIZER_BYTES:
            raise WorkloadError(
                "input-too-large", field="tokenizer", limit=f"{MAX_TOKENIZER_BYTES >> 20} MiB"
            )
        text = path.read_text("utf-8")
    except WorkloadError:
        raise
    except Exception as error:
        # The Hub's package raises errors of its own.
        raise WorkloadError("tokenizer-unreadable", reason=str(error)) from None
    return counter_of(text)


def counter_of(text: str) -> Callable[[str], int]:
    """Counts tokens by the text of a tokenizer.json, without its truncation or padding.

    Raises WorkloadError `tokenizer-unreadable`, `request-log-needs`; the counter raises `tokenizer-failed`.

    Example:
        >>> counter_of('{"model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}}')("one")
        1
    """
    package = needed("tokenizers", "tokenizer.json")
    with _coded("tokenizer-unreadable"):
        found = package.Tokenizer.from_str(text)
        found.no_truncation()
        found.no_padding()

    def count(text: str) -> int:
        # The package refuses half a character, as a cut log has it.
        whole = text if text.isascii() else text.encode("utf-8", "replace").decode()
        with _coded("tokenizer-failed"):
            # Without offsets and without a list of tokens: a third less memory.
            return len(found.encode_batch_fast([whole], add_special_tokens=False)[0])

    return count


@contextmanager
def _coded(code: str) -> Iterator[None]:
    """Turns errors of the package into coded ones. Its message is shown for a file alone: for a text it may quote the
    text."""
    try:
        yield
    except MemoryError:
        raise
    except BaseException as error:
        # The package raises plain Exception for a bad file, and for a panic a BaseException.
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        said = {"reason": str(error)[:MAX_REASON_CHARACTERS]} if code == "tokenizer-unreadable" else {}
        raise WorkloadError(code, field="tokenizer", **said) from None


def _from_hub(model: str) -> str:
    from huggingface_hub import hf_hub_download

    path: str = hf_hub_download(model, "tokenizer.json")
    return path
