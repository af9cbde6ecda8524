"""The Check page in its states, in both languages, without a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvcore.base.errors import HubError
from kvcore.base.units import gib
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request
from pages.ui.sidebar import model_source
from tests.page_app import checked, metrics, open_app, params, seen, stacks

DATA = Path(__file__).parent / "data" / "logs"
TAKE, CALIBRATE = "check.take", "check.calibrate"


def open_check(locale: str = "en-US", **query: str) -> AppTest:
    app = open_app(query, locale)
    return checked(app.switch_page("pages/check.py").run())


def paste(app: AppTest, text: str) -> AppTest:
    return checked(app.text_area(key="check.text").set_value(text).run())


def log(name: str) -> str:
    return (DATA / name).read_text("utf-8")


def html(app: AppTest) -> str:
    return "".join(element.proto.body for element in app.get("html"))


def keys(app: AppTest) -> set[str]:
    return {button.key for button in app.button if button.key}


@pytest.mark.parametrize(
    ("locale", "words"), [("en-US", "neither stored nor sent on"), ("zh-CN", "不会保存，也不会转发")]
)
def test_empty_page_asks_and_says_what_happens_to_the_text(locale: str, words: str) -> None:
    app = open_check(locale)
    assert words in seen(app)
    assert not stacks(app)
    assert {"sample.start", "sample.failed"} <= keys(app)


def test_log_and_comparison_may_each_have_notes() -> None:
    app = paste(open_check(), log("v1_0.12_negative_graphs.log"))
    assert [text.count("**Note**") for text in (element.value for element in app.markdown)].count(1) == 2


def test_both_fields_may_have_an_unreadable_log() -> None:
    app = open_check()
    app.text_area(key="prerun.text").set_value("no log")
    app = paste(app, "no log either")
    assert seen(app).count("This log cannot be read") == 1
    assert "actual peak used mem" in seen(app)


def test_a_scenario_that_cannot_be_planned_may_be_said_twice() -> None:
    app = paste(
        open_check(model="Qwen/Qwen3-32B", tensor_parallel_size="7"), "vllm serve Qwen/Qwen3-32B -tp 7"
    )
    assert "heads" in seen(app)


@pytest.mark.parametrize(("locale", "title"), [("en-US", "Predicted and measured"), ("zh-CN", "预测与实测")])
def test_a_start_is_compared_part_by_part(locale: str, title: str) -> None:
    app = paste(open_check(locale), log("v1_0.19.0_tp2_debug.log"))
    assert title in seen(app)
    (drawn,) = stacks(app)
    names = ["Predicted", "Measured"] if locale == "en-US" else ["预测", "实测"]
    assert re.findall('kv-bar-name">([^<]*)<', drawn) == names
    assert [f"kv-swatch kv-{name}" in html(app) for name in ("weights", "kv_cache", "unused")] == [
        True,
        True,
        False,
    ]
    assert "67.80</td>" in html(app)
    assert "19,920" in seen(app)


def test_the_table_names_causes() -> None:
    text = log("v0_0.8.2_tp4.log").replace("peak memory takes 0.32GiB", "peak memory takes 6.32GiB")
    app = paste(open_check(), text.replace("65.65GiB", "59.65GiB").replace("65.77GiB", "59.77GiB"))
    assert "it follows from the activations" in html(app).lower()
    assert "outside" in html(app)


def headline(app: AppTest) -> str:
    return next(element.value for element in (*app.success, *app.warning) if "KV" in element.value)


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("v1_0.10.2_h100.log", ("8.68 GiB", "94,784")),
        ("v1_0.19.0_tp2_debug.log", ("3.04 GiB", "19,920")),
        ("v0_0.8.2_tp4.log", ()),
    ],
)
def test_the_first_line_says_what_was_gained_or_lost(name: str, printed: tuple[str, ...]) -> None:
    app = paste(open_check(), log(name))
    first = headline(app)
    assert all(text in first for text in printed)
    row = re.search(r"<tr><td>Available for the KV cache</td>(?:(?!</tr>).)*</td></tr></tbody>", html(app))
    assert row is not None
    sign, size = re.findall(r">([+\N{MINUS SIGN}])([\d.]+)</td>", row[0])[0]
    assert first.startswith(f"{size} GiB {'more' if sign == '+' else 'less'} KV memory than predicted")
    order = [
        element.type for element in app.main if element.type in ("success", "warning", "expander", "html")
    ]
    assert order[0] in ("success", "warning")


@pytest.mark.parametrize(("locale", "button"), [("en-US", "Check"), ("zh-CN", "核对")])
def test_a_command_alone_gives_a_plan_and_a_verdict(locale: str, button: str) -> None:
    app = open_check(locale)
    assert app.button(key="check.go").label == button
    app.text_area(key="check.text").set_value("vllm serve Qwen/Qwen3-8B --max-model-len 8192 -tp 2")
    checked(app.button(key="check.go").click().run())
    verdicts = [element.value for element in app.success]
    assert any(("Fits: " if locale == "en-US" else "可以部署：") in text for text in verdicts), verdicts
    assert TAKE in keys(app)


def test_a_command_that_does_not_fit_is_fixed_from_here() -> None:
    app = paste(open_check(accelerator="L40S-48GB"), "vllm serve Qwen/Qwen3-32B --max-model-len 8192")
    assert any("Does not fit" in element.value for element in app.error)
    fix = next(key for key in keys(app) if key.startswith("check.fix.") and ".model." not in key)
    checked(app.button(key=fix).click().run())
    assert params(app)["model"] == "Qwen/Qwen3-32B"


def test_a_command_that_does_not_fit_is_fixed_by_another_checkpoint_of_its_model() -> None:
    app = paste(open_check(accelerator="L40S-48GB"), "vllm serve Qwen/Qwen3-32B --max-model-len 8192")
    fix = next(key for key in keys(app) if key.startswith("check.fix.model."))
    checked(app.button(key=fix).click().run())
    assert fix.endswith(params(app)["model"])
    assert params(app)["model"].startswith("Qwen/Qwen3-32B-")


def test_an_empty_field_is_said_beside_the_button_once() -> None:
    app = open_check()
    words = "Nothing to check yet"
    checked(app.button(key="check.go").click().run())
    assert any(words in element.value for element in app.caption)
    checked(app.run())
    assert not any(words in element.value for element in app.caption)


def test_measurements_go_into_the_link_and_out_again() -> None:
    app = paste(open_check(), log("v1_0.10.2_h100.log"))
    checked(app.button(key=CALIBRATE).click().run())
    link = params(app)
    assert (link["measured.weights_gib"], link["measured.peak_activation_gib"]) == ("56.9342", "5.58")
    assert "measured.available_kv_gib" not in link
    shared = open_app({name: value for name, value in link.items() if name != "lang"})
    # the log prints 94,784 tokens from 8.68 GiB, which is rounded: one block of 16 more fits
    assert metrics(shared)["KV cache tokens"] == "94,800"
    assert any("Measured: System, Framework, Weights" in element.value for element in shared.markdown)
    checked(shared.button(key="measurements.remove").click().run())
    assert not [name for name in params(shared) if name.startswith("measured.")]


@pytest.mark.parametrize(
    ("locale", "words"),
    [
        (
            "en-US",
            (
                "Measured: Weights",
                "Fitted to your log: Activations",
                "Carried over from another setting: Fra",
            ),
        ),
        ("zh-CN", ("实测：权重", "按日志拟合：激活", "由其他配置换算：")),
    ],
)
def test_each_chip_says_where_its_parts_come_from(locale: str, words: tuple[str, ...]) -> None:
    link = {
        "model": "Qwen/Qwen3-32B",
        "accelerator": "L40S-48GB",
        "tensor_parallel_size": "4",
        "measured.weights_gib": "15.4194",
        "measured.peak_activation_gib": "1.9",
        "measured.non_torch_gib": "0.4",
        "measured.fitted": "peak_activation_gib",
        "measured.carried": "non_torch_gib",
    }
    app = open_app(link, locale=locale)
    for text in words:
        assert any(text in element.value for element in app.markdown), text


def test_taking_the_scenario_over_leaves_the_figures_predicted() -> None:
    app = paste(open_check(), log("v1_0.19.0_tp2_debug.log"))
    checked(app.button(key=TAKE).click().run())
    assert params(app)["model"] == "Qwen/Qwen2.5-72B-Instruct"
    assert params(app)["max_num_seqs"] == "1024"
    assert not [name for name in params(app) if name.startswith("measured.")]
    assert TAKE not in keys(app)


@pytest.mark.parametrize(("locale", "words"), [("en-US", "is left"), ("zh-CN", "启动失败")])
def test_a_failed_start_is_explained_with_the_change_that_mends_it(locale: str, words: str) -> None:
    app = open_check(locale)
    checked(app.button(key="sample.failed").click().run())
    assert "5.62 GiB" in seen(app)
    if locale == "zh-CN":
        assert words in seen(app)
    checked(app.button(key="check.change").click().run())
    assert params(app)["max_model_len"] == "37424"
    assert params(app)["accelerator"].startswith("RTX-4090") or "4090" in params(app)["accelerator.name"]


def test_no_change_is_offered_that_the_log_disproves() -> None:
    # The engine had 5.14 GiB: 37,424 tokens at 0.9, where the prediction would let 37,808 in.
    app = open_check()
    checked(app.button(key="sample.failed").click().run())
    assert "37,808" not in seen(app)
    assert "check.fix.max_model_len" not in keys(app)
    # 40,960 tokens need 5.62 GiB: 0.48 GiB more of 23.99 are 0.0200 of the card, so that 0.93 would be tight
    assert "check.fix.gpu_memory_utilization" not in keys(app)
    checked(app.button(key="check.fix.kv_cache_dtype").click().run())
    assert params(app)["measured.weights_gib"] == "15.27"
    checked(app.switch_page("pages/plan.py").run())
    assert int(metrics(app)["KV cache tokens"].replace(",", "")) >= 40960


FLAGS = (
    "INFO non-default args: {{'model': '{model}', 'max_model_len': 131072, 'tensor_parallel_size': {size}}}\n"
)
LLAMA = {
    "model": "meta-llama/Llama-3.3-70B-Instruct",
    "accelerator": "H100-80GB",
    "tensor_parallel_size": "2",
    "max_model_len": "32768",
}
FAR_TOO_LONG = FLAGS.format(model=LLAMA["model"], size=2) + (
    "ValueError: To serve at least one request with the models's max seq len (131072), (20.00 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (2.61 GiB). Based on the available memory, the estimated "
    "maximum model length is 17088."
)
OUT_OF_MEMORY = FLAGS.format(model="deepseek-ai/DeepSeek-V3", size=4) + (
    "INFO Starting to load model deepseek-ai/DeepSeek-V3...\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of 79.19 GiB "
    "of which 1.18 GiB is free."
)


def written(app: AppTest) -> str:
    return "\n".join(element.value for kind in ("text", "caption", "markdown") for element in app.get(kind))


def test_advice_suffices_and_measured_figures_are_compared() -> None:
    """131,072 tokens need 20 GiB, 10 of them as fp8: neither is in the 2.61 GiB that are left."""
    app = paste(open_check(**LLAMA), FAR_TOO_LONG)
    assert "fp8" not in next(text.value for text in app.text if text.value.startswith("Next:"))
    assert "check.fix.kv_cache_dtype" not in keys(app)
    assert "2.61 GiB of KV memory" in app.info[0].value
    assert ">2.61</td>" in html(app)
    (found,) = [one.label for one in app.expander if "found" in one.label]
    assert found.startswith("2 figures found")
    assert "Available for the KV cache" not in found
    checked(app.button(key=CALIBRATE).click().run())
    assert "measured.peak_activation_gib" in params(app)


def test_one_figure_is_one_figure() -> None:
    app = paste(open_check(), "Available KV cache memory: 5.14 GiB")
    assert [one.label.split(" · ")[0] for one in app.expander if "found" in one.label] == ["1 figure found"]


def test_no_change_is_advised_that_the_plan_shows_to_be_too_little() -> None:
    """671 GB of weights: twice the four cards are still too few, sixteen are enough."""
    app = paste(open_check(accelerator="H100-80GB"), OUT_OF_MEMORY)
    assert "check.change" not in keys(app)
    assert app.button(key="check.fix.tensor_parallel_size").label.startswith("Tensor parallel size 16")


@pytest.mark.parametrize(
    ("text", "key"), [(FAR_TOO_LONG, "check.change"), (OUT_OF_MEMORY, "check.fix.accelerator")]
)
def test_once_a_fix_is_made_its_advice_and_the_old_scenario_go(text: str, key: str) -> None:
    app = paste(open_check(**LLAMA), text)
    assert "131,072 tokens" in written(app)
    checked(app.button(key=key).click().run())
    assert "Done: every page now plans this start." in written(app)
    assert "Next:" not in written(app)
    assert "The scenario of this log" not in seen(app)
    assert not {one for one in keys(app) if one.startswith(("check.fix", "check.change", TAKE, CALIBRATE))}
    checked(app.button(key="undo_button").click().run())
    assert key in keys(app)
    assert "Next:" in written(app)


@pytest.mark.parametrize(
    ("locale", "card", "starts"),
    [
        (
            "en-US",
            "",
            "What the log measured is within the estimate's error, on the card that the sidebar has",
        ),
        ("zh-CN", "", "日志中测得的部分都在估算误差之内；日志没有写明是哪种卡"),
        (
            "en-US",
            "NVIDIA H100 80GB HBM3, 81559 MiB\n",
            "What the log measured is within the estimate's error. Not",
        ),
    ],
)
def test_a_plan_is_confirmed_only_as_far_as_the_log_goes(locale: str, card: str, starts: str) -> None:
    """A start that the log shows as predicted: weights and KV memory, of six parts."""
    asked = {
        "model": "Qwen/Qwen3-8B",
        "accelerator": "H100-80GB",
        "max_model_len": 8192,
        "engine_version": "0.19.0",
    }
    memory = plan(scenario_from_request(asked)).memory
    assert memory is not None
    text = (
        f"{card}(EngineCore pid=6) INFO Initializing a V1 LLM engine (v0.19.0) with config: model='Qwen/Qwen3-8B', "
        "max_seq_len=8192\nnon-default args: {'model': 'Qwen/Qwen3-8B', 'max_model_len': 8192}\n"
        f"Model loading took {gib(memory.weights.value):.2f} GiB\n"
        f"Available KV cache memory: {gib(memory.available_kv.value) + 0.05:.2f} GiB"
    )
    app = paste(open_check(locale, accelerator="H100-80GB"), text)
    said = [one.value for one in app.text if one.value.startswith(starts)]
    assert len(said) == 1, [one.value for one in app.text]
    parts = (
        "System, Framework, Activations, CUDA graphs"
        if locale == "en-US"
        else "系统、框架与通信、激活、CUDA 图"
    )
    assert parts in said[0]
    assert "right for this machine" not in seen(app)


def test_a_fix_shows_its_command_and_can_be_undone() -> None:
    app = open_check()
    checked(app.button(key="sample.failed").click().run())
    checked(app.button(key="check.change").click().run())
    assert any("--max-model-len 37424" in code.value for code in app.code)
    assert [toast.value for toast in app.toast] == ["Done: every page now plans this start."]
    checked(app.run())
    assert not app.toast
    checked(app.button(key="undo_button").click().run())
    assert (params(app)["accelerator"], params(app)["max_model_len"]) == ("H100-80GB", "8192")
    assert not any("37424" in code.value for code in app.code if "vllm serve" in code.value)


def test_a_text_that_is_no_log_is_reported_and_stays() -> None:
    text = "# a [link](http://example.org)\n<script>alert(1)</script> **bold**"
    app = paste(open_check(), text)
    assert "none of the engine's start-up lines" in seen(app).lower()
    assert app.text_area(key="check.text").value == text
    assert "<script>alert(1)" not in html(app)
    assert "example.org" not in "".join(element.value for element in app.markdown)


def test_a_hostile_line_is_escaped() -> None:
    app = paste(open_check(), "<img src=x onerror=alert(1)> Available KV cache memory: 5.00 GiB **x**")
    assert "<img src=x" not in html(app)
    assert "&lt;img src=x" in html(app)


def test_the_text_survives_another_page_and_can_be_cleared() -> None:
    app = paste(open_check(), log("v1_0.9.2_a100.log"))
    checked(app.switch_page("pages/plan.py").run())
    checked(app.switch_page("pages/check.py").run())
    assert app.text_area(key="check.text").value == log("v1_0.9.2_a100.log")
    checked(app.button(key="check.clear").click().run())
    assert app.text_area(key="check.text").value == ""
    assert not stacks(app)


UNKNOWN = (
    "non-default args: {'model': 'nobody/heard-of-it', 'max_model_len': 40960}\n"
    "Available KV cache memory: 5.14 GiB\n"
    "ValueError: To serve at least one request with the models's max seq len (40960), (5.62 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (5.14 GiB). Based on the available memory, the estimated "
    "maximum model length is 37424."
)


def test_nothing_is_compared_or_fixed_before_the_model_is_known() -> None:
    app = paste(open_check(), UNKNOWN)
    assert "nobody/heard-of-it" in "".join(element.value for element in app.text)
    assert [element.value for element in app.info] == ["The engine printed 5.14 GiB of KV memory"]
    assert any("37424" in code.value for code in app.code)
    assert not stacks(app)
    assert not {key for key in keys(app) if key.startswith(("check.fix", "check.change", CALIBRATE))}
    checked(app.button(key="check.same").click().run())
    assert stacks(app)
    assert {"check.change", CALIBRATE} <= keys(app)


def test_a_model_that_the_hub_does_not_have_is_said_beside_the_button(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise HubError("hub-not-found", field="model", value=name)

    monkeypatch.setattr(model_source, "fetched", missing)
    app = paste(open_check(), UNKNOWN.replace("heard-of-it", "heard-of-this"))
    checked(app.button(key="check.look_up").click().run())
    assert [element.value for element in app.error if "model" in element.value] == [
        "The model was not changed."
    ]
    checked(app.button(key="check.same").click().run())
    paste(app, log("v1_0.10.2_h100.log"))
    assert "The model was not changed." not in seen(app)


def test_a_version_that_is_too_old_is_refused_in_words() -> None:
    app = paste(
        open_check(), "Initializing a V1 LLM engine (v0.1.0) with config: model='Qwen/Qwen3-8B', dtype=auto"
    )
    assert "older than" in seen(app)
    assert app.text_area(key="check.text").value


def test_flags_that_were_not_taken_are_listed() -> None:
    app = paste(
        open_check(), "$ vllm serve Qwen/Qwen3-8B --tensor-parallel-size -4 --foo bar --swap-space 16"
    )
    assert "line 1 gives flags values that they cannot take" in seen(app).lower()
    assert "--tensor-parallel-size -4" in seen(app)
    assert "--foo bar, --swap-space 16" in seen(app)


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_a_log_that_contradicts_the_machine_is_taken_with_one_button(locale: str) -> None:
    app = open_check(locale, **{"model": "Qwen/Qwen3-8B", "surroundings.host": "linux"})
    warning = "WARNING [interface.py:382] Using 'pin_memory=False' as WSL is detected. This may slow down performance."
    app = paste(
        app, f"non-default args: {{'model': 'Qwen/Qwen3-8B'}}\n{warning}\nAvailable KV cache memory: 2.80 GiB"
    )
    said = seen(app)
    assert "surroundings.host" in said
    assert "wsl" in said
    checked(app.button(key="check.agree").click().run())
    assert params(app)["surroundings.host"] == "wsl"
    assert "check.agree" not in keys(app)


ASCEND = {"model": "Qwen/Qwen3-8B", "accelerator": "Ascend-910B3-64GB", "engine": "vllm-ascend"}


@pytest.mark.parametrize(
    ("locale", "own", "other"), [("en-US", "ACL graphs", "CUDA graphs"), ("zh-CN", "ACL 图", "CUDA 图")]
)
def test_graphs_are_called_after_the_platform_on_plan_and_check(locale: str, own: str, other: str) -> None:
    app = open_app(ASCEND, locale)
    assert own in html(app) + seen(app)
    assert other not in html(app) + seen(app)
    app = open_app(locale=locale)
    assert other in html(app) + seen(app)
    start = "non-default args: {'model': 'Qwen/Qwen3-8B'}\nPlatform plugin ascend is activated\n"
    start += "Graph capturing finished in 11 secs, took 0.20 GiB\nAvailable KV cache memory: 36.20 GiB"
    app = paste(open_check(locale), start)
    assert own in html(app)
    assert other not in html(app)


COMPOSE = """\
services:
  chat:
    image: vllm/vllm-openai:v0.27.1
    command: --model Qwen/Qwen2.5-72B-Instruct --tensor-parallel-size 4 --max-model-len 32768
"""


@pytest.mark.parametrize("room", ["", "    shm_size: 2gb\n"])
def test_a_file_pasted_beside_logs_is_judged_with_its_own_shared_memory(room: str) -> None:
    """As under "Files that you deploy": Docker gives 64 MiB where the file says nothing."""
    app = paste(open_check(), COMPOSE + room)
    refused = "Insufficient space in /dev/shm" in "\n".join((seen(app), html(app)))
    assert refused is not bool(room)


@pytest.mark.parametrize("room", ["", "    shm_size: 2gb\n"])
def test_a_pasted_command_brings_its_shared_memory(room: str) -> None:
    app = open_app({"model": "Qwen/Qwen3-8B"})
    app.session_state["command_source.opened"] = True
    app = checked(app.run())
    app.text_area(key="command_text").set_value(COMPOSE + room)
    app = checked(app.button(key="use_command").click().run())
    assert params(app).get("shm_gib") == ("2" if room else "0.0625")
    assert ("Insufficient space in /dev/shm" in seen(app)) is not bool(room)
