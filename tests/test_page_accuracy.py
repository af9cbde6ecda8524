"""The Accuracy page in both languages."""

import pytest
from streamlit.testing.v1 import AppTest

from kvcore.evidence.accuracy import Check, held_out, load_accuracy, of_one_source, our_points, summarize
from kvcore.views.accuracy_figures import percent
from tests.test_page_check import html
from tests.test_page_plan import checked, figures, open_app, seen


def open_accuracy(locale: str, query: dict[str, str] | None = None) -> AppTest:
    return checked(open_app(query, locale).switch_page("pages/accuracy.py").run())


@pytest.mark.parametrize(("locale", "words"), [("en-US", "published starts"), ("zh-CN", "公开启动日志")])
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
    link = dict(app.query_params)
    assert (link["quantity"], link["group"], link["apart"]) == ("weights", "family", "true")
    fresh = open_accuracy("en-US", link)
    assert figures(fresh) == figures(app)
    assert len(fresh.dataframe[0].value) == len(app.dataframe[0].value)


def test_every_start_has_a_source_or_a_citation() -> None:
    table = open_accuracy("en-US").dataframe[0].value
    assert all(
        bool(source) != bool(cited) for source, cited in zip(table["source"], table["cited"], strict=True)
    )


@pytest.mark.parametrize(
    ("locale", "words", "source"),
    [("en-US", "excluded from the fit", "Single source"), ("zh-CN", "剔除同源数据后", "仅一个出处")],
)
def test_the_fit_is_said_beside_what_it_does_not_know(locale: str, words: str, source: str) -> None:
    app = open_accuracy(locale)
    kv, without = (
        summarize(our_points(starts, Check.KV_MEMORY))
        for starts in (load_accuracy().starts, held_out(load_accuracy().starts))
    )
    assert kv is not None
    assert without is not None
    assert words in seen(app)
    assert percent(kv.median) in seen(app)
    assert percent(without.p90) in seen(app)
    assert source in html(app)


def test_each_start_without_its_own_publication() -> None:
    app = open_accuracy("en-US")
    before = figures(app)
    rows = app.dataframe[0].value
    assert {"in the fit", "not in the fit"} >= set(rows["fit"])
    assert rows["left_out"].isna().sum() == of_one_source(load_accuracy().starts, Check.KV_MEMORY)
    checked(app.toggle(key="accuracy.without").set_value(True).run())
    assert figures(app) != before
    assert "single-source starts are excluded" in seen(app)
    checked(app.selectbox(key="accuracy.check").set_value("weights").run())
    assert app.toggle(key="accuracy.without").disabled
    assert "fit" not in app.dataframe[0].value
