"""Packed request logs for the fuzzer: their content is changed and packed again, so that readers get to it.

A changed byte of a packed file ends at its check sum; what comes after it is reached only by a good file with other
content.
"""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow
import zstandard
from pyarrow import parquet

from tools.fuzz.mutation import mutated_json, mutated_text, vocabulary_of

MAX_UNPACKED: Final = 1 << 16
BROKEN: Final = 0.25
"""Share of the inputs whose packed bytes are changed, in place of their content."""


class Packing(NamedTuple):
    """A format: text or JSON rows to a file, and back."""

    pack: Callable[[bytes], bytes]
    unpack: Callable[[bytes], bytes]
    is_rows: bool = False


def _rows_packed(data: bytes) -> bytes:
    rows = json.loads(data)
    made = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows["rows"]), made)
    return made.getvalue()


def _rows_unpacked(data: bytes) -> bytes:
    rows = parquet.ParquetFile(io.BytesIO(data)).read(use_threads=False).slice(0, 64).to_pylist()
    return json.dumps({"rows": rows}, default=str).encode()


PACKINGS: Final[Mapping[str, Packing]] = {
    "gzip": Packing(
        lambda data: gzip.compress(data, 1, mtime=0),
        lambda data: gzip.GzipFile(fileobj=io.BytesIO(data)).read(MAX_UNPACKED),
    ),
    "zstd": Packing(
        lambda data: zstandard.ZstdCompressor(level=1).compress(data),
        lambda data: zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read(MAX_UNPACKED),
    ),
    "parquet": Packing(_rows_packed, _rows_unpacked, is_rows=True),
}


def packed_seeds(kind: str, texts: Sequence[bytes]) -> list[bytes]:
    """The texts as files of that format."""
    packing = PACKINGS[kind]
    if not packing.is_rows:
        return [packing.pack(text) for text in texts]
    rows: tuple[list[dict[str, Any]], ...] = (
        [{"prompt_tokens": 900, "completion_tokens": 80}, {"prompt_tokens": None, "completion_tokens": 3}],
        [
            {"usageDetails": {"input": 900, "output": 80}, "level": "ERROR"},
            {"usageDetails": None, "level": ""},
        ],
        [
            {
                "promptTokens": "900",
                "messages": [{"role": "user", "content": "one"}],
                "startTime": "2026-01-01",
            }
        ],
        [{"input": 1.5, "output": -1}, {"input": 1e300, "output": 7}],
    )
    return [packing.pack(json.dumps({"rows": one}).encode()) for one in rows]


def mutated_packed(kind: str, data: bytes, chance: random.Random, given: Sequence[bytes]) -> bytes:
    """A packed file with other content, or with other bytes."""
    packing = PACKINGS[kind]
    if chance.random() > BROKEN:
        try:
            text = packing.unpack(data)
            if packing.is_rows:
                changed = mutated_json(text, chance, vocabulary_of([json.loads(text)]))
            else:
                changed = mutated_text(text, chance, [packing.unpack(one) for one in given[:8]])
            return packing.pack(changed)
        except Exception:  # what cannot be packed is changed as it is
            pass
    return mutated_text(data, chance, given)
