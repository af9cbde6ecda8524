"""All lessons, lesson 0 with its pictures among them, on the page: fourteen models, both languages, each step with its
answer."""

from __future__ import annotations

import re
from typing import Final

import pytest

from kvcore.course.lesson import PICTURES, route_of
from kvcore.texts import SYLLABUS
from tests.page_app import checked
from tests.test_sheets_agree import bodies, opened

MODELS: Final = {
    "Qwen/Qwen3-32B": 2,
    "Qwen/Qwen3-30B-A3B": 2,
    "Qwen/Qwen3-Next-80B-A3B-Instruct": 4,
    "Qwen/Qwen3-Embedding-8B": 1,
    "Qwen/Qwen2.5-VL-7B-Instruct": 1,
    "Qwen/Qwen3-32B-AWQ": 1,
    "google/gemma-3-27b-it": 1,
    "openai/gpt-oss-120b": 2,
    "deepseek-ai/DeepSeek-V3": 8,
    "deepseek-ai/DeepSeek-V3.2": 8,
    "deepseek-ai/DeepSeek-V4-Flash": 4,
    "meta-llama/Llama-3.1-70B-Instruct": 4,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": 4,
    "tiiuae/falcon-mamba-7b": 1,
}
"""Each with its tensor parallel size: full attention, mixtures, windows, chunks, latent, states, an embedder."""
CHINESE: Final = re.compile(r"[\u4e00-\u9fff]")


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("model", MODELS)
def test_every_step_of_every_lesson(model: str, lang: str) -> None:
    address = (
        f"http://localhost:8501/learn?model={model}&accelerator=H200-141GB&tensor_parallel_size={MODELS[model]}"
        f"&max_model_len=4096&answers=true&lang={lang}"
    )
    app = opened(address, lesson="0")
    titles, captions = [], []
    for letter in SYLLABUS:
        for number, name in enumerate(route_of(lesson=letter).steps, 1):
            app.query_params["lesson"], app.query_params["step"] = letter, str(number)
            app.query_params.pop("frame", None)
            checked(app.run())
            titles.append(app.header[0].value)
            assert titles[-1].startswith(f"{number} · ")
            assert bool(CHINESE.search(titles[-1])) == (lang == "zh")
            if name in PICTURES:
                scenes = captions_of(app)
                assert len(set(scenes)) == len(scenes) >= (1 if name is PICTURES[-1] else 3), name
                captions += scenes
                continue
            shown = "".join(bodies(app))
            assert app.latex or app.info or "kv-remarks" in shown or "kv-solution" in shown
            assert not re.search(
                r"[{}]", re.sub(r"<style>.*?</style>|<script>.*?</script>|<[^>]+>", "", shown, flags=re.S)
            )
    assert len(set(titles)) > len(SYLLABUS)
    assert all(bool(CHINESE.search(one)) == (lang == "zh") for one in captions)


def captions_of(app) -> list[str]:  # type: ignore[no-untyped-def]
    """The sentence of each scene, by the key that goes on."""
    found: list[str] = []
    title = app.header[0].value
    while app.header[0].value == title:
        shown = "".join(bodies(app))
        (said,) = re.findall(r'<p class="kv-said" role="status">(.*?)</p>', shown)
        assert said
        found.append(said)
        button = next(one for one in app.button if one.key == "learn.next")
        if button.disabled:
            break
        button.click()
        checked(app.run())
    return found
