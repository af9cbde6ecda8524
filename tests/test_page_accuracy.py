"""The Accuracy page in both languages."""

import pytest
from streamlit.testing.v1 import AppTest

from kvcore.evidence.accuracy import load_accuracy
from tests.test_page_check import html
from tests.test_page_plan import checked, figures, open_app, seen


def open_accuracy(locale: str) -> AppTest:
    return checked(open_app(locale=locale).switch_page("pages/accuracy.py").run())


@pytest.mark.parametrize(("locale", "words"), [("en-US", "published starts"), ("zh-CN", "公开的启动")])
def test_the_record_is_told_and_drawn(locale: str, words: str) -> None:
    app = open_accuracy(locale)
    assert words in seen(app)
    assert load_accuracy().generated in seen(app)
    assert len(figures(app)) == 1
    for peer in load_accuracy().peers:
        assert peer.name in html(app)
        assert peer.address in seen(app)


def test_another_quantity_and_another_grouping() -> None:
    app = open_accuracy("en-US")
    before = figures(app)
    checked(app.selectbox(key="accuracy.check").set_value("weights").run())
    assert figures(app) != before
    assert "vllm 0.19" in html(app)
    checked(app.segmented_control(key="accuracy.by").set_value("family").run())
    assert "qwen3" in html(app)
    rows = app.dataframe[0].value
    checked(app.toggle(key="accuracy.apart").set_value(True).run())
    assert 0 < len(app.dataframe[0].value) < len(rows)


def test_every_start_has_a_source_or_a_citation() -> None:
    table = open_accuracy("en-US").dataframe[0].value
    assert all(
        bool(source) != bool(cited) for source, cited in zip(table["source"], table["cited"], strict=True)
    )
