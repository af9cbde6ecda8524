"""A command pasted under "Another model", without a browser."""

from __future__ import annotations

import pytest

from tests.page_app import checked, open_app, params, seen


def use(text: str, **query: str):
    app = open_app(query)
    app.text_area(key="command_text").set_value(text)
    return checked(app.button(key="use_command").click().run())


def test_a_command_becomes_the_scenario_and_can_be_undone() -> None:
    app = use(
        "docker run vllm/vllm-openai:v0.19.0 --model Qwen/Qwen3-8B -tp 2 --max-model-len 16384 --swap-space 16",
        model="Qwen/Qwen3-32B",
        accelerator="L40S-48GB",
    )
    link = params(app)
    assert (link["model"], link["accelerator"], link["engine_version"]) == (
        "Qwen/Qwen3-8B",
        "L40S-48GB",
        "0.19.0",
    )
    assert (link["tensor_parallel_size"], link["max_model_len"]) == ("2", "16384")
    assert "--swap-space 16" in seen(app)
    checked(app.button(key="undo_button").click().run())
    assert params(app)["model"] == "Qwen/Qwen3-32B"
    assert "--swap-space 16" not in seen(app)


def test_an_unknown_model_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    app = use("vllm serve /models/nobody --max-model-len 4096", model="Qwen/Qwen3-32B")
    assert (params(app)["model"], params(app)["max_model_len"]) == ("Qwen/Qwen3-32B", "4096")
    assert "/models/nobody" in seen(app)


def warned(app) -> str:
    return " ".join(element.value for element in app.warning)


def test_a_text_that_is_no_command_changes_nothing_and_says_so() -> None:
    app = use("vllm serve Qwen/Qwen3-8B --swap-space 16", model="Qwen/Qwen3-32B", max_model_len="8192")
    assert "--swap-space 16" in seen(app)
    before = params(app)
    app.text_area(key="command_text").set_value("hello")
    checked(app.button(key="use_command").click().run())
    assert params(app) == before
    assert "No vLLM command found in this text; the scenario is unchanged." in warned(app)
    assert "--swap-space 16" not in seen(app)
    assert "start-up lines" not in seen(app).lower()


def test_latest_is_the_newest_release_and_borrowed_settings_are_named() -> None:
    text = "docker run vllm/vllm-openai:{} --model Qwen/Qwen3-8B -tp 2"
    app = use(text.format("v0.11.0"), model="Qwen/Qwen3-32B", accelerator="L40S-48GB")
    assert params(app)["engine_version"] == "0.11.0"
    app.text_area(key="command_text").set_value(text.format("latest"))
    checked(app.button(key="use_command").click().run())
    assert params(app).get("engine_version") is None
    assert "Not in the command, taken from the sidebar: accelerator" in seen(app)
    app = use("vllm serve Qwen/Qwen3-8B", accelerator="L40S-48GB", engine_version="0.11.0")
    assert params(app)["engine_version"] == "0.11.0"
    assert "taken from the sidebar: accelerator, engine version" in seen(app)


def test_an_unknown_release_changes_nothing() -> None:
    """Its flags cannot be told, so neither the plan nor the sidebar could be drawn with it."""
    app = open_app()
    before = params(app)
    app.text_area(key="command_text").set_value(
        "docker run vllm/vllm-openai:v0.6.4 --model Qwen/Qwen3-8B"
    ).run()
    checked(app.button(key="use_command").click().run())
    assert "0.6.4 is older than" in seen(app)
    assert params(app) == before
