"""The rows of a sweep as JSON lines for scripts and as a table for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

from kvcore.advice.sweep import SweptModel
from kvcore.advice.sweep_cell import Cell
from kvcore.planning import Verdict
from kvcore.units import rounded

_WORDS: Final = {
    Verdict.WEIGHTS_DO_NOT_FIT: "too big",
    Verdict.NO_KV_MEMORY: "too big",
    Verdict.CONTEXT_TOO_LONG: "too short",
}


def json_lines(swept: SweptModel) -> Iterator[str]:
    """One JSON object for each cell, in the words of docs/contract.md."""
    head = (
        f'{{"model": {json.dumps(swept.model, ensure_ascii=False)}, "max_model_len": {swept.max_model_len}, '
    )
    for cell in swept.cells:
        yield head + json.dumps(_figures(cell))[1:]


def _figures(cell: Cell) -> dict[str, str | int | float | None]:
    figures: dict[str, str | int | float | None] = {
        "accelerator": cell.accelerator,
        "tensor_parallel_size": cell.tensor_parallel_size,
        "status": "ok" if cell.verdict is not None else "error",
    }
    if cell.verdict is None:
        return figures | {"code": cell.refusal}
    return figures | {
        "verdict": cell.verdict.value,
        "max_concurrency": cell.max_concurrency,
        "tokens": cell.tokens,
        "longest_request_tokens": cell.longest_request_tokens,
        "kv_cache_gib": rounded(cell.kv_cache_gib),
        "weights_gib": rounded(cell.weights_gib),
        "gpus": cell.gpus,
        "requests_per_gpu": cell.requests_per_gpu,
    }


def table_lines(swept: SweptModel, sizes: Sequence[int]) -> Iterator[str]:
    """A line for each accelerator: requests at once at each tensor parallel size, or in a word why none."""
    yield f"{swept.model}, {swept.max_model_len:,} tokens"
    width = max((len(cell.accelerator) for cell in swept.cells), default=0)
    yield "  " + "".ljust(width) + "".join(f"TP {size}".rjust(12) for size in sizes)
    for start in range(0, len(swept.cells), len(sizes)):
        row = swept.cells[start : start + len(sizes)]
        yield f"  {row[0].accelerator.ljust(width)}" + "".join(_word(cell).rjust(12) for cell in row)


def _word(cell: Cell) -> str:
    if cell.verdict is None:
        return "refused"
    if not cell.starts:
        return _WORDS[cell.verdict]
    return f"{cell.max_concurrency:,.2f}" + (" tight" if cell.verdict is Verdict.TIGHT else "")
