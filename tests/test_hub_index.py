"""The size in an index, however the index arrives, and what reading it takes."""

import json
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.hub_index import MAX_BYTES, IndexReader

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
