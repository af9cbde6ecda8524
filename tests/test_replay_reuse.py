"""Prefix hits by cache size: by hand, against a cache that is simulated, and against the replay with eviction."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from kvcore.base.words import Language, words
from kvcore.charts.replay_figures import reuse_chart, reuse_report, reuse_sentence, reuse_table
from kvcore.replay import reuse
from kvcore.replay.clock import UserClock
from kvcore.replay.reuse import reuse_of
from kvcore.replay.series import replayed
from kvcore.replay.settings import Settings, rules_of
from kvcore.replay.trace import Contents, TraceRequest
from tests.traffic_mixes import interleaved

BLOCK = 16
RATES = UserClock(prefill_tokens_per_second=1e6, decode_tokens_per_second=1e4)


def spaced(requests: list[TraceRequest]) -> list[TraceRequest]:
    """One after the other: each has the engine for itself."""
    return [
        TraceRequest(id=one.id, arrival=100.0 * at, prompt=one.prompt, answer_tokens=one.answer_tokens)
        for at, one in enumerate(requests)
    ]


def documents(count: int, asked: int, tokens: int) -> list[TraceRequest]:
    """Questions about `count` documents in turn."""
    return [
        TraceRequest(id=f"{at}", arrival=0, answer_tokens=20,
                     prompt=((f"document {at * 7 % count}", tokens), (f"question {at}", 30)))
        for at in range(asked)
    ]  # fmt: skip


def tools(agents: int, turns: int) -> list[TraceRequest]:
    """Agents that pause between their turns, with a system prompt in common; answers are carried on."""
    found = []
    for turn in range(turns):
        for agent in range(agents):
            pieces = [("system", 320)]
            for past in range(turn):
                pieces += [(f"result {agent}.{past}", 90), (f"answer:{agent}.{past}", 40)]
            pieces.append((f"result {agent}.{turn}", 90))
            found.append(
                TraceRequest(id=f"{agent}.{turn}", arrival=0, prompt=tuple(pieces), answer_tokens=40)
            )
    return found


TRACES = {
    "chat": lambda: interleaved("chat", 4000, 0)[:400],
    "agents": lambda: interleaved("agents", 4000, 0)[:250],
    "documents": lambda: documents(12, 150, 800),
    "many documents": lambda: documents(60, 200, 400),
    "tools": lambda: tools(12, 10),
    "few tools": lambda: tools(3, 30),
}


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("share", [0.1, 0.3, 0.7, 1.5])
def test_the_replay_hits_as_often(name: str, share: float) -> None:
    requests = spaced(TRACES[name]())
    found = reuse_of(requests, BLOCK)
    longest = max((one.prompt_tokens + one.answer_tokens) // BLOCK + 2 for one in requests)
    blocks = max(longest, round(share * found.distances[-1]))
    engine = Settings(
        num_blocks=blocks + 1, block_size=BLOCK, max_num_seqs=4, max_num_batched_tokens=32_768,
        max_model_len=65_536, rules=rules_of(Version("0.32.0")), async_scheduling=False,
    )  # fmt: skip
    assert found.hit_rate(blocks) == pytest.approx(replayed(requests, engine, RATES).hit_rate, abs=0.02)


def test_by_hand() -> None:
    """A, B, A with two blocks each: both of A's are found with room for four, its first one with room for three."""

    def one(at: int, name: str) -> TraceRequest:
        return TraceRequest(id=f"{at}", arrival=at, prompt=((name, 33),), answer_tokens=1)

    found = reuse_of([one(0, "a"), one(1, "b"), one(2, "a")], 16)
    assert [found.hit_rate(blocks) * 99 for blocks in (2, 3, 4)] == pytest.approx([0, 16, 32])
    assert found.most == found.hit_rate(4)
    assert found.knee_blocks() == 4


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(1, 12))
def test_a_simulated_cache_finds_the_same(names: list[int], size: int) -> None:
    """One block each, and one token more: a plain LRU cache of that size."""
    requests = [
        TraceRequest(id=f"{at}", arrival=at, prompt=((f"n{name}", 17),), answer_tokens=1)
        for at, name in enumerate(names)
    ]
    contents = Contents(requests, 16)
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for request in requests:
        (block,) = contents.of(request, 1)
        hits += block in cache
        cache[block] = None
        cache.move_to_end(block)
        if len(cache) > size:
            cache.popitem(last=False)
    assert reuse_of(requests, 16).hit_rate(size) == pytest.approx(hits * 16 / (17 * len(names)))


def test_a_sampled_trace_is_close_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = interleaved("chat", 4000, 0)
    whole = reuse_of(requests, BLOCK)
    monkeypatch.setattr(reuse, "MAX_ACCESSES", 60_000)
    sample = reuse_of(requests, BLOCK)
    assert sample.sampled < 1 == whole.sampled
    for blocks in (2000, 10_000, 40_000):
        assert sample.hit_rate(blocks) == pytest.approx(whole.hit_rate(blocks), abs=0.03)


def test_the_chart_and_the_sentence() -> None:
    requests = spaced(documents(12, 60, 800))
    found = reuse_of(requests, BLOCK)
    engine = Settings(num_blocks=101, max_num_seqs=4, max_num_batched_tokens=8192, max_model_len=2048,
                      rules=rules_of(Version("0.32.0")))  # fmt: skip
    english = words(Language.ENGLISH)
    assert "--kv-offloading-size" not in reuse_sentence(found, engine, 0.01, english)
    assert "--kv-offloading-size 93:" in reuse_sentence(found, engine, 0.01, english, 93.0)
    knee = found.knee_blocks()
    assert knee > 100
    chart = reuse_chart(found, engine, 0.01, english)
    assert chart["data"][1]["x"] == [knee * 0.01]
    report = reuse_report(found, engine, 0.01)
    assert report["now"] == {"blocks": 100, "hit_rate": pytest.approx(found.hit_rate(100), abs=1e-4)}
    assert "at the knee" in reuse_table(report)


def test_nothing_is_shared() -> None:
    found = reuse_of([TraceRequest(id="a", arrival=0, prompt=(("a", 100),), answer_tokens=5)], 16)
    assert (found.curve(), found.knee_blocks(), found.most) == ((), 0, 0)
