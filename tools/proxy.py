"""Finds the Caddy that the proxy tests run; `--install` gets one where that is possible.

A Caddy that is there is used. On Debian or Ubuntu the package `caddy` is unpacked into .venv/caddy, without being
installed: its service would start at once and take port 80. Otherwise one line says what to install; in CI (CI=true)
that is a failure, never a skip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

UNPACKED = Path(__file__).resolve().parents[1] / ".venv" / "caddy"
ADVICE = (
    "the proxy tests need Caddy 2.6 or later: install it "
    "(Debian and Ubuntu: python tools/proxy.py --install as root; macOS: brew install caddy)"
)


def find_proxy() -> str | None:
    """The path of a Caddy, or None."""
    chosen = os.environ.get("KV_PLANNER_CADDY")
    unpacked = UNPACKED / "usr" / "bin" / "caddy"
    return chosen or shutil.which("caddy") or (str(unpacked) if unpacked.exists() else None)


def install_proxy() -> bool:
    """Unpacks Debian's caddy; False where this machine is not one that it can do that on."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # apt downloads as a user of its own
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            subprocess.run(["apt-get", "update", "-qq"], stdout=subprocess.DEVNULL)
        if subprocess.run(
            ["apt-get", "download", "-qq", "caddy"], cwd=folder, stdout=subprocess.DEVNULL
        ).returncode:
            return False
        (package,) = Path(folder).glob("caddy_*.deb")
        return subprocess.run(["dpkg-deb", "-x", package, UNPACKED]).returncode == 0


def main() -> int:
    """Exit status 1 when there is no Caddy and none can be had."""
    proxy = find_proxy()
    if proxy is None and "--install" in sys.argv and install_proxy():
        proxy = find_proxy()
    print(proxy or ADVICE, file=sys.stdout if proxy else sys.stderr)
    return 0 if proxy else 1


if __name__ == "__main__":
    sys.exit(main())
