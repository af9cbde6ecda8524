"""The Reference page in its states, without a browser."""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qsl

import pytest
import yaml
from streamlit.testing.v1 import AppTest

from kvcore.charts.stories import steps_of
from kvcore.texts import CORRECTIONS, GLOSSARY, PARAMETERS, Source
from tests.page_app import checked, open_app, params, seen

QUERY = {
    "model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "tensor_parallel_size": "2", "max_model_len": "8192",
}  # fmt: skip
SECTIONS = ("parameters", "stories", "going-live", "catalogue", "glossary")


def open_reference(
    section: str = "parameters", locale: str = "en-US", query: dict[str, str] | None = None
) -> AppTest:
    app = checked(open_app(query or QUERY, locale).switch_page("pages/reference.py").run())
    if section != "parameters":
        app.segmented_control(key="reference_section").set_value(section)
        checked(app.run())
    return app


def html(app: AppTest) -> str:
    return "".join(element.proto.body for element in app.get("html"))


def progress(app: AppTest) -> int:
    """How many items of the checklist are done, as its bar says."""
    (bar,) = [one.proto.text for one in app.get("progress")]
    return int(bar.split()[0])


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
@pytest.mark.parametrize("section", SECTIONS)
def test_every_part_in_both_languages(section: str, locale: str) -> None:
    app = open_reference(section, locale)
    titles = {"en-US": "Checklist", "zh-CN": "检查清单"}
    assert (titles[locale] in seen(app)) == (section == "going-live")


class TestParameters:
    def test_all_of_them_with_their_effect_here(self) -> None:
        text = html(open_reference())
        assert text.count("<details") == len(PARAMETERS)
        assert "8,192 (now)" in text
        assert "removed in 0.19.0" in text
        assert "0.9 (0.6.6 – 0.19.1); 0.92 (0.20.0 – 0.33.0)" in text

    def test_search(self) -> None:
        app = open_reference()
        app.text_input(key="reference_query").set_value("block_size")
        text = html(checked(app.run()))
        assert "--block-size" in text
        assert "--swap-space" not in text
        app.text_input(key="reference_query").set_value("<img src=x>")
        app = checked(app.run())
        assert html(app).count("<details") == 0
        assert "<img" not in html(app)

    def test_the_worked_example_is_one_click_away(self) -> None:
        app = open_reference()
        app.button(key="load_rule_of_thumb").click()
        checked(app.run())
        assert params(app)["measured.weights_gib"] == "8"
        assert params(app)["accelerator.memory_gib"] == "24"

    def test_the_post_mortem_is_one_click_away(self) -> None:
        app = open_reference()
        app.button(key="load_post_mortem").click()
        checked(app.run())
        assert params(app)["model"] == "meta-llama/Llama-2-70b-chat-hf"

    def test_without_a_plan_the_texts_are_still_there(self) -> None:
        refused = {"model": "Qwen/Qwen3-32B", "accelerator": "V100-PCIe-16GB", "dtype": "bfloat16"}
        app = open_reference(query=refused)
        assert "The engine refuses this start" in seen(app)
        assert html(app).count("<details") == len(PARAMETERS)


class TestGoingLive:
    def test_rules_and_dashboard_are_those_of_the_version(self) -> None:
        app = open_reference("going-live", query=QUERY | {"engine_version": "0.8.5"})
        blocks = [code.value for code in app.code]
        (rules,) = [yaml.safe_load(block) for block in blocks if block.startswith("groups:")]
        (board,) = [json.loads(block) for block in blocks if block.startswith("{")]
        assert "vllm:gpu_cache_usage_perc" in rules["groups"][0]["rules"][0]["expr"]
        assert board["title"] == "vLLM 0.8.5"
        assert any(block.startswith("python benchmarks/benchmark_serving.py") for block in blocks)

    def test_the_target_sizes_the_load_test(self) -> None:
        app = open_reference("going-live")
        next(one for one in app.number_input if one.label == "Target requests at once").set_value(100)
        checked(app.run())
        assert any("--max-concurrency 150" in code.value for code in app.code)
        assert "The target fits at once** · fails" in seen(app)

    def test_half_more_than_the_stated_rate_is_in_a_command_of_its_own(self) -> None:
        app = open_reference("going-live", query=QUERY | {"load_rate": "50"})
        (rated,) = [code.value for code in app.code if "--request-rate 75" in code.value]
        assert "--num-prompts 22500" in rated
        assert "--max-concurrency" not in rated
        assert "wrk" in seen(app)

    def test_thresholds_by_hand_are_in_rules_checklist_and_link(self) -> None:
        app = open_reference("going-live")
        assert "alert_reset" not in [button.key for button in app.button]
        for key, value in (
            ("alert_kv", 70),
            ("alert_waiting", 9),
            ("alert_first", 1.5),
            ("alert_seconds", 45.0),
        ):
            checked(app.number_input(key=key).set_value(value).run())
        (rules,) = [yaml.safe_load(code.value) for code in app.code if code.value.startswith("groups:")]
        ends = {rule["alert"]: rule["expr"].split()[-1] for rule in rules["groups"][0]["rules"]}
        assert (ends["VllmKvCacheNearlyFull"], ends["VllmQueueGrowing"]) == ("0.7", "9")
        assert (ends["VllmFirstTokenSlow"], ends["VllmRequestsSlow"]) == ("1.5", "45")
        assert "KV cache above 70 %, more than 9 waiting" in seen(app)
        assert {name: value for name, value in params(app).items() if name.startswith("alert_")} == {
            "alert_kv": "70", "alert_waiting": "9", "alert_first": "1.5", "alert_seconds": "45",
        }  # fmt: skip
        checked(app.button(key="alert_reset").click().run())
        assert not [name for name in params(app) if name.startswith("alert_")]

    def test_a_threshold_that_never_fires_is_said(self) -> None:
        limits = {"section": "going-live", "alert_seconds": "60"}
        assert not open_reference(query=QUERY | limits).warning
        old = open_reference(query=QUERY | limits | {"engine_version": "0.6.6"})
        assert "would never fire" in old.warning[0].value

    def test_ticks_are_in_the_link_and_in_the_file(self) -> None:
        app = open_reference("going-live")
        before = progress(app)
        checked(app.checkbox(key="ticked.history").check().run())
        checked(app.checkbox(key="ticked.alerts").check().run())
        assert params(app)["ticked"] == "history,alerts"
        assert progress(app) == before + 2
        checked(app.checkbox(key="ticked.history").uncheck().run())
        assert params(app)["ticked"] == "alerts"
        fresh = open_reference(query=QUERY | {"section": "going-live", "ticked": "alerts"})
        assert fresh.checkbox(key="ticked.alerts").value
        assert not fresh.checkbox(key="ticked.history").value

    def test_a_tick_does_not_cover_what_fails(self) -> None:
        fails = {"tensor_parallel_size": "1", "max_model_len": "40960", "ticked": "starts,target"}
        app = open_reference(query=QUERY | fails | {"section": "going-live"})
        assert "The engine starts** · fails" in seen(app)
        assert params(app)["ticked"] == "starts,target"

    @pytest.mark.parametrize(
        ("model", "words"),
        [
            (
                "Qwen/Qwen3-32B",
                ("/v1/chat/completions", "chat.completions.create", "memory_check.py profile"),
            ),
            ("Qwen/Qwen3-Embedding-8B", ("/v1/embeddings", "embeddings.create", "memory_check.py leak")),
        ],
    )
    def test_the_first_request_and_the_memory_check(self, model: str, words: tuple[str, ...]) -> None:
        app = open_reference("going-live", query=QUERY | {"model": model})
        text = "\n".join(code.value for code in app.code)
        assert all(word in text for word in words)
        assert "nvidia-smi --query-gpu" in text
        assert "/metrics | grep -E" in text

    def test_a_bound_is_called_one(self) -> None:
        app = open_reference("going-live")
        by_label = {metric.label: metric for metric in app.metric}
        assert by_label["One request alone"].value.startswith("≤ ")
        assert "upper bound" in by_label["One request alone"].delta
        assert by_label["Time per output token (TPOT)"].value.startswith("≥ ")

    def test_a_plan_that_does_not_fit(self) -> None:
        app = open_reference(
            "going-live", query=QUERY | {"tensor_parallel_size": "1", "max_model_len": "40960"}
        )
        assert "The engine starts** · fails" in seen(app)

    def test_the_load_is_in_the_link(self) -> None:
        app = open_reference("going-live")
        before = html(app) + seen(app)
        checked(app.number_input(key="load_requests").set_value(7).run())
        assert app.query_params["load_requests"] == "7"
        fresh = open_reference("going-live", query=QUERY | {"load_requests": "7"})
        assert html(fresh) + seen(fresh) == html(app) + seen(app) != before


class TestCatalogue:
    def test_search_is_over_all_of_them(self) -> None:
        app = open_reference("catalogue")
        assert len(app.dataframe) == 4
        app.text_input(key="catalogue_query").set_value("qwen/qwen3-32b config")
        checked(app.run())
        own, by_name = app.dataframe
        assert "Qwen/Qwen3-32B" in own.value["Model"].tolist()
        assert "RedHatAI/Qwen3-32B-NVFP4" in by_name.value["Model"].tolist()
        assert seen(app).count("No results.") == 2


class TestGlossary:
    def test_terms_in_chinese_keep_their_english_word(self) -> None:
        text = html(open_reference("glossary", "zh-CN"))
        assert text.count("<dt>") == len(GLOSSARY)
        assert "多头潜在注意力（MLA）" in text
        assert "Multi-head latent attention (MLA)" in text

    def test_search(self) -> None:
        app = open_reference("glossary")
        app.text_input(key="glossary_query").set_value("ttft")
        assert html(checked(app.run())).count("<dt>") == 1
        assert app.query_params["find"] == "ttft"
        assert html(open_reference("glossary", query=QUERY | {"find": "ttft"})).count("<dt>") == 1


def test_corrections_have_heads_in_their_cells_and_name_each_document_once() -> None:
    """A phone stacks the cells under each other and shows no head of the table."""
    table = next(
        part for part in html(open_reference(section="parameters")).split("<table>") if "data-head" in part
    )
    assert table.count('data-head="Says"') == table.count('data-head="Correct"') == len(CORRECTIONS)
    documents = [one.source for one in CORRECTIONS.values()]
    runs = sum(one != before for one, before in zip(documents, [None, *documents], strict=False))
    assert table.count('class="kv-again"') == len(documents) - runs


def test_the_report_is_on_the_plan_page() -> None:
    app = open_app(QUERY)
    app.session_state["share.opened"] = True
    checked(app.run())
    labels = [button.proto.label for button in app.get("download_button")]
    assert "Printable report (one page, HTML)" in labels


class TestStories:
    STEP = QUERY | {"section": "stories", "story": "post-mortem", "story_step": "2"}

    def test_a_step_says_what_the_document_has_and_what_is_true(self) -> None:
        app = open_reference(query=self.STEP)
        assert "2 · The formula, and what its script prints" in [header.value for header in app.header]
        assert '<td class="kv-figure"><b>2.50 GiB</b></td>' in html(app)
        assert "takes 2.5 GiB, not 20 GiB" in html(app)

    def test_the_start_is_a_link_that_keeps_the_place(self) -> None:
        app = open_reference(query=self.STEP)
        links = {one.proto.label: one.proto for one in app.get("page_link")}
        opened = dict(parse_qsl(links["Open this start on the Plan page"].query_string))
        assert opened["model"] == "meta-llama/Llama-2-70b-chat-hf"
        assert (opened["story"], opened["story_step"]) == ("post-mortem", "2")

    def test_a_step_beyond_the_last_is_the_last(self) -> None:
        app = open_reference(query=self.STEP | {"story_step": "999"})
        assert app.button(key="story.next").disabled
        assert app.header[-1].value.startswith(f"{len(steps_of(Source.POST_MORTEM))} · ")

    def test_another_story_begins_at_its_first_step(self) -> None:
        app = open_reference(query=self.STEP)
        checked(app.segmented_control(key="reference_story").set_value("ascend-tuning").run())
        assert app.header[-1].value.startswith("1 · ")
        checked(app.button(key="story.next").click().run())
        assert (params(app)["story"], params(app)["story_step"]) == ("ascend-tuning", "2")

    @pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
    def test_every_step_is_drawn(self, locale: str) -> None:
        app = open_reference(query=QUERY | {"section": "stories"}, locale=locale)
        for story in Source:
            for number in range(1, len(steps_of(story)) + 1):
                app.query_params.update({"story": story.value, "story_step": str(number)})
                app = checked(app.run())
                assert app.header[-1].value.startswith(f"{number} · ")
                assert not re.search(r"\{\w+\}", seen(app))

    def test_a_scenario_that_is_refused_does_not_stop_a_story(self) -> None:
        refused = {"model": "Qwen/Qwen3-32B", "accelerator": "V100-PCIe-16GB", "dtype": "bfloat16"}
        app = open_reference(query=refused | {"section": "stories"})
        assert app.header[-1].value.startswith("1 · ")
