"""A small load in a small pool, replayed by the engine's own scheduler, for a class to watch: blocks and steps.

Four requests, of which two begin with the same system prompt, in a pool that is too small for all of them: so blocks
fill, are shared, run out, and one request is preempted and computed again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct
from packaging.version import Version

from kvcore.replay.scheduler import ALWAYS, Live, Scheduler
from kvcore.replay.settings import TABLE, Settings, rules_of
from kvcore.replay.trace import Contents, TraceRequest

BLOCK_TOKENS: Final = 4
"""Small, so that a class sees it fill."""
POOL_BLOCKS: Final = 13
CHUNKS: Final = (4, 8, 16, 32)
"""Values of max_num_batched_tokens to choose from."""
SYSTEM: Final = ("system", 2 * BLOCK_TOKENS)
"""The system prompt that the first two requests share."""
LOAD: Final = (
    TraceRequest(id="A", arrival=0, prompt=(SYSTEM, ("a", 2)), answer_tokens=8),
    TraceRequest(id="B", arrival=1, prompt=(SYSTEM, ("b", 3)), answer_tokens=8),
    TraceRequest(id="C", arrival=3, prompt=(("c", 21),), answer_tokens=4),
    TraceRequest(id="D", arrival=5, prompt=(("d", 6),), answer_tokens=6),
)
"""A and B begin alike, C is long, D comes late."""
MOST_STEPS: Final = 100


class State(StrEnum):
    """The state of a request in one step."""

    AWAY = "away"
    """Not there yet, or finished."""
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"


class Cell(Struct, frozen=True, kw_only=True):
    """One request in one step: what it does, with how many tokens, and what it has in the cache afterwards."""

    state: State
    tokens: int = 0
    hit_tokens: int = 0
    """Found in the cache on admission, not computed."""
    cached_tokens: int = 0
    blocks: tuple[int, ...] = ()
    """Numbers of its blocks, in the order of its tokens."""


class Frame(Struct, frozen=True, kw_only=True):
    """The pool after one `schedule()`."""

    step: int
    cells: dict[str, Cell]
    free_blocks: int

    @property
    def tokens(self) -> int:
        """Computed in this step, of all requests."""
        return sum(cell.tokens for cell in self.cells.values())


class Classroom(Struct, frozen=True, kw_only=True):
    """The replay: its settings, and a frame for each step."""

    chunk: int
    """max_num_batched_tokens."""
    frames: tuple[Frame, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The requests, in order of arrival."""
        return tuple(self.frames[0].cells)

    def first(self, state: State) -> int:
        """The first step in which a request is in `state`; 0 where none ever is."""
        steps = (frame.step for frame in self.frames for cell in frame.cells.values() if cell.state is state)
        return next(steps, 0)


class _Watched(Scheduler):
    """The scheduler, and what each request found in the cache when it was last admitted."""

    def __init__(self, settings: Settings, contents: Contents) -> None:
        super().__init__(settings, contents)
        self.hits: dict[str, int] = {}
        self.held: dict[str, tuple[int, ...]] = {}
        """Blocks that a request had when it ended."""

    def _count_look_up(self, request: Live, known: int, hit: int) -> None:
        self.hits[request.trace.id] = hit
        super()._count_look_up(request, known, hit)

    def _end(self, request: Live) -> None:
        self.held[request.trace.id] = tuple(request.blocks)
        super()._end(request)


def classroom(version: Version, *, chunk: int = 16) -> Classroom:
    """The load in a pool of 13 blocks of 4 tokens, with steps of at most `chunk` tokens, by the rules of a release.

    A release older than those that are replayed is taken for the oldest of them.

    Source: kvcore/replay, which follows vLLM's V1 scheduler (0.19.0 to 0.33.0), synchronous.

    Example:
        >>> found = classroom(Version("0.33.0"))
        >>> found.frames[0].cells["A"].tokens, found.first(State.PREEMPTED)
        (10, 7)
    """
    rules = rules_of(max(version, TABLE.load().oldest))
    settings = Settings(
        num_blocks=POOL_BLOCKS + 1,
        max_num_seqs=len(LOAD),
        max_num_batched_tokens=chunk,
        max_model_len=POOL_BLOCKS * BLOCK_TOKENS,
        rules=rules,
        block_size=BLOCK_TOKENS,
        async_scheduling=False,
    )
    scheduler = _Watched(settings, Contents(LOAD, BLOCK_TOKENS))
    lives: dict[str, Live] = {}
    cells = {request.id: Cell(state=State.AWAY) for request in LOAD}
    frames: list[Frame] = []
    while len(frames) < MOST_STEPS:
        step = len(frames)
        for at, request in enumerate(LOAD):
            if request.arrival == step:
                scheduler.add(at, request)
                lives[request.id] = scheduler.waiting[-1]
        scheduler.step()
        cells = {name: _cell(lives.get(name), scheduler, step, cells[name]) for name in cells}
        frames.append(Frame(step=step, cells=cells, free_blocks=POOL_BLOCKS - scheduler.used_blocks))
        if len(lives) == len(LOAD) and not scheduler.running and not scheduler.waiting:
            break
    return Classroom(chunk=chunk, frames=tuple(frames))


def _cell(live: Live | None, scheduler: _Watched, step: int, before: Cell) -> Cell:
    """A request in the last step; one that ended in it is shown with the blocks that it had."""
    if live is None:
        return Cell(state=State.AWAY)
    if live in scheduler.waiting:
        return Cell(state=State.PREEMPTED if live.preempted else State.WAITING)
    has_ended = live in scheduler.finished
    if live not in scheduler.running and not has_ended:
        return Cell(state=State.AWAY)
    cruises = live.due != ALWAYS and not has_ended
    computed = live.computed + step + 1 - live.since if cruises else live.computed
    hit = 0 if before.cached_tokens else scheduler.hits.get(live.trace.id, 0)
    tokens = computed - before.cached_tokens - hit
    return Cell(
        state=State.PREFILL if computed <= live.trace.prompt_tokens or tokens > 1 else State.DECODE,
        tokens=tokens,
        hit_tokens=hit,
        cached_tokens=computed,
        blocks=scheduler.held[live.trace.id] if has_ended else tuple(live.blocks),
    )
