"""Share, on every page: its link, its QR code, and the same page from that link."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from streamlit.testing.v1 import AppTest

from kvcore.base.words import Language, words
from kvcore.charts.plan_report import qr_image
from pages.ui.shared.shell import PAGES
from tests.link_examples import examples
from tests.page_app import APP, checked, metrics

WORKED = {
    "model": "Qwen/Qwen3-32B",
    "accelerator": "H100-80GB",
    "tensor_parallel_size": "2",
    "max_model_len": "8192",
}
LARGE = 'class="kv-qr kv-qr-large"'
LONG = {f"env.NAME_{number}": "x" * 200 for number in range(40)}


def opened(path: str, params: dict[str, str], locale: str = "en-US", *, large: bool = False) -> AppTest:
    app = AppTest.from_file(APP, default_timeout=300)
    app.context = {"locale": locale}
    for language in Language:
        app.session_state[f"share_link.{language}"] = True
    app.session_state["share.large"] = large
    for name, value in params.items():
        app.query_params[name] = value
    if path:
        app.switch_page(f"pages/{path}.py")
    return checked(app.run())


def blocks(app: AppTest) -> Iterator[Any]:
    """The containers of a page."""
    pending = [app.main]
    for node in pending:
        pending += [child for child in node.children.values() if hasattr(child, "children")]
        yield node


def shared(app: AppTest) -> str:
    return next(block.value for block in app.code if block.value.startswith("http"))


def html(app: AppTest) -> str:
    return "".join(element.proto.body for element in app.get("html"))


def answers(app: AppTest) -> list[str]:
    """Verdict, refusal, figures and fixes."""
    kinds = (app.success, app.warning, app.error, app.text)
    labels = [one.label for one in app.button if (one.key or "").startswith(("fix", "accepted", "setting"))]
    told = [one.value for kind in kinds for one in kind]
    # The shared link names the release.
    unnamed = ("No engine version is given", "设置了 VLLM_USE_V1=0 但未给出版本")
    told = [text for text in told if not text.startswith(unnamed)]
    return [*told, str(metrics(app)), *(label for label in labels if label != "VLLM_USE_V1=0")]


@pytest.mark.parametrize("path", [spec.path for spec in PAGES])
@pytest.mark.parametrize("language", Language)
def test_it_is_on_every_page_and_gives_that_page_in_that_language(path: str, language: Language) -> None:
    app = opened(path, WORKED | {"lang": language.value, "wanted": "50", "vary": "block_size"})
    t = words(language)
    assert [block.proto.popover.label for block in blocks(app) if block.type == "popover"][:1] == [t("Share")]
    link = urlsplit(shared(app))
    query = dict(parse_qsl(link.query))
    assert link.path == f"/{path}"
    assert (query["lang"], query["wanted"], query["vary"]) == (language.value, "50", "block_size")
    assert query["tensor_parallel_size"] == "2"
    assert f'alt="{t("QR code of this link")}"' in html(app)
    assert escape(qr_image(shared(app))) in html(app)


@pytest.mark.parametrize("number", range(20))
def test_its_link_opens_with_the_same_verdict_numbers_refusal_and_fixes(number: int) -> None:
    found = list(examples(20, seed=31))[number]
    app = opened("", found.params)
    again = opened("", dict(parse_qsl(urlsplit(shared(app)).query, keep_blank_values=True)), locale="de-DE")
    assert answers(again) == answers(app), found.params
    assert again.session_state["language"] == app.session_state["language"]


def test_the_code_fills_the_page_until_it_is_closed() -> None:
    app = opened("learn", WORKED | {"step": "3"}, large=True)
    assert LARGE in html(app)
    app = checked(app.button(key="share.close").click().run())
    assert LARGE not in html(app)


def test_a_link_too_long_for_a_code_or_for_a_proxy_says_so() -> None:
    app = opened("", WORKED | LONG)
    said = "\n".join(one.value for one in (*app.caption, *app.warning))
    assert "too long for a QR code" in said
    assert "some proxies and chat programs cut a link at 8,000" in said
    assert 'class="kv-qr' not in html(app)


def test_a_code_is_black_on_white_with_its_quiet_zone() -> None:
    svg = unquote(qr_image("https://example.org/?v=1")).replace("'", '"')
    size = int(re.search(r'viewBox="0 0 (\d+) \1"', svg)[1])
    # Version 2 has 25 modules a side, and four of white all around.
    assert size == 25 + 2 * 4
    assert f'fill="#fff" d="M0 0h{size}v{size}h-{size}z"' in svg
    assert 'stroke="#000" d="M4 4.5h7' in svg
