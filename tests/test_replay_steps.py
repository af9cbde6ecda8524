"""The scheduler step by step, compared with vLLM's own on the same requests.

tests/data/replay_steps.jsonl has one group of full attention, replay_groups.jsonl windows, chunks, recurrent states
and drafts, replay_drafts.jsonl drafts by other means.
"""

from __future__ import annotations

import io
import json
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from packaging.version import Version

from kvcore import cli
from kvcore.base.errors import WorkloadError
from kvcore.cache.spec import CacheKind
from kvcore.replay import steps, trace
from kvcore.replay.hybrid import scheduler_of
from kvcore.replay.scheduler import Scheduler
from kvcore.replay.settings import Drafts, FreeOrder, Group, Settings, rules_of
from kvcore.replay.steps import MAX_COUNT, case_answer, case_rows
from kvcore.replay.trace import Contents, TraceRequest

RECORDS = [
    json.loads(line)
    for name in ("replay_steps", "replay_groups", "replay_drafts")
    for line in (Path(__file__).parent / f"data/{name}.jsonl").open()
]
KEYS = ("id", "arrival_step", "prompt", "answer_tokens")


def case_of(record: dict[str, Any]) -> dict[str, Any]:
    """The case of a record, as the contract has it."""
    requests = [dict(zip(KEYS, request, strict=True)) for request in record["requests"]]
    return {"id": record["id"], **record["settings"], "requests": requests}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"])
def test_every_step_equals_the_engines(record: dict[str, Any]) -> None:
    answer = case_answer(json.dumps(case_of(record)).encode())
    wanted = [tuple(row) for count, *row in record["steps"] for _ in range(count)]
    assert answer["steps"] == wanted
    looked_up = {"prefix_query_tokens", "prefix_hit_tokens", "resumed_query_tokens", "resumed_hit_tokens"}
    for name, value in record["totals"].items():
        if record["settings"]["engine_version"] != "0.19.1" or name not in looked_up:
            assert answer[name] == value, name


def small(**changes: Any) -> dict[str, Any]:
    """A case of one request."""
    return {
        "id": "one", "engine_version": "0.32.0", "num_blocks": 9, "block_size": 16, "max_num_seqs": 4,
        "max_num_batched_tokens": 64, "max_model_len": 64, "enable_prefix_caching": True,
        "async_scheduling": False, "watermark": None, "long_prefill_token_threshold": 0,
        "requests": [{"id": "a", "arrival_step": 0, "prompt": [["a", 20]], "answer_tokens": 2}],
    } | changes  # fmt: skip


def one(**changes: Any) -> list[dict[str, Any]]:
    """The one request of a case, changed."""
    return [{"id": "a", "arrival_step": 0, "prompt": [["a", 20]], "answer_tokens": 2} | changes]


DRAFTS = {"method": "mtp", "num_speculative_tokens": 2, "accepted_tokens": [1, 2]}
WINDOW = {"kind": "sliding_window", "block_size": 16, "sliding_window": 32}
STATE = {"kind": "mamba", "block_size": 16, "mamba_cache_mode": "none"}


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"engine_version": "0.11.2"}, "replay-release", "engine_version"),
        ({"engine_version": "new"}, "invalid-value", "engine_version"),
        ({"engine_version": None}, "invalid-value", "engine_version"),
        ({"num_blocks": 1}, "invalid-value", "num_blocks"),
        ({"num_blocks": True}, "invalid-value", "num_blocks"),
        ({"num_blocks": 2}, "replay-never-fits", "num_blocks"),
        ({"max_num_seqs": MAX_COUNT + 1}, "invalid-value", "max_num_seqs"),
        ({"max_model_len": 20}, "replay-prompt-too-long", "prompt"),
        ({"watermark": float("nan")}, "invalid-value", "watermark"),
        ({"enable_prefix_caching": 1}, "invalid-value", "enable_prefix_caching"),
        ({"sliding_window": 4096}, "replay-unsupported", "sliding_window"),
        ({"kv_cache_groups": [WINDOW], "engine_version": "0.20.1"}, "replay-unsupported", "kv_cache_groups"),
        ({"speculative_config": DRAFTS | {"method": "dflash"}}, "replay-unsupported", "speculative_config"),
        ({"speculative_config": DRAFTS | {"method": ["mtp"]}}, "replay-unsupported", "speculative_config"),
        (
            {"speculative_config": DRAFTS | {"method": "ngram"}, "async_scheduling": True},
            "invalid-value",
            "speculative_config.method",
        ),
        (
            {"speculative_config": DRAFTS | {"method": "ngram", "proposed_tokens": [3]}},
            "invalid-value",
            "speculative_config.proposed_tokens",
        ),
        (
            {"speculative_config": DRAFTS, "kv_cache_groups": [WINDOW]},
            "replay-unsupported",
            "speculative_config",
        ),
        ({"speculative_config": [1]}, "invalid-value", "speculative_config"),
        (
            {"speculative_config": DRAFTS | {"num_speculative_tokens": True}},
            "invalid-value",
            "speculative_config.num_speculative_tokens",
        ),
        (
            {"speculative_config": DRAFTS | {"accepted_tokens": [3]}},
            "invalid-value",
            "speculative_config.accepted_tokens",
        ),
        (
            {"speculative_config": DRAFTS, "num_blocks": 3, "requests": one(answer_tokens=20)},
            "replay-never-fits",
            "num_blocks",
        ),
        ({"kv_cache_groups": [STATE]}, "replay-unsupported", "kv_cache_groups"),
        ({"kv_cache_groups": [STATE | {"mamba_cache_mode": "all"}]}, "replay-unsupported", "kv_cache_groups"),
        (
            {"kv_cache_groups": [{"kind": "cross_attention", "block_size": 16}]},
            "replay-unsupported",
            "kv_cache_groups",
        ),
        ({"kv_cache_groups": [WINDOW] * 65}, "invalid-value", "kv_cache_groups"),
        ({"kv_cache_groups": [WINDOW, {}]}, "invalid-value", "kv_cache_groups[1]"),
        (
            {"kv_cache_groups": [WINDOW | {"sliding_window": 0}]},
            "invalid-value",
            "kv_cache_groups[0].sliding_window",
        ),
        (
            {"kv_cache_groups": [WINDOW | {"block_size": 1 << 26}, WINDOW | {"block_size": (1 << 26) - 1}]},
            "replay-unsupported",
            "kv_cache_groups",
        ),
        (
            {"kv_cache_groups": [WINDOW], "prefix_cache_retention_interval": 24},
            "invalid-value",
            "prefix_cache_retention_interval",
        ),
        ({"kv_cache_groups": [WINDOW] * 9}, "replay-never-fits", "num_blocks"),
        ({"requests": {}}, "invalid-value", "requests"),
        ({"requests": one() * 2}, "invalid-value", "requests"),
        ({"requests": one(prompt=[])}, "invalid-value", "requests[0].prompt"),
        ({"requests": one(prompt=[["a", -1]])}, "invalid-value", "requests[0].prompt"),
        ({"requests": one(answer_tokens=0)}, "invalid-value", "requests[0].answer_tokens"),
        ({"requests": one(arrival_step=9_000_000)}, "replay-too-long", "requests"),
        ({"requests": [{}]}, "invalid-value", "requests[0]"),
    ],
)
def test_unsupported_settings_are_refused_by_name(changes: dict[str, Any], code: str, field: str) -> None:
    answer = case_answer(json.dumps(small(**changes)).encode())
    assert (answer["id"], answer["error"]["code"], answer["error"]["field"]) == ("one", code, field)
    assert answer["error"]["next_step"]


@pytest.mark.parametrize("line", [b"\xff", b"[]", b"{", b"null", b'{"id": 1}', b"[" * 100])
def test_a_broken_line_gets_an_answer(line: bytes) -> None:
    answer = case_answer(line)
    assert answer["id"] is None
    assert answer["error"]["code"]


def test_the_command_answers_each_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = b"\n".join((json.dumps(small()).encode(), b"", b"oops"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert cli.main(["replay", "--steps", "-"]) == 0
    good, bad = map(json.loads, capsys.readouterr().out.splitlines())
    assert good["steps"] == [[2, 1, 0, 20, 0], [2, 1, 0, 1, 0]]
    assert bad["error"]["code"] == "invalid-json"


def test_a_request_alone_is_spared_its_threshold_from_0_31_on() -> None:
    def tokens(version: str) -> list[int]:
        case = small(engine_version=version, long_prefill_token_threshold=8)
        return [row[3] for row in case_answer(json.dumps(case).encode())["steps"]]

    assert tokens("0.30.0") == [8, 8, 4, 1]
    assert tokens("0.31.0") == [20, 1]


def test_accepted_drafts_shorten_an_answer() -> None:
    def rows(accepted: int) -> list[list[int]]:
        drafts = {"method": "mtp", "num_speculative_tokens": 2, "accepted_tokens": [accepted]}
        case = small(requests=one(answer_tokens=7), speculative_config=drafts)
        return [list(row) for row in case_answer(json.dumps(case).encode())["steps"]]

    assert [row[3] for row in rows(2)] == [20, 3, 3]  # one token of the prompt's step, then three of each
    assert [row[3] for row in rows(0)] == [20, 3, 3, 3, 3, 3, 3]


def test_a_draft_model_takes_a_batch_token_for_each_request() -> None:
    def tokens(version: str, method: str) -> list[int]:
        drafts = {"method": method, "num_speculative_tokens": 2, "accepted_tokens": [2]}
        case = small(engine_version=version, requests=one(prompt=[["a", 62]], answer_tokens=1),
                     speculative_config=drafts, max_num_batched_tokens=32)  # fmt: skip
        return [row[3] for row in case_answer(json.dumps(case).encode())["steps"]]

    assert tokens("0.32.0", "eagle") == [32, 30]
    assert tokens("0.32.0", "draft_model") == [31, 31]
    assert tokens("0.27.0", "draft_model") == [28, 28, 6]  # max_num_seqs is 4


def test_an_n_gram_finds_drafts_in_some_steps() -> None:
    drafts = {
        "method": "ngram",
        "num_speculative_tokens": 2,
        "accepted_tokens": [2],
        "proposed_tokens": [0, 2],
    }
    case = small(requests=one(answer_tokens=6), speculative_config=drafts)
    assert [row[3] for row in case_answer(json.dumps(case).encode())["steps"]] == [20, 1, 3, 1]


def test_rules_by_release() -> None:
    assert rules_of(Version("0.22.1")).free_order is FreeOrder.TAIL
    assert rules_of(Version("0.23.0")).free_order is FreeOrder.WINDOWS_UNCACHED_FIRST
    assert not rules_of(Version("0.23.0")).has_watermark
    assert rules_of(Version("0.24.0")).has_watermark
    with pytest.raises(WorkloadError, match=r"0\.11\.2"):
        rules_of(Version("0.11.2"))


REQUESTS = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from(["x", "y", ""]), st.integers(1, 70), st.integers(1, 40)),
    min_size=1, max_size=12,
)  # fmt: skip


Drawn = list[tuple[int, str, int, int]]
"""Arrival, name of a shared prompt or none, tokens of the prompt, tokens of the answer."""


def requests_of(drawn: Drawn) -> tuple[TraceRequest, ...]:
    return tuple(
        TraceRequest(
            id=f"{at}", arrival=arrival, prompt=((name or f"own{at}", tokens),), answer_tokens=answer
        )
        for at, (arrival, name, tokens, answer) in enumerate(sorted(drawn))
    )


def assert_all_given_back(scheduler: Scheduler, requests: tuple[TraceRequest, ...]) -> None:
    """Nothing is taken once all requests are served."""
    for at, request in enumerate(requests):
        scheduler.add(at, request)
    while scheduler.running or scheduler.waiting:
        scheduler.step()
    scheduler.step()
    assert (scheduler.used_blocks, scheduler.context_tokens) == (0, 0)


@settings(deadline=None, max_examples=60)
@given(REQUESTS, st.integers(1, 5), st.lists(st.integers(0, 5), min_size=1, max_size=4), st.booleans())
def test_drafts_leak_nothing(drawn: Drawn, tokens: int, accepted: list[int], is_async: bool) -> None:
    requests = requests_of(drawn)
    given_settings = Settings(
        num_blocks=14, max_num_seqs=5, max_num_batched_tokens=48, max_model_len=112,
        rules=rules_of(Version("0.32.0")), async_scheduling=is_async,
        drafts=Drafts(tokens=tokens, accepted=tuple(min(tokens, number) for number in accepted)),
    )  # fmt: skip
    rows, totals = case_rows(given_settings, requests)
    assert sum(row[4] for row in rows) == totals.preemptions
    assert all(0 <= row[0] <= 13 and row[1] <= 5 and row[3] <= 48 for row in rows)
    assert_all_given_back(scheduler_of(given_settings, requests), requests)


@settings(deadline=None, max_examples=60)
@given(REQUESTS, st.integers(8, 20), st.booleans(), st.booleans(), st.sampled_from([0, 8, 40]))
def test_the_pool_never_leaks_and_every_request_gets_its_answer(
    drawn: Drawn, blocks: int, caching: bool, is_async: bool, threshold: int
) -> None:
    requests = requests_of(drawn)
    given_settings = Settings(
        num_blocks=blocks, max_num_seqs=5, max_num_batched_tokens=48, max_model_len=112,
        rules=rules_of(Version("0.32.0")), enable_prefix_caching=caching, async_scheduling=is_async,
        long_prefill_token_threshold=threshold,
    )  # fmt: skip
    rows, totals = case_rows(given_settings, requests)
    assert sum(row[4] for row in rows) == totals.preemptions
    assert all(0 <= row[0] <= blocks - 1 and row[1] <= 5 and row[3] <= 48 for row in rows)
    if not totals.preemptions and not totals.hit_tokens:
        needed = sum(request.prompt_tokens + request.answer_tokens - 1 for request in requests)
        assert sum(row[3] for row in rows) == needed
    assert_all_given_back(Scheduler(given_settings, Contents(requests, 16)), requests)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(RECORDS), st.lists(st.sampled_from([0, 1, 2, 3, 40, 300]), min_size=12, max_size=12))
def test_skipped_idle_steps_equal_computed_ones(record: dict[str, Any], pauses: list[int]) -> None:
    case = case_of(record)
    arrivals = accumulate(pauses)
    case["requests"] = [
        {**request, "arrival_step": arrival}
        for request, arrival in zip(case["requests"], arrivals, strict=False)
    ]
    data = json.dumps(case).encode()
    skipped = case_answer(data)
    with mock.patch.object(steps, "is_idle", return_value=False):
        assert skipped == case_answer(data)


def test_an_arrival_beyond_the_last_step_is_refused_at_once() -> None:
    request = {"id": "a", "arrival_step": 4_096_000, "prompt": [["a", 20]], "answer_tokens": 9}
    with mock.patch.object(Scheduler, "step", side_effect=AssertionError("a step was made")):
        answer = case_answer(json.dumps({**case_of(RECORDS[0]), "requests": [request]}).encode())
    assert answer["error"]["code"] == "replay-too-long"


FULL = Group(kind=CacheKind.FULL_ATTENTION, block_size=16)
NARROW = Group(kind=CacheKind.SLIDING_WINDOW, block_size=16, window=20)
GROUPS = (
    (NARROW,),
    (FULL, NARROW, NARROW),
    (replace(FULL, block_size=32), replace(NARROW, window=70)),
    (FULL, Group(kind=CacheKind.CHUNKED_LOCAL_ATTENTION, block_size=16, window=32)),
    (FULL, Group(kind=CacheKind.MAMBA, block_size=16)),
)


@settings(deadline=None, max_examples=60)
@given(
    REQUESTS,
    st.sampled_from(GROUPS),
    st.booleans(),
    st.sampled_from([0, None]),
    st.sampled_from(["0.28.0", "0.32.0"]),
)
def test_groups_leak_nothing(
    drawn: Drawn, groups: tuple[Group, ...], is_async: bool, interval: int | None,
    version: str,
) -> None:  # fmt: skip
    requests = requests_of(drawn)
    given_settings = Settings(
        num_blocks=30, max_num_seqs=5, max_num_batched_tokens=48, max_model_len=112, groups=groups,
        rules=rules_of(Version(version)), async_scheduling=is_async, retention_interval=interval,
    )  # fmt: skip
    rows, totals = case_rows(given_settings, requests)
    assert sum(row[4] for row in rows) == totals.preemptions
    assert all(0 <= row[0] <= 29 and row[1] <= 5 and row[3] <= 48 for row in rows)
    assert_all_given_back(scheduler_of(given_settings, requests), requests)


def test_remembered_contents_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_KNOWN", 3)
    shared = [
        {"id": f"{at}", "arrival_step": 0, "prompt": [["a", 80]], "answer_tokens": 1} for at in range(2)
    ]
    case = small(requests=shared, max_model_len=128)
    assert case_answer(json.dumps(case).encode())["error"]["code"] == "replay-too-long"
