"""Conformal factors: quantiles by hand, and a publication that says nothing of itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcore.catalogue.accelerators import Vendor
from kvcore.memory.intervals import INTERVALS, Reach
from tools.fit_intervals import (
    LEAST,
    MISSED,
    NEXT_ERA,
    OTHER_ERA,
    OTHER_KIND,
    OTHER_RANKS,
    OTHER_VENDOR,
    UNSEEN,
    Place,
    Score,
    factor_at,
    judged,
    likeness,
    places,
)

HERE = Place(vendor=Vendor.NVIDIA, ranks="one", multimodal=False, era=2)


def score(group: str, residual: float, place: Place = HERE) -> Score:
    """A start with parts of an uncertainty of 2 bytes on either side."""
    return Score(
        id=f"{group} {residual}", group=group, place=place, residual=residual, reach=Reach(2.0, 0.0, 0.0, 0.0)
    )


def test_a_quantile_of_publications_with_one_beyond_all() -> None:
    # Nineteen publications, 1 to 19 bytes less than predicted: (1 − MISSED) × (19 + UNSEEN) lie within the factor.
    scores = [score(f"p{number}", -float(number)) for number in range(1, 20)]
    wanted = -(-(1 - MISSED) * (19 + UNSEEN) // 1)
    less, more = factor_at(HERE, scores)
    assert (less, more) == (wanted / 2, LEAST)


def test_a_campaign_counts_once() -> None:
    scores = [score("campaign", -1.0)] * 30 + [score("b", -8.0), score("c", -8.0)]
    assert factor_at(HERE, scores)[0] == 4.0


def test_sides_are_apart() -> None:
    assert factor_at(HERE, [score("a", -6.0), score("b", 4.0)]) == (3.0, 2.0)


def test_likeness_multiplies_the_weights_of_differences() -> None:
    assert likeness(HERE, HERE) == 1.0
    assert likeness(HERE, replace(HERE, era=1)) == NEXT_ERA
    assert likeness(HERE, replace(HERE, era=0, ranks="several")) == pytest.approx(OTHER_ERA * OTHER_RANKS)
    assert likeness(HERE, replace(HERE, vendor=Vendor.AMD)) == OTHER_VENDOR
    assert likeness(HERE, replace(HERE, multimodal=True)) == OTHER_KIND
    anywhere = Place(vendor=None, ranks="one", multimodal=None, era=None)
    assert likeness(anywhere, replace(HERE, multimodal=True, era=0)) == OTHER_VENDOR


def test_a_publication_does_not_count_for_itself() -> None:
    scores = [score("a", -2.0), score("b", -4.0), score("c", -40.0)]
    found = {one.group: ends for one, ends in judged(scores)}
    # The factor of c is that of a and b: 2 × 2 bytes; those of a and b know c.
    assert found["c"][0] == -4.0
    assert found["a"][0] == found["b"][0] == -40.0


def test_the_table_has_a_row_for_every_place() -> None:
    rows = INTERVALS.load().factor
    assert [(row.vendor, row.ranks, row.multimodal) for row in rows] == [
        (place.vendor, place.ranks, place.multimodal) for place in places()
    ]
