"""The wheel: all that it needs is in it, and it plans alone, in an environment without the app, from another folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement

from kvcore.version import VERSION
from tools import package

ROOT: Final = Path(__file__).resolve().parents[1]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
BUILT_FROM: Final = ("kvcore", "locale", "tools", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
APP_ONLY: Final = (
    "streamlit",
    "plotly",
    "pandas",
    "starlette",
    "uvicorn",
    "mcp",
    "pyarrow",
    "ibis",
    "setuptools",
)
REQUEST: Final = {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "max_model_len": 8192}
UNREACHED: Final = (
    "error sending request|dns error|Failed to fetch|No solution found|Could not connect|timed out"
)
CHINESE: Final = (
    "from kvcore.base.words import words, Language; print(words(Language.CHINESE)('{field} is missing'))"
)


def tracked(*folders: str) -> list[str]:
    """The files of the checkout that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, check=True, capture_output=True)
    return [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that nothing is left in it."""
    folder = tmp_path_factory.mktemp("package") / "source"
    for name in tracked(*BUILT_FROM):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    out = source.parent / "out"
    script = f"from setuptools.build_meta import build_wheel; build_wheel({str(out)!r})"
    out.mkdir()
    subprocess.run([sys.executable, "-c", script], cwd=source, check=True, stdout=subprocess.DEVNULL)
    (built,) = out.glob("*.whl")
    return built


def test_every_file_of_the_package_is_in_it_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if ".dist-info/" not in name}
    catalogues = {f"kvcore/{name}" for name in tracked("locale") if name.endswith(".po")}
    assert len(catalogues) == 2
    own = {name for name in tracked("kvcore") if ".dist-info/" not in name}
    kept = {kept_of(name) for name in own if name.endswith(".toml")}
    assert names == own | catalogues | kept


def kept_of(name: str) -> str:
    """Where the package keeps what a TOML file says."""
    path = Path(name)
    return (path.parent / "__pycache__" / f"{path.stem}.kept").as_posix()


def test_what_is_kept_of_a_table_is_that_of_its_text(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        for name in tracked("kvcore"):
            if name.endswith(".toml"):
                text = opened.read(name).decode()
                content = json.loads(json.dumps(tomllib.loads(text), default=str))
                assert json.loads(opened.read(kept_of(name))) == [text, content], name


def test_its_facts_are_those_of_the_project(wheel: Path) -> None:
    assert wheel.name == f"kvcore-{VERSION}-py3-none-any.whl"
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", VERSION)
    assert "version" in PROJECT["dynamic"], "it is said in kvcore/version.py alone"
    with zipfile.ZipFile(wheel) as opened:
        metadata = opened.read(f"kvcore-{VERSION}.dist-info/METADATA").decode()
        scripts = opened.read(f"kvcore-{VERSION}.dist-info/entry_points.txt").decode()
    assert "kvcore = kvcore.__main__:main" in scripts
    plain = [
        line for line in metadata.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    assert {Requirement(line.partition(": ")[2]).name for line in plain} == {
        Requirement(line).name for line in PROJECT["dependencies"]
    }
    assert not {name for name in APP_ONLY if any(f": {name}" in line.lower() for line in plain)}


def needed(names: list[str], found: dict[str, Distribution] | None = None) -> dict[str, Distribution]:
    """The distributions of those names, with all that they ask for here."""
    known = {} if found is None else found
    for text in names:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name.lower() not in known:
            known[requirement.name.lower()] = distribution(requirement.name)
            needed(list(known[requirement.name.lower()].requires or ()), known)
    return known


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and with what its own facts ask for, by links to what is installed here."""
    folder = tmp_path_factory.mktemp("clean") / "environment"
    uv = [sys.executable, "-m", "uv", "--offline", "--no-config"]
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    python = folder / "bin" / "python"
    subprocess.run(
        [*uv, "pip", "install", "--quiet", "--no-deps", "--python", str(python), str(wheel)], check=True
    )
    (packages,) = folder.glob("lib/python*/site-packages")
    for found in needed(PROJECT["dependencies"]).values():
        for top in {Path(str(file)).parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            link = packages / top
            if not link.exists():
                link.symlink_to(Path(str(found.locate_file(top))))
    return folder


class Builder:
    """An environment with pip and setuptools alone, as an isolated build has it: without what the package asks for."""

    def __init__(self, folder: Path) -> None:
        uv = [sys.executable, "-m", "uv", "--offline", "--no-config"]
        subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
        (self.packages,) = folder.glob("lib/python*/site-packages")
        self.python = folder / "bin" / "python"
        for name in ("pip", "setuptools"):
            found = distribution(name)
            for top in {Path(str(file)).parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
                (self.packages / top).symlink_to(Path(str(found.locate_file(top))))

    def pip(self, *words: str | Path) -> None:
        """Runs pip in the environment, without the index."""
        offline = ["--disable-pip-version-check", words[0], "--no-index", "--no-build-isolation", "--no-deps"]
        done = subprocess.run(
            [self.python, "-m", "pip", *offline, *words[1:]],
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def installed(self) -> set[str]:
        """The files of the package that are installed, without bytecode."""
        files = {path.relative_to(self.packages).as_posix() for path in self.packages.glob("kvcore/**/*")}
        return {name for name in files if Path(name).suffix in (".py", ".toml", ".kept")}


def files_of(source: Path) -> set[str]:
    """The files that an installation of `source` has."""
    own = {
        path.relative_to(source).as_posix()
        for path in source.glob("kvcore/**/*")
        if "__pycache__" not in path.parts
    }
    code = {name for name in own if Path(name).suffix in (".py", ".toml")}
    return code | {kept_of(name) for name in code if name.endswith(".toml")}


def test_a_checkout_installs_again_and_again(source: Path, wheel: Path, tmp_path: Path) -> None:
    """setuptools leaves its last build in the checkout: neither what it kept nor what is gone since gets in the way."""
    builder = Builder(tmp_path / "environment")
    left = [source / "kvcore" / "left_over.py", source / "kvcore" / "engines" / "left_over.toml"]
    for path in left:
        path.write_text("", "utf-8")
    builder.pip("install", "--no-compile", source)
    assert (source / "build" / "lib" / "kvcore" / "left_over.py").exists()
    assert builder.installed() == files_of(source)
    for path in left:
        path.unlink()
    assert "left_over" not in str(files_of(source))
    builder.pip("install", "--no-compile", source)
    assert builder.installed() == files_of(source)
    builder.pip("install", "--editable", source)
    assert not builder.installed()
    builder.pip("install", "--no-compile", "--force-reinstall", source)
    assert builder.installed() == files_of(source)
    builder.pip("wheel", "--wheel-dir", tmp_path, source)
    with zipfile.ZipFile(tmp_path / wheel.name) as again, zipfile.ZipFile(wheel) as before:
        assert again.namelist() == before.namelist()


def test_the_source_distribution_builds_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    """As `python -m build` does: the wheel is built from the source distribution, in an environment of its own."""
    uv = [sys.executable, "-m", "uv", "build", "--quiet", "--out-dir", str(tmp_path), str(source)]
    done = subprocess.run(uv, capture_output=True, encoding="utf-8", check=False)
    if "Failed to fetch" in done.stderr or "dns error" in done.stderr:
        pytest.skip("an isolated build needs the package index")
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / wheel.name) as again, zipfile.ZipFile(wheel) as before:
        assert again.namelist() == before.namelist()


def run(environment: Path, folder: Path, *command: str, given: str = "") -> str:
    """What a program of the environment writes, run elsewhere and without this checkout."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(environment / "bin" / command[0]), *command[1:]],
        input=given, cwd=folder, env={**clean, "HF_HUB_OFFLINE": "1"}, capture_output=True, encoding="utf-8",
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_of_the_app_is_there(environment: Path, tmp_path: Path) -> None:
    script = f"import importlib.util as u; print([n for n in {APP_ONLY!r} if u.find_spec(n)])"
    assert run(environment, tmp_path, "python", "-c", script).strip() == "[]"
    where = run(environment, tmp_path, "python", "-c", "import kvcore; print(kvcore.__file__)")
    assert Path(where.strip()).is_relative_to(environment)


def test_the_command_plans(environment: Path, tmp_path: Path) -> None:
    result = json.loads(run(environment, tmp_path, "kvcore", "plan", "-", given=json.dumps(REQUEST)))
    assert result["verdict"] == "fits"
    assert "H100-80GB" in run(environment, tmp_path, "kvcore", "catalogue", "accelerators")
    published = (ROOT / "docs" / "contract.schema.json").read_text("utf-8")
    assert run(environment, tmp_path, "kvcore", "schema") == published
    swept = run(
        environment, tmp_path, "kvcore", "sweep", "--models", "Qwen/Qwen3-32B", "--accelerators", "H100-80GB"
    )
    assert "H100-80GB" in swept


def test_it_speaks_chinese(environment: Path, tmp_path: Path) -> None:
    assert run(environment, tmp_path, "python", "-c", CHINESE).strip() == "缺少 {field}"


def test_the_notebook_runs(environment: Path, tmp_path: Path) -> None:
    notebook: dict[str, Any] = json.loads((ROOT / "docs" / "library.ipynb").read_text("utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 4
    printed = run(environment, tmp_path, "python", "-", given="\n".join(cells))
    assert printed.startswith("fits at 32,768 tokens")
    assert "unknown-field" in printed


@pytest.mark.parametrize("version", package.PYTHONS)
def test_the_wheel_alone_plans_on_each_python(version: str, wheel: Path, tmp_path: Path) -> None:
    """With its dependencies from the package index, in an empty environment of another interpreter of this machine."""
    found = dict(package.interpreters())
    if version not in found:
        pytest.skip(f"Python {version} is not on this machine")
    try:
        verdict = package.try_out(wheel, found[version], tmp_path)
    except subprocess.CalledProcessError as failed:
        said = f"{failed.stdout} {failed.stderr}"
        if "pip" in failed.cmd and re.search(UNREACHED, said):
            pytest.skip(f"the package index has nothing for Python {version}, or is not reached")
        raise AssertionError(said) from failed
    assert verdict == "fits"
    said = run(tmp_path / "environment", tmp_path, "kvcore", "--version")
    assert said == f"kvcore {VERSION}\n"
    words = ("plan", "Qwen/Qwen3-32B", "--accelerator", "H100-80GB", "-tp", "2")
    assert run(tmp_path / "environment", tmp_path, "kvcore", *words).startswith("✔ Fits")


def test_a_command_whose_extra_is_missing_says_which(environment: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [environment / "bin" / "kvcore", "api"], cwd=tmp_path, capture_output=True, encoding="utf-8", check=False
    )  # fmt: skip
    assert done.returncode == 2
    assert "pip install '.[api]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_changelog_has_a_section_for_this_version() -> None:
    """A release has its number and date; before it, all is in one Unreleased section that opens with ten headlines."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d{2}-\d{2}$", text, re.MULTILINE)
    assert versions == sorted(versions, key=lambda one: tuple(map(int, one.split("."))), reverse=True)
    assert text.count("\n## [") == len(versions) + 1
    unreleased = text.split("\n## [Unreleased]")[1].split("\n## ")[0]
    assert 0 < unreleased.split("\n### ")[0].count("\n- ") <= 10
    if VERSION.endswith(".dev0"):
        assert VERSION.removesuffix(".dev0") not in versions
    else:
        assert versions[0] == VERSION
