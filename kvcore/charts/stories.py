"""The source documents as stories: the steps of one, and the figures of a step as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from kvcore.base.numbers import DASH, count, format_bytes, significant
from kvcore.base.quantity import Quantity, Unit
from kvcore.base.words import Words
from kvcore.explain.documents import Recomputed, figures
from kvcore.explain.reference import facts, truth
from kvcore.explain.stories import link_params, planned
from kvcore.texts import CORRECTIONS, STORIES, STORY_FIGURES, Source, StoryStep

ORDER: Final = (Source.RULE_OF_THUMB, Source.POST_MORTEM, Source.ASCEND_TUNING, Source.PARAMETERS)
"""Shortest chain of figures first, longest list last."""


class StoryRow(Struct, frozen=True, kw_only=True):
    """A figure as text: its label, as the document writes it, by the document's own rule, and as the engine has it."""

    label: str
    written: str
    own: str
    formula: str
    """The rule with its numbers; "" for a figure that is read or assumed."""
    engine: str


class Corrected(Struct, frozen=True, kw_only=True):
    """A claim of the document, and the truth."""

    claim: str
    truth: str


def steps_of(story: Source) -> tuple[StoryStep, ...]:
    """The steps of a document in their order.

    Example:
        >>> steps_of(Source.RULE_OF_THUMB)[3].title
        'The whole machine: 144, 64, 40, 40'
    """
    return tuple(step for step in STORIES.values() if step.story is story)


def step_at(story: Source, number: int) -> tuple[int, StoryStep]:
    """A step by its number from one, and that number; the last step for a number above it."""
    steps = steps_of(story)
    number = min(number, len(steps))
    return number, steps[number - 1]


def rows_of(step: StoryStep, t: Words) -> tuple[StoryRow, ...]:
    """The figures of a step as rows."""
    found = figures(step.story)
    return tuple(_row(f"{step.story}/{name}", found.get(name, Recomputed()), t) for name in step.figures)


def _row(name: str, found: Recomputed, t: Words) -> StoryRow:
    figure, own = STORY_FIGURES[name], found.own
    return StoryRow(
        label=t(figure.label),
        written=figure.written or DASH,
        own=_text(own),
        formula="" if own is None else own.substituted.replace(f" {Unit.TOKENS}", ""),
        engine=_text(found.engine),
    )


def _text(quantity: Quantity | None) -> str:
    if quantity is None:
        return DASH
    if quantity.unit is Unit.BYTES:
        return format_bytes(quantity.value)
    return count(quantity.value) if quantity.unit is Unit.TOKENS else significant(quantity.value)


def corrections_of(step: StoryStep, t: Words) -> tuple[Corrected, ...]:
    """The claims of this step that are wrong, corrected with the figures of the step's own start."""
    known: Mapping[str, Mapping[str, str]] = facts(planned(step.scenario)) if step.corrections else {}
    return tuple(
        Corrected(claim=t(CORRECTIONS[name].claim), truth=truth(CORRECTIONS[name], known, t))
        for name in step.corrections
    )


def opened(step: StoryStep) -> dict[str, str]:
    """The start of a step as link parameters."""
    return link_params(step.scenario)
