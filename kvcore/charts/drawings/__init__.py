"""Drawings of a plan for a class: heads, lengths, cards, pages, each from the plan's own numbers.

A drawing is HTML whose boxes are styled by pages/ui/learn/drawings.css. What it shows is said in words as well: nobody
needs to see it.
"""

from kvcore.charts.drawings.cards import cards_drawing, quality_drawing
from kvcore.charts.drawings.drawing import Drawing
from kvcore.charts.drawings.heads import heads_drawing
from kvcore.charts.drawings.layers_picture import layers_picture
from kvcore.charts.drawings.pool import lengths_drawing, pages_drawing
from kvcore.charts.drawings.reuse_picture import reuse_picture
from kvcore.charts.drawings.scenes import Picture, Scene
from kvcore.charts.drawings.sharing_picture import sharing_picture
from kvcore.charts.drawings.small_load import last_block_drawing, pool_drawing, timeline_drawing

__all__ = [
    "Drawing",
    "Picture",
    "Scene",
    "cards_drawing",
    "heads_drawing",
    "last_block_drawing",
    "layers_picture",
    "lengths_drawing",
    "pages_drawing",
    "pool_drawing",
    "quality_drawing",
    "reuse_picture",
    "sharing_picture",
    "timeline_drawing",
]
