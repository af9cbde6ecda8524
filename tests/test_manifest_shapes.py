"""Shapes of files that people deploy, one of each kind, against what a careful reader finds in them."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvcore.contract.deployed import check_files, check_result
from kvcore.manifests.files import Source, read_files

FOLDER = Path(__file__).parent / "data" / "manifests"
EXPECTED: dict[str, list[dict[str, Any]]] = tomllib.loads((FOLDER / "expect.toml").read_text("utf-8"))
NUMBERS = ("gpus", "replicas", "host_memory_gib", "shm_gib")
FIELDS = ("name", "engine_version", "model", "served_name", "accelerator", *NUMBERS)


def answers(name: str) -> list[dict[str, Any]]:
    found = check_files([Source(name, (FOLDER / name).read_bytes())])
    rows: list[dict[str, Any]] = check_result(found)["workloads"]
    return rows


def test_every_file_is_expected() -> None:
    assert {path.name for path in FOLDER.iterdir()} - {"expect.toml"} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_shape(name: str) -> None:
    found, expected = answers(name), EXPECTED[name]
    assert [one["engine"] for one in found] == [one.get("engine", "vllm") for one in expected]
    for got, wanted in zip(found, expected, strict=True):
        assert {field: got[field] for field in FIELDS} == {field: wanted.get(field) for field in FIELDS}
        stated = {key: value for key, value in got["request"].items() if value is not None}
        assert stated == wanted["request"], "nothing is guessed, nothing is lost"
        assert set(wanted.get("undefined", ())) <= set(got["undefined"])


@pytest.mark.parametrize("name", EXPECTED)
def test_a_shape_of_two_files_is_read_as_each_alone(name: str) -> None:
    text = (FOLDER / name).read_text("utf-8")
    other = Source("other.sh", "vllm serve a/b --max-num-seqs 3\n")
    alone = read_files([Source(name, text)]).workloads
    both = read_files([Source(name, text), other]).workloads
    assert both[:-1] == alone


def test_files_of_a_folder_are_all_read_whatever_was_read_before() -> None:
    compose = (
        "services:\n  llm:\n    image: vllm/vllm-openai:v0.30.0\n    command: --model a/b --max-num-seqs {}\n"
    )
    values = (FOLDER / "07-llama-swap.yaml").read_text("utf-8")
    for count in range(1, 40):
        sources = [Source(f"{at}.yaml", compose.format(at + 1)) for at in range(count)]
        found = read_files([*sources, Source("last.yaml", values)]).workloads
        assert len(found) == count + 2
