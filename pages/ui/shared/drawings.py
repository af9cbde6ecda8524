"""Drawings in HTML: the memory bar with its legend, and one request in its pool. All texts are escaped, though they
are numbers or texts of the catalogue.

Everything in them is a number of ours or a text of the catalogue, and is escaped all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape

import streamlit as st
from msgspec.structs import replace

from kvcore.advice.vary import ConcurrencyCurve
from kvcore.base.numbers import DASH, concurrency_text, count, fine_gib_text, gib_text, kib_text, spread_text
from kvcore.base.parts import AFTER_POOL, KV_CACHE, PARTS, UNACCOUNTED, UNUSED, Part
from kvcore.base.units import GIB
from kvcore.base.words import Words
from kvcore.charts.curves import LengthMark, concurrency_chart, curve_caption, curve_said, with_length_marks
from kvcore.charts.figure_html import figure_html
from kvcore.charts.host_bar import HostPart, engines_bar, host_bar, host_parts, host_sentences
from kvcore.charts.memory_bar import difference_name, memory_bar, memory_title, shortage
from kvcore.engine.rank_memory import reaches
from kvcore.explain.numbers import RequestShare, request_share
from kvcore.planning import Plan
from kvcore.texts import LABELS

SMALLEST_HALF_WIDTH = GIB / 50
"""Half-width of the narrowest interval that shows at the printed precision."""
MAX_CELLS = 64
MAX_SLOTS = 400
"""Most request slots drawn: more are thinner than a pixel."""


def memory(plan: Plan, said: str, t: Words) -> None:
    """One GPU of the plan as a bar with its legend; `said` describes it to screen readers."""
    name = f"{memory_title(plan, t)}: {said}"
    st.html(memory_bar(plan, t).html("kv-memory-bar", name) + _legend(plan, t))


def engines(plan: Plan, t: Words) -> None:
    """All engines of the card as a bar; nothing where it is alone."""
    bar = engines_bar(plan, t)
    if bar is None:
        return
    items = "".join(
        f'<li><span class="kv-swatch {piece.look}"></span>{escape(piece.title)}</li>'
        for piece in bar.bars[0].pieces
        if piece.title
    )
    title = t("All engines of the card")
    st.html(head(title) + bar.html("kv-engines-bar", title) + f'<ul class="kv-legend">{items}</ul>')


def host(plan: Plan, t: Words) -> None:
    """The host's memory as a bar with its legend, and what to write down; nothing where nothing asks for any."""
    bar = host_bar(plan, t)
    if bar is None:
        return
    items = "".join(_host_item(part) for part in host_parts(plan, t))
    said = caption(" ".join(host_sentences(plan, t)))
    title = t("Memory of the host")
    legend = f'<ul class="kv-legend">{items}</ul>'
    st.html(head(title) + bar.html("kv-host-bar", title) + legend + said)


def _host_item(part: HostPart) -> str:
    low, high = part.bounds
    spread = (
        ""
        if low == high
        else f' <span class="kv-soft">{escape(gib_text(low))}–{escape(gib_text(high))}</span>'
    )
    return (
        f'<li><span class="kv-swatch kv-{part.look}"></span>{escape(part.label)} '
        f"<b>{escape(gib_text(part.size_bytes))}</b>{spread}</li>"
    )


def explained_memory(plan: Plan, explained: Collection[str], said: str, t: Words) -> None:
    """The bar alone: the parts named in `explained` in colour, the rest grey."""
    name = f"{memory_title(plan, t)}: {said}"
    st.html(memory_bar(plan, t, explained).html("kv-memory-bar", name))


def legend(plan: Plan, t: Words, explained: Collection[str] | None = None) -> None:
    """The parts of the bar in its order, each with its size and, where it is fitted, its interval.

    With `explained` only those of these names.
    """
    st.html(_legend(plan, t, explained))


def _legend(plan: Plan, t: Words, explained: Collection[str] | None = None) -> str:
    memory = plan.memory
    if memory is None:
        return ""
    items = []
    missing = shortage(plan)
    for part in _legend_parts(plan):
        quantity = getattr(memory, part.name)
        owner = UNUSED.name if part is AFTER_POOL else part.name
        if owner == UNUSED.name and memory.unused.value < 0:
            continue
        if explained is not None and owner not in explained:
            continue
        is_none = part is KV_CACHE and not quantity.value
        size, interval = DASH if is_none else gib_text(quantity.value), ""
        if quantity.interval is not None and part is not UNUSED and not is_none:
            below, above = reaches(quantity)
            if below + above >= 2 * SMALLEST_HALF_WIDTH:
                interval = f' <span class="kv-soft">{escape(spread_text(below, above))} GiB</span>'
        items.append(
            f'<li title="{_meaning(part, t)}"><span class="kv-swatch kv-{part.name}"></span>{escape(t(part.label))} '
            f"<b>{escape(size)}</b>{interval}</li>"
        )
    if missing is not None and (explained is None or KV_CACHE.name in explained):
        text = f"{t('Missing')} <b>{escape(gib_text(missing.size * GIB))}</b>"
        items.append(f'<li><span class="kv-swatch kv-missing"></span>{text}</li>')
    return f'<ul class="kv-legend">{"".join(items)}</ul>'


def _meaning(part: Part, t: Words) -> str:
    """What a part is, in one line under the pointer; "" for a difference, which its label explains."""
    said = LABELS["part-help"].get(part.name)
    return escape(t(said)) if said else ""


def _legend_parts(plan: Plan) -> tuple[Part, ...]:
    """The parts of the legend: with the difference of a given KV memory before the KV cache, and what is taken after
    it."""
    name, later = difference_name(plan), (AFTER_POOL,) if plan.cache is not None else ()
    difference = (replace(UNACCOUNTED, label=name),) if name else ()
    return (*PARTS[:-2], *difference, KV_CACHE, *later, UNUSED)


def swatches(parts: Iterable[Part], t: Words, *, has_missing: bool = False) -> None:
    """The colours of a chart without sizes; Missing comes last where the chart can show it."""
    named = [(part.name, t(part.label)) for part in parts] + [("missing", t("Missing"))] * has_missing
    items = "".join(
        f'<li><span class="kv-swatch kv-{name}"></span>{escape(label)}</li>' for name, label in named
    )
    st.html(f'<ul class="kv-legend">{items}</ul>')


def concurrency(
    plan: Plan, curves: Sequence[ConcurrencyCurve], marks: Sequence[LengthMark], t: Words
) -> None:
    """How many requests of each length fit at once, with what its zones mean."""
    figure = with_length_marks(concurrency_chart(plan, curves, t), marks)
    said = t("Requests that fit at once, by context length and tensor parallel size")
    st.html(
        head(t("Requests at once by context length"))
        + figure_html(figure, said, curve_said(curves, t))
        + caption(curve_caption(curves, plan.resolved.engine, t))
    )


def head(text: str) -> str:
    """The heading of a part of the page."""
    return f'<h3 class="kv-head">{escape(text)}</h3>'


def caption(text: str) -> str:
    """Words below a drawing, in small print."""
    return f'<p class="kv-caption">{escape(text)}</p>'


def request(plan: Plan, t: Words) -> str:
    """One full-length request and how often it fits in the pool, as HTML."""
    share = request_share(plan)
    if share is None:
        return caption(t("This model keeps nothing of a request."))
    return (
        f'<div class="kv-request">{_request_bar(share, t)}{_pool_bar(share, t)}{_facts(plan, share, t)}</div>'
    )


def _request_bar(share: RequestShare, t: Words) -> str:
    growing = max(share.needed_bytes - share.fixed_bytes, 0)
    fixed = 100 * share.fixed_bytes / share.needed_bytes if share.needed_bytes else 0
    cells = min(share.blocks, MAX_CELLS)
    title = t(
        "{tokens} tokens take {size} of each GPU",
        tokens=count(share.tokens),
        size=fine_gib_text(share.needed_bytes),
    )
    a_cell = -(-share.blocks // cells) if cells else 1
    cell = (
        t("one square: {count} blocks of the KV cache", count=str(a_cell))
        if a_cell > 1
        else t("one square: one block of the KV cache")
    )
    parts = ""
    if share.fixed_bytes:
        parts += f'<span class="kv-fixed" style="width:{fixed:.2f}%"></span>'
    if growing:
        parts += f'<span class="kv-blocks" style="width:{100 - fixed:.2f}%;--cell:{100 / max(cells, 1):.3f}%"></span>'
    return (
        f'<div class="kv-title">{escape(title)}<span class="kv-soft">{escape(cell)}</span></div>'
        f'<div class="kv-strip">{parts}</div>'
    )


def _pool_bar(share: RequestShare, t: Words) -> str:
    fitting = share.concurrency
    if not fitting:
        title = t("There is no memory for a KV cache")
        empty = '<span class="kv-rest" style="width:100%"></span>'
        return f'<div class="kv-title">{escape(title)}</div><div class="kv-strip">{empty}</div>'
    title = t(
        "{count} of them {count:fits|fit} in the KV cache of {size}",
        size=gib_text(share.pool_bytes),
        count=concurrency_text(fitting),
    )
    whole = int(fitting)
    used = 100 * whole / fitting if fitting >= 1 else 100 * fitting
    slots = min(max(whole, 1), MAX_SLOTS)
    rest = "kv-rest" if fitting >= 1 else "kv-missing"
    body = (
        f'<span class="kv-slots" style="width:{used:.2f}%;--cell:{100 / slots:.3f}%"></span>'
        f'<span class="{rest}" style="width:{100 - used:.2f}%"></span>'
    )
    return f'<div class="kv-title">{escape(title)}</div><div class="kv-strip">{body}</div>'


def _facts(plan: Plan, share: RequestShare, t: Words) -> str:
    architecture, tensor_ranks = plan.architecture, plan.scenario.parallel.tensor_parallel_size
    facts = [
        (t("Each further token"), t("{size} per GPU", size=kib_text(share.per_token_bytes))),
        (t("Fixed part"), fine_gib_text(share.fixed_bytes) if share.fixed_bytes else t("none")),
        (t("Blocks"), _blocks(share, t)),
    ]
    if share.last_block_tokens < share.block_size:
        facts.append((t("In the last block"), t("{tokens} tokens", tokens=count(share.last_block_tokens))))
    if share.ranks > 1:
        facts.append(
            (
                t("On all {count} GPUs", count=str(share.ranks)),
                fine_gib_text(share.needed_bytes_in_all),
            )
        )
    if not architecture.is_mla and 0 < architecture.num_kv_heads < architecture.num_attention_heads:
        facts.append(
            (
                t("Heads that keep K and V"),
                t(
                    "{kept} of {heads}",
                    kept=str(architecture.num_kv_heads),
                    heads=str(architecture.num_attention_heads),
                ),
            )
        )
        copies = tensor_ranks // architecture.num_kv_heads
        if copies > 1:
            facts.append((t("Copies of each KV head"), t("{count}, one per GPU", count=str(copies))))
    if architecture.is_mla and tensor_ranks > 1 and plan.scenario.parallel.decode_context_parallel_size == 1:
        facts.append((t("Copies of the latent cache"), t("{count}, one per GPU", count=str(tensor_ranks))))
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    return f"<dl>{rows}</dl>"


def _blocks(share: RequestShare, t: Words) -> str:
    if not share.block_size:
        return count(share.blocks)
    return t("{blocks} × {size} tokens", blocks=count(share.blocks), size=count(share.block_size))
