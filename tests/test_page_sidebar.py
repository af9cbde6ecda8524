"""The sidebar next to the Plan page: entries, models, the Hub, settings and what they offer."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
from streamlit.testing.v1 import AppTest

from kvcore.base.numbers import DASH
from kvcore.deploy.shell import launch_command
from kvcore.hub import LOOKUPS, REFUSED_SECONDS, Lookups
from kvcore.planning import plan
from kvcore.wire import link
from pages.ui.sidebar import model_source
from tests.page_app import (
    CONFIG,
    WORKED,
    checked,
    metrics,
    open_app,
    params,
    seen,
)
from tests.test_hub import StandIn, stand_in

__all__ = ["stand_in"]


class TestSettings:
    def test_a_chip_takes_a_setting_back_and_can_be_undone(self) -> None:
        app = open_app(WORKED | {"enable_lora": "true", "max_loras": "4", "cpu_offload_gb": "4"})
        app.button(key="setting.cpu_offload_gb").click()
        checked(app.run())
        assert "cpu_offload_gb" not in params(app)
        assert params(app)["max_loras"] == "4"
        app.button(key="undo_button").click()
        checked(app.run())
        assert params(app)["cpu_offload_gb"] == "4"

    def test_a_chip_takes_back_what_stops_the_plan(self) -> None:
        app = open_app({"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "quantization": "awq"})
        assert not app.metric
        app.button(key="setting.quantization").click()
        checked(app.run())
        assert metrics(app)["Requests at once"] != DASH


class TestEntries:
    @pytest.mark.parametrize(
        ("typed", "tokens"), [("32k", "32000"), ("32K", "32768"), ("16,384", "16384"), (" 4096 ", "4096")]
    )
    def test_a_length_is_read_as_the_engine_reads_its_flag(self, typed: str, tokens: str) -> None:
        app = open_app()
        app.text_input(key="max_model_len").set_value(typed)
        checked(app.run())
        assert params(app)["max_model_len"] == tokens
        assert app.text_input(key="max_model_len").value == tokens
        assert app.select_slider(key="max_model_len.slider").value == int(tokens)

    @pytest.mark.parametrize("typed", ["1e30", "-5", "0", "32 kB", "[x](http://a.b)", ""])
    def test_an_invalid_length_keeps_the_old_one_and_says_so(self, typed: str) -> None:
        app = open_app({"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "max_model_len": "8192"})
        app.text_input(key="max_model_len").set_value(typed)
        checked(app.run())
        assert params(app)["max_model_len"] == "8192"
        assert app.text_input(key="max_model_len").value == "8192"
        assert [text.value for text in app.text if "still using 8,192" in text.value]
        checked(app.run())
        assert not [text.value for text in app.text if "still using" in text.value]

    @pytest.mark.parametrize("given", [5.0, -1.0, 0.0])
    def test_an_invalid_share_keeps_the_old_one_and_says_so(self, given: float) -> None:
        app = open_app({"model": "Qwen/Qwen3-8B", "gpu_memory_utilization": "0.85"})
        app.number_input(key="gpu_memory_utilization").set_value(given)
        checked(app.run())
        assert app.number_input(key="gpu_memory_utilization").value == 0.85
        said = f"Not taken: {given:g} is not a number from 0.01 to 1."
        assert [text.value for text in app.text] == [said]


class TestModels:
    def test_another_model_keeps_the_rest_and_adjusts_what_depends_on_it(self) -> None:
        app = open_app(WORKED)
        app.text_area(key="config_text").set_value(json.dumps(CONFIG))
        next(button for button in app.button if button.label == "Use this config").click()
        checked(app.run())
        assert app.selectbox(key="model").value == "config.json"
        assert app.number_input(key="tensor_parallel_size").value == 4
        assert app.text_input(key="max_model_len").value == "4096"
        assert app.number_input(key="gpu_memory_utilization").value == 0.75
        assert link.decode(params(app)).scenario.config.raw == CONFIG

    @pytest.mark.parametrize("is_first", [True, False])
    def test_a_config_gets_the_name_that_the_command_needs(self, is_first: bool) -> None:
        app = open_app(WORKED)
        if is_first:
            app.text_input(key="config_name").set_value("/models/mine")
            checked(app.run())
            assert app.selectbox(key="model").value == "Qwen/Qwen3-32B"
        app.text_area(key="config_text").set_value(json.dumps(CONFIG))
        next(button for button in app.button if button.label == "Use this config").click()
        checked(app.run())
        assert app.selectbox(key="model").value == ("/models/mine" if is_first else "config.json")
        app.text_input(key="config_name").set_value("/models/other")
        checked(app.run())
        scenario = link.decode(params(app)).scenario
        assert (scenario.model, scenario.config.raw) == ("/models/other", CONFIG)
        assert "vllm serve /models/other" in launch_command(plan(scenario))

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"model_type": "no-such"}', "[" * 20_000, '{"a": NaN}'])
    def test_a_config_that_cannot_be_read_changes_nothing(self, text: str) -> None:
        app = open_app(WORKED)
        before = metrics(app)
        app.text_area(key="config_text").set_value(text)
        next(button for button in app.button if button.label == "Use this config").click()
        checked(app.run())
        assert "The model was not changed." in seen(app)
        assert metrics(app) == before

    def test_an_unknown_class_is_planned_with_the_headers_of_its_files(self) -> None:
        unread = {key: CONFIG[key] for key in ("num_attention_heads", "head_dim", "max_position_embeddings")}
        unread |= {"architectures": ["UnreadForCausalLM"], "model_type": "unread", "new_key": 1}
        app = open_app(WORKED)
        assert not any(one.key == "headers_file" for one in app.file_uploader)
        app.text_area(key="config_text").set_value(json.dumps(unread))
        next(button for button in app.button if button.label == "Use this config").click()
        checked(app.run())
        app.file_uploader(key="headers_file").upload("headers.json", b'{"weight_map": {}}')
        checked(app.run())
        assert "an index names tensors without their shapes" in seen(app)
        shapes = {"q": [1536, 2048], "k": [512, 2048], "v": [512, 2048], "o": [2048, 1536]}
        headers = {
            f"model.layers.{layer}.self_attn.{name}_proj.weight": {"dtype": "BF16", "shape": shape}
            for layer in range(16)
            for name, shape in shapes.items()
        }
        headers["model.norm.weight"] = {"dtype": "BF16", "shape": [2048]}
        headers["model.embed_tokens.weight"] = {"dtype": "BF16", "shape": [128256, 2048]}
        headers["model.layers.0.input_layernorm.weight"] = {"dtype": "BF16", "shape": [2048]}
        app.file_uploader(key="headers_file").upload("headers.json", json.dumps(headers).encode())
        checked(app.run())
        assert app.selectbox(key="model").value == "config.json"
        assert "names and shapes of the tensors in its checkpoint" in seen(app)
        assert metrics(open_app(params(app))) == metrics(app)

    def test_a_bundled_model(self) -> None:
        app = open_app()
        app.selectbox(key="model").set_value("Qwen/Qwen3-14B")
        checked(app.run())
        assert params(app)["model"] == "Qwen/Qwen3-14B"

    def test_only_sizes_that_divide_are_offered(self) -> None:
        app = open_app({"model": "Qwen/Qwen2.5-14B", "accelerator": "H100-80GB"})  # 40 heads
        assert app.select_slider(key="tensor_parallel_size.slider").options == ["1", "2", "4", "8"]

    def test_the_slider_and_the_field_of_the_tensor_parallel_size_agree(self) -> None:
        app = open_app(WORKED)
        assert app.select_slider(key="tensor_parallel_size.slider").value == 8
        checked(app.select_slider(key="tensor_parallel_size.slider").set_value(4).run())
        assert params(app)["tensor_parallel_size"] == "4"
        assert app.number_input(key="tensor_parallel_size").value == 4
        checked(app.number_input(key="tensor_parallel_size").set_value(32).run())
        assert params(app)["tensor_parallel_size"] == "32"
        assert app.select_slider(key="tensor_parallel_size.slider").value == 32

    @pytest.mark.parametrize("typed", [0.0, 2.5, 1025.0])
    def test_a_size_that_is_none_keeps_the_old_one_and_says_so(self, typed: float) -> None:
        app = open_app(WORKED)
        checked(app.number_input(key="tensor_parallel_size").set_value(typed).run())
        assert params(app)["tensor_parallel_size"] == "8"
        assert app.number_input(key="tensor_parallel_size").value == 8
        assert [f"Not taken: {typed:,.12g} is not a whole number from 1 to 1,024."] == [
            text.value for text in app.text
        ]

    @pytest.mark.parametrize(
        ("given", "shown"), [("half", "float16"), ("float", "float32"), ("auto", "auto")]
    )
    def test_the_dtype_of_a_link_is_shown_and_kept(self, given: str, shown: str) -> None:
        app = open_app(WORKED | {"dtype": given})
        assert app.select_slider(key="dtype").value == shown
        assert params(app)["dtype"] == given

    @pytest.mark.parametrize(
        ("locale", "said"),
        [
            ("en-US", "`bfloat16` does not run here. Set dtype to float16."),
            ("zh-CN", "`bfloat16` 在此无法运行。将 dtype 设为 float16。"),
        ],
    )
    def test_a_dtype_that_the_card_has_not_is_said_with_what_to_do(self, locale: str, said: str) -> None:
        volta = {"model": "Qwen/Qwen3-8B", "accelerator": "V100-PCIe-16GB"}
        app = open_app(volta, locale, opened=False)
        assert said in [caption.value for caption in app.caption]
        ampere = open_app(volta | {"accelerator": "A100-80GB-SXM"}, locale, opened=False)
        assert said not in [caption.value for caption in ampere.caption]

    def test_a_refusal_is_shown_in_the_engines_words_and_the_controls_stay(self) -> None:
        app = open_app({"model": "Qwen/Qwen3-32B", "accelerator": "V100-PCIe-16GB", "dtype": "bfloat16"})
        assert app.error[0].value == "**The engine refuses this start**"
        assert app.selectbox(key="accelerator").value == "V100-PCIe-16GB"
        assert any(
            line.value.startswith("`Qwen/Qwen3-32B` · ") and "V100" in line.value for line in app.caption
        )
        share = app.number_input(key="gpu_memory_utilization").value
        app.select_slider(key="dtype").set_value("float16")
        checked(app.run())
        assert app.number_input(key="gpu_memory_utilization").value == share
        assert "The engine refuses this start" not in seen(app)

    def test_the_introduction_is_shown_until_the_scenario_changes(self) -> None:
        app = open_app()
        assert app.caption[0].value.startswith("Choose model and card in the sidebar")
        app.selectbox(key="model").set_value("Qwen/Qwen3-14B")
        assert not any(one.value.startswith("Choose model and card") for one in checked(app.run()).caption)


class TestHub:
    NAME = "owner/model"

    @pytest.fixture(autouse=True)
    def forget(self) -> None:
        LOOKUPS.clear()

    def look_up(self, app: AppTest, name: str) -> AppTest:
        app.text_input(key="hub_id").set_value(name)
        next(button for button in app.button if button.label == "Look up").click()
        return checked(app.run())

    def test_a_model_that_is_there_is_planned_and_needs_no_network_again(self, stand_in: StandIn) -> None:
        stand_in.model(self.NAME, {"config.json": CONFIG})
        app = self.look_up(open_app(WORKED), self.NAME)
        assert app.selectbox(key="model").value == self.NAME
        written, asked = params(app), len(stand_in.asked)
        again = open_app(written)
        assert metrics(again) == metrics(app)
        assert len(stand_in.asked) == asked

    def test_a_model_that_is_not_there_changes_nothing(self, stand_in: StandIn) -> None:
        app = open_app(WORKED)
        before = metrics(app)
        self.look_up(app, "owner/missing")
        assert "The model was not changed." in seen(app)
        assert "the Hub has no model owner/missing".casefold() in seen(app).casefold()
        assert metrics(app) == before

    def test_a_failure_is_kept_for_a_minute_and_no_longer(
        self, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = 0.0
        monkeypatch.setattr(model_source, "LOOKUPS", Lookups(clock=lambda: now))
        app = self.look_up(open_app(WORKED), self.NAME)
        assert "The model was not changed." in seen(app)
        stand_in.model(self.NAME, {"config.json": CONFIG})
        asked = len(stand_in.asked)
        assert "The model was not changed." in seen(self.look_up(app, self.NAME))
        assert len(stand_in.asked) == asked
        now = REFUSED_SECONDS + 1
        self.look_up(app, self.NAME)
        assert "The model was not changed." not in seen(app)
        assert app.selectbox(key="model").value == self.NAME

    def test_nobody_is_asked_without_a_click(self, stand_in: StandIn) -> None:
        app = open_app(WORKED | {"model": self.NAME})
        assert stand_in.asked == []
        stand_in.model(self.NAME, {"config.json": CONFIG})
        next(button for button in app.button if button.label == "Look it up on the Hub").click()
        checked(app.run())
        assert app.selectbox(key="model").value == self.NAME

    def test_offline_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        app = open_app(WORKED)
        assert app.text_input(key="hub_id").disabled
        assert "HF_HUB_OFFLINE" in seen(app)


class TestPooling:
    PARAMS: ClassVar = {"model": "Qwen/Qwen3-Embedding-8B", "accelerator": "H100-80GB"}

    def test_it_says_that_the_model_pools_and_how_to_generate(self) -> None:
        app = open_app(self.PARAMS)
        assert "Sentence Transformers" in seen(app)
        assert "Pass --runner generate to generate text instead" in seen(app)
        assert "Sentence Transformers" not in seen(open_app(self.PARAMS | {"runner": "generate"}))

    def test_the_runner_is_chosen_in_the_sidebar(self) -> None:
        app = open_app(self.PARAMS)
        runner = next(box for box in app.selectbox if box.label == "Runner")
        checked(runner.select("generate").run())
        assert params(app)["runner"] == "generate"
        assert "Sentence Transformers" not in seen(app)

    def test_a_model_that_keeps_nothing_has_a_page(self) -> None:
        app = open_app({"model": "Alibaba-NLP/gte-Qwen2-7B-instruct", "accelerator": "H100-80GB"})
        assert metrics(app)["Requests at once"] == DASH
        assert "no KV cache is kept" in seen(app)


class TestRecurrentStates:
    PARAMS: ClassVar = {
        "model": "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4", "accelerator": "H200-141GB",
        "engine_version": "0.27.1", "enable_prefix_caching": "true",
    }  # fmt: skip

    def test_the_mode_in_force_is_said_and_changed_in_the_sidebar(self) -> None:
        app = open_app(self.PARAMS)
        assert "Mamba cache mode all: " in seen(app)
        checked(app.selectbox(key="mamba_cache_mode").select("align").run())
        assert params(app)["mamba_cache_mode"] == "align"
        assert "Mamba cache mode align: " in seen(app)
        checked(app.selectbox(key="mamba_cache_mode").select("auto").run())
        assert "mamba_cache_mode" not in params(app)

    def test_prefix_caching_and_dtypes_too(self) -> None:
        app = open_app(self.PARAMS)
        checked(app.selectbox(key="mamba_ssm_cache_dtype").select("float16").run())
        checked(app.selectbox(key="enable_prefix_caching").select("off").run())
        written = params(app)
        assert (written["mamba_ssm_cache_dtype"], written["enable_prefix_caching"]) == ("float16", "false")
        assert "Mamba cache mode none: " in seen(app)

    def test_other_models_are_not_asked(self) -> None:
        keys = {box.key for box in open_app(WORKED).selectbox}
        assert not {"mamba_cache_mode", "mamba_ssm_cache_dtype", "enable_prefix_caching"} & keys


class TestSurroundings:
    PARAMS: ClassVar = {
        "model": "Qwen/Qwen2.5-VL-7B-Instruct",
        "accelerator": "RTX-4090-24GB",
        "max_model_len": "8192",
    }

    def test_they_are_set_and_cleared_in_the_sidebar(self) -> None:
        app = open_app(self.PARAMS | {"tensor_parallel_size": "2"})
        assert app.selectbox(key="surroundings.link").value == "unknown"
        checked(app.selectbox(key="surroundings.link").select("pcie").run())
        checked(app.selectbox(key="surroundings.host").select("wsl").run())
        checked(app.text_input(key="surroundings.driver").set_value(" 580.159.03 ").run())
        checked(app.number_input(key="surroundings.taken_gib").set_value(0.5).run())
        written = {name: value for name, value in params(app).items() if name.startswith("surroundings.")}
        assert written == {
            "surroundings.link": "pcie", "surroundings.host": "wsl", "surroundings.driver": "580.159.03",
            "surroundings.taken_gib": "0.5",
        }  # fmt: skip
        assert "Link between cards: PCIe without P2P" in [button.label for button in app.button]
        checked(app.selectbox(key="surroundings.link").select("unknown").run())
        checked(app.text_input(key="surroundings.driver").set_value("").run())
        assert not {"surroundings.link", "surroundings.driver"} & params(app).keys()

    @pytest.mark.parametrize("text", ["580\u0000", "abc", "auto"])
    def test_an_invalid_driver_is_refused_next_to_its_field(self, text: str) -> None:
        app = open_app(self.PARAMS)
        checked(app.text_input(key="surroundings.driver").set_value(text).run())
        assert "This setting was not changed." in seen(app)
        assert "surroundings.driver" not in params(app)

    def test_bounds_of_images_are_those_of_a_model_that_sees(self) -> None:
        app = open_app(self.PARAMS)
        checked(app.number_input(key="mm_processor_kwargs.max_pixels").set_value(262144).run())
        assert params(app)["mm_processor_kwargs.max_pixels"] == "262144"
        text = open_app(WORKED)
        assert not {"mm_processor_kwargs.max_pixels"} & {box.key for box in text.number_input}
        assert "surroundings.installation" in {box.key for box in text.selectbox}

    def test_one_card_has_no_link(self) -> None:
        assert "surroundings.link" not in {box.key for box in open_app(self.PARAMS).selectbox}


class TestGraphs:
    PARAMS: ClassVar = {
        "model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "engine_version": "0.32.0", "max_model_len": "8192",
    }  # fmt: skip

    def test_the_maximum_is_set_in_the_sidebar_and_goes_into_link_and_command(self) -> None:
        app = open_app(self.PARAMS)
        box = app.number_input(key="max_cudagraph_capture_size")
        assert (box.value, box.placeholder) == (None, "512 by default")
        before = metrics(app)["Requests at once"]
        checked(box.set_value(8).run())
        written = params(app)
        assert written["max_cudagraph_capture_size"] == "8"
        assert "--max-cudagraph-capture-size 8" in launch_command(plan(link.decode(written).scenario))
        assert metrics(app)["Requests at once"] != before

    def test_a_list_is_shown_and_replaced(self) -> None:
        app = open_app(self.PARAMS | {"cudagraph_capture_sizes": "1,2,4"})
        assert "A list of sizes is captured: 1, 2, 4." in seen(app)
        checked(app.number_input(key="max_cudagraph_capture_size").set_value(16).run())
        written = params(app)
        assert written["max_cudagraph_capture_size"] == "16"
        assert "cudagraph_capture_sizes" not in written

    def test_the_mode_too(self) -> None:
        app = open_app(self.PARAMS)
        checked(app.selectbox(key="cudagraph_mode").select("PIECEWISE").run())
        assert params(app)["cudagraph_mode"] == "PIECEWISE"
        checked(app.selectbox(key="cudagraph_mode").select("auto").run())
        assert "cudagraph_mode" not in params(app)

    def test_a_release_without_the_flags_offers_none(self) -> None:
        app = open_app(self.PARAMS | {"engine_version": "0.8.5"})
        assert "max_cudagraph_capture_size" not in {box.key for box in app.number_input}
        assert "cudagraph_mode" not in {box.key for box in app.selectbox}

    def test_a_refusal_is_said(self) -> None:
        app = open_app(self.PARAMS | {"cudagraph_capture_sizes": "1,2,4", "max_cudagraph_capture_size": "8"})
        assert "should be consistent with the max value of cudagraph_capture_sizes" in seen(app)


def test_the_engine_follows_the_card_with_a_note_and_an_undo() -> None:
    app = open_app(WORKED)
    app.selectbox(key="accelerator").set_value("Ascend-910B3-64GB")
    checked(app.run())
    assert params(app)["engine"] == "vllm-ascend"
    assert any("vllm-ascend" in toast.value for toast in app.toast)
    app.button(key="undo_button").click()
    checked(app.run())
    assert (params(app)["engine"], params(app)["accelerator"]) == ("vllm", "RTX-4090-24GB")


def test_only_what_card_and_release_take_is_at_hand_and_the_rest_is_marked() -> None:
    """Tensor cores for fp8 came with Ada and Hopper: neither a V100 nor vLLM on it stores keys and values so."""
    volta = {"model": "Qwen/Qwen3-8B", "accelerator": "V100-PCIe-16GB", "max_model_len": "4096"}
    app = open_app(volta)
    assert app.segmented_control(key="kv_cache_dtype").options == ["auto"]
    assert app.segmented_control(key="quantization").options == ["auto", "bitsandbytes"]
    old = open_app({"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "engine_version": "0.11.0"})
    assert old.segmented_control(key="kv_cache_dtype").options == ["auto", "fp8"]
    asked = open_app(volta | {"kv_cache_dtype": "fp8"})
    assert asked.segmented_control(key="kv_cache_dtype").options == ["auto", "fp8"]
    assert asked.error[0].value == "**The engine refuses this start**"
    full = next(box for box in asked.selectbox if box.key == "kv_cache_dtype.all")
    assert "nvfp4 (refused here)" in full.options
    # neither does 0.33 keep 16 bits of another kind than the model's, which is float16 there
    assert {"float16", "bfloat16 (refused here)"} <= set(full.options)


class TestAdditionalConfig:
    PARAMS: ClassVar = {
        "model": "Qwen/Qwen3-Next-80B-A3B-Instruct", "accelerator": "Ascend-910B3-64GB", "engine": "vllm-ascend",
        "engine_version": "0.23.0", "tensor_parallel_size": "4", "enable_expert_parallel": "true",
        "max_model_len": "8192",
    }  # fmt: skip
    REST = "additional_config.rest"
    REDUNDANT = "additional_config.eplb_config.num_redundant_experts"

    @pytest.mark.parametrize(
        ("locale", "label"), [("en-US", "Whole shared experts"), ("zh-CN", "共享专家不切分")]
    )
    def test_keys_are_set_in_the_sidebar_and_taken_out_again(self, locale: str, label: str) -> None:
        app = open_app(self.PARAMS, locale)
        switch = app.toggle(key="additional_config.enable_shared_expert_dp")
        assert (switch.label, switch.value) == (label, False)
        checked(switch.set_value(True).run())
        checked(app.number_input(key=self.REDUNDANT).set_value(16).run())
        assert json.loads(params(app)["additional_config"]) == {
            "enable_shared_expert_dp": True, "eplb_config": {"num_redundant_experts": 16},
        }  # fmt: skip
        again = open_app(params(app), locale)
        assert again.toggle(key="additional_config.enable_shared_expert_dp").value is True
        assert again.number_input(key=self.REDUNDANT).value == 16
        checked(app.toggle(key="additional_config.enable_shared_expert_dp").set_value(False).run())
        assert json.loads(params(app)["additional_config"]) == {"eplb_config": {"num_redundant_experts": 16}}

    def test_controls_are_those_of_release_model_and_ranks(self) -> None:
        def keys(**changes: str) -> set[str]:
            app = open_app({**self.PARAMS, **changes})
            found = [box.key for kind in (app.toggle, app.selectbox, app.number_input) for box in kind]
            return {key.partition(".")[2] for key in found if key and key.startswith("additional_config.")}

        assert {"enable_flashcomm1", "enable_fused_mc2", "xlite_graph_config.enabled"} <= keys()
        assert not {"enable_dsa_cp", "finegrained_tp_config.lmhead_tensor_parallel_size"} & keys()
        assert "finegrained_tp_config.lmhead_tensor_parallel_size" in keys(data_parallel_size="2")
        assert "enable_flashcomm1" not in keys(engine_version="0.18.0")
        assert "torchair_graph_config.enabled" in keys(engine_version="0.11.0")
        dense = {"model": "Qwen/Qwen3-8B", "enable_expert_parallel": "false"}
        assert not {"enable_fused_mc2", "eplb_config.num_redundant_experts"} & keys(**dense)
        nvidia = {"engine": "vllm", "engine_version": "0.30.0", "accelerator": "H100-80GB"}
        assert keys(**dense, **nvidia) == set()

    def test_the_rest_is_json_and_a_pasted_flag_is_taken_apart(self) -> None:
        app = open_app(self.PARAMS)
        pasted = """--additional-config '{"enable_shared_expert_dp": true, "refresh": true}'"""
        checked(app.text_area(key=self.REST).set_value(pasted).run())
        assert app.toggle(key="additional_config.enable_shared_expert_dp").value is True
        assert app.text_area(key=self.REST).value == '{"refresh": true}'
        checked(app.text_area(key=self.REST).set_value("").run())
        assert json.loads(params(app)["additional_config"]) == {"enable_shared_expert_dp": True}

    @pytest.mark.parametrize(
        ("locale", "typed", "code", "said"),
        [
            ("en-US", '{"refresh": ', "invalid-json", "This setting was not changed."),
            ("zh-CN", '{"no such key": 1}', "unknown-field", "additional_config.no such key"),
            ("zh-CN", '{"enable_fused_mc2": 9}', "invalid-value", "additional_config.enable_fused_mc2"),
        ],
    )
    def test_a_refused_text_is_explained_there_and_stays_to_be_corrected(
        self, locale: str, typed: str, code: str, said: str
    ) -> None:
        app = open_app(self.PARAMS, locale)
        checked(app.text_area(key=self.REST).set_value(typed).run())
        assert f"`{code}`" in seen(app)
        assert said in seen(app)
        assert app.text_area(key=self.REST).value == typed
        assert "additional_config" not in params(app)
        checked(app.text_area(key=self.REST).set_value('{"refresh": true}').run())
        assert f"`{code}`" not in seen(app)
        assert params(app)["additional_config"] == '{"refresh":true}'

    @pytest.mark.parametrize(
        ("locale", "said"),
        [("en-US", "enable_flashcomm1: read by"), ("zh-CN", "读取 enable_flashcomm1 的版本")],
    )
    def test_an_unread_key_is_listed_with_the_releases_that_read_it(self, locale: str, said: str) -> None:
        asked = {"engine_version": "0.18.0", "additional_config": '{"enable_flashcomm1":true}'}
        app = open_app({**self.PARAMS, **asked}, locale)
        assert app.text_area(key=self.REST).value == '{"enable_flashcomm1": true}'
        own = [text.value for text in app.text if said in text.value]
        assert len(own) == 1
        assert "0.23.0" in own[0]
        assert "0.11.0" not in own[0]
