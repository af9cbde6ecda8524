"""A link as a QR code, for a room that reads it from the projector."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import segno

MOST_CHARACTERS: Final = 2953
"""Bytes in the largest code with the least error correction. Source: ISO/IEC 18004, version 40-L."""
QUIET_ZONE: Final = 4
"""Modules of white around it, without which many readers find nothing. Source: ISO/IEC 18004."""


@lru_cache(maxsize=8)
def qr_svg(text: str) -> str:
    """The code as an SVG of its own: black on white in every theme, as large as its box; "" for too long a text.

    Example:
        >>> qr_svg("https://example.org/?v=1")[:21], qr_svg("x" * 2954)
        ('<svg viewBox="0 0 33 ', '')
    """
    if len(text.encode()) > MOST_CHARACTERS:
        return ""
    code = segno.make_qr(text, error="l")
    return str(code.svg_inline(border=QUIET_ZONE, dark="#000", light="#fff", omitsize=True))
