"""Whole numbers as people and logs write them."""

import pytest

from kvcore.flags.registry import FLAGS
from kvcore.flags.whole import read_whole


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_model_len", "32k", 32000),
        ("max_model_len", "1.5K", 1536),
        ("max_model_len", "-1", -1),
        ("max_model_len", "auto", -1),
        ("max_model_len", "-2", None),
        ("max_model_len", "3G", None),
        ("max_num_batched_tokens", "8K", 8192),
        ("max_num_batched_tokens", "auto", None),
        ("kv_cache_memory_bytes", "10G", 10 << 30),
        ("max_num_seqs", "1k", None),
        ("max_num_seqs", "64", 64),
        ("max_num_seqs", "0", None),
        ("max_num_seqs", "9" * 400, None),
    ],
)
def test_a_text_is_the_number_that_the_parser_of_its_flag_takes(
    name: str, text: str, value: int | None
) -> None:
    assert read_whole(text, FLAGS[name]) == value
