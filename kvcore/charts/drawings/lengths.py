"""Lengths: what one request keeps as it grows, kind by kind, and how many such requests fit in the pool."""

from __future__ import annotations

from html import escape
from typing import Final

from msgspec import Struct

from kvcore.base.numbers import concurrency_text, count, format_bytes
from kvcore.base.words import Words, listed, sentences
from kvcore.cache.capacity import CachePlan
from kvcore.cache.spec import CacheKind, blocks_per_request
from kvcore.charts.drawings.drawing import KINDS, Drawing, box, words_box
from kvcore.planning import Plan

SHORTEST: Final = 512
STEP: Final = 4
"""From one length to the next, this many times."""
POWERS: Final = 8


class LengthRow(Struct, frozen=True, kw_only=True):
    """A request of `tokens` tokens: bytes of it on one GPU by kind of layer, and how many fit at once."""

    tokens: int
    bytes_by_kind: dict[CacheKind, int]
    held: float
    is_planned: bool

    @property
    def bytes_in_all(self) -> int:
        """On one GPU."""
        return sum(self.bytes_by_kind.values())


def length_rows(plan: Plan) -> tuple[LengthRow, ...]:
    """From 512 tokens, four times as many each, to the model's own limit, with the length that is planned.

    A group takes ⌈…⌉ blocks by the rule of its kind, and each block of any group takes bytes_per_block of the pool.
    Empty where there is no pool.
    """
    cache = plan.cache
    if cache is None or not cache.groups or not cache.num_blocks or plan.resolved.is_v0:
        return ()
    planned, limit = plan.resolved.max_model_len, plan.resolved.derived_max_model_len
    powers = (SHORTEST * STEP**power for power in range(POWERS))
    lengths = sorted({*(length for length in powers if length < limit), planned, limit})
    return tuple(
        LengthRow(
            tokens=length,
            bytes_by_kind=_bytes_by_kind(cache, length),
            held=cache.concurrency_at(length).value,
            is_planned=length == planned,
        )
        for length in lengths
    )


def lengths_drawing(plan: Plan, t: Words) -> Drawing | None:
    """The rows of `length_rows` as bars of one scale; None where there are none."""
    rows = length_rows(plan)
    if not rows:
        return None
    most = max(row.bytes_in_all for row in rows)
    kinds = tuple(rows[-1].bytes_by_kind)
    drawn = "".join(
        words_box("kv-row-name kv-planned" if row.is_planned else "kv-row-name", _tokens(row, t))
        + box(
            "kv-row-bar",
            "".join(
                box(f"kv-kind kv-kind-{kind}", variables=f"--share:{size / most:.4f}")
                for kind, size in row.bytes_by_kind.items()
            ),
        )
        + words_box("kv-size", format_bytes(row.bytes_in_all))
        + words_box("kv-size", _held(row, t))
        for row in rows
    )
    names = "".join(
        f'<li><span class="kv-swatch kv-kind-{kind}"></span>{escape(t(KINDS[kind]))}</li>' for kind in kinds
    )
    said = (
        t(
            "{tokens} tokens: {size} on each GPU, {held}",
            tokens=count(row.tokens),
            size=format_bytes(row.bytes_in_all),
            held=_held(row, t),
        )
        for row in rows
    )
    return Drawing(
        title=t("One request as it grows, and how many fit at once"),
        html=f'<ul class="kv-legend">{names}</ul>' + box("kv-rows", drawn),
        alternative=sentences(t, (listed(t, said),)),
    )


def _tokens(row: LengthRow, t: Words) -> str:
    tokens = t("{tokens} tokens", tokens=count(row.tokens))
    return t("{tokens} (planned)", tokens=tokens) if row.is_planned else tokens


def _held(row: LengthRow, t: Words) -> str:
    return t("{count} at once", count=concurrency_text(row.held))


def _bytes_by_kind(cache: CachePlan, length: int) -> dict[CacheKind, int]:
    found: dict[CacheKind, int] = {}
    for group in cache.trace.groups:
        blocks = max(blocks_per_request(spec, length, cache.trace.demand) for spec in group.members)
        found[group.kind] = found.get(group.kind, 0) + blocks * cache.bytes_per_block
    return found
