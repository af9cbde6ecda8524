"""Releases on the package index, and the Python source of one, unpacked from its wheel."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

Pip = Callable[[Sequence[str]], str]
"""Arguments of pip -> its output."""

KEPT: Final = (".py", "METADATA")
"""Files of a wheel that are unpacked: its source and requirements, no kernels."""


def run_pip(arguments: Sequence[str]) -> str:
    """pip of this environment, with its own index. Raises SystemExit with the output of pip."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"pip {' '.join(arguments)}: {done.stderr.strip()[-400:]}")
    return done.stdout


def published(project: str, pip: Pip = run_pip) -> tuple[Version, ...]:
    """The final releases that the index offers for this platform, oldest first."""
    listed = re.search(r"^Available versions: (.*)$", pip(["index", "versions", project]), re.MULTILINE)
    found = []
    for name in listed.group(1).split(",") if listed else ():
        try:
            found.append(Version(name.strip()))
        except InvalidVersion:
            continue
    return tuple(sorted(set(found)))


def source_of(project: str, release: Version, folder: Path, pip: Pip = run_pip) -> Path:
    """The folder with the package's source; downloaded once, kernels left out."""
    unpacked = folder / f"{project}-{release}"
    if not unpacked.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            pip(["download", "--no-deps", "--no-cache-dir", "--only-binary=:all:", "--quiet", "--dest", scratch,
                 f"{project}=={release}"])  # fmt: skip
            (wheel,) = Path(scratch).glob("*.whl")
            unpack(wheel, unpacked)
    return unpacked


def unpack(wheel: Path, target: Path) -> None:
    """The source of a wheel; a half unpacked one is never used."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch, zipfile.ZipFile(wheel) as archive:
        partial = Path(scratch) / "source"
        partial.mkdir()
        for member in archive.infolist():
            if member.filename.endswith(KEPT):
                archive.extract(member, partial)
        partial.rename(target)
