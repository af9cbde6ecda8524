"""Both languages say everything, and nothing that nobody asks for."""

import re

import pytest

from kvcore.base.errors import MESSAGES, ModelError, Notice, ScenarioError
from kvcore.base.untrusted import parse_json_object
from kvcore.base.words import Language, words
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from tools import messages

PLACEHOLDER = re.compile(r"\{(\w+)[:}]")
HALF_WIDTH_AFTER_CHINESE = re.compile(r"[\u4e00-\u9fff][,;:?!(]|[,;:?!)][\u4e00-\u9fff]")
WANTED = messages.wanted()


@pytest.mark.parametrize("language", Language)
def test_every_text_is_there_and_every_entry_is_used(language: Language) -> None:
    catalogue = messages.read(language)
    assert set(catalogue) == set(WANTED), "run python tools/messages.py"
    assert [key for key, text in catalogue.items() if not text.strip()] == []


@pytest.mark.parametrize("language", Language)
def test_translations_keep_their_parameters(language: Language) -> None:
    # The next step may say in other words what the message already named.
    for (_, english), text in messages.read(language).items():
        assert set(PLACEHOLDER.findall(text)) <= set(PLACEHOLDER.findall(english)), english


def test_english_is_its_own_translation() -> None:
    assert all(text == english for (_, english), text in messages.read(Language.ENGLISH).items())


def test_chinese_uses_its_own_punctuation() -> None:
    for text in messages.read(Language.CHINESE).values():
        assert not HALF_WIDTH_AFTER_CHINESE.search(text), text


def test_per_cent_has_no_space_in_chinese() -> None:
    assert [text for text in messages.read(Language.CHINESE).values() if re.search(r"[0-9}] %", text)] == []


def test_chinese_is_chinese() -> None:
    """Texts without a Chinese character are names, units or signs only."""
    plain = [
        text for text in messages.read(Language.CHINESE).values() if not re.search(r"[\u4e00-\u9fff]", text)
    ]
    assert all(len(re.sub(r"\{\w+\}", "", text).split()) <= 2 for text in plain), plain


def test_messages_are_translated_by_code_and_filled_afterwards() -> None:
    t = words(Language.CHINESE)
    error = ModelError("missing-config-key", field="config.hidden_size", key="hidden_size")
    assert t.error(error) == "config 中没有 hidden_size，而这类模型需要它"
    assert t.next_step(error) == "请提供权重目录中完整的 config.json"


def test_reasons_are_translated_with_their_numbers() -> None:
    t = words(Language.CHINESE)
    error = ScenarioError(
        "invalid-value", field="max_num_seqs", value=0, reason="it must lie between 1 and 1048576"
    )
    assert t.error(error) == "max_num_seqs 不能是 0：必须在 1 到 1048576 之间"


@pytest.mark.parametrize(
    "text",
    ["abc", "{a: 1}", '{"a" 1}', '{"a": 1 2}', "{} x",
     '{"a', '{"a": "\n"}', r'{"a": "\x"}', r'{"a": "\u12"}', "{\"a\": 1,}",
     '{"a": [1,]}', "\ufeff{}"],
)  # fmt: skip
def test_errors_in_json_are_named_in_chinese(text: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_json_object(text)
    assert caught.value.code == "invalid-json"
    said = words(Language.CHINESE).error(caught.value)
    assert not re.search("[A-Za-z]{4}", said.replace("JSON", "").replace("UTF-8 BOM", "")), said


def test_a_config_that_names_nothing_is_refused_in_the_language() -> None:
    with pytest.raises(ModelError) as caught:
        read_architecture(ModelConfig.from_mapping({}))
    assert "none named" in words(Language.ENGLISH).error(caught.value)
    assert "named" not in words(Language.CHINESE).error(caught.value)


@pytest.mark.parametrize("code", MESSAGES)
def test_every_code_has_words_in_chinese(code: str) -> None:
    t = words(Language.CHINESE)
    notice = Notice(code=code)
    assert re.search(r"[\u4e00-\u9fff]", t.error(notice) + t.next_step(notice))


def test_an_unknown_text_stays_english() -> None:
    assert words(Language.CHINESE)("a text that nobody translated") == "a text that nobody translated"
