"""The Learn page in Chromium: a guess is judged, the step is in the link, the arrow keys walk, a phone has room."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, expect

from kvcore.texts import PATHS
from pages.ui.learn.look import WITHOUT_BAR
from tests.browser.conftest import at_rest, metrics, moved, pressed, settled, until
from tools import server as server_process

pytestmark = pytest.mark.browser

QUERY = "v=1&model=Qwen/Qwen3-32B&accelerator=H100-80GB&tensor_parallel_size=2&max_model_len=8192"


FITS = "selector => document.querySelector(selector).scrollHeight <= innerHeight"


def opened(browser: Browser, address: str, **options: object) -> Page:
    page = browser.new_context(locale="en-US", **options).new_page()  # type: ignore[arg-type]
    page.goto(address)
    waited(page)
    return page


def waited(page: Page) -> None:
    page.locator("h2").wait_for()
    at_rest(page)


def test_a_guess_is_judged_and_the_link_gives_the_same_step(server: str, browser: Browser) -> None:
    page = opened(browser, f"{server}/learn?{QUERY}&step=6")
    expect(page.locator("h2")).to_have_text("6 · What does one token cost?")
    expect(page.locator(".katex-display")).to_have_count(0)
    field = page.get_by_label("Your guess (KiB)")
    # A choice of the hidden size, 2 × 64 × 5,120 × 2 bytes over 2 cards; the arrow stays in the field.
    field.fill("640")
    field.press("ArrowLeft")
    field.press("Enter")
    guess = page.locator(".st-key-learn_guess_token")
    expect(guess).to_contain_text("5 times too high. That is the formula with the hidden size")
    expect(guess).to_contain_text("Answer: 128 KiB")
    expect(page.locator(".katex-display").first).to_be_visible()
    page.get_by_role("button", name="Next", exact=False).first.click()
    expect(page.locator("h2")).to_have_text("7 · How many tokens fit in the KV cache?")
    page.wait_for_url("**step=7**")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("h2")).to_have_text("6 · What does one token cost?")
    page.keyboard.press("ArrowRight")
    expect(page.locator("h2")).to_have_text("7 · How many tokens fit in the KV cache?")
    waited(page)
    shown = answer(page)
    again = opened(browser, page.url)
    expect(again.locator("h2")).to_have_text("7 · How many tokens fit in the KV cache?")
    assert answer(again) == shown
    again.get_by_test_id("stMain").get_by_role("link", name="Plan", exact=True).click()
    settled(again)
    assert f"Answer: {metrics(again)['KV cache tokens']} tokens" == shown
    page.context.close()
    again.context.close()


def answer(page: Page) -> str:
    page.get_by_role("button", name="Reveal").click()
    shown = page.locator(".kv-solution").inner_text()
    waited(page)
    return shown


def test_a_phone_has_room_for_every_formula(server: str, browser: Browser) -> None:
    page = opened(browser, f"{server}/learn?{QUERY}&step=3", viewport={"width": 390, "height": 844})
    answer(page)
    page.locator(".katex-display").nth(3).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    # Until KaTeX's fonts have come a formula is set in another, wider one.
    until(
        page,
        "() => [...document.querySelectorAll('.katex-display, .kv-lesson, .kv-effects')]"
        ".every((one) => one.scrollWidth <= one.clientWidth + 1)",
    )
    page.context.close()


def revealed(page: Page) -> None:
    """Asks for the answer by the keyboard."""
    page.get_by_role("button", name="揭晓答案").focus()
    page.keyboard.press("Enter")


SLIDE = "[data-testid=stMainBlockContainer]"
FITS = f"() => document.querySelector('{SLIDE}').scrollHeight <= 720"
MODELS = {
    "20": "model=openai/gpt-oss-120b&accelerator=H100-80GB&tensor_parallel_size=2&max_model_len=131072",
    "45": "model=Qwen/Qwen3-32B&accelerator=H100-80GB&tensor_parallel_size=2&max_model_len=8192",
}


@pytest.mark.parametrize(("path", "lang", "answers"), [("20", "en", True), ("45", "zh", False)])
def test_every_slide_of_a_path_fits_a_projector(
    server: str, browser: Browser, path: str, lang: str, answers: bool
) -> None:
    """1280 × 720, by the keyboard from the first slide to the last, with all answers and before any."""
    shown = f"&path={path}&lang={lang}&present=true{'&answers=true' if answers else ''}"
    page = opened(browser, f"{server}/learn?{MODELS[path]}{shown}", viewport={"width": 1280, "height": 720})
    following = page.locator(".st-key-learn-next button")
    slides = 1
    while following.is_enabled():
        until(page, FITS)
        moved(page, "ArrowRight")
        at_rest(page)
        slides += 1
    until(page, FITS)
    assert slides >= 3 * len(PATHS[path].steps) - len(WITHOUT_BAR)
    page.context.close()


def test_a_class_goes_through_a_step_with_the_keyboard_in_chinese(server: str, browser: Browser) -> None:
    page = opened(
        browser,
        f"{server}/learn?{QUERY}&lang=zh&present=true&lesson=d",
        viewport={"width": 1280, "height": 720},
    )
    expect(page.locator("h2")).to_have_text(re.compile(r"^1 · .*[\u4e00-\u9fff]"))
    moved(page, "ArrowRight")
    page.locator(".kv-timeline").wait_for()
    assert page.locator(".kv-later").count() > 40
    moved(page, "n")
    page.wait_for_url("**frame=1**")
    moved(page, "ArrowRight")
    solution = page.locator(".st-key-learn_guess_batching .kv-solution")
    pressed(page, partial(revealed, page), solution.is_visible)
    moved(page, "ArrowRight")
    page.locator(".katex-display").first.wait_for()
    assert "present=true" in page.url
    moved(page, "ArrowLeft")
    solution.wait_for()
    page.context.close()


SMALL = """(places) => {
  const small = new Set();
  for (const slide of document.querySelectorAll(places)) {
    const texts = document.createTreeWalker(slide, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const one = texts.currentNode.parentElement;
      const isShown = one.checkVisibility({visibilityProperty: true}) && one.getBoundingClientRect().width > 1;
      const text = texts.currentNode.data.trim();
      if (!text || !isShown || one.closest(".katex, button, style, [data-testid=stIconMaterial]")) continue;
      const size = parseFloat(getComputedStyle(one).fontSize) * one.currentCSSZoom;
      if (size < 18) small.add(`${size} ${one.className || one.parentElement.className}: ${text.slice(0, 40)}`);
    }
  }
  return [...small];
}"""
"""Texts below 18 px, which a class cannot read from its seats."""

KINDS: Final = {
    "full attention": "model=Qwen/Qwen3-32B&accelerator=H100-80GB&tensor_parallel_size=2&max_model_len=8192",
    "windows": "model=google/gemma-3-27b-it&accelerator=H100-80GB&max_model_len=8192",
    "latent, mixture": "model=deepseek-ai/DeepSeek-V3&accelerator=H200-141GB&tensor_parallel_size=8",
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_moving_pictures_go_scene_by_scene(server: str, browser: Browser, kind: str) -> None:
    address = f"{server}/learn?{KINDS[kind]}&lesson=0&present=true"
    page = opened(browser, address, viewport={"width": 1280, "height": 720})
    captions = []
    while not page.url.endswith("lesson=a") and "lesson=a&" not in page.url:
        until(page, FITS)
        assert not page.evaluate(SMALL, ".kv-scene")
        captions.append(page.locator(".kv-said").inner_text())
        if len(captions) == 4:
            assert page.locator(".kv-new").count() > 4
            moves = "() => getComputedStyle(document.querySelector('.kv-new')).animationName"
            assert page.evaluate(moves) == "kv-comes"
            page.emulate_media(reduced_motion="reduce")
            assert page.evaluate(moves) == "none"
        moved(page, "ArrowRight")
        at_rest(page)
    assert len(set(captions)) == len(captions) > 18
    page.context.close()


def test_the_arrows_walk_right_after_the_mouse_turned_the_presentation_on(
    server: str, browser: Browser
) -> None:
    page = opened(browser, f"{server}/learn?{QUERY}&step=7", viewport={"width": 1280, "height": 720})
    page.get_by_role("button", name="Present", exact=True).click()
    page.get_by_role("button", name="End presentation").wait_for()
    at_rest(page)
    moved(page, "ArrowRight")
    page.wait_for_url("**slide=2**")
    page.get_by_role("button", name="End presentation").click()
    page.get_by_role("button", name="Present", exact=True).wait_for()
    at_rest(page)
    moved(page, "ArrowLeft")
    expect(page.locator("h2")).to_have_text(re.compile(r"^6 · "))
    page.context.close()


def test_a_student_answers_and_a_teacher_prints(server: str, browser: Browser) -> None:
    page = opened(browser, f"{server}/learn?{QUERY}&step=6&seed=7", viewport={"width": 390, "height": 844})
    answer(page)
    question = page.locator(".st-key-learn_question_1")
    # Seed 7 asks for 7,500 tokens of 128 KiB: 937.5 MiB. The first guess is in KiB.
    field = question.get_by_label("Your answer (MiB)")
    field.fill("960000")
    field.press("Enter")
    expect(question).to_contain_text("That is a factor of 1,024")
    field.fill("937.5")
    field.press("Enter")
    expect(question).to_contain_text("Right.")
    page.wait_for_url("**score=**")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    again = opened(browser, f"{page.url}&answers=true")
    expect(again.locator(".st-key-learn_question_1")).to_contain_text("Right.")
    again.get_by_role("button", name="For a class").click()
    with again.expect_download() as handed:
        again.get_by_role("button", name="Teacher’s sheet").click()
    sheet = handed.value.path().read_text(encoding="utf-8")
    assert "2 × 62 × 8 × 192 × 2 = 372 KiB" in sheet
    # What a token takes is a question of its own: this one would state its answer.
    assert "7,500 × 128.00 KiB" not in sheet
    links = again.get_by_test_id("stCode").all_inner_texts()
    assert [("seed=7" in link, "score=" in link, "reveal=1" in link) for link in links] == [
        (True, False, False),
        (True, False, True),
    ]
    page.context.close()
    again.context.close()


def test_the_largest_formula_fits_a_projector(server: str, browser: Browser) -> None:
    """The sum of the framework step, in Chinese, with all its letters."""
    shown = "&path=90&step=5&slide=4&lang=zh&present=true&answers=true"
    page = opened(browser, f"{server}/learn?{MODELS['20']}{shown}", viewport={"width": 1280, "height": 720})
    page.locator(".katex-display").first.wait_for()
    until(page, FITS)
    page.context.close()


HEIGHTS = """() => {
  const main = document.querySelector("[data-testid=stMainBlockContainer]");
  const top = main.getBoundingClientRect().top;
  const head = document.querySelector("[class*=st-key-slide_0]").getBoundingClientRect().top - top;
  const under = parseFloat(getComputedStyle(main).paddingBottom);
  const name = (one) => one.className.match(/st-key-slide_(\\S+)/)[1];
  return [...document.querySelectorAll("[class*=st-key-slide_]")].map((one) => {
    const box = one.getBoundingClientRect();
    const wide = [...one.querySelectorAll(".katex-display, .kv-lesson, .kv-drawing, .kv-stack")];
    const isWide = wide.some((part) => part.scrollWidth > part.clientWidth + 1);
    return [name(one), Math.round(head + box.height + under), isWide];
  });
}"""


@pytest.fixture(scope="module")
def slide_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that shows all slides of a step below each other."""
    script = Path(__file__).with_name("every_slide.py")
    with server_process.running_server(tmp_path_factory.mktemp("slides") / "log", script=script) as started:
        yield started.address


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_slide_of_every_path_fits_a_projector(
    slide_server: str, browser: Browser, kind: str, lang: str
) -> None:
    """1280 × 720, all slides of the longest path, which has every step of the others."""
    assert all(set(path.steps) <= set(PATHS["90"].steps) for path in PATHS.values())
    shown = f"path=90&lang={lang}&present=true&answers=true"
    page = opened(
        browser, f"{slide_server}/learn?{KINDS[kind]}&{shown}", viewport={"width": 1280, "height": 720}
    )
    high: dict[str, int] = {}
    small: list[str] = []
    slides = 0
    for name in PATHS["90"].steps:
        page.locator(f".kv-all-of-{name}").wait_for(state="attached")
        at_rest(page)
        heights = page.evaluate(HEIGHTS)
        small += page.evaluate(SMALL, "[class*=st-key-slide_]")
        slides += len(heights)
        assert {"idea", "guess"} <= {slide.partition("_")[2] for slide, _, _ in heights}
        high |= {f"{name} {slide}": height for slide, height, is_wide in heights if height > 720 or is_wide}
        if name != PATHS["90"].steps[-1]:
            moved(page, "ArrowRight")
    assert not high
    assert not small
    assert slides > 6 * len(PATHS["90"].steps)
    page.context.close()


def test_a_step_stands_in_the_page_of_a_course(server: str, browser: Browser) -> None:
    """The frame that docs/teaching.md shows: nothing but the slide, and its keys walk inside the frame."""
    text = Path(__file__).parents[2].joinpath("docs", "teaching.md").read_text("utf-8")
    (frame,) = re.findall(r"<iframe.*?</iframe>", text, re.DOTALL)
    page = browser.new_context(viewport={"width": 1320, "height": 800}).new_page()
    page.set_content(frame.replace("https://kv.example.org", server).replace("&", "&amp;"))
    inside = page.frame_locator("iframe")
    expect(inside.locator("h2")).to_have_text("1 · What does one token cost?")
    expect(inside.locator(".kv-lesson").first).to_contain_text("one key and one value per KV head")
    expect(inside.get_by_test_id("stSidebar")).to_be_hidden()
    expect(inside.get_by_test_id("stHeader")).to_be_hidden()
    inside.get_by_role("button", name="Next").click()
    inside.locator(".kv-memory-bar").wait_for()
    page.context.close()
