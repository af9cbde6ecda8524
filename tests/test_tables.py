"""Every table with a release is closed: unknown keys and values that no field takes are refused with file and key."""

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
from typing import Annotated, Any, get_args

import pytest
from msgspec import Meta, Struct
from msgspec.structs import fields
from packaging.version import Version

import kvcore
from kvcore.base.errors import CatalogueError
from kvcore.engines import registry
from kvcore.engines.vllm.versions import vllm_releases
from kvcore.flags import FLAGS, Kind
from kvcore.scenario import KEPT_AS_JSON, require_rows
from kvcore.tables import NEVER, ByRelease, Record, Releases, TableFile, Timeline, convert, one_of, read_toml

PROSE = {"source", "label", "help"}
"""Keys that may say anything."""
WRONG = "wrong ±"
"""A text that only prose may be."""
CARDS = ("multiprocessors", "card")
"""Keys that are any name of a card."""
RELEASE = re.compile(r"\d+\.\d+(\.\d+)*((\.post|rc)\d+)?")
OTHER_NUMBERS = re.compile("capabilit|multiprocessors|series|lmcache$")
"""Keys of compute capabilities, of the series that a development build leads to, and of another program's versions."""

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
    return dict(sorted(found.items()))


def own_releases(table: TableFile[Any]) -> tuple[Version, ...]:
    """Releases of the engine in whose own folder the table is; none of a table of vLLM's releases."""
    room = table.package.removeprefix("kvcore.engines.")
    named = {engine.name.replace("-", "_"): engine for engine in registry.engines()}
    engine = named.get(room)
    return () if engine is None else tuple(engine.facts.releases)


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
def test_a_value_of_another_kind_is_refused(file: str) -> None:
    """Each value in turn becomes a text that is none, or a number beyond all bounds."""
    table = tables()[file]
    raw = copy.deepcopy(dict(table.raw()))
    assert table.read(raw)
    for path, value in leaves(raw):
        names = [step for step in path if isinstance(step, str)]
        if names[-1] in PROSE:
            continue
        place = Changed(raw, path)
        for other in (WRONG, {}) if isinstance(value, str) else (WRONG, -(10**30)):
            said = place.refusal(table, raw, path[-1], other)
            assert said.startswith(file), (path, other, said)
            last = f"[{path[-1]}]" if isinstance(path[-1], int) else f" {path[-1]}"
            assert last in said or names[-1] in said or names[-2] in said, said


def records(kind: Any) -> Iterator[type[Struct]]:
    """The records that a type is made of."""
    for part in get_args(kind):
        yield from records(part)
    if isinstance(kind, type) and issubclass(kind, Struct):
        yield kind


def test_records_within_records_refuse_unknown_keys() -> None:
    for module in pkgutil.walk_packages(kvcore.__path__, "kvcore."):
        if module.name == "kvcore.__main__":
            continue
        for outer in vars(importlib.import_module(module.name)).values():
            if isinstance(outer, type) and issubclass(outer, Record):
                for inner in (one for field in fields(outer) for one in records(field.type)):
                    assert inner.__struct_config__.forbid_unknown_fields, (
                        f"{outer.__name__}: {inner.__name__}"
                    )


def test_a_row_that_no_scenario_has_stops_the_load() -> None:
    """Each name of a flag in turn gets a letter more: of a record by its fields, of another object by a pattern."""
    names = [name for name, flag in FLAGS.items() if flag.kind is not Kind.ANY]
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
        if not said and path[:-1] != CARDS:
            accepted.append(path)
        elif said:
            assert said.startswith(file), said
            assert "±" in said or str(path[-1]) in said, said
    assert not accepted


@pytest.mark.parametrize("file", sorted(tables()))
def test_releases_of_a_table_are_published(file: str) -> None:
    table = tables()[file]
    raw = {key: value for key, value in table.raw().items() if key != "releases"}
    own = own_releases(table)
    if "vendors" in raw:
        del raw["reviewed"]  # a release of the plug-in
    named = {(path, step) for path, value in leaves(raw) for step in (*path, value)}
    published = {"0.0", *map(str, own or vllm_releases())}
    for path, step in named:
        is_release = isinstance(step, str) and RELEASE.fullmatch(step)
        if is_release and not any(OTHER_NUMBERS.search(str(one)) for one in path):
            assert step in published, path


def test_hosts_of_plug_in_releases_are_published() -> None:
    for engine in registry.engines():
        assert set(engine.facts.releases.values()) <= {*vllm_releases()}


def test_a_refusal_names_file_key_and_reason() -> None:
    table = tables()["releases.toml"]
    raw = copy.deepcopy(dict(table.raw()))
    raw["switches"]["budget"]["0.9.2"] = "part"
    with pytest.raises(CatalogueError) as caught:
        table.read(raw)
    assert str(caught.value) == "releases.toml switches budget 0.9.2: Invalid enum value 'part'"
    raw = copy.deepcopy(dict(table.raw()))
    raw["backends"][0]["backend"] = "FLASHATTN"
    with pytest.raises(CatalogueError, match=r"releases\.toml backends\[0\] backend: Invalid enum value"):
        table.read(raw)


class Rules(Record, frozen=True, kw_only=True):
    """What changes by release."""

    flag: bool
    share: float = 0.5


class Row(Record, frozen=True, kw_only=True):
    """A made-up row."""

    number: Annotated[int, Meta(ge=1, le=9)] = 1
    known: Annotated[str, one_of(("a.b", "c"))] = "c"
    when: Version = NEVER
    values: Timeline[int] | None = None
    listed: Releases[tuple[int, ...]] | None = None
    rules: ByRelease[Rules] | None = None


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"number": 10}, " number: Expected `int` <= 9"),
        ({"known": "aXb"}, " known: Expected `str` matching regex"),
        ({"when": "soon"}, " when: Invalid version: 'soon'"),
        ({"when": 0.19}, ' when: Expected a release such as "0.19.0"'),
        ({"values": {"0.27.0": 2}}, " values: 0.0 is missing"),
        ({"values": {"0.0": 1, "0.27.0": "x"}}, " values 0.27.0: Expected `int`, got `str`"),
        ({"values": {"0.0": 1, "late": 2}}, " values: Invalid version: 'late'"),
        ({"listed": {"0.1": [1, "x"]}}, " listed 0.1[1]: Expected `int`, got `str`"),
        ({"rules": {}}, " rules: Object missing required field `flag`"),
        ({"rules": {"flags": {}}}, " rules: Object contains unknown field `flags`"),
        ({"rules": {"flag": {"0.0": True}}}, " rules flag: Object missing required field `source`"),
        ({"rules": {"flag": {"source": "x", "0.0": 1}}}, " rules flag 0.0: Expected `bool`, got `int`"),
        ({"odd": 1}, ": Object contains unknown field `odd`"),
    ],
)
def test_a_refusal_names_the_place(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(CatalogueError) as caught:
        convert({"x": [], "y": [{}, row]}, Mapping[str, tuple[Row, ...]], "a.toml")
    assert str(caught.value).startswith(f"a.toml y[1]{reason}")


def test_values_by_release() -> None:
    row = convert(
        {
            "values": {"0.27.0": 2, "0.0": 1},
            "listed": {"0.20.0": [2], "0.9.0": [1]},
            "rules": {"flag": {"source": "x", "0.0": False, "0.20.0": True}},
        },
        Row,
        "a.toml",
    )
    assert [row.values.at(Version(version)) for version in ("0.6.6", "0.26.0", "0.27.0", "0.33.0")] == [
        1,
        1,
        2,
        2,
    ]
    assert list(row.listed.values()) == [(1,), (2,)]
    assert row.rules.at(Version("0.19.0")) == Rules(flag=False)
    assert row.rules.at(Version("0.20.0")) == Rules(flag=True, share=0.5)
    assert row.rules.at(Version("0.20.0")) is row.rules.at(Version("0.20.0"))


def test_tables_that_were_not_reviewed_for_the_newest_release() -> None:
    """A new release makes this list longer; a review makes it shorter."""
    behind = {}
    for file, table in tables().items():
        loaded = table.load()
        newest = (
            next(reversed(loaded.releases))
            if getattr(loaded, "vendors", ()) and loaded.releases
            else (own_releases(table) or vllm_releases())[-1]
        )
        if loaded.reviewed < newest:
            behind[file] = str(loaded.reviewed)
    assert behind == NOT_REVIEWED


def test_no_code_names_a_release() -> None:
    """A release stands in a table with its source, or in an engine's own method as a release that is known."""
    named = []
    for path in sorted(Path(kvcore.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) == "Version"
                and path.parent.name != "tables"
            ):
                named += [f"{path.name}:{node.lineno}" for one in node.args if isinstance(one, ast.Constant)]
    assert not named
