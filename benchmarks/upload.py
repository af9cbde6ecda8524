"""CPU time of an upload on the Workload page, 50 MiB of each kind of log, each in a process of its own.

Read by the page's own reader and binned into its link, as pages/ui/workload does it; `python -m benchmarks.upload`.
`longest` is the longest stretch between two looks at the clock of a second thread: how long other visitors wait for
the interpreter.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path

from kvcore.workload.requests import MAX_LOG_BYTES, MAX_REQUESTS

ALLOWED_SECONDS = 5.0
READ = """
import resource, sys, threading, time
from kvcore.workload.logs import read_request_logs
longest, over = 0.0, False
def look():
    global longest
    last = time.perf_counter()
    while not over:
        time.sleep(0.002)
        longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
def used():
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_utime + found.ru_stime
looking = threading.Thread(target=look)
with open(sys.argv[1], "rb") as log:
    looking.start()
    before = used()
    found = read_request_logs([log], lambda done: None)
    found.traffic.for_link().packed()
    after = used()
over = True
looking.join()
print(after - before, longest, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, found.traffic.requests)
"""
Lengths = tuple[int, int]
WORDS = (
    "the", "memory", "of", "each", "card", "holds", "weights", "and", "cache", "a", "request", "keeps", "blocks",
    "until", "its", "answer", "ends", "which", "engine", "plans", "for", "longest", "context", "that", "fits", "显存",
    "容量", "规划", "请求", "长度", "1024", "2048",
)  # fmt: skip


def lengths(chosen: random.Random) -> Lengths:
    """Tokens of a prompt and its answer: the shape of benchmarks/workload.py."""
    return 1 + int(chosen.lognormvariate(6.8, 1)), 1 + int(chosen.expovariate(1 / 300))


def usage(chosen: random.Random) -> Iterator[str]:
    """Lines as an OpenAI server answers, without their text: those of benchmarks/workload.py."""
    for number in count():
        prompt, answer = lengths(chosen)
        counts = {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
        yield json.dumps({"id": f"chatcmpl-{number:08}", "object": "chat.completion", "usage": counts})


def spend(chosen: random.Random) -> Iterator[str]:
    """LiteLLM's rows of spend: many fields, times as text, sessions."""
    for number in count():
        prompt, answer = lengths(chosen)
        row = {
            "request_id": f"chatcmpl-{number:08}", "call_type": "acompletion", "spend": 0.0021, "model": "qwen3",
            "prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer,
            "startTime": f"2026-01-{1 + number // 86400 % 28:02}T{number // 3600 % 24:02}:{number // 60 % 60:02}:00Z",
            "status": "success", "session_id": f"s{number // 7}", "metadata": {"user_api_key_alias": "team"},
        }  # fmt: skip
        yield json.dumps(row)


def anthropic(chosen: random.Random) -> Iterator[str]:
    """Anthropic's answers, whose prompts are in three parts."""
    for number in count():
        prompt, answer = lengths(chosen)
        counts = {"input_tokens": prompt % 100, "cache_creation_input_tokens": 0,
                  "cache_read_input_tokens": prompt, "output_tokens": answer}  # fmt: skip
        yield json.dumps({"type": "message", "id": f"msg_{number:08}", "role": "assistant", "usage": counts})


def mooncake(chosen: random.Random) -> Iterator[str]:
    """Mooncake's trace: hashes of blocks."""
    for number in count():
        prompt, answer = lengths(chosen)
        blocks = [number // 5 * 1000 + at for at in range(1 + prompt // 512)]
        yield json.dumps({"timestamp": number * 30, "input_length": prompt, "output_length": answer,
                          "hash_ids": blocks})  # fmt: skip


def text(chosen: random.Random, tokens: int) -> str:
    """Words of two scripts, about as many as tokens."""
    return " ".join(chosen.choices(WORDS, k=tokens))


def texts(chosen: random.Random) -> Iterator[str]:
    """Requests with their messages, without counts."""
    for _ in count():
        prompt, answer = lengths(chosen)
        messages = [{"role": "system", "content": "You are helpful."},
                    {"role": "user", "content": text(chosen, prompt)}]  # fmt: skip
        said = {"messages": messages, "max_tokens": 512, "output": text(chosen, answer)}
        yield json.dumps(said, ensure_ascii=False)


def answers(chosen: random.Random) -> Iterator[str]:
    """Whole answers of a server, with their text and their counts."""
    for number in count():
        prompt, answer = lengths(chosen)
        counts = {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
        choice = {"index": 0, "message": {"role": "assistant", "content": text(chosen, answer)}}
        yield json.dumps({"id": f"chatcmpl-{number:08}", "created": 1760000000 + number, "choices": [choice],
                          "usage": counts}, ensure_ascii=False)  # fmt: skip


def table(chosen: random.Random) -> Iterator[str]:
    """Azure's columns."""
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    for number in count():
        prompt, answer = lengths(chosen)
        when = f"2023-11-16 {number // 360000 % 24:02}:{number // 6000 % 60:02}:{number // 100 % 60:02}"
        yield f"{when}.{number % 100:02}99600,{prompt},{answer}"


def engine(chosen: random.Random) -> Iterator[str]:
    """vLLM's own lines, with the ids of prompts and answers, and lines that speak of other things."""
    head = "INFO 11-16 18:17:03 [logger.py:40] "
    for number in count():
        prompt, answer = lengths(chosen)
        ids = ", ".join(map(str, chosen.choices(range(150_000), k=prompt)))
        yield (
            f"{head}Received request cmpl-{number}: prompt: {text(chosen, prompt)!r}, params: SamplingParams(n=1, "
            f"temperature=1.0, max_tokens=512), prompt_token_ids: [{ids}], prompt_embeds shape: None."
        )
        ids = ", ".join(map(str, chosen.choices(range(150_000), k=answer)))
        yield f"{head}Generated response cmpl-{number}: output: 'x', output_token_ids: [{ids}], finish_reason: stop"
        yield "INFO 11-16 18:17:09 [loggers.py:123] Engine 000: Avg prompt throughput: 1024.1 tokens/s, Running: 3 reqs"


KINDS: dict[str, Callable[[random.Random], Iterator[str]]] = {
    "usage": usage,
    "spend": spend,
    "Anthropic": anthropic,
    "Mooncake": mooncake,
    "answers": answers,
    "texts": texts,
    "CSV": table,
    "vLLM log": engine,
}


def write(path: Path, lines: Iterator[str]) -> None:
    """As many lines as the page reads."""
    left = MAX_LOG_BYTES
    with path.open("wb") as out:
        for line in islice(lines, MAX_REQUESTS):
            data = line.encode() + b"\n"
            if (left := left - len(data)) < 0:
                return
            out.write(data)


def main() -> None:
    """Prints CPU, the longest stretch, memory and requests of each kind."""
    wanted = os.environ.get("KINDS", ",".join(KINDS)).split(",")
    print(f"upload: 50 MiB of each kind of log on the Workload page, allowed {ALLOWED_SECONDS:g} s of CPU")
    for name in wanted:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "log")
            write(path, KINDS[name](random.Random(4)))
            command = [sys.executable, "-c", READ, str(path)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
        seconds, longest, kib, requests = done.stdout.split()
        print(
            f"  {name:<9}  {float(seconds):6.2f} s of CPU  longest {1000 * float(longest):5.0f} ms"
            f"  {int(kib) >> 10:4} MiB  {int(requests):9,} requests"
        )


if __name__ == "__main__":
    main()
