"""Writes the lists of pins from pyproject.toml: packages of the app, and of its tests and checks.

requirements.txt (the extra `app`), requirements-agents.txt (the extra `mcp`, for an image with /mcp),
tools/requirements.txt (all extras) and tools/databases.txt (the group `databases`), with the same pins for what they
share, list every package that is installed, with the hashes of all its files: one list for Linux, macOS and Windows
and for Python 3.11 and later. A pin stays as it is unless pyproject.toml asks for another, or with `--upgrade` or
`--upgrade-package NAME`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
APP = "requirements.txt"
TOOLS = "tools/requirements.txt"
AGENTS = "requirements-agents.txt"
DATABASES = "tools/databases.txt"
_OPTIONS = ("--universal", "--python-version=3.11", "--generate-hashes", "--no-annotate", "--quiet")


def lock(out: str, *arguments: str) -> None:
    """Writes one list."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", f"--output-file={out}"]
    subprocess.run(
        [*command, *_OPTIONS, "--custom-compile-command=make lock", *arguments],
        cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """All lists; further arguments are uv's."""
    lock(APP, "--extra=app", *arguments)
    lock(TOOLS, "--all-extras", f"--constraint={APP}", *arguments)
    lock(AGENTS, "--extra=mcp", f"--constraint={APP}", f"--constraint={TOOLS}", *arguments)
    lock(DATABASES, "--group=databases", f"--constraint={TOOLS}", *arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
