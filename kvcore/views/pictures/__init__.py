"""Pictures of a plan for a class: heads, lengths, cards, pages; each drawn from the plan's own numbers, with its text.

A picture is HTML whose boxes are styled by pages/ui/learn/pictures.css. What it shows stands in words beside it, so
that nobody needs to see it.
"""

from kvcore.views.pictures.cards import cards_picture
from kvcore.views.pictures.heads import heads_picture
from kvcore.views.pictures.lengths import lengths_picture
from kvcore.views.pictures.pages import pages_picture
from kvcore.views.pictures.picture import Picture

__all__ = ["Picture", "cards_picture", "heads_picture", "lengths_picture", "pages_picture"]
