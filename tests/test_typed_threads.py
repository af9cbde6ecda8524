"""Types that many threads use for the first time at the same moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
from __future__ import annotations
import sys, threading
from typing import Optional
from msgspec import Struct
from kvcore.base.typed import typed
sys.setswitchinterval(1e-6)
for i in range(40):
    fields = "\\n".join(f"    f{j}: Optional[A{i - 1}] = None" if i else f"    f{j}: int = 0" for j in range(12))
    exec(f"class A{i}(Struct):\\n{fields}\\n", globals())
ready = threading.Barrier(16)
def go():
    ready.wait()
    for i in range(39, -1, -1):
        try:
            typed({"f0": {"f1": {"f2": {}}}}, globals()[f"A{i}"])
        except ValueError:
            pass
threads = [threading.Thread(target=go) for _ in range(16)]
for one in threads: one.start()
for one in threads: one.join()
print("whole")
"""


def test_a_type_is_first_used_by_one_thread() -> None:
    """Without the lock each of fifteen such runs ended by a segmentation fault (msgspec 0.22.0, Python 3.11)."""
    for _ in range(3):
        told = subprocess.run(
            [sys.executable, "-c", CODE], cwd=Path(__file__).parents[1], capture_output=True, text=True
        )
        assert (told.returncode, told.stdout) == (0, "whole\n"), told.stderr[-500:]
