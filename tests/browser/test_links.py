"""Links in a real Chromium: each renders, and the link that its page gives shows the same in a fresh browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlencode, urljoin, urlsplit

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.conftest import at_rest
from tests.link_examples import Example, examples

pytestmark = pytest.mark.browser

LINKS = 30
PARTS = 5
SEED = 11
READINGS = 240
"""Of a page, four a second, until two agree: a busy machine may draw for a long time, but not for ever."""
SAID = ", ".join(
    f"[data-testid=stMain] [data-testid={name}]"
    for name in (
        "stAlert",
        "stMetric",
        "stText",
        "stCaptionContainer",
        "stHeading",
        "stButton",
        "stMarkdown",
        "stHtml",
    )
)
"""What a page says: verdict, refusal, figures, fixes, notes."""


@contextmanager
def opened(browser: Browser, address: str) -> Iterator[Page]:
    """A fresh browser at an address, until the page stands."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    try:
        page = context.new_page()
        page.goto(address)
        page.locator(".st-key-navigation a:visible").last.wait_for()
        at_rest(page)
        yield page
    finally:
        context.close()


def said(page: Page) -> list[str]:
    """The words of a page, in its order."""
    return [text for text in page.locator(SAID).all_inner_texts() if text]


def drawn(page: Page) -> list[str]:
    """The same, once nothing more is added to it: a browser draws behind the end of the run."""
    at_rest(page)
    found: list[str] = []
    for _ in range(READINGS):
        if (now := said(page)) == found and now:
            return found
        found = now
        page.wait_for_timeout(250)
    raise AssertionError(f"{page.url} says {'nothing' if not found else 'something else each time'}")


def both_drawn(one: Page, other: Page) -> tuple[list[str], list[str]]:
    """The words of two pages as soon as they agree, or as they stand after a minute of waiting for the slower one."""
    for _ in range(240):
        if (pair := (drawn(one), drawn(other)))[0] == pair[1]:
            break
    return pair


def own_link(page: Page) -> str:
    """The link of the page to itself, as its navigation has it."""
    path = urlsplit(page.url).path.strip("/")
    hrefs = page.locator(".st-key-navigation a").evaluate_all("links => links.map(link => link.href)")
    return next(href for href in hrefs if urlsplit(href).path.strip("/") == path)


@pytest.mark.parametrize("part", range(PARTS))
def test_a_link_shows_the_same_in_a_fresh_browser(server: str, browser: Browser, part: int) -> None:
    for page_name, params in list(examples(LINKS, SEED))[part::PARTS]:
        path = "" if page_name == "plan" else page_name
        with opened(browser, f"{urljoin(server, path)}?{urlencode(params)}") as page:
            assert drawn(page), Example(page_name, params)
            with opened(browser, own_link(page)) as again:
                first, second = both_drawn(page, again)
        assert not any("internal-error" in text for text in first), Example(page_name, params)
        assert second == first, Example(page_name, params)
