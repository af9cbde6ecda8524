"""Fuzzes every reader of a stranger's bytes, guided by coverage; ends with 1 at a finding, which it keeps.

python -m tools.fuzz --executions 1000000         of all targets together (make fuzz)
python -m tools.fuzz --seconds 60 config link     of two targets
python -m tools.fuzz --seed 1 --executions 40000  the same inputs at each run of the same code (.ci/run: a minute)
python -m tools.fuzz --keep                       also keeps what reaches new code, for runs to come
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tools.fuzz import seeds

TARGETS = (
    "contract", "config", "request", "link", "start_up_log", "request_log", "command", "deployed", "search", "gzip",
    "zstd", "parquet", "metrics", "trace", "benchmark", "replay_case",
)  # fmt: skip
SHARES = {
    "contract": 30,
    "config": 2,
    "request": 15,
    "link": 2,
    "start_up_log": 1,
    "request_log": 25,
    "command": 1,
    "deployed": 1,
    "search": 1,
    "gzip": 10,
    "zstd": 10,
    "parquet": 10,
    "metrics": 10,
    "trace": 15,
    "benchmark": 10,
    "replay_case": 15,
}
"""Relative executions of the targets, so that all take about as long: a log takes the time of thirty requests."""
MAX_BYTES = 1 << 15
MAX_WALL_SECONDS = 600
"""Time limit of one input: only a hang takes as long on a busy machine. The cost of inputs is limited in CPU time."""
_DONE = re.compile(r"^#(\d+)\s+DONE.*?cov: (\d+)", re.MULTILINE)
_LAST = re.compile(r"^#(\d+)\s", re.MULTILINE)


class Outcome(NamedTuple):
    """The result of one target."""

    target: str
    executions: int
    findings: tuple[Path, ...]
    words: str


def fuzzed(target: str, executions: int, seconds: int, corpus: Path, seed: int = 0) -> Outcome:
    """Runs one target in a process of its own, in `corpus`, which it fills; a seed of 0 is another at each run."""
    corpus.mkdir(parents=True, exist_ok=True)
    for index, data in enumerate(seeds.seeds_of(target)):
        (corpus / f"seed{index:03}").write_bytes(data)
    found = corpus.with_name(f"{target}.findings")
    found.mkdir(exist_ok=True)
    limits = [f"-atheris_runs={executions}"] if executions else []
    limits += [f"-max_total_time={seconds}"] if seconds else []
    # Entropic choice weighs inputs by the time they take, which no two runs share.
    limits += [f"-seed={seed}", "-entropic=0"] if seed else []
    command = [
        sys.executable, "-m", "tools.fuzz.one", target, *limits, f"-max_len={MAX_BYTES}",
        f"-timeout={MAX_WALL_SECONDS}", f"-report_slow_units={MAX_WALL_SECONDS}",
        "-rss_limit_mb=4096", "-print_final_stats=1",
        f"-artifact_prefix={found}/", str(corpus),
    ]  # fmt: skip
    environment = {**os.environ, "FUZZ_SHOWN": "8", "HF_HUB_OFFLINE": "1"}
    if seed:
        environment["PYTHONHASHSEED"] = "0"
    done = subprocess.run(
        command,
        cwd=seeds.ROOT,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    runs = _DONE.findall(done.stderr) or _LAST.findall(done.stderr)
    count = int(runs[-1][0] if isinstance(runs[-1], tuple) else runs[-1]) if runs else 0
    findings = tuple(found.iterdir())
    if done.returncode and not findings:
        sys.exit(done.stdout[-2000:] + done.stderr[-4000:])
    return Outcome(target, count, findings, (done.stdout + done.stderr)[-3000:] if findings else "")


def keep(target: str, corpus: Path, largest: int, most: int) -> None:
    """Adds the smallest inputs of `corpus` that reach code which no seed and no other reaches."""
    kept = seeds.KEPT / "corpus" / target
    merged = corpus.with_name(f"{target}.merged")
    merged.mkdir()
    seeded = corpus.with_name(f"{target}.seeds")
    seeded.mkdir()
    for path in corpus.glob("seed*"):
        shutil.move(path, seeded / path.name)
    for path in corpus.iterdir():
        if path.stat().st_size > largest:
            path.unlink()
    program = corpus.with_name(f"{target}.program")
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tools.fuzz.one {target} "$@"\n')
    program.chmod(0o700)
    subprocess.run(
        [program, "-merge=1", merged, seeded, corpus],
        cwd=seeds.ROOT,
        env={**os.environ, "FUZZ_SHOWN": "8", "FUZZ_PROGRAM": str(program)},  # a merge starts itself anew
        capture_output=True,
        check=True,
    )
    known = {path.read_bytes() for path in seeded.iterdir()}
    new = [path for path in merged.iterdir() if path.read_bytes() not in known]
    kept.mkdir(parents=True, exist_ok=True)
    for path in sorted(new, key=lambda one: one.stat().st_size)[:most]:
        shutil.copy(path, kept / path.name)


def main() -> int:
    """Prints a line for each target; 1 where something was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", default=TARGETS, help=", ".join(TARGETS))
    parser.add_argument("--executions", type=int, default=0, help="of all targets together")
    parser.add_argument("--seconds", type=int, default=0, help="of all targets together")
    parser.add_argument("--seed", type=int, default=0, help="the same inputs at each run of the same code")
    parser.add_argument(
        "--keep", action="store_true", help="keep small inputs that reach new code in tests/data/fuzz"
    )
    given = parser.parse_args()
    shares = sum(SHARES[target] for target in given.targets)
    total = findings = 0
    with tempfile.TemporaryDirectory() as folder:
        for target in given.targets:
            corpus = Path(folder) / target
            part = SHARES[target] / shares
            seconds = max(1, given.seconds // len(given.targets)) if given.seconds else 0
            outcome = fuzzed(target, round(given.executions * part), seconds, corpus, given.seed)
            total += outcome.executions
            findings += len(outcome.findings)
            print(
                f"{target:14}{outcome.executions:>10,} executions, {len(outcome.findings)} findings",
                flush=True,
            )
            for path in outcome.findings:
                kept = seeds.KEPT / "findings" / target / path.name
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, kept)
                print(f"{outcome.words}\nkept as {kept.relative_to(seeds.ROOT)}", flush=True)
            if given.keep:
                keep(target, corpus, largest=4096, most=24)
    print(f"{'in all':14}{total:>10,} executions, {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
