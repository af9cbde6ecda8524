"""The model's own tokenizer, to count texts by. Its patterns may take for ever: a stranger's counts in a process of its
own (counted_apart.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from kvcore.errors import WorkloadError
from kvcore.workload.opening import needed

MAX_TOKENIZER_BYTES: Final = 64 << 20
MAX_REASON_CHARACTERS: Final = 200
"""Of what the package says of a file, which may repeat parts of it."""


def read_tokenizer(name: str) -> Callable[[str], int]:
    """Counts tokens by a tokenizer.json: a file, or of a model on the Hub, which is asked for it.

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
    """Counts tokens by the text of a tokenizer.json: all of a text, wherever the file itself would cut or fill it.

    Raises WorkloadError `tokenizer-unreadable`, `request-log-needs`.

    Example:
        >>> counter_of('{"model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}}')("one")
        1
    """
    package = needed("tokenizers", "tokenizer.json")
    try:
        found = package.Tokenizer.from_str(text)
        found.no_truncation()
        found.no_padding()
    except Exception as error:
        # The package raises plain Exception for whatever is wrong in a file.
        raise WorkloadError("tokenizer-unreadable", reason=str(error)[:MAX_REASON_CHARACTERS]) from None
    return lambda text: len(found.encode(text, add_special_tokens=False).ids)


def _from_hub(model: str) -> str:
    from huggingface_hub import hf_hub_download

    path: str = hf_hub_download(model, "tokenizer.json")
    return path
