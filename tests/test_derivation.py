"""The derivation says the numbers of the plan, and its equations come out."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path

import pytest

from kvcore import course as package
from kvcore.base.quantity import Unit
from kvcore.base.units import GIB, KIB, MIB
from kvcore.base.words import Language, words
from kvcore.course import STEPS, Equation, Step, StepName, derivation
from kvcore.course.answers import ANSWERS
from kvcore.course.lesson import EXPLAINED, PICTURES, Prediction, Slip, judgement, part, prose
from kvcore.explain.numbers import any_cache
from kvcore.planning import plan
from kvcore.texts import LESSONS, QUESTIONS
from tests.derivation_plans import KINDS, planned, steps
from tests.present_plans import renamed, request

T = words(Language.ENGLISH)
UNITS = {"byte": 1, "bytes": 1, "GB": 10**9, "GiB": GIB, "MiB": MIB, "KiB": KIB, "B": 1}


def step(kind: str, name: StepName) -> Step:
    return steps(kind)[STEPS.index(name)]


def equations(kind: str) -> dict[str, Equation]:
    return {one.name: one for found in steps(kind) for one in found.content.equations}


def texts(found: Step) -> str:
    """Everything that a step says in words."""
    content = found.content
    said = [content.question, content.idea, *content.points, *content.remarks, content.missing]
    said += [content.prediction.question, *(slip.reason for slip in content.prediction.slips)]
    said += [option.label for option in content.prediction.options]
    said += [line for one in content.exercises for line in (one.question, one.answer)]
    for one in content.equations:
        said += [one.meaning, one.latex, one.source, *(term.meaning for term in one.terms)]
    if found.experiment is not None:
        said += [found.experiment.control, *(effect.meaning for effect in found.experiment.effects)]
    return "\n".join(said)


def evaluated(latex: str) -> float:
    """The value of a right-hand side in numbers."""
    text = latex.replace("{,}", "").replace(r"\\", "").replace(r"\quad", "").replace("&", "")
    text = re.sub(r"\\,\\text\{(\w+)\}", lambda match: f"*{UNITS[match[1]]}", text)
    text = text.replace(r"\times", "*").replace("10^{9}", "1e9").replace("10^{6}", "1e6")
    while r"\frac" in text:
        text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text)
    text = text.replace(r"\left\lfloor", "floor(").replace(r"\left\lceil", "ceil(")
    text = re.sub(r"\\right\\r(floor|ceil)", ")", text).replace(r"\max", "max").replace(r"\min", "min")
    names = {"floor": math.floor, "ceil": math.ceil, "max": max, "min": min}
    # An equation is our own text, and Python's arithmetic is not the code under test.
    return float(eval(text, {"__builtins__": {}}, names))


@pytest.mark.parametrize("kind", KINDS)
def test_its_numbers_are_those_of_the_plan(kind: str) -> None:
    base, found = planned(kind), equations(kind)
    cache, memory = base.cache, base.memory
    if memory is not None:
        for name in ("budget", "activations", "framework", "available_kv", "weights", "total"):
            assert found[name].value == getattr(memory, name).value, name
        assert found["outside"].value == memory.total.value - memory.budget.value
    assert found["weights"].value == base.loaded_weights.value
    assert found["parameters"].value == base.weights.parameters
    whole = any_cache(base)
    if whole is not None and whole.groups:
        assert found["bytes_per_token"].value == whole.bytes_per_token
        assert found["bytes_per_block"].value == whole.bytes_per_block
        if whole.request_fixed_bytes:
            assert found["request_fixed"].value == whole.request_fixed_bytes
    if cache is not None and cache.groups and cache.num_blocks:
        assert found["blocks"].value == cache.num_blocks
        assert found["tokens"].value == cache.tokens
        assert found["concurrency"].value == cache.max_concurrency
        assert found["needed"].value == cache.needed_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_every_equation_comes_out(kind: str) -> None:
    """What stands there in numbers gives the result, but for the digits that are not shown."""
    for found in steps(kind):
        for one in found.content.equations:
            if one.substituted:
                slack = 0.02 * GIB if one.unit is Unit.BYTES else 0.001
                assert evaluated(one.substituted) == pytest.approx(one.value, rel=0.02, abs=slack), one.latex


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("compressed", "recurrent")])
def test_the_main_figures_are_derived_and_not_only_stated(kind: str) -> None:
    base, found = planned(kind), equations(kind)
    derived = ["bytes_per_token"]
    if base.memory is not None:
        derived += ["budget", "total"]
    if base.cache is not None and base.resolved.num_gpu_blocks_override is None:
        derived += ["blocks", "tokens", "concurrency", "needed"]
    assert [name for name in derived if not found[name].formula] == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_letter_has_a_meaning(kind: str) -> None:
    for one in equations(kind).values():
        assert r"\mathit" not in one.latex, one.latex
        letters = {term.latex for term in one.terms}
        assert len(letters) == len(one.terms), one.latex
        assert all(letter in one.formula for letter in letters)


def test_the_published_worked_example_by_hand() -> None:
    # (24 GiB × 0.75 − 8 − 5) per card; 2 × 1 KV head × 128 × 2 bytes × 64 layers; 16 tokens a block.
    found = equations("rule of thumb")
    assert found["budget"].value == 18 * GIB
    assert found["available_kv"].value == 5 * GIB
    assert found["layer_token_bytes"].value == 512
    assert found["bytes_per_token"].value == 32 * KIB
    assert found["bytes_per_token_in_all"].value == 256 * KIB
    assert found["bytes_per_block"].value == 512 * KIB
    assert found["blocks"].value == 10_240
    assert "drops 0 bytes" in step("rule of thumb", StepName.POOL).content.remarks[0]
    assert found["tokens"].value == 163_840
    assert (found["blocks_per_request"].value, found["concurrency"].value) == (512, 20)
    assert found["typical_concurrency"].value == 80
    assert found["running"].value == min(80, planned("rule of thumb").resolved.max_num_seqs)
    assert found["needed"].value == 256 * MIB
    assert found["spare"].value == 5 * GIB - 256 * MIB


def test_a_formula_in_letters_and_in_numbers() -> None:
    found = equations("rule of thumb")
    assert found["budget"].latex == (
        r"\begin{aligned} B &= M \times u \\ &= 24.00\,\text{GiB} \times 0.75 \\ &= 18.00\,\text{GiB} \end{aligned}"
    )
    assert found["blocks"].formula == r"\left\lfloor \frac{K}{b} \right\rfloor"
    assert found["blocks"].substituted == (
        r"\left\lfloor \frac{5{,}242{,}880.00\,\text{KiB}}{512.00\,\text{KiB}} \right\rfloor"
    )
    assert found["layer_token_bytes"].substituted == r"2 \times 1 \times 128 \times 2"
    assert found["available_kv"].formula == "B - W - A - F - G_{c}"


def test_latent_attention_is_one_vector_and_not_divided() -> None:
    # 512 + 64 numbers of 2 bytes, 61 layers, on each of 8 GPUs.
    found = equations("latent")
    assert found["layer_token_bytes"].formula == r"(d_{c} + d_{r}) \times e"
    assert found["layer_token_bytes"].value == 1152
    assert found["bytes_per_token"].value == 61 * 1152
    assert found["bytes_per_token_in_all"].value == 8 * 61 * 1152
    assert equations("latent, context parallel")["bytes_per_token"].value == 61 * 1152 / 8


def test_windows_keep_a_part() -> None:
    # ⌈min(1024 − 1 + in flight, 8192) / 16⌉ + 1; 10 layers of 16 heads of 128 keep everything.
    found = equations("windows")
    assert found["bytes_per_token"].value == 10 * 2 * 16 * 128 * 2
    assert found["window_blocks"].value == 8192 / 16 + 1
    assert (
        found["blocks_per_request"].value
        == 512 + found["request_fixed"].value / found["bytes_per_block"].value
    )


def test_keys_and_values_of_different_size() -> None:
    found = equations("windows, other values")["layer_token_bytes"]
    assert found.formula == r"h \times (d_{k} + d_{v}) \times e"
    assert found.value == 1 * (192 + 128) * 2


@pytest.mark.parametrize(
    ("kind", "words_of_it"),
    [
        ("latent", "MLA"),
        ("windows", "window"),
        ("chunks", "chunk"),
        ("hybrid", "recurrent"),
        ("experts", "experts"),
    ],
)
def test_variants_appear_with_models_that_have_them(kind: str, words_of_it: str) -> None:
    name = StepName.WEIGHTS if kind == "experts" else StepName.TOKEN
    said = "\n".join((step(kind, name).content.idea, *step(kind, name).content.points))
    plain = "\n".join((step("fits", name).content.idea, *step("fits", name).content.points))
    assert words_of_it in said
    assert words_of_it not in plain


@pytest.mark.parametrize("kind", ["too big", "no card"])
def test_without_memory_the_steps_say_so_and_go_on(kind: str) -> None:
    assert step(kind, StepName.POOL).content.missing
    assert step(kind, StepName.REQUESTS).content.missing
    assert step(kind, StepName.TOKEN).content.equations
    assert step(kind, StepName.WEIGHTS).content.equations


def test_what_breaks_first() -> None:
    def first(kind: str) -> str:
        return step(kind, StepName.LIMITS).content.prediction.answer_option

    assert (first("too big"), first("too long"), first("fits")) == ("start", "start", "blocks")
    few = derivation(request(tensor_parallel_size=8, max_num_seqs=4), T)[STEPS.index(StepName.LIMITS)]
    assert few.content.prediction.answer_option == "seats"


def test_activations_follow_the_batch_and_not_the_length() -> None:
    content = step("fits", StepName.ACTIVATIONS).content
    assert content.prediction.answer_option == "same"
    whole = derivation(request(enable_chunked_prefill=False, engine_version="0.6.6", max_model_len=32768), T)[
        3
    ]
    assert whole.content.prediction.answer_option == "fall"


def test_the_start_check_is_told_where_there_is_one() -> None:
    refuses = "refuses to start when less is free"
    assert refuses in texts(step("fits", StepName.BUDGET))
    assert not planned("V0").resolved.switches.checks_free_memory
    assert refuses not in texts(step("V0", StepName.BUDGET))


@pytest.mark.parametrize("kind", KINDS)
def test_an_experiment_does_what_it_says(kind: str) -> None:
    for found in steps(kind):
        one = found.experiment
        if one is None:
            continue
        after = derivation(plan(one.scenario), T)[found.number - 1]
        if after.experiment is not None and [e.meaning for e in after.experiment.effects] == [
            effect.meaning for effect in one.effects
        ]:
            assert [e.before for e in after.experiment.effects] == [effect.after for effect in one.effects]
        assert any(effect.before != effect.after for effect in one.effects)


def test_there_is_something_to_try_on_every_step_of_an_ordinary_plan() -> None:
    assert [found.name for found in steps("fits") if found.experiment is None] == []


def test_exercises_by_hand() -> None:
    answers = {one.question: one.answer for one in step("rule of thumb", StepName.LIMITS).content.exercises}
    last_block = next(answer for question, answer in answers.items() if "1,000 tokens" in question)
    assert "63 blocks, 1,008 slots. 8 of them are empty: 0.8 %" in last_block
    hidden_size = next(answer for question, answer in answers.items() if "hidden size" in question)
    assert "8 KV heads of 128: 1,024 numbers. The text is 5 times too high." in hidden_size
    fp8 = next(answer for question, answer in answers.items() if "fp8" in question)
    assert fp8.startswith("16 KiB per token instead of 32 KiB, and 40 requests instead of 20.")


def test_the_bar_is_built_up() -> None:
    found = steps("fits")
    assert found[0].explained(revealed=False) == frozenset()
    assert "weights" not in found[2].explained(revealed=False)
    for before, after in pairwise(STEPS[1:]):
        assert EXPLAINED[before] <= EXPLAINED[after]
    assert found[2].explained(revealed=True) == found[3].explained(revealed=False)
    assert EXPLAINED[StepName.LIMITS] == EXPLAINED[StepName.PARTS]


class TestJudgement:
    PREDICTION = Prediction(
        question="", unit="KiB", answer=32.0, slips=(Slip(value=160, reason="All heads."),)
    )

    @pytest.mark.parametrize(
        ("guess", "said"),
        [
            (32, "Right."), (32.5, "Right."), (40, "25 % too high."), (24, "25 % too low."), (64, "2 times too high."),
            (8, "4 times too low."), (160, "5 times too high. All heads."), (0, "Too low."),
        ],
    )  # fmt: skip
    def test_how_far_off(self, guess: float, said: str) -> None:
        assert judgement(self.PREDICTION, guess, T) == said

    def test_nothing_is_left(self) -> None:
        none = Prediction(question="", unit="tokens", answer=0.0)
        assert judgement(none, 0, T) == "Right."
        assert judgement(none, 10, T) == "Too high."
        assert judgement(Prediction(question=""), 10, T) == ""

    def test_the_usual_slips_are_known(self) -> None:
        # 2 × 64 layers × hidden size 5120 × 2 bytes = 1.25 MiB.
        content = step("fits", StepName.TOKEN).content
        assert "hidden size" in judgement(content.prediction, 1280, T)
        budget = step("fits", StepName.BUDGET).content.prediction
        assert "whole card" in judgement(budget, planned("fits").memory.total.value / GIB, T)


def test_names_of_models_are_in_no_text() -> None:
    marked = "evil **bold** $x$ <b>"
    for found in derivation(renamed(planned("fits"), marked), T):
        assert "evil" not in texts(found)


def test_prose_escapes_and_colours() -> None:
    html = prose(f"{part('weights')} <script> & `--flag`", T)
    assert '<span class="kv-swatch kv-weights"></span>Weights' in html
    assert "&lt;script&gt; &amp; <code>--flag</code>" in html


@pytest.mark.parametrize("kind", KINDS)
def test_chinese_says_the_same_numbers(kind: str) -> None:
    for english, chinese in zip(steps(kind), steps(kind, Language.CHINESE), strict=True):
        assert [one.latex for one in english.content.equations] == [
            one.latex for one in chinese.content.equations
        ]
        assert english.content.prediction.answer == chinese.content.prediction.answer
        assert len(english.content.points) == len(chinese.content.points)
        assert re.search(r"[\u4e00-\u9fff]", chinese.content.question + chinese.content.idea)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_and_their_products_come_out_to_the_last_block(kind: str) -> None:
    found = equations(kind)
    for name in ("blocks", "blocks_per_request", "tokens", "wanted_blocks"):
        if name in found and found[name].substituted:
            assert evaluated(found[name].substituted) == found[name].value, found[name].latex


def test_layers_with_a_state_keep_blocks_of_their_groups() -> None:
    # Qwen3-Next: 36 layers with a state in three groups of 12, two blocks each.
    assert equations("hybrid")["request_fixed"].formula == r"a_{f} \times m_{r} \times b"
    # since 0.33 one block more on Hopper, for states exported inside a prefill
    assert equations("hybrid")["request_fixed"].substituted.startswith(r"3 \times 3 \times")


@pytest.mark.parametrize("kind", KINDS)
def test_an_experiment_keeps_to_what_the_engine_takes(kind: str) -> None:
    base = planned(kind)
    for found in steps(kind):
        if found.experiment is None:
            continue
        after = plan(found.experiment.scenario)
        assert 0 < after.resolved.gpu_memory_utilization <= 1
        if base.available_kv_bytes is not None and base.available_kv_bytes > 0:
            assert after.available_kv_bytes is not None
            assert after.available_kv_bytes > 0


def test_what_does_not_fit_is_tried_on_enough_cards() -> None:
    # 61 GiB of weights on cards of 24 GB: two hold 31 each, four 15.5.
    one = step("too big", StepName.REQUESTS).experiment
    assert one is not None
    assert (one.field, one.value) == ("tensor_parallel_size", 4)


def test_graphs_and_the_largest_peak_are_explained() -> None:
    said = texts(step("fits", StepName.ACTIVATIONS)) + texts(step("fits", StepName.FRAMEWORK))
    assert "A graph is a recorded step." in said
    assert "the largest counts, not the sum" in said
    assert "ACL graphs" in texts(step("ascend", StepName.FRAMEWORK))
    assert "ACL graphs" not in said


def test_every_sentence_is_asked_for_and_every_key_is_there() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in Path(package.__file__).parent.glob("*.py"))
    asked = set(re.findall(r'"([a-z0-9]+(?:-[a-z0-9]+)*)"', source)) & set(LESSONS)
    options = {
        *(f"{step}-{one}" for step in ("activations", "framework") for one in ("fall", "same", "rise")),
        *(f"limits-{one}" for one in ("start", "blocks", "seats")),
        *(f"log-{one}" for one in ("left", "free", "used")),
        *(f"quality-{one}" for one in ("under", "some", "many")),
    }
    built = {f"{name}-{said}" for name in STEPS for said in ("question", "idea", "guess")} | options
    built |= {f"{name}-question" for name in PICTURES}
    built |= {slip.reason for answer in ANSWERS.values() for slip in answer.slips}
    built |= {one.unit for one in QUESTIONS.values() if one.unit in LESSONS}
    assert asked | built == set(LESSONS)
    assert [key for key in re.findall(r'say\(\s*"([^"]+)"', source) if key not in LESSONS] == []
