"""Numbers as a person reads them."""

import math
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from babel.messages import pofile
from babel.messages.pofile import read_po
from hypothesis import given
from hypothesis import strategies as st

from kvcore.base.errors import MESSAGES, Notice
from kvcore.base.units import GIB, MIB
from kvcore.base.words import (
    Language,
    Words,
    _read,
    concurrency_text,
    gib_text,
    platform_words,
    whole_requests,
    words,
)


@given(st.floats(1, 1e6))
def test_a_concurrency_is_rounded_as_the_engine_prints_it(value: float) -> None:
    assert float(concurrency_text(value).replace(",", "")) == float(f"{value:.2f}")


@pytest.mark.parametrize(
    ("value", "text"), [(6.9167, "6.92"), (22.398, "22.4"), (105.375, "105.38"), (20.0, "20")]
)
def test_a_concurrency(value: float, text: str) -> None:
    assert concurrency_text(value) == text


@given(st.floats(0.005, 1, exclude_max=True))
def test_a_concurrency_below_one_never_reads_one(value: float) -> None:
    assert float(concurrency_text(value)) <= value + 1e-8


@given(st.floats(1, 1e6) | st.integers(1, 1000).map(lambda whole: whole - 0.004))
def test_a_sentence_never_promises_a_whole_request_too_many(value: float) -> None:
    assert whole_requests(value) <= max(value, 1) + 1e-8


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 GiB"), (-43.04 * GIB, "−43.0 GiB"), (0.5 * GIB, "0.50 GiB"), (3 * MIB, "3.0 MiB"),
     (1536 * GIB, "1,536.0 GiB")],
)  # fmt: skip
def test_gib(size: float, text: str) -> None:
    assert gib_text(size) == text


def test_signs() -> None:
    assert gib_text(GIB, signed=True) == "+1.0 GiB"
    assert gib_text(-GIB, signed=True) == "−1.0 GiB"


def test_infinity_has_a_sign() -> None:
    assert concurrency_text(math.inf) == "∞"


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
