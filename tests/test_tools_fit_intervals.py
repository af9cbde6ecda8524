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
    between_gib,
    factor_at,
    judged,
    judged_by,
    likeness,
    places,
    with_between,
)
from tools.residuals import Residual

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
    found = {one.group: ends for one, ends in judged(scores, dict.fromkeys("abc", 0.0))}
    # The factor of c is that of a and b: 2 × 2 bytes; those of a and b know c.
    assert found["c"][0] == -4.0
    assert found["a"][0] == found["b"][0] == -40.0


def said(group: str, gib: float, constant: str = "framework gib: one") -> Residual:
    return Residual(part="sum", constant=constant, group=group, label="", predicted_gib=0.0, measured_gib=gib,
                    coefficient=1.0)  # fmt: skip


def test_what_publications_differ_by_is_the_median_distance_to_the_others_as_of_normal_errors() -> None:
    """Medians of the publications 0.1, 0.2 and 0.6: from the median of the others 0.3, 0.15 and 0.45."""
    campaign = [said("a", 0.0), said("a", 0.1), said("a", 0.4)]
    one = [*campaign, said("b", 0.2), said("c", 0.6)]
    alone = [said("d", 9.0, "framework gib: two")]
    other = [said("a", 5.0, "activations body"), said("b", 0.0, "activations body")]
    found = between_gib({"framework gib: one": one, "framework gib: two": alone, "activations body": other})
    assert found == pytest.approx(1.2816 * 1.4826 * 0.3, rel=1e-4)
    assert between_gib({"framework gib: two": alone}) == 0.0


def test_a_factor_covers_what_publications_do_not_differ_by() -> None:
    """Of 5 bytes 3 are what publications differ by: 4 are left, twice the 2 of the parts."""
    known = [
        replace(one, reach=one.reach._replace(between=3.0)) for one in (score("a", -5.0), score("b", 5.0))
    ]
    assert factor_at(HERE, known) == (2.0, 2.0)


def test_a_batch_is_judged_by_the_others_alone() -> None:
    own, others = [score("a", 100.0)], [score("b", -5.0), score("c", 5.0)]
    assert with_between(own[0], 3.0).reach.between == 0.0  # its parts are given
    own, others = (
        [replace(one, reach=one.reach._replace(between=1.0)) for one in some] for some in (own, others)
    )
    [(one, ends)] = judged_by(own, others, 3.0)
    assert (one.group, ends) == ("a", (-5.0, 5.0))


def test_the_table_has_a_row_for_every_place() -> None:
    rows = INTERVALS.load().factor
    assert [(row.vendor, row.ranks, row.multimodal) for row in rows] == [
        (place.vendor, place.ranks, place.multimodal) for place in places()
    ]
