"""The pool: how the groups of a model share its blocks, what one request takes, and how that grows with length."""

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

MOST_CELLS: Final = 60
"""Most cells drawn for a request; in a longer one a cell stands for several blocks."""


class GroupRow(Struct, frozen=True, kw_only=True):
    """Layers that share block numbers: their pages in a block, and the blocks of one request."""

    kind: CacheKind
    layers: int
    pages: tuple[tuple[int, int], ...]
    """Pairs of a number of pages in a block and their size in bytes."""
    rest_bytes: int
    """Bytes that this group leaves empty in a block whose width a wider group sets."""
    block_size: int
    blocks: int


def group_rows(plan: Plan) -> tuple[GroupRow, ...]:
    """The groups of the stage that decides; empty without a pool.

    A block is as wide as the widest group: rest_bytes = bytes_per_block − Σ pages × page size.

    Source: vllm/v1/core/kv_cache_utils.py:get_kv_cache_config_from_groups (0.11.0 to 0.33.0).
    """
    cache = plan.cache
    if cache is None or not cache.groups or plan.resolved.is_v0:
        return ()
    return tuple(
        GroupRow(
            kind=group.kind,
            layers=group.layers,
            pages=group.pages,
            rest_bytes=max(0, cache.bytes_per_block - sum(number * size for number, size in group.pages)),
            block_size=group.block_size,
            blocks=taken.blocks_per_request,
        )
        for group, taken in zip(cache.trace.groups, cache.groups, strict=True)
    )


def layers_note(plan: Plan, t: Words) -> str:
    """Why the groups have more layers than the model; "" where each layer keeps one kind of state."""
    if all(len(layer.caches) < 2 for layer in plan.architecture.layers):
        return ""
    return t(
        "Some of the model's {layers} layers keep several kinds of state: such a layer counts once for each.",
        layers=count(plan.architecture.num_layers),
    )


def pages_drawing(plan: Plan, t: Words) -> Drawing | None:
    """Each group with its layers in a block, then the blocks of one request; None without a pool."""
    rows = group_rows(plan)
    if not rows or plan.cache is None:
        return None
    in_all = sum(row.blocks for row in rows)
    a_cell = -(-in_all // MOST_CELLS)
    drawn = "".join(_group(number, row, t) for number, row in enumerate(rows, 1))
    cells = "".join(
        f'<i class="kv-cell kv-kind-{row.kind}"></i>' * max(1, round(row.blocks / a_cell)) for row in rows
    )
    size = format_bytes(plan.cache.bytes_per_block)
    legend = (
        t("one square: {count} blocks of the KV cache", count=count(a_cell))
        if a_cell > 1
        else t("one square: one block of the KV cache")
    )
    taken = t(
        "Blocks of one request of {tokens} tokens: {count}",
        tokens=count(plan.resolved.max_model_len),
        count=count(in_all),
    )
    note = layers_note(plan, t)
    said = [*(_said(row, t) for row in rows), *([note] if note else [])]
    return Drawing(
        title=t("How the layers lie in the pool: one block is {size} on each GPU", size=size),
        html=box("kv-groups", drawn)
        + (words_box("kv-soft", note) if note else "")
        + words_box("kv-row-name", taken)
        + box("kv-cells", cells)
        + words_box("kv-soft", legend),
        alternative=listed(t, said),
    )


def _group(number: int, row: GroupRow, t: Words) -> str:
    slots = "".join(
        f'<i class="kv-slot kv-kind-{row.kind}" style="flex-grow:{size}"></i>' * pages
        for pages, size in row.pages
    )
    if row.rest_bytes:
        slots += f'<i class="kv-slot kv-rest" style="flex-grow:{row.rest_bytes}"></i>'
    name = t("group {number}: {kind}", number=str(number), kind=t(KINDS[row.kind]))
    return words_box("kv-row-name", name) + box("kv-slots-row", slots) + words_box("kv-size", _said(row, t))


def _said(row: GroupRow, t: Words) -> str:
    return t(
        "{layers} {layers:layer|layers}, {size} tokens a block, {blocks} {blocks:block|blocks} of a request",
        layers=count(row.layers),
        size=count(row.block_size),
        blocks=count(row.blocks),
    )


SHORTEST: Final = 512
STEP: Final = 4
"""Ratio of one length to the next."""
POWERS: Final = 8


class LengthRow(Struct, frozen=True, kw_only=True):
    """A request of `tokens` tokens: bytes of it on one GPU by kind of layer, and how many fit at once."""

    tokens: int
    bytes_by_kind: dict[CacheKind, int]
    held: float
    is_planned: bool

    @property
    def bytes_in_all(self) -> int:
        """Bytes of the request on one GPU."""
        return sum(self.bytes_by_kind.values())


def length_rows(plan: Plan) -> tuple[LengthRow, ...]:
    """Rows from 512 tokens, each four times as long, up to the model's limit, and the planned length.

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
    """The rows of `length_rows` as bars on one scale; None where there are none."""
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
