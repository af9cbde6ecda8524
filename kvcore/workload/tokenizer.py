"""The model's own tokenizer, to count texts by. For the command line alone: its patterns may take for ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from kvcore.errors import WorkloadError
from kvcore.workload.opening import needed

MAX_TOKENIZER_BYTES: Final = 64 << 20


def read_tokenizer(name: str) -> Callable[[str], int]:
    """Counts tokens by a tokenizer.json: a file, or of a model on the Hub, which is asked for it.

    Raises WorkloadError `tokenizer-unreadable`, `request-log-needs`.
    """
    package = needed("tokenizers", "tokenizer.json")
    try:
        path = Path(name) if Path(name).is_file() else Path(_from_hub(name))
        if path.stat().st_size > MAX_TOKENIZER_BYTES:
            raise WorkloadError(
                "input-too-large", field="tokenizer", limit=f"{MAX_TOKENIZER_BYTES >> 20} MiB"
            )
        found = package.Tokenizer.from_str(path.read_text("utf-8"))
    except WorkloadError:
        raise
    except Exception as error:
        # The package raises plain Exception for whatever is wrong in a file.
        raise WorkloadError("tokenizer-unreadable", reason=str(error)) from None
    return lambda text: len(found.encode(text, add_special_tokens=False).ids)


def _from_hub(model: str) -> str:
    from huggingface_hub import hf_hub_download

    path: str = hf_hub_download(model, "tokenizer.json")
    return path
