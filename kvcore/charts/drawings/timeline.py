"""Timeline: which request computes how many tokens in which step, prompts in chunks next to answers token by token."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import pairwise
from typing import Final

from kvcore.base.numbers import count
from kvcore.base.words import Words, listed, msg, sentences
from kvcore.charts.drawings.blocks import STATES
from kvcore.charts.drawings.drawing import Drawing, box, words_box
from kvcore.course.classroom import Cell, Classroom, State

MEANINGS: Final = {
    State.PREFILL: msg("prefill: a chunk of the prompt, limited by compute"),
    State.DECODE: msg("decode: one token, limited by memory bandwidth"),
    State.WAITING: msg("waits for budget or blocks"),
    State.PREEMPTED: msg("preempted: waits, then recomputes what the cache lost"),
}


def timeline_drawing(room: Classroom, step: int, t: Words) -> Drawing:
    """A row for each request, a column for each step; the numbers are tokens computed."""
    now = min(step, len(room.frames) - 1)
    head = "".join(
        f'<b class="kv-step{" kv-present" if frame.step == now else ""}">{frame.step}</b>'
        for frame in room.frames
    )
    rows = words_box("kv-request-name", "") + box("kv-steps", head)
    for name in room.names:
        cells = "".join(_cell(frame.cells[name], is_now=frame.step == now, t=t) for frame in room.frames)
        rows += box(f"kv-request-name kv-of-{name}", escape(name)) + box("kv-steps", cells)
    sums = "".join(f'<b class="kv-step">{frame.tokens or ""}</b>' for frame in room.frames)
    rows += words_box("kv-request-name", "Σ") + box("kv-steps", sums)
    legend = "".join(
        f'<li><span class="kv-swatch kv-state-{state}"></span>{escape(t(text))}</li>'
        for state, text in MEANINGS.items()
    )
    found = tuple(_found_in_cache(room, t))
    steps = f"--steps:{len(room.frames)}"
    return Drawing(
        title=t("Tokens computed in each step, {budget} at most", budget=count(room.chunk)),
        html=box("kv-timeline", rows, variables=steps)
        + words_box("kv-soft", sentences(t, found))
        + f'<ul class="kv-legend kv-wrapping">{legend}</ul>',
        alternative=listed(t, (*(_said(name, room, t) for name in room.names), *found)),
    )


def _found_in_cache(room: Classroom, t: Words) -> Iterator[str]:
    """Where a request computes less than its tokens, because blocks of the cache have the rest."""
    for before, frame in pairwise(room.frames):
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


def _said(name: str, room: Classroom, t: Words) -> str:
    cells = [frame.cells[name] for frame in room.frames]
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
