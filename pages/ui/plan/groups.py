"""The cache groups of a model with several kinds of layers (which layers, which page, how many blocks), and the way to
the lengths of real requests."""

from __future__ import annotations

from collections import Counter
from html import escape

import streamlit as st

from kvcore.base.numbers import count, kib_text
from kvcore.base.words import Words, msg
from kvcore.cache.capacity import CacheGroup
from kvcore.cache.spec import CacheKind
from kvcore.charts.curves import LengthMark
from kvcore.charts.drawings.pool import layers_note
from kvcore.charts.summary import state_mode_text
from kvcore.planning import Plan
from kvcore.workload.limits import requests_at
from pages.ui.shared import drawings, shell, state
from pages.ui.workload import source

KIND_NAMES = {
    CacheKind.FULL_ATTENTION: msg("Full attention"),
    CacheKind.SLIDING_WINDOW: msg("Sliding window"),
    CacheKind.CHUNKED_LOCAL_ATTENTION: msg("Chunked local attention"),
    CacheKind.MLA_ATTENTION: msg("Latent attention (MLA)"),
    CacheKind.SLIDING_WINDOW_MLA: msg("Latent attention in a window"),
    CacheKind.MAMBA: msg("Recurrent state"),
    CacheKind.CROSS_ATTENTION: msg("Cross attention"),
}


def drawing(plan: Plan, t: Words) -> str:
    """A strip for each group, as wide as its share of the blocks of a full-length request; "" for one group."""
    cache = plan.cache
    if cache is None or len(cache.groups) < 2:
        return ""
    most = max(group.blocks_per_request for group in cache.groups)
    rows = "".join(_row(group, copies, most, t) for group, copies in Counter(cache.groups).items())
    words = drawings.caption(
        t(
            "Groups take blocks from one pool. The {tokens} tokens that the engine prints are not "
            "the capacity of such a model: a request costs its fixed part, plus {slope} for each "
            "further token.",
            tokens=count(cache.tokens),
            slope=kib_text(cache.bytes_per_token),
        )
    )
    if note := layers_note(plan, t):
        words = drawings.caption(note) + words
    if mode := state_mode_text(plan, t):
        words += drawings.caption(mode)
    return f'{drawings.head(t("Cache groups: layers that store alike"))}<div class="kv-request">{rows}</div>{words}'


def _row(group: CacheGroup, copies: int, most: int, t: Words) -> str:
    name = t(KIND_NAMES[group.kind])
    title = t("{name}: {layers} {layers:layer|layers}", name=name, layers=str(group.layers))
    if copies > 1:
        title = t(
            "{copies} × {name}, {layers} {layers:layer|layers} each",
            copies=str(copies),
            name=name,
            layers=str(group.layers),
        )
    page = t(
        "{blocks} blocks of {size} tokens, {page} each",
        blocks=count(group.blocks_per_request),
        size=count(group.block_size),
        page=kib_text(group.page_size_bytes),
    )
    width = max(1.0, 100 * group.blocks_per_request / most)
    cells = min(group.blocks_per_request, 64)
    strip = (
        f'<span class="kv-blocks" style="width:{width:.2f}%;--cell:{100 / max(cells, 1):.3f}%"></span>'
        f'<span class="kv-rest" style="width:{100 - width:.2f}%"></span>'
    )
    return (
        f'<div class="kv-title">{escape(title)}<span class="kv-soft">{escape(page)}</span></div>'
        f'<div class="kv-strip">{strip}</div>'
    )


PATH = "workload"
TARGETS = "explore"


def chart_marks(plan: Plan) -> tuple[LengthMark, ...]:
    """P50, P95 and P99 of the requests' lengths, and how many of each fit at once; empty without a workload."""
    mix = source.current()
    if mix is None:
        return ()
    lengths = mix.quantiles.needed.values
    held = requests_at(plan, lengths)
    names = ("P50", "P95", "P99")
    return tuple(LengthMark(*mark) for mark in zip(names, lengths, held, strict=True))


def ways(t: Words) -> None:
    """The links to the Workload and the Explore page, with the scenario."""
    page = shell.page_at(PATH)
    st.page_link(
        page,
        label=t("Which context length do your requests need? Read a request log on the Workload page"),
        icon=":material/straighten:",
        query_params=state.params(),
    )
    st.page_link(
        shell.page_at(TARGETS),
        label=t("Which other cards serve as many requests? See all of them on the Explore page"),
        icon=":material/group:",
        query_params=state.params(),
    )
