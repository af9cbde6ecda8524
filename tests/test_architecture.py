"""The order of the folders: no circle of imports, and no module above is reached by its name."""

import ast
import re
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
MODULE = re.compile(r"kvcore(\.\w+)+")


@cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("kvcore", cache_dir=None)


@cache
def places() -> dict[str, int]:
    """Folder -> its place in the order, counted from the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    [layers] = [one["layers"] for one in contracts if one.get("containers") == ["kvcore"]]
    return {name.strip(): place for place, row in enumerate(layers) for name in row.split("|")}


def test_no_module_imports_itself_through_others() -> None:
    order = TopologicalSorter(
        {module: graph().find_modules_directly_imported_by(module) for module in graph().modules}
    )
    order.prepare()  # raises CycleError, which names the circle


def test_each_folder_has_one_place_in_the_order() -> None:
    folders = {path.parent.name for path in (ROOT / "kvcore").glob("*/__init__.py")}
    assert set(places()) == folders


def test_each_folder_says_what_it_is_for() -> None:
    for folder in places():
        source = (ROOT / "kvcore" / folder / "__init__.py").read_text("utf-8")
        assert ast.get_docstring(ast.parse(source)), folder


def test_no_text_names_a_module_above() -> None:
    for folder, place in places().items():
        for path in (ROOT / "kvcore" / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                name = node.value if isinstance(node, ast.Constant) else None
                if isinstance(name, str) and MODULE.fullmatch(name) and name in graph().modules:
                    assert places()[name.split(".")[1]] >= place, (path, name)


def test_documents_name_files_that_exist() -> None:
    for document in (ROOT / "docs").glob("*.md"):
        named = re.findall(
            r"`((?:kvcore|tools|tests|pages)/[\w./-]+\.(?:py|toml))`", document.read_text("utf-8")
        )
        assert [name for name in named if "mypage" not in name and not (ROOT / name).exists()] == [], (
            document.name
        )


def test_the_reference_names_what_exists() -> None:
    for document in (ROOT / "docs").glob("reference*.md"):
        for name in re.findall(r"auto(?:function|class):: ([\w.]+)", document.read_text("utf-8")):
            module, _, own = name.rpartition(".")
            assert hasattr(import_module(module), own), (document.name, name)


def test_the_maps_list_the_folders_in_their_order() -> None:
    """README and docs/architecture.md name every folder once, in the order of the contract."""
    house = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rooms = re.findall(r"^\| `(\w+)/` \|", house, re.MULTILINE)
    table = (ROOT / "README.md").read_text("utf-8").split("| where | what |")[1].split("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if "`kvcore/" in line]
    named = [name for row in rows for name in re.findall(r"`(?:kvcore/)?(\w+)/`", row)]
    assert rooms == named
    assert [places()[name] for name in rooms] == sorted(places().values())
    assert set(rooms) == set(places())


def test_every_engine_is_closed_to_other_folders() -> None:
    """The contracts about engines name every folder of engines."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    engines = {path.parent.name for path in (ROOT / "kvcore" / "engines").glob("*/__init__.py")}
    [layers] = [one["layers"] for one in contracts if one.get("containers") == ["kvcore.engines"]]
    [closed] = [one["protected_modules"] for one in contracts if one["type"] == "protected"]
    assert {name.strip() for row in layers for name in row.split("|")} == engines | {"registry"}
    assert set(closed) == {f"kvcore.engines.{name}" for name in engines}
