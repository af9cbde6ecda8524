"""Finds the browser that the tests drive; `--install` gets one where that is possible.

A Chrome or Chromium that is there is used. On Debian or Ubuntu as root the `chromium` package (and a Chinese font)
is installed. Otherwise one line says what to install; in CI (CI=true) that is a failure, never a skip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MACOS = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
ADVICE = (
    "the browser tests need Chrome or Chromium: install it "
    "(Debian and Ubuntu: apt-get install chromium fonts-noto-cjk; macOS: brew install --cask google-chrome)"
)


def find_browser() -> str | None:
    """The path of a Chrome or Chromium, or None."""
    chosen = os.environ.get("KV_PLANNER_BROWSER")
    if chosen:
        return chosen
    for name in NAMES:
        path = shutil.which(name)
        if path:
            return path
    return str(MACOS) if MACOS.exists() else None


def install_browser() -> bool:
    """Installs Debian's chromium and a Chinese font; False where this machine is not one that it can do that on."""
    if shutil.which("apt-get") is None or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return False
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-noto-cjk"],
    ):
        if subprocess.run(command, env=environment, stdout=subprocess.DEVNULL).returncode:
            return False
    return True


def main() -> int:
    """Exit status 1 when there is no browser and none can be had."""
    browser = find_browser()
    if browser is None and "--install" in sys.argv and install_browser():
        browser = find_browser()
    print(browser or ADVICE, file=sys.stdout if browser else sys.stderr)
    return 0 if browser else 1


if __name__ == "__main__":
    sys.exit(main())
