"""What each max_model_len would mean for a mix of requests: who is left out, and how many fit at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, assert_never

from packaging.version import Version

from kvcore.cache.capacity import max_concurrency_at
from kvcore.catalogue.documented_yarn import documented_yarn
from kvcore.engine.vllm.switches import LongRequests
from kvcore.engine.vllm.versions import switches_of
from kvcore.errors import KvPlannerError
from kvcore.evidence.carry import carried_over
from kvcore.model.rope import Yarn
from kvcore.planning import Plan, Verdict, plan, stage_kv_bytes
from kvcore.scenario import Scenario
from kvcore.units import round_up
from kvcore.workload.mix import ROUND_TO, Mix
from kvcore.workload.random_batch import Batches, Share, batches_of

ALLOW_LONG: Final = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
STARTING: Final = (Verdict.FITS, Verdict.TIGHT)


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitChoice:
    """One max_model_len, planned, with the mix that it serves."""

    limit_tokens: int
    plan: Plan | None
    error: KvPlannerError | None
    share_left_out: float
    """Share of the requests that need more: refused or cut short."""
    mean_tokens: float
    """What a request takes on average when its answer ends, under this limit."""
    worst_case_requests: float
    """Requests at once when each is as long as the limit; 0 where the engine does not start."""
    mean_requests: float
    """Requests at once when each has the mean length."""
    batches: Batches | None
    """Random batches of the mix; None where the engine does not start or keeps nothing of a request."""

    @property
    def starts(self) -> bool:
        """Whether the engine starts with this limit."""
        return self.plan is not None and self.plan.verdict in STARTING and not is_above_model(self.plan)

    @property
    def risk(self) -> Share | None:
        """Share of the batches of max_num_seqs requests that the pool has no room for."""
        if self.batches is None or self.plan is None:
            return None
        return self.batches.overflow(self.plan.resolved.max_num_seqs)


def limit_choice(base: Scenario, mix: Mix, limit_tokens: int) -> LimitChoice:
    """`base` with this max_model_len, and the mix under it. A refusal of the engine is a choice too."""
    left_out = mix.needed.share_above(limit_tokens)
    taken = mix.taken_at(limit_tokens)
    mean = taken.mean_tokens
    planned = _planned(base, limit_tokens)
    if not isinstance(planned, Plan) or planned.verdict not in STARTING or is_above_model(planned):
        return LimitChoice(
            limit_tokens=limit_tokens,
            plan=planned if isinstance(planned, Plan) else None,
            error=None if isinstance(planned, Plan) else planned,
            share_left_out=left_out,
            mean_tokens=mean,
            worst_case_requests=0.0,
            mean_requests=0.0,
            batches=None,
        )
    at_limit, at_mean = requests_at(planned, (limit_tokens, max(1, math.ceil(mean))))
    return LimitChoice(
        limit_tokens=limit_tokens,
        plan=planned,
        error=None,
        share_left_out=left_out,
        mean_tokens=mean,
        worst_case_requests=at_limit,
        mean_requests=at_mean,
        batches=batches_of(planned, taken),
    )


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


def refuses_longer(version: Version) -> bool | None:
    """Whether this version answers a request that needs more than max_model_len with an error, rather than stopping
    its answer at the limit; None where that was not read.

    Source: vllm/renderers/params.py:TokenizeParams.max_input_tokens (0.28.0 subtracts max_tokens, 0.32.0 does not),
    vllm/entrypoints/openai/serving_engine.py:_validate_input (0.11.0).

    Example:
        >>> refuses_longer(Version("0.19.0")), refuses_longer(Version("0.33.0")), refuses_longer(Version("0.30.0"))
        (True, False, None)
    """
    match switches_of(version).long_requests:
        case LongRequests.REFUSED:
            return True
        case LongRequests.UNREAD:
            return None
        case LongRequests.CUT:
            return False
        case other:
            assert_never(other)


def _planned(base: Scenario, limit_tokens: int) -> Plan | KvPlannerError:
    try:
        return plan(carried_over(base, replace(base, max_model_len=limit_tokens)))
    except KvPlannerError as error:
        return error
