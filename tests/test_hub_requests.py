"""What a server asks the Hub: about whose models, how many questions at once, how much is read of an index."""

import json
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.base.errors import HubError
from kvcore.hub.readers import MAX_BYTES, IndexReader
from kvcore.hub.requests import SWITCH, InFlight, check_owner, is_off, owners


def code_of(model: str) -> str | None:
    try:
        check_owner(model)
    except HubError as error:
        return error.code if error.next_step else ""
    return None


@pytest.mark.parametrize(
    ("written", "qwen", "other"),
    [
        (None, None, None),
        ("", None, None),
        ("on", None, None),
        ("off", "hub-off", "hub-off"),
        (" OFF ", "hub-off", "hub-off"),
        ("Qwen, meta-llama", None, "hub-owner-not-allowed"),
        ("qwen", None, "hub-owner-not-allowed"),
        (",", "hub-off", "hub-off"),
    ],
)
def test_the_switch(monkeypatch, written, qwen, other):
    monkeypatch.delenv(SWITCH, raising=False)
    if written is not None:
        monkeypatch.setenv(SWITCH, written)
    assert (code_of("Qwen/Qwen3-8B"), code_of("Qwen2/x")) == (qwen, other)
    assert is_off() is (qwen is not None)
    assert (owners() is None) is (other is None)


class TestInFlight:
    def test_the_process_has_so_many_places(self):
        going = InFlight(most=2, most_of_one=2)
        going.enter("a/b", "")
        going.enter("a/b", "")
        with pytest.raises(HubError) as caught:
            going.enter("a/b", "somebody")
        assert (caught.value.code, caught.value.field) == ("hub-busy", "model")
        going.leave("")
        going.enter("a/b", "somebody")
        assert going.count == 2

    def test_one_session_has_fewer(self):
        going = InFlight(most=9, most_of_one=1)
        going.enter("a/b", "one")
        with pytest.raises(HubError):
            going.enter("a/b", "one")
        going.enter("a/b", "another")
        going.leave("one")
        going.enter("a/b", "one")


WEIGHTS = {
    f"model.layers.{n}.mlp.experts.{n}.gate_proj.weight": f"model-{n:05}-of-00100.safetensors"
    for n in range(99)
}


def read(text: bytes, cuts: list[int]) -> int | None:
    reader, begin = IndexReader(), 0
    for end in [*sorted(cuts), len(text)]:
        if reader.feed(text[begin:end]):
            break
        begin = max(begin, end)
    return reader.total_size


class TestPieces:
    @pytest.mark.parametrize(
        ("index", "size"),
        [
            ({"metadata": {"total_size": 12, "x": {"y": [1]}}, "weight_map": WEIGHTS}, 12),
            ({"weight_map": WEIGHTS, "metadata": {"total_size": 12}}, 12),
            ({"x": {"metadata": "a", "b": {"metadata": {"total_size": 9}}}, "metadata": {"total_size": 12}}, 12),
            ({"x": "metadata", "y": '"metadata": {"total_size": 9}', "metadata": {"total_size": 12}}, 12),
            ({"a\\\"": "\\", "metadata": {"total_size": 12, "]}": "}"}}, 12),
            ({"metadata": {"total_size": True}}, None),
            ({"metadata": {"total_size": -1}}, None),
            ({"metadata": 3, "weight_map": {"total_size": 9}}, None),
            ({"metadata": [{"total_size": 9}]}, None),
            ({}, None),
        ],
    )  # fmt: skip
    @given(cuts=st.lists(st.integers(0, 400), max_size=6), indent=st.sampled_from([None, 2]))
    def test_the_size_is_found_wherever_it_is_cut(self, index, size, cuts, indent):
        assert read(json.dumps(index, indent=indent).encode(), cuts) == size

    @given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=3))
    def test_what_is_no_index_has_no_size(self, text, cuts):
        assert read(text, cuts) is None

    def test_a_text_without_end_is_given_up(self):
        reader = IndexReader()
        assert not reader.feed(b'{"a": "')
        assert reader.feed(b"x" * (MAX_BYTES + 1))


@pytest.mark.parametrize("piece", [b"[" * (1 << 16), b"[]" * (1 << 15), b"{}" * (1 << 15)])
def test_brackets_without_end_are_given_up(piece):
    reader, started = IndexReader(), time.process_time()
    reader.feed(b'{"a": [')
    assert any(reader.feed(piece) for _ in range((32 << 20) // len(piece)))
    assert time.process_time() - started < 1


def feed_32_mebibytes(reader: IndexReader) -> None:
    row = b'"model.layers.10.mlp.experts.100.gate_proj.weight": "model-00001-of-00100.safetensors", '
    rows = row * ((1 << 16) // len(row))
    reader.feed(b'{"weight_map": {')
    for _ in range((32 << 20) // len(rows)):
        assert not reader.feed(rows)
    assert reader.feed(b'"x": "y"}, "metadata": {"total_size": 12}}')
    assert reader.total_size == 12


def test_32_mebibytes_of_names_take_little_time():
    started = time.process_time()
    feed_32_mebibytes(IndexReader())
    assert time.process_time() - started < 8


def test_32_mebibytes_of_names_take_little_memory():
    tracemalloc.start()
    feed_32_mebibytes(IndexReader())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 << 20
