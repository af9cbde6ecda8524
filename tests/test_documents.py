"""Every number of the four source documents: reproduced by kvcore, or listed with the reason why not."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvcore.explain.documents import figures
from kvcore.quantity import Quantity, Unit
from kvcore.texts import SOURCES, Source
from kvcore.units import GB, GIB, KIB, MIB

DOCUMENTS: dict[str, Any] = tomllib.loads(
    (Path(__file__).parent / "data" / "documents.toml").read_text("utf-8")
)
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
def test_every_figure_is_one_of_the_document(document: Source) -> None:
    """A figure that no number of the data file asks for would be checked by nobody."""
    asked = {
        row[2]
        for section in DOCUMENTS[document]["sections"]
        for kind in ("reproduced", "given", "by_its_rule", "corrected")
        for row in section.get(kind, ())
    }
    assert sorted(figures(document)) == sorted(asked)
