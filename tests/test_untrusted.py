"""JSON and text from outside."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.api.operations import Asked, answered
from kvcore.base.errors import ScenarioError
from kvcore.base.untrusted import (
    MAX_INTEGER_DIGITS,
    MAX_JSON_DEPTH,
    MAX_JSON_VALUES,
    is_json,
    json_depth,
    json_values,
    parse_json_object,
    utf8_text,
)
from kvcore.replay.steps import case_answer


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


class TestValues:
    @given(
        st.recursive(st.none() | st.text(',[{"\\a', max_size=4), lambda inner: st.lists(inner, max_size=4))
    )
    def test_none_is_missed(self, value):
        """Every value follows a comma or an opening bracket, but for the first."""

        def count(one):
            return 1 + sum(map(count, one)) if isinstance(one, list) else 1

        text = json.dumps({"a": value})
        assert count(value) <= json_values(text) <= json_values(text, 1 << 20)

    def test_those_in_texts_do_not_count(self):
        assert json_values(json.dumps({"a": ",[{" * 100})) == 1
        assert parse_json_object(json.dumps({"a": "," * (MAX_JSON_VALUES + 1)}))["a"][0] == ","

    @pytest.mark.parametrize("piece", ["[],", "{},", "1,", '"",'])
    def test_more_than_the_limit_are_refused_before_they_are_parsed(self, piece):
        text = '{"a": [' + piece * MAX_JSON_VALUES
        with pytest.raises(ScenarioError) as refused:
            parse_json_object(text, field="config")
        assert (refused.value.code, refused.value.field) == ("too-many-values", "config")

    def test_as_many_as_the_limit_are_read(self):
        text = '{"a": [' + "1," * (MAX_JSON_VALUES - 3) + "1]}"
        assert len(parse_json_object(text)["a"]) == MAX_JSON_VALUES - 2

    @pytest.mark.parametrize(
        ("operation", "body"),
        [("plan", '{"config": {"a": [' + "[]," * MAX_JSON_VALUES), ("batch", "[" + "{}," * MAX_JSON_VALUES)],
    )
    def test_the_api_refuses_them(self, operation, body):
        found = answered(Asked(operation=operation, body=body.encode()))
        assert b"too-many-values" in found.body

    def test_a_case_of_a_replay_with_them_is_refused(self):
        found = case_answer(b'{"requests": [' + b"[]," * MAX_JSON_VALUES)
        assert found["error"]["code"] == "too-many-values"


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
