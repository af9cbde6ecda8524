"""Two replicas behind the proxy that docs/hosting ships, by its own Caddyfile: what a person has who is hosted so."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page

from pages.ui.shared import shell
from tests.browser.conftest import STATE_SECONDS, at_rest, metrics, settled, until
from tools.programs import PROXY_ADVICE, find_proxy
from tools.server import Server, free_port, running_server, wait_until_healthy

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[2]
CADDYFILE = ROOT / "docs" / "hosting" / "Caddyfile"
PLAN = "?model=Qwen/Qwen3-32B&accelerator=H100-80GB&tensor_parallel_size=2&max_model_len=8192"
PAGES = tuple(spec.path for spec in shell.PAGES)
LOG = ROOT / "tests" / "data" / "logs" / "v1_0.10.2_h100.log"
WATCH_POLICY = """
addEventListener("securitypolicyviolation", (event) =>
  console.error("VIOLATION", event.effectiveDirective, event.blockedURI, event.sample));
"""


@dataclass(frozen=True, kw_only=True)
class Hosted:
    """The proxy's address, and the replicas behind it."""

    address: str
    replicas: tuple[Server, ...]


@contextmanager
def proxy(replicas: tuple[Server, ...], folder: Path, **environment: str) -> Iterator[str]:
    """Caddy with the shipped Caddyfile; its address."""
    caddy = find_proxy()
    if caddy is None:
        if os.environ.get("CI"):
            pytest.fail(PROXY_ADVICE)
        pytest.skip(PROXY_ADVICE)
    address, log = f"http://127.0.0.1:{free_port()}", folder / "caddy.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [caddy, "run", "--config", CADDYFILE, "--adapter", "caddyfile"],
            stdout=out, stderr=subprocess.STDOUT,
            env={
                "KV_SITE": address,
                "KV_UPSTREAMS": " ".join(urlsplit(replica.address).netloc for replica in replicas),
                "KV_COOKIE_SECRET": "a secret",
                "HOME": str(folder),
                **environment,
            },
        )  # fmt: skip
    try:
        wait_until_healthy(Server(address=address, process=process, log=log))
        yield address
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the Dockerfile copies, and no others."""
    folder = tmp_path_factory.mktemp("image") / "app"
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for name in " ".join(copied).split():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def hosted(image: Path) -> Iterator[Hosted]:
    """Two replicas of the image's files, the environment that of compose.yaml."""
    same = {"STREAMLIT_SERVER_COOKIE_SECRET": "the same everywhere", "PYTHONDONTWRITEBYTECODE": "1"}
    with ExitStack() as started:
        replicas = tuple(
            started.enter_context(
                running_server(image.parent / f"replica-{number}.log", folder=image, environment=same)
            )
            for number in (1, 2)
        )
        yield Hosted(address=started.enter_context(proxy(replicas, image.parent)), replicas=replicas)


def visitor(browser: Browser, locale: str = "en-US") -> tuple[Page, list[str]]:
    """A page of a new visitor, and what its policy blocks and its scripts throw from now on."""
    context = browser.new_context(locale=locale)
    context.add_init_script(WATCH_POLICY)
    page = context.new_page()
    broken: list[str] = []
    page.on("pageerror", lambda error: broken.append(f"thrown: {error}"))
    page.on("console", lambda said: "VIOLATION" in said.text and broken.append(said.text))
    return page, broken


def drawn(page: Page, language: str) -> None:
    """The run is over, and our own script has run: it alone marks the page's link."""
    at_rest(page)
    page.locator(f"html[lang={language}]").wait_for(state="attached")
    page.locator(".st-key-navigation a[aria-current=page]").first.wait_for(state="attached")


def replica_of(page: Page) -> str:
    """Which replica the proxy keeps the visitor on, as its cookie names it."""
    return next(one["value"] for one in page.context.cookies() if one["name"] == "kv_replica")


def visitors_of_both(hosted: Hosted, browser: Browser) -> tuple[Page, Page]:
    """A visitor on each replica: the proxy spreads newcomers at random."""
    found: dict[str, Page] = {}
    for _ in range(60):
        page, _ = visitor(browser)
        page.goto(f"{hosted.address}/_stcore/health")
        if found.setdefault(replica_of(page), page) is not page:
            page.context.close()
        if len(found) == 2:
            break
    first, second = found.values()
    return first, second


def move_slider(page: Page) -> None:
    """One step of the last slider (utilization), until the link and the page say so."""
    before = page.url
    page.locator("[data-testid=stSidebar] input[type=range]").last.press("ArrowLeft")
    until(page, "before => location.href !== before", before)
    settled(page)


def get(address: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """One answer; the path is sent as it is written."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(("locale", "language"), [("en-US", "en"), ("zh-CN", "zh-CN")])
def test_no_page_breaks_under_the_policy(
    hosted: Hosted, browser: Browser, locale: str, language: str
) -> None:
    page, broken = visitor(browser, locale)
    for path in PAGES:
        page.goto(f"{hosted.address}/{path}{PLAN}")
        drawn(page, language)
        if path == "":
            settled(page)
        assert page.locator("[data-testid=stException]").count() == 0, path
        assert broken == [], path
    page.context.close()


def test_the_policy_is_in_force(hosted: Hosted, browser: Browser) -> None:
    page, broken = visitor(browser)
    page.goto(f"{hosted.address}/{PLAN}")
    drawn(page, "en")
    assert broken == []
    with page.expect_console_message(lambda said: "VIOLATION img-src" in said.text):
        page.evaluate(
            """() => {
              const script = document.createElement("script");
              script.textContent = "window.planted = true";
              document.body.append(script, Object.assign(new Image(), {src: "http://127.0.0.1:9/x.png"}));
            }"""
        )
    assert page.evaluate("window.planted === undefined")
    assert {line.split()[1] for line in broken} == {"script-src-elem", "img-src"}
    page.context.close()


def test_an_upload_is_read_and_a_report_names_the_address_of_the_proxy(
    hosted: Hosted, browser: Browser
) -> None:
    page, broken = visitor(browser)
    page.goto(f"{hosted.address}/check{PLAN}")
    drawn(page, "en")
    with page.expect_response(lambda answer: "upload_file" in answer.url) as uploaded:
        page.locator("input[type=file]").first.set_input_files(LOG)
    assert uploaded.value.ok
    page.get_by_text(LOG.name).first.wait_for()

    page.goto(f"{hosted.address}/{PLAN}")
    settled(page)
    page.get_by_text("Launch and export").first.click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Printable report").click()
    report = Path(download.value.path()).read_text("utf-8")
    assert f"{hosted.address}/?" in report
    assert "localhost" not in report
    assert broken == []
    page.context.close()


def test_a_link_made_on_one_replica_opens_on_the_other(hosted: Hosted, browser: Browser) -> None:
    first, second = visitors_of_both(hosted, browser)
    first.goto(f"{hosted.address}/{PLAN}")
    settled(first)
    planned = metrics(first)
    move_slider(first)
    assert metrics(first) != planned
    second.goto(first.url)
    settled(second)
    assert metrics(second) == metrics(first)
    assert replica_of(first) != replica_of(second)
    first.context.close()
    second.context.close()


def test_the_servers_own_figures_are_closed(hosted: Hosted) -> None:
    assert b"# TYPE" in get(hosted.replicas[0].address, "/_stcore/metrics")[2]
    for path in (
        "/_stcore/metrics", "/_stcore/metrics/", "/_stcore/metrics?x=1", "//_stcore/metrics", "/_stcore//metrics",
        "/_stcore/./metrics", "/x/../_stcore/metrics", "/_stcore/%6Detrics", "/%5Fstcore/metrics",
        "/_STCORE/METRICS", "/explore/../_stcore/metrics",
    ):  # fmt: skip
        assert b"# TYPE" not in get(hosted.address, path)[2], path
    for path in ("/_stcore/metrics", "/_stcore/agent/openapi.json", "/_stcore/script-health-check"):
        assert get(hosted.address, path)[0] == 404, path


def test_headers_and_compression(hosted: Hosted) -> None:
    status, headers, page = get(hosted.address, "/")
    assert status == 200
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "server" not in headers
    (script,) = re.findall(rb'type="module" crossorigin src="\.(/static/js/index[^"]+)"', page)
    sizes = {}
    for encoding in ("identity", "gzip", "zstd"):
        _, headers, body = get(hosted.address, script.decode(), **{"Accept-Encoding": encoding})
        assert headers.get("content-encoding", "identity") == encoding
        sizes[encoding] = len(body)
    assert max(sizes["gzip"], sizes["zstd"]) < sizes["identity"] / 2


@contextmanager
def page_that_embeds(address: str) -> Iterator[str]:
    """Another site, with the app in a frame."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f'<iframe width="1200" height="800" src="{address}"></iframe>'.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()


def test_only_sites_that_are_named_may_embed_it(hosted: Hosted, browser: Browser, tmp_path: Path) -> None:
    page, _ = visitor(browser)
    with page_that_embeds(f"{hosted.address}/{PLAN}") as site:
        with page.expect_console_message(lambda said: "frame-ancestors" in said.text):
            page.goto(site)
        assert page.frame_locator("iframe").locator("[data-testid=stApp]").count() == 0
    with (
        proxy(hosted.replicas, tmp_path, KV_FRAME_ANCESTORS="http://localhost:*") as address,
        page_that_embeds(f"{address}/{PLAN}&embed=true") as site,
    ):
        page.goto(site)
        page.frame_locator("iframe").locator("[data-testid=stMetric]").nth(3).wait_for()
    page.context.close()


def test_a_replica_that_is_killed_is_missed_by_nobody(hosted: Hosted, browser: Browser) -> None:
    """The last test of the file: one replica is gone afterwards."""
    pages = visitors_of_both(hosted, browser)
    for page in pages:
        page.goto(f"{hosted.address}/{PLAN}")
        settled(page)
        move_slider(page)
    (planned,) = {tuple(metrics(page).items()) for page in pages}
    assert replica_of(pages[0]) != replica_of(pages[1])
    hosted.replicas[0].kill()
    # Whose replica is gone asks again, of itself, and is moved by the answer.
    deadline = time.monotonic() + STATE_SECONDS
    while replica_of(pages[0]) != replica_of(pages[1]):
        assert time.monotonic() < deadline
        pages[0].wait_for_timeout(50)
    for page in pages:
        page.locator("[data-testid=stApp][data-test-connection-state=CONNECTED]").wait_for()
        settled(page)
        assert tuple(metrics(page).items()) == planned
        move_slider(page)
        assert tuple(metrics(page).items()) != planned
    newcomer, broken = visitor(browser)
    newcomer.goto(f"{hosted.address}/{PLAN}")
    settled(newcomer)
    assert broken == []
    for page in (*pages, newcomer):
        page.context.close()
