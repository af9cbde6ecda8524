"""Number boxes take what people type, and say in the page's language what they do not take; nothing becomes another
number."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from pages.ui.shared.numbers import Limits
from tests.page_app import checked, open_app, params

QUERY = {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB"}


@pytest.mark.parametrize(
    ("limits", "given", "taken"),
    [
        (Limits(1, 256), 8.0, 8),
        (Limits(1, 256), 2.5, None),
        (Limits(1, 256), 0.0, None),
        (Limits(1, 256), 257.0, None),
        (Limits(1, 256), float("nan"), None),
        (Limits(1, 256), float("inf"), None),
        (Limits(1, 256), None, None),
        (Limits(0.01, 1, is_whole=False), 0.85, 0.85),
        (Limits(0.01, 1, is_whole=False), 1.01, None),
    ],
)
def test_numbers_that_a_box_accepts(limits: Limits, given: float | None, taken: float | None) -> None:
    found = limits.taken(given)
    assert found == taken
    assert type(found) is type(taken)


def typed(app: AppTest, key: str, value: float | None) -> AppTest:
    app.number_input(key=key).set_value(value)
    return checked(app.run())


def test_a_large_whole_number_is_taken_as_it_is() -> None:
    """A browser reads "1e4" as 10,000 in a box of any number; in one of whole numbers as 1."""
    app = typed(open_app(QUERY), "max_num_batched_tokens", 1e4)
    assert params(app)["max_num_batched_tokens"] == "10000"
    app = typed(app, "max_num_batched_tokens", None)
    assert "max_num_batched_tokens" not in params(app)


@pytest.mark.parametrize(
    ("language", "said"),
    [
        ("en", "Not taken: 2.5 is not a whole number from 1 to 1,048,576."),
        ("zh-CN", "未采用：2.5 不是 1 到 1,048,576 之间的整数。"),
    ],
)
def test_a_refused_number_is_explained_in_the_language_of_the_page(language: str, said: str) -> None:
    app = open_app({**QUERY, "max_num_seqs": "64", "lang": language})
    before = params(app)
    typed(app, "max_num_seqs", 2.5)
    assert params(app) == before
    assert app.number_input(key="max_num_seqs").value == 64
    assert said in [text.value for text in app.text]
    checked(app.run())
    assert said not in [text.value for text in app.text]


def test_the_largest_captured_batch_can_be_emptied() -> None:
    app = open_app({**QUERY, "max_cudagraph_capture_size": "3"})
    assert app.number_input(key="max_cudagraph_capture_size").proto.HasField("default") is False
    typed(app, "max_cudagraph_capture_size", None)
    assert "max_cudagraph_capture_size" not in params(app)


def test_a_price_can_be_emptied() -> None:
    app = open_app({**QUERY, "prices": "H100-80GB:3"})
    app.session_state["explore_prices"] = True
    app.switch_page("pages/explore.py").run()
    key = "price.H100-80GB"
    assert app.number_input(key=key).proto.HasField("default") is False
    typed(app, key, None)
    assert "prices" not in params(app)
