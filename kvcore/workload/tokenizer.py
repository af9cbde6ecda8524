"""The model's own tokenizer, to count texts by. Its patterns may take for ever: a stranger's counts in a process of its
own (counted_apart.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kvcore.base.errors import WorkloadError
from kvcore.workload.opening import needed

MAX_TOKENIZER_BYTES: Final = 64 << 20
MAX_REASON_CHARACTERS: Final = 200
"""Of what the package says of a file, which may repeat parts of it."""
PANIC: Final = "PanicException"
"""What a package in Rust raises where it does not go on; it is no Exception, and nothing exports it."""


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

    Raises WorkloadError `tokenizer-unreadable`, `request-log-needs`; the counter `tokenizer-failed`, where this
    tokenizer has no answer to a text.

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
        # Half a character, as a cut log has it, is the log's fault: the package takes no text with one.
        whole = text if text.isascii() else text.encode("utf-8", "replace").decode()
        with _coded("tokenizer-failed"):
            # Without the places of tokens in the text, and without a list of them: a third less memory.
            return len(found.encode_batch_fast([whole], add_special_tokens=False)[0])

    return count


@contextmanager
def _coded(code: str) -> Iterator[None]:
    """What the package fails on, as a coded error. With the package's words of the file alone: those of a text that is
    counted may have parts of it."""
    try:
        yield
    except MemoryError:
        raise
    except BaseException as error:
        # The package raises plain Exception for whatever is wrong in a file, and for a panic what is none.
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        said = {"reason": str(error)[:MAX_REASON_CHARACTERS]} if code == "tokenizer-unreadable" else {}
        raise WorkloadError(code, field="tokenizer", **said) from None


def _from_hub(model: str) -> str:
    from huggingface_hub import hf_hub_download

    path: str = hf_hub_download(model, "tokenizer.json")
    return path
