"""The caching allocator: which tensors count for more than their size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.memory.allocator import SMALL_BYTES, allocated_bytes
from kvcore.units import MIB


@pytest.mark.parametrize(
    ("size", "counted"),
    [
        (0, 0),
        (1, 512),
        (513, 1024),
        (MIB, MIB),
        (12 * MIB, 12 * MIB),
        (12 * MIB + MIB, 14 * MIB),
        (12 * MIB + MIB // 2, 12 * MIB + MIB // 2),
        (13 * MIB + MIB // 2, 14 * MIB),
        (5 * MIB, 5 * MIB),
        (9 * MIB + 3 * MIB // 4, 10 * MIB),
    ],
)
def test_counted_bytes(size, counted):
    assert allocated_bytes(size) == counted


def test_a_limit_on_splitting_keeps_every_rest_of_large_tensors():
    size = 24 * MIB + MIB // 2
    assert allocated_bytes(size) == size
    assert allocated_bytes(size, max_split_bytes=20 * MIB) == 26 * MIB
    assert allocated_bytes(12 * MIB + MIB // 2, max_split_bytes=20 * MIB) == 12 * MIB + MIB // 2


@given(st.integers(1, 2**36), st.sampled_from([None, 20 * MIB]))
def test_a_tensor_counts_for_its_size_and_less_than_2_mib_more(size, max_split_bytes):
    counted = allocated_bytes(size, max_split_bytes)
    assert size <= counted < size + 2 * SMALL_BYTES + 512
