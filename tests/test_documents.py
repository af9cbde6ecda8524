"""Every number of the four source documents: reproduced by kvcore, or listed with the reason why not."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvcore.base.quantity import Quantity, Unit
from kvcore.base.units import GB, GIB, KIB, MIB
from kvcore.explain.documents import figures
from kvcore.explain.stories import link_params, planned
from kvcore.planning import Verdict
from kvcore.texts import CORRECTIONS, SOURCES, STORIES, STORY_FIGURES, Source
from kvcore.wire import link
from pages.ui.shared.parameters import PARAMETERS

DOCUMENTS: dict[str, Any] = tomllib.loads(
    (Path(__file__).parent / "data" / "documents.toml").read_text("utf-8")
)
NUMBER = re.compile(r"\d+(?:\.\d+)?")
NOT_FLOATS = {"0.2.6", "4.51.0"}
SIZES = {"GiB": GIB, "MiB": MIB, "KiB": KIB, "GB": GB, "bytes": 1}
COUNTS = {"": 1, "tokens": 1, "Ki tokens": KIB, "requests": 1, "percent": 1}


def rows(*kinds: str) -> list[Any]:
    """Rows of the data file; each test says which document by its title, which section and which number."""
    return [
        pytest.param(
            Source(name), row, id=f"{document['title']} / {section['section']} / {' '.join(row[:3])}"
        )
        for name, document in DOCUMENTS.items()
        for section in document["sections"]
        for kind in kinds
        for row in section.get(kind, ())
    ]


def as_written(found: Quantity, unit: str, written: str) -> str:
    """A figure with the unit and the decimals of the document."""
    assert (found.unit is Unit.BYTES) is (unit in SIZES), f"{unit!r} is no unit of {found.text}"
    decimals = len(written.partition(".")[2])
    return f"{found.value / {**SIZES, **COUNTS}[unit]:.{decimals}f}"


@pytest.mark.parametrize(("document", "row"), rows("reproduced", "given", "by_its_rule"))
def test_a_number_of_the_document_is_reproduced(document: Source, row: list[str]) -> None:
    written, unit, name, *_ = row
    own = figures(document)[name].own
    assert own is not None
    assert as_written(own, unit, written) == written


@pytest.mark.parametrize(("document", "row"), rows("corrected"))
def test_what_the_engine_does_instead(document: Source, row: list[str]) -> None:
    value, unit, name, how = row
    engine = figures(document)[name].engine
    assert engine is not None
    assert how
    assert as_written(engine, unit, value) == value


@pytest.mark.parametrize(("document", "row"), rows("not_reproduced"))
def test_a_number_that_is_not_reproduced_has_its_reason(document: Source, row: list[str]) -> None:
    written, reason = row
    assert any(character.isdigit() for character in written)
    assert len(reason.split()) > 1


def test_all_documents_are_there_under_their_own_titles() -> None:
    assert {name: document["title"] for name, document in DOCUMENTS.items()} == {
        name: document.title or document.name for name, document in SOURCES.items()
    }


@pytest.mark.parametrize("document", Source)
def test_every_figure_is_checked_or_shown(document: Source) -> None:
    asked = {
        row[2]
        for section in DOCUMENTS[document]["sections"]
        for kind in ("reproduced", "given", "by_its_rule", "corrected")
        for row in section.get(kind, ())
    }
    shown = {name for step in STORIES.values() if step.story is document for name in step.figures}
    assert set(figures(document)) <= asked | shown
    assert asked <= set(figures(document))


def numbers(*kinds: str, document: Source) -> set[str]:
    """Numbers of a document as the data file has them."""
    sections = DOCUMENTS[document]["sections"]
    return {row[0] for section in sections for kind in kinds for row in section.get(kind, ())}


@pytest.mark.parametrize("name", STORY_FIGURES)
def test_what_a_story_says_that_a_document_writes_is_a_number_of_it(name: str) -> None:
    document, _, figure = name.partition("/")
    written = STORY_FIGURES[name].written
    known = numbers("reproduced", "given", "not_reproduced", document=Source(document))
    assert {float(number) for number in NUMBER.findall(written)} <= {*map(float, known - NOT_FLOATS)}
    if figure not in figures(Source(document)):
        assert set(NUMBER.findall(written)) & numbers("not_reproduced", document=Source(document))


@pytest.mark.parametrize("name", STORIES)
def test_a_step_of_a_story_is_complete(name: str) -> None:
    step = STORIES[name]
    assert name.startswith(f"{step.story}/")
    assert link.decode(link_params(step.scenario), PARAMETERS).repairs == ()
    # The guide's own peak is less than the weights of the guide's model: that step shows it.
    fails = (Verdict.WEIGHTS_DO_NOT_FIT,)
    assert planned(step.scenario).verdict in (
        fails if name == "ascend-tuning/settings" else (Verdict.FITS, Verdict.TIGHT)
    )
    assert all(f"{step.story}/{figure}" in STORY_FIGURES for figure in step.figures)
    assert all(CORRECTIONS[correction].source is step.story for correction in step.corrections)


def test_every_correction_is_in_a_story() -> None:
    assert {one for step in STORIES.values() for one in step.corrections} == set(CORRECTIONS)


def test_drafts_by_n_grams_take_next_to_nothing() -> None:
    """The guide says that more of them take much more memory."""
    found = figures(Source.PARAMETERS)
    without, with_them = found["tokens-without"].engine, found["tokens-with"].engine
    assert without is not None
    assert with_them is not None
    assert 0.99 * without.value < with_them.value <= without.value
