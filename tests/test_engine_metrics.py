"""The metrics of a version: names from the engine's sources, and the file's strictness."""

from __future__ import annotations

import pytest
from packaging.version import Version

from kvcore.engine.vllm.metrics import BENCHMARK, METRICS, MetricKind, benchmark_program, exported_metrics
from kvcore.engine.vllm.versions import vllm_releases
from kvcore.errors import CatalogueError

ROLES = {"running", "waiting", "kv_cache_usage", "preemptions", "request_latency", "first_token", "output_token",
         "prompt_tokens", "generation_tokens"}  # fmt: skip
ROW = {"role": "running", "name": "vllm:n", "kind": "gauge", "source": "s"}


@pytest.mark.parametrize(
    ("version", "is_v0", "role", "name"),
    [
        # vllm/v1/metrics/loggers.py (0.33.0), lines 620, 739, 961, 941
        ("0.33.0", False, "kv_cache_usage", "vllm:kv_cache_usage_perc"),
        ("0.33.0", False, "preemptions", "vllm:num_preemptions_total"),
        ("0.33.0", False, "request_latency", "vllm:e2e_request_latency_seconds"),
        ("0.33.0", False, "output_token", "vllm:inter_token_latency_seconds"),
        # its comment of 0.11.0: renamed in 0.9.2; the V0 engine never renamed it
        ("0.9.2", False, "kv_cache_usage", "vllm:kv_cache_usage_perc"),
        ("0.9.1", False, "kv_cache_usage", "vllm:gpu_cache_usage_perc"),
        ("0.10.2", True, "kv_cache_usage", "vllm:gpu_cache_usage_perc"),
        ("0.8.5", True, "output_token", "vllm:time_per_output_token_seconds"),
    ],
)
def test_names(version: str, is_v0: bool, role: str, name: str) -> None:
    assert exported_metrics(Version(version), is_v0)[role].name == name


def test_prefix_cache_counters_came_with_the_new_names() -> None:
    assert "prefix_cache_hits" not in exported_metrics(Version("0.9.1"), False)
    assert (
        exported_metrics(Version("0.11.0"), False)["prefix_cache_hits"].name == "vllm:prefix_cache_hits_total"
    )


def test_every_release_can_be_watched() -> None:
    for version in vllm_releases():
        engines = (True, False) if version < Version("0.11.0") else (False,)
        for is_v0 in engines:
            assert set(exported_metrics(version, is_v0)) >= ROLES, (version, is_v0)


def test_series_of_a_histogram_have_its_suffixes() -> None:
    latency = exported_metrics(Version("0.33.0"), False)["request_latency"]
    assert latency.kind is MetricKind.HISTOGRAM
    assert latency.series == tuple(
        f"vllm:e2e_request_latency_seconds_{s}" for s in ("bucket", "sum", "count")
    )


def test_counters_end_in_total() -> None:
    assert all(m.name.endswith("_total") == (m.kind is MetricKind.COUNTER) for m in METRICS.load().metrics)


@pytest.mark.parametrize(
    "rows",
    [
        1, [{"role": 1}], [ROW | {"more": 1}], [ROW | {"kind": "summary"}], [ROW | {"since": "x"}],
        [ROW | {"engine": "v2"}], [ROW | {"role": "walking"}],
    ],
)  # fmt: skip
def test_any_other_shape_is_refused(rows: object) -> None:
    assert len(METRICS.read({"reviewed": "0.33.0", "metrics": [ROW]}).metrics) == 1
    with pytest.raises(CatalogueError) as caught:
        METRICS.read({"reviewed": "0.33.0", "metrics": rows})
    assert caught.value.code == "invalid-catalogue-entry"


PROGRAM = {"words": ["x"], "flags": ["y"], "source": "s"}


@pytest.mark.parametrize("version", ["0.11.0", "0.19.0", "0.28.0", "0.33.0"])
def test_the_command_line_has_it_from_0_11_on(version: str) -> None:
    assert benchmark_program(Version(version)).words == ("vllm", "bench", "serve")


def test_before_it_was_a_script_of_the_repository() -> None:
    assert benchmark_program(Version("0.8.5")).words == ("python", "benchmarks/benchmark_serving.py")


@pytest.mark.parametrize(
    "raw",
    [
        {"programs": [PROGRAM | {"more": 1}]}, {"programs": [PROGRAM | {"since": "x"}]}, {"programs": 1},
        {"programs": [{"source": "s"}]},
    ],
)  # fmt: skip
def test_any_other_program_is_refused(raw: dict[str, object]) -> None:
    assert BENCHMARK.read({"reviewed": "0.33.0", "programs": [PROGRAM]}).programs[0].words == ("x",)
    with pytest.raises(CatalogueError):
        BENCHMARK.read({"reviewed": "0.33.0", **raw})
