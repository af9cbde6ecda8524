"""Page parameters in a link."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcore.base.errors import MESSAGES
from kvcore.base.words import Language
from kvcore.course import STEPS
from kvcore.texts import SYLLABUS
from kvcore.wire import link
from kvcore.wire.link import PIN_NAMES
from kvcore.wire.link_names import full_name, is_ours
from pages.ui.shared.parameters import (
    PARAMETERS,
    card_ids,
    decode_language,
    decode_page,
    encode_page,
    text_of,
)

LENGTHS = "800:1150:1200,120:380:512,920:1530:1712,1312:1662:1712"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("view", "models", "models"),
        ("gpus", "16", 16),
        ("vendors", "intel,nvidia", ("nvidia", "intel")),
        ("memory", "above-96,up-to-24", ("up-to-24", "above-96")),
        ("sort", "per-gpu", "per-gpu"),
        ("failing", "true", True),
        ("search", "qwen 3", "qwen 3"),
        ("vary", "block_size", "block_size"),
        ("cards", "L4-24GB", ("L4-24GB",)),
        ("lengths", LENGTHS, LENGTHS),
        ("step", "12", 12),
        ("lesson", "e", "e"),
        ("path", "45", "45"),
        ("reveal", "1", 1),
        ("seed", "31415", 31415),
        ("score", "BAg_-", "BAg_-"),
        ("frame", "7", 7),
        ("slide", "3", 3),
        ("chunk", "8", 8),
        ("present", "true", True),
        ("answers", "true", True),
        ("limit", "1792", 1792),
        ("check", "pre-run", "pre-run"),
        ("section", "glossary", "glossary"),
        ("find", "block size", "block size"),
        ("story", "post-mortem", "post-mortem"),
        ("story_step", "12", 12),
        ("arrivals", "50", 50.0),
        ("arrivals", "0.25", 0.25),
        ("first_token", "0", 0.0),
        ("speed", "12.5", 12.5),
        ("ticked", "alerts,history", ("history", "alerts")),
        ("alert_kv", "80", 80),
        ("alert_waiting", "12", 12),
        ("alert_first", "1.5", 1.5),
        ("alert_seconds", "45", 45.0),
        ("load_requests", "64", 64),
        ("load_prompt", "4000", 4000),
        ("load_answer", "1", 1),
        ("load_rate", "75", 75.0),
        ("system", "1500", 1500),
        ("user", "80", 80),
        ("reply", "300", 300),
        ("kept", "4", 4),
        ("prefix", "0", 0),
        ("quantity", "weights", "weights"),
        ("group", "family", "family"),
        ("apart", "true", True),
        ("unseen", "true", True),
    ],
)
def test_every_parameter_comes_back(name: str, text: str, value: object) -> None:
    found = decode_page({name: text})
    assert (dict(found.values), found.repairs) == ({name: value}, ())
    assert decode_page(encode_page(found.values)).values == found.values


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("view", "Cards"),
        ("limit", "0"),
        ("limit", "10.5"),
        ("limit", "9" * 4400),
        ("limit", "٣"),
        ("ticked", "history,nonsense"),
        ("ticked", "history," * 3),
        ("alert_kv", "100"),
        ("alert_kv", "85.5"),
        ("alert_waiting", "0"),
        ("alert_first", "0"),
        ("alert_seconds", "8000"),
        ("arrivals", "0"),
        ("arrivals", "1e3"),
        ("arrivals", "100001"),
        ("first_token", "-1"),
        ("speed", "nan"),
        ("gpus", "3"),
        ("vendors", "nvidia,,amd"),
        ("vendors", "banana"),
        ("memory", "≤ 24"),
        ("sort", "price'; drop"),
        ("failing", "1"),
        ("search", "x" * 81),
        ("search", "a\nb"),
        ("vary", "everything"),
        ("cards", "H99-OLD"),
        ("lengths", "1:2:3"),
        ("step", "x"),
        ("lesson", "7"),
        ("path", "short"),
        ("reveal", "true"),
        ("seed", "-1"),
        ("score", "A" * (len(STEPS) + 1)),
        ("score", "<b>"),
        ("user", "0"),
        ("load_answer", "0"),
        ("quantity", "speed"),
    ],
)
def test_unreadable_parameters_are_named_with_their_replacement(name: str, text: str) -> None:
    found = decode_page({name: text, "frame" if name != "frame" else "gpus": "2"})
    (repair,) = found.repairs
    assert (repair.field, repair.error.code in MESSAGES) == (name, True)
    assert len(repair.given) <= 60
    assert repair.used == text_of(PARAMETERS[name].default)
    assert name not in found.values
    assert len(found.values) == 1


@pytest.mark.parametrize(
    ("name", "text", "nearest"),
    [
        ("step", "99", str(len(STEPS))),
        ("lesson", "z", list(SYLLABUS)[-1]),
        ("lesson", "Ende", "e"),
        ("path", "60", "45"),
        ("path", "9999", "90"),
    ],
)
def test_out_of_range_parameters_go_to_the_nearest(name: str, text: str, nearest: str) -> None:
    found = decode_page({name: text})
    assert text_of(found.values[name]) == nearest
    assert [repair.used for repair in found.repairs] == [nearest]


def test_at_most_twelve_cards_stand_next_to_each_other() -> None:
    assert decode_page({"cards": ",".join(card_ids()[:12])}).repairs == ()
    assert decode_page({"cards": ",".join(card_ids()[:13])}).repairs[0].field == "cards"


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(PARAMETERS)) | st.text(max_size=6),
        st.text(max_size=40) | st.text(string.digits + ",:-." + string.ascii_lowercase, max_size=40),
        max_size=8,
    )
)
def test_no_text_raises_and_what_was_read_comes_back(params: dict[str, str]) -> None:
    found = decode_page(params)
    assert {*found.values, *(repair.field for repair in found.repairs)} <= set(params) & set(PARAMETERS)
    assert decode_page(encode_page(found.values)).values == found.values


def test_defaults_of_absent_fields_are_frozen() -> None:
    """A link leaves these out; a change here changes what old links show."""
    assert {name: parameter.default for name, parameter in PARAMETERS.items()} == {
        "view": "cards", "gpus": 8, "vendors": None, "memory": (), "sort": "vendor", "failing": False,
        "search": "", "task": "all", "prices": {}, "vary": "tensor_parallel_size",
        "cards": ("L40S-48GB", "A100-80GB", "H100-80GB", "H200-141GB", "B200-180GB", "MI300X-192GB"),
        "lengths": "", "limit": None, "check": "log", "section": "parameters", "answers": False, "step": 1,
        "lesson": "", "path": "", "reveal": 0, "seed": 0, "score": "",
            "frame": 0, "slide": 1, "goal": "", "replayed": "", "chunk": 16, "present": False, "traffic": "",
        "system": None, "user": None, "reply": None, "kept": None, "prefix": None,
        "ticked": (), "alert_kv": None, "alert_waiting": None, "alert_first": None, "alert_seconds": None,
        "arrivals": None, "first_token": None, "speed": None,
        "find": "", "story": "rule-of-thumb", "story_step": 1,
        "load_requests": None, "load_prompt": None, "load_answer": None, "load_rate": None,
        "quantity": "kv_memory", "group": "version", "apart": False, "unseen": False,
    }  # fmt: skip


def test_every_default_can_be_written_into_a_link() -> None:
    for name, parameter in PARAMETERS.items():
        text = text_of(parameter.default)
        assert not text or parameter.read(name, text) == parameter.default, name
        assert not text or decode_page({name: text}).values == {}


def test_the_table_knows_every_step() -> None:
    assert decode_page({"step": str(len(STEPS))}).repairs == ()
    assert decode_page({"step": str(len(STEPS) + 1)}).repairs


def test_no_name_is_one_of_the_scenario_or_of_a_pin() -> None:
    for name in PARAMETERS:
        assert not is_ours(name, PARAMETERS)
        assert full_name(name) not in link._KNOWN
        assert name not in PIN_NAMES
        assert link.decode({name: "x"}, PARAMETERS).repairs == ()


@pytest.mark.parametrize(
    ("tags", "language"),
    [
        (("zh", "zh-CN", "zh_CN", "zh-Hans", "ZH-hans-CN", "zh_CN.UTF-8", "zh-TW"), Language.CHINESE),
        (("en", "en-US", "en_GB", "EN", "en_US.UTF-8"), Language.ENGLISH),
    ],
)
def test_a_language_by_any_of_its_tags(tags: tuple[str, ...], language: Language) -> None:
    for tag in tags:
        assert decode_language({"lang": tag}) == (language, ()), tag


@pytest.mark.parametrize("tag", ["fr", "chinese", "zh<script>", "zh-", "z", "zh CN", "en" * 5000])
def test_another_language_is_named(tag: str) -> None:
    asked, (repair,) = decode_language({"lang": tag})
    assert asked is None
    assert (repair.field, repair.error.code) == ("lang", "invalid-value")
    assert decode_language({}) == (None, ())
