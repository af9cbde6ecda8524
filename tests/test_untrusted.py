"""JSON and text from outside."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.errors import ScenarioError
from kvcore.untrusted import (
    MAX_INTEGER_DIGITS,
    MAX_JSON_DEPTH,
    is_json,
    json_depth,
    parse_json_object,
    utf8_text,
)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"a": %s}', "a"),
        ('{"a": -%s}', "a"),
        ('{"a": [{"b": 1}, {"b": [1, %s]}]}', "a.1.b.1"),
        ('{"a": {}, "b": [], "c": {"d": %s}}', "c.d"),
    ],
)
def test_a_number_with_too_many_digits_is_named_by_its_place(text: str, place: str) -> None:
    for digits in (MAX_INTEGER_DIGITS + 1, 400, 10_000):
        with pytest.raises(ScenarioError) as refused:
            parse_json_object(text % ("9" * digits))
        assert (refused.value.code, refused.value.field) == ("number-too-long", place)


def test_a_long_number_is_read_whole() -> None:
    assert (
        parse_json_object('{"a": %s}' % ("9" * (MAX_INTEGER_DIGITS - 1)))["a"]
        == 10 ** (MAX_INTEGER_DIGITS - 1) - 1
    )


@pytest.mark.parametrize("data", [b"\xff\xfe{\x00", b"a\x80", b"\xed\xa0\x80"])
def test_what_is_not_utf8_is_refused(data: bytes) -> None:
    with pytest.raises(ScenarioError) as refused:
        utf8_text(data)
    assert refused.value.code == "not-utf8"


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": "\udcff"}, "\ud83d"])
def test_what_no_json_can_say_again(value: object) -> None:
    assert not is_json(value)


@pytest.mark.parametrize("value", [None, "🙂", 1.5, [1, {"a": "模型"}]])
def test_what_json_can_say_again(value: object) -> None:
    assert is_json(value)


def depth_by_hand(text: str) -> int:
    depth = deepest = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            in_string = escaped or character != '"'
            escaped = not escaped and character == "\\"
        elif character == '"':
            in_string = True
        else:
            depth += (character in "[{") - (character in "]}")
            deepest = max(deepest, depth)
    return deepest


class TestDepth:
    @given(st.text('[]{}"\\a\n', max_size=20))
    def test_brackets_count_outside_of_texts(self, text):
        padding = "[]" * (MAX_JSON_DEPTH + 1)
        assert json_depth(padding + text) == max(1, depth_by_hand(text))

    @pytest.mark.parametrize("piece", ["[],", "[" * 40 + "]" * 40 + ",", '"\\"[",', "{},", '"'])
    def test_two_mebibytes_are_counted_in_a_second(self, piece):
        text = '{"a": [' + piece * ((2 << 20) // len(piece))
        started = time.process_time()
        json_depth(text)
        assert time.process_time() - started < 1
