"""Every page in both themes, judged by axe: nothing serious, so contrast, names and roles hold for all visitors."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from pages.ui.shared.shell import PAGES
from tests.browser.conftest import OpenPage, at_rest

pytestmark = pytest.mark.browser
SERIOUS = ("serious", "critical")
LINK = "?model=Qwen/Qwen3-8B&accelerator=H100-80GB&max_model_len=8192&max_num_seqs=16"
REFUSED = "?model=Qwen/Qwen3-32B&accelerator=RTX-4090-24GB"
"""A plan that does not fit: the verdict, the fixes and the marks of a failure are judged too."""
NOT_OURS = ("#stDecoration", ".js-plotly-plot", "[data-testid=stDataFrame]")
"""Drawn by libraries on a canvas or as SVG, each with its own text alternative next to it."""


STYLED = """() => !document.querySelector("[data-testid=stSkeleton]") && [...document.styleSheets].some(
  (sheet) => [...sheet.cssRules].some((rule) => rule.selectorText === ".kv-legend"))"""


def drawn(page: Page) -> None:
    """Waits for the end of the run, for every element's code, and for our own stylesheet, which is one of them."""
    at_rest(page)
    page.wait_for_function(STYLED)


def serious_violations(page: Page) -> list[str]:
    """What axe finds serious: rule, element, why."""
    found = Axe().run(page, context={"exclude": [[selector] for selector in NOT_OURS]})
    return [
        f"{violation['id']}: {node['target']} {node['failureSummary']}"
        for violation in found.response["violations"]
        if violation["impact"] in SERIOUS
        for node in violation["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", [spec.path for spec in PAGES])
def test_nothing_serious(open_page: OpenPage, server: str, path: str, scheme: str) -> None:
    page = open_page(f"{server}/{path}{LINK}", scheme=scheme, wait=drawn)
    assert serious_violations(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("part", ["stories&story_step=4", "going-live&ticked=alerts&alert_kv=80"])
def test_nothing_serious_in_a_part_of_reference(
    open_page: OpenPage, server: str, part: str, scheme: str
) -> None:
    page = open_page(f"{server}/reference{LINK}&section={part}", scheme=scheme, wait=drawn)
    assert serious_violations(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "part", ["step=8&reveal=1", "lesson=c&step=10&reveal=1", "path=45&step=13&present=true"]
)
def test_nothing_serious_in_a_lesson_with_its_solutions(
    open_page: OpenPage, server: str, part: str, scheme: str
) -> None:
    page = open_page(f"{server}/learn{LINK}&{part}", scheme=scheme, wait=drawn)
    assert serious_violations(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_where_it_does_not_fit(open_page: OpenPage, server: str, scheme: str) -> None:
    page = open_page(f"{server}/{REFUSED}", scheme=scheme, wait=drawn)
    assert serious_violations(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_on_a_phone_with_all_options(open_page: OpenPage, server: str, scheme: str) -> None:
    page = open_page(f"{server}/{LINK}", width=390, height=844, scheme=scheme, wait=drawn)
    assert serious_violations(page) == []
