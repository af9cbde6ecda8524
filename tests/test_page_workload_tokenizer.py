"""The Workload page counts a log of texts by a tokenizer that a visitor brings, in both languages."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from pages.ui.workload import by_tokenizer
from tests.page_app import checked, seen
from tests.test_page_workload import open_workload, upload
from tests.test_workload_logs import LOG, words


def count(app: AppTest, tokenizer: bytes, log: bytes = LOG) -> AppTest:
    app.file_uploader(key="workload.tokenizer.0").set_value([("own.json", tokenizer, "application/json")])
    app.file_uploader(key="workload.tokenizer.log.0").set_value([("again.jsonl", log, "text/plain")])
    return checked(app.run())


@pytest.mark.parametrize(
    ("locale", "before", "after"),
    [
        (
            "en-US",
            "by a rate for each script",
            "100 % of the prompts were counted from their text by own.json",
        ),
        ("zh-CN", "按每种文字的比率", "100% 的输入由 own.json"),
    ],
)
def test_a_log_of_texts_counts_by_its_tokenizer(locale: str, before: str, after: str) -> None:
    app = upload(open_workload(locale), "log.jsonl", LOG)
    assert before in seen(app)
    app = count(app, words())
    assert after in seen(app)
    assert before not in seen(app)
    kept = app.session_state["workload.kept"]
    assert kept.log.traffic.prompts.lengths == (1, 3)
    assert kept.source == "again.jsonl"


def test_an_invalid_tokenizer_leaves_the_log_as_it_was() -> None:
    app = upload(open_workload(), "log.jsonl", LOG)
    known = app.session_state["workload.kept"]
    app = count(app, b"{}")
    assert "`tokenizer-unreadable`" in seen(app)
    assert app.session_state["workload.kept"] == known


def test_a_log_with_counts_asks_for_no_tokenizer() -> None:
    app = upload(open_workload(), "log.jsonl", b'{"usage": {"prompt_tokens": 9, "completion_tokens": 8}}\n')
    assert "Count with the model's tokenizer" not in [one.label for one in app.expander]


def test_without_the_package_the_page_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_tokenizer, "find_spec", lambda name: None)
    app = upload(open_workload(), "log.jsonl", LOG)
    assert "nstall tokenizers" in seen(app)
