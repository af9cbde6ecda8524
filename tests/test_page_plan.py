"""The Plan page in its states, without a browser."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from streamlit.testing.v1 import AppTest

from kvcore.base.numbers import DASH
from kvcore.base.words import Language, words
from kvcore.engines.vllm.versions import switches_of, vllm_releases
from kvcore.planning import plan
from kvcore.wire import link
from kvcore.wire.request import scenario_from_request
from pages.ui.plan import numbers
from tests.page_app import (
    APP,
    CONFIG,
    RULE_OF_THUMB,
    WORKED,
    checked,
    curves,
    metrics,
    open_app,
    params,
    seen,
    stacks,
)


class TestFits:
    def test_a_first_visit_shows_a_plan_that_works(self) -> None:
        app = open_app()
        assert app.success[0].value.startswith("Fits: ")
        assert metrics(app)["Requests at once"] != DASH
        assert (len(stacks(app)), len(curves(app))) == (1, 1)
        assert params(app) == {}

    def test_folded_parts_are_built_when_opened(self) -> None:
        app = open_app(opened=False)
        keys = {widget.key for widget in app.number_input}
        assert keys == {"gpu_memory_utilization", "tensor_parallel_size", "wanted"}
        assert not app.selectbox
        assert not app.text_area
        assert {"measured.weights_gib"} <= {w.key for w in open_app().number_input}

    def test_a_target_is_judged_in_the_verdict_and_reached_by_a_button(self) -> None:
        app = open_app(RULE_OF_THUMB)
        app.number_input(key="wanted").set_value(40)
        checked(app.run())
        assert params(app)["wanted"] == "40"
        assert app.warning[0].value == "Fits, but serves 20 of 40 requests of 8,192 tokens at once"
        (button,) = (one for one in app.button if one.key == "fix.data_parallel_size")
        assert button.label == "2 replicas: serves 40 on 16 GPUs"
        checked(button.click().run())
        assert app.success[0].value == (
            "Fits and serves 40 requests of 8,192 tokens at once: room for 40 (20 on each of 2 replicas)"
        )

    def test_the_length_that_known_requests_need_is_offered_first(self) -> None:
        """P99 of 1,200 and max_tokens 512, rounded up to 1,792, a quarter of the tokens or less."""
        lengths = "800:1150:1200,120:380:512,920:1530:1712,1312:1662:1712"
        app = open_app(RULE_OF_THUMB | {"wanted": "40", "lengths": lengths})
        (button,) = (one for one in app.button if one.key == "fix.max_model_len")
        assert button.label == "Context length 1,792, all that your requests need: serves 91 on 8 GPUs"
        checked(button.click().run())
        assert params(app)["max_model_len"] == "1792"
        assert app.success[0].value.startswith("Fits and serves 40 requests of 1,792 tokens at once")
        plain = open_app(RULE_OF_THUMB | {"wanted": "40"})
        assert not [one for one in plain.button if one.key == "fix.max_model_len"]

    def test_the_command_stands_beside_the_verdict(self) -> None:
        app = open_app(RULE_OF_THUMB)
        app.session_state["command.en"] = True
        (block, *_) = checked(app.run()).code
        assert block.value.startswith("vllm serve Qwen/Qwen3-32B")
        links = [one.proto.query_string for one in app.get("page_link") if one.proto.page == "reference"]
        assert any("section=going-live" in link for link in links)

    def test_other_cards_are_asked_for_on_explore_with_the_same_scenario(self) -> None:
        app = open_app(RULE_OF_THUMB | {"wanted": "40"})
        (link,) = (one.proto for one in app.get("page_link") if "Which other cards" in one.proto.label)
        assert link.page == "explore"
        carried = dict(parse_qsl(link.query_string))
        assert {name: carried.get(name) for name in RULE_OF_THUMB} == dict(RULE_OF_THUMB)
        assert carried["wanted"] == "40"

    def test_the_published_worked_example(self) -> None:
        app = open_app(RULE_OF_THUMB)
        assert metrics(app) == {
            "Requests at once": "20", "KV cache tokens": "163,840", "KV per token": "32 KiB",
            "Longest request": "40,960",
        }  # fmt: skip

    def test_its_difference_to_the_engine_is_told_term_by_term(self) -> None:
        app = open_app(RULE_OF_THUMB)
        html = "".join(element.proto.body for element in app.get("html"))
        assert "163,840</td>" in html
        assert [expander.label for expander in app.expander if expander.label.startswith("Your figures")]
        assert not [e for e in open_app(WORKED).expander if e.label.startswith("Your figures")]

    def test_the_table_says_the_numbers_of_the_charts(self) -> None:
        app = open_app()
        html = "".join(element.proto.body for element in app.get("html"))
        for part in ("Weights", "Activations", "KV cache", "Unused"):
            assert part in html

    def test_the_legend_names_the_parts_in_the_order_of_the_bar(self) -> None:
        app = open_app({"model": "Qwen/Qwen3-8B", "accelerator": "Ascend-910B3-64GB"})
        (bar,) = stacks(app)
        drawn = dict.fromkeys(re.findall(r'class="kv-piece kv-(\w+)"', bar))
        named = re.findall(r'class="kv-swatch kv-(\w+)"', bar)
        # Graphs that the budget does not have are drawn behind the KV cache, and named in front of it.
        assert [name for name in drawn if name in named and name != "cuda_graphs"] == [
            name for name in named if name != "cuda_graphs"
        ]


class TestDoesNotFit:
    def test_a_context_too_long(self) -> None:
        app = open_app({"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "max_model_len": "40960"})
        assert app.warning[0].value.startswith("Context too long")
        assert metrics(app)["Requests at once"] == DASH

    def test_weights_too_big(self) -> None:
        app = open_app({"model": "Qwen/Qwen3-32B", "accelerator": "RTX-4090-24GB", "max_model_len": "8192"})
        assert app.error[0].value.startswith("Does not fit: the weights alone")
        assert metrics(app)["KV cache tokens"] == DASH
        assert "kv-piece kv-missing" in stacks(app)[0]

    def test_one_click_mends_it_and_is_in_the_link(self) -> None:
        app = open_app({"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "max_model_len": "40960"})
        app.button(key="fix.tensor_parallel_size").click()
        checked(app.run())
        assert app.success[0].value.startswith("Fits: ")
        assert params(app)["tensor_parallel_size"] == "2"
        assert app.number_input(key="tensor_parallel_size").value == 2

    def test_a_proposed_length_stands_exactly_in_the_field(self) -> None:
        app = open_app({"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "max_model_len": "40960"})
        app.button(key="fix.max_model_len").click()
        checked(app.run())
        length = int(app.text_input(key="max_model_len").value)
        assert params(app)["max_model_len"] == str(length)
        assert length % 16 == 0
        assert app.select_slider(key="max_model_len.slider").value == length


class TestLink:
    def test_a_change_writes_the_whole_link(self) -> None:
        app = open_app()
        app.slider(key="gpu_memory_utilization.slider").set_value(0.8)
        checked(app.run())
        assert app.number_input(key="gpu_memory_utilization").value == pytest.approx(0.8)
        written = params(app)
        assert written["v"] == "1"
        assert written["gpu_memory_utilization"] == "0.8"
        assert link.decode(written).repairs == ()
        assert link.encode(link.decode(written).scenario) == written

    def test_every_control_is_restored_from_it(self) -> None:
        app = open_app(
            RULE_OF_THUMB | {"max_num_seqs": "64", "enforce_eager": "true", "kv_cache_dtype": "fp8"}
        )
        assert app.selectbox(key="model").value == "Qwen/Qwen3-32B"
        assert app.selectbox(key="accelerator").value == "RTX-4090-24GB"
        assert app.number_input(key="tensor_parallel_size").value == 8
        assert app.text_input(key="max_model_len").value == "8192"
        assert app.number_input(key="gpu_memory_utilization").value == 0.75
        assert app.segmented_control(key="kv_cache_dtype").value == "fp8"
        assert app.select_slider(key="dtype").value == "float16"
        assert app.number_input(key="max_num_seqs").value == 64
        assert app.toggle(key="enforce_eager").value is True
        assert app.number_input(key="accelerator.memory_gib").value == 24
        assert app.number_input(key="measured.weights_gib").value == 8
        assert app.number_input(key="measured.cuda_graph_gib").value == 0
        assert app.number_input(key="measured.available_kv_gib").value is None

    def test_a_restart_is_offered_where_it_has_more(self) -> None:
        small = {"model": "Qwen/Qwen3-14B", "accelerator": "L40S-48GB", "engine_version": "0.28.0"}
        app = open_app(small)
        assert "a restart that finds them compiled has about 1.19 GiB more" in seen(app)
        app.toggle(key="kernels_compiled").set_value(True)
        checked(app.run())
        assert params(app)["kernels_compiled"] == "true"
        assert "a restart that finds them compiled" not in seen(app)
        before = {"model": "Qwen/Qwen3-14B", "accelerator": "L40S-48GB", "engine_version": "0.11.0"}
        assert "kernels_compiled" not in {toggle.key for toggle in open_app(before).toggle}

    def test_unusable_values_are_named_and_the_rest_is_planned(self) -> None:
        app = open_app(WORKED | {"tensor_parallel_size": "6", "max_num_seqs": "lots"})
        text = seen(app)
        assert "Part of this link could not be used" in text
        assert "max_num_seqs: lots → the default" in text
        assert "tensor_parallel_size: 6" not in text
        assert app.number_input(key="tensor_parallel_size").value == 6
        assert app.number_input(key="gpu_memory_utilization").value == 0.75

    def test_unusable_values_are_named_once(self) -> None:
        app = open_app(WORKED | {"max_num_seqs": "lots"})
        app.number_input(key="tensor_parallel_size").set_value(4)
        checked(app.run())
        assert "could not be used" not in seen(app)

    def test_untrusted_text_is_never_markdown(self) -> None:
        app = open_app(WORKED | {"model": "[free GPUs](https://evil.example)", "dtype": "<img src=x>"})
        rendered = "\n".join(e.value for kind in (app.markdown, app.caption, app.success) for e in kind)
        html = "".join(element.proto.body for element in app.get("html"))
        assert "evil" not in rendered + html
        assert "<img" not in rendered + html
        assert "evil" in "\n".join(text.value for text in app.text)

    def test_an_unknown_model_offers_the_hub_and_asks_nobody(self) -> None:
        app = open_app(WORKED | {"model": "some/unknown-model"})
        assert "some/unknown-model" in seen(app)
        assert [button.label for button in app.button if "Hub" in button.label] == ["Look it up on the Hub"]

    @pytest.mark.parametrize("page", ["", "explore", "compare", "workload", "reference"])
    def test_no_page_judges_another_model_in_place_of_an_unknown_one(self, page: str) -> None:
        app = open_app(WORKED | {"model": "some/unknown-model"})
        if page:
            app.switch_page(f"pages/{page}.py")
            checked(app.run())
        assert "Qwen3-32B" not in seen(app)
        assert "KV cache tokens" not in metrics(app)
        assert not stacks(app)

    def test_other_settings_of_a_link_stay_until_its_model_is_chosen(self) -> None:
        app = open_app(WORKED | {"model": "Qwen/Qwen3-32C"})
        app.number_input(key="tensor_parallel_size").set_value(4)
        checked(app.run())
        assert params(app)["model"] == "Qwen/Qwen3-32C"
        assert not metrics(app)
        checked(app.button(key="near.Qwen/Qwen3-32B").click().run())
        assert {"model": "Qwen/Qwen3-32B", "tensor_parallel_size": "4"}.items() <= params(app).items()
        assert metrics(app)
        assert "not known here" not in seen(app)

    def test_a_config_that_cannot_be_read_leaves_no_model(self) -> None:
        app = open_app({"accelerator": "H100-80GB", "config": "{not json"})
        assert not metrics(app)
        assert "not known here" in seen(app)
        app.number_input(key="tensor_parallel_size").set_value(4)
        assert "model" not in params(checked(app.run()))

    def test_below_a_refusal_stand_the_model_and_the_plan_of_its_first_change(self) -> None:
        app = open_app(WORKED | {"model": "meta-llama/Llama-3.1-8B-Instruct", "tensor_parallel_size": "6"})
        assert any("refuses" in error.value for error in app.error)
        assert "8.03B" in seen(app)
        assert "With this change: " in seen(app)
        assert len(stacks(app)) == 1
        assert metrics(app)

    def test_back_brings_the_scenario_of_that_link(self) -> None:
        app = open_app(WORKED)
        app.number_input(key="tensor_parallel_size").set_value(4)
        checked(app.run())
        for name in list(params(app)):
            del app.query_params[name]
        for name, value in WORKED.items():
            app.query_params[name] = value
        checked(app.run())
        assert app.number_input(key="tensor_parallel_size").value == 8


class TestLanguages:
    def test_a_chinese_browser_gets_chinese(self) -> None:
        app = open_app(WORKED, locale="zh-CN")
        assert app.success[0].value.startswith("可以部署：") or app.warning or app.error
        assert "并发请求数" in metrics(app)

    @pytest.mark.parametrize(("first", "second"), [("en-US", "zh"), ("zh-CN", "en")])
    def test_switching_keeps_every_selection(self, first: str, second: str) -> None:
        app = open_app(RULE_OF_THUMB | {"kv_cache_dtype": "fp8", "max_num_seqs": "64"}, locale=first)
        before = list(metrics(app).values())
        app.segmented_control(key="language_switch").set_value(second)
        checked(app.run())
        assert params(app)["lang"] == second
        assert list(metrics(app).values()) == before
        assert app.segmented_control(key="kv_cache_dtype").value == "fp8"
        assert app.number_input(key="max_num_seqs").value == 64
        assert app.number_input(key="measured.weights_gib").value == 8

    def test_a_chinese_page_says_nothing_in_english(self) -> None:
        app = open_app(
            {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "max_model_len": "40960"}, "zh-CN"
        )
        labels = [
            w.label for kind in (app.selectbox, app.number_input, app.toggle, app.expander) for w in kind
        ]
        for label in labels:
            assert any("\u4e00" <= c <= "\u9fff" for c in label) or label == "CUDA graph", label


def test_app_and_page_stay_short() -> None:
    root = Path(APP).parent
    assert len((root / "app.py").read_text().splitlines()) <= 60
    for page in (root / "pages").glob("*.py"):
        assert len(page.read_text().splitlines()) <= 150, page.name


def test_a_length_beyond_the_model_has_yarn_as_its_way() -> None:
    app = open_app({"model": "Qwen/Qwen3-8B", "accelerator": "H200-141GB", "max_model_len": "131072"})
    assert app.warning[0].value.startswith("Starts only with VLLM_ALLOW_LONG_MAX_MODEL_LEN=1")
    app.button(key="above_model.yarn").click()
    checked(app.run())
    assert app.success[0].value.startswith("Fits: ")
    assert '"factor": 4.0' in params(app)["hf_overrides"]
    assert any(button.label == "hf_overrides YaRN × 4" for button in app.button)


def test_an_engine_chosen_against_the_card_is_said_under_the_verdict() -> None:
    against = {"accelerator": "H100-80GB", "engine": "vllm-ascend", "engine_version": "0.18.0"}
    app = open_app({"model": "Qwen/Qwen3-8B", **against})
    assert len([text.value for text in app.text if "does not run on" in text.value]) == 1
    app.button(key="other_platform.use").click()
    checked(app.run())
    assert params(app)["engine"] == "vllm"
    assert "engine_version" not in params(app)
    assert "does not run on" not in seen(app)


def test_a_config_too_long_for_a_link_is_offered_as_a_file() -> None:
    noise = "".join(hashlib.sha256(bytes([n])).hexdigest() for n in range(200))
    app = open_app(WORKED)
    app.text_area(key="config_text").set_value(json.dumps(CONFIG | {"noise": noise}))
    next(button for button in app.button if button.label == "Use this config").click()
    app.session_state["share_link.en"] = True
    checked(app.run())
    assert "too long for a link" in seen(app)
    assert "reloading the page loses it" in seen(app)
    assert [button.label for button in app.get("download_button")][:1] == ["Download config.json"]
    reloaded = open_app(params(app))
    assert "is too long for a link: the figures shown are not for it" in seen(reloaded)


@pytest.mark.parametrize(("locale", "label"), [("en-US", "not named: as "), ("zh-CN", "未指明：按 ")])
def test_an_assumed_release_is_stated_and_can_be_set(locale: str, label: str) -> None:
    app = open_app({"model": "Qwen/Qwen3-8B", "accelerator": "Ascend-910B4-32GB"}, locale)
    version = app.selectbox(key="engine_version")
    newest = version.options[0].removeprefix(label)
    assert newest in version.options
    said = [text.value for text in app.text if newest in text.value]
    assert len(said) == 1
    app = checked(version.set_value(newest).run())
    assert params(app)["engine_version"] == newest
    assert [text.value for text in app.text if newest in text.value] == []
    app = checked(app.selectbox(key="engine_version").set_value("auto").run())
    assert "engine_version" not in params(app)


def test_a_ticket_names_release_and_share_of_the_card() -> None:
    app = open_app({"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB"})
    app.segmented_control(key="share_form").set_value("ticket")
    checked(app.run())
    (shared,) = [block.value for block in app.code if "http" in block.value]
    newest = vllm_releases()[-1]
    assert f"engine_version={newest}" in shared
    assert f"gpu_memory_utilization={switches_of(newest).gpu_memory_utilization}" in shared
    assert "engine_version" not in params(app)


class TestRefusals:
    def test_a_card_that_has_no_kernel_is_answered_with_what_has(self) -> None:
        """fp8 weights on a T4: from 0.14 on; one click, and the way back."""
        app = open_app({
            "model": "meta-llama/Llama-3.1-8B-Instruct", "accelerator": "L4-24GB", "engine_version": "0.13.0",
            "quantization": "fp8", "max_model_len": "4096",
        })  # fmt: skip
        cards = app.selectbox(key="accelerator")
        app = checked(cards.select(next(card for card in cards.options if "T4" in card)).run())
        assert "Minimum capability: 80. Current capability: 75." in seen(app)
        app = checked(app.button(key="accepted.engine_version").click().run())
        assert params(app)["engine_version"] == "0.14.0"
        assert "Requests at once" in metrics(app)


def test_a_length_beyond_the_model_has_its_way_back_under_the_verdict() -> None:
    beyond = {"model": "Qwen/Qwen3-32B", "accelerator": "H200-141GB", "tensor_parallel_size": "2"}
    app = open_app({**beyond, "max_model_len": "131072"})
    assert not app.success
    assert app.warning[0].value.startswith("Starts only with VLLM_ALLOW_LONG_MAX_MODEL_LEN=1")
    app.button(key="above_model.limit").click().run()
    assert checked(app).success[0].value.startswith("Fits: ")
    assert params(app)["max_model_len"] == "40960"


def test_a_length_beyond_the_model_can_be_allowed() -> None:
    app = open_app({"accelerator": "H200-141GB", "tensor_parallel_size": "2", "max_model_len": "131072"})
    said = " ".join(caption.value for caption in app.caption)
    assert "The engine refuses 131,072 tokens without VLLM_ALLOW_LONG_MAX_MODEL_LEN=1" in said
    assert "The start command below sets it" in said
    (command,) = [block.value for block in app.code if block.value.startswith(("vllm", "export"))]
    assert command.startswith("export VLLM_ALLOW_LONG_MAX_MODEL_LEN=1\n")
    label = app.button(key="above_model.allow").label
    assert label == "Keep 131,072 tokens with VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"
    app.button(key="above_model.allow").click().run()
    assert checked(app).success[0].value.startswith("Fits: ")
    assert params(app)["env.VLLM_ALLOW_LONG_MAX_MODEL_LEN"] == "1"
    within = open_app({"accelerator": "H200-141GB", "tensor_parallel_size": "2", "max_model_len": "40960"})
    assert not [block for block in within.code if "VLLM_ALLOW" in block.value]


def test_a_config_with_a_name_that_could_be_markup_has_one_name_on_the_page() -> None:
    config = {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "vocab_size": 512, "max_position_embeddings": 40960,
    }  # fmt: skip
    app = open_app({"model": "<b>mine</b>", "config": json.dumps(config)})
    assert app.selectbox(key="model").options[0] == "config.json"
    lines = [one.value for one in checked(app).caption if one.value.startswith("`")]
    assert lines[0].startswith("`config.json` · ")


def test_json_has_the_fixes_that_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    app = AppTest.from_file(APP, default_timeout=300)
    app.session_state["share.opened"] = True
    app.session_state["share_chosen"] = "json"
    for name, value in {"model": "openai/gpt-oss-120b", "accelerator": "H100-80GB"}.items():
        app.query_params[name] = value
    checked(app.run())
    shown = [
        button.key.removeprefix("fix.") for button in app.button if (button.key or "").startswith("fix.")
    ]
    assert len(shown) > 1
    (result,) = [json.loads(block.value) for block in app.code if block.value.startswith("{")]
    assert [fix["field"] for fix in result["fixes"]] == shown

    kept: dict[str, Any] = {}

    def download_button(label: str, *, data: Any, **_: Any) -> None:
        kept[label] = data

    monkeypatch.setattr(numbers.st, "download_button", download_button)
    asked = {"model": "openai/gpt-oss-120b", "accelerator": "H100-80GB"}
    numbers.downloads(plan(scenario_from_request(asked)), words(Language.ENGLISH))
    downloaded = json.loads(kept["Download JSON"]())
    assert [fix["field"] for fix in downloaded["fixes"]] == shown
