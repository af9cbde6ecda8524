"""Traffic from readers: exact for small logs, within the stated error for others, and the same from a link."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcore.base.errors import WorkloadError
from kvcore.base.untrusted import pack
from kvcore.workload import collector as room
from kvcore.workload.collector import Collector
from kvcore.workload.histogram import (
    EXACT_BITS,
    MAX_TOKENS,
    CellSums,
    JointHistogram,
    LengthHistogram,
    cell_of,
    error_of,
    rounded_up,
)
from kvcore.workload.mix import workload_report
from kvcore.workload.records import RequestLog
from kvcore.workload.requests import Request, Rows
from kvcore.workload.traffic import (
    MAX_LINK_CHARACTERS,
    Traffic,
    added,
    read_traffic,
    traffic_of_counts,
    unpacked,
)

TOKENS = st.integers(1, MAX_TOKENS)
REQUESTS = st.lists(
    st.tuples(TOKENS, st.none() | st.integers(0, MAX_TOKENS), st.none() | TOKENS), min_size=1, max_size=60
)
PERCENTS = (50, 90, 95, 99, 100)


def collected(requests: list[tuple[int, int | None, int | None]]) -> Traffic:
    collector = Collector()
    for request in requests:
        collector.add(Request(*request))
    return collector.traffic()


def wide(seed: int = 1, size: int = 30_000) -> list[tuple[int, int | None, int | None]]:
    random = np.random.default_rng(seed)
    prompts, answers = random.lognormal(6.8, 1, size), random.lognormal(5.2, 0.8, size)
    return [(int(prompt) + 1, int(answer), None) for prompt, answer in zip(prompts, answers, strict=True)]


def numpy_percentiles(values: list[int]) -> list[int]:
    return [int(one) for one in np.percentile(values, PERCENTS, method="inverted_cdf")]


def percentiles(histogram: LengthHistogram) -> list[int]:
    return [histogram.percentile_tokens(percent) for percent in PERCENTS]


@given(st.lists(TOKENS, min_size=1, max_size=300))
def test_percentiles_are_numpys_inverted_cdf(values: list[int]) -> None:
    assert percentiles(LengthHistogram.from_lengths(values)) == numpy_percentiles(values)


@given(st.lists(TOKENS, min_size=1, max_size=300), st.integers(4, 40))
def test_bins_do_not_change_percentiles_and_the_mean(values: list[int], bins: int) -> None:
    found, bits = LengthHistogram.from_lengths(values).binned(bins)
    assert percentiles(found) == numpy_percentiles(values)
    assert found.requests == len(values)
    assert found.mean_tokens == pytest.approx(sum(values) / len(values), abs=0.5)
    # binned lengths stay in their order, so each may be held against its own
    binned = [length for length, count in found.items for _ in range(count)]
    for true, stands in zip(sorted(values), binned, strict=True):
        assert abs(stands - true) <= error_of(bits) * max(true, stands) + 0.5


@given(st.lists(st.tuples(TOKENS, st.integers(0, 500)), min_size=1, max_size=80), st.integers(1, 30))
def test_cells_are_the_finest_that_fit(pairs: list[tuple[int, int]], most: int) -> None:
    cells = Counter(pairs)

    def rounded(bits: int) -> list[tuple[int, int]]:
        return [(rounded_up(prompt, bits), rounded_up(answer, bits)) for prompt, answer in cells]

    found, bits = JointHistogram.from_counts(cells).binned(most)
    if len(cells) <= most:
        assert (list(found.items), bits) == ([(*cell, n) for cell, n in sorted(cells.items())], EXACT_BITS)
        return
    fitting = [bits for bits in range(EXACT_BITS) if len(set(rounded(bits))) <= most]
    assert bits == max(fitting, default=0)
    sums: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0, 0])
    for group, ((prompt, answer), number) in zip(rounded(bits), cells.items(), strict=True):
        for at, one in enumerate((prompt * number, answer * number, number)):
            sums[group][at] += one
    means: Counter[tuple[int, int]] = Counter()
    for prompt, answer, number in sums.values():
        means[round(prompt / number), round(answer / number)] += number
    assert list(found.items) == [(*cell, number) for cell, number in sorted(means.items())]


@given(TOKENS, st.integers(1, 24))
def test_rounding_to_leading_bits_is_below_the_stated_error(tokens: int, bits: int) -> None:
    found = rounded_up(tokens, bits)
    assert tokens <= found < tokens * (1 + 2.0 ** (1 - bits)) + 1
    assert rounded_up(found, bits) == found


@given(REQUESTS)
def test_a_link_and_a_file_are_read_back(
    requests: list[tuple[int, int | None, int | None]],
) -> None:
    found = collected(requests)
    assert read_traffic(found.text()) == found
    short = found.for_link()
    assert unpacked(short.packed()) == short == short.for_link()


def test_a_link_of_a_wide_log_is_short_and_has_its_percentiles() -> None:
    requests = wide()
    found = collected(requests).for_link()
    assert len(found.packed()) <= MAX_LINK_CHARACTERS
    assert percentiles(found.prompts) == numpy_percentiles([prompt for prompt, _, _ in requests])
    assert percentiles(found.taken) == numpy_percentiles(
        [prompt + (answer or 0) for prompt, answer, _ in requests]
    )
    assert unpacked(found.packed()) == found == found.for_link()
    exact = sum((a or 0) * p + (a or 0) * ((a or 0) + 1) / 2 for p, a, _ in requests)
    exact /= sum(answer or 0 for _, answer, _ in requests)
    assert found.joint.running_tokens == pytest.approx(exact, rel=0.01)


def test_memory_is_bounded_and_the_error_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_FRESH", 1000)
    monkeypatch.setattr(room, "MAX_CELLS", 2000)
    requests = wide()
    found = collected(requests)
    assert len(found.joint.counts) <= 2000
    assert len(found.prompts.lengths) <= 2005
    assert found.requests == len(requests)
    assert 0 < found.error < 0.01
    true, stands = numpy_percentiles([prompt for prompt, _, _ in requests]), percentiles(found.prompts)
    assert stands == pytest.approx(true, rel=found.error)


def test_two_halves_add_up_to_the_whole() -> None:
    requests = wide(size=2000)
    assert added(collected(requests[:700]), collected(requests[700:])) == collected(requests)


def test_sessions_time_and_shared_blocks_are_counted() -> None:
    collector = Collector()
    collector.add(Request(1024, 5, session="a", seconds=100.0, blocks=(1, 2)))
    collector.add(Request(2048, 5, session="a", seconds=160.0, blocks=(1, 2, 3, 4), cached_tokens=1024))
    collector.add(Request(512, 5, session="b", seconds=130.0, blocks=(1,)))
    found = collector.traffic()
    assert (found.turns.lengths, found.turns.counts) == ((1, 2), (1, 1))
    assert (found.cached_tokens, found.span_seconds) == (1024, 60.0)
    # two of four blocks of 512; then one block of one, of which the last token is always computed
    assert found.shared_tokens == 1024 + 511


def test_more_sessions_than_are_followed_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MAX_SESSIONS", 64)
    collector = Collector()
    for session in range(1000):
        for _ in range(1 + session % 2):
            collector.add(Request(10, 1, session=f"s{session}"))
    turns = collector.traffic().turns
    assert 16 <= turns.requests <= 64
    assert turns.lengths == (1, 2)


@settings(max_examples=60)
@given(
    st.sampled_from(["prompts", "joint", "answers", "error", "kvcore_traffic"]),
    st.one_of(
        st.none(),
        st.integers(-2, 2),
        st.text(max_size=3),
        st.lists(st.lists(st.integers(-1, 1 << 60)), max_size=3),
    ),
)
def test_a_changed_file_is_refused_or_read(name: str, value: object) -> None:
    record = json.loads(traffic_of_counts({(900, 80, 512): 3, (20, None, None): 1}).text())
    text = json.dumps(record | {name: value})
    with suppress(WorkloadError):
        read_traffic(text)
    with pytest.raises(WorkloadError):
        unpacked(pack(text)[:-9])


@pytest.mark.parametrize("text", ["", "{}", "[", '{"kvcore_traffic":1}', "x" * 100, '{"prompts":[[1],[1]]}'])
def test_bad_traffic_is_a_coded_error(text: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        read_traffic(text)
    assert caught.value.code == "traffic-unreadable"


def test_the_report_is_that_of_source_004() -> None:
    """800 to 1,200 tokens, max_tokens 512: P99 1,196 + 512 = 1,708; the P99 of the sum beside it."""
    traffic = traffic_of_counts({(prompt, 90, None): 10 for prompt in range(800, 1201)})
    log = RequestLog(
        traffic=traffic, estimated=0, unusable=2, unusable_lines=(3, 9), reasons=(), other_lines=0
    )
    assert workload_report(log, 512) == {
        "requests": 4010, "broken_lines": 2, "counted_by": "usage",
        "prompt": {"p50": 1000, "p90": 1160, "p95": 1180, "p99": 1196, "max": 1200},
        "output": {"p50": 90, "p90": 90, "p95": 90, "p99": 90, "max": 90},
        "total": {"p50": 1090, "p90": 1250, "p95": 1270, "p99": 1286, "max": 1290},
        "max_tokens": 512, "without_max_tokens": 4010, "recommended_max_model_len": 1708, "p99_total": 1286,
        "lengths_off": 0.0, "arrivals": None, "models": [], "not_asked": 0,
        "failed": 0, "other_kinds": 0, "warnings": [],
    }  # fmt: skip
    assert workload_report(log)["recommended_max_model_len"] == 1196 + 90


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 500)), min_size=1, max_size=120),
    st.integers(1, 40),
    st.integers(1, 120),
)
def test_cells_come_in_any_order_and_number(pairs: list[tuple[int, int]], most: int, at_once: int) -> None:
    sums, cells = CellSums(most), [cell_of(*pair) for pair in pairs]
    for at in range(0, len(cells), at_once):
        sums.add(Counter(cells[at : at + at_once]))
    assert (sums.joint(), sums.bits) == JointHistogram.from_counts(Counter(pairs)).binned(most)


@given(REQUESTS, st.integers(1, 60))
def test_requests_in_columns_count_like_single_ones(
    requests: list[tuple[int, int | None, int | None]], at_once: int
) -> None:
    collector = Collector()
    for at in range(0, len(requests), at_once):
        part = requests[at : at + at_once]
        kinds = {tuple(one is None for one in request) for request in part}
        if len(kinds) > 1:
            for request in part:
                collector.add(Request(*request))
            continue
        prompts, answers, asked = zip(*part, strict=True)
        _, no_answer, no_asked = kinds.pop()
        rows = Rows(prompts, None if no_answer else answers, None if no_asked else asked, 0, None, None, None)
        collector.add_rows(rows)
    assert collector.traffic() == traffic_of_counts(Counter(requests))
