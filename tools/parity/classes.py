"""Model classes beyond the catalogue: the engine's plan of a config of each, next to kvcore's.

    PYTHONPATH=. python tools/parity/classes.py [--write] tests/data/parity/classes/NAME.json ...

A file has `architecture`, `source` (of the config: which class's defaults, what was made smaller), `config`,
optionally `arguments` (a list of flags to plan with) and, once written, `engine_version`, `date` and `rows`: what the
engine answers. Runs in the environment that tools/parity/parity.mk builds.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import compare
import requirements
from deployments import AVAILABLE_GIB
from stand_ins import CARDS

HERE = Path(__file__).resolve().parent
CARD = "H100-80GB"
ARGUMENTS = ({}, {"tensor_parallel_size": 2}, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2})
"""Flags of the plans of each config whose file names none."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="keep the engine's answers in the files")
    options = parser.parse_args()
    kept = {path: json.loads(path.read_text(encoding="utf-8")) for path in options.files}
    jobs = [
        {
            "id": number,
            "path": path,
            "model": entry["architecture"],
            "config": entry["config"],
            "card": CARD,
            "args": {"tensor_parallel_size": 1, **arguments},
            "available_gib": list(AVAILABLE_GIB),
        }
        for path, entry in kept.items()
        for number, arguments in enumerate(entry.get("arguments", ARGUMENTS))
    ]
    _, name, memory_gib = CARDS[CARD]
    header = {
        "engine_version": requirements.engine().version,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cards": {CARD: {"name": name, "memory_gib": memory_gib, "vendor": "nvidia"}},
    }
    rows: dict[Path, list[dict[str, Any]]] = {path: [] for path in kept}
    differing = False
    for job, result in zip(jobs, answers(jobs), strict=True):
        row = compare.row_of(job, result)
        if row is None:
            print(f"no answer: {job['model']} {job['args']}: {result['failed'][:600]}")
            differing = True
            continue
        rows[job["path"]].append(row)
        found = compare.disagreements(row | {"config": job["config"]}, header)
        differing |= bool(found)
        print(f"{job['model']} {job['args']}: {found or 'equal'}")
    if options.write:
        for path, entry in kept.items():
            answered = {**entry, **header, "rows": rows[path]}
            path.write_text(json.dumps(answered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 1 if differing else 0


def answers(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers of oracle.py in the order of the jobs."""
    lines = "".join(json.dumps({k: v for k, v in job.items() if k != "path"}) + "\n" for job in jobs)
    with (Path(sys.prefix) / "classes.log").open("w") as log:
        run = subprocess.run(
            [sys.executable, str(HERE / "oracle.py"), "--card", CARD],
            input=lines,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            check=True,
            env=dict(os.environ),
        )
    return [json.loads(line) for line in run.stdout.splitlines()]


if __name__ == "__main__":
    sys.exit(main())
