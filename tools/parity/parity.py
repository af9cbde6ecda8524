"""make parity: vLLM's own plans next to kvcore's, from nothing to a table of agreement.

    PYTHONPATH=. python tools/parity/parity.py [--only TEXT] [--kept | --write] [PART ...]

Runs in the environment that tools/parity/parity.mk builds. Whole models on the newest release; on older ones their
planners alone, and their argument parsers on the command lines that kvcore writes. With --write the engine's
answers become test data in tests/data/parity.
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
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import compare
import requirements
import tier_cases
from deployments import deployments, special
from npu_cases import CASES as NPU_CASES
from npu_compare import applies, npu_disagreements
from planner_cases import CASES
from stand_ins import CARDS

from kvcore.catalogue import find_model

HERE = Path(__file__).resolve().parent
DATA = HERE.parents[1] / "tests" / "data" / "parity"
OLDER = Path(sys.prefix) / "releases"
"""Folder with a folder for each older release, unpacked by parity.mk."""
NPU = Path(sys.prefix) / "npu"
"""The same for releases of vllm-ascend, each with the vLLM of its number."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all of them if none is named"
    )
    parser.add_argument("--only", default="", help="only models whose id contains this text")
    parser.add_argument(
        "--kept", action="store_true", help="whole models: compare the kept answers, run nothing"
    )
    parser.add_argument("--write", action="store_true", help="write the answers to tests/data/parity")
    options = parser.parse_args()
    differing = [PARTS[part](options) for part in options.parts or PARTS]
    return 1 if any(differing) else 0


def whole_models(options: argparse.Namespace) -> int:
    """Weights, defaults, groups, blocks, tokens and concurrency of whole models on the newest release."""
    if options.kept:
        differing = 0
        for path in sorted(DATA.glob("vllm-*.jsonl")):
            header, rows = _kept(path.name)
            rows = [row for row in rows if options.only in row["model"]]
            differing += _judge(header, rows, len(rows))
        return differing
    jobs = [job | {"id": number} for number, job in enumerate(deployments()) if options.only in job["model"]]
    header = _header()
    rows = list(_rows(jobs))
    if options.write:
        name = f"vllm-{header['engine_version']}.jsonl"
        others = [row for row in _kept(name)[1] if options.only not in row["model"]]
        _write(name, [header, *sorted(others + rows, key=lambda row: (row["model"].lower(), row["card"]))])
    return _judge(header, rows, len(jobs))


def _judge(header: dict[str, Any], rows: list[dict[str, Any]], asked: int) -> int:
    judged = [(_family(row), row, compare.disagreements(row, header)) for row in rows]
    differing = _report(judged)
    print(f"\nvLLM {header['engine_version']}, {header['date']}: {len(rows)} deployments of {asked} compared")
    print(compare.agreement_table(judged))
    return differing


def planners(options: argparse.Namespace) -> int:
    """The planners of older releases on plain cache specs."""
    rows = [
        {"engine_version": release.name} | row
        for release in _releases()
        for row in _run(["planner.py"], json.dumps(CASES), release)
    ]
    if options.write:
        _write("planners.jsonl", [{"date": _header()["date"], "cases": CASES}, *rows])
    wrong = [
        (row, found) for row in rows if (found := compare.planner_disagreements(CASES[row["case"]], row))
    ]
    for row, found in wrong:
        print(f"planner of {row['engine_version']}, {row['case']}: {found}")
    print(f"\nplanners of {', '.join(release.name for release in _releases())}:")
    print(f"{len(rows) - len(wrong)} of {len(rows)} cases agree")
    return len(wrong)


def arguments(_options: argparse.Namespace) -> int:
    """The argument parsers of all releases on the command lines that kvcore writes for them."""
    refused = total = 0
    newest = _header()
    for release in [*_releases(), None]:
        header = newest | ({"engine_version": release.name} if release else {})
        lines = [line for job in special() if (line := compare.command_line(job, header))]
        answers = _run(["arguments.py"], "".join(json.dumps(line) + "\n" for line in lines), release)
        for line, answer in zip(lines, answers, strict=True):
            total += 1
            if not answer["accepted"]:
                refused += 1
                print(f"{header['engine_version']} refuses {' '.join(line)}: {answer['error']}")
    print(f"\ncommand lines: {total - refused} of {total} accepted by the argument parser of their release")
    return refused


def npu(options: argparse.Namespace) -> int:
    """vllm-ascend's specs and its patches over vLLM's planner, `torch_npu` stood in."""
    rows = []
    for release in _releases(NPU):
        cases = {name: case for name, case in NPU_CASES.items() if applies(case, release.name)}
        answers = _run(["npu_planner.py"], json.dumps(cases), release)
        rows += [{"engine_version": release.name} | row for row in answers]
    if options.write:
        _write("npu.jsonl", [{"date": _header()["date"], "cases": NPU_CASES}, *rows])
    wrong = [(row, found) for row in rows if (found := npu_disagreements(NPU_CASES[row["case"]], row))]
    for row, found in wrong:
        print(f"vllm-ascend {row['engine_version']}, {row['case']}: {found}")
    print(f"\nvllm-ascend {', '.join(release.name for release in _releases(NPU))}:")
    print(f"{len(rows) - len(wrong)} of {len(rows)} cases agree")
    return len(wrong)


def tiers(options: argparse.Namespace) -> int:
    """Tiers in the host's memory by the connector of each release that takes plain numbers."""
    rows = []
    for release in [*_releases(), None]:
        name = _header()["engine_version"] if release is None else release.name
        if tier_cases.applies(name):
            answers = _run(["tiers.py"], json.dumps(tier_cases.CASES), release)
            rows += [{"engine_version": name} | row for row in answers]
    if options.write:
        _write("tiers.jsonl", [{"date": _header()["date"], "cases": tier_cases.CASES}, *rows])
    wrong = [row for row in rows if tier_cases.disagrees(row)]
    for row in wrong:
        print(f"tier of {row['engine_version']}, {row['case']}: {row}")
    print(f"\ntiers: {len(rows) - len(wrong)} of {len(rows)} cases agree")
    return len(wrong)


PARTS = {"models": whole_models, "planners": planners, "npu": npu, "tiers": tiers, "arguments": arguments}


def _header() -> dict[str, Any]:
    """Facts of all rows: the release, the day, the cards as the contract names them."""
    cards = {
        card: {"name": name, "memory_gib": gib, "vendor": "nvidia"} for card, (_, name, gib) in CARDS.items()
    }
    return {
        "engine_version": requirements.engine().version,
        "date": datetime.date.today().isoformat(),
        "cards": cards,
    }


def _rows(jobs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows, card by card: a process looks like one machine for all its life."""
    by_card = sorted(jobs, key=lambda job: job["card"])
    for card, group in itertools.groupby(by_card, key=lambda job: job["card"]):
        of_card = list(group)
        answers = _run(["oracle.py", "--card", card], "".join(json.dumps(job) + "\n" for job in of_card))
        for job, (number, result) in zip(of_card, enumerate(answers, 1), strict=True):
            print(f"\r{card} {number}/{len(of_card)}", end="", file=sys.stderr)
            row = compare.row_of(job, result)
            if row is None:
                print(
                    f"\n  no answer: {job['model']} {job['args']}: {result['failed'][:160]}", file=sys.stderr
                )
            else:
                yield row


def _releases(folder: Path = OLDER) -> list[Path]:
    """Unpacked releases, oldest first."""
    found = folder.iterdir() if folder.exists() else ()
    return sorted(found, key=lambda folder: [int(part) for part in folder.name.split(".")])


def _run(command: list[str], text: str, release: Path | None = None) -> Iterator[dict[str, Any]]:
    """JSON lines that a script of this folder answers; the engine's output goes to a file."""
    script, *rest = command
    log_file = Path(sys.prefix) / f"{Path(script).stem}.log"
    with log_file.open("w") as log, tempfile.TemporaryFile("w+") as questions:
        questions.write(text)
        questions.seek(0)
        process = subprocess.Popen(
            [sys.executable, str(HERE / script), *rest],
            stdin=questions,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **({"PYTHONPATH": str(release)} if release else {})},
        )
        assert process.stdout
        yield from map(json.loads, process.stdout)
        if process.wait():
            raise SystemExit(f"{script} ended with {process.returncode}; see {log_file}")


def _family(row: dict[str, Any]) -> str:
    return str(find_model(row["model"]).config.raw.get("model_type", "?"))


def _report(judged: list[tuple[str, dict[str, Any], list[compare.Disagreement]]]) -> int:
    """Prints the differences, known ones by their reason, and counts the others."""
    differing = 0
    for _, row, found in judged:
        if unknown := [each for each in found if not compare.is_known(row, each[0])]:
            differing += 1
            print(f"\n{row['model']} on {row['card']} {json.dumps(row['args'])}")
            for aspect, theirs, ours in unknown:
                print(f"  {aspect}: vLLM {theirs}, kvcore {ours}")
    known = Counter(
        entry["reason"]
        for _, row, found in judged
        for entry in compare.known_differences()
        if found and compare.applies(entry, row)
    )
    if known:
        print("\nknown differences (tests/data/parity/known.toml):")
    for reason, rows in known.most_common():
        print(f"  {rows:3} deployments: {reason}")
    return differing


def _kept(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    path = DATA / name
    header, *rows = map(json.loads, path.read_text().splitlines()) if path.exists() else ({},)
    return header, rows


def _write(name: str, rows: list[dict[str, Any]]) -> None:
    DATA.mkdir(parents=True, exist_ok=True)
    (DATA / name).write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
