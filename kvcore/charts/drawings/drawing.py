"""A drawing: a title, drawn boxes, and the same in words."""

from __future__ import annotations

from html import escape
from typing import Final

from msgspec import Struct

from kvcore.base.words import msg
from kvcore.cache.spec import CacheKind

KINDS: Final = {
    CacheKind.FULL_ATTENTION: msg("full attention"),
    CacheKind.SLIDING_WINDOW: msg("sliding window"),
    CacheKind.CHUNKED_LOCAL_ATTENTION: msg("attention in chunks"),
    CacheKind.MLA_ATTENTION: msg("latent vectors"),
    CacheKind.SLIDING_WINDOW_MLA: msg("window of latent vectors"),
    CacheKind.CIRCULAR_BUFFER: msg("ring of tokens to be compressed"),
    CacheKind.MAMBA: msg("recurrent state"),
    CacheKind.CROSS_ATTENTION: msg("keys and values of the encoder"),
}
"""Names of what each kind of layer keeps of a request."""


class Drawing(Struct, frozen=True, kw_only=True):
    """A drawing. `html` is safe to show as it is: boxes of our own around escaped texts."""

    title: str
    html: str
    alternative: str
    """The drawing in words, for screen readers and for print."""

    @property
    def figure(self) -> str:
        """The drawing as one labelled figure; screen readers skip its boxes.

        Example:
            >>> Drawing(title="Heads", html="<b>8</b>", alternative="8 heads").figure[:60]
            '<figure class="kv-drawing" role="img" aria-label="Heads: 8 h'
        """
        label = escape(f"{self.title}: {self.alternative}")
        caption = f"<figcaption>{escape(self.title)}</figcaption>"
        return f'<figure class="kv-drawing" role="img" aria-label="{label}">{caption}{self.html}</figure>'


def box(style_class: str, content: str = "", *, variables: str = "") -> str:
    """One box: `content` is HTML already, `variables` are CSS custom properties of numbers.

    Example:
        >>> box("kv-kept", variables="--share:0.5")
        '<div class="kv-kept" style="--share:0.5"></div>'
    """
    style = f' style="{variables}"' if variables else ""
    return f'<div class="{style_class}"{style}>{content}</div>'


def words_box(style_class: str, text: str) -> str:
    """A box around a text, which is escaped.

    Example:
        >>> words_box("kv-soft", "a < b")
        '<div class="kv-soft">a &lt; b</div>'
    """
    return box(style_class, escape(text))
