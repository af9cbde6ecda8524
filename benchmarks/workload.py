"""CPU of reading a usage log with DuckDB, in a process of its own each time, with the peak of its memory.

Baseline: the loop of source 004 on the same JSON lines, which parses each line, collects prompts and sorts them.
`LINES=10000000 python -m benchmarks.workload` for the size of the issue; ratios below are of what `LINES` says.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

LINES = int(os.environ.get("LINES", "1000000"))
TRIES = 3
REPORT = """
import resource
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
LOOP = """
import json, sys
lengths = []
with open(sys.argv[1]) as f:
    for line in f:
        lengths.append(json.loads(line)["usage"]["prompt_tokens"])
lengths.sort()
lengths[int(len(lengths) * 0.99)]
"""
OURS = """
import sys
from kvcore.workload.database.files import read_files
read_files([sys.argv[1]])
"""
BY_COLUMNS = """
import sys
from kvcore.workload.logs import read_request_logs
from kvcore.workload.requests import Reading
with open(sys.argv[1], "rb") as opened:
    read_request_logs([opened], reading=Reading(max_bytes=None, max_requests=None))
"""
BY_HAND = """
import sys, duckdb
print(duckdb.sql(f"SELECT count(*), quantile_disc(prompt_tokens, [0.5, 0.9, 0.95, 0.99]), max(prompt_tokens), "
    f"quantile_disc(completion_tokens, [0.5, 0.9, 0.95, 0.99]), max(completion_tokens), "
    f"quantile_disc(prompt_tokens + completion_tokens, [0.5, 0.9, 0.95, 0.99]) "
    f"FROM read_parquet('{sys.argv[1]}')").fetchall(), file=sys.stderr)
"""
PARQUET = """
import sys, duckdb
duckdb.sql(f"COPY (SELECT usage.prompt_tokens AS prompt_tokens, usage.completion_tokens AS completion_tokens "
           f"FROM read_json('{sys.argv[1]}')) TO '{sys.argv[1]}.parquet'")
"""


def write(path: Path) -> None:
    """Lines as an OpenAI server answers, without their text."""
    chosen = random.Random(4)
    with path.open("w", encoding="utf-8") as out:
        for number in range(LINES):
            prompt, answer = 1 + int(chosen.lognormvariate(6.8, 1)), 1 + int(chosen.expovariate(1 / 300))
            usage = {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
            record = {"id": f"chatcmpl-{number:08}", "object": "chat.completion", "usage": usage}
            out.write(json.dumps(record) + "\n")


def measured(program: str, path: str) -> tuple[float, float]:
    """Seconds of CPU, GiB at the peak."""
    found = subprocess.run(
        [sys.executable, "-c", program + REPORT, path], check=True, capture_output=True, text=True
    )
    seconds, kib = found.stdout.split()
    return float(seconds), float(kib) / (1 << 20)


def main() -> None:
    """Prints CPU, memory and the ratio to the loop."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "requests.jsonl")
        write(path)
        subprocess.run([sys.executable, "-c", PARQUET, path], check=True)
        loop, loop_peak = measured(LOOP, str(path))
        print(f"workload: {LINES:,} lines of usage")
        print(f"  loop of source 004  {loop:7.2f} s of CPU  {loop_peak:5.2f} GiB")
        for name, given in (("JSON lines", str(path)), ("Parquet", f"{path}.parquet")):
            seconds, peak = measured(OURS, given)
            print(f"  {name:<18}  {seconds:7.2f} s of CPU  {peak:5.2f} GiB  {loop / seconds:5.1f} × less CPU")
        ours, ours_peak = min(measured(BY_COLUMNS, f"{path}.parquet") for _ in range(TRIES))
        hand, _ = min(measured(BY_HAND, f"{path}.parquet") for _ in range(TRIES))
        print(
            f"  Parquet by columns  {ours:7.2f} s of CPU  {ours_peak:5.2f} GiB  {ours / hand:5.1f} × of the "
            "percentiles by hand in DuckDB"
        )


if __name__ == "__main__":
    main()
