"""The numbers of the source documents, worked out again: as the document has them, and as the engine would.

A figure's `own` follows the document's rule with its inputs; `engine` is what a plan of the same start says. Both are
computed when they are asked for, so a change of the tables shows in the stories (texts/stories.toml) and in the test
of every number (tests/test_documents.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from kvcore.explain.documents import ascend_tuning, parameters, post_mortem, rule_of_thumb
from kvcore.explain.documents.recomputed import Recomputed
from kvcore.texts import Source

_OF = {
    Source.RULE_OF_THUMB: rule_of_thumb.figures,
    Source.POST_MORTEM: post_mortem.figures,
    Source.PARAMETERS: parameters.figures,
    Source.ASCEND_TUNING: ascend_tuning.figures,
}


@cache
def figures(document: Source) -> Mapping[str, Recomputed]:
    """Every figure of a document that can be worked out again, by its name.

    Example:
        >>> found = figures(Source.RULE_OF_THUMB)["tokens"]
        >>> found.own.value, found.own.substituted
        (163840, '40.00 GiB / 256.00 KiB')
    """
    return _OF[document]()
