"""Numbers as a person reads them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.base.numbers import concurrency_text, gib_text, whole_requests
from kvcore.base.units import GIB, MIB


@given(st.floats(1, 1e6))
def test_a_concurrency_is_rounded_as_the_engine_prints_it(value: float) -> None:
    assert float(concurrency_text(value).replace(",", "")) == float(f"{value:.2f}")


@pytest.mark.parametrize(
    ("value", "text"), [(6.9167, "6.92"), (22.398, "22.4"), (105.375, "105.38"), (20.0, "20")]
)
def test_a_concurrency(value: float, text: str) -> None:
    assert concurrency_text(value) == text


@given(st.floats(0.005, 1, exclude_max=True))
def test_a_concurrency_below_one_never_reads_one(value: float) -> None:
    assert float(concurrency_text(value)) <= value + 1e-8


@given(st.floats(1, 1e6) | st.integers(1, 1000).map(lambda whole: whole - 0.004))
def test_a_sentence_never_promises_a_whole_request_too_many(value: float) -> None:
    assert whole_requests(value) <= max(value, 1) + 1e-8


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 GiB"), (-43.04 * GIB, "−43.0 GiB"), (0.5 * GIB, "0.50 GiB"), (3 * MIB, "3.0 MiB"),
     (1536 * GIB, "1,536.0 GiB")],
)  # fmt: skip
def test_gib(size: float, text: str) -> None:
    assert gib_text(size) == text


def test_signs() -> None:
    assert gib_text(GIB, signed=True) == "+1.0 GiB"
    assert gib_text(-GIB, signed=True) == "−1.0 GiB"


def test_infinity_has_a_sign() -> None:
    assert concurrency_text(math.inf) == "∞"
