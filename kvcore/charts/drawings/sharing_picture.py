"""The third moving picture: requests share the plan's pool, it fills as their tokens come, and the next one waits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from msgspec import Struct

from kvcore.base.numbers import count, format_bytes, whole_requests
from kvcore.base.words import Words, listed, sentences
from kvcore.charts.drawings.drawing import Drawing, box, words_box
from kvcore.charts.drawings.scenes import Picture, Scene
from kvcore.planning import Plan

MOST_SEATS: Final = 4
"""Requests drawn next to each other; where more fit, one piece stands for several."""
LEAST_SEATS: Final = 3
NAMES: Final = "ABCDE"
HALF: Final = 0.5


class Bar(Struct, frozen=True, kw_only=True):
    """The pool in a scene: requests that run with the share of a full-length request each has, and who waits."""

    running: tuple[tuple[str, float], ...] = ()
    waiting: str = ""
    is_grown: bool = False
    """Whether those that ran before have grown."""


class Seats(Struct, frozen=True, kw_only=True):
    """How a pool is drawn: `room` pieces long, each `requests` requests of full length."""

    room: float
    requests: int

    @property
    def whole(self) -> int:
        """Pieces that fit in full."""
        return int(self.room)

    @property
    def prompt(self) -> float:
        """The share of a piece that is its prompt: so much that one more does not fit into what is left."""
        rest = self.room - self.whole
        return HALF if rest < HALF else (1 + rest) / 2


def seats(concurrency: float) -> Seats:
    """The pool in two to four whole pieces, fewer where it holds fewer requests.

    Example:
        >>> seats(37.17), seats(3.64), seats(0.73)
        (Seats(room=3.09, requests=12), Seats(room=3.64, requests=1), Seats(room=0.73, requests=1))
    """
    fewest = math.floor(concurrency / (MOST_SEATS + 1)) + 1
    # Of the ways to draw it the one that leaves least beside whole pieces.
    ways = range(fewest, max(fewest, math.floor(concurrency / LEAST_SEATS)) + 1)
    requests = min(ways, key=lambda each: concurrency / each % 1)
    return Seats(room=math.floor(100 * concurrency / requests) / 100, requests=requests)


def sharing_picture(plan: Plan, t: Words) -> Picture:
    """The pool fills with requests, one waits, one ends, and the one that waited starts."""
    cache = plan.cache
    remember = t("A request that finds no room waits. Longer requests mean that fewer run at once.")
    if cache is None or not cache.num_blocks or not cache.max_concurrency:
        said = t(
            "In this scenario there is no room for a KV cache: choose another card, or fewer bits, in the sidebar."
        )
        empty = Scene(caption=said, drawing=Drawing(title=said, html="", alternative=said))
        return Picture(scenes=(empty,), remember=remember)
    pool = seats(cache.max_concurrency)
    scenes = _of_one(plan, pool, t) if pool.whole < 1 else _of_several(plan, pool, t)
    return Picture(
        scenes=tuple(Scene(caption=caption, drawing=_drawing(plan, pool, bar, t)) for caption, bar in scenes),
        remember=remember,
    )


def _of_one(plan: Plan, pool: Seats, t: Words) -> Iterator[tuple[str, Bar]]:
    length = count(plan.resolved.max_model_len)
    yield _empty(plan, t), Bar()
    yield (
        t("A comes with its prompt. Each token that it writes takes a little more."),
        Bar(running=(("A", 0.3),)),
    )
    yield (
        t(
            "The pool is full before A has {tokens} tokens. The engine sees this at start and does not run: a shorter "
            "length, or more memory, is needed.",
            tokens=length,
        ),
        Bar(running=(("A", pool.room),), is_grown=True),
    )


def _of_several(plan: Plan, pool: Seats, t: Words) -> Iterator[tuple[str, Bar]]:
    names, late = NAMES[: pool.whole], NAMES[pool.whole]
    prompt = pool.prompt
    yield _empty(plan, t), Bar()
    first = t("A comes: the blocks of its prompt are taken at once.")
    if pool.requests > 1:
        each = t("Each piece stands for {count} requests alike.", count=count(pool.requests))
        first = sentences(t, (first, each))
    yield first, Bar(running=(("A", prompt),))
    grown = tuple((name, prompt) for name in names)
    if len(names) > 1:
        yield t("Others come. Each has blocks of its own."), Bar(running=grown)
    full = tuple((name, 1.0) for name in names)
    half = tuple((name, (1 + prompt) / 2) for name in names)
    yield t("Every token of an answer is kept too, so all of them grow."), Bar(running=half, is_grown=True)
    yield (
        t("Now each has its full {tokens} tokens.", tokens=count(plan.resolved.max_model_len)),
        Bar(running=full, is_grown=True),
    )
    waits = t("{name} comes and finds no room for its prompt: it waits.", name=late)
    if pool.requests > 1:
        waits = t(
            "{name} comes, {count} requests again. Not all of their prompts fit into what is left: they wait.",
            name=late,
            count=count(pool.requests),
        )
    yield waits, Bar(running=full, waiting=late)
    yield (
        t("A is done: its blocks are free again at once."),
        Bar(running=full[1:], waiting=late),
    )
    yield t("{name} starts.", name=late), Bar(running=(*full[1:], (late, prompt)))
    yield _sum(plan, t), Bar(running=(*full[1:], (late, 1.0)), is_grown=True)


def _empty(plan: Plan, t: Words) -> str:
    assert plan.cache is not None
    return t(
        "What weights and the rest leave of each GPU is one pool: {size}, room for {tokens} tokens. All requests "
        "share it.",
        size=format_bytes(plan.available_kv_bytes or 0),
        tokens=count(plan.cache.tokens),
    )


def _sum(plan: Plan, t: Words) -> str:
    assert plan.cache is not None
    length = plan.resolved.max_model_len
    half = max(1, length // 2)
    return t(
        "{count} requests of {tokens} tokens fit at once; of {half} tokens, {more}.",
        count=count(whole_requests(plan.cache.max_concurrency)),
        tokens=count(length),
        half=count(half),
        more=count(whole_requests(plan.cache.concurrency_at(half).value)),
    )


def _drawing(plan: Plan, pool: Seats, bar: Bar, t: Words) -> Drawing:
    taken = sum(share for _, share in bar.running)
    pieces = "".join(_piece(name, share / pool.room, bar, at) for at, (name, share) in enumerate(bar.running))
    rest = f'<i class="kv-free-room" style="--share:{max(0.0, 1 - taken / pool.room):.4f}"></i>'
    line = box("kv-pool-bar", pieces + rest)
    waits = t("waits: {names}", names=bar.waiting) if bar.waiting else t("nobody waits")
    who = f'<b class="kv-request-name kv-of-{bar.waiting}">{escape(bar.waiting)}</b>' if bar.waiting else ""
    queue = box("kv-queue", who + words_box("kv-soft", waits))
    percent = f"{min(1.0, taken / pool.room) * 100:.0f}"
    used = t("{percent} % of the pool is in use", percent=percent)
    return Drawing(
        title=t(
            "The KV cache of this scenario: {tokens} tokens",
            tokens=count(plan.cache.tokens if plan.cache else 0),
        ),
        html=line + words_box("kv-size", used) + queue,
        alternative=listed(t, (used, *_running(bar.running, t), waits)),
    )


def _running(running: Sequence[tuple[str, float]], t: Words) -> Iterator[str]:
    for name, share in running:
        yield t("{name} runs with {percent} % of its length", name=name, percent=f"{share * 100:.0f}")


def _piece(name: str, share: float, bar: Bar, at: int) -> str:
    is_last = at == len(bar.running) - 1
    moves = " kv-grows" if bar.is_grown else " kv-new" if is_last and not bar.waiting else ""
    return f'<i class="kv-piece-of kv-of-{name}{moves}" style="--share:{share:.4f}"><b>{escape(name)}</b></i>'
