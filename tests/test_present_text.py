"""Numbers as a person reads them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.present.text import Language, concurrency_text, gib_text, words
from kvcore.units import GIB, MIB


@given(st.floats(0.005, 1e6))
def test_a_concurrency_is_never_rounded_up(value: float) -> None:
    assert float(concurrency_text(value).replace(",", "")) <= value + 1e-8


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


@pytest.mark.parametrize(
    ("tag", "language"), [("zh-CN", "zh"), ("zh-TW", "zh"), ("en-US", "en"), ("fr", "en"), ("", "en")]
)
def test_language_of_the_browser(tag: str, language: str) -> None:
    assert Language.of_browser(tag) == language


def test_catalogues_are_read_as_they_are() -> None:
    assert words(Language.CHINESE)("Plan") == "容量规划"
    assert words(Language.ENGLISH)("Plan") == "Plan"
