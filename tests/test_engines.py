"""The engines that are known: one class and one file of facts each, which nobody else has to know about."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kvcore import catalogue
from kvcore.base.errors import CatalogueError, ScenarioError
from kvcore.engine.facts import EngineFacts
from kvcore.engines import registry
from kvcore.engines.registry import ENGINES, engine_for, engines, find_engine
from kvcore.flags import FLAGS
from kvcore.planning import plan
from kvcore.tables import TableFile
from kvcore.wire.request import scenario_from_request

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = Path(registry.__file__).parent
PLAIN = 'reviewed = "1.0"\nsource = "y"\nvendors = ["nvidia"]\n[launch]\nprogram = ["x", "serve"]\n'
MADE_UP = """
reviewed = "2.0"
source = "a test"
vendors = ["intel"]

[releases]
"1.0" = "0.11.0"
"2.0" = "0.19.0"

[launch]
program = ["made-up", "start"]
images = [{ vendor = "intel", name = "example.org/made-up" }]
image_starts_server = false

[log]
marks = ["made_up_engine"]

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
"""
ENGINE = '''
"""The KV cache gets half of the card, whatever else there is."""

from msgspec.structs import replace

from kvcore.base.quantity import Quantity, Unit
from kvcore.engine.facts import EngineFacts
from kvcore.engines.vllm.engine import VllmEngine
from kvcore.engines.vllm.start import Attention
from kvcore.tables import TableFile

FACTS = TableFile("kvcore.engines.made_up", "engine.toml", EngineFacts)


class MadeUpEngine(VllmEngine):
    name = "made-up"
    follows_vllm = False
    attention = Attention("MADE_UP", 32)

    @property
    def facts(self):
        return FACTS.load()

    def rank_memory(self, setting, weights):
        usual = super().rank_memory(setting, weights)
        half = Quantity(name="available_kv", value=usual.total.value // 2, unit=Unit.BYTES)
        return replace(usual, available_kv=half, remainder=half)
'''


def read_facts(text: str) -> EngineFacts:
    return TableFile("kvcore.engines", "x.toml", EngineFacts).read(tomllib.loads(text))


def test_a_card_is_served_by_the_first_engine_that_has_a_platform_for_it() -> None:
    for card in catalogue.load_accelerators():
        served = engine_for(card)
        assert served.runs_on(card)
        assert served.name == ("vllm-ascend" if card.vendor == "huawei" else "vllm")


def test_an_engine_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(ScenarioError) as caught:
        find_engine("tgi")
    assert caught.value.field == "engine"
    assert "vllm-ascend" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (PLAIN + "[cach]\n", "x.toml"),
        (PLAIN.replace('"nvidia"', '"nvidea"'), "x.toml vendors[0]"),
        (PLAIN.replace('source = "y"\n', ""), "x.toml"),
        (PLAIN + '[releases]\n"1.0" = 0.19\n', "x.toml releases 1.0"),
    ],
)
def test_what_an_engine_file_must_not_say_is_named_with_its_place(text: str, where: str) -> None:
    assert read_facts(PLAIN).launch.program == ("x", "serve")
    with pytest.raises(CatalogueError) as caught:
        read_facts(text)
    assert caught.value.field == where


def test_a_wrong_value_is_named_with_its_place() -> None:
    with pytest.raises(CatalogueError, match=r"vendors\[0\]: Invalid enum value 'nvidea'"):
        read_facts(PLAIN.replace('"nvidia"', '"nvidea"'))


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


def test_the_request_names_every_engine() -> None:
    assert FLAGS["engine"].choices == tuple(ENGINES) == tuple(engine.name for engine in engines())


def test_a_new_engine_is_a_folder_and_its_name(tmp_path: Path) -> None:
    """docs/adding-an-engine.md: with its folder and its name, requests, plans, starts and logs know it."""
    folder = tmp_path / "made_up"
    folder.mkdir()
    (folder / "engine.toml").write_text(MADE_UP, encoding="utf-8")
    (folder / "__init__.py").write_text("", encoding="utf-8")
    (folder / "engine.py").write_text(ENGINE, encoding="utf-8")
    script = tmp_path / "plan_it.py"
    script.write_text(
        f"""
import kvcore.engines
kvcore.engines.__path__.append({str(tmp_path)!r})
from msgspec.structs import force_setattr
from kvcore.flags import FLAGS
force_setattr(FLAGS["engine"], "choices", (*FLAGS["engine"].choices, "made-up"))
from kvcore.engines.made_up.engine import MadeUpEngine
from kvcore.engines.registry import ENGINES
ENGINES["made-up"] = MadeUpEngine
from kvcore.evidence.log.reader import read_log
from kvcore.planning import plan
from kvcore.deploy.server_start import image
from kvcore.deploy.shell import launch_command
from kvcore.wire.request import scenario_from_request
asked = {{"model": "Qwen/Qwen3-8B", "engine": "made-up", "accelerator": {{"memory_gib": 64, "vendor": "intel"}}}}
planned = plan(scenario_from_request(asked))
print(planned.available_kv_bytes / 2**30, planned.memory.framework.value / 2**30)
print(planned.resolved.engine_version, planned.resolved.attention_backend, planned.resolved.block_size)
print(launch_command(planned))
print(image(planned))
print(planned.resolved.engine.assumed_version(planned.scenario))
print(read_log("made_up_engine: Available KV cache memory: 5.00 GiB").engine)
print([notice.code for notice in planned.notices])
""",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT)},
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


def test_a_plan_without_a_card_is_of_the_first_engine() -> None:
    assert plan(scenario_from_request({"model": "Qwen/Qwen3-8B"})).resolved.engine is engines()[0]
