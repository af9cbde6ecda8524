"""The load generator of a version."""

import pytest
from packaging.version import Version

from kvcore.engine.vllm.benchmark import BENCHMARK, benchmark_program
from kvcore.errors import CatalogueError

ROW = {"words": ["x"], "flags": ["y"], "source": "s"}


@pytest.mark.parametrize("version", ["0.11.0", "0.19.0", "0.28.0", "0.33.0"])
def test_the_command_line_has_it_from_0_11_on(version: str) -> None:
    assert benchmark_program(Version(version)).words == ("vllm", "bench", "serve")


def test_before_it_was_a_script_of_the_repository() -> None:
    assert benchmark_program(Version("0.8.5")).words == ("python", "benchmarks/benchmark_serving.py")


@pytest.mark.parametrize(
    "raw",
    [
        {"programs": [ROW | {"more": 1}]}, {"programs": [ROW | {"since": "x"}]}, {"programs": 1},
        {"programs": [{"source": "s"}]},
    ],
)  # fmt: skip
def test_any_other_shape_is_refused(raw: dict[str, object]) -> None:
    assert BENCHMARK.read({"reviewed": "0.33.0", "programs": [ROW]}).programs[0].words == ("x",)
    with pytest.raises(CatalogueError):
        BENCHMARK.read({"reviewed": "0.33.0", **raw})
