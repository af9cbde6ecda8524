"""What a tier of each size buys of a trace."""

from __future__ import annotations

import pytest

from kvcore.base.units import GIB
from kvcore.charts.tier_rows import knee_gib, tier_at, tier_rows, tiers_report, tiers_table
from kvcore.planning import Plan, plan
from kvcore.replay.reuse import reuse_of
from kvcore.replay.settings import settings_of
from kvcore.replay.trace import TraceRequest
from kvcore.wire.request import scenario_from_request


def planned(version: str = "0.33.0") -> Plan:
    asked = {
        "model": "Qwen/Qwen3-8B",
        "accelerator": "H100-80GB",
        "engine_version": version,
        "max_model_len": 32_768,
    }
    return plan(scenario_from_request(asked))


def documents(often: int, seldom: int, rounds: int) -> list[TraceRequest]:
    """Of 16,000 tokens each: some come in every round, others once in two."""
    names = [f"often{at}" for at in range(often)]
    return [
        TraceRequest(id=f"{turn}-{name}", arrival=turn, prompt=((name, 16_000), (f"{turn}{name}", 8)), answer_tokens=8)
        for turn in range(rounds)
        for name in (*names, *(f"seldom{turn % 2}-{at}" for at in range(seldom)))
    ]  # fmt: skip


def test_a_tier_finds_what_a_cache_of_its_size_finds() -> None:
    """28 documents of 16,000 tokens in each round, 100 more in every second: the pool of 391,712 tokens has neither."""
    deployed = planned()
    pool = settings_of(deployed).usable_blocks
    rows = tier_rows(deployed, reuse_of(documents(28, 100, 8), 16), pool)
    assert [row.asked_gib for row in rows] == sorted(row.asked_gib for row in rows)
    for row in rows:
        # Between two rounds all 128 documents of the first are used, and 228 between two of the others.
        reach = row.tokens / 16_008
        found = 0 if reach < 127 else 28 * 7 if reach < 227 else 28 * 7 + 100 * 6
        assert row.hit_rate == pytest.approx(found * 16_000 / (8 * 128 * 16_008), rel=1e-6)
        assert row.spared_tokens == found * 16_000
        assert row.taken_bytes <= row.asked_gib * GIB
    assert rows[0].spared_tokens == 0 < rows[-1].spared_tokens
    (knee,) = [row for row in rows if row.is_knee]
    assert knee_gib(rows) == knee.asked_gib
    assert knee.hit_rate == rows[-1].hit_rate


def test_the_time_to_compute_what_is_spared() -> None:
    """2 × 6.95 billion weights of the matrices a token, 989 TFLOPS."""
    deployed = planned()
    rows = tier_rows(deployed, reuse_of(documents(30, 0, 3), 16), settings_of(deployed).usable_blocks)
    assert rows[-1].spared_tokens == 30 * 2 * 16_000
    assert rows[-1].spared_seconds == pytest.approx(960_000 * 2 * 6.946e9 / 989e12, rel=1e-3)


def test_no_row_where_the_pool_finds_all_or_the_release_starts_with_no_tier() -> None:
    small = reuse_of(documents(3, 0, 3), 16)
    large = reuse_of(documents(30, 0, 3), 16)
    assert tier_rows(planned(), small, settings_of(planned()).usable_blocks) == ()
    assert tier_rows(planned("0.13.0"), large, 1000) == ()
    assert tier_at(planned("0.13.0"), 64) is None
    assert tier_rows(planned(), large, 1000)


def test_a_tier_of_latent_vectors_holds_more_where_one_copy_is_kept() -> None:
    """On one machine of eight cards, since 0.27."""

    def tokens(version: str) -> int:
        said = {"model": "deepseek-ai/DeepSeek-V3", "accelerator": "H200-141GB", "max_model_len": 32_768}
        asked = {**said, "engine_version": version, "tensor_parallel_size": 8}
        found = tier_at(plan(scenario_from_request(asked)), 64)
        assert found is not None
        return found[0].tokens

    assert tokens("0.33.0") == pytest.approx(8 * tokens("0.26.0"), rel=5e-3)


def test_rows_as_json_and_for_a_terminal() -> None:
    rows = tier_rows(planned(), reuse_of(documents(30, 0, 3), 16), 1000)
    assert tiers_report(rows)[-1]["spared_tokens"] == 960_000
    assert sum(one["is_knee"] for one in tiers_report(rows)) == 1
    assert tiers_table(rows).count("knee") == 1
