"""Colours and patterns of the parts of memory: Okabe-Ito, distinguished by pattern as well, on white and on black."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kvcore.base.words import msg

OUTLINE: Final = "rgba(60,60,60,0.75)"
CAPACITY: Final = "#D55E00"
BUDGET: Final = "#8A8A8A"
OPERATING_POINT: Final = "#CC79A7"
CURRENT_LINE: Final = "#0072B2"
OTHER_LINE: Final = "#8A8A8A"
WARNING_TEXT: Final = "#8A3B00"
WARNING_GROUND: Final = "#FCEBE1"
POINT_TEXT: Final = "#5B2245"
POINT_GROUND: Final = "#F8E6F0"
DARK_TEXT: Final = "#111111"
MUTED_TEXT: Final = "#7D7D7D"


class Part(Struct, frozen=True, kw_only=True):
    """How one part of a rank's memory is drawn and called. `name` is the field of `RankMemory`."""

    name: str
    label: str
    color: str
    pattern: str
    """A name of its pattern, "" for plain."""
    text_color: str


PARTS: Final = (
    Part(name="system", label=msg("System"), color="#999999", pattern="/", text_color=DARK_TEXT),
    Part(name="framework", label=msg("Framework"), color="#56B4E9", pattern="", text_color=DARK_TEXT),
    Part(name="weights", label=msg("Weights"), color="#0072B2", pattern="", text_color="#FFFFFF"),
    Part(name="activations", label=msg("Activations"), color="#E69F00", pattern="x", text_color=DARK_TEXT),
    Part(name="cuda_graphs", label=msg("CUDA graphs"), color="#F0E442", pattern=".", text_color=DARK_TEXT),
    Part(name="kv_cache", label=msg("KV cache"), color="#009E73", pattern="", text_color=DARK_TEXT),
    Part(
        name="unused", label=msg("Unused"), color="rgba(138,138,138,0.10)", pattern="", text_color=MUTED_TEXT
    ),
)
"""In the order in which the bar stacks them."""
UNACCOUNTED: Final = Part(
    name="unaccounted",
    label=msg("Unaccounted for"),
    color="#CC79A7",
    pattern="-",
    text_color=DARK_TEXT,
)
"""Before the KV cache, where its memory is given and the other parts leave more than that."""
AFTER_POOL: Final = Part(
    name="after_pool",
    label=msg("Taken after the KV cache"),
    color="rgba(138,138,138,0.10)",
    pattern="\\",
    text_color=MUTED_TEXT,
)
"""At the beginning of what is unused."""
OVERESTIMATED: Final = msg("Parts estimated too high")
"""What it is called where they leave less."""
