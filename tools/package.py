"""The package: setuptools' steps besides pyproject.toml, and `make package`, which builds and tries it.

    python -m tools.package [FOLDER]

builds the wheel and installs it with its dependencies into an empty environment for each Python 3.11 to 3.14 on this
machine; each then makes a plan from another folder. It needs the package index.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from setuptools.command.build_py import build_py

ROOT: Final = Path(__file__).resolve().parents[1]
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
REQUEST: Final = {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "max_model_len": 8192}


class BuildWithTexts(build_py):
    """Adds the catalogues of texts, which translators find at the top of the repository, and the content of each TOML
    file as `kvcore.base.toml_files` keeps it: a plan from a shell has no time to parse them."""

    def run(self) -> None:
        """Builds into an empty folder: setuptools leaves files of an earlier build there."""
        if self.editable_mode:
            super().run()
            return
        shutil.rmtree(Path(self.build_lib, "kvcore"), ignore_errors=True)
        super().run()
        # Without bytecode, which would serve this Python only.
        command = [sys.executable, "-EB", "-m", "kvcore.base.toml_files"]
        subprocess.run(command, cwd=self.build_lib, check=True)

    def _get_data_files(self) -> list[tuple[str, str, str, list[str]]]:
        found: list[tuple[str, str, str, list[str]]] = super()._get_data_files()
        for folder in sorted(Path("locale").glob("*/LC_MESSAGES")):
            names = [path.name for path in folder.glob("*.po")]
            found.append(("kvcore", folder.as_posix(), str(Path(self.build_lib, "kvcore", folder)), names))
        return found


def build(folder: Path) -> Path:
    """Builds the source distribution and a wheel from it; returns the wheel."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "uv", "build", "--out-dir", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def interpreters() -> Iterator[tuple[str, str]]:
    """Version and path of one interpreter for each supported version that this machine has."""
    listed = subprocess.run(
        [sys.executable, "-m", "uv", "python", "list", "--only-installed", "--output-format", "json"],
        check=True, capture_output=True,
    )  # fmt: skip
    paths = {Path(row["path"]) for row in json.loads(listed.stdout)}
    paths |= set(Path.home().glob(".pyenv/versions/*/bin/python3"))
    versions: dict[str, str] = {}
    for path in sorted(paths):
        said = subprocess.run([path, "--version"], capture_output=True, encoding="utf-8", check=False)
        version = re.search(r"3\.\d+", said.stdout)
        if said.returncode == 0 and version is not None and version[0] in PYTHONS:
            versions.setdefault(version[0], str(path))
    yield from sorted(versions.items())


def try_out(wheel: Path, python: str, folder: Path) -> str:
    """Installs the wheel for an interpreter; returns the verdict of a plan made from `folder`."""
    environment = folder / "environment"
    uv = [sys.executable, "-m", "uv"]
    caught: dict[str, Any] = {"check": True, "capture_output": True, "encoding": "utf-8"}
    subprocess.run([*uv, "venv", "--quiet", "--python", python, str(environment)], **caught)
    own = str(environment / "bin" / "python")
    subprocess.run([*uv, "pip", "install", "--quiet", "--python", own, str(wheel)], **caught)
    planned = subprocess.run(
        [environment / "bin" / "kvcore", "plan", "-"], input=json.dumps(REQUEST), cwd=folder, check=True,
        capture_output=True, encoding="utf-8",
    )  # fmt: skip
    result: dict[str, Any] = json.loads(planned.stdout)
    return str(result["verdict"])


def main(arguments: list[str]) -> int:
    """0 if every interpreter gives the expected verdict."""
    wheel = build(Path(arguments[0]) if arguments else ROOT / "build" / "dist")
    found = dict(interpreters())
    verdicts = {}
    for version, python in found.items():
        with tempfile.TemporaryDirectory() as folder:
            verdicts[version] = try_out(wheel, python, Path(folder))
            print(f"{wheel.name} on Python {version}: {verdicts[version]}")
    for version in PYTHONS:
        if version not in found:
            print(f"Python {version} is not on this machine: not tried")
    return 0 if set(verdicts.values()) == {"fits"} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
