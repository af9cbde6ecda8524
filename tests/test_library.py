"""The public face: `import kvcore`, its members, its errors, what it imports, and the examples of docs/library.md."""

import concurrent.futures
import copy
import doctest
import json
import math
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kvcore
from kvcore import library
from kvcore.flags import fields_of
from kvcore.wire.request import scenario_from_request
from tools import typed_flags

ROOT = Path(__file__).parents[1]
CARD = "H100-80GB"
DEPLOYMENT = {"model": "Qwen/Qwen3-32B", "accelerator": CARD, "tensor_parallel_size": 2}
MEMBERS = {
    "CatalogueError", "DefectError", "EngineRefusalError", "HubError", "KvPlannerError", "LogError", "ManifestError",
    "ModelError", "Plan", "Request", "Scenario", "ScenarioError", "Verdict", "WorkloadError", "catalogue", "check",
    "compare", "compare_releases", "curve", "fewest_gpus", "fixes", "launch_files", "load_scenario", "plan", "read_log",
    "replace", "request_of_log", "result", "sweep",
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


def test_flags_change_a_scenario_by_the_checks_of_a_request() -> None:
    """What `replace` gives is what the request with that flag asks for, whatever the flag."""
    start = kvcore.load_scenario(DEPLOYMENT)
    for flags in (
        {"max_model_len": 4096}, {"tensor_parallel_size": 4}, {"kv_cache_dtype": "fp8", "max_num_seqs": 8},
        {"accelerator": "Ascend-910B3-64GB"}, {"engine_version": "0.11.0"}, {"surroundings": {"link": "pcie"}},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, {"env": {"VLLM_USE_V1": "1"}},
        {"measured": {"weights_gib": 30.0}}, {"model": "Qwen/Qwen3-8B"}, {"hf_overrides": {"num_hidden_layers": 8}},
        {"cudagraph_mode": "NONE", "enforce_eager": True}, {"wanted": 40},
    ):  # fmt: skip
        asked: dict[str, Any] = {**DEPLOYMENT, **flags}
        changed = kvcore.replace(start, **flags)
        if "hf_overrides" not in flags:  # which changes the config as well
            assert changed == kvcore.load_scenario(asked), flags
        assert kvcore.plan(start, **flags) == kvcore.plan(changed)
        back = {name: DEPLOYMENT.get(name) for name in flags}
        if not {"accelerator", "hf_overrides"} & flags.keys():
            assert kvcore.replace(changed, **back) == start, flags


@pytest.mark.parametrize(
    ("flags", "code", "field"),
    [
        ({"max_modell_len": 1}, "unknown-field", "max_modell_len"),
        ({"tensor_parallel_size": 0}, "invalid-value", "tensor_parallel_size"),
        ({"accelerator": "H100-81GB-none"}, "unknown-accelerator", "accelerator"),
        ({"engine_version": "no"}, "invalid-value", "engine_version"),
        ({"env": {"A": object()}}, "invalid-value", "env"),
    ],
)
def test_a_change_that_cannot_be_is_a_coded_error(flags: dict[str, Any], code: str, field: str) -> None:
    with pytest.raises(kvcore.KvPlannerError) as raised:
        kvcore.replace(kvcore.load_scenario(DEPLOYMENT), **flags)
    assert (raised.value.code, raised.value.field) == (code, field)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (kvcore.plan, 5), (kvcore.plan, {"model": "Qwen/Qwen3-8B"}), (kvcore.replace, None), (kvcore.load_scenario, 5),
        (kvcore.load_scenario, [1]), (kvcore.load_scenario, "/no/such/file.json"), (kvcore.load_scenario, "a\0b"),
        (kvcore.load_scenario, str(ROOT)), (kvcore.load_scenario, Path("absent.json")), (kvcore.load_scenario, {1: 2}),
        (kvcore.load_scenario, {("a",): 1}), (kvcore.read_log, None), (kvcore.read_log, 5),
        (kvcore.request_of_log, "nothing of an engine"), (kvcore.catalogue.find_model, 5),
        (kvcore.catalogue.find_accelerator, None), (kvcore.catalogue.search_models, 5),
        (kvcore.catalogue.search_accelerators, None), (kvcore.fewest_gpus, 5), (kvcore.check, 5), (kvcore.check, [5]),
        (kvcore.check, {"a": 5}), (kvcore.check, ["/no/such/file.yaml"]), (kvcore.check, "absent.yaml"),
    ],
)  # fmt: skip
def test_whatever_is_given_is_refused_with_a_code(function: Any, given: Any) -> None:
    with pytest.raises(kvcore.KvPlannerError) as raised:
        function(given, max_model_len=4096) if function is kvcore.replace else function(given)
    assert raised.value.next_step
    assert raised.value.code != "internal-error"


def test_files_are_checked_by_path_and_by_text(tmp_path: Path) -> None:
    text = "vllm serve Qwen/Qwen3-32B --max-model-len 8192\n"
    (tmp_path / "run.sh").write_text(text)
    found = [
        kvcore.check(given, accelerator="L4-24GB", target=4)
        for given in ({"run.sh": text}, tmp_path, [tmp_path / "run.sh"], [str(tmp_path)])
    ]
    assert {(one.status, one.checked[0].outcome.value) for one in found} == {(1, "does-not-start")}
    with pytest.raises(kvcore.ScenarioError) as raised:
        kvcore.check({"run.sh": text}, tight="perhaps")
    assert raised.value.field == "tight"


VARIOUS: list[dict[str, Any]] = [
    DEPLOYMENT,
    {"model": "Qwen/Qwen3-32B"},
    {**DEPLOYMENT, "accelerator": "L4-24GB", "env": {"A": "1"}, "limit_mm_per_prompt": {"image": 2}},
    {
        "model": "Qwen/Qwen3.5-4B",
        "accelerator": {"memory_gib": 79.2, "name": "H100"},
        "pipeline_parallel_size": 2,
    },
    {"model": "Qwen/Qwen3-30B-A3B", "accelerator": "Ascend-910B3-64GB", "tensor_parallel_size": 4},
]


@pytest.mark.parametrize("asked", VARIOUS)
def test_plans_and_scenarios_are_values(asked: dict[str, Any]) -> None:
    planned = kvcore.plan(**asked)
    for one in (planned, planned.scenario):
        for other in (pickle.loads(pickle.dumps(one)), copy.copy(one), copy.deepcopy(one)):
            assert other == one
            assert hash(other) == hash(one)
        assert len({one, copy.deepcopy(one)}) == 1
        assert len(repr(one).splitlines()) == 3
        assert max(map(len, repr(one).splitlines())) <= 160
        assert len(pickle.dumps(one)) < 100_000
    assert planned != kvcore.plan(planned, gpu_memory_utilization=0.5)


def test_another_process_has_the_same_plan() -> None:
    planned = kvcore.plan(**DEPLOYMENT)
    script = "import pickle, sys; p = pickle.load(sys.stdin.buffer); print(repr(p)); print(p.cache.tokens)"
    ran = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(planned), cwd=ROOT, check=True, capture_output=True
    )
    assert planned.cache is not None
    assert ran.stdout.decode() == f"{planned!r}\n{planned.cache.tokens}\n"


def test_the_types_of_flags_are_those_of_the_registry() -> None:
    assert typed_flags.FILE.read_text("utf-8") == typed_flags.module(), "run python -m tools.typed_flags"
    assert set(kvcore.Request.__annotations__) == set(fields_of())
    assert set(library.VARIED) == set(typed_flags.SWEEP)


def checked(programs: dict[str, str], folder: Path) -> list[str]:
    """What `mypy --strict` says of a user's programs that have only the package."""
    for name, text in programs.items():
        (folder / name).write_text(text)
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--cache-dir", str(folder / "cache"),
         "--no-error-summary", *programs],
        cwd=folder, capture_output=True, encoding="utf-8", check=False, env={**os.environ, "MYPYPATH": str(ROOT)},
    )  # fmt: skip
    return [line for line in (ran.stdout + ran.stderr).splitlines() if "error" in line]


GOOD_PROGRAM = """
import kvcore
from kvcore import KvPlannerError, Plan, Request, Verdict

asked: Request = {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "tensor_parallel_size": 2}
found: Plan = kvcore.plan(**asked)
other = kvcore.plan(found, max_model_len="auto", surroundings={"link": "pcie"}, env={"A": 1})
tokens: int = 0 if found.cache is None else found.cache.tokens
is_good: bool = found.verdict is Verdict.FITS
for swept in kvcore.sweep(models=["Qwen/Qwen3-32B"], kv_cache_dtype="fp8", max_model_len=8192):
    names: list[str] = [cell.accelerator for cell in swept.cells]
try:
    kvcore.plan(model="Qwen/Qwen3-32B", accelerator="H100-80GB", tensor_parallel_size=3)
except KvPlannerError as error:
    code: str = error.code
rows: list[dict[str, float]] = kvcore.curve(found)
gpus: int = kvcore.fewest_gpus(wanted=40, max_model_len=16384, model="Qwen/Qwen3-32B")[0].gpus
changed: list[str] = [one.name for one in kvcore.compare_releases("0.11.0", "0.33.0", **asked).parts]
files: dict[str, str] = kvcore.launch_files(found)
request: kvcore.Request = {"model": "Qwen/Qwen3-8B", "speculative_config": {"method": "ngram"}}
"""
BAD_LINES = (
    'kvcore.plan(model="a", acelerator="H100-80GB")',
    'kvcore.plan(model="a", tensor_parallel_size="2")',
    'kvcore.plan(model="a", cudagraph_mode="SOME")',
    'kvcore.plan(model="a", surroundings={"links": "pcie"})',
    'kvcore.sweep(accelerator="H100-80GB")',
    'kvcore.replace("a scenario", max_model_len=4096)',
    'kvcore.replace(kvcore.plan(model="a"), max_modell_len=4096)',
)


def examples_of(document: str) -> str:
    """The code of a document's examples, as a program: what each is to print is not looked at."""
    parsed = doctest.DocTestParser().get_examples((ROOT / "docs" / document).read_text("utf-8"))
    return "".join(example.source for example in parsed)


def test_a_users_program_passes_mypy_strict_and_faults_do_not(tmp_path: Path) -> None:
    """One run, since each takes as long as all: every bad line is an error of its own, no other line is one.

    The examples of the documents are programs too.
    """
    program = GOOD_PROGRAM + "\n".join(BAD_LINES) + "\n"
    first = GOOD_PROGRAM.count("\n") + 1
    found = checked({"program.py": program, "documented.py": examples_of("library.md")}, tmp_path)
    lines = {int(line.split(":")[1]) for line in found if line.startswith("program.py")}
    assert lines == set(range(first, first + len(BAD_LINES))), "\n".join(found)
    assert [line for line in found if not line.startswith("program.py")] == []


def test_twelve_everyday_tasks_take_five_lines_each() -> None:
    text = (ROOT / "docs" / "library.md").read_text("utf-8").split("## Everyday tasks")[1].split("\n## ")[0]
    tasks = text.split("\n### ")[1:]
    assert len(tasks) >= 12
    for task in tasks:
        lines = [line for line in task.splitlines() if line.startswith((">>> ", "... "))]
        assert 1 <= len(lines) <= 5, task
        assert "kvcore." in task
        assert not re.search(r"from kvcore|import kvcore\.", task), "a deep module"


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
