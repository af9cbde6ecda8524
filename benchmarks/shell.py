"""One plan from a shell: `python -m kvcore plan`, the interpreter's own start included.

Baseline: a Python that imports json and tomllib and ends, measured turn by turn with it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

TURNS = 15
REQUEST = json.dumps({"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "tensor_parallel_size": 2})
PROGRAMS = {
    "json and tomllib": ["-c", "import json, tomllib"],
    "a plan": ["-m", "kvcore", "plan"],
    "a plan of a model with an encoder": ["-m", "kvcore", "plan"],
}
WITH_ENCODER = REQUEST.replace("Qwen/Qwen3-32B", "Qwen/Qwen2-VL-7B-Instruct")


def seconds(name: str) -> float:
    """From the start of a program to its end."""
    given = WITH_ENCODER if "encoder" in name else REQUEST
    start = time.perf_counter()
    subprocess.run([sys.executable, *PROGRAMS[name]], input=given, text=True, capture_output=True, check=True)
    return time.perf_counter() - start


def main() -> None:
    """Prints the medians and their ratios to the baseline."""
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(TURNS):
        for name, found in times.items():
            found.append(seconds(name))
    medians = {name: statistics.median(found) for name, found in times.items()}
    base = medians["json and tomllib"]
    print(f"shell: median of {TURNS} starts, turn by turn")
    for name, median in medians.items():
        print(f"  {name:<35}{median * 1000:6.0f} ms  {median / base:4.1f} × json and tomllib")


if __name__ == "__main__":
    main()
