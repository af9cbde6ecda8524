"""The guided pre-run on the Check page, in both languages."""

import pytest
from streamlit.testing.v1 import AppTest

from pages.ui.check.log import SAMPLES
from tests.page_app import checked, params, seen
from tests.test_page_check import keys, log, open_check

DEEPSEEK = {
    "model": "deepseek-ai/DeepSeek-V3",
    "accelerator": "Ascend-910B1-64GB",
    "tensor_parallel_size": "16",
}
QWEN = {"model": "Qwen/Qwen3-8B", "accelerator": "Ascend-910B1-64GB"}
"""The model of the sample log."""


def commands(app: AppTest) -> str:
    return "\n".join(element.value for element in app.code)


def numbers(app: AppTest) -> list[str]:
    return [str(value) for value in app.table[0].value.iloc[:, -1]]


@pytest.mark.parametrize(("locale", "title"), [("en-US", "3. The arithmetic"), ("zh-CN", "3. 计算过程")])
def test_the_guide_s_walk_through(locale: str, title: str) -> None:
    app = open_check(locale, **QWEN)
    checked(app.button(key="prerun.sample").click().run())
    assert title in seen(app)
    assert numbers(app)[:3] == ["64 × 0.9 − 50 = 7.6", "28.9 − 7.6 = 21.3", "57.6 − 21.3 = 36.3"]
    assert "÷ 147,456 = " in numbers(app)[3]
    assert "export vLLM_MODEL_MEMORY_USE_GB=22" in commands(app)
    assert "1,998,848" in seen(app)
    assert "28.4" in seen(app)
    # Keys and values of all heads: twice that, and 57 times the 70,272 of latent attention.
    assert "3,997,696" in seen(app)
    assert "57" in seen(app)


def test_the_final_settings_become_the_scenario() -> None:
    app = open_check(**QWEN)
    checked(app.button(key="prerun.sample").click().run())
    checked(app.button(key="prerun.take").click().run())
    link = params(app)
    assert (link["engine"], link["env.vLLM_MODEL_MEMORY_USE_GB"], link["max_num_seqs"]) == (
        "vllm-mindspore",
        "22",
        "15",
    )
    assert (link["max_num_batched_tokens"], link["measured.batched_tokens"]) == ("16384", "16384")
    assert "prerun.take" not in keys(app)


@pytest.mark.parametrize(
    ("locale", "said"),
    [
        ("en-US", ("The log is of Qwen/Qwen3-8B", "Take the model of the log")),
        ("zh-CN", ("日志属于 Qwen/Qwen3-8B", "请采用日志中的模型")),
    ],
)
def test_a_log_of_another_model_is_refused_until_it_is_taken(locale: str, said: tuple[str, str]) -> None:
    app = open_check(locale, **DEEPSEEK)
    checked(app.button(key="prerun.sample").click().run())
    assert all(words in seen(app) for words in said)
    assert "prerun.take" not in keys(app)
    checked(app.button(key="prerun.logged").click().run())
    assert params(app)["model"] == "Qwen/Qwen3-8B"
    assert params(app).get("tensor_parallel_size", "1") == "1"
    assert params(app)["accelerator"] == "Ascend-910B1-64GB"
    assert numbers(app)[2] == "57.6 − 21.3 = 36.3"
    assert "export vLLM_MODEL_MEMORY_USE_GB=22" in commands(app)


@pytest.mark.parametrize(
    ("locale", "said"),
    [("en-US", "the weights of the model alone take 40.3 GB"), ("zh-CN", "仅该模型的权重每卡就占 40.3 GB")],
)
def test_a_peak_below_the_weights_is_refused(locale: str, said: str) -> None:
    app = open_check(locale, **DEEPSEEK)
    peak = "[INFO] actual peak used mem:29614M. Weight used size:0M"
    checked(app.text_area(key="prerun.text").set_value(peak).run())
    assert said in seen(app)
    assert "prerun.take" not in keys(app)


def test_the_request_of_the_pre_run_can_be_copied() -> None:
    """A prompt of 16,384 tokens would be refused: one is left for the answer."""
    app = open_check(**QWEN)
    assert '"prompt": [[1000 + n] * 16383 for n in range(1)], "max_tokens": 1' in commands(app)
    checked(app.number_input(key="prerun.length").set_value(4096).run())
    assert "[1000 + n] * 4095 for" in commands(app)


def test_a_larger_step_is_run_before_it_is_served() -> None:
    app = open_check(**DEEPSEEK)
    checked(app.number_input(key="prerun.batch").set_value(65536).run())
    assert "--max-num-batched-tokens=65536" in commands(app)
    assert "Send 4 requests of 16,384 tokens at once" in seen(app)


def test_other_settings_change_the_commands() -> None:
    app = open_check()
    checked(app.number_input(key="prerun.total").set_value(32.0).run())
    assert "negative number of blocks" in seen(app)
    checked(app.number_input(key="prerun.model").set_value(20.0).run())
    assert "export ASCEND_TOTAL_MEMORY_GB=32" in commands(app)
    assert "export vLLM_MODEL_MEMORY_USE_GB=20" in commands(app)


def test_the_sidebar_s_length_and_utilization_are_where_it_begins() -> None:
    app = open_check(**DEEPSEEK, max_model_len="4096", gpu_memory_utilization="0.75")
    assert "--max-model-len=4096" in commands(app)
    assert "--gpu-memory-utilization=0.75" in commands(app)
    # 64 * 0.75 = 48 GB, less the 7.6 GB that the guide leaves to the KV cache
    assert "export vLLM_MODEL_MEMORY_USE_GB=40" in commands(app)
    checked(app.number_input(key="prerun.length").set_value(2048).run())
    assert "--max-model-len=2048" in commands(app)
    assert "--gpu-memory-utilization=0.75" in commands(app)


def test_a_log_without_a_peak_and_one_that_is_none() -> None:
    app = open_check()
    checked(app.text_area(key="prerun.text").set_value(log("v1_0.9.2_a100.log")).run())
    assert "GLOG_v=1" in seen(app)
    checked(app.text_area(key="prerun.text").set_value("nothing of the kind").run())
    assert "GLOG_v=1" in seen(app)
    assert "start-up lines" not in seen(app)
    assert app.text_area(key="prerun.text").value == "nothing of the kind"


@pytest.mark.parametrize(
    ("locale", "said"),
    [("en-US", "the peak of a pre-run, 28.9 GB"), ("zh-CN", "预跑的峰值 28.9 GB")],
)
def test_a_pre_run_among_start_up_logs_is_recognized(locale: str, said: str) -> None:
    app = open_check(locale, **QWEN)
    sample = (SAMPLES / "prerun.log").read_text("utf-8")
    checked(app.text_area(key="check.text").set_value(sample).run())
    assert said.lower() in seen(app).lower()
    checked(app.button(key="prerun.open").click().run())
    assert params(app)["check"] == "pre-run"
    assert numbers(app)[1] == "28.9 − 7.6 = 21.3"


def test_a_logged_share_above_the_budget_is_said() -> None:
    """64 × 0.9 = 57.6 GB, and 60 for the model."""
    app = open_check(**QWEN)
    sample = (SAMPLES / "prerun.log").read_text("utf-8").replace("USE_GB=50", "USE_GB=60")
    checked(app.text_area(key="prerun.text").set_value(sample).run())
    assert "=60 leaves nothing for the KV cache: the budget is 57.6 GB" in seen(app)
    assert "prerun.take" not in keys(app)


@pytest.mark.parametrize(
    ("locale", "language", "label"),
    [("en-US", "en", "MindSpore pre-run"), ("zh-CN", "zh", "MindSpore 预跑")],
)
def test_a_link_opens_the_tab_of_the_pre_run(locale: str, language: str, label: str) -> None:
    app = open_check(locale, **QWEN, check="pre-run")
    assert app.session_state[f"check.tabs.{language}"] == label


def test_a_log_keeps_the_fields_that_it_does_not_state() -> None:
    """A card of 32 GB with 25 for the model: 32 × 0.9 − 25 = 3.8 GB of KV cache, so that 20.1 GB leave 16.3."""
    app = open_check(**QWEN)
    checked(app.number_input(key="prerun.total").set_value(32).run())
    checked(app.number_input(key="prerun.model").set_value(25).run())
    peak = "[INFO] actual peak used mem:20582M. Weight used size:0M"
    checked(app.text_area(key="prerun.text").set_value(peak).run())
    assert [app.number_input(key=key).value for key in ("prerun.total", "prerun.model")] == [32, 25]
    assert numbers(app)[:2] == ["32 × 0.9 − 25 = 3.8", "20.1 − 3.8 = 16.3"]
