"""Pages stand still while they come: the layout shift of a fresh link, summed up, which no machine's speed changes."""

from __future__ import annotations

import pytest

from pages.ui.shared.shell import PAGES
from tests.browser.conftest import OpenPage, at_rest, until
from tools.shift import LIMIT, shift_of

SCENARIO = (
    "?model=openai/gpt-oss-120b&accelerator=H100-80GB&tensor_parallel_size=2&max_model_len=131000&wanted=40"
)
STANDS_MS = 2000
PUSH = """() => {
  const pushed = document.createElement("div");
  pushed.style.height = "400px";
  document.querySelector("[data-testid=stMainBlockContainer]").prepend(pushed);
}"""


@pytest.mark.parametrize("path", [spec.path for spec in PAGES])
def test_a_page_stands_still_while_it_comes(server: str, open_page: OpenPage, path: str) -> None:
    page = open_page(f"{server}/{path}{SCENARIO}", wait=at_rest)
    until(page, "() => !document.querySelector('[data-testid=stSkeleton]')")
    page.wait_for_timeout(STANDS_MS)
    assert shift_of(page) < LIMIT


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_the_first_visit_of_a_server_stands_still(
    fresh_server: str, open_page: OpenPage, width: int, height: int
) -> None:
    """Its elements come before the code of some: a placeholder is as high as what takes its place."""
    page = open_page(f"{fresh_server}/{SCENARIO}", width=width, height=height, wait=at_rest)
    until(page, "() => !document.querySelector('[data-testid=stSkeleton]')")
    page.wait_for_timeout(STANDS_MS)
    assert shift_of(page) < LIMIT


def test_a_part_that_pushes_the_page_down_is_measured(server: str, open_page: OpenPage) -> None:
    page = open_page(server, wait=at_rest)
    page.wait_for_timeout(STANDS_MS)
    page.evaluate(PUSH)
    assert shift_of(page) > LIMIT
