"""For each max_model_len: which requests of a mix it refuses or cuts, and how many run at once.

Conversations grow towards the limit turn by turn; a prefix that all requests share is kept once.

A request of length L takes 1 / C(L) of the pool, with C(L) the engine's own concurrency at that length, so the same
rule applies to every kind of cache.
"""

from __future__ import annotations

import math
from typing import Final, assert_never

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError
from kvcore.base.units import ceil_div, round_up
from kvcore.cache.capacity import max_concurrency_at
from kvcore.cache.rules import rules_in_force
from kvcore.cache.spec import FULL_KINDS, context_ranks
from kvcore.catalogue.documented import documented_yarn
from kvcore.engine.protocol import Resolved
from kvcore.engine.switches import LongRequests
from kvcore.evidence.carry import carried_over
from kvcore.model.rope import Yarn
from kvcore.planning import Plan, Verdict, plan, stage_kv_bytes
from kvcore.scenario import Scenario
from kvcore.workload.held import holding_of
from kvcore.workload.mix import ROUND_TO, Mix
from kvcore.workload.recall import Recall
from kvcore.workload.steady import Steady, steady_state

ALLOW_LONG: Final = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
STARTING: Final = (Verdict.FITS, Verdict.TIGHT)


class LimitChoice(Struct, frozen=True, kw_only=True):
    """One max_model_len, planned, with the mix that it serves."""

    limit_tokens: int
    plan: Plan | None
    error: KvPlannerError | None
    share_left_out: float
    """Share of the requests that need more: refused or cut short."""
    mean_tokens: float
    """Mean tokens of a request when its answer ends, under this limit."""
    worst_case_requests: float = 0.0
    """Requests at once when each is as long as the limit; 0 where the engine does not start."""
    mean_requests: float = 0.0
    """Requests at once when each has the mean length."""
    steady: Steady | None = None
    """The mix in the steady state; None where the engine does not start or keeps nothing of a request."""

    @property
    def starts(self) -> bool:
        """Whether the engine starts with this limit."""
        return self.plan is not None and self.plan.verdict in STARTING and not is_above_model(self.plan)

    @property
    def running_requests(self) -> float:
        """Requests that run at once on average while others wait; 0 where that is not known."""
        if self.steady is None or self.plan is None:
            return 0.0
        return self.steady.running(self.plan.resolved.max_num_seqs)

    @property
    def preemptions(self) -> float | None:
        """Preemptions a request with max_num_seqs requests running all the time."""
        if self.steady is None or self.plan is None:
            return None
        return self.steady.preemptions(self.plan.resolved.max_num_seqs)


def limit_choice(base: Scenario, mix: Mix, limit_tokens: int) -> LimitChoice:
    """`base` with this max_model_len, and the mix under it. A refusal of the engine is a choice too."""
    taken = mix.taken_at(limit_tokens)
    planned: Plan | None = None
    error: KvPlannerError | None = None
    try:
        planned = plan(carried_over(base, replace(base, max_model_len=limit_tokens)))
    except KvPlannerError as refusal:
        error = refusal
    choice = LimitChoice(
        limit_tokens=limit_tokens,
        plan=planned,
        error=error,
        share_left_out=mix.needed.share_above(limit_tokens),
        mean_tokens=taken.mean_tokens,
    )
    if planned is None or not choice.starts:
        return choice
    at_limit, at_mean = requests_at(planned, (limit_tokens, max(1, math.ceil(choice.mean_tokens))))
    steady = steady_of(planned, mix)
    return replace(choice, worst_case_requests=at_limit, mean_requests=at_mean, steady=steady)


def limit_choices(base: Plan, mix: Mix, tried_tokens: int) -> tuple[LimitChoice, ...]:
    """The limits worth a look, rising: for 95 %, 99 % and all requests, the powers of two around that, now, `tried`."""
    recommended = mix.recommended_max_model_len
    power = 1 << (recommended - 1).bit_length()
    limits = {
        round_up(max(1, mix.needed.percentile_tokens(95)), ROUND_TO),
        recommended,
        max(ROUND_TO, power // 2),
        power,
        base.resolved.max_model_len,
        tried_tokens,
    }
    if not mix.is_from_percentiles:
        limits.add(round_up(max(1, mix.needed.longest_tokens), ROUND_TO))
    return tuple(limit_choice(base.scenario, mix, limit) for limit in sorted(limits))


def is_above_model(planned: Plan) -> bool:
    """Whether max_model_len is above what the model was made for, and nobody has allowed that.

    Source: vllm/config/model.py:_get_and_verify_max_len (0.19.0).
    """
    allowed = (planned.scenario.env or {}).get(ALLOW_LONG, "").lower() in ("1", "true")
    return planned.resolved.max_model_len > planned.resolved.derived_max_model_len and not allowed


def stretch_for(planned: Plan) -> Yarn | None:
    """The stretched rope that the model's publisher documents, where it reaches the planned length."""
    yarn = documented_yarn(planned.scenario.model)
    if yarn is None or planned.scenario.hf_overrides is not None:
        return None
    return yarn if planned.resolved.max_model_len <= yarn.max_model_len else None


def requests_at(planned: Plan, lengths: tuple[int, ...]) -> tuple[float, ...]:
    """How many requests of each length the pool of `planned` has room for at once; 0 without a pool."""
    available = stage_kv_bytes(planned.stage_kv)
    if min(available, default=0) <= 0 or planned.cache is None:
        return (0.0,) * len(lengths)
    return max_concurrency_at(planned.specs, available, planned.resolved, planned.scenario.parallel, lengths)


def steady_of(planned: Plan, mix: Mix, shared_tokens: int = 0, recall: Recall | None = None) -> Steady | None:
    """The mix in the pool of `planned`; None without a pool, or where requests take nothing of it.

    With `shared_tokens` at the start of every prompt the pool stores their blocks once: of N blocks and s shared ones
    a request of b blocks takes (b − s) / (N − s). `recall` is what the log's prompts share with earlier ones.
    """
    holding = holding_of(planned)
    if holding is None or (planned.available_kv_bytes or 0) <= 0:
        return None
    limit = planned.resolved.max_model_len
    return steady_state(mix.joint_cells, holding, limit, shared_tokens=shared_tokens, recall=recall)


def _context_ranks(planned: Plan) -> int:
    """Ranks that share the tokens of one sequence."""
    resolved = planned.resolved
    return context_ranks(planned.scenario.parallel, rules_in_force(resolved.engine, resolved.version))


def shared_blocks(planned: Plan, tokens: int) -> int:
    """Whole blocks of a prefix, of all groups of full attention: Σ ⌊tokens / block⌋."""
    if planned.cache is None:
        return 0
    ranks = _context_ranks(planned)
    sizes = (group.block_tokens * ranks for group in planned.cache.groups if group.kind in FULL_KINDS)
    return sum(max(0, tokens) // size for size in sizes)


def refuses_longer(resolved: Resolved) -> bool | None:
    """Whether the release answers a request that needs more than max_model_len with an error, rather than stopping
    its answer at the limit; None where that was not read.

    Source: vllm/renderers/params.py:TokenizeParams.max_input_tokens (0.28.0 subtracts max_tokens, 0.32.0 does not),
    vllm/entrypoints/openai/serving_engine.py:_validate_input (0.11.0).
    """
    match resolved.switches.long_requests:
        case LongRequests.REFUSED:
            return True
        case LongRequests.UNREAD:
            return None
        case LongRequests.CUT:
            return False
        case other:
            assert_never(other)


class Conversation(Struct, frozen=True, kw_only=True):
    """A chat whose client sends the history again with each turn."""

    system_tokens: int
    user_tokens: int
    answer_tokens: int
    kept_turns: int = 0
    """Earlier turns that the client keeps; 0 for all."""

    def taken_tokens(self, turn: int) -> int:
        """Tokens that the request of one turn takes when its answer ends.

        system + min(turn − 1, kept) × (user + answer) + user + answer

        Example:
            >>> chat = Conversation(system_tokens=500, user_tokens=100, answer_tokens=400)
            >>> [chat.taken_tokens(turn) for turn in (1, 2, 5)]
            [1000, 1500, 3000]
        """
        history = turn - 1 if not self.kept_turns else min(turn - 1, self.kept_turns)
        return self.system_tokens + (history + 1) * (self.user_tokens + self.answer_tokens)

    def new_tokens(self, turn: int) -> int:
        """Prompt tokens of a turn that prefix caching has not seen, while nothing was evicted and the history is whole.

        Once the client drops old turns, what follows the system prompt is new every time.

        Example:
            >>> Conversation(system_tokens=500, user_tokens=100, answer_tokens=400).new_tokens(5)
            100
        """
        if turn == 1:
            return self.system_tokens + self.user_tokens
        if self.kept_turns and turn - 1 > self.kept_turns:
            return self.taken_tokens(turn) - self.answer_tokens - self.system_tokens
        return self.user_tokens

    def last_turn_within(self, limit_tokens: int) -> int | None:
        """The last turn that fits into max_model_len; None when every turn does, 0 when not even the first.

        Example:
            >>> Conversation(system_tokens=500, user_tokens=100, answer_tokens=400).last_turn_within(2048)
            3
        """
        if self.kept_turns and self.taken_tokens(self.kept_turns + 1) <= limit_tokens:
            return None
        step = self.user_tokens + self.answer_tokens
        return max(0, (limit_tokens - self.system_tokens) // step) if step else None


class PrefixSharing(Struct, frozen=True, kw_only=True):
    """Savings of prefix caching on one replica when all requests start with the same tokens."""

    shared_blocks: int
    """Whole blocks of the prefix: what each request after the first does not take again."""
    shared_tokens: int
    request_blocks: float
    """Blocks of one request without sharing."""
    requests_without: float
    requests_with: float


def prefix_sharing(planned: Plan, prefix_tokens: int, request_tokens: int) -> PrefixSharing | None:
    """Requests of `request_tokens` at once when the first `prefix_tokens` of all of them are the same.

    With N blocks in the pool, b of a request and s = Σ over full-attention groups of ⌊prefix / block⌋ shared:
    N / b without, and N = s + R × (b − s) gives R = (N − s) / (b − s) with sharing. Windows and recurrent states
    are not shared here: what they keep at a position is gone or belongs to one request.

    None without a pool. Source: vllm/v1/core/kv_cache_manager.py:KVCacheManager.get_computed_blocks (0.33.0): only
    full blocks, and never the last token of a prompt.
    """
    cache = planned.cache
    (without,) = requests_at(planned, (request_tokens,))
    if cache is None or cache.num_blocks <= 0 or not 0 < without < float("inf"):
        return None
    blocks = cache.num_blocks / without
    ranks = _context_ranks(planned)
    usable = max(0, min(prefix_tokens, request_tokens - 1))
    sizes = [group.block_tokens * ranks for group in cache.groups if group.kind in FULL_KINDS]
    total = sum(usable // size for size in sizes)
    if total >= blocks:
        total, sizes = 0, []
    return PrefixSharing(
        shared_blocks=total,
        shared_tokens=max((usable // size * size for size in sizes), default=0),
        request_blocks=blocks,
        requests_without=without,
        requests_with=(cache.num_blocks - total) / (blocks - total),
    )


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
    """Time from arrival to the first token: queue and prompt."""
    tokens_per_second: float
    """Speed of one answer, not of the server."""

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
        """Tokens of a request in the KV cache when its answer ends."""
        return self.prompt_tokens + self.answer_tokens


class Fleet(Struct, frozen=True, kw_only=True):
    """The replicas that carry `Arrivals`, and their cards."""

    requests_per_replica: int
    """Requests at full prompt and answer length, at most max_num_seqs."""
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
