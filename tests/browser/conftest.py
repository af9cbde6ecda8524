"""A server of our own and a real Chromium."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from tools import server as server_process
from tools.programs import BROWSER_ADVICE, find_browser

STATE_SECONDS = 300
"""How long a state is waited for: on an idle machine each comes in a second or two, on a busy one when it comes."""
expect.set_options(timeout=STATE_SECONDS * 1000)

OpenPage = Callable[..., Page]

WATCH_RUNS = """
(() => {
  const topFields = (bytes) => {
    const fields = new Map();
    let at = 0;
    const varint = () => {
      let value = 0, factor = 1, byte;
      do { byte = bytes[at++]; value += (byte & 127) * factor; factor *= 128; } while (byte & 128);
      return value;
    };
    while (at < bytes.length) {
      const tag = varint(), wire = tag % 8;
      if (wire === 1 || wire === 5) { at += wire === 1 ? 8 : 4; continue; }
      const value = varint();
      fields.set((tag - wire) / 8, value);
      if (wire === 2) at += value;
    }
    return fields;
  };
  let isAskedFor = true;
  window.__atRest = false;
  const asked = () => { isAskedFor = true; window.__atRest = false; };
  window.WebSocket = class extends window.WebSocket {
    constructor(...all) {
      super(...all);
      this.addEventListener("message", (event) => {
        if (!(event.data instanceof ArrayBuffer)) return;
        const fields = topFields(new Uint8Array(event.data));
        if (fields.has(NEW_SESSION)) { isAskedFor = false; window.__atRest = false; }
        if ([SUCCESS, FRAGMENT].includes(fields.get(SCRIPT_FINISHED)) && !isAskedFor) window.__atRest = true;
      });
    }
    send(data) {
      if (data instanceof Uint8Array && topFields(data).has(RERUN)) asked();
      super.send(data);
    }
  };
})();
"""
"""Keeps `window.__atRest`: false from the moment that the page asks for a run until the last one is over.

Streamlit's own mark of a running script comes with the server's answer: on a busy machine a page looks idle for
seconds after a click.
"""
for _name, _number in {
    "NEW_SESSION": ForwardMsg.NEW_SESSION_FIELD_NUMBER,
    "SCRIPT_FINISHED": ForwardMsg.SCRIPT_FINISHED_FIELD_NUMBER,
    "SUCCESS": ForwardMsg.FINISHED_SUCCESSFULLY,
    "FRAGMENT": ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY,
    "RERUN": BackMsg.RERUN_SCRIPT_FIELD_NUMBER,
}.items():
    WATCH_RUNS = WATCH_RUNS.replace(_name, str(_number))


@contextmanager
def running_server(log: Path) -> Iterator[str]:
    """The app on a free port, gone afterwards; its address."""
    with server_process.running_server(log) as started:
        yield started.address


@contextmanager
def watched_browser(path: str | Path) -> Iterator[Browser]:
    """Chromium whose pages keep `window.__atRest`."""
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        plain_context = started.new_context

        def watched_context(**options: Any) -> BrowserContext:
            context = plain_context(**options)
            context.set_default_timeout(STATE_SECONDS * 1000)
            context.add_init_script(WATCH_RUNS)
            return context

        started.new_context = watched_context  # type: ignore[method-assign]
        yield started
        started.close()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium; where there is none, a skip that says how to get one, and in CI a failure.

    For this folder, not for the session: Playwright leaves a running event loop in the thread, and the worker of a
    busy machine goes on with tests that need one of their own.
    """
    path = find_browser()
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(BROWSER_ADVICE)
        pytest.skip(BROWSER_ADVICE)
    with watched_browser(path) as started:
        yield started


@pytest.fixture
def fresh_server(tmp_path: Path) -> Iterator[str]:
    """A server that nobody has visited."""
    with running_server(tmp_path / "server.log") as address:
        yield address


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server for all tests of this folder."""
    with running_server(tmp_path_factory.mktemp("server") / "server.log") as address:
        yield address


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens an address in a context of its own and waits until the page stands."""
    contexts = []

    def opened(
        address: str,
        *,
        width: int = 1440,
        height: int = 900,
        scheme: str = "light",
        locale: str = "en-US",
        wait: Callable[[Page], None] = settled,
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,  # type: ignore[arg-type]
            locale=locale,
        )
        contexts.append(context)
        page = context.new_page()
        page.goto(address)
        wait(page)
        return page

    yield opened
    for context in contexts:
        context.close()


def until(page: Page, expression: str, argument: object = None) -> None:
    """Waits until an expression is true in the page.

    Page.wait_for_function evaluates a text inside the page, which a content security policy without eval forbids.
    """
    deadline = time.monotonic() + STATE_SECONDS
    while not page.evaluate(expression, argument):
        assert time.monotonic() < deadline, f"never true: {expression}"
        page.wait_for_timeout(50)


def at_rest(page: Page) -> None:
    """Waits until every run that the page has asked for is over and drawn."""
    until(page, "() => window.__atRest")
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()


def pressed(page: Page, press: Callable[[], None], is_done: Callable[[], bool]) -> None:
    """Presses a key until it did something: one that falls between two runs is pressed again, as a person would."""
    for _ in range(10):
        press()
        for _ in range(20):
            page.wait_for_timeout(50)
            if is_done():
                break
        at_rest(page)
        if is_done():
            return
    raise AssertionError("the key does nothing")


def moved(page: Page, key: str) -> None:
    """Presses a key until the link is another."""
    before = page.url
    pressed(page, lambda: page.keyboard.press(key), lambda: page.url != before)


def settled(page: Page) -> None:
    """Waits for the end of the run, the cards, the bar and the chart."""
    at_rest(page)
    page.locator("[data-testid=stMetric]").nth(3).wait_for()
    page.locator(".kv-memory-bar").wait_for()
    page.locator(".kv-plot, .js-plotly-plot .main-svg").first.wait_for()


def metrics(page: Page) -> dict[str, str]:
    """The cards: label -> value."""
    cards = page.locator("[data-testid=stMetric]")
    return {
        card.locator("[data-testid=stMetricLabel]").inner_text().split("\n")[0]: card.locator(
            "[data-testid=stMetricValue]"
        ).inner_text()
        for card in cards.all()
    }
