"""Requests of a benchmark with their times: results of vLLM, AIPerf and GuideLLM, and the engine steps behind them."""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from statistics import median
from typing import Any, Final, TypeGuard

from msgspec import Struct

from kvcore.base.errors import KvPlannerError, WorkloadError
from kvcore.base.untrusted import parse_json_object
from kvcore.workload.layers import field_names, seconds_of

SHORTEST_GAP: Final = 1e-6
"""Seconds; after a shorter gap the token came in one message with the one before it."""
MAX_BENCH_BYTES: Final = 64 << 20
"""Size of a result file on the command line; the page takes less."""
MAX_BENCH_VALUES: Final = 1 << 22
"""Values of a result file, which has the gaps between the tokens of all answers."""
MAX_LENGTH: Final = 1 << 24
MAX_SECONDS: Final = 1e9
OTHER_ENGINES: Final = frozenset(
    ("sglang", "sglang-native", "sglang-oai", "sglang-oai-chat", "tgi", "tensorrt-llm", "trt", "lmdeploy",
     "lmdeploy-chat", "deepspeed-mii", "scalellm", "llama.cpp", "ollama", "gserver", "truss")
)  # fmt: skip
"""`backend` of a benchmark of another engine, whose steps are not those of vLLM.

Source: vllm/benchmarks/lib/endpoint_request_func.py:ASYNC_REQUEST_FUNCS (0.11.0); sglang/bench_serving.py."""
TIES: Final = 0.5
"""Share of the shortest usual gap within which tokens of different streams came from one step. Steps end at least that
gap apart; half of it is left for streams that are read late (a choice, tried with up to 2 ms on steps of 8 ms)."""
MAX_WALK: Final = 1 << 22
"""Steps of all prompts that are looked at."""
SHORTEST_USUAL: Final = 0.1
"""The share of all gaps that may be shorter than a usual one."""


class BenchRequest(Struct, frozen=True, kw_only=True):
    """A request that was answered: seconds and tokens."""

    start: float
    prompt: int
    answer: int
    ttft: float
    gaps: tuple[float, ...] | None
    """Between its tokens; None where only their mean is known."""
    tpot: float
    """Mean gap between its tokens; 0 for one token."""


def read_bench(
    text: str, max_bytes: int = MAX_BENCH_BYTES, max_values: int = MAX_BENCH_VALUES
) -> tuple[BenchRequest, ...]:
    """The answered requests of a result: a JSON object of vLLM or GuideLLM, or AIPerf's JSON lines.

    Raises ScenarioError as `parse_json_object`, WorkloadError as `bench_requests`.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and all(line[:1] == "{" and line.rstrip()[-1:] == "}" for line in lines[:2]):
        if len(text) > max_bytes:
            raise WorkloadError("request-log-too-large", field="bench", limit=f"{max_bytes >> 20} MiB")
        found: list[Mapping[str, Any]] = []
        for line in lines:
            try:
                found.append(
                    parse_json_object(line, max_bytes=max_bytes, max_values=max_values, field="bench")
                )
            except KvPlannerError:  # one bad line refuses nothing
                continue
        return bench_requests({"records": found})
    return bench_requests(parse_json_object(text, max_bytes=max_bytes, max_values=max_values, field="bench"))


def bench_requests(result: Mapping[str, Any]) -> tuple[BenchRequest, ...]:
    """The answered requests of a result, in order of their start; failed ones are left out.

    Raises WorkloadError `bench-other-engine`, `bench-fields` with what was found and what is missing.

    Example:
        >>> result = {"start_times": [5.0], "input_lens": [900], "ttfts": [0.2], "itls": [[0.01, 0.02]]}
        >>> [one] = bench_requests(result)
        >>> one.answer, one.tpot
        (3, 0.015)

    Source: vllm/benchmarks/serve.py:main_async (0.19.0, 0.33.0); AIPerf, docs/tutorials/working-with-profile-exports.md
    (profile_export.jsonl); GuideLLM, src/guidellm/schemas/request_stats.py.
    """
    backend = str(result.get("backend", "")).lower()
    if backend in OTHER_ENGINES:
        raise WorkloadError("bench-other-engine", field="bench", value=backend)
    if "itls" in result or "input_lens" in result or "ttfts" in result:
        rows = _of_vllm(result)
    elif isinstance(result.get("benchmarks"), list):
        rows = _of_guidellm(result)
    else:
        rows = _of_aiperf(result.get("records"))
    found = sorted(rows, key=lambda row: (row.start, row.prompt))
    if not found:
        names = field_names(json.dumps(_heads(result)).encode())
        raise WorkloadError("bench-fields", field="bench", fields=", ".join(names) or "-")
    return tuple(found)


def _heads(result: Mapping[str, Any]) -> dict[str, Any]:
    """The first record of a result, without its lists."""
    records = result.get("records")
    head = records[0] if isinstance(records, list) and records else result
    return {key: {} if isinstance(value, list) else value for key, value in head.items()}


def _of_vllm(result: Mapping[str, Any]) -> Iterator[BenchRequest]:
    columns: list[Any] = [result.get(name) for name in ("start_times", "input_lens", "ttfts", "itls")]
    if not all(isinstance(column, list) for column in columns):
        return
    number = len(columns[0] or ())
    errors, answers = result.get("errors"), result.get("output_lens")
    errors = errors if isinstance(errors, list) and len(errors) == number else [None] * number
    answers = answers if isinstance(answers, list) and len(answers) == number else [None] * number
    for start, prompt, ttft, gaps, error, answer in zip(*columns, errors, answers, strict=False):
        if error or answer == 0 or not isinstance(gaps, list) or not all(map(_is_time, gaps)):
            continue
        one = _request(start, prompt, answer if _is_length(answer) else len(gaps) + 1, ttft, tuple(gaps))
        if one is not None:
            yield one


def _of_guidellm(result: Mapping[str, Any]) -> Iterator[BenchRequest]:
    """Their times are means over a request: there are no single gaps."""
    for benchmark in result["benchmarks"]:
        requests = benchmark.get("requests") if isinstance(benchmark, dict) else None
        successful = requests.get("successful") if isinstance(requests, dict) else None
        for one in successful if isinstance(successful, list) else ():
            if isinstance(one, dict):
                found = _of_means(
                    _first(one, "start_time", "request_start_time", "info.timings.request_start"),
                    _first(one, "prompt_tokens", "input_metrics.text_tokens", "prompt_tokens_count"),
                    _first(one, "output_tokens", "output_metrics.text_tokens"),
                    _milliseconds(_first(one, "time_to_first_token_ms", "ttft_ms")),
                    _milliseconds(_first(one, "inter_token_latency_ms", "itl_ms")),
                )
                if found is not None:
                    yield found


def _of_aiperf(records: object) -> Iterator[BenchRequest]:
    for one in records if isinstance(records, list) else ():
        metrics = one.get("metrics") if isinstance(one, dict) else None
        if not isinstance(metrics, dict) or one.get("error"):
            continue
        if (
            _first(one, "metadata.was_cancelled") is True
            or _first(one, "metadata.benchmark_phase") == "warmup"
        ):
            continue
        values = {name: _valued(metrics.get(name)) for name in _AIPERF}
        gaps = values["inter_chunk_latency"]
        found = _of_means(
            _first(one, "metadata.request_start_ns"),
            _first(metrics, "input_sequence_length.value"),
            _first(metrics, "output_sequence_length.value"),
            values["time_to_first_token"],
            values["inter_token_latency"],
            tuple(gaps) if isinstance(gaps, list) and all(map(_is_time, gaps)) else None,
        )
        if found is not None:
            yield found


_AIPERF: Final = ("time_to_first_token", "inter_token_latency", "inter_chunk_latency")
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


def _valued(metric: object) -> Any:
    """A metric of AIPerf in seconds: its value, or a list of values."""
    if not isinstance(metric, dict):
        return None
    unit, value = _UNITS.get(str(metric.get("unit", "ms")), 1e-3), metric.get("value")
    if isinstance(value, list):
        return [one * unit for one in value if _is_number(one)]
    return value * unit if _is_number(value) else None


def _first(record: Mapping[str, Any], *paths: str) -> Any:
    """The value at the first of several paths that has one."""
    for path in paths:
        value: Any = record
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            return value
    return None


def _milliseconds(value: object) -> float | None:
    return value / 1e3 if _is_number(value) else None


def _of_means(
    start: object,
    prompt: object,
    answer: object,
    ttft: object,
    gap: object,
    gaps: tuple[float, ...] | None = None,
) -> BenchRequest | None:
    if not (_is_length(answer) and (_is_time(gap) or answer == 1)):
        return None
    if gaps is not None and len(gaps) != answer - 1:
        gaps = None
    return _request(seconds_of(start), prompt, answer, ttft, gaps, gap)


def _request(
    start: object,
    prompt: object,
    answer: Any,
    ttft: object,
    gaps: tuple[float, ...] | None,
    gap: object = None,
) -> BenchRequest | None:
    if not (_is_number(start) and _is_time(ttft) and _is_length(prompt)):
        return None
    mean = sum(gaps) / (answer - 1) if gaps and answer > 1 else gap if answer > 1 and _is_time(gap) else 0.0
    return BenchRequest(start=start, prompt=prompt, answer=answer, ttft=ttft, gaps=gaps, tpot=mean)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_time(value: object) -> TypeGuard[float]:
    return _is_number(value) and 0 <= value < MAX_SECONDS


def _is_length(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 < value <= MAX_LENGTH


class StepSample(Struct, frozen=True, kw_only=True):
    """Steps of a benchmark: one between two tokens of its streams, or all of one answer."""

    end: float
    """When it ended."""
    steps: int
    tokens: int
    """Tokens that were computed: one of each stream, and those of prompts."""
    prefill: int
    context: float
    """Tokens in the caches of the running requests, summed over the steps."""
    seconds: float
    idle: bool = False
    """Whether the engine was idle before, so that `seconds` begin when a client sent its request."""


def step_samples(rows: Sequence[BenchRequest], budget: int) -> list[StepSample]:
    """The engine steps behind the streams of a benchmark.

    Every stream gets a token at the end of every step, so tokens of different streams that came together are one step:
    whose line stands first, and what differs by microseconds, does not matter. A prompt is computed in the steps before
    its first token: as many as `budget`, max_num_batched_tokens, leaves it beside the others, first come, first
    served.

    Example:
        >>> rows = [BenchRequest(start=0.0, prompt=900, answer=3, ttft=0.05, gaps=(0.01, 0.01), tpot=0.01)]
        >>> [(one.tokens, one.context, round(one.seconds, 3)) for one in step_samples(rows, 8192)]
        [(900, 900.0, 0.05), (1, 901.0, 0.01), (1, 902.0, 0.01)]
    """
    streamed = [row for row in rows if row.gaps is not None]
    ends, places = _ends(streamed)
    if not ends:
        return []
    number = len(ends)
    alive, held = [0] * (number + 1), [0] * (number + 1)
    firsts = [found[0] for found in places]
    for place in places:
        # A stream decodes in the steps after its first token, up to its last one.
        alive[place[0] + 1] += 1
        alive[min(number, place[-1] + 1)] -= 1
    for at in range(1, number):
        alive[at] += alive[at - 1]
    for row, place in zip(streamed, places, strict=True):
        for tokens, at in enumerate(place[1:], start=1):
            held[at] += row.prompt + tokens
    begins, idle = _begins(streamed, firsts, ends, alive)
    left = [max(1, budget - alive[at]) for at in range(number)]
    prefill = [0] * number
    over = [False] * number
    walked = 0
    for at in sorted(range(len(streamed)), key=lambda one: (firsts[one], streamed[one].start)):
        row, first = streamed[at], firsts[at]
        earliest = min(first, bisect_left(begins, row.start - SHORTEST_GAP))
        step, before = first, 0
        while step > earliest and before + left[step - 1] < row.prompt and walked < MAX_WALK:
            step -= 1
            before += left[step]
            walked += 1
        done = 0
        for one in range(step, first + 1):
            chunk = min(left[one], row.prompt - done) if one < first else row.prompt - done
            over[one] |= chunk > left[one]
            prefill[one] += chunk
            left[one] = max(0, left[one] - chunk)
            done += chunk
            held[one] += done
    found = []
    for at in range(number):
        steps = 1
        if over[at]:
            if alive[at]:
                continue
            steps = -(-prefill[at] // budget)
        seconds = ends[at] - begins[at]
        tokens = alive[at] + prefill[at]
        if seconds > SHORTEST_GAP and tokens:
            context = held[at] * (steps + 1) / 2
            found.append(
                StepSample(
                    end=ends[at],
                    steps=steps,
                    tokens=tokens,
                    prefill=prefill[at],
                    context=context,
                    seconds=seconds,
                    idle=idle[at],
                )
            )
    return found


def _ends(rows: Sequence[BenchRequest]) -> tuple[list[float], list[list[int]]]:
    """When steps ended, and in which of them each request got its tokens; several of one message count as the last."""
    gaps = sorted(gap for row in rows for gap in row.gaps or () if gap >= SHORTEST_GAP)
    near = TIES * gaps[int(SHORTEST_USUAL * len(gaps))] if gaps else SHORTEST_GAP
    tokens: list[tuple[float, int]] = []
    for at, row in enumerate(rows):
        time = row.start + row.ttft
        tokens.append((time, at))
        for gap in row.gaps or ():
            time += gap
            if gap >= SHORTEST_GAP:
                tokens.append((time, at))
    tokens.sort()
    ends: list[float] = []
    places: list[list[int]] = [[] for _ in rows]
    group: list[float] = []
    seen: set[int] = set()
    for time, at in tokens:
        if group and (time - group[0] > near or at in seen):
            ends.append(median(group))
            group, seen = [], set()
        group.append(time)
        seen.add(at)
        places[at].append(len(ends))
    if group:
        ends.append(median(group))
    return ends, places


def _begins(
    rows: Sequence[BenchRequest], firsts: Sequence[int], ends: Sequence[float], alive: Sequence[int]
) -> tuple[list[float], list[bool]]:
    """When each step began, at the end of the one before, or when a request was sent to an idle engine; and which of
    the two."""
    starts = sorted((row.start, first) for row, first in zip(rows, firsts, strict=True))
    begins, idle, at, pending = list[float](), list[bool](), 0, 0
    begun = [0] * (len(ends) + 1)
    for step, end in enumerate(ends):
        before = ends[step - 1] if step else -math.inf
        while at < len(starts) and starts[at][0] <= before:
            pending += 1
            begun[starts[at][1]] += 1
            at += 1
        busy = step > 0 and bool(alive[step] or pending or at == len(starts))
        idle.append(not busy)
        begins.append(before if busy else min(end, max(before, starts[min(at, len(starts) - 1)][0])))
        while at < len(starts) and starts[at][0] <= end:
            pending += 1
            begun[starts[at][1]] += 1
            at += 1
        pending -= begun[step]
        begun[step] = 0
    return begins, idle


def answer_samples(rows: Sequence[BenchRequest]) -> list[StepSample]:
    """All steps of each answer together, for a benchmark that has only the means of its requests: an answer of n tokens
    had n - 1 steps, in which the tokens that others got and the prompts that ended in that time were computed.

    Example:
        >>> rows = [BenchRequest(start=0.0, prompt=900, answer=11, ttft=0.05, gaps=None, tpot=0.01)]
        >>> [(one.steps, one.tokens, one.context, round(one.seconds, 3)) for one in answer_samples(rows)]
        [(10, 10, 9055.0, 0.1)]
    """
    spans = [(row, row.start + row.ttft, row.start + row.ttft + row.tpot * (row.answer - 1)) for row in rows]
    decoding = [(first, last, row.answer - 1) for row, first, last in spans if last > first]
    tokens = _Sums(decoding)
    held = _Sums(
        [
            (first, last, (row.prompt + row.answer / 2) * (last - first))
            for row, first, last in spans
            if last > first
        ]
    )
    firsts = sorted((first, row.prompt) for row, first, _ in spans)
    times, prompts = [time for time, _ in firsts], [0, *accumulate(prompt for _, prompt in firsts)]
    found = []
    for row, first, last in spans:
        steps = row.answer - 1
        if steps >= FEWEST_GAPS and last > first:
            prefill = prompts[bisect_right(times, last)] - prompts[bisect_right(times, first)]
            found.append(
                StepSample(
                    end=last,
                    steps=steps,
                    tokens=round(tokens.between(first, last)) + prefill,
                    prefill=prefill,
                    context=steps * held.between(first, last) / (last - first),
                    seconds=last - first,
                )
            )
    return found


class _Sums:
    """What several evenly spread amounts come to up to a time: (begin, end, amount) each."""

    def __init__(self, spread: Sequence[tuple[float, float, float]]) -> None:
        changes = sorted(
            change
            for begin, end, amount in spread
            for change in ((begin, amount / (end - begin)), (end, -amount / (end - begin)))
        )
        self._times, self._sums, self._rates = list[float](), list[float](), list[float]()
        total = rate = 0.0
        before = 0.0
        for time, change in changes:
            total += rate * (time - before)
            rate, before = rate + change, time
            self._times.append(time)
            self._sums.append(total)
            self._rates.append(rate)

    def between(self, begin: float, end: float) -> float:
        return self._until(end) - self._until(begin)

    def _until(self, time: float) -> float:
        at = bisect_right(self._times, time) - 1
        return self._sums[at] + self._rates[at] * (time - self._times[at]) if at >= 0 else 0.0


FEWEST_GAPS: Final = 4
"""Gaps of an answer whose mean is used."""
