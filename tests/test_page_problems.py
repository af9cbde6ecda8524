"""Errors stand beside what caused them, one at a time, and go; without a browser."""

from __future__ import annotations

import json

import pytest
from streamlit.testing.v1 import AppTest

from kvcore.base.errors import HubError, ScenarioError
from pages.ui.sidebar import command_source, model_source
from tests.page_app import checked, open_app, params, seen

CONFIG = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 2048, "vocab_size": 32000, "head_dim": 128,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
}  # fmt: skip


def press(app: AppTest, label: str) -> AppTest:
    return checked(next(button for button in app.button if button.label == label).click().run())


def said(app: AppTest) -> list[str]:
    """The texts of the sidebar, errors and widgets in order, so that places can be told apart."""
    return [
        element.value if element.type == "error" else str(element.label)
        for element in app.sidebar
        if element.type in ("error", "button", "text_input", "text_area", "selectbox")
    ]


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise HubError("hub-not-found", field="model", value=name)

    monkeypatch.setattr(model_source, "fetched", missing)


def test_each_button_of_another_model_says_what_it_could_not_do() -> None:
    app = open_app({"model": "Qwen/Qwen3-32B"})
    refused = "The model was not changed."
    app.text_input(key="hub_id").set_value("nobody/none-of-these")
    press(app, "Look up")
    order = said(app)
    assert order.count(refused) == 1
    assert order.index(refused) == order.index("Look up") + 1
    app.text_area(key="config_text").set_value("{oops")
    press(app, "Use this config")
    order = said(app)
    assert order.count(refused) == 1
    assert order.index(refused) == order.index("Use this config") + 1
    app.text_area(key="command_text").set_value("hello")
    press(app, "Use this command")
    assert refused not in said(app)
    assert params(app)["model"] == "Qwen/Qwen3-32B"


def test_success_closes_the_popover_and_clears_the_error() -> None:
    app = open_app({"model": "Qwen/Qwen3-32B"})
    app.session_state[model_source.POPOVER] = True
    app.text_area(key="config_text").set_value("{oops")
    press(app, "Use this config")
    assert app.session_state[model_source.POPOVER] is True
    app.text_area(key="config_text").set_value(json.dumps(CONFIG))
    press(app, "Use this config")
    assert app.session_state[model_source.POPOVER] is False
    assert "The model was not changed." not in said(app)
    app.session_state[command_source.POPOVER] = True
    app.text_area(key="command_text").set_value("vllm serve Qwen/Qwen3-8B --foo 3")
    press(app, "Use this command")
    assert app.session_state[command_source.POPOVER] is False
    assert "--foo 3" in seen(app)


def test_a_command_that_cannot_be_taken_says_so_and_names_its_unknown_flags() -> None:
    app = open_app({"model": "Qwen/Qwen3-32B"})
    app.text_area(key="command_text").set_value(
        "vllm serve Qwen/Qwen3-8B --kv-cache-dtype nonsense --max-modellen 9"
    )
    press(app, "Use this command")
    order = said(app)
    assert order.index("The scenario was not changed.") == order.index("Use this command") + 1
    assert "--max-modellen 9" in seen(app)
    assert params(app)["model"] == "Qwen/Qwen3-32B"


def test_a_control_that_cannot_be_followed_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_app({"model": "Qwen/Qwen3-32B"})

    def refuse(*_: object) -> None:
        raise ScenarioError("missing-field", field="kv_cache_dtype")

    monkeypatch.setattr("pages.ui.shared.state.edit.with_field", refuse)
    control = next(one for one in app.sidebar.get("button_group") if one.key == "kv_cache_dtype")
    checked(control.set_value("fp8").run())
    refused = "This setting was not changed."
    assert [element.value for element in app.sidebar.error] == [refused]
    assert refused not in [element.value for element in app.main.error]
    assert "This cannot be planned" not in seen(app)
    checked(app.run())
    assert refused not in [element.value for element in app.sidebar.error]
