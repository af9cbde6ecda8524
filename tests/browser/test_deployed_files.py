"""A Compose file and a chart's values dropped on Check: verdicts, a patch to copy, one click to Plan, two languages."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from kvcore.base.words import Language, words
from tests.browser.conftest import OpenPage, at_rest, settled, until

pytestmark = pytest.mark.browser

COMPOSE = """\
services:
  chat:
    image: vllm/vllm-openai:v0.23.0
    command: --model meta-llama/Llama-3.3-70B-Instruct --tensor-parallel-size 4 --max-model-len 131072
    environment:
      HF_TOKEN: hf_thatnobodyshouldeverread
    ipc: host
    deploy:
      placement:
        constraints: ["node.labels.gpu == L40S"]
      resources:
        reservations:
          devices: [{driver: nvidia, count: 4, capabilities: [gpu]}]
"""
"""33 GiB of weights on each of four cards leave too little for one request of 131,072 tokens."""
VALUES = """\
servingEngineSpec:
  modelSpec:
    - name: small
      repository: vllm/vllm-openai
      tag: v0.23.0
      modelURL: Qwen/Qwen3-8B
      replicaCount: 1
      requestGPU: 1
      vllmConfig:
        maxModelLen: 16384
      nodeSelectorTerms:
        - matchExpressions:
            - {key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-L4]}
"""
SAME = {
    "model": "meta-llama/Llama-3.3-70B-Instruct",
    "accelerator": "L40S-48GB",
    "tensor_parallel_size": "4",
    "max_model_len": "131072",
    "engine_version": "0.23.0",
}


@pytest.mark.parametrize(("locale", "language"), [("en-US", Language.ENGLISH), ("zh-CN", Language.CHINESE)])
def test_two_files_are_judged_mended_and_planned(
    server: str, open_page: OpenPage, locale: str, language: Language
) -> None:
    t = words(language)
    page = open_page(f"{server}/check?check=files", locale=locale, wait=at_rest)
    main = page.get_by_test_id("stMain")
    main.locator(".st-key-check-files-upload input[type=file]").set_input_files(
        [
            {"name": name, "mimeType": "application/yaml", "buffer": text.encode()}
            for name, text in (("compose.yaml", COMPOSE), ("values.yaml", VALUES))
        ]
    )
    rows = main.locator("[class*='st-key-check-files-row-']")
    expect(rows).to_have_count(2)
    at_rest(page)
    chat, small = rows.nth(0), rows.nth(1)
    for row, verdict, place in (
        (chat, "Does not start", "compose.yaml:3"),
        (small, "Starts as it is", "values.yaml:3"),
    ):
        expect(row.locator("p").first).to_contain_text(t(verdict))
        expect(row.get_by_text(place, exact=True)).to_be_visible()
    expect(chat.get_by_text("131,072").first).to_be_visible()
    expect(small.locator("code")).to_have_count(0)
    assert "hf_thatnobody" not in page.content()

    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    patch = chat.locator("code")
    expect(patch).to_contain_text("-    command: --model meta-llama/Llama-3.3-70B-Instruct")
    patch.hover()
    chat.get_by_test_id("stCode").get_by_role("button").click()
    until(page, "async () => (await navigator.clipboard.readText()).includes('+++ b/compose.yaml')")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("--- a/compose.yaml\n")

    chat.get_by_role("button", name=t("Open in Plan")).click()
    settled(page)
    expect(page.locator(".st-key-verdict [data-testid=stAlert]")).to_contain_text("131,072")
    found = parse_qs(urlsplit(page.url).query)
    assert {name: found.get(name) for name in SAME} == {name: [value] for name, value in SAME.items()}
