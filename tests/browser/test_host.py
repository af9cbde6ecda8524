"""The host's memory from the Plan page to a deployment: the bar, the step between releases, and limits that hold."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage, at_rest

pytestmark = pytest.mark.browser

ASKED = (
    "model=zai-org/GLM-5.2-FP8&accelerator=H200-141GB&tensor_parallel_size=8&max_model_len=131072&kv_cache_dtype=fp8"
    "&kv_offloading_size=200"
)


def deployment(page: Page) -> str:
    """The Kubernetes file of the page."""
    page.get_by_text("Launch and export").first.click()
    at_rest(page)
    page.get_by_role("radio", name="Kubernetes").click()
    at_rest(page)
    text: str = page.locator("[data-testid=stCode] code").last.inner_text()
    return text


def check(manifest: str) -> str:
    """The outcome of `kvcore check`."""
    command = [sys.executable, "-m", "kvcore", "check", "-", "--accelerator", "H200-141GB", "--json"]
    run = subprocess.run(command, input=manifest, capture_output=True, text=True, check=False)
    found: str = json.loads(run.stdout)["workloads"][0]["verdict"]
    return found


@pytest.mark.parametrize(
    ("version", "tier", "told", "outcome_of_64_mib"),
    [
        ("0.26.0", "Tier 322.5 GiB", "pins every tensor of a rank as the next power of two", "starts"),
        ("0.33.0", "Tier 200.0 GiB", "is a file of 200.0 GiB in /dev/shm", "does-not-start"),
    ],
)
def test_a_tier_from_the_plan_to_a_deployment(
    server: str, open_page: OpenPage, version: str, tier: str, told: str, outcome_of_64_mib: str
) -> None:
    page = open_page(f"{server}/?{ASKED}&engine_version={version}")
    expect(page.locator(".kv-host-bar")).to_be_visible()
    expect(page.locator("[data-testid=stMain]")).to_contain_text(tier)
    expect(page.locator("[data-testid=stMain]")).to_contain_text(told, timeout=60_000)
    manifest = deployment(page)
    limit = re.search(r"memory: (\d+)Gi", manifest)
    assert limit is not None
    assert int(limit[1]) >= float(tier.split()[1])
    assert check(manifest) == "starts"
    assert check(re.sub(r"sizeLimit: \S+", "sizeLimit: 64Mi", manifest)) == outcome_of_64_mib
