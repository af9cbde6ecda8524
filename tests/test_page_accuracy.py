"""The Accuracy page in both languages."""

import pytest
from streamlit.testing.v1 import AppTest

from kvcore.base.numbers import error_percent
from kvcore.base.words import Language
from kvcore.base.words import words as words_of
from kvcore.evidence.accuracy import Check, headline, held_out, load_accuracy, of_one_source, our_points
from tests.page_app import checked, figures, open_app, seen
from tests.test_page_check import html


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


@pytest.mark.parametrize(
    ("locale", "words"), [("en-US", "of authors nobody had seen"), ("zh-CN", "作者此前从未出现")]
)
def test_the_last_batch_is_shown_as_it_was_met_before_it_was_known(locale: str, words: str) -> None:
    app = open_accuracy(locale)
    last = load_accuracy().batches[-1]
    [told] = [one.value for one in app.markdown if words in one.value]
    for figure in (last.date, str(last.inside), str(last.starts)):
        assert figure in told


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
    [("en-US", "without their own publication", "Single source"), ("zh-CN", "剔除同源数据后", "仅一个出处")],
)
def test_the_headline_is_of_publications_that_took_no_part(locale: str, words: str, source: str) -> None:
    app = open_accuracy(locale)
    unseen, fitted = headline(held_out(load_accuracy().starts)), headline(load_accuracy().starts)
    assert unseen is not None
    assert fitted is not None
    assert words in seen(app)
    t = words_of(Language.of_browser(locale))
    for share in (unseen.found.median, unseen.found.p90, unseen.share_p90, unseen.width, fitted.found.p90):
        assert error_percent(share, t) in seen(app)
    assert source in html(app)


def test_coverage_is_shown_by_group_with_its_count() -> None:
    shown = html(open_accuracy("en-US"))
    points = our_points(held_out(load_accuracy().starts), Check.KV_MEMORY)
    judged = [point for point in points if point.interval]
    assert f"{sum(point.is_inside is True for point in judged)} of {len(judged)}" in shown
    for name in ("TP 1, vLLM 0.18–0.23", "TP &gt; 1, vLLM ≥ 0.24", "Link between cards"):
        assert name in shown


def test_each_start_without_its_own_publication() -> None:
    app = open_accuracy("en-US")
    before = figures(app)
    rows = app.dataframe[0].value
    assert {"in the fit", "not in the fit"} >= set(rows["fit"])
    points = our_points(load_accuracy().starts, Check.KV_MEMORY)
    assert rows["left_out"].isna().sum() == sum(point.predicted is None for point in points)
    checked(app.toggle(key="accuracy.without").set_value(True).run())
    assert figures(app) != before
    checked(app.selectbox(key="accuracy.check").set_value("framework").run())
    assert of_one_source(load_accuracy().starts, Check.FRAMEWORK) > 0
    assert "single-source starts are excluded" in seen(app)
    checked(app.selectbox(key="accuracy.check").set_value("weights").run())
    assert app.toggle(key="accuracy.without").disabled
    assert "fit" not in app.dataframe[0].value
