"""A server of our own and a real Chromium."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tools.browser import ADVICE, find_browser

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60

OpenPage = Callable[..., Page]


@contextmanager
def running_server(log: Path) -> Iterator[str]:
    """The app on a free port, gone afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "streamlit",
        "run",
        "app.py",
        f"--server.port={port}",
        "--server.address=127.0.0.1",
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "HF_HUB_OFFLINE": "1"}
        )
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_until_healthy(address, process, log)
            yield address
        finally:
            process.terminate()
            process.wait(timeout=20)


def _wait_until_healthy(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{address}/_stcore/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"the server did not start:\n{log.read_text(errors='replace')[-2000:]}")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium; where there is none, a skip that says how to get one, and in CI a failure."""
    path = find_browser()
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(ADVICE)
        pytest.skip(ADVICE)
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def fresh_server(tmp_path: Path) -> Iterator[str]:
    """A server that nobody has visited."""
    with running_server(tmp_path / "server.log") as address:
        yield address


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server for all tests of the session."""
    with running_server(tmp_path_factory.mktemp("server") / "server.log") as address:
        yield address


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens an address in a context of its own and waits until the page stands."""
    contexts = []

    def opened(
        address: str, *, width: int = 1440, height: int = 900, scheme: str = "light", locale: str = "en-US"
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,  # type: ignore[arg-type]
            locale=locale,
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.goto(address)
        settled(page)
        return page

    yield opened
    for context in contexts:
        context.close()


def settled(page: Page) -> None:
    """Waits for the cards, both charts, and the end of the run."""
    page.locator("[data-testid=stMetric]").nth(3).wait_for()
    page.locator(".js-plotly-plot .main-svg").nth(1).wait_for()
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()


def metrics(page: Page) -> dict[str, str]:
    """The cards: label -> value."""
    cards = page.locator("[data-testid=stMetric]")
    return {
        card.locator("[data-testid=stMetricLabel]").inner_text().split("\n")[0]: card.locator(
            "[data-testid=stMetricValue]"
        ).inner_text()
        for card in cards.all()
    }
