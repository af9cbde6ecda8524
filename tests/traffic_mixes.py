"""Made-up traffic of eight kinds, from fixed seeds, and the replay of each under load that never ends."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from random import Random

from msgspec.structs import replace

from kvcore import plan
from kvcore.replay.hybrid import scheduler_of
from kvcore.replay.settings import Settings, settings_of
from kvcore.replay.trace import Contents, Piece, TraceRequest
from kvcore.workload.held import holding_of
from kvcore.workload.histogram import JointHistogram
from kvcore.workload.mix import STEADY_CELLS
from kvcore.workload.recall import recall_of
from kvcore.workload.steady import steady_state

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
HASH_TOKENS = 16


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


@cache
def interleaved(mix: str, requests: int, apart: int) -> list[TraceRequest]:
    """All requests of a mix, as stationary at the start as at the end: at least `apart` others come between two turns
    of a session, so that they never run at once."""
    sessions = sessions_of(mix, requests)
    number = sum(map(len, sessions))
    random = Random(11)
    placed = []
    for turns in sessions:
        start = random.random() * number
        placed += [
            ((start + at * max(apart, number / 20)) % number, request) for at, request in enumerate(turns)
        ]
    return [request for _, request in sorted(placed, key=lambda one: one[0])]


def blocks_of(trace: list[TraceRequest]) -> Iterator[tuple[list[int], list[int]]]:
    """Hashes of the prompt of each request, and of all that it leaves in the cache."""
    contents = Contents(trace, HASH_TOKENS)
    for one in trace:
        left = contents.of(one, (one.prompt_tokens + one.answer_tokens - 1) // HASH_TOKENS)
        yield left[: (one.prompt_tokens - 1) // HASH_TOKENS], left


@cache
def cells_of(mix: str) -> tuple[tuple[int, int, int], ...]:
    """Prompt, answer and number of requests, binned as those of a log."""
    counted = Counter((one.prompt_tokens, one.answer_tokens) for turns in sessions_of(mix) for one in turns)
    return tuple(JointHistogram.from_counts(counted).binned(STEADY_CELLS)[0].items)


@dataclass(frozen=True, kw_only=True)
class Saturated:
    """Results of a replay after its warm-up."""

    running: float
    preempted: float
    """Preemptions a request."""
    used: float


def saturated(settings: Settings, mix: str, requests: int, apart: int) -> Saturated:
    """The mix through the scheduler, somebody always waiting."""
    longest = max(one.prompt_tokens + one.answer_tokens for one in interleaved(mix, requests, apart))
    # A limit that no request reaches changes nothing.
    return _saturated(
        replace(settings, max_model_len=min(settings.max_model_len, 2 * longest)), mix, requests, apart
    )


@lru_cache(maxsize=4)
def _saturated(settings: Settings, mix: str, requests: int, apart: int) -> Saturated:
    trace = interleaved(mix, requests, apart)
    scheduler = scheduler_of(settings, trace)
    at = done = steps = running = used = warm_done = warm_preempted = 0
    while at < len(trace):
        while at < len(trace) and len(scheduler.waiting) < WAITING:
            scheduler.add(at, trace[at])
            at += 1
        scheduler.step()
        done += len(scheduler.finished)
        if done > 0.2 * len(trace) and done < 0.95 * len(trace):
            if not steps:
                warm_done, warm_preempted = done, scheduler.totals.preemptions
            steps += 1
            running += scheduler.running_requests
            used += scheduler.used_blocks
    preempted = (scheduler.totals.preemptions - warm_preempted) / max(1, done - warm_done)
    return Saturated(running=running / steps, preempted=preempted, used=used / steps / settings.usable_blocks)


WAITING = 300
"""Requests in the queue, more than a step admits."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A mix on a model: what the formula says, and what the replay does."""

    said: float
    running: float
    seats: int | None
    """max_num_seqs that is advised; None for any."""
    preempted: float | None
    """Preemptions a request with so many; None where that was not replayed."""

    @property
    def error(self) -> float:
        """Share by which too many are said to run."""
        return self.said / self.running - 1


MODELS = {
    "Qwen3-8B": ("Qwen/Qwen3-8B", "L40S-48GB", 1),
    "gpt-oss-120b": ("openai/gpt-oss-120b", "H100-80GB", 1),
    "gemma-3-27b": ("google/gemma-3-27b-it", "H100-80GB", 1),
    "Qwen3.5-35B-A3B": ("Qwen/Qwen3.5-35B-A3B", "H100-80GB", 2),
    "Nemotron-Nano-9B-v2": ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "L40S-48GB", 1),
    "DeepSeek-V2-Lite": ("deepseek-ai/DeepSeek-V2-Lite", "L40S-48GB", 1),
    "Llama-4-Scout": ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "H100-80GB", 4),
}
"""Model, accelerator and tensor parallel size: full attention, windows, recurrent states, latent vectors, chunks."""


def cell(model: str, mix: str, max_model_len: int, *, with_seats: bool = True) -> Cell:
    """One mix on one model of MODELS with vLLM 0.32.0."""
    name, card, size = MODELS[model]
    planned = plan(
        model=name, accelerator=card, tensor_parallel_size=size, max_model_len=max_model_len,
        engine_version="0.32.0",
    )  # fmt: skip
    holding, settings = holding_of(planned), settings_of(planned)
    assert holding is not None
    steady = steady_state(cells_of(mix), holding, max_model_len, shared_tokens=SYSTEM.get(mix, 0))
    assert steady is not None
    cold, seats = steady.running(settings.max_num_seqs), steady.most_seats()
    requests, apart = min(16_000, max(2000, round(40 * cold))), round(2.5 * cold)
    if mix in SYSTEM:
        recall = recall_of(blocks_of(interleaved(mix, requests, apart)), HASH_TOKENS)
        steady = steady_state(cells_of(mix), holding, max_model_len, shared_tokens=SYSTEM[mix], recall=recall)
        assert steady is not None
    said = steady.running(settings.max_num_seqs)
    found = saturated(settings, mix, requests, apart)
    preempted = None
    if with_seats:
        seated = found
        if seats is not None:
            limited = replace(settings, max_num_seqs=seats)
            seated = saturated(limited, mix, requests, apart)
        preempted = seated.preempted
    return Cell(said=said, running=found.running, seats=seats, preempted=preempted)
