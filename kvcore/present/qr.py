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
def qr_image(text: str) -> str:
    """The address of an SVG of the code, black on white in every theme, of any size; "" for too long a text.

    Example:
        >>> qr_image("https://example.org/?v=1")[:18], qr_image("x" * 2954)
        ('data:image/svg+xml', '')
    """
    if len(text.encode()) > MOST_CHARACTERS:
        return ""
    code = segno.make_qr(text, error="l")
    return code.svg_data_uri(
        border=QUIET_ZONE, dark="#000", light="#fff", omitsize=True, encode_minimal=False
    )
