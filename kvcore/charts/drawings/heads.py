"""Heads: what MHA, GQA, MQA and MLA keep of one token in one layer, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from kvcore.base.numbers import count, format_bytes
from kvcore.base.units import KIB
from kvcore.base.words import Words, listed, msg
from kvcore.cache.kv_formats import kv_format
from kvcore.charts.drawings.drawing import Drawing, box, words_box
from kvcore.model.architecture import Architecture, Linear
from kvcore.model.caches import CompressedLatent, FullAttention, Mla, SlidingWindow
from kvcore.planning import Plan

MHA, GQA, MQA, MLA = "MHA", "GQA", "MQA", "MLA"
MEANINGS: Final = {
    MHA: msg("multi-head attention: a key and a value for each query head"),
    GQA: msg("grouped-query attention: query heads in groups share a key and a value"),
    MQA: msg("multi-query attention: all query heads share one key and one value"),
    MLA: msg(
        "multi-head latent attention: one latent vector, from which keys and values of all heads are made again"
    ),
}
USUAL_KV_HEADS: Final = 8
"""KV heads of the GQA panel where the model has none of its own: those of Llama 3 and Qwen3."""
USUAL_LATENT: Final = Mla(kv_lora_rank=512, qk_rope_head_dim=64)
"""Latent sizes of the MLA panel where the model has none: DeepSeek-V3's (its config.json: kv_lora_rank,
qk_rope_head_dim)."""
MOST_DRAWN: Final = 256
"""Most query heads drawn one by one: a config from outside may name any number."""
IN_A_ROW: Final = 16
"""Query heads of a row: rows of all panels compare."""
LATENT_COLUMNS: Final = 2
"""Columns of a latent vector: in DeepSeek-V3 its 576 numbers are about as many as the 2 × 256 of two heads."""
_BITS: Final = 8


class HeadsPanel(Struct, frozen=True, kw_only=True):
    """One way to keep the context; `kept` counts KV heads, 0 for a latent vector; bytes of one token in one layer."""

    name: str
    query_heads: int
    kept: int
    bytes_per_token: float
    is_of_model: bool


def heads_panels(plan: Plan) -> tuple[HeadsPanel, ...]:
    """The four ways with this model's heads and cache dtype; empty for a model without attention heads.

    Bytes are of the whole layer on one rank without tensor parallelism: (key + value) × heads × elements × bytes.
    A model whose layers keep latent vectors would keep keys and values of the sizes that they are expanded to.

    Source: arXiv 1911.02150 (MQA), 2305.13245 (GQA), 2405.04434 (MLA).
    """
    heads = plan.architecture.num_attention_heads
    if not heads:
        return ()
    latent = _latent(plan.architecture)
    element = kv_format(plan.resolved.kv_cache_dtype).key_bits / _BITS
    pair = _pair_elements(plan.architecture, latent) * element
    own = (
        0
        if latent is not None
        else -1
        if _is_compressed(plan.architecture)
        else plan.architecture.num_kv_heads
    )
    shared = own if 1 < own < heads else _usual_groups(heads)
    vector = latent or USUAL_LATENT
    ways = [(MHA, heads, heads * pair)]
    ways += [(GQA, shared, shared * pair)] if shared else []
    ways += [(MQA, 1, pair)] if heads > 1 else []
    ways.append((MLA, 0, (vector.kv_lora_rank + vector.qk_rope_head_dim) * element))
    return tuple(
        HeadsPanel(name=name, query_heads=heads, kept=kept, bytes_per_token=size, is_of_model=kept == own)
        for name, kept, size in ways
    )


def heads_drawing(plan: Plan, t: Words) -> Drawing | None:
    """The panels of `heads_panels`; None where there are none."""
    panels = heads_panels(plan)
    if not panels:
        return None
    most = max(panel.bytes_per_token for panel in panels)
    return Drawing(
        title=t("What one token leaves behind in one layer, all heads together"),
        html=box("kv-panels", "".join(_panel(panel, most, t) for panel in panels)) + _width(plan, t),
        alternative=listed(t, _said(panels, t)),
    )


def _latent(architecture: Architecture) -> Mla | None:
    states = (state for layer in dict.fromkeys(architecture.layers) for state in layer.caches)
    return next((state for state in states if isinstance(state, Mla)), None)


def _is_compressed(architecture: Architecture) -> bool:
    """Whether one stored vector stands for several tokens, as in none of the four ways."""
    states = (state for layer in dict.fromkeys(architecture.layers) for state in layer.caches)
    return any(isinstance(state, CompressedLatent) for state in states)


def _pair_elements(architecture: Architecture, latent: Mla | None) -> int:
    """The elements of one head's key and value."""
    layers = tuple(dict.fromkeys(architecture.layers))
    if latent is not None:
        modules = (module for layer in layers for module in layer.modules if isinstance(module, Linear))
        expanded = (module.outputs[0].width for module in modules if module.name.endswith("kv_b_proj"))
        return next(expanded, 2 * architecture.head_dim) + latent.qk_rope_head_dim
    for layer in layers:
        for state in layer.caches:
            if isinstance(state, FullAttention | SlidingWindow):
                return state.head_size + state.head_size_v
    return 2 * architecture.head_dim


def _usual_groups(heads: int) -> int:
    """KV heads of the GQA panel where the model has none; 0 where eight do not divide the heads."""
    return USUAL_KV_HEADS if heads > USUAL_KV_HEADS and heads % USUAL_KV_HEADS == 0 else 0


def _width(plan: Plan, t: Words) -> str:
    """A note that the head size is a free choice, where it is not the hidden size over the heads."""
    at, is_latent = plan.architecture, _latent(plan.architecture) is not None
    quotient = at.hidden_size / at.num_attention_heads
    if is_latent or quotient == at.head_dim:
        return ""
    return words_box(
        "kv-soft",
        t(
            "A head has {head} elements here, and not hidden size / heads = {hidden} / {heads} = {quotient}: "
            "head_dim is a field of its own in config.json.",
            head=count(at.head_dim),
            hidden=count(at.hidden_size),
            heads=count(at.num_attention_heads),
            quotient=f"{quotient:,.4g}",
        ),
    )


def _panel(panel: HeadsPanel, most: float, t: Words) -> str:
    name = panel.name
    if panel.is_of_model:
        name = f"{name} · {t('this model')}"
    elif not panel.kept:
        name = f"{name} · {t('sized as in DeepSeek-V3')}"
    return box(
        "kv-panel kv-now" if panel.is_of_model else "kv-panel",
        words_box("kv-meaning", name)
        + words_box("kv-soft", t(MEANINGS[panel.name]))
        + box("kv-heads", _groups(panel))
        + box("kv-share", variables=f"--share:{panel.bytes_per_token / most:.4f}")
        + words_box("kv-size", _size(panel, t)),
    )


def _groups(panel: HeadsPanel) -> str:
    """Rows of sixteen query heads, each group above what it keeps, all on one scale; "" where there are too many."""
    if panel.query_heads > MOST_DRAWN:
        return ""
    each = panel.query_heads // (panel.kept or 1)
    rows = []
    for first in range(0, panel.query_heads, IN_A_ROW):
        heads = range(first, min(first + IN_A_ROW, panel.query_heads))
        dots = '<i class="kv-query"></i>' * len(heads)
        # What a group keeps stands under its last query head's row, as wide as one head of it is.
        ends = [at for at in heads if (at + 1) % each == 0]
        kept = "".join(_kept(panel, at, each, first) for at in ends)
        rows.append(box("kv-query-row", dots + kept))
    return "".join(rows)


def _kept(panel: HeadsPanel, last: int, each: int, first: int) -> str:
    """The key and value of the group that ends with query head `last`, or the latent vector, at its first column."""
    at = max(last + 1 - each, first) - first
    wide = 1 if panel.kept else LATENT_COLUMNS
    return f'<b class="kv-kv-head" style="grid-column:{at + 1} / span {wide}"></b>'


def _size(panel: HeadsPanel, t: Words) -> str:
    kept = panel.bytes_per_token
    size = format_bytes(kept) if kept >= KIB else t("{count} bytes", count=count(kept))
    if not panel.kept:
        return t("one vector: {size}", size=size)
    return t("{heads} × key and value: {size}", heads=count(panel.kept), size=size)


def _said(panels: tuple[HeadsPanel, ...], t: Words) -> Iterator[str]:
    for panel in panels:
        yield t(
            "{way}, {meaning}, {size}", way=panel.name, meaning=t(MEANINGS[panel.name]), size=_size(panel, t)
        )
