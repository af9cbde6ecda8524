"""Finds the programs that the tests drive; `python tools/programs.py browser proxy --install` gets them where it can.

A Chrome, Chromium or Caddy that is there is used. On Debian or Ubuntu as root the `chromium` package (and a Chinese
font) is installed; the package `caddy` is unpacked into .venv/caddy, without being installed: its service would start
at once and take port 80. Otherwise one line says what to install; in CI (CI=true) that is a failure, never a skip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MACOS = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
UNPACKED = Path(__file__).resolve().parents[1] / ".venv" / "caddy"
BROWSER_ADVICE = (
    "the browser tests need Chrome or Chromium: install it "
    "(Debian and Ubuntu: apt-get install chromium fonts-noto-cjk; macOS: brew install --cask google-chrome)"
)
PROXY_ADVICE = (
    "the proxy tests need Caddy 2.6 or later: install it "
    "(Debian and Ubuntu: python tools/programs.py proxy --install as root; macOS: brew install caddy)"
)


def find_browser() -> str | None:
    """The path of a Chrome or Chromium, or None."""
    chosen = os.environ.get("KV_PLANNER_BROWSER")
    found = chosen or next(filter(None, map(shutil.which, BROWSERS)), None)
    return found or (str(MACOS) if MACOS.exists() else None)


def find_proxy() -> str | None:
    """The path of a Caddy, or None."""
    chosen = os.environ.get("KV_PLANNER_CADDY")
    unpacked = UNPACKED / "usr" / "bin" / "caddy"
    return chosen or shutil.which("caddy") or (str(unpacked) if unpacked.exists() else None)


def install_browser() -> bool:
    """Installs Debian's chromium and a Chinese font; False where this machine is not one that it can do that on."""
    if shutil.which("apt-get") is None or not _is_root():
        return False
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-noto-cjk"]
    return _done(["apt-get", "update", "-qq"]) and _done(install)


def install_proxy() -> bool:
    """Unpacks Debian's caddy; False where this machine is not one that it can do that on."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # apt downloads as a user of its own
        if _is_root():
            _done(["apt-get", "update", "-qq"])
        if not _done(["apt-get", "download", "-qq", "caddy"], folder):
            return False
        (package,) = Path(folder).glob("caddy_*.deb")
        return _done(["dpkg-deb", "-x", str(package), str(UNPACKED)])


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _done(command: list[str], folder: str | None = None) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return not subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL).returncode


class Program(NamedTuple):
    """How to find and install one, and the message where both fail."""

    find: Callable[[], str | None]
    install: Callable[[], bool]
    advice: str


PROGRAMS = {
    "browser": Program(find_browser, install_browser, BROWSER_ADVICE),
    "proxy": Program(find_proxy, install_proxy, PROXY_ADVICE),
}


def main() -> int:
    """Exit status 1 when one of the programs named is not there and cannot be had."""
    missing = False
    for program in (PROGRAMS[name] for name in sys.argv[1:] if name in PROGRAMS):
        path = program.find()
        if path is None and "--install" in sys.argv and program.install():
            path = program.find()
        print(path or program.advice, file=sys.stdout if path else sys.stderr)
        missing = missing or path is None
    return int(missing)


if __name__ == "__main__":
    sys.exit(main())
