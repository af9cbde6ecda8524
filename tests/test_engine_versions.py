"""Versions as logs print them, and switches by version as the releases' own sources show them."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from kvcore.base.errors import CatalogueError, ScenarioError
from kvcore.base.units import GIB
from kvcore.engines.registry import find_engine
from kvcore.engines.vllm.versions import (
    VLLM,
    switches_of,
    vllm_releases,
)
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request

RAW: dict[str, Any] = dict(VLLM.raw())


@pytest.mark.parametrize(
    ("printed", "used", "is_exact"),
    [
        ("0.19.0", "0.19.0", True),
        ("v0.19.0", "0.19.0", True),
        ("0.8.5.post1", "0.8.5.post1", True),
        ("0.11.0+torch271", "0.11.0", True),
        ("0.11.2.dev278+g55c6a5c", "0.11.1", False),
        ("0.20.0rc1", "0.19.1", False),
        ("0.10.1.2.dev0+g1da94e673.d20250903", "0.10.1.1", False),
        # Development builds: the releases that main had behind it at that count of commits.
        ("0.26.1rc1.dev77+g6f91edf96", "0.26.0", False),
        ("0.26.1rc1.dev668+g3ee2df303", "0.27.0", False),
        ("0.26.1rc1.dev1108+gda329cc30", "0.28.0", False),
        ("0.11.2.dev690+g67475a6e8.d20251209", "0.12.0", False),
        ("0.13.0rc2.dev112+g763963aa7.d20251213", "0.13.0", False),
        ("0.19.2rc1.dev134+gfe9c3d6c5", "0.19.1", False),
        ("0.41.0", "0.33.0", False),
    ],
)
def test_the_latest_known_release_not_above_stands_for_a_version(
    printed: str, used: str, is_exact: bool
) -> None:
    release = find_engine("vllm").release(printed)
    assert str(release.version) == used
    assert [notice.code for notice in release.notices] == (
        [] if is_exact else ["engine-version-approximated"]
    )


def test_the_newest_release_is_taken_when_none_is_named() -> None:
    assert find_engine("vllm").release(None).version == Version("0.33.0")
    assert find_engine("vllm-ascend").release(None).version == Version("0.23.0")


@pytest.mark.parametrize(
    ("engine", "printed", "host"),
    [
        ("vllm-ascend", "0.11.0rc1.dev209", "0.11.0"),
        ("vllm-ascend", "0.7.3.post1", "0.7.3"),
        ("vllm-ascend", "0.14.0rc2", "0.14.0"),
        ("vllm-mindspore", "0.3.0", "0.8.3"),
        ("vllm-mindspore", "0.9.1", "0.9.1"),
    ],
)
def test_plugins_are_followed_to_the_vllm_they_run_on(engine: str, printed: str, host: str) -> None:
    assert str(find_engine(engine).release(printed).version) == host


def test_unreadable_and_ancient_versions_are_refused() -> None:
    with pytest.raises(ScenarioError) as caught:
        find_engine("vllm").release("vx.x.x")
    assert (caught.value.code, caught.value.field) == ("invalid-value", "engine_version")
    with pytest.raises(ScenarioError) as caught:
        find_engine("vllm").release("0.5.4")
    assert caught.value.code == "engine-version-too-old"


@given(st.sampled_from(vllm_releases()[2:]), st.sampled_from(["", ".dev3", "rc1"]))
def test_no_release_above_the_asked_one_is_used(version: Version, suffix: str) -> None:
    asked = f"{version.base_version}{suffix}"
    assert find_engine("vllm").release(asked).version <= Version(asked)


@pytest.mark.parametrize(
    ("version", "switch", "value"),
    [
        ("0.19.1", "gpu_memory_utilization", 0.9),
        ("0.20.2", "gpu_memory_utilization", 0.92),
        ("0.9.0.1", "budget", "absolute"),
        ("0.9.2", "budget", "parts"),
        ("0.26.0", "budget", "parts"),
        ("0.27.1", "budget", "consumed"),
        ("0.10.2", "communication_in_budget", True),
        ("0.11.0", "communication_in_budget", False),
        ("0.18.1", "graph_estimate", "when-asked"),
        ("0.20.2", "graph_estimate", "counted"),
        ("0.13.0", "async_scheduling", False),
        ("0.14.1", "async_scheduling", True),
        ("0.26.0", "hybrid_prefix_caching", "off"),
        ("0.28.0", "hybrid_prefix_caching", "on"),
        ("0.14.1", "mamba_cache_mode", "all-or-none"),
        ("0.21.0", "mamba_cache_mode", "all-unless-speculative"),
        ("0.27.1", "mamba_cache_mode", "all-or-align"),
        ("0.28.0", "mamba_cache_mode", "align"),
        ("0.28.0", "model_runner_v2", "dense"),
        ("0.29.0", "model_runner_v2", "all"),
        ("0.10.2", "v1_engine", "default"),
        ("0.11.0", "v1_engine", "only"),
    ],
)
def test_switches_change_where_the_sources_do(version: str, switch: str, value: object) -> None:
    assert getattr(switches_of(Version(version)), switch) == value


def test_unknown_missing_and_mistyped_switches_are_refused() -> None:
    tables = RAW["switches"]
    without_source = copy.deepcopy(tables)
    del without_source["budget"]["source"]
    not_a_number = copy.deepcopy(tables)
    not_a_number["gpu_memory_utilization"]["0.20.0"] = "high"
    for broken in (
        {**tables, "swap_space": {"source": "x", "0.0": 4}},
        {name: table for name, table in tables.items() if name != "budget"},
        without_source,
        not_a_number,
    ):
        with pytest.raises(CatalogueError):
            VLLM.read({**RAW, "switches": broken})


@pytest.mark.parametrize(
    "change",
    [{"source": None}, {"commits": None}, {"commits": "many"}, {"more": 1}],
    ids=["no-source", "no-count", "not-a-count", "unknown-key"],
)
def test_other_than_counts_of_development_builds_are_refused(change: dict[str, object]) -> None:
    row = {"source": "x", "series": "0.26.1rc1", "commits": 668, "behind": "0.27.0"}
    assert len(VLLM.read({**RAW, "development": [row]}).development) == 1
    changed = {key: value for key, value in {**row, **change}.items() if value is not None}
    with pytest.raises(CatalogueError):
        VLLM.read({**RAW, "development": [changed]})


def test_unknown_keys_of_backends_are_refused() -> None:
    row = {"source": "x", "backend": "FLASH_ATTN", "block_size": 16}
    assert VLLM.read({**RAW, "backends": [row]}).backends[0].attention == "plain"
    with pytest.raises(CatalogueError):
        VLLM.read({**RAW, "backends": [{**row, "blocksize": 16}]})
    with pytest.raises(CatalogueError):
        VLLM.read({**RAW, "backends": [{"source": "x", "backend": "FLASH_ATTN"}]})


def test_the_first_engine_without_a_version_is_the_last_release_that_has_it() -> None:
    """vLLM 0.11.0 removed it; a Qwen2.5-1.5B start of that engine printed 2.89 GiB of weights."""
    request = {"model": "Qwen/Qwen2.5-1.5B-Instruct", "accelerator": "T4-16GB", "env": {"VLLM_USE_V1": "0"}}
    planned = plan(scenario_from_request(request))
    assert planned.resolved.version == Version("0.10.2")
    assert planned.resolved.is_v0
    assert "v0-release-assumed" in [notice.code for notice in planned.notices]
    assert planned.weights.total / GIB == pytest.approx(2.89, rel=0.005)
    named = plan(scenario_from_request({**request, "engine_version": "0.19.0"}))
    assert named.resolved.version == Version("0.19.0")
