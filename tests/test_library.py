"""The public face: `import kvcore`, its members, its errors, what it imports, and the examples of docs/library.md."""

import concurrent.futures
import doctest
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kvcore
from kvcore import library
from kvcore.wire.request import scenario_from_request

ROOT = Path(__file__).parents[1]
CARD = "H100-80GB"
DEPLOYMENT = {"model": "Qwen/Qwen3-32B", "accelerator": CARD, "tensor_parallel_size": 2}
MEMBERS = {
    "CatalogueError", "DefectError", "EngineRefusalError", "HubError", "KvPlannerError", "LogError", "ManifestError",
    "ModelError", "Plan", "Scenario", "ScenarioError", "Verdict", "WorkloadError", "catalogue", "load_scenario", "plan",
    "read_log", "sweep",
}  # fmt: skip


def modules_after(statement: str) -> set[str]:
    """All modules that a fresh Python has once `statement` is done."""
    script = f"{statement}\nimport sys\nprint('\\n'.join(sorted(sys.modules)), file=sys.stderr)"
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, encoding="utf-8"
    )
    return set(ran.stderr.split())


def test_the_members_are_these_and_each_is_there() -> None:
    assert set(kvcore.__all__) == MEMBERS
    assert set(dir(kvcore)) >= MEMBERS
    for name in MEMBERS:
        assert getattr(kvcore, name).__doc__, name
        assert f"`{name}" in (kvcore.__doc__ or "") or name.endswith("Error"), name
    with pytest.raises(AttributeError, match="no attribute 'pictures'"):
        kvcore.pictures  # type: ignore[attr-defined]  # noqa: B018


def test_every_error_is_a_member() -> None:
    assert {kind.__name__ for kind in kvcore.KvPlannerError.__subclasses__()} <= MEMBERS


def test_importing_the_package_imports_no_module_of_it() -> None:
    assert {name for name in modules_after("import kvcore") if name.startswith("kvcore.")} == set()


def test_asking_for_a_name_imports_its_module_alone() -> None:
    found = modules_after("import kvcore; kvcore.KvPlannerError")
    assert "kvcore.base.errors" in found
    assert not {"kvcore.planning", "kvcore.catalogue", "kvcore.library"} & found


def test_keywords_a_mapping_and_a_file_plan_the_same(tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text(json.dumps(DEPLOYMENT))
    planned = kvcore.plan(model="Qwen/Qwen3-32B", accelerator=CARD, tensor_parallel_size=2)
    expected = scenario_from_request(DEPLOYMENT)
    assert planned.scenario == kvcore.load_scenario(DEPLOYMENT) == kvcore.load_scenario(file) == expected
    assert kvcore.plan(expected) == planned
    changed = msgspec.structs.replace(expected, max_model_len=4096)
    assert kvcore.plan(changed).resolved.max_model_len == 4096


def test_a_scenario_takes_no_flags() -> None:
    with pytest.raises(TypeError, match=r"msgspec\.structs\.replace"):
        kvcore.plan(kvcore.load_scenario(DEPLOYMENT), max_model_len=4096)  # type: ignore[call-overload]


def nested(depth: int) -> list[Any]:
    deep: list[Any] = []
    for _ in range(depth):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    ("request_", "code", "field"),
    [
        ({}, "missing-field", "model"),
        ({**DEPLOYMENT, "max_modell_len": 1}, "unknown-field", "max_modell_len"),
        ({**DEPLOYMENT, "max_model_len": 8192.5}, "invalid-value", "max_model_len"),
        ({**DEPLOYMENT, "gpu_memory_utilization": math.nan}, "invalid-value", "gpu_memory_utilization"),
        ({**DEPLOYMENT, "env": {"A": object()}}, "invalid-value", "env"),
        ({**DEPLOYMENT, "accelerator": Path("H100")}, "invalid-value", "accelerator"),
        ({**DEPLOYMENT, "env": nested(100)}, "input-too-deep", ""),
        ({**DEPLOYMENT, "env": nested(100_000)}, "invalid-value", "env"),
        ({"model": "Qwen/Qwen3-32B", "accelerator": "H100-81GB-none"}, "unknown-accelerator", "accelerator"),
    ],
)
def test_every_fault_is_a_coded_error(request_: dict[str, Any], code: str, field: str) -> None:
    with pytest.raises(kvcore.KvPlannerError) as raised:
        kvcore.plan(**request_)
    assert (raised.value.code, raised.value.field) == (code, field)
    assert raised.value.next_step


def test_a_sweep_equals_plans() -> None:
    [swept] = kvcore.sweep(
        models=["Qwen/Qwen3-32B"],
        accelerators=[CARD, "A100-80GB"],
        tensor_parallel_sizes=(1, 2),
        max_model_len=8192,
    )
    assert [(cell.accelerator, cell.tensor_parallel_size) for cell in swept.cells] == [
        (card, size) for card in (CARD, "A100-80GB") for size in (1, 2)
    ]
    for cell in swept.cells:
        planned = kvcore.plan(
            model="Qwen/Qwen3-32B",
            accelerator=cell.accelerator,
            tensor_parallel_size=cell.tensor_parallel_size,
            max_model_len=8192,
        )
        assert cell.verdict is planned.verdict
        assert planned.cache is not None
        assert cell.tokens == planned.cache.tokens


def test_processes_share_out_a_large_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {
        "models": ["Qwen/Qwen3-32B", "openai/gpt-oss-20b", "Qwen/Qwen3-8B"],
        "accelerators": [CARD, "Ascend-910B3-64GB"],
        "max_model_len": 65536,
    }
    alone = list(kvcore.sweep(**asked))
    monkeypatch.setattr(library, "LEAST_CELLS", 1)
    begun: list[int] = []
    real = concurrent.futures.ProcessPoolExecutor

    def pool(workers: int, *rest: Any, **named: Any) -> Any:
        begun.append(workers)
        return real(workers, *rest, **named)

    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", pool)
    assert list(library.sweep_side_by_side(2, **asked)) == alone
    assert begun == [2]
    # The first model alone is planned as asked; the others keep to what they allow, whichever process has them.
    assert [swept.max_model_len for swept in alone] == [65536, 65536, 40960]


@pytest.mark.parametrize("field", ["model", "accelerator", "tensor_parallel_size", "measured"])
def test_a_sweep_refuses_fields_that_it_varies(field: str) -> None:
    with pytest.raises(kvcore.ScenarioError) as raised:
        kvcore.sweep(models=["Qwen/Qwen3-32B"], **{field: 1})
    assert (raised.value.code, raised.value.field) == ("unknown-field", field)


@pytest.mark.parametrize(
    "sizes", [(), [0], [-1], [1025], ["a"], "12", [True], [1.0], [[1]], list(range(1, 18)), None, 4]
)
def test_sizes_of_a_sweep_are_whole_numbers(sizes: Any) -> None:
    with pytest.raises(kvcore.ScenarioError) as raised:
        kvcore.sweep(models=["Qwen/Qwen3-32B"], accelerators=[CARD], tensor_parallel_sizes=sizes)
    assert (raised.value.code, raised.value.field) == ("invalid-value", "tensor_parallel_sizes")


@pytest.mark.parametrize("field", ["models", "accelerators"])
@pytest.mark.parametrize("names", [[5], [None], CARD, 5, None, {CARD: 1}, [CARD] * 513])
def test_names_of_a_sweep_are_texts(field: str, names: Any) -> None:
    with pytest.raises(kvcore.ScenarioError) as raised:
        kvcore.sweep(**{"models": ["Qwen/Qwen3-32B"], "accelerators": [CARD], field: names})
    assert (raised.value.code, raised.value.field) == ("invalid-value", field)
    assert raised.value.next_step


def test_names_and_sizes_of_a_sweep_count_once_and_may_come_one_by_one() -> None:
    [swept] = kvcore.sweep(
        models=iter(["Qwen/Qwen3-32B"] * 2),
        accelerators=iter([CARD, CARD]),
        tensor_parallel_sizes=range(1, 2),
    )
    assert [(cell.accelerator, cell.tensor_parallel_size) for cell in swept.cells] == [(CARD, 1)]


@pytest.mark.parametrize("processes", [-1, 1.0, True, "2", None])
def test_processes_are_a_whole_number(processes: Any) -> None:
    with pytest.raises(kvcore.ScenarioError) as raised:
        library.sweep_side_by_side(processes, models=["Qwen/Qwen3-32B"], accelerators=[CARD])
    assert (raised.value.code, raised.value.field) == ("invalid-value", "processes")


def test_a_coded_error_of_another_process_is_itself() -> None:
    asked = library.asked_sweep(models=["Qwen/Qwen3-32B"], accelerators=[CARD], tensor_parallel_sizes=(1,))
    unknown = msgspec.structs.replace(asked, models=["Qwen/Qwen3-32B", "nobody/knows"])
    with pytest.raises(kvcore.CatalogueError) as raised:
        list(unknown.shared_out(1))
    assert (raised.value.code, raised.value.params["value"]) == ("unknown-model", "nobody/knows")


def test_processes_are_as_many_as_this_one_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7}, raising=False)
    monkeypatch.setattr(os, "process_cpu_count", lambda: 4, raising=False)
    assert library.cpus() == 4
    monkeypatch.delattr(os, "process_cpu_count")
    assert library.cpus() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert library.cpus() == 64


def test_the_examples_of_the_documentation_are_true() -> None:
    found = doctest.testfile(str(ROOT / "docs" / "library.md"), module_relative=False, encoding="utf-8")
    assert found.attempted >= 15
    assert found.failed == 0
