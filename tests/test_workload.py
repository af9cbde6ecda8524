"""Request logs -> lengths -> a recommended max_model_len."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore.errors import WorkloadError
from kvcore.workload.histogram import LengthHistogram
from kvcore.workload.recommend import Lengths, lengths_of
from kvcore.workload.records import MAX_LOG_BYTES, read_request_log


def lines(*records: object) -> list[bytes]:
    return [json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records]


def test_usage_counts_win_over_text() -> None:
    log = read_request_log(
        lines({"prompt": "x" * 7000, "usage": {"prompt_tokens": 12, "completion_tokens": 3}})
    )
    assert (log.prompts.longest_tokens, log.completions.longest_tokens, log.estimated) == (12, 3, 0)


@pytest.mark.parametrize(
    ("record", "tokens"),
    [
        ({"prompt": "a" * 350}, 100),
        ({"messages": [{"role": "user", "content": "a" * 35}]}, 14),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a" * 35}]}]}, 14),
        ({"request": {"body": {"prompt": "a" * 35}}}, 10),
        ({"prompt": "显存容量规划"}, 4),
    ],
)
def test_text_is_counted_by_the_stated_approximation(record: object, tokens: int) -> None:
    log = read_request_log(lines(record))
    assert (log.prompts.longest_tokens, log.estimated) == (tokens, 1)


def test_bad_lines_are_counted_and_named() -> None:
    log = read_request_log(
        [b"not json\n", b"[1]\n", b"\n", *lines({"prompt_tokens": 5}), b'{"prompt_tokens": -1}\n']
    )
    assert log.prompts.requests == 1
    assert (log.unusable, log.unusable_lines) == (3, (1, 2, 5))


@pytest.mark.parametrize("content", [[], [b"\xff\xfe\x00"], [b"[" * 100_000], [b'{"prompt_tokens": 1e400}']])
def test_nothing_usable_is_a_coded_error(content: list[bytes]) -> None:
    with pytest.raises(WorkloadError) as caught:
        read_request_log(content)
    assert caught.value.code == "request-log-empty"


def test_a_log_over_the_limit_is_refused() -> None:
    line = b" " * (1 << 20)
    with pytest.raises(WorkloadError) as caught:
        read_request_log(line for _ in range((MAX_LOG_BYTES >> 20) + 1))
    assert caught.value.code == "request-log-too-large"


def test_recommendation_of_the_post_mortem() -> None:
    """Customer service: prompts of 800 to 1200 tokens, max_tokens 512, max_model_len 8192 set too large."""
    records = [{"prompt_tokens": 800 + n % 401, "max_tokens": 512} for n in range(4010)]
    lengths = lengths_of(read_request_log(lines(*records)))
    assert (lengths.p50_prompt_tokens, lengths.p99_prompt_tokens, lengths.max_tokens) == (1000, 1196, 512)
    assert lengths.recommended_max_model_len == 1792


def test_without_max_tokens_the_answers_tell() -> None:
    records = [{"prompt_tokens": 100, "completion_tokens": n} for n in range(1, 101)]
    assert lengths_of(read_request_log(lines(*records))).max_tokens == 99


@given(st.lists(st.integers(0, 10_000), min_size=1), st.floats(1, 100))
def test_a_percentile_covers_its_share(values: list[int], percent: float) -> None:
    histogram = LengthHistogram.from_lengths(values)
    limit = histogram.percentile_tokens(percent)
    assert sum(v <= limit for v in values) / len(values) >= percent / 100 - 1e-9
    assert histogram.share_above(limit) == pytest.approx(sum(v > limit for v in values) / len(values))


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_recommendation_holds_p99_and_the_answer(p99: int, room: int) -> None:
    lengths = Lengths(p50_prompt_tokens=0, p95_prompt_tokens=0, p99_prompt_tokens=p99, max_tokens=room)
    assert p99 + room <= lengths.recommended_max_model_len < p99 + room + 257
