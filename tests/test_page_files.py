"""Files that people deploy on the Check page, in both languages, without a browser."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from kvcore.contract.deployed import check_files
from kvcore.manifests.files import Source
from pages.ui.check.files import answered
from tests.page_app import checked, open_app, params, seen

COMPOSE = """services:
  llm:
    image: vllm/vllm-openai:v0.30.0
    environment: {HF_TOKEN: hf_hiddenhiddenhidden}
    command: --model Qwen/Qwen3-8B --max-model-len %s
"""


def check(text: str, locale: str = "en-US", card: str = "L4-24GB", target: int | None = None) -> AppTest:
    app = checked(open_app({"check": "files"}, locale).switch_page("pages/check.py").run())
    app.text_area(key="check.files.text").set_value(text)
    app.selectbox(key="check.files.card").set_value(card)
    if target is not None:
        app.number_input(key="check.files.target").set_value(target)
    return checked(app.button(key="check.files.go").click().run())


@pytest.mark.parametrize(
    ("locale", "words"),
    [
        ("en-US", ("Does not start", "With this patch of the file it starts:", "40,960 tokens does not fit")),
        ("zh-CN", ("无法启动", "应用此补丁后即可启动")),
    ],
)
def test_a_verdict_with_its_reason_and_a_patch_to_copy(locale: str, words: tuple[str, ...]) -> None:
    app = check(COMPOSE % 40960, locale)
    for word in words:
        assert word in seen(app)
    (code,) = [one.value for one in app.code if one.value.startswith("--- a/")]
    assert "-    command: --model Qwen/Qwen3-8B --max-model-len 40960" in code
    assert "hf_hidden" not in seen(app) + code


def test_one_click_plans_it() -> None:
    app = check(COMPOSE % 8192)
    assert "Starts" in seen(app)
    checked(app.button(key="check.files.plan.0").click().run())
    found = params(app)
    assert (found["model"], found["accelerator"], found["max_model_len"]) == (
        "Qwen/Qwen3-8B",
        "L4-24GB",
        "8192",
    )


def test_every_verdict_and_figure_is_said_in_the_readers_language() -> None:
    found = seen(check(COMPOSE % 8192, "zh-CN"))
    assert "可以启动" in found
    assert "KV 缓存：" in found
    assert " tokens" not in found
    unknown = seen(check("vllm serve $MODEL --max-num-seqs 8\n", "zh-CN", card=""))
    assert "未指明加速卡 · vllm" in unknown
    assert "no card" not in unknown


def test_what_is_no_engine_and_what_cannot_be_read_is_said() -> None:
    assert "engine is started in these files" in seen(check("a: 1\n"))
    broken = check("services:\n  a: [1\n  b: 2\n")
    assert "This file cannot be read" in seen(broken)
    assert "pasted:" in seen(broken)


def test_a_target_that_is_missed() -> None:
    assert "serves less than the target" in seen(check(COMPOSE % 8192, target=500))


def test_nothing_to_check_and_clear() -> None:
    assert "Nothing to check yet" in seen(check(" "))
    app = check(COMPOSE % 8192)
    checked(app.button(key="check.files.clear").click().run())
    assert "check.files.plan.0" not in {one.key for one in app.button}


def test_no_text_of_a_file_is_markdown_or_html() -> None:
    evil = "<img src=x> **bold** [a](javascript:b)"
    app = check(
        f"services:\n  '{evil}':\n    image: vllm/vllm-openai:v0.30.0\n    command: --model Qwen/Qwen3-8B\n"
    )
    shown = [one.value for one in app.markdown] + [one.value for one in app.caption]
    assert not any("<img" in text or "javascript" in text for text in shown)
    assert any("<img src=x>" in one.value for one in app.text)


def test_the_page_keeps_no_plan_and_no_file() -> None:
    kept = answered(check_files([Source("c.yaml", COMPOSE % 40960)], "L4-24GB"))
    assert "hf_hidden" not in repr(kept)
    assert not any("Plan" in type(value).__name__ for row in kept.rows for value in (row.diff, row.scenario))


@pytest.mark.parametrize(
    ("length", "words"),
    [(4096, "Starts as it is"), (30000, "Starts, but tight"), (34000, "Does not start")],
)
def test_a_start_within_the_error_of_the_plan_is_called_tight(length: int, words: str) -> None:
    shown = seen(check(COMPOSE % length + "    ipc: host\n"))
    verdicts = ("Starts as it is", "Starts, but tight", "Does not start")
    assert [one for one in verdicts if one in shown] == [words]


def test_another_card_judges_the_same_files_again() -> None:
    app = check(COMPOSE % 40960)
    assert "Does not start" in seen(app)
    checked(app.selectbox(key="check.files.card").set_value("H100-80GB").run())
    assert "Starts as it is" in seen(app)
    checked(app.number_input(key="check.files.target").set_value(900).run())
    assert "serves less than the target" in seen(app)
