"""Little's law: how many requests are in the system at once, from how many arrive and how long each stays.

    requests at once = arrivals per second × seconds in the system

It needs no assumption about how requests arrive or in which order they are answered; only that as many leave as come.
Source: J. D. C. Little, A Proof for the Queuing Formula L = λW, Operations Research 9 (1961).
"""

from __future__ import annotations

import math

from msgspec import Struct

from kvcore.base.units import ceil_div
from kvcore.planning import Plan
from kvcore.workload.limits import STARTING, requests_at


class Arrivals(Struct, frozen=True, kw_only=True):
    """Requests that arrive all the time, each with the same prompt and answer.

    Example:
        >>> post_mortem = Arrivals(per_second=50, prompt_tokens=1200, answer_tokens=512, first_token_seconds=0,
        ...                        tokens_per_second=15)
        >>> round(post_mortem.seconds_in_system, 1), post_mortem.requests_at_once
        (34.1, 1707)
    """

    per_second: float
    prompt_tokens: int
    answer_tokens: int
    first_token_seconds: float
    """From arrival to the first token: the queue and the prompt."""
    tokens_per_second: float
    """Of one answer, not of the server."""

    @property
    def seconds_in_system(self) -> float:
        """seconds to the first token + answer tokens / tokens per second."""
        return self.first_token_seconds + self.answer_tokens / self.tokens_per_second

    @property
    def requests_at_once(self) -> int:
        """⌈arrivals per second × seconds in the system⌉, at least one."""
        return max(1, math.ceil(self.per_second * self.seconds_in_system - 1e-9))

    @property
    def request_tokens(self) -> int:
        """What a request takes of the KV cache when its answer ends."""
        return self.prompt_tokens + self.answer_tokens


class Fleet(Struct, frozen=True, kw_only=True):
    """The replicas that carry `Arrivals`, and their cards."""

    requests_per_replica: int
    """Of the full prompt and answer, and no more than max_num_seqs."""
    replicas: int
    running: int
    """Requests at once on the replica that has most of them."""
    cards: int


def fleet_for(plan: Plan, arrivals: Arrivals) -> Fleet | None:
    """How many replicas of `plan` carry `arrivals`; None where the engine does not start or has no room for one.

    replicas = ⌈requests at once / min(KV cache / (prompt + answer), max_num_seqs)⌉
    cards = replicas × GPUs of a replica
    """
    if plan.verdict not in STARTING or arrivals.request_tokens > plan.resolved.max_model_len:
        return None
    (room,) = requests_at(plan, (arrivals.request_tokens,))
    seats = plan.resolved.max_num_seqs
    held = seats if math.isinf(room) else min(math.floor(room + 1e-9), seats)
    if held < 1:
        return None
    replicas = ceil_div(arrivals.requests_at_once, held)
    return Fleet(
        requests_per_replica=held,
        replicas=replicas,
        running=ceil_div(arrivals.requests_at_once, replicas),
        cards=replicas * plan.scenario.parallel.ranks_per_replica,
    )
