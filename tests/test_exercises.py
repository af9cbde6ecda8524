"""The exercise pack: written by its tool, and each link asks on the page what its statement says."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

import pytest

from kvcore.base.words import Language, words
from kvcore.course.lesson import route_of
from kvcore.course.questions import questions, variant
from kvcore.planning import plan
from kvcore.wire import link
from tests.test_sheets_agree import bodies, opened, solved
from tools.exercises import FILES, PACK, SERVER, Exercise, address, pack, statement


@pytest.mark.parametrize("language", Language)
def test_the_files_are_as_the_tool_writes_them(language: Language) -> None:
    assert FILES[language].read_text("utf-8") == pack(language)


def test_there_are_ten_that_differ() -> None:
    assert len({statement(one, words(Language.ENGLISH)) for one in PACK}) == 10


@pytest.mark.parametrize("one", PACK)
def test_a_link_asks_what_the_statement_says_and_another_shows_the_solution(one: Exercise) -> None:
    t = words(Language.ENGLISH)
    assert address(one, Language.ENGLISH).startswith(SERVER)
    asked, solved = (
        dict(parse_qsl(urlsplit(address(one, Language.ENGLISH, solved=shown)).query))
        for shown in (False, True)
    )
    assert ("reveal" in asked, "reveal" in solved) == (False, True)
    step = route_of(lesson=asked["lesson"]).at(int(asked["step"]))
    base = variant(plan(link.decode(asked).scenario), int(asked["seed"]))
    found = questions(base, step, int(asked["seed"]), t)
    assert statement(one, t) in {question.prediction.question for question in found}


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("one", PACK)
def test_the_page_of_a_solution_shows_its_number(one: Exercise, language: Language) -> None:
    """As a reader of the file opens it: the statement stands on the page with a solution behind it, not before."""
    asking, solving = (opened(address(one, language, solved=shown)) for shown in (False, True))
    asked = re.sub("[`]", "", statement(one, words(language)))
    assert any(asked in re.sub("<[^>]+>", "", body) for body in bodies(asking))
    assert re.search(r"\d", solved(solving)[asked])
    assert asked not in solved(asking)
