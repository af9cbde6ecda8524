"""Engines by their folders: read strictly, asked for what they need to know, found where they lie."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest
from packaging.version import Version

from kvcore import catalogue
from kvcore.base.errors import CatalogueError, ScenarioError
from kvcore.engines import registry
from kvcore.engines.registry import engine_for, engine_names, engines, find_engine, read_engine
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = Path(registry.__file__).parent
PLAIN = (
    'name = "x"\norder = 9\nreviewed = "1.0"\nsource = "y"\n'
    'vendors = ["nvidia"]\n[launch]\nprogram = ["x", "serve"]\n'
)
MADE_UP = """
name = "made-up"
order = 1
reviewed = "2.0"
source = "a test"
vendors = ["intel"]

[releases]
"1.0" = "0.11.0"
"2.0" = "0.19.0"

[attention]
backend = "MADE_UP"
block_size = 32

[launch]
program = ["made-up", "start"]
images = [{ vendor = "intel", name = "example.org/made-up" }]
image_starts_server = false

[log]
marks = ["made_up_engine"]

[memory]
overheads = "made-up"

[[overheads.sampler]]
source = "a test"
bytes_per_logit = 1.0
vocabulary_rows_per_multiprocessor = 0.0
bytes_per_token = 0.0
spread_gib = 0.0
spread_share = 0.0

[[overheads.non_torch]]
source = "a test"
gib = 7.0
spread_gib = 0.5

[[overheads.context]]
source = "a test"
gib = 1.0
spread_gib = 0.5

[overheads.graph_rate]
source = "a test"
bytes_per_graph_and_layer = 0.0
spread_share = 0.0

[functions]
memory = "kvcore.engines.made_up.budget:half_of_the_card"
"""
BUDGET = '''
"""The KV cache gets half of the card, whatever else there is."""

from msgspec.structs import replace

from kvcore.memory.budget import profiled_memory
from kvcore.base.quantity import Quantity, Unit


def half_of_the_card(setting, weights):
    usual = profiled_memory(setting, weights)
    half = Quantity(name="available_kv", value=usual.total.value // 2, unit=Unit.BYTES)
    return replace(usual, available_kv=half, remainder=half)
'''


def test_a_card_is_served_by_the_first_engine_that_has_a_platform_for_it() -> None:
    for card in catalogue.load_accelerators():
        served = engine_for(card)
        assert served.runs_on(card)
        assert served.name == ("vllm-ascend" if card.vendor == "huawei" else "vllm")


@pytest.mark.parametrize("name", engine_names())
def test_each_engine_names_functions_that_can_be_called(name: str) -> None:
    """Their names are texts: nothing but a look tells that they are there."""
    functions = find_engine(name).functions
    assert callable(resolve_name(functions.resolve))
    assert callable(resolve_name(functions.memory))


def test_an_engine_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(ScenarioError) as caught:
        find_engine("sglang")
    assert caught.value.field == "engine"
    assert "vllm-ascend" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (PLAIN + "[cach]\n", "x.toml"),
        (PLAIN.replace('"nvidia"', '"nvidea"'), "x.toml vendors[0]"),
        (PLAIN.replace("order = 9", 'order = "9"'), "x.toml order"),
        (PLAIN.replace("order = 9", "order = true"), "x.toml order"),
        (PLAIN.replace('source = "y"\n', ""), "x.toml"),
        (PLAIN + '[memory]\ngraphs = "Metal"\n', "x.toml memory graphs"),
        (PLAIN + '[cache.keeps_windows]\nsource = "x"\n"0.0" = "soon"\n', "x.toml cache keeps_windows 0.0"),
        (PLAIN + '[cache.keeps_windows]\nsource = "x"\n"0.9.1" = false\n', "x.toml cache keeps_windows"),
        (PLAIN + '[releases]\n"1.0" = 0.19\n', "x.toml releases 1.0"),
        (PLAIN + "[attention]\nblock_size = 16\n", "x.toml attention"),
        (PLAIN.replace('name = "x"', 'name = "Y"'), "x.toml name"),
        ("name = \n", "x.toml"),
    ],
)
def test_what_an_engine_file_must_not_say_is_named_with_its_place(text: str, where: str) -> None:
    assert read_engine(PLAIN, "x.toml").launch.program == ("x", "serve")
    with pytest.raises(CatalogueError) as caught:
        read_engine(text, "x.toml")
    assert caught.value.field == where


def test_a_wrong_value_is_named_with_its_place() -> None:
    with pytest.raises(CatalogueError, match=r"vendors\[0\]: Invalid enum value 'nvidea'"):
        read_engine(PLAIN.replace('"nvidia"', '"nvidea"'), "x.toml")


def test_each_switch_of_each_engine_is_read_from_its_file() -> None:
    ascend = (FOLDERS / "vllm_ascend" / "engine.toml").read_text(encoding="utf-8")
    changed = ascend.replace('"0.14.0" = "joined"', '"0.14.0" = "packed"')
    newest = Version("0.23.0")
    assert find_engine("vllm-ascend").cache.at(newest).sparse_keys == "joined"
    assert read_engine(changed, "x.toml").cache.at(newest).sparse_keys == "packed"


def compares_engine(node: ast.AST) -> bool:
    """Whether the engine of a scenario is compared with anything but that of another."""
    if not isinstance(node, ast.Compare):
        return False
    sides = (node.left, *node.comparators)
    named = [side for side in sides if isinstance(side, ast.Attribute) and side.attr == "engine"]
    return 0 < len(named) < len(sides)


def test_no_file_outside_asks_which_engine_it_is() -> None:
    """A comparison with an engine's name would have to be found and edited for the next engine."""
    assert compares_engine(ast.parse('scenario.engine == "vllm"', mode="eval").body)
    assert compares_engine(ast.parse("plan.resolved.engine in NAMES", mode="eval").body)
    assert not compares_engine(ast.parse("before.engine != after.engine", mode="eval").body)
    files = (*ROOT.glob("kvcore/**/*.py"), *ROOT.glob("pages/**/*.py"), ROOT / "app.py")
    for file in (file for file in files if not file.is_relative_to(FOLDERS)):
        asking = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if compares_engine(node)]
        assert not asking, f"{file.relative_to(ROOT)} line {asking[0].lineno}"


def test_a_new_engine_is_a_folder_and_a_choice_of_the_registry(tmp_path: Path) -> None:
    """docs/adding-an-engine.md: nothing else is new, and requests, plans, starts and logs know it."""
    for part in ("kvcore", "locale"):
        shutil.copytree(ROOT / part, tmp_path / part)
    folder = tmp_path / "kvcore" / "engines" / "made_up"
    folder.mkdir()
    registry = tmp_path / "kvcore" / "flags" / "registry.toml"
    row = registry.read_text("utf-8")
    assert row.count('"vllm-mindspore"]') == 1
    registry.write_text(row.replace('"vllm-mindspore"]', '"vllm-mindspore", "made-up"]'), "utf-8")
    (folder / "engine.toml").write_text(MADE_UP, encoding="utf-8")
    (folder / "__init__.py").write_text("", encoding="utf-8")
    (folder / "budget.py").write_text(BUDGET, encoding="utf-8")
    script = tmp_path / "plan_it.py"
    script.write_text(
        """
from kvcore.evidence.log.reader import read_log
from kvcore.engines.vllm.versions import assumed_version
from kvcore.planning import plan
from kvcore.deploy.server_start import image
from kvcore.deploy.commands import launch_command
from kvcore.wire.request import scenario_from_request
asked = {"model": "Qwen/Qwen3-8B", "engine": "made-up", "accelerator": {"memory_gib": 64, "vendor": "intel"}}
planned = plan(scenario_from_request(asked))
print(planned.available_kv_bytes / 2**30, planned.memory.framework.value / 2**30)
print(planned.resolved.engine_version, planned.resolved.attention_backend, planned.resolved.block_size)
print(launch_command(planned))
print(image(planned))
print(assumed_version(planned.scenario))
print(read_log("made_up_engine: Available KV cache memory: 5.00 GiB").engine)
print([notice.code for notice in planned.notices])
""",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert done.stdout.splitlines() == [
        "32.0 7.0",
        "0.19.0 MADE_UP 32",
        "made-up start Qwen/Qwen3-8B",
        "example.org/made-up:v0.19.0",
        "2.0",
        "made-up",
        "['overheads-of-another-vendor']",
    ]


def forget_engines() -> None:
    """Has the folders read again."""
    for kept in (engines, registry._rooms, registry._engine):
        kept.cache_clear()


def test_the_engines_of_the_package_are_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = tmp_path / "engine"
    shutil.copytree(FOLDERS, copied)
    shutil.rmtree(copied / "vllm_mindspore")
    monkeypatch.setattr("kvcore.engines.__path__", [str(copied)])
    forget_engines()
    try:
        assert [engine.name for engine in engines()] == ["vllm", "vllm-ascend"]
    finally:
        monkeypatch.undo()
        forget_engines()
    assert len(engines()) == 3


def test_overheads_of_an_engine_that_has_none_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = tmp_path / "engine"
    shutil.copytree(FOLDERS, copied)
    file = copied / "vllm_mindspore" / "engine.toml"
    text = file.read_text("utf-8").replace('overheads = "vllm-mindspore"', 'overheads = "vllm-ascent"')
    file.write_text(text, "utf-8")
    monkeypatch.setattr("kvcore.engines.__path__", [str(copied)])
    forget_engines()
    try:
        with pytest.raises(CatalogueError, match=r"vllm-mindspore memory overheads.*vllm-ascend"):
            engines()
    finally:
        monkeypatch.undo()
        forget_engines()


def test_a_plan_without_a_card_is_of_the_first_engine() -> None:
    assert plan(scenario_from_request({"model": "Qwen/Qwen3-8B"})).resolved.engine == engines()[0].name
