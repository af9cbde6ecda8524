"""One deployment further on: a setting at each of its values, room at each context length, and the largest batch that
starts."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.advice.checkpoints import as_served
from kvcore.base.errors import KvPlannerError
from kvcore.cache.capacity import max_concurrency_at
from kvcore.catalogue.accelerators import Accelerator
from kvcore.engine.protocol import Engine
from kvcore.engines.registry import engines, find_engine, with_accelerator
from kvcore.evidence.carry import carried_over
from kvcore.flags import FLAGS
from kvcore.model import architecture as arch
from kvcore.model.families import read_architecture
from kvcore.planning import HIGH, LOW, Plan, Verdict, plan, stage_kv_bytes
from kvcore.planning.numbers import Numbers, numbers, numbers_of
from kvcore.scenario import Parallel, Scenario, SpeculativeConfig

STARTS: Final = (Verdict.FITS, Verdict.TIGHT)
TENSOR_PARALLEL_SIZES: Final = (1, 2, 4, 8, 16)
SIZES: Final = (1, 2, 4, 8)
SHARES: Final = (0.80, 0.85, 0.90, 0.92, 0.95, 0.98)
BATCHES: Final = (2048, 4096, 8192, 16384, 32768, 65536)
"""Tokens of one step."""
BATCH_STEP: Final = 1024
LARGEST_BATCH: Final = 131_072
"""Tokens: between two batches that are tried, and of the largest."""
BLOCK_SIZES: Final = (16, 32, 64, 128)
INSTANCES: Final = (1, 2, 3, 4)
"""Engines on each card."""
DRAFT_TOKENS: Final = 3
"""Tokens that the engine's own examples draft at once.

Source: vllm's docs/features/speculative_decoding (0.32.0).
"""


class Varied(StrEnum):
    """Settings that Compare varies: a field of the link, how the same GPUs are split, how many engines share each."""

    TENSOR_PARALLEL = "tensor_parallel_size"
    PIPELINE_PARALLEL = "pipeline_parallel_size"
    DATA_PARALLEL = "data_parallel_size"
    SPLIT = "split"
    KV_CACHE_DTYPE = "kv_cache_dtype"
    QUANTIZATION = "quantization"
    ACCELERATOR = "accelerator"
    UTILIZATION = "gpu_memory_utilization"
    LENGTH = "max_model_len"
    BATCHED_TOKENS = "max_num_batched_tokens"
    BLOCK_SIZE = "block_size"
    EAGER = "enforce_eager"
    SPECULATIVE = "speculative_config"
    INSTANCES = "instances"
    ENGINE = "engine"


class Variant(Struct, frozen=True, kw_only=True):
    """One value of the setting."""

    value: object
    """The field's value; the Parallel or the SpeculativeConfig where the setting is more than one field."""
    scenario: Scenario
    plan: Plan | None
    error: KvPlannerError | None = None
    is_now: bool = False
    """It is the deployment as it stands."""

    @property
    def starts(self) -> bool:
        """Whether the engine would start."""
        return self.plan is not None and self.plan.verdict in STARTS

    @property
    def max_concurrency(self) -> float:
        """Requests at once on one replica; 0 where it does not start."""
        if self.plan is None or self.plan.cache is None or not self.starts:
            return 0.0
        return self.plan.cache.max_concurrency

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.scenario.parallel.ranks_per_replica

    @property
    def replicas(self) -> int:
        """Engines next to each other."""
        return self.scenario.parallel.data_parallel_size

    @property
    def running(self) -> float:
        """Requests at once on one replica that the scheduler lets run: at most max_num_seqs."""
        return min(self.max_concurrency, self.plan.resolved.max_num_seqs) if self.plan is not None else 0.0

    @property
    def all_requests(self) -> float:
        """Requests that run at once on all replicas."""
        return self.running * self.replicas

    @property
    def requests_per_gpu(self) -> float:
        """Requests that run at once on a replica over its GPUs."""
        return self.running / self.gpus


def variants(base: Scenario, varied: Varied, cards: Sequence[Accelerator] = ()) -> tuple[Variant, ...]:
    """`base` with `varied` in each of its positions, `base` itself among them, in their natural order.

    `cards` are the positions of the accelerator. A position that the engine refuses keeps its error.

    Raises ModelError when the config cannot be read.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> base = scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB"})
        >>> [variant.value for variant in variants(base, Varied.TENSOR_PARALLEL)]
        [1, 2, 4, 8, 16]
    """
    present = _present(base, varied)
    found = [_planned(value, scenario, base) for value, scenario in _positions(base, varied, cards)]
    return tuple(
        replace(variant, is_now=variant.is_now or (present is not None and variant.value == present))
        for variant in found
    )


def _present(base: Scenario, varied: Varied) -> object:
    """The value that an absent flag resolves to, where the setting has it among its own."""
    if (
        varied not in (Varied.UTILIZATION, Varied.LENGTH, Varied.BATCHED_TOKENS)
        or getattr(base, str(varied)) is not None
    ):
        return None
    try:
        return getattr(numbers(base).resolved, str(varied))
    except KvPlannerError:
        return None


def pinned(scenarios: Iterable[Scenario], base: Scenario) -> tuple[Variant, ...]:
    """Whole deployments next to each other; each stands for itself."""
    return tuple(_planned(None, scenario, base) for scenario in scenarios)


def best_of(found: Sequence[Variant]) -> tuple[Variant | None, Variant | None]:
    """The most requests that run at once on all replicas, and the most for each GPU; None where there is no single
    one. What fits in the KV cache beyond max_num_seqs does not count."""
    starting = [variant for variant in found if variant.starts] if len(found) > 1 else []
    return _single_best(starting, lambda one: one.all_requests), _single_best(
        starting, lambda one: one.requests_per_gpu
    )


def _single_best(starting: Sequence[Variant], worth: Callable[[Variant], float]) -> Variant | None:
    if not starting:
        return None
    best = max(starting, key=worth)
    return best if sum(worth(one) == worth(best) for one in starting) == 1 else None


def _planned(value: object, scenario: Scenario, base: Scenario) -> Variant:
    scenario = carried_over(base, scenario)
    planned, refusal = None, None
    try:
        planned = plan(scenario)
    except KvPlannerError as error:
        refusal = error
    return Variant(value=value, scenario=scenario, plan=planned, error=refusal, is_now=scenario == base)


def _positions(
    base: Scenario, varied: Varied, cards: Sequence[Accelerator]
) -> Iterable[tuple[object, Scenario]]:
    architecture = read_architecture(base.config)
    field, parallel = str(varied), base.parallel
    if varied is Varied.ACCELERATOR:
        own = [] if base.accelerator is None else [(base.accelerator.id, base)]
        others = dict.fromkeys(card for card in cards if card != base.accelerator)
        return [*own, *((card.id, as_served(with_accelerator(base, card))) for card in others)]
    if varied is Varied.SPLIT:
        return [(one, replace(base, parallel=one)) for one in splits(parallel, architecture)]
    if varied is Varied.INSTANCES:
        return [(count, sharing(base, count)) for count in INSTANCES]
    if varied is Varied.ENGINE:
        return [(engine.name, with_engine(base, engine)) for engine in _engines(base)]
    values = dict.fromkeys(_VALUES[varied](base, architecture))
    if varied in _PARALLEL_SIZES:
        sizes: list[Any] = sorted({*values, getattr(parallel, field)})
        return [(size, replace(base, parallel=replace(parallel, **{field: size}))) for size in sizes]
    return [(value, replace(base, **{field: value})) for value in values]


def _engines(base: Scenario) -> Iterator[Engine]:
    """The engines that have a platform for the card of `base`, its own among them."""
    own = find_engine(base.engine)
    for engine in engines():
        if engine is own or base.accelerator is None or engine.runs_on(base.accelerator):
            yield engine


def with_engine(base: Scenario, engine: Engine) -> Scenario:
    """`base` on another engine, its newest release: arguments that only its own engine has do not follow.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> base = scenario_from_request({"model": "Qwen/Qwen3-8B", "engine_version": "0.30.0"})
        >>> with_engine(base, find_engine("vllm-ascend")).engine_version is None
        True
        >>> with_engine(base, find_engine("vllm")) == base
        True
    """
    if engine is find_engine(base.engine):
        return base
    return replace(base, engine=engine.name, engine_version=None, server_args=None, additional_config=None)


def sharing(base: Scenario, instances: int) -> Scenario:
    """`base` as the last of that many engines that share each card evenly; `base` itself for one.

    Each may take its part of the utilization, and finds what the others took.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> base = scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "Ascend-910B3-64GB"})
        >>> second = sharing(base, 2)
        >>> second.gpu_memory_utilization, second.surroundings.taken_gib
        (0.46, 28.04)
    """
    if instances == 1:
        return base
    whole = base.gpu_memory_utilization or numbers(base).resolved.gpu_memory_utilization
    share = math.floor(100 * whole / instances + 1e-9) / 100
    total = base.accelerator.memory_gib if base.accelerator is not None else 0.0
    others = round((instances - 1) * share * total, 2) + (base.surroundings.taken_gib or 0.0)
    return replace(
        base, gpu_memory_utilization=share, surroundings=replace(base.surroundings, taken_gib=others)
    )


_PARALLEL_SIZES: Final = (Varied.TENSOR_PARALLEL, Varied.PIPELINE_PARALLEL, Varied.DATA_PARALLEL)


def splits(parallel: Parallel, architecture: arch.Architecture) -> tuple[Parallel, ...]:
    """The ways to cut the same number of GPUs, at least eight: tensor, data and, for MLA, decode context parallel.

    Data parallel replicas of a mixture of experts share its experts out among them.
    """
    gpus = max(8, parallel.tensor_parallel_size * parallel.data_parallel_size)
    found = []
    for data in (1, 2, 4, 8):
        if gpus % data:
            continue
        size = gpus // data
        shares_experts = architecture.moe is not None and data > 1
        one = replace(
            parallel,
            tensor_parallel_size=size,
            data_parallel_size=data,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            enable_expert_parallel=shares_experts or parallel.enable_expert_parallel,
        )
        found.append(one)
        if architecture.is_mla:
            found += [
                replace(one, decode_context_parallel_size=ranks) for ranks in (2, 4, 8) if ranks <= size
            ]
    return tuple(dict.fromkeys((*found, parallel)))


def _drafts(base: Scenario, architecture: arch.Architecture) -> tuple[SpeculativeConfig | None, ...]:
    methods = ["ngram"]
    if not architecture.is_mla:
        methods.append("eagle3")
    if architecture.draft_layers:
        methods.append("mtp")
    known = [SpeculativeConfig(method=name, num_speculative_tokens=DRAFT_TOKENS) for name in methods]
    return (None, *known, base.speculative_config)


def _lengths(base: Scenario, architecture: arch.Architecture) -> list[int]:
    limit = architecture.max_model_len
    now = base.max_model_len if base.max_model_len is not None and base.max_model_len > 0 else limit
    round_ones = {1 << power for power in range(10, 21) if now / 8 <= 1 << power <= now * 8}
    return sorted({*(length for length in round_ones if length <= limit), now, limit})


_Values = Callable[[Scenario, arch.Architecture], Sequence[object]]
_VALUES: Final[Mapping[Varied, _Values]] = {
    Varied.TENSOR_PARALLEL: lambda base, _: TENSOR_PARALLEL_SIZES,
    Varied.PIPELINE_PARALLEL: lambda base, _: SIZES,
    Varied.DATA_PARALLEL: lambda base, _: SIZES,
    Varied.KV_CACHE_DTYPE: lambda base, _: (*FLAGS["kv_cache_dtype"].common, base.kv_cache_dtype),
    Varied.QUANTIZATION: lambda base, _: (
        None,
        *find_engine(base.engine).facts.weight_precisions,
        *FLAGS["quantization"].common,
        base.quantization,
    ),
    Varied.UTILIZATION: lambda base, _: sorted({*SHARES, *filter(None, [base.gpu_memory_utilization])}),
    Varied.LENGTH: _lengths,
    Varied.BATCHED_TOKENS: lambda base, _: sorted({*BATCHES, *filter(None, [base.max_num_batched_tokens])}),
    Varied.BLOCK_SIZE: lambda base, _: (base.block_size, *BLOCK_SIZES),
    Varied.EAGER: lambda base, _: (False, True),
    Varied.SPECULATIVE: _drafts,
}


class ConcurrencyCurve(Struct, frozen=True, kw_only=True):
    """Requests of each length that the pool has room for at once, per replica; 0 where not even the weights fit.

    `low` and `high` are the same with the KV memory at the ends of its 80 % interval.
    """

    tensor_parallel_size: int
    lengths: tuple[int, ...]
    concurrency: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def concurrency_curve(base: Plan, lengths: Sequence[int]) -> ConcurrencyCurve:
    """The curve of `base` itself, as if each length were its max_model_len."""
    return _curve(numbers_of(base), lengths)


def _curve(base: Numbers, lengths: Sequence[int]) -> ConcurrencyCurve:
    def at(end: int | None = None) -> tuple[float, ...]:
        available = stage_kv_bytes(base.stage_kv, end)
        if min(available, default=0) <= 0:
            return (0.0,) * len(lengths)
        return max_concurrency_at(base.specs, available, base.resolved, base.parallel, tuple(lengths))

    return ConcurrencyCurve(
        tensor_parallel_size=base.parallel.tensor_parallel_size,
        lengths=tuple(lengths),
        concurrency=at(),
        low=at(LOW),
        high=at(HIGH),
    )


def tensor_parallel_curves(
    base: Plan, lengths: Sequence[int], own: ConcurrencyCurve | None = None
) -> tuple[ConcurrencyCurve, ...]:
    """One curve per tensor parallel size that the engine accepts for this model, smallest first.

    `own` is the curve of `base`, where it is known already.
    """
    curves = []
    parallel = base.scenario.parallel
    for size in sorted({*TENSOR_PARALLEL_SIZES, parallel.tensor_parallel_size}):
        if size == parallel.tensor_parallel_size:
            curves.append(concurrency_curve(base, lengths) if own is None else own)
            continue
        try:
            changed = replace(base.scenario, parallel=replace(parallel, tensor_parallel_size=size))
            neighbour = numbers(carried_over(base.scenario, changed))
        except KvPlannerError:
            continue
        curves.append(_curve(neighbour, lengths))
    return tuple(curves)


class LargestBatch(Struct, frozen=True, kw_only=True):
    """One cut of the cards at one length."""

    parallel: Parallel
    max_model_len: int
    tokens: int
    """A multiple of BATCH_STEP up to LARGEST_BATCH; 0 where not even the smallest starts."""
    scenario: Scenario
    """With that batch; the smallest that was tried where none starts."""
    is_tight: bool


def largest_batches(
    base: Scenario, cuts: Sequence[Parallel], lengths: Sequence[int]
) -> Iterator[LargestBatch]:
    """For each of `cuts` at each of `lengths`: activations grow with the batch, so every smaller one starts too.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> base = scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "Ascend-910B4-32GB"})
        >>> [found] = largest_batches(base, [base.parallel], [32768])
        >>> found.tokens % BATCH_STEP, found.scenario.max_num_batched_tokens == found.tokens
        (0, True)
    """
    for parallel in cuts:
        for length in lengths:
            cut = replace(base, parallel=parallel, max_model_len=length)
            yield _largest_batch(base, cut, length)


def _largest_batch(base: Scenario, cut: Scenario, length: int) -> LargestBatch:
    def at(tokens: int) -> Scenario:
        return carried_over(base, replace(cut, max_num_batched_tokens=tokens))

    batches = range(LARGEST_BATCH, 0, -BATCH_STEP)
    index = bisect_left(batches, True, key=lambda tokens: _verdict(at(tokens)) in STARTS)
    tokens = batches[index] if index < len(batches) else 0
    found = at(tokens or BATCH_STEP)
    return LargestBatch(
        parallel=cut.parallel,
        max_model_len=length,
        tokens=tokens,
        scenario=found,
        is_tight=tokens > 0 and _verdict(found) is Verdict.TIGHT,
    )


def _verdict(scenario: Scenario) -> Verdict | None:
    """None where the engine refuses it."""
    try:
        return numbers(scenario).verdict
    except KvPlannerError:
        return None
