"""The one table of the parts of memory, and what hangs on its rows."""

import pytest

from kvcore.base.parts import BUDGETED, COMPARED, GIVEN, GIVEN_LABELS, MEASURED_FIELDS, PARTS, STACKED, Part
from kvcore.engine.rank_memory import RankMemory
from kvcore.flags import FLAGS
from kvcore.scenario import Measured


@pytest.mark.parametrize("part", STACKED)
def test_a_part_is_an_attribute_of_the_memory_of_a_rank(part: Part) -> None:
    fields = RankMemory.__struct_fields__
    assert {part.name, part.estimate, part.budgeted or part.name} <= set(fields)


def test_a_field_of_the_table_is_a_field_of_the_request() -> None:
    assert {part.field for part in GIVEN} == {part.field for part in PARTS if part.field}
    assert {part.field for part in GIVEN} == set(MEASURED_FIELDS) <= set(Measured.__struct_fields__)
    assert all(FLAGS[f"measured.{part.field}"].bounds == part.bounds for part in GIVEN)
    assert set(COMPARED) == set(GIVEN)
    assert set(GIVEN_LABELS) == {part.estimate for part in GIVEN}


def test_names_and_colours_tell_the_parts_apart() -> None:
    assert len({part.name for part in STACKED}) == len({part.label for part in STACKED}) == len(STACKED)
    assert len({(part.color, part.pattern) for part in STACKED}) == len(STACKED)
    assert all(part.noun for part in BUDGETED)
