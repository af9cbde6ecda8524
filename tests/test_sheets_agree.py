"""Handout, its link, the teacher's sheet and the solutions ask and answer the same numbers, as read by a person.

Nothing here asks the course for a question: both sheets are read as files, both links are opened as pages.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

import pytest
import segno
from streamlit.testing.v1 import AppTest

from pages.ui.shared import elements
from tests.page_app import APP, checked, params

MODELS = {
    "full attention": "model=Qwen/Qwen3-32B&accelerator=H100-80GB&tensor_parallel_size=2&max_model_len=8192",
    "windows": "model=google/gemma-3-27b-it&accelerator=H100-80GB&max_model_len=8192",
    "latent, mixture": "model=deepseek-ai/DeepSeek-V3&accelerator=H200-141GB&tensor_parallel_size=8",
}
PATH = "20"
STEPS = 6
CHECK = {"en": "Check it", "zh": "检查"}
AT_ONCE = {"en": "Right at once.", "zh": "一次答对。"}
POWERS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
NUMBER = re.compile(r"[0-9][0-9,]*(?:\.[0-9]+)?[⁰¹²³⁴⁵⁶⁷⁸⁹]?")


class Read(NamedTuple):
    """One question on a sheet."""

    step: int
    question: str
    answer: str
    """What stands behind it, without the slips that are explained in small print."""


class Sheet(HTMLParser):
    """The questions of a sheet, in order; the modules of its code as a path of SVG."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[Read] = []
        self.code = ""
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("br", "meta"):
            return
        if tag == "path" and "qr" in self.open and given.get("stroke") == "#000":
            self.code = given["d"] or ""
        self.open.append(given.get("class") or tag)
        if tag == "b" and "ol" in self.open:
            step = 1 if not self.found else self.found[-1].step + self.is_new
            self.found.append(Read(step, "", ""))
            self.is_new = False
        elif tag == "section":
            self.is_new = bool(self.found)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("br", "meta"):
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if "ol" not in self.open or "soft" in self.open or not self.found:
            return
        last = self.found[-1]
        if "b" in self.open:
            self.found[-1] = last._replace(question=last.question + data)
        else:
            self.found[-1] = last._replace(answer=f"{last.answer} {data}".strip())


def numbers(text: str) -> list[str]:
    """Every number of a text or of a formula in LaTeX, as it is written, from the smallest on."""
    return sorted(
        NUMBER.findall(re.sub(r"\^\{(\d)\}", lambda power: POWERS[int(power[1])], text.replace("{,}", ",")))
    )


def modules(path: str) -> set[tuple[int, int]]:
    """The dark modules that a path of horizontal strokes covers, as (row, column) with its border."""
    found, x, y = set(), 0.0, 0.0
    for kind, numbers_of in re.findall(r"([Mmh])([\d.\s-]+)", path):
        values = [float(one) for one in re.findall(r"-?[\d.]+", numbers_of)]
        if kind == "h":
            found |= {(int(y), int(x) + at) for at in range(int(values[0]))}
            x += values[0]
        elif kind == "M":
            x, y = values
        else:
            x, y = x + values[0], y + values[1]
    return found


def opened(address: str, **more: str) -> AppTest:
    """The page of a link, in a browser that prefers the other language."""
    app = AppTest.from_file(APP, default_timeout=300)
    given = dict(parse_qsl(urlsplit(address).query)) | more
    app.context = {"locale": "en-US" if given["lang"] == "zh" else "zh-CN"}
    app.switch_page("pages/learn.py")
    for name, value in given.items():
        app.query_params[name] = value
    return checked(app.run())


def at_step(app: AppTest, number: int) -> AppTest:
    app.query_params["step"] = str(number)
    return checked(app.run())


def bodies(app: AppTest) -> list[str]:
    return [unescape(element.proto.body) for element in app.get("html")]


def solved(app: AppTest) -> dict[str, str]:
    """Each question of a page that shows solutions, with the solution that stands behind or below it."""
    found: dict[str, str] = {}
    last = ""
    for body in bodies(app):
        asked = re.search(r'kv-lesson"><b>(.*?)</b>', body)
        last = re.sub("<[^>]+>", "", asked[1]) if asked else last
        shown = re.search(r'kv-solution">(.*?)</span>', body)
        if shown and last:
            found[last], last = re.sub(r"^.*?[:：] ?", "", shown[1]), ""
    return found


@pytest.fixture
def handed_out(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The files that the buttons of the class would save, by name."""
    files: dict[str, str] = {}

    def saved(label: str, name: str, data: Callable[[], str], **_: object) -> None:
        files[name] = data()

    monkeypatch.setattr(elements, "download", saved)
    return files


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("seed", [0, 7, 31_415])
def test_four_places_have_the_same_numbers(
    handed_out: dict[str, str], model: str, seed: int, lang: str
) -> None:
    address = f"http://localhost:8501/learn?{MODELS[model]}&path={PATH}&seed={seed}&lang={lang}"
    teacher_at = opened(address)
    teacher_at.session_state["learn.class"] = True
    checked(teacher_at.run())
    students, solutions = (code.value for code in teacher_at.code[:2])
    handout, teacher = (Sheet(handed_out[name]) for name in ("kv-handout.html", "kv-teacher.html"))

    assert [(one.step, one.question) for one in handout.found] == [
        (one.step, one.question) for one in teacher.found
    ]
    matrix = segno.make_qr(students, error="l").matrix
    border = 4
    assert modules(handout.code) == {
        (row + border, column + border)
        for row, line in enumerate(matrix)
        for column, is_dark in enumerate(line)
        if is_dark
    }

    asking, solving = opened(students), opened(solutions)
    for number in range(1, STEPS + 1):
        on_paper = [one for one in teacher.found if one.step == number]
        assert on_paper
        on_page = solved(at_step(solving, number))
        formulas = [numbers(element.value.split("&=")[-1]) for element in solving.latex]
        for one in on_paper:
            assert re.sub(r"\s", "", on_page[one.question]) == re.sub(
                r"\s", "", one.answer.rpartition("=")[2]
            )
            if "=" in one.answer:
                assert numbers(one.answer.rpartition("=")[0]) in formulas, one
        at_step(asking, number)
        answered_by_a_student(asking, on_paper)


def typed(answer: str) -> float:
    """The answer of the teacher's sheet as a student types it into a field."""
    return float(NUMBER.findall(answer.rpartition("=")[2])[0].replace(",", ""))


def answered_by_a_student(app: AppTest, on_paper: list[Read]) -> None:
    """Types every answer of the teacher's sheet into the page of the students' link: each is right at once."""
    guess, *questions = on_paper
    assert guess.question in re.sub("<[^>]+>", "", "\n".join(bodies(app)))
    assert not solved(app)
    field = next((one for one in app.number_input if (one.key or "").startswith("learn.field.")), None)
    if field is not None:
        field.set_value(typed(guess.answer))
    next(one for one in app.button if one.label in ("Reveal", "揭晓答案")).click()
    checked(app.run())
    assert field is None or any("<b>Right.</b>" in body or "<b>正确。</b>" in body for body in bodies(app))
    asked = re.findall(r'<div class="kv-lesson"><b>(.*?)</b></div>', "\n".join(bodies(app)))
    asked = [re.sub("<[^>]+>", "", one) for one in asked]
    lang = params(app)["lang"]
    for one in questions:
        key = re.compile(rf"learn\.answer\.\w+\.{asked.index(one.question)}\.")
        (answer,) = (field for field in app.number_input if key.match(field.key or ""))
        answer.set_value(typed(one.answer))
        next(
            button
            for button in app.button
            if button.label == CHECK[lang] and button.form_id == answer.form_id
        ).click()
        checked(app.run())
    assert len(questions) == sum(AT_ONCE[lang] in body for body in bodies(app))
