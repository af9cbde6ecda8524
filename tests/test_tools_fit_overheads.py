"""The refit: arithmetic on residuals, and the starts that the project keeps."""

import pytest

from tools.fit_overheads import left_out, quantile
from tools.residuals import STARTS, Residual, balanced, read_starts, residuals_of


def residual(group: str, measured_gib: float) -> Residual:
    return Residual(
        part="framework",
        constant="c",
        group=group,
        label="l",
        predicted_gib=1.0,
        measured_gib=measured_gib,
        coefficient=2.0,
    )


def test_a_publication_counts_once() -> None:
    items = [residual("a", 1.4)] * 9 + [residual("b", 1.0), residual("c", 2.0)]
    assert balanced(items) == pytest.approx(0.2)


def test_a_residual_is_without_its_own_publication() -> None:
    items = [residual("a", 1.5), residual("b", 1.1)]
    assert list(left_out(items)) == pytest.approx([0.4, -0.4])
    assert list(left_out(items[:1])) == [0.5]


def test_the_quantile_is_a_residual() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0, 5.0], 0.8) == 5.0


def test_recorded_starts_name_their_publication_and_have_residuals() -> None:
    starts = list(read_starts(STARTS))
    assert len(starts) == 82
    assert all(start["source"] and start["group"] for start in starts)
    residuals = [item for start in starts[:10] for item in residuals_of(start)]
    assert {item.part for item in residuals} >= {"activations", "framework", "graphs"}
