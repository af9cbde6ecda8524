"""Made-up traffic of eight kinds, from fixed seeds, and the replay of each under load that never ends."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random

from packaging.version import Version

from kvcore.replay.scheduler import Scheduler
from kvcore.replay.settings import Settings, rules_of
from kvcore.replay.trace import Contents, Piece, TraceRequest

MAX_MODEL_LEN = 32_768
BLOCK = 16
MIXES = (
    "lognormal",
    "exponential",
    "heavy-tailed",
    "ten-percent-long",
    "constant",
    "summarise",
    "chat",
    "agents",
)
SYSTEM = {"chat": 512, "agents": 2048}
"""Tokens that all prompts of a mix begin with."""


def lengths_of(mix: str, random: Random) -> tuple[int, int]:
    """Prompt and answer of one request."""

    def around(median: float, spread: float) -> int:
        return max(1, min(20_000, round(random.lognormvariate(math.log(median), spread))))

    match mix:
        case "lognormal":
            return around(600, 0.8), around(200, 0.8)
        case "exponential":
            return around(400, 0.5), max(1, round(random.expovariate(1 / 250)))
        case "heavy-tailed":
            return around(300, 0.6), min(2500, round(60 * random.paretovariate(1.2)))
        case "ten-percent-long":
            is_long = random.random() < 0.1
            return (around(6000, 0.3), around(400, 0.4)) if is_long else (around(300, 0.5), around(150, 0.6))
        case "constant":
            return 512, 128
        case _:
            return around(3000, 0.5), around(120, 0.4)


def turns_of(mix: str, at: int, random: Random) -> list[TraceRequest]:
    """The requests of one session, each with the whole history; one where the mix has no sessions."""
    if mix not in SYSTEM:
        prompt, answer = lengths_of(mix, random)
        return [TraceRequest(id=f"{at}", arrival=0, prompt=((f"u{at}", prompt),), answer_tokens=answer)]
    history: list[Piece] = [("system", SYSTEM[mix])]
    found = []
    for turn in range(random.randint(2, 7) if mix == "chat" else random.randint(5, 15)):
        asked, answer = (60, 250) if mix == "chat" else (400, 80)
        history.append((f"u{at}.{turn}", max(1, round(random.lognormvariate(math.log(asked), 0.6)))))
        tokens = max(1, round(random.lognormvariate(math.log(answer), 0.6)))
        request = TraceRequest(id=f"{at}.{turn}", arrival=0, prompt=tuple(history), answer_tokens=tokens)
        found.append(request)
        history.append((f"answer:{request.id}", tokens))
    return found


@cache
def sessions_of(mix: str, requests: int = 4000) -> list[list[TraceRequest]]:
    """Sessions with about so many requests in all."""
    random = Random(f"{mix} 7")
    found: list[list[TraceRequest]] = []
    while sum(map(len, found)) < requests if mix in SYSTEM else len(found) < requests:
        found.append(turns_of(mix, len(found), random))
    return found


def interleaved(mix: str) -> list[TraceRequest]:
    """All requests of a mix, as stationary at the start as at the end: turns of a session are a stretch apart."""
    sessions = sessions_of(mix)
    requests = sum(map(len, sessions))
    random = Random(11)
    placed = []
    for turns in sessions:
        start = random.random() * requests
        placed += [((start + at * requests / 20) % requests, request) for at, request in enumerate(turns)]
    return [request for _, request in sorted(placed, key=lambda one: one[0])]


def cells_of(mix: str) -> list[tuple[int, int, int]]:
    """Prompt, answer and number of requests."""
    counted = Counter((one.prompt_tokens, one.answer_tokens) for turns in sessions_of(mix) for one in turns)
    return [(prompt, answer, count) for (prompt, answer), count in counted.items()]


@dataclass(frozen=True, kw_only=True)
class Saturated:
    """Results of a replay after its warm-up."""

    running: float
    preempted: float
    """Preemptions a request."""
    used: float


@cache
def saturated(mix: str, blocks: int, seats: int, *, batched_tokens: int = 8192) -> Saturated:
    """The mix through the scheduler, somebody always waiting."""
    requests = interleaved(mix)
    settings = Settings(
        num_blocks=blocks + 1, block_size=BLOCK, max_num_seqs=seats, max_num_batched_tokens=batched_tokens,
        max_model_len=MAX_MODEL_LEN, rules=rules_of(Version("0.32.0")), enable_prefix_caching=mix in SYSTEM,
        async_scheduling=True,
    )  # fmt: skip
    scheduler = Scheduler(settings, Contents(requests if mix in SYSTEM else [], BLOCK))
    at = done = steps = running = used = warm_done = warm_preempted = 0
    while at < len(requests):
        while at < len(requests) and len(scheduler.waiting) < 4:
            scheduler.add(at, requests[at])
            at += 1
        scheduler.step()
        done += len(scheduler.finished)
        if done > 0.2 * len(requests) and done < 0.95 * len(requests):
            if not steps:
                warm_done, warm_preempted = done, scheduler.totals.preemptions
            steps += 1
            running += scheduler.running_requests
            used += scheduler.used_blocks
    preempted = (scheduler.totals.preemptions - warm_preempted) / max(1, done - warm_done)
    return Saturated(running=running / steps, preempted=preempted, used=used / steps / blocks)


def largest(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number that fits, by halving."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
