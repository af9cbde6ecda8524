"""The texts of the pages in each language."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from babel.messages import pofile
from babel.messages.pofile import read_po

from kvcore.base.errors import MESSAGES, Notice
from kvcore.base.words import Language, Words, _read, platform_words, words


@pytest.mark.parametrize(
    ("tag", "language"), [("zh-CN", "zh"), ("zh-TW", "zh"), ("en-US", "en"), ("fr", "en"), ("", "en")]
)
def test_language_of_the_browser(tag: str, language: str) -> None:
    assert Language.of_browser(tag) == language


def test_catalogues_are_read_as_they_are() -> None:
    assert words(Language.CHINESE)("Plan") == "容量规划"
    assert words(Language.ENGLISH)("Plan") == "Plan"


def test_figures_of_an_error_have_separators_but_not_in_a_flag_to_copy() -> None:
    t = words(Language.ENGLISH)
    params = {"max_model_len": "32768", "kv_tokens": "25552", "derived_max_model_len": "40960"}
    said = [code for code, message in MESSAGES.items() if "{max_model_len} tokens" in message.text]
    assert said
    for code in said:
        assert "32,768 tokens" in t.error(Notice(code=code, params=params))
    for code, message in MESSAGES.items():
        if "--max-model-len {max_model_len}" in message.text:
            assert "--max-model-len 32768" in t.error(Notice(code=code, params=params))


def test_an_unknown_capability_is_said_in_the_language() -> None:
    notice = Notice(code="fp8-kv-unsupported", params={"name": "X", "capability": "unknown"})
    assert "unknown" not in words(Language.CHINESE).error(notice)
    assert "unknown" in words(Language.ENGLISH).error(notice)


@pytest.mark.parametrize(
    ("language", "name"), [(Language.ENGLISH, "ACL graphs"), (Language.CHINESE, "ACL 图")]
)
def test_graphs_are_called_as_the_platform_calls_them(language: Language, name: str) -> None:
    ascend, other = platform_words(language, "ACL"), words(language)
    for text in ("CUDA graphs", "No CUDA graphs (eager)", "CUDA graphs, estimated by the engine"):
        assert name in ascend(text)
        assert name not in other(text)
    over = {"over": "1.00", "part": "ACL graphs"}
    assert name in ascend.error(Notice(code="memory-overrun", field="gpu_memory_utilization", params=over))


def test_no_text_of_our_own_names_another_platforms_graphs() -> None:
    ascend, other = platform_words(Language.CHINESE, "ACL"), words(Language.CHINESE)
    plain = "Weights, activations, graphs and one request of the full length fit."
    assert ("CUDA 图" in other(plain), "ACL 图" in ascend(plain), "CUDA" in ascend(plain)) == (
        True,
        True,
        False,
    )
    named = [msgid for _, msgid in ascend._texts if "CUDA 图" in ascend(msgid)]
    # What is left is said in the engine's own words.
    assert all("CUDA graph" in msgid for msgid in named)


def test_an_engines_own_words_keep_its_name_of_graphs() -> None:
    quoted = Notice(code="state-blocks-too-few", field="max_num_seqs", params={"value": "9", "blocks": "4"})
    assert "CUDA graph capture" in platform_words(Language.ENGLISH, "ACL").error(quoted)


def test_a_crowd_reads_the_texts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Visitors of a fresh server ask in the same moment."""
    read: list[object] = []

    def counted(source: object, **more: object) -> object:
        read.append(source)
        time.sleep(0)  # hands over to another thread
        return read_po(source, **more)

    monkeypatch.setattr(pofile, "read_po", counted)
    _read.cache_clear()
    platform_words.cache_clear()
    gate = Barrier(8)

    def ask(_: int) -> Words:
        gate.wait()
        return words(Language.CHINESE)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    assert len(read) == 1
    assert all(one is found[0] for one in found)
