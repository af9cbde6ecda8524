"""The first moving picture: a token goes through the layers of the plan's model, and what it leaves in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from msgspec import Struct

from kvcore.base.numbers import count, format_bytes
from kvcore.base.words import Words, msg, sentences
from kvcore.charts.drawings.drawing import Drawing, box, words_box
from kvcore.charts.drawings.scenes import Picture, Scene
from kvcore.explain.numbers import any_cache
from kvcore.model.caches import ChunkedLocal, Mla, RecurrentState, SlidingWindow
from kvcore.planning import Plan

PROMPT: Final = msg("The cat sat on the")
"""The prompt of the pictures: words, each drawn as one token."""
NEXT: Final = msg("mat")
"""The token that follows."""
MOST_ROWS: Final = 6
"""Layers that are drawn one by one."""
WINDOW_DRAWN: Final = 3
"""Tokens of a window as it is drawn."""


class LayerRow(Struct, frozen=True, kw_only=True):
    """One layer of the drawing: its number from 1 on, and what it keeps of a token."""

    number: int
    keeps: str
    """`pair`, `window`, `chunk`, `latent`, `state`, or `nothing`."""


def layer_rows(plan: Plan) -> tuple[LayerRow, ...]:
    """The first layers of the model, and of each kind that comes later its first.

    Example:
        >>> from kvcore import plan
        >>> found = layer_rows(plan(model="google/gemma-3-27b-it", accelerator="H100-80GB", max_model_len=8192))
        >>> [(row.number, row.keeps) for row in found][-2:]
        [(5, 'window'), (6, 'pair')]
    """
    kept = [_kept_by(plan, at) for at in range(plan.architecture.num_layers)]
    picked = list(range(min(MOST_ROWS, len(kept))))
    later = [at for at, keeps in enumerate(kept) if keeps not in kept[:at] and at >= MOST_ROWS]
    picked = sorted({*picked[: MOST_ROWS - len(later)], *later})
    return tuple(LayerRow(number=at + 1, keeps=kept[at]) for at in picked)


def _kept_by(plan: Plan, at: int) -> str:
    layers = plan.architecture.layers
    caches = layers[at].caches if at < len(layers) else ()
    if not caches:
        return "nothing"
    first = caches[0]
    if isinstance(first, RecurrentState):
        return "state"
    if isinstance(first, SlidingWindow):
        return "window"
    if isinstance(first, ChunkedLocal):
        return "chunk"
    return "latent" if isinstance(first, Mla) or "latent" in type(first).__name__.lower() else "pair"


KEEPS: Final = {
    "pair": msg("a key and a value of each token"),
    "window": msg("keys and values of the last tokens only"),
    "chunk": msg("keys and values of the current chunk only"),
    "latent": msg("one short vector of each token"),
    "state": msg("one state, which each token changes"),
    "nothing": msg("nothing"),
}
MARKS: Final = {"pair": ("k", "v"), "window": ("k", "v"), "chunk": ("k", "v"), "latent": ("c",)}


class Shown(Struct, frozen=True, kw_only=True):
    """How much of the grid a scene shows."""

    tokens: int
    """Tokens that are written above it."""
    done: int = 0
    """Of them those that every layer has seen."""
    layers: int = 0
    """Layers that the next one after them has been through."""
    is_reading: bool = False
    """Whether the newest token reads what the others left."""
    has_dropped: bool = False
    """Whether windows have dropped what is behind them."""


def layers_picture(plan: Plan, t: Words) -> Picture:
    """A sentence is cut into tokens, and each leaves something in every layer that keeps anything."""
    rows, prompt = layer_rows(plan), t(PROMPT).split()
    tokens = [*prompt, t(NEXT)]
    scenes = [
        (_cut(prompt, t), Shown(tokens=len(prompt))),
        (_first_layer(plan, rows, prompt, t), Shown(tokens=len(prompt), layers=1)),
        (_all_layers(plan, rows, t), Shown(tokens=len(prompt), done=1)),
        (t("The rest of the prompt goes through all layers at once: this is prefill."),
         Shown(tokens=len(prompt), done=len(prompt))),
        (_reads(rows, tokens, t), Shown(tokens=len(tokens), done=len(tokens), is_reading=True)),
    ]  # fmt: skip
    if any(row.keeps == "window" for row in rows):
        scenes.append((_drops(plan, t), Shown(tokens=len(tokens), done=len(tokens), has_dropped=True)))
    scenes.append((_sum(plan, t), Shown(tokens=len(tokens), done=len(tokens), has_dropped=True)))
    return Picture(
        scenes=tuple(
            Scene(caption=caption, drawing=_drawing(plan, rows, tokens, shown, t))
            for caption, shown in scenes
        ),
        remember=t("Every token leaves something in every layer, and it stays as long as its request runs."),
    )


def _cut(prompt: Sequence[str], t: Words) -> str:
    return t(
        "A text is cut into tokens, words or parts of words: here {count}. The model has layers, one above the other.",
        count=count(len(prompt)),
    )


def _first_layer(plan: Plan, rows: Sequence[LayerRow], prompt: Sequence[str], t: Words) -> str:
    hidden, at = count(plan.architecture.hidden_size), plan.architecture
    became = t("“{token}” becomes {hidden} numbers and enters layer 1.", token=prompt[0], hidden=hidden)
    keeps = rows[0].keeps
    if keeps == "state":
        left = t("It changes the layer’s state, a fixed set of numbers.")
    elif keeps == "latent":
        left = t("The layer makes one short vector of it and keeps that.")
    elif keeps == "nothing":
        left = t("This layer keeps nothing of it.")
    else:
        left = t(
            "The layer makes a key and a value of it, for {heads} {heads:head|heads} of {size} numbers each, and keeps "
            "them: by the key later tokens find it, the value is what they read.",
            heads=count(at.num_kv_heads),
            size=count(at.head_dim),
        )
    return sentences(t, (became, left))


def _all_layers(plan: Plan, rows: Sequence[LayerRow], t: Words) -> str:
    said = t("So does every layer, {count} in all.", count=count(plan.architecture.num_layers))
    kinds = dict.fromkeys(row.keeps for row in rows)
    if len(kinds) < 2:
        return said
    return sentences(
        t, (said, t("They are of {count} kinds: the drawing shows the first of each.", count=str(len(kinds))))
    )


def _reads(rows: Sequence[LayerRow], tokens: Sequence[str], t: Words) -> str:
    said = t(
        "The model writes “{token}”, which goes through the layers in the next step. In each it looks at what the "
        "earlier ones left: nothing of them is computed again. Then it leaves its own.",
        token=tokens[-1],
    )
    if all(row.keeps in ("state", "nothing") for row in rows):
        said = t(
            "The model writes “{token}”, which goes through the layers in the next step. Each layer’s state stands "
            "for all that came before, and the new token changes it.",
            token=tokens[-1],
        )
    return said


def _drops(plan: Plan, t: Words) -> str:
    windows = (
        cache.sliding_window
        for layer in plan.architecture.layers
        for cache in layer.caches
        if isinstance(cache, SlidingWindow)
    )
    return t(
        "Layers with a window look back {window} tokens, drawn here as {drawn}: what is further back is dropped.",
        window=count(next(windows)),
        drawn=str(WINDOW_DRAWN),
    )


def _sum(plan: Plan, t: Words) -> str:
    cache = any_cache(plan)
    if cache is None or not cache.groups:
        return t("This model keeps nothing of a token.")
    length = count(plan.resolved.max_model_len)
    whole = t(
        "A request of {tokens} tokens takes {size} of each GPU.",
        tokens=length,
        size=format_bytes(cache.needed_bytes),
    )
    per_token = cache.bytes_per_token
    if not per_token:
        return sentences(t, (t("However long a request is, it keeps the same."), whole))
    each = t(
        "In {layers} layers one token leaves {size} on each GPU.",
        layers=count(plan.architecture.num_layers),
        size=format_bytes(per_token),
    )
    if cache.request_fixed_bytes:
        each = t(
            "Beyond what a request takes however short it is, one token more leaves {size}.",
            size=format_bytes(per_token),
        )
    return sentences(t, (each, whole))


def _drawing(plan: Plan, rows: Sequence[LayerRow], tokens: Sequence[str], shown: Shown, t: Words) -> Drawing:
    head = words_box("kv-row-name", "") + "".join(
        f'<b class="kv-word-token{"" if at < shown.tokens else " kv-away"}">{escape(token)}</b>'
        for at, token in enumerate(tokens)
    )
    body = "".join(_row(at, row, len(tokens), shown, t) for at, row in enumerate(rows))
    more = plan.architecture.num_layers - len(rows)
    if more > 0:
        said = t("… and {count} more {count:layer|layers}", count=count(more))
        body += words_box("kv-row-name kv-soft", said) + '<i class="kv-away"></i>' * len(tokens)
    return Drawing(
        title=t("What each layer keeps"),
        html=box("kv-layers", head + body, variables=f"--tokens:{len(tokens)}") + _legend(rows, t),
        alternative=sentences(t, _said(rows, shown, t)),
    )


def _row(at: int, row: LayerRow, tokens: int, shown: Shown, t: Words) -> str:
    name = words_box("kv-row-name", t("layer {number}", number=str(row.number)))
    if row.keeps == "nothing":
        return name + '<i class="kv-away"></i>' * tokens
    if row.keeps == "state":
        is_on = shown.done > 0 or at < shown.layers
        return name + f'<i class="kv-state{_new(at) if is_on else " kv-empty"}"></i>'
    cells = "".join(_cell(at, row, token, shown) for token in range(tokens))
    return name + cells


def _cell(at: int, row: LayerRow, token: int, shown: Shown) -> str:
    is_on = token < shown.done or (token == shown.done and at < shown.layers)
    marks = MARKS[row.keeps]
    if not is_on:
        return f'<i class="kv-kept">{"".join("<b></b>" for _ in marks)}</i>'
    newest = shown.done - 1 if not shown.layers else shown.done
    is_new = token == newest or (
        0 < token <= newest and shown.done > 1 and not shown.is_reading and newest < shown.tokens
    )
    is_dropped = row.keeps == "window" and shown.has_dropped and token < shown.done - WINDOW_DRAWN
    look = " kv-dropped" if is_dropped else " kv-read" if shown.is_reading and token < newest else ""
    moves = _new(at) if is_new and not shown.has_dropped else ""
    drawn = "".join(f'<b class="kv-{mark}"></b>' for mark in marks)
    return f'<i class="kv-kept kv-on{look}{moves}">{drawn}</i>'


def _new(at: int) -> str:
    """The class of what is new in a scene; the deeper a layer, the later it comes in."""
    return f" kv-new kv-late-{min(at, MOST_ROWS)}"


def _legend(rows: Sequence[LayerRow], t: Words) -> str:
    items: list[str] = []
    kinds = {mark for row in rows for mark in MARKS.get(row.keeps, ())}
    for mark, text in (("k", t("key")), ("v", t("value")), ("c", t("latent vector"))):
        if mark in kinds:
            items.append(f'<li><span class="kv-swatch kv-{mark}"></span>{escape(text)}</li>')
    if any(row.keeps == "state" for row in rows):
        items.append(f'<li><span class="kv-swatch kv-state"></span>{escape(t("state"))}</li>')
    return f'<ul class="kv-legend">{"".join(items)}</ul>' if items else ""


def _said(rows: Sequence[LayerRow], shown: Shown, t: Words) -> Iterator[str]:
    tokens = count(shown.done)
    yield t("{count} {count:token has|tokens have} gone through all layers.", count=tokens)
    for keeps in dict.fromkeys(row.keeps for row in rows):
        numbers = ", ".join(str(row.number) for row in rows if row.keeps == keeps)
        yield t("Layers drawn {numbers}: each keeps {what}.", numbers=numbers, what=t(KEEPS[keeps]))
