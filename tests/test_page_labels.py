"""Nothing that a stranger writes is read as Markdown: not in labels, not in options, on no page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from google.protobuf.message import Message
from streamlit.testing.v1 import AppTest

from kvcore.base.errors import KvPlannerError
from kvcore.base.untrusted import pack
from kvcore.controls import offers
from kvcore.wire import link
from kvcore.wire.request import scenario_from_request
from pages.ui.check.log import SAMPLES
from pages.ui.shared.labels import plain
from pages.ui.shared.shell import PAGES
from tests.page_app import CONFIG, checked, open_app

HOSTILE = "a`![i](http://hostile.example/p)"
"""Loads an image wherever it is Markdown; the mark in front of it ends a code span."""
QWEN = {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB"}
AS_TEXT = {
    "Text.body", "Code.code_text", "Html.body", "TextInput.value", "TextInput.default", "TextInput.placeholder",
    "TextArea.value", "TextArea.default", "Selectbox.options", "Selectbox.raw_value", "PlotlyChart.spec",
    "PageLink.query_string",
}  # fmt: skip
"""Elements that Streamlit shows as they are, never as Markdown."""
LINKS = {
    "accepted": {
        "env.A": HOSTILE, "search": HOSTILE, "find": HOSTILE,
        "kv_transfer_config": json.dumps({"kv_connector": HOSTILE, "engine_id": HOSTILE}),
    },
    "own card": {
        "accelerator": "mine", "accelerator.name": HOSTILE, "accelerator.memory_gib": "80",
        "accelerator.vendor": "nvidia",
    },
    "own model": {"model": HOSTILE, "config.z": pack(json.dumps(CONFIG))},
    "unknown model": {
        "model": HOSTILE,
        "config.z": pack(json.dumps(CONFIG | {"architectures": [HOSTILE], "model_type": HOSTILE})),
    },
    "unknown format": {
        "model": HOSTILE,
        "config.z": pack(json.dumps(CONFIG | {"quantization_config": {"quant_method": HOSTILE}})),
    },
    "not taken": {
        "quantization": HOSTILE, "speculative_config.method": HOSTILE, "engine_version": HOSTILE,
        "surroundings.driver": HOSTILE,
        "dtype": HOSTILE, "hf_overrides": json.dumps({"rope_parameters": {"rope_type": HOSTILE}}),
        "additional_config": json.dumps({HOSTILE: HOSTILE}), HOSTILE: HOSTILE, "accelerator": HOSTILE,
    },
}  # fmt: skip


def texts(message: Message) -> Iterator[tuple[str, str]]:
    for field, value in message.ListFields():
        for one in value if field.is_repeated else [value]:
            if isinstance(one, Message):
                yield from texts(one)
            elif isinstance(one, str):
                yield f"{message.DESCRIPTOR.name}.{field.name}", one


def nodes(node: object) -> Iterator[object]:
    yield node
    for child in getattr(node, "children", {}).values():
        yield from nodes(child)


def all_texts(app: AppTest) -> list[tuple[str, str]]:
    found = [getattr(node, "proto", None) for node in nodes(app._tree)]
    return [pair for proto in found if isinstance(proto, Message) for pair in texts(proto)]


def read_as_markdown(app: AppTest) -> list[tuple[str, str]]:
    """Places that the hostile text reaches outside of a code span and not escaped."""
    return [
        (place, text)
        for place, text in all_texts(app)
        if place not in AS_TEXT and "![i](" in re.sub(r"`[^`]*`", "", text)
    ]


def on_each_page(app: AppTest) -> Iterator[str]:
    yield ""
    for page in PAGES[1:]:
        app.switch_page(f"pages/{page.script}")
        checked(app.run())
        yield page.path


@pytest.mark.parametrize("name", LINKS)
def test_a_links_text_is_nowhere_read_as_markdown(name):
    app = open_app(QWEN | LINKS[name])
    reached = False
    for path in on_each_page(app):
        assert not read_as_markdown(app), path
        reached = reached or any("hostile.example" in text for _, text in all_texts(app))
    assert reached


def test_no_text_field_is_read_as_markdown():
    app = open_app(QWEN)
    fields = 0
    for path in on_each_page(app):
        for kind in ("text_input", "text_area"):
            for key in [field.key for field in getattr(app, kind) if field.key and not field.disabled]:
                field = next((one for one in getattr(app, kind) if one.key == key), None)
                if field is not None:
                    checked(field.set_value(HOSTILE).run())
                    fields += 1
                    assert not read_as_markdown(app), (path, key)
    assert fields > 8


def test_the_options_of_a_control_are_escaped_even_where_a_value_got_through(monkeypatch):
    offered = offers.weight_precisions
    monkeypatch.setattr(offers, "weight_precisions", lambda scenario: (*offered(scenario), HOSTILE))
    app = open_app(QWEN)
    assert not read_as_markdown(app)
    assert plain(HOSTILE) in [text for _, text in all_texts(app)]


@pytest.mark.parametrize("field", ["quantization", "speculative_config.method"])
@pytest.mark.parametrize("value", ["![i](http://hostile.example/p)", "fp8 ", "", "a/b", "ｆp8"])
def test_names_of_the_engine_are_words(field, value):
    head, _, key = field.rpartition(".")
    asked = {head: {key: value, "num_speculative_tokens": 2}} if head else {key: value}
    with pytest.raises(KvPlannerError) as caught:
        scenario_from_request({"model": "Qwen/Qwen3-8B", **asked})
    assert (caught.value.code, caught.value.field) == ("invalid-value", field)


def test_a_link_says_which_word_it_could_not_take():
    decoded = link.decode(QWEN | {"quantization": HOSTILE})
    assert [repair.error.code for repair in decoded.repairs] == ["invalid-value"]
    assert decoded.scenario.quantization is None


def test_a_logs_text_is_nowhere_read_as_markdown():
    text = (SAMPLES / "start.log").read_text("utf-8").replace("Qwen/Qwen2.5-72B-Instruct", HOSTILE)
    said = f"'kv_transfer_config': {{'kv_connector': '{HOSTILE}'}}, 'quantization': '{HOSTILE}', 'x': '{HOSTILE}', "
    app = open_app(QWEN)
    checked(app.switch_page("pages/check.py").run())
    text = text.replace("'max_model_len'", f"{said}'max_model_len'")
    checked(app.text_area(key="check.text").set_value(text).run())
    assert any("hostile.example" in shown for _, shown in all_texts(app))
    assert not read_as_markdown(app)


def test_a_pasted_commands_text_is_nowhere_read_as_markdown():
    app = open_app(QWEN)
    command = f"docker run -e 'A={HOSTILE}' x vllm serve 'Qwen/{HOSTILE}' -q '{HOSTILE}' --x '{HOSTILE}'"
    checked(app.text_area(key="command_text").set_value(command).run())
    for button in [button.key for button in app.button if button.key and "command" in button.key]:
        checked(app.button(key=button).click().run())
    assert any("hostile.example" in shown for _, shown in all_texts(app))
    assert not read_as_markdown(app)
