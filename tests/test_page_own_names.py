"""The sidebar and the Plan page of an engine with names of its own."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore.base.words import Language, words
from kvcore.controls.in_force import settings_in_force
from kvcore.engines.registry import find_engine
from kvcore.flags import FLAGS, Widget
from kvcore.wire.request import scenario_from_request
from tests.page_app import checked, open_app, params

SGLANG = {"model": "openai/gpt-oss-20b", "engine": "sglang", "engine_version": "0.5.23"}


def helps(app: Any) -> str:
    kinds = ("number_input", "selectbox", "toggle", "text_input", "button_group")
    return "\n".join(str(one.proto.help) for kind in kinds for one in app.get(kind))


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_controls_carry_its_names_and_none_of_another(locale: str) -> None:
    said = helps(open_app(SGLANG, locale))
    for flag in ("--mem-fraction-static", "--tp`", "--context-length", "--max-running-requests", "--page-size",
                 "--chunked-prefill-size", "--kv-cache-dtype", "--attention-backend", "--swa-full-tokens-ratio",
                 "--cuda-graph-max-bs", "--disable-radix-cache"):  # fmt: skip
        if flag != "--disable-radix-cache":
            assert flag in said, flag
    engine = find_engine("sglang")
    others = [
        flag.spelling
        for flag in FLAGS.values()
        if flag.cli and flag.widget is not Widget.NONE
        and (engine.lacks(flag.name) or ((own := engine.own_name(flag.name)) and own.spelling != flag.spelling))
    ]  # fmt: skip
    assert len(others) > 10
    assert not [spelling for spelling in others if f"`{spelling}`" in said]


def test_an_argument_of_its_own_is_set_and_taken_back() -> None:
    app = open_app(SGLANG)
    page = next(one for one in app.number_input if "--page-size" in one.proto.help)
    backend = next(one for one in app.selectbox if "--attention-backend" in one.proto.help)
    assert page.value is None
    checked(backend.set_value("triton").run())
    assert "triton" in params(app)["server_args"]
    backend = next(one for one in app.selectbox if "--attention-backend" in one.proto.help)
    checked(backend.set_value("auto").run())
    assert "server_args" not in params(app)


def test_another_engine_starts_without_its_arguments() -> None:
    app = open_app(SGLANG | {"server_args": '{"attention_backend":"triton"}'})
    engine = next(one for one in app.selectbox if one.label == "Engine")
    checked(engine.set_value("vllm").run())
    assert "server_args" not in params(app)
    assert "--gpu-memory-utilization" in helps(app)


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_reference_names_its_parameters_metrics_and_load_test(locale: str) -> None:
    app = open_app(SGLANG | {"page": "reference"}, locale)
    app = checked(app.switch_page("pages/reference.py").run())
    said = "\n".join(str(one.proto.body) for one in app.get("html"))
    assert "--mem-fraction-static" in said
    assert "--gpu-memory-utilization" not in said


def test_the_scenario_line_names_settings_as_the_engine_does() -> None:
    request = {"model": "Qwen/Qwen3-8B", "max_num_seqs": 16, "max_num_batched_tokens": 8192}
    said = {
        engine: [
            one.text
            for one in settings_in_force(
                scenario_from_request({**request, "engine": engine}), words(Language.ENGLISH)
            )
        ]
        for engine in ("vllm", "sglang")
    }
    assert said == {
        "vllm": ["max_num_seqs 16", "max_num_batched_tokens 8,192"],
        "sglang": ["max_running_requests 16", "chunked_prefill_size 8,192"],
    }
