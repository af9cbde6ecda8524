"""A small load, step by step: the blocks of its pool, the tokens computed in each step, the waste of last blocks."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import pairwise
from typing import Final

from kvcore.base.numbers import count
from kvcore.base.units import ceil_div
from kvcore.base.words import Words, listed, msg, sentences
from kvcore.charts.drawings.drawing import Drawing, box, words_box
from kvcore.course.classroom import BLOCK_TOKENS, POOL_BLOCKS, Cell, Classroom, Frame, State

STATES: Final = {
    State.AWAY: msg("not here"),
    State.WAITING: msg("waits"),
    State.PREFILL: msg("prefill"),
    State.DECODE: msg("decode"),
    State.PREEMPTED: msg("preempted: its blocks are gone"),
}
BLOCK_SIZES: Final = (16, 32, 64, 128)


def pool_drawing(room: Classroom, step: int, t: Words) -> Drawing:
    """The 13 blocks after one step with the requests that own them, and the block table of each request."""
    frame = room.frames[min(step, len(room.frames) - 1)]
    owners = _owners(frame)
    blocks = "".join(_block(number, owners.get(number, {}), t) for number in range(POOL_BLOCKS))
    rows = "".join(_row(name, cell, t) for name, cell in frame.cells.items())
    said = [_said(name, cell, t) for name, cell in frame.cells.items()]
    said.append(
        t(
            "{count} of {all} blocks {count:is|are} free",
            count=count(frame.free_blocks),
            all=count(POOL_BLOCKS),
        )
    )
    return Drawing(
        title=t(
            "Step {number}: the pool, {size} tokens a block", number=str(frame.step), size=str(BLOCK_TOKENS)
        ),
        html=box("kv-pool", blocks) + box("kv-tables", rows) + words_box("kv-soft", said[-1]),
        alternative=listed(t, said),
    )


def last_block_drawing(tokens: int, t: Words) -> Drawing:
    """The part of the last block that a request of `tokens` tokens leaves empty, by block size."""
    rows, said = [], []
    for size in BLOCK_SIZES:
        blocks = ceil_div(tokens, size)
        empty = blocks * size - tokens
        text = t(
            "blocks of {size}: {blocks} {blocks:block|blocks}, {empty} {empty:slot|slots} empty, "
            "{of_block} % of the last block, {of_request} % of the request",
            size=str(size),
            blocks=count(blocks),
            empty=count(empty),
            of_block=f"{100 * empty / size:.3g}",
            of_request=f"{100 * empty / (blocks * size):.2g}",
        )
        said.append(text)
        full = box("kv-full", variables=f"--share:{1 - empty / size:.4f}")
        rows.append(box("kv-last-block", full) + words_box("kv-card-line", text))
    return Drawing(
        title=t("The last block of a request of {tokens} tokens", tokens=count(tokens)),
        html=box("kv-last-blocks", "".join(rows)),
        alternative=listed(t, said),
    )


def _owners(frame: Frame) -> dict[int, dict[str, int]]:
    """By block, the requests that use it, and how many tokens of each are in it."""
    found: dict[int, dict[str, int]] = {}
    for name, cell in frame.cells.items():
        for at, number in enumerate(cell.blocks):
            tokens = min(BLOCK_TOKENS, cell.cached_tokens - at * BLOCK_TOKENS)
            found.setdefault(number, {})[name] = max(0, tokens)
    return found


def _block(number: int, owners: dict[str, int], t: Words) -> str:
    letters = "".join(owners) or t("free")
    filled = max(owners.values(), default=0)
    style = f"kv-of-{next(iter(owners))}" if len(owners) == 1 else "kv-of-several" if owners else ""
    cells = f'<i class="kv-token {style}"></i>' * filled + '<i class="kv-token"></i>' * (
        BLOCK_TOKENS - filled
    )
    head = f'<div class="kv-block-name">{number} <b>{escape(letters)}</b></div>'
    return box("kv-block" if owners else "kv-block kv-free", head + box("kv-tokens", cells))


def _row(name: str, cell: Cell, t: Words) -> str:
    return box(f"kv-request-name kv-of-{name}", escape(name)) + words_box("kv-card-line", _doing(cell, t))


def _doing(cell: Cell, t: Words) -> str:
    state = t(STATES[cell.state])
    if not cell.cached_tokens:
        return state
    table = ", ".join(map(str, cell.blocks))
    parts = [t("{state}, tokens computed: {tokens}", state=state, tokens=count(cell.tokens))]
    if cell.hit_tokens:
        parts.append(t("{tokens} found in the cache", tokens=count(cell.hit_tokens)))
    parts.append(t("{tokens} in blocks {table}", tokens=count(cell.cached_tokens), table=table))
    return " · ".join(parts)


def _said(name: str, cell: Cell, t: Words) -> str:
    return f"{name}: {_doing(cell, t)}"


_LATER: Final = '<i class="kv-step kv-later"></i>'
"""A step that is still to come."""
MEANINGS: Final = {
    State.PREFILL: msg("prefill: a chunk of the prompt, limited by compute"),
    State.DECODE: msg("decode: one token, limited by memory bandwidth"),
    State.WAITING: msg("waits for budget or blocks"),
    State.PREEMPTED: msg("preempted: waits, then recomputes what the cache lost"),
}


def timeline_drawing(room: Classroom, step: int, t: Words) -> Drawing:
    """A row for each request, a column for each step up to this one; the numbers are computed tokens."""
    now = min(step, len(room.frames) - 1)
    head = "".join(
        f'<b class="kv-step{" kv-present" if frame.step == now else ""}">{frame.step}</b>'
        for frame in room.frames
    )
    rows = words_box("kv-request-name", "") + box("kv-steps", head)
    for name in room.names:
        cells = "".join(
            _cell(frame.cells[name], is_now=frame.step == now, t=t) if frame.step <= now else _LATER
            for frame in room.frames
        )
        rows += box(f"kv-request-name kv-of-{name}", escape(name)) + box("kv-steps", cells)
    sums = "".join(
        f'<b class="kv-step">{(frame.tokens if frame.step <= now else 0) or ""}</b>' for frame in room.frames
    )
    rows += words_box("kv-request-name", "Σ") + box("kv-steps", sums)
    legend = "".join(
        f'<li><span class="kv-swatch kv-state-{state}"></span>{escape(t(text))}</li>'
        for state, text in MEANINGS.items()
    )
    found = tuple(_found_in_cache(room, now, t))
    steps = f"--steps:{len(room.frames)}"
    return Drawing(
        title=t("Tokens computed in each step, {budget} at most", budget=count(room.chunk)),
        html=box("kv-timeline", rows, variables=steps)
        + words_box("kv-soft", sentences(t, found))
        + f'<ul class="kv-legend kv-wrapping">{legend}</ul>',
        alternative=listed(t, (*(_said_of_steps(name, room, now, t) for name in room.names), *found)),
    )


def _found_in_cache(room: Classroom, now: int, t: Words) -> Iterator[str]:
    """A sentence for each request that computes fewer tokens because the cache has the rest, up to the step `now`."""
    for before, frame in pairwise(room.frames[: now + 1]):
        for name, cell in frame.cells.items():
            if cell.hit_tokens and cell.tokens:
                text = _FOUND_AGAIN if before.cells[name].state is State.PREEMPTED else _FOUND
                yield t(
                    text,
                    step=str(frame.step),
                    name=name,
                    found=count(cell.hit_tokens),
                    tokens=count(cell.tokens),
                )


_FOUND: Final = msg(
    "Step {step}: the first {found} tokens of {name} are in the cache already, so it computes only {tokens}."
)
_FOUND_AGAIN: Final = msg(
    "Step {step}: {name} is back, and the blocks of its first {found} tokens are still in the cache, so it computes "
    "only {tokens}."
)


def _cell(cell: Cell, *, is_now: bool, t: Words) -> str:
    name = escape(t(STATES[cell.state]))
    if cell.hit_tokens:
        name += f" · {escape(t('{tokens} found in the cache', tokens=count(cell.hit_tokens)))}"
    present = " kv-present" if is_now else ""
    return f'<i class="kv-step kv-state-{cell.state}{present}" title="{name}">{cell.tokens or ""}</i>'


def _said_of_steps(name: str, room: Classroom, now: int, t: Words) -> str:
    cells = [frame.cells[name] for frame in room.frames[: now + 1]]
    steps = {state: sum(cell.state is state for cell in cells) for state in State}
    return t(
        "{name}: {prefill} {prefill:step|steps} of prefill, {decode} of decode, {waiting} waiting, "
        "{preempted} preempted",
        name=name,
        prefill=count(steps[State.PREFILL]),
        decode=count(steps[State.DECODE]),
        waiting=count(steps[State.WAITING]),
        preempted=count(steps[State.PREEMPTED]),
    )
