"""Prose as data: every file is read, and what is wrong in one is named by file, entry and key."""

from pathlib import Path

import pytest

from kvcore import texts
from kvcore.base import prose
from kvcore.base.parts import PARTS
from kvcore.base.prose import TextsError
from kvcore.charts.matrix import Order
from kvcore.evidence.accuracy import Check
from kvcore.planning import Tightness, Verdict
from kvcore.scenario import Origin
from kvcore.texts import ALL, CORRECTIONS, LABELS, MESSAGES, PARAMETERS, SOURCES, Source
from kvcore.workload.requests import Unusable

FILES = Path(texts.__file__).parent


def test_every_file_is_read_and_collected() -> None:
    files = [*FILES.glob("*.toml"), Path(prose.__file__).with_name("messages.toml")]
    assert {one.file for one in ALL} == {path.name for path in files}
    assert all(len(one) for one in ALL)


def test_every_source_is_named_and_used() -> None:
    used = {one.source for one in CORRECTIONS.values()}.union(*(one.sources for one in PARAMETERS.values()))
    assert set(SOURCES) == used == set(Source)


def test_shown_fields_are_texts_and_names_are_not() -> None:
    shown = list(PARAMETERS.shown)
    assert PARAMETERS["--max-model-len"].meaning in shown
    assert not {"max_model_len", "lengths", "--max-model-len"} & set(shown)


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("checks", set(Check) - {part.name for part in PARTS}),
        ("orders", set(Order)),
        ("origins", set(Origin)),
        ("measured", set(Origin)),
        ("unusable", set(Unusable)),
        ("verdict-signs", set(Verdict)),
        ("limit-verdicts", set(Verdict)),
        (
            "verdicts",
            {
                *Verdict,
                "keeps-nothing",
                "above-model",
                "weights-above-share",
                "over-budget",
                "serves",
                "serves-too-few",
            },
        ),
        ("tight", set(Tightness)),
        ("failures", set(Verdict) - {Verdict.FITS, Verdict.TIGHT}),
    ],
)
def test_every_name_of_a_closed_group_has_its_label(group: str, names: set[str]) -> None:
    assert set(LABELS[group]) == names


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("[a]\nb = 1", "[a] b: Expected `str`, got `int`"),
        ("[a]\nb = ''", "[a] b: must not be empty"),
        ("a = 'x'", "[a] must be"),
    ],
)
def test_a_wrong_label_is_named(table: str, said: str) -> None:
    with pytest.raises(TextsError) as caught:
        LABELS.read(table)
    assert str(caught.value).startswith(f"labels.toml: {said}")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("[a]\ntext = 'x'", "messages.toml: [a]: Object missing required field `next_step`"),
        (
            "[a]\ntext = 'x'\nnext_stp = 'y'",
            "messages.toml: [a]: Object contains unknown field `next_stp`",
        ),
        ("[a]\ntext = 1\nnext_step = 'y'", "messages.toml: [a] text: Expected `str`, got `int`"),
        ("[a]\ntext = ' '\nnext_step = 'y'", "messages.toml: [a] text: must not be empty"),
        ("a = 'x'", "messages.toml: [a] must be a table"),
        ("[a", "messages.toml: "),
        ("[a]\n[a]", "messages.toml: "),
    ],
)
def test_a_wrong_message_is_named(table: str, said: str) -> None:
    with pytest.raises(TextsError) as caught:
        MESSAGES.read(table)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "sources = ['post-mortem', 'postmortem']",
            "sources[1]: Invalid enum value 'postmortem'",
        ),
        ("sources = 'post-mortem'", "sources: Expected `array`, got `str`"),
        ("sources = []", "sources: must not be empty"),
        ("sources = ['post-mortem']\ntrial = 'length'", "trial: Invalid enum value 'length'"),
        ("sources = ['post-mortem']\nflag = '--b'", "flag: must not be there"),
    ],
)
def test_a_wrong_name_is_named(line: str, said: str) -> None:
    prose = "meaning = 'a'\nmemory = 'a'\nmistake = 'a'\nadvice = 'a'"
    with pytest.raises(TextsError) as caught:
        PARAMETERS.read(f"[--a]\n{line}\n{prose}")
    assert str(caught.value).startswith(f"parameters.toml: [--a] {said}")
