"""The search fields of the sidebar, without a browser."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from tests.page_app import checked, open_app, params


def hits(app: AppTest, kind: str) -> list[str]:
    return [
        button.key.partition(".")[2] for button in app.button if (button.key or "").startswith(f"{kind}_hit.")
    ]


def test_the_empty_field_shows_what_is_chosen() -> None:
    app = open_app({"model": "Qwen/Qwen3-32B", "accelerator": "RTX-4090-24GB"})
    assert app.text_input(key="model_search").placeholder == "Qwen/Qwen3-32B"
    assert app.text_input(key="accelerator_search").placeholder == "GeForce RTX 4090"
    assert "32.8B · 40,960 tokens · Apache-2.0" in [caption.value for caption in app.caption]
    assert not hits(app, "model")


def test_a_few_words_find_a_model_and_take_it() -> None:
    app = open_app({"model": "Qwen/Qwen3-32B"})
    app = checked(app.text_input(key="model_search").set_value("70b llama 3.3").run())
    assert hits(app, "model")[0] == "meta-llama/Llama-3.3-70B-Instruct"
    label = next(button.label for button in app.button if (button.key or "").startswith("model_hit."))
    assert "70.6B · 131,072 tokens · Llama 3.3 Community" in label
    app = checked(app.button(key="model_hit.meta-llama/Llama-3.3-70B-Instruct").click().run())
    assert params(app)["model"] == "meta-llama/Llama-3.3-70B-Instruct"
    assert app.text_input(key="model_search").value == ""
    assert app.text_input(key="model_search").placeholder == "meta-llama/Llama-3.3-70B-Instruct"
    assert not hits(app, "model")


def test_a_few_words_find_a_card_and_take_it() -> None:
    app = open_app({"model": "Qwen/Qwen3-32B"})
    app = checked(app.text_input(key="accelerator_search").set_value("80gb a100").run())
    assert hits(app, "accelerator")[0] == "A100-80GB"
    app = checked(app.button(key="accelerator_hit.A100-80GB").click().run())
    assert params(app)["accelerator"] == "A100-80GB"


def test_nothing_found_leads_to_another_model() -> None:
    app = open_app({"model": "Qwen/Qwen3-32B"})
    app = checked(app.text_input(key="model_search").set_value("my/own-model").run())
    assert not hits(app, "model")
    app = checked(app.button(key="model_sources.open").click().run())
    assert app.session_state["model_sources"]
    assert app.text_input(key="hub_id").value == "my/own-model"


def test_nothing_found_leads_to_another_accelerator_which_is_described() -> None:
    app = open_app({"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB"})
    app = checked(app.text_input(key="accelerator_search").set_value("zzz 9000").run())
    app = checked(app.button(key="accelerator_sources.open").click().run())
    assert app.text_input(key="own_card.name").value == "zzz 9000"
    app.text_input(key="own_card.name").set_value("")
    app = checked(app.button(key="own_card.use").click().run())
    assert "Next: Give a name of the catalogue, or the memory (GiB) of your card" in "".join(
        text.value for text in app.text
    )
    app.text_input(key="own_card.name").set_value("[x](javascript:alert(1)) $x^2$")
    app = checked(app.button(key="own_card.use").click().run())
    assert any("`invalid-value`" in caption.value for caption in app.caption)
    assert params(app)["accelerator"] == "H100-80GB"
    app.text_input(key="own_card.name").set_value("zzz 9000")
    app = checked(app.button(key="own_card.use").click().run())
    assert "The accelerator was not changed." in [error.value for error in app.error]
    app.number_input(key="own_card.memory_gib").set_value(63.5)
    app = checked(app.button(key="own_card.use").click().run())
    found = params(app)
    assert found["accelerator.name"] == "zzz 9000"
    assert found["accelerator.memory_gib"] == "63.5"
    assert "63.5 GiB · PCIe" in [caption.value for caption in app.caption]
    again = open_app(found)
    assert again.text_input(key="accelerator_search").placeholder == "zzz 9000"


def test_a_link_of_ones_own_stays_in_the_link() -> None:
    app = open_app({"model": "Qwen/Qwen3-32B", "accelerator.name": "zzz 9000", "accelerator.vendor": "nvidia",
                    "accelerator.memory_gib": "63.5", "accelerator.interconnect": "nvlink"})  # fmt: skip
    assert "63.5 GiB · NVLink" in [caption.value for caption in app.caption]
    app = checked(app.segmented_control(key="kv_cache_dtype").set_value("fp8").run())
    assert params(app)["accelerator.interconnect"] == "nvlink"
