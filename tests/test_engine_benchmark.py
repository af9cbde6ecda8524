"""The load generator of a version."""

import pytest
from packaging.version import Version

from kvcore.engine.benchmark import benchmark_program, read_programs
from kvcore.errors import CatalogueError

ROW = '[[programs]]\nsince = "0.0"\nwords = ["x"]\nflags = ["y"]\nsource = "s"\n'


@pytest.mark.parametrize("version", ["0.11.0", "0.19.0", "0.28.0", "0.33.0"])
def test_the_command_line_has_it_from_0_11_on(version: str) -> None:
    assert benchmark_program(Version(version)).words == ("vllm", "bench", "serve")


def test_before_it_was_a_script_of_the_repository() -> None:
    assert benchmark_program(Version("0.8.5")).words == ("python", "benchmarks/benchmark_serving.py")


@pytest.mark.parametrize("text", [ROW + "more = 1\n", ROW.replace('"0.0"', '"x"'), "programs = 1", "="])
def test_any_other_shape_is_refused(text: str) -> None:
    with pytest.raises(CatalogueError):
        read_programs(text)
