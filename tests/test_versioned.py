"""Every versioned table of the package is closed: no value and no key of it can be misspelt unnoticed."""

from __future__ import annotations

import ast
import copy
import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

import kvcore
from kvcore.base.errors import CatalogueError
from kvcore.engine.protocol import Engine
from kvcore.engines import registry
from kvcore.engines.vllm.versions import vllm_releases
from kvcore.scenario import KEPT_AS_JSON, require_rows
from kvcore.tables.versioned import Published, TableFile, Timeline, convert, read_toml

OPEN = {
    "source": "where a value was found, in prose: nothing is read from it",
    "label": "a text of a control: tests/test_i18n.py asks for its Chinese, by its words",
    "help": "as a label",
}
"""Keys that may say anything, and why no list of what they say can be."""
PRINTED = "texts"
"""Beginnings of lines that engines print: the sources that a row cites have them and no list does, so that a letter
more is a line that another build prints. Anything that no build prints is refused by pattern."""
WRONG = "wrong ±"
"""No text that any table takes but a free one."""

NOT_REVIEWED = {
    "vllm_ascend/engine.toml": "0.23.0",
    "modelslim.toml": "0.23.0",
}
"""Tables that were last compared with an earlier release than the newest one."""


@cache
def tables() -> Mapping[str, TableFile[Any]]:
    """Every versioned table file of the package, by its name."""
    found = {}
    for module in pkgutil.walk_packages(kvcore.__path__, "kvcore."):
        if module.name == "kvcore.__main__":
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, TableFile) and "reviewed" in value.raw():
                found[value.file] = value
    for file in Path(registry.__file__).parent.glob("*/engine.toml"):
        name = f"{file.parent.name}/engine.toml"
        found[name] = TableFile("kvcore.engines", name, Engine)
    return dict(sorted(found.items()))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value of a TOML document with its path."""
    parts = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    )
    if parts is None:
        yield path, value
    else:
        for key, part in parts:
            yield from leaves(part, (*path, key))


def keys(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key of a TOML document with its path."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        if isinstance(value, dict):
            yield (*path, key)
        yield from keys(part, (*path, key))


class Changed:
    """A document with one place changed, and changed back afterwards."""

    def __init__(self, raw: Any, path: tuple[Any, ...]) -> None:
        self.parent, self.key = raw, path[-1]
        for step in path[:-1]:
            self.parent = self.parent[step]

    def refusal(self, table: TableFile[Any], raw: Any, key: Any, value: Any) -> str:
        """What the loader says with `key` and `value` in that place."""
        before = dict(self.parent) if isinstance(self.parent, dict) else list(self.parent)
        if key != self.key:
            del self.parent[self.key]
        self.parent[key] = value
        try:
            table.read(raw)
        except CatalogueError as error:
            return f"{error}"
        finally:
            self.parent.clear()
            self.parent.update(before) if isinstance(before, dict) else self.parent.extend(before)
        return ""


def test_every_table_with_a_release_is_one_of_them() -> None:
    """A versioned table says `reviewed`, and is read by the one loader."""
    files = {}
    for module in pkgutil.walk_packages(kvcore.__path__, "kvcore."):
        if module.ispkg:
            for path in resources.files(module.name).iterdir():
                if path.name.endswith(".toml") and "models" not in module.name:
                    room = f"{module.name.rsplit('.', 1)[1]}/" if path.name == "engine.toml" else ""
                    files[room + path.name] = read_toml(path.read_text("utf-8"), path.name)
    said = {name for name, raw in files.items() if "reviewed" in raw}
    assert said == set(tables())
    releases = {f'"{version}"' for version in vllm_releases()} | {'since = "', 'below = "'}
    for name, raw in files.items():
        if name not in said:
            assert not any(str(key) in releases for key, _ in leaves(raw)), name


def test_all_load() -> None:
    assert len(tables()) >= 20
    for table in tables().values():
        assert table.load() is table.load()


@pytest.mark.parametrize("file", sorted(tables()))
def test_no_value_can_be_misspelt(file: str) -> None:
    """Each value in turn gets a letter more, becomes a text that is none, or a number beyond all bounds."""
    table = tables()[file]
    raw = copy.deepcopy(dict(table.raw()))
    assert table.read(raw)
    for path, value in leaves(raw):
        names = [step for step in path if isinstance(step, str)]
        if names[-1] in OPEN:
            continue
        place = Changed(raw, path)
        others = (f"{value}x", WRONG, {}) if isinstance(value, str) else (WRONG, -(10**30))
        for other in others[1:] if names[-1] == PRINTED else others:
            said = place.refusal(table, raw, path[-1], other)
            assert said.startswith(file), (path, other, said)
            last = f"[{path[-1]}]" if isinstance(path[-1], int) else f" {path[-1]}"
            assert last in said or names[-1] in said or names[-2] in said, said


def test_what_may_say_anything_is_there() -> None:
    """No key stays on the list that no table has."""
    said = {path[-1] for table in tables().values() for path in keys(table.raw())}
    assert {*OPEN, PRINTED} <= said


def test_a_row_that_no_scenario_has_stops_the_load() -> None:
    """Each name of a flag in turn gets a letter more: of a record by its fields, of another object by a pattern."""
    rows = tables()["registry.toml"].raw()["flag"]
    names = [name for name, row in rows.items() if row["kind"] != "any"]
    require_rows(names)
    keyed = {"accelerator", "limit_mm_per_prompt", "mm_processor_kwargs", *KEPT_AS_JSON}
    """Objects that are kept by key, or not as they come: the registry is the list of their keys."""
    for index, name in enumerate(names):
        if "." in name and name.split(".")[0] in keyed:
            continue
        with pytest.raises(
            CatalogueError, match=f"registry.toml flag {re.escape(name)}x: .*{name.split('.')[-1]}"
        ):
            require_rows([*names[:index], f"{name}x", *names[index + 1 :]])
        with pytest.raises(CatalogueError, match=f"{re.escape(name)} has no row"):
            require_rows([*names[:index], *names[index + 1 :]])


@pytest.mark.parametrize("file", sorted(tables()))
def test_no_key_can_be_misspelt(file: str) -> None:
    table = tables()[file]
    raw = copy.deepcopy(dict(table.raw()))
    accepted = []
    for path in list(keys(raw)):
        place = Changed(raw, path)
        said = place.refusal(table, raw, f"{path[-1]}±", place.parent[path[-1]])
        if not said:
            accepted.append(path)
        else:
            assert said.startswith(file), said
            assert "±" in said or str(path[-1]) in said, said
    assert not accepted


def test_a_name_from_outside_is_written_twice() -> None:
    table = tables()["rope.toml"]
    raw = copy.deepcopy(dict(table.raw()))
    raw["names"].append("n_position")
    with pytest.raises(CatalogueError, match=r"^rope.toml names: nothing is called n_position$"):
        table.read(raw)
    raw["names"].remove("n_position")
    raw["length_keys"].append("n_position")
    words = r"^rope.toml length_keys\[9\]: 'n_position' is none of the file's 9 names, such as n_positions$"
    with pytest.raises(CatalogueError, match=words):
        table.read(raw)


def test_the_words_name_file_key_and_what_is_allowed() -> None:
    table = tables()["releases.toml"]
    raw = copy.deepcopy(dict(table.raw()))
    raw["switches"]["budget"]["0.9.2"] = "part"
    with pytest.raises(CatalogueError) as caught:
        table.read(raw)
    assert str(caught.value) == (
        "releases.toml switches budget 0.9.2: 'part' is none of absolute, parts, consumed"
    )
    raw = copy.deepcopy(dict(table.raw()))
    raw["backends"][0]["backend"] = "FLASHATTN"
    with pytest.raises(CatalogueError, match=r"releases\.toml backends\[0\] backend.*XFORMERS"):
        table.read(raw)


def test_a_release_that_was_never_published_is_refused() -> None:
    with pytest.raises(CatalogueError, match=r"0\.72\.0 is none of the releases of releases\.toml"):
        convert("0.72.0", Published, "a.toml since")
    timeline = convert({"0.0": 1, "0.27.0": 2}, Timeline[int], "a.toml")
    assert [timeline.at(Version(version)) for version in ("0.6.6", "0.26.0", "0.27.0", "0.33.0")] == [
        1,
        1,
        2,
        2,
    ]
    with pytest.raises(CatalogueError, match=r"0\.0 is missing"):
        convert({"0.27.0": 2}, Timeline[int], "a.toml")


def test_tables_that_were_not_reviewed_for_the_newest_release() -> None:
    """A new release makes this list longer; a review makes it shorter."""
    behind = {}
    for file, table in tables().items():
        loaded = table.load()
        newest = (
            loaded.releases[-1][0]
            if getattr(loaded, "vendors", ()) and loaded.releases
            else vllm_releases()[-1]
        )
        if loaded.reviewed < newest:
            behind[file] = str(loaded.reviewed)
    assert behind == NOT_REVIEWED


def test_no_code_names_a_release() -> None:
    """What changes with a release stands in a table, with its source."""
    named = []
    for path in sorted(Path(kvcore.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Version" and path.name != "kinds.py":
                named += [f"{path.name}:{node.lineno}" for one in node.args if isinstance(one, ast.Constant)]
    assert not named
