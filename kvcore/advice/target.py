"""A deployment held against the requests at once that it is to serve: how many it does, and whether that is enough."""

from __future__ import annotations

from msgspec import Struct

from kvcore.advice.sweep_cell import STARTS
from kvcore.base.numbers import whole_requests
from kvcore.base.units import ceil_div
from kvcore.cache.capacity import Pool
from kvcore.cache.spec import LayerSpec
from kvcore.planning import Plan, Verdict
from kvcore.planning.numbers import Numbers


class Served(Struct, frozen=True, kw_only=True):
    """Whole requests of full length that run at once, against those that are wanted."""

    wanted: int
    per_replica: int
    replicas: int

    @property
    def total(self) -> int:
        """Requests at once on all replicas: each request runs on one of them.

        Example:
            >>> Served(wanted=40, per_replica=14, replicas=2).total
            28
        """
        return self.per_replica * self.replicas

    @property
    def enough(self) -> bool:
        """Whether all wanted requests run at once."""
        return self.total >= self.wanted

    @property
    def replicas_needed(self) -> int | None:
        """Replicas of this size that serve the target; None where one serves nothing.

        Example:
            >>> Served(wanted=40, per_replica=14, replicas=1).replicas_needed
            3
        """
        return ceil_div(self.wanted, self.per_replica) if self.per_replica else None


def served(planned: Plan) -> Served | None:
    """What a plan serves of its target; None where its scenario has none.

    Example:
        >>> from kvcore.planning import plan
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "max_model_len": 8192, "wanted": 40}
        >>> found = served(plan(scenario_from_request(asked)))
        >>> found.wanted, found.enough
        (40, False)
    """
    wanted = planned.scenario.wanted
    if wanted is None:
        return None
    return Served(
        wanted=wanted,
        per_replica=_per_replica(
            planned.verdict, planned.cache, planned.specs, planned.resolved.max_num_seqs
        ),
        replicas=planned.scenario.parallel.data_parallel_size,
    )


def served_at_once(planned: Plan) -> int:
    """Whole requests of full length that run at once on all replicas of a plan, whatever is wanted."""
    at_once = _per_replica(planned.verdict, planned.cache, planned.specs, planned.resolved.max_num_seqs)
    return at_once * planned.scenario.parallel.data_parallel_size


def served_by(numbers: Numbers, wanted: int) -> Served:
    """What a plan without explanations serves of `wanted`."""
    return Served(
        wanted=wanted,
        per_replica=_per_replica(numbers.verdict, numbers.pool, numbers.specs, numbers.resolved.max_num_seqs),
        replicas=numbers.parallel.data_parallel_size,
    )


def _per_replica(
    verdict: Verdict, pool: Pool | None, specs: tuple[tuple[LayerSpec, ...], ...], max_num_seqs: int
) -> int:
    """Requests of full length at once on one replica: those that the KV cache holds, at most `max_num_seqs`."""
    if verdict not in STARTS:
        return 0
    if pool is None or not any(specs):
        return max_num_seqs
    return min(whole_requests(pool.max_concurrency), max_num_seqs)
