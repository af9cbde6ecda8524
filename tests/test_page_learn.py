"""The Learn page in its states, without a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from kvcore.course import STEPS, StepName
from tests.page_app import RULE_OF_THUMB, WORKED, checked, curves, params, seen, stacks

APP = str(Path(__file__).resolve().parents[1] / "app.py")
TOO_BIG = {"model": "Qwen/Qwen3-32B", "accelerator": "RTX-4090-24GB", "max_model_len": "8192"}
REFUSED = {"model": "Qwen/Qwen3-32B", "accelerator": "V100-PCIe-16GB", "dtype": "bfloat16"}


def open_step(
    number: int | str | StepName, given: dict[str, str] = RULE_OF_THUMB, locale: str = "en-US"
) -> AppTest:
    app = AppTest.from_file(APP, default_timeout=300)
    app.context = {"locale": locale}
    app.switch_page("pages/learn.py")
    if isinstance(number, StepName):
        number = STEPS.index(number) + 1
    for name, value in (given | {"step": str(number)}).items():
        app.query_params[name] = value
    return checked(app.run())


def press(app: AppTest, label: str) -> AppTest:
    next(button for button in app.button if button.label == label).click()
    return checked(app.run())


def latex(app: AppTest) -> str:
    return "\n".join(element.value for element in app.latex)


def html(app: AppTest) -> str:
    return "".join(element.proto.body for element in app.get("html"))


def parts_of_the_bar(app: AppTest) -> set[str]:
    return set(re.findall(r"kv-piece (kv-\w+)", stacks(app)[0]))


class TestWay:
    @pytest.mark.parametrize("number", range(1, len(STEPS) + 1))
    def test_every_step_shows_its_question_and_after_it_the_formula(self, number: int) -> None:
        app = open_step(number)
        assert app.header[0].value.startswith(f"{number} · ")
        assert not app.latex
        press(app, "Reveal")
        assert app.latex
        assert "Answer: " in html(app)

    def test_next_and_back_are_in_the_link_with_the_scenario(self) -> None:
        app = press(open_step(StepName.ACTIVATIONS), "Next")
        assert params(app)["step"] == "5"
        assert params(app)["measured.weights_gib"] == "8"
        assert app.header[0].value.startswith("5 · ")
        press(app, "Back")
        assert params(app)["step"] == "4"

    @pytest.mark.parametrize(
        ("asked", "nearest"),
        [("0", 1), ("99", len(STEPS)), ("-3", 1), ("x", 1), ("٣", 1), ("9" * 5000, len(STEPS))],
    )
    def test_a_missing_step_is_named_and_the_nearest_is_shown(self, asked: str, nearest: int) -> None:
        app = open_step(asked)
        assert app.header[0].value.startswith(f"{nearest} · ")
        assert "step: " in "\n".join(text.value for text in app.text)

    def test_a_path_goes_through_its_own_steps(self) -> None:
        app = open_step(2, RULE_OF_THUMB | {"path": "20"})
        assert app.header[0].value == "2 · How large are the weights on one GPU?"
        press(app, "Next")
        assert app.header[0].value == "3 · What does one token cost?"
        press(app, "Next")
        assert app.header[0].value == "4 · How many tokens fit in the KV cache?"
        press(press(app, "Next"), "Next")
        assert params(app)["path"] == "20"
        assert app.header[0].value == "6 · Does your own deployment serve its users?"
        assert "Next" in {button.label for button in app.button if button.disabled}

    def test_a_lesson_ends_with_the_next_one(self) -> None:
        app = press(open_step(2, RULE_OF_THUMB | {"lesson": "g"}), "Next")
        assert app.header[0].value == "3 · What do fewer bits cost in quality?"
        press(press(app, "Reveal"), "On to lesson h · Speculation")
        assert app.header[0].value == "1 · What does it take to guess ahead?"
        assert (params(app)["lesson"], params(app).get("step", "1")) == ("h", "1")
        press(app, "Back")
        assert app.header[0].value == "3 · What do fewer bits cost in quality?"
        assert press(app, "Next").header[0].value == "1 · What does it take to guess ahead?"

    def test_the_steps_are_chosen_by_their_titles(self) -> None:
        app = open_step(1, RULE_OF_THUMB | {"path": "20"})
        pager = app.selectbox(key="learn.pager.1")
        assert pager.options[3] == "4 · How many tokens fit in the KV cache?"
        pager.set_value(4)
        checked(app.run())
        assert app.header[0].value == "4 · How many tokens fit in the KV cache?"

    def test_a_route_is_chosen_at_the_same_step(self) -> None:
        app = open_step(StepName.TOKEN)
        assert app.header[0].value == "6 · What does one token cost?"
        app.selectbox(key="learn.route").set_value("20/")
        checked(app.run())
        assert app.header[0].value == "3 · What does one token cost?"
        app.selectbox(key="learn.route").set_value("/e")
        checked(app.run())
        assert app.header[0].value == "1 · How many requests fit at once?"
        app.selectbox(key="learn.route").set_value("/")
        checked(app.run())
        assert app.header[0].value == "10 · How many requests fit at once?"
        assert not {"lesson", "path"} & params(app).keys()

    @pytest.mark.parametrize(
        ("given", "shown"),
        [
            ({"lesson": "z"}, "1 · Does your own deployment serve its users?"),
            ({"lesson": "B"}, "1 · What does one token cost?"),
            ({"lesson": "7"}, "1 · What lives in GPU memory?"),
            ({"path": "40", "step": "17"}, "11 · Does your own deployment serve its users?"),
            ({"path": "9" * 5000}, "1 · What lives in GPU memory?"),
        ],
    )
    def test_a_missing_lesson_or_path_goes_to_the_nearest(self, given: dict[str, str], shown: str) -> None:
        app = open_step(given.get("step", "1"), RULE_OF_THUMB | given)
        assert app.header[0].value == shown
        named = "\n".join(text.value for text in app.text)
        assert any(f"{name}: " in named for name in given)

    def test_the_ends_have_no_way_further(self) -> None:
        def disabled(app: AppTest) -> set[str]:
            return {button.label for button in app.button if button.disabled}

        assert "Back" in disabled(open_step(1))
        assert "Next" in disabled(open_step(len(STEPS)))


class TestPictures:
    def test_a_key_is_a_scene_and_the_last_leads_on(self) -> None:
        app = open_step(1, RULE_OF_THUMB | {"lesson": "0"})
        assert app.header[0].value == "1 · What does a token leave behind in the GPU?"
        assert "cut into tokens" in html(app)
        press(app, "Next")
        assert params(app)["frame"] == "1"
        assert "enters layer 1" in html(app)
        assert "kv-new" in html(app)
        for _ in range(4):
            press(app, "Next")
        assert "In 64 layers one token leaves" in html(app)
        assert "kv-remember" in html(app)
        press(app, "Next")
        assert app.header[0].value.startswith("2 · Why keep it?")
        assert params(app).get("frame", "0") == "0"
        press(app, "Back")
        assert app.header[0].value == "1 · What does a token leave behind in the GPU?"

    def test_the_third_leads_to_lesson_a(self) -> None:
        app = open_step(3, RULE_OF_THUMB | {"lesson": "0", "frame": "99"})
        press(app, "On to lesson a · Where memory goes")
        assert app.header[0].value == "1 · What lives in GPU memory?"
        assert "frame" not in params(app)

    def test_a_start_without_a_pool_has_a_sentence(self) -> None:
        assert "no room for a KV cache" in html(open_step(3, TOO_BIG | {"lesson": "0"}))


class TestSlides:
    def walk(self, app: AppTest) -> list[str]:
        found = []
        while True:
            found.append(params(app).get("slide", "1"))
            step = app.header[0].value
            press(app, "Next")
            if app.header[0].value != step:
                return found

    def test_what_gives_the_answer_away_comes_after_it(self) -> None:
        app = open_step(StepName.TOKEN, RULE_OF_THUMB | {"present": "true"})
        assert "keeps one key and one value" in html(app)
        press(app, "Next")
        assert stacks(app)
        press(app, "Next")
        assert not app.latex
        assert not stacks(app)
        press(app, "Reveal")
        press(app, "Next")
        assert "What one token leaves behind in one layer, all heads together" in html(app)
        press(app, "Next")
        assert len(app.latex) == 2

    def test_a_start_that_fails_is_said_without_buttons(self) -> None:
        app = open_step(StepName.TOKEN, TOO_BIG | {"present": "true"})
        assert any(":material/change_history:" in one.value for one in app.caption)
        assert not [button for button in app.button if (button.key or "").startswith("fix.")]

    def test_hidden_answers_make_fewer_slides(self) -> None:
        assert self.walk(open_step(StepName.TOKEN, RULE_OF_THUMB | {"present": "true"})) == ["1", "2", "3"]
        shown = RULE_OF_THUMB | {"present": "true", "answers": "true"}
        assert len(self.walk(open_step(StepName.TOKEN, shown))) > 6


class TestOwn:
    def test_the_verdict_and_the_link_come_with_the_answer(self) -> None:
        app = open_step(StepName.OWN, RULE_OF_THUMB | {"wanted": "40"})
        assert not app.code
        press(app, "Reveal")
        assert "20 of 40" in app.warning[0].value
        assert "wanted=40" in app.code[0].value
        assert "lesson" not in app.code[0].value


class TestGuess:
    def test_a_number_is_judged(self) -> None:
        app = open_step(StepName.POOL)
        app.number_input(key="learn.field.pool").set_value(10_240.0)
        press(app, "Reveal")
        assert "Your guess: 10,240 tokens." in html(app)
        assert "16 times too low. That is the number of blocks." in html(app)
        assert "Answer: 163,840 tokens" in html(app)

    def test_a_choice_is_judged(self) -> None:
        app = open_step(StepName.LIMITS)
        app.radio(key="learn.field.limits").set_value("start")
        press(app, "Reveal")
        assert "Not quite." in html(app)
        press(app, "Guess again")
        app.radio(key="learn.field.limits").set_value("blocks")
        press(app, "Reveal")
        assert "Right." in html(app)

    def test_the_judgement_stays_while_the_scenario_moves(self) -> None:
        app = open_step(2)
        app.number_input(key="learn.field.budget").set_value(18.0)
        press(app, "Reveal")
        assert "Your guess: 18 GiB. <b>Right.</b>" in html(app)
        app.slider(key="gpu_memory_utilization.slider").set_value(0.5)
        checked(app.run())
        assert "Your guess: 18 GiB. <b>Right.</b>" in html(app)
        assert "Answer: 12 GiB" in html(app)

    def test_answers_can_be_shown_without_guessing(self) -> None:
        app = open_step(StepName.REQUESTS)
        app.toggle(key="learn.every_answer").set_value(True)
        checked(app.run())
        assert r"\frac{10{,}240}{512}" in latex(app)
        press(app, "Next")
        assert app.latex


def ask(app: AppTest, number: int, value: float, seed: int = 0) -> AppTest:
    """Gives an answer to a question of the token step."""
    app.number_input(key=f"learn.answer.token.{number}.{seed}").set_value(value)
    [button for button in app.button if button.label == "Check it"][number].click()
    return checked(app.run())


class TestQuestions:
    def test_a_miss_gets_its_hint_then_the_letters_then_the_numbers(self) -> None:
        app = press(open_step(StepName.TOKEN), "Reveal")
        before = latex(app)
        app = ask(app, 0, 3.0)
        assert "That is one layer." in html(app)
        assert latex(app) == before
        app = ask(app, 0, 69.0)
        assert "Keys and values: is the factor 2 there?" in html(app)
        assert r"2 \times L' \times h' \times d' \times 2" in latex(app)
        assert "192" not in latex(app).removeprefix(before)
        app = ask(app, 0, 1.0)
        assert r"2 \times 46 \times 4 \times 192 \times 2" in latex(app)
        app = ask(app, 0, 138.0)
        assert "Your answer: 138 KiB. Right." in html(app)

    def test_the_score_is_in_the_link_and_comes_back(self) -> None:
        app = ask(press(open_step(StepName.TOKEN), "Reveal"), 0, 138.0)
        assert "Right at once." in html(app)
        assert any(one.value.startswith("Right so far: 1 of 60, 1 of them at once.") for one in app.caption)
        again = open_step(StepName.TOKEN, params(app) | {"answers": "true"})
        assert "Right at once." in html(again)
        assert len([button for button in again.button if button.label == "Check it"]) == 2

    def test_a_solution_that_was_shown_does_not_count(self) -> None:
        app = press(ask(press(open_step(StepName.TOKEN), "Reveal"), 0, 1.0), "Show the solution")
        assert "Shown." in html(app)
        assert params(app)["score"] == "AAAAAD"
        assert not any(one.value.startswith("Right so far") for one in app.caption)

    def test_each_student_has_own_numbers(self) -> None:
        one, other = (
            press(open_step(StepName.TOKEN, RULE_OF_THUMB | {"seed": seed}), "Reveal") for seed in ("1", "2")
        )
        assert any(caption.value.startswith("Variant 1: ") for caption in one.caption)
        assert re.findall(r"A model has .*? numbers", html(one)) != re.findall(
            r"A model has .*? numbers", html(other)
        )

    def test_the_teacher_sees_every_solution(self) -> None:
        app = open_step(StepName.TOKEN, RULE_OF_THUMB | {"reveal": "1"})
        assert "138 KiB" in html(app)
        assert not [button for button in app.button if button.label in ("Check it", "Reveal")]


class TestAnswer:
    def test_the_bar_colours_what_has_been_explained(self) -> None:
        app = open_step(3)
        assert "kv-weights" not in parts_of_the_bar(app)
        press(app, "Reveal")
        assert "kv-weights" in parts_of_the_bar(app)

    def test_requests_have_their_curve(self) -> None:
        app = press(open_step(StepName.REQUESTS), "Reveal")
        (curve,) = curves(app)
        assert len(stacks(app)) == 1
        assert "kv-diamond" in curve

    def test_the_experiment_changes_the_scenario(self) -> None:
        app = press(open_step(StepName.TOKEN, WORKED), "Reveal")
        assert "<td>KV per token</td><td>32 KiB</td><td>→</td><td><b>16 KiB</b></td>" in html(app)
        press(app, "Move it")
        assert params(app)["kv_cache_dtype"] == "fp8"
        assert "Answer: 16 KiB" in html(app)
        press(app, "Undo the last change")
        assert params(app)["kv_cache_dtype"] == "auto"

    def test_corrections_stand_where_they_belong(self) -> None:
        app = press(open_step(StepName.TOKEN), "Reveal")
        assert "2.5 GiB" in html(app)
        assert "hidden_size" in html(app)

    def test_a_published_example_is_one_click(self) -> None:
        app = press(open_step(StepName.TOKEN, TOO_BIG), "Qwen3-32B on 8 × RTX 4090")
        press(app, "Reveal")
        assert "Answer: 32 KiB" in html(app)


class TestCalm:
    @pytest.mark.parametrize("number", range(1, len(STEPS) + 1))
    def test_a_model_that_does_not_fit_is_still_explained(self, number: int) -> None:
        app = press(open_step(number, TOO_BIG), "Reveal")
        assert app.header[0].value.startswith(f"{number} · ")
        assert app.latex or app.info or "kv-remarks" in html(app)

    def test_a_refused_scenario_keeps_the_way_through_the_steps(self) -> None:
        app = open_step(StepName.ACTIVATIONS, REFUSED)
        assert "The engine refuses this start" in seen(app)
        assert [button for button in app.button if (button.key or "").startswith("accepted.")]
        assert {"Back", "Next"} <= {button.label for button in app.button}
        # The engine takes it in another dtype: with that change the lesson goes on meanwhile.
        assert app.header[0].value.startswith("4 · ")
        assert any("the lesson goes on with the first of these changes" in one.value for one in app.caption)
        press(app, "Reveal")
        assert app.latex
        app.session_state["accelerator_sources"] = True
        checked(app.run()).selectbox(key="accelerator").set_value("H100-80GB")
        checked(app.run())
        assert app.header[0].value.startswith("4 · ")

    def test_an_unreadable_config_leaves_an_example(self) -> None:
        app = open_step(
            2, {"model": "x/y", "config": '{"architectures": ["Unknown"]}', "accelerator": "H100-80GB"}
        )
        assert any("the example that this planner starts with" in one.value for one in app.caption)
        press(app, "Reveal")
        assert app.latex

    def test_a_model_that_does_not_fit_is_one_click_from_a_start(self) -> None:
        app = open_step(StepName.REQUESTS, TOO_BIG)
        fix = next(button for button in app.button if (button.key or "").startswith("fix."))
        fix.click()
        checked(app.run())
        assert not [button for button in app.button if (button.key or "").startswith("fix.")]
        press(app, "Reveal")
        assert app.latex

    def test_untrusted_text_is_never_markdown(self) -> None:
        for number in range(1, len(STEPS) + 1):
            app = press(open_step(number, WORKED | {"model": "[free](https://evil.example) $x$"}), "Reveal")
            kinds = (app.markdown, app.caption, app.latex, app.header, app.info)
            assert "evil" not in "\n".join(e.value for kind in kinds for e in kind) + html(app)


class TestChinese:
    @pytest.mark.parametrize("number", range(1, len(STEPS) + 1))
    def test_the_page_speaks_it(self, number: int) -> None:
        english, chinese = open_step(number), open_step(number, locale="zh-CN")
        press(english, "Reveal")
        press(chinese, "揭晓答案")
        assert latex(english) == latex(chinese)
        assert any("\u4e00" <= sign <= "\u9fff" for sign in chinese.header[0].value)
        assert "答案：" in html(chinese)
        assert "Weights" not in "".join(stacks(chinese))


def test_the_last_step_of_a_model_whose_pool_fits_no_request() -> None:
    app = open_step(
        StepName.LIMITS,
        {
            "model": "Alibaba-NLP/gte-Qwen2-7B-instruct",
            "accelerator": "RTX-5000-Ada-32GB",
            "tensor_parallel_size": "2",
        },
    )
    assert app.header[0].value.startswith("11 · ")
