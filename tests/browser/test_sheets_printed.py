"""The sheets of a class as Chromium prints them: whole questions on each page, nothing wider than the paper."""

from __future__ import annotations

import re
from typing import Final

import pytest
from playwright.sync_api import Browser

from kvcore.base.words import Language, words
from kvcore.charts.handout import Links, handout_html
from kvcore.course.lesson import route_of
from tests.derivation_plans import planned

pytestmark = pytest.mark.browser

PAPERS: Final = {"A4": (210, 297), "Letter": (216, 279)}
"""Width and height in millimetres."""
MARGIN: Final = 9
PIXELS: Final = 96 / 25.4
"""Pixels of CSS in a millimetre."""
LONG = "https://kv.example.org/learn?v=1&model=Qwen/Qwen3-32B&accelerator=H100-80GB&engine=vllm&path=20&seed=7&note="
MEASURED = """([height]) => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const name = (one) => `${one.tagName} ${one.textContent.slice(0, 40)}`;
  const edge = document.body.getBoundingClientRect().right + 1;
  const outside = all("body *").filter((one) => !one.closest("svg") && one.getBoundingClientRect().right > edge);
  const cut = all("svg[viewBox] text").filter((one) => {
    const box = one.getBoundingClientRect(), whole = one.ownerSVGElement.getBoundingClientRect();
    return box.left < whole.left - 1 || box.right > whole.right + 1 || box.top < whole.top - 1
      || box.bottom > whole.bottom + 1;
  });
  const kept = all("li, svg, h2, .step > p");
  const breaks = all("li, .step > p").filter((one) => getComputedStyle(one).breakInside !== "avoid");
  const tall = kept.filter((one) => one.getBoundingClientRect().height > height);
  return [outside, cut, breaks, tall].map((few) => few.map(name));
}"""


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize(("kind", "path"), [("dense", "20"), ("windows", "45"), ("latent", "90")])
@pytest.mark.parametrize("solved", [False, True])
def test_nothing_is_cut(
    browser: Browser, kind: str, path: str, language: Language, solved: bool, paper: str
) -> None:
    links = Links(students=LONG + "x" * 200, solutions=LONG + "x" * 200 + "&reveal=1")
    sheet = handout_html(planned(kind), route_of(path=path), 7, links, words(language), solved=solved)
    width, height = ((size - 2 * MARGIN) * PIXELS for size in PAPERS[paper])
    page = browser.new_context(viewport={"width": int(width), "height": int(height)}).new_page()
    page.set_content(sheet)
    page.emulate_media(media="print")
    assert page.evaluate(MEASURED, [height]) == [[], [], [], []]
    printed = page.pdf(format=paper)
    pages = len(re.findall(rb"/Type\s*/Page\b", printed))
    whole = page.evaluate("document.documentElement.scrollHeight") / height
    # A break before a question that would be cut leaves less than a third of a page empty.
    assert whole <= pages <= 1.34 * whole + 1
    sides = {tuple(map(float, box)) for box in re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", printed)}
    assert len(sides) == 1
    assert sides.pop() == pytest.approx([size / 25.4 * 72 for size in PAPERS[paper]], abs=1.5)
    page.context.close()
