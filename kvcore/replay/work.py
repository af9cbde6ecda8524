"""The CPU time that a replay will take, estimated before it begins: one that takes too long is refused at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from kvcore.base.errors import WorkloadError
from kvcore.replay.clock import Clock
from kvcore.replay.scheduler import Scheduler
from kvcore.replay.settings import Settings
from kvcore.replay.trace import TraceRequest

STEP_SECONDS: Final = 2e-6
"""CPU of a step in which nothing happens but one token for each request."""
EVENT_SECONDS: Final = 4e-6
"""CPU of a block taken by one request."""
REQUEST_SECONDS: Final = 5e-5
MOST_SECONDS: Final = 180.0
"""CPU time of one replay; a choice."""


class _Lone:
    """A step of one decoding request."""

    tokens = 1
    prefill_tokens = 0

    def __init__(self, context_tokens: int) -> None:
        self.context_tokens = context_tokens


def expected_seconds(requests: Sequence[TraceRequest], settings: Settings, clock: Clock) -> float:
    """CPU seconds of a replay: of its steps, of the blocks that are taken, and of its requests.

    A step is taken whenever a request runs, so their number is the time in which any does over that of a step: each
    request runs from its arrival for as many steps as its answer has tokens, if nothing delays it.

    Example:
        >>> from packaging.version import Version
        >>> from kvcore.replay.clock import UserClock
        >>> from kvcore.replay.settings import rules_of
        >>> settings = Settings(num_blocks=99, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=1024,
        ...                     rules=rules_of(Version("0.32.0")))
        >>> slow = TraceRequest(id="a", arrival=0, prompt=(("a", 16),), answer_tokens=1000)
        >>> clock = UserClock(prefill_tokens_per_second=1e4, decode_tokens_per_second=50)
        >>> 0.001 < expected_seconds([slow], settings, clock) < 0.01
        True
    """
    if not requests:
        return 0.0
    middle = sorted(one.prompt_tokens for one in requests)[len(requests) // 2]
    step = max(1e-6, clock.seconds(cast(Scheduler, _Lone(middle))))
    busy = ends = events = 0.0
    for one in requests:
        start = max(one.arrival, ends)
        ends = max(ends, one.arrival + one.answer_tokens * step)
        busy += max(0.0, ends - start)
        events += (one.prompt_tokens + one.answer_tokens) / settings.hash_block_size
    groups = max(1, len(settings.groups))
    return busy / step * STEP_SECONDS + events * groups * EVENT_SECONDS + len(requests) * REQUEST_SECONDS


def check_work(requests: Sequence[TraceRequest], settings: Settings, clock: Clock) -> None:
    """Raises WorkloadError `replay-too-much-work` for a replay that takes longer than MOST_SECONDS of CPU."""
    seconds = expected_seconds(requests, settings, clock)
    if seconds > MOST_SECONDS:
        raise WorkloadError(
            "replay-too-much-work", field="requests", seconds=f"{seconds:,.0f}", limit=f"{MOST_SECONDS:g}"
        )
