"""docs/adding-a-flag.md, followed: a made-up flag in a copy of the house is one row and one field."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_adding import changed

ROOT = Path(__file__).resolve().parents[1]
ROW = """
[flag.made_up_tokens]
kind = "integer"
minimum = 3
maximum = 4096
human = true
cli = ["--made-up-tokens", "-mut"]
log = "by-kind"
label = "Made-up tokens"
widget = "by-kind"
"""
FIELD = "    made_up_tokens: int | None = None\n"
PROGRAM = """
import json, os, sys
from kvcore.base.errors import KvPlannerError
from kvcore.evidence.log.reader import read_log
from kvcore.flags.schema import request_schema
from kvcore.planning import plan
from kvcore.wire import link
from kvcore.deploy.shell import launch_command
from kvcore.controls.in_force import settings_in_force
from kvcore.base.words import Language, words
from kvcore.wire.request import scenario_from_request
from streamlit.testing.v1 import AppTest

request = {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "made_up_tokens": 64}
try:
    scenario_from_request(request | {"made_up_tokens": 2})
except KvPlannerError as error:
    refused = [error.code, error.field]
scenario = scenario_from_request(request)
params = link.encode(scenario)
typed = link.decode({**params, "made_up_tokens": "1K"})
short = link.decode({"model": "Qwen/Qwen3-8B", "mut": "9"})
command = launch_command(plan(scenario))
app = AppTest.from_file(os.path.abspath("app.py"), default_timeout=300)
app.session_state["more.opened"] = True
for name, value in params.items():
    app.query_params[name] = value
app.run()
app.number_input(key="made_up_tokens").set_value(5000).run()
control = app.number_input(key="made_up_tokens")
json.dump({
    "refused": refused,
    "schema": request_schema()["properties"]["made_up_tokens"],
    "link": params["made_up_tokens"],
    "typed": typed.scenario.made_up_tokens,
    "short": short.scenario.made_up_tokens,
    "repairs": len(typed.repairs) + len(short.repairs),
    "command": command,
    "read from it": read_log(command).flags.made_up_tokens,
    "read from a log": read_log("non-default args: {'model': 'a/b', 'made_up_tokens': 7}").flags.made_up_tokens,
    "settings": [setting.text for setting in settings_in_force(scenario, words(Language.ENGLISH))],
    "control": [control.label, control.value],
    "refused by it": [text.value for text in app.text if "4,096" in text.value],
    "trouble": [one.message for one in app.exception],
}, sys.stdout)
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the house with the row and the field."""
    copy = tmp_path_factory.mktemp("house")
    for part in ("kvcore", "pages", "locale"):
        shutil.copytree(ROOT / part, copy / part)
    shutil.copy(ROOT / "app.py", copy)
    add_row(copy, ROW)
    insert(copy / "kvcore" / "scenario" / "__init__.py", "    block_size: int | None = None\n", FIELD)
    return copy


def add_row(house: Path, row: str) -> None:
    """Puts a row in the middle of the registry."""
    insert(house / "kvcore" / "flags" / "registry.toml", "\n[flag.block_size]\n", row)


def insert(file: Path, before: str, text: str) -> None:
    """Puts `text` in front of the only place in `file` that reads `before`."""
    found = file.read_text("utf-8")
    assert found.count(before) == 1
    file.write_text(found.replace(before, text + before), "utf-8")


def test_a_row_and_a_field_are_a_flag_everywhere(house: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=house, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["refused"] == ["invalid-value", "made_up_tokens"]
    assert found["schema"] == {
        "type": ["integer", "null"], "minimum": 3, "maximum": 4096, "title": "Made-up tokens",
    }  # fmt: skip
    assert (found["link"], found["typed"], found["short"], found["repairs"]) == ("64", 1024, 9, 0)
    assert re.search(r" --made-up-tokens 64\b", found["command"])
    assert (found["read from it"], found["read from a log"]) == (64, 7)
    assert found["settings"] == ["made_up_tokens 64"]
    assert found["control"] == ["Made-up tokens", 64]
    assert found["refused by it"] == ["Not taken: 5,000 is not a whole number from 3 to 4,096."]
    assert found["trouble"] == []
    assert changed(house) == {"kvcore/flags/registry.toml", "kvcore/scenario/__init__.py"}


def test_a_row_without_a_meaning_stops_the_program(house: Path) -> None:
    """A row that no field of the scenario has is a flag without a meaning."""
    add_row(house, ROW.replace("_tokens", "_twice").replace('cli = ["--made-up-tokens", "-mut"]\n', ""))
    done = subprocess.run(
        [sys.executable, "-m", "kvcore", "catalogue", "accelerators"],
        cwd=house, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode != 0
    assert "registry.toml flag made_up_twice: a request has only accelerator, " in done.stderr
