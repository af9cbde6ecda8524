#!/usr/bin/env python3
"""Looks at the memory of the cards of a running server from outside: what requests add, and whether it grows.

    python3 memory_check.py profile --model NAME --prompt-tokens 4000 --answer-tokens 64
    python3 memory_check.py leak --seconds 600

`profile` sends one short and one long request and prints the peak of each card next to what it was before.
`leak` watches for a while, best under a steady load, and exits with 1 when the memory of a card grows.
Needs Python 3.9 and the driver's own tool (nvidia-smi, rocm-smi or npu-smi), nothing else.

The numbers of PyTorch's own counters in a client are about that client: the engine's workers are other processes.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

TOOLS: dict[str, list[str]] = {
    "nvidia-smi": ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
    "rocm-smi": ["rocm-smi", "--showmeminfo", "vram", "--csv"],
    "npu-smi": ["npu-smi", "info"],
}
MIB = 1 << 20
CHIP = re.compile(r"[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d\s*\|.*?(\d+)\s*/\s*\d+\s*\|\s*$")
TOOL_SECONDS = 30
WORD = "memory "
"""About one token in any English tokenizer."""


def used_mib(tool: str, text: str) -> list[int]:
    """Memory in use on each card, in MiB, from what `tool` printed.

    Example:
        >>> used_mib("nvidia-smi", "71234\\n71190\\n")
        [71234, 71190]
        >>> used_mib("rocm-smi", "device,VRAM Total Memory (B),VRAM Total Used Memory (B)\\ncard0,206141652,1048576\\n")
        [1]
        >>> used_mib("npu-smi", "| 0     | 0000:C1:00.0  | 0           0    / 0          3416 / 65536         |\\n")
        [3416]
    """
    lines = text.splitlines()
    if tool == "nvidia-smi":
        return [int(line) for line in lines if line.strip().isdecimal()]
    if tool == "rocm-smi":
        rows = [line.split(",") for line in lines if "," in line]
        if not rows:
            return []
        place = next((i for i, name in enumerate(rows[0]) if "used" in name.lower()), len(rows[0]) - 1)
        return [
            int(row[place]) // MIB for row in rows[1:] if len(row) > place and row[place].strip().isdecimal()
        ]
    found = [CHIP.search(line) for line in lines]
    return [int(match[1]) for match in found if match]


def found_tool(asked: str | None) -> str:
    """The driver's tool on this machine. Exits with 2 without one."""
    for name in [asked] if asked else TOOLS:
        if shutil.which(name):
            return name
    print(f"none of {', '.join(TOOLS)} is on this machine", file=sys.stderr)
    raise SystemExit(2)


def cards(tool: str) -> list[int]:
    """Memory in use on each card, in MiB. Exits with 2 when the tool shows none."""
    done = subprocess.run(TOOLS[tool], capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
    found = used_mib(tool, done.stdout)
    if not found:
        print(f"{tool} shows no memory: {done.stderr.strip()[:300]}", file=sys.stderr)
        raise SystemExit(2)
    return found


def growth_mib(series: list[int]) -> float:
    """Mean of the last third of a series less the mean of the first third, in MiB.

    Example:
        >>> growth_mib([100, 100, 100, 140, 160, 180]), growth_mib([100, 180, 100, 180, 100, 180])
        (70.0, 0.0)
    """
    third = max(1, len(series) // 3)
    return sum(series[-third:]) / third - sum(series[:third]) / third


def ask(url: str, model: str, prompt_tokens: int, answer_tokens: int) -> float:
    """Seconds of one request. Exits with 2 when the server refuses it."""
    body = {"model": model, "prompt": WORD * prompt_tokens, "max_tokens": answer_tokens, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    started = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=3600) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        print(f"the server answers {error.code}: {error.read(300)!r}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        print(f"no server at {url}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    return time.monotonic() - started


def peak_while(tool: str, every: float, done: threading.Event, most: list[int]) -> None:
    """Keeps the largest memory of each card in `most` until `done`."""
    while not done.wait(every):
        for card, used in enumerate(cards(tool)):
            most[card] = max(most[card], used)


def profile(given: argparse.Namespace, tool: str) -> int:
    """Memory before, and the peak while a short and a long request run."""
    before = cards(tool)
    print("before", *(f"{used} MiB" for used in before))
    for name, tokens in (("short", 8), ("long", given.prompt_tokens)):
        most, done = cards(tool), threading.Event()
        watch = threading.Thread(target=peak_while, args=(tool, given.every, done, most), daemon=True)
        watch.start()
        try:
            seconds = ask(given.url, given.model, tokens, given.answer_tokens)
        finally:
            done.set()
            watch.join()
        most = [max(pair) for pair in zip(most, cards(tool))]  # noqa: B905
        grown = (f"{used} MiB (+{used - first})" for used, first in zip(most, before))  # noqa: B905
        print(f"{name} prompt, about {tokens} tokens, {seconds:.1f} s:", *grown)
    print("The KV cache was taken at start: what grows here are buffers of a step, and it stays allocated.")
    return 0


def leak(given: argparse.Namespace, tool: str) -> int:
    """1 when the memory of a card grows by more than the limit between the first and the last third."""
    series: list[list[int]] = []
    end = time.monotonic() + given.seconds
    while time.monotonic() < end or len(series) < 3:
        series.append(cards(tool))
        time.sleep(given.every)
    is_growing = False
    for card, used in enumerate(zip(*series)):  # noqa: B905
        grown = growth_mib(list(used))
        is_growing |= grown > given.limit_mib
        print(f"card {card}: {used[0]} -> {used[-1]} MiB, last third {grown:+.0f} MiB above the first")
    print("grows" if is_growing else "steady", f"(limit {given.limit_mib} MiB, {len(series)} looks)")
    return int(is_growing)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("profile", help="what a short and a long request add")
    one.add_argument("--url", default="http://localhost:8000")
    one.add_argument("--model", required=True)
    one.add_argument("--prompt-tokens", type=int, default=4000)
    one.add_argument("--answer-tokens", type=int, default=64)
    two = commands.add_parser("leak", help="whether memory grows while a load runs")
    two.add_argument("--seconds", type=float, default=600)
    two.add_argument("--limit-mib", type=float, default=256)
    for each in (one, two):
        each.add_argument("--every", type=float, default=1.0, help="seconds between two looks")
        each.add_argument("--tool", choices=sorted(TOOLS))
    given = parser.parse_args(argv)
    tool = found_tool(given.tool)
    return profile(given, tool) if given.command == "profile" else leak(given, tool)


if __name__ == "__main__":
    sys.exit(main())
