"""The smallest changes of a setting that fix a plan, or end a refusal of the engine, in the order an expert tries them.

A change is a field of the contract with the value it needs; None leaves the flag out.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import islice
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from kvcore import catalogue
from kvcore.advice.checkpoints import is_as_published, with_checkpoint
from kvcore.advice.sweep_cell import STARTS
from kvcore.advice.target import Served, served, served_by
from kvcore.base.errors import EngineRefusalError, KvPlannerError
from kvcore.base.quantity import Grade
from kvcore.base.units import ceil_div, gib
from kvcore.catalogue.accelerators import Accelerator, Interconnect
from kvcore.catalogue.siblings import checkpoints
from kvcore.engines.registry import engine_of, find_engine
from kvcore.evidence.carry import carried_over
from kvcore.memory.activations import restart_gain_bytes
from kvcore.model.quantization import NOT_QUANTIZED
from kvcore.planning import Plan, Tightness, Verdict, plan
from kvcore.planning.numbers import Numbers, numbers
from kvcore.scenario import AUTO, Scenario

Value: TypeAlias = int | float | str | bool | None
Change: TypeAlias = tuple[str, Value]

HIGHEST_ADVISED_UTILIZATION: Final = 0.95
"""Above it a desktop, a second process or the warm-up is enough to break the start."""
LOWEST_TRIED_PERCENT: Final = 60
"""Lowest share of the card, where the warm-up may find too little of it."""
SMALLEST_USEFUL_LENGTH: Final = 256
MAX_PAIRS: Final = 4
MAX_CHECKPOINTS: Final = 2
"""Most checkpoints of the same model that are proposed."""
MAX_TRIED_CHECKPOINTS: Final = 16
LARGEST_SIZE: Final = 64
"""Largest size of a tensor parallel group that is tried."""
SIZES: Final = (1, 2, 4, 8, 16, 32)
"""Tensor parallel sizes that are tried where the engine refuses the present one, the nearest first."""
SEQUENCES: Final = (512, 256, 128, 64, 32, 16, 8)
CAPTURE_SIZES: Final = (256, 128, 64, 32, 16, 8, 4, 2, 1)
LARGER: Final = 1.1
"""A card counts as larger from a tenth more memory on: less is another board of the same kind."""
AS_MUCH: Final = 0.95
"""Share of the memory: boards of one size differ by some percent."""
_FEWER_BITS: Final = ("model", "quantization")
_ADDING_GPUS: Final = ("tensor_parallel_size", "data_parallel_size")
_OF_PARALLEL: Final = ("tensor_parallel_size", "data_parallel_size", "enable_expert_parallel")
BATCH_STEP: Final = 1024
"""Tokens of one step that are tried are multiples of it."""
LARGEST_BATCHES: Final = 1024
MOST_SHM_POWER: Final = 14
"""Sizes of /dev/shm that are tried, in GiB, are powers of two below that of this exponent."""


class Fix(Struct, frozen=True, kw_only=True, dict=True):
    """One setting, the value it needs, and the deployment with it. `field` is a contract field."""

    field: str
    value: Value
    scenario: Scenario
    verdict: Verdict
    """The verdict with this change alone."""

    @property
    def key(self) -> str:
        """Tells it from the others of one plan: several may be of the field `model`."""
        return f"model.{self.value}" if self.field == "model" else self.field

    @cached_property
    def plan(self) -> Plan:
        """The plan with this change alone."""
        return plan(self.scenario)

    @property
    def serves(self) -> Served | None:
        """What it serves of the target with this change alone; None without a target."""
        return served(self.plan)


class Tried(Struct, frozen=True):
    """Values in the order in which they are tried, of which none fixes it unless the last one does."""

    values: Sequence[Value]
    is_sorted: bool = True
    """Every value after one that fixes it does so too."""


def fixes(broken: Plan, *, carries_measured: bool = True, takes_tight: bool = True) -> tuple[Fix, ...]:
    """Every single change that fixes `broken`, the cheapest in side effects first; empty when none does.

    Where its scenario has a target, that is to start and to serve all wanted requests at once.

    Measured parts are carried over to each change; without `carries_measured` they stay as they are given, as in a
    request that is sent again with the change alone.

    Of settings that add GPUs the fewest win with which it starts by the figures, be the start tight: no more GPUs than
    needed. Without `takes_tight` more of them do, where the last steps of the start may lack memory with fewer.

    Order: a second start, fewer recurrent states in the cache, a shorter context, an fp8 KV cache, more of the card, no
    prefix caching of recurrent states, fewer tokens in a step, fewer sequences in the profile run, fewer graphs, no
    graphs, the next tensor parallel size, experts shared out among more replicas, weights in 8 or 4 bits, checkpoints
    of the same model in fewer bits, a larger card.
    """
    scenario = broken.scenario
    if scenario.accelerator is None and scenario.measured.available_kv_gib is None:
        # What is to be tried follows from the figures of the assumed card, which the plan does not show.
        broken = plan(replace(scenario, accelerator=broken.accelerator))
    if falls_short(broken):
        values = _SERVING
    else:
        fixing = _FIXING_WEIGHTS if broken.verdict is Verdict.WEIGHTS_DO_NOT_FIT else _VALUES
        values = {field: _VALUES[field] for field in fixing}
    change = _changed if carries_measured else _replaced

    def first(field: str, tried: Tried | Iterable[Value]) -> Fix | None:
        return _first(scenario, field, tried, broken, change, takes_tight=takes_tight)

    found = (first(field, tried(broken)) for field, tried in values.items())
    each = (first("model", (model,)) for model in _checkpoints(broken))
    others = list(islice(filter(None, each), MAX_CHECKPOINTS))
    kept = [fix for fix in found if fix is not None]
    place = next((at for at, fix in enumerate(kept) if fix.field == "accelerator"), len(kept))
    return (*kept[:place], *others, *kept[place:])


def _checkpoints(broken: Plan) -> Iterable[str]:
    """Checkpoints of the same model in fewer bits, the publisher's own first."""
    if broken.quantization.method != NOT_QUANTIZED or not is_as_published(broken.scenario):
        return ()
    return checkpoints(broken.scenario.model)[:MAX_TRIED_CHECKPOINTS]


def falls_short(planned: Plan) -> bool:
    """Whether a plan fits, and serves fewer requests at once than are wanted.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "wanted": 4}
        >>> falls_short(plan(scenario_from_request(asked)))
        False
    """
    target = served(planned)
    return target is not None and planned.verdict is Verdict.FITS and not target.enough


def fix_with(broken: Plan, field: str, value: Value) -> Fix | None:
    """The fix of one change; None where the start does not go through with it, or the engine refuses it."""
    changed = _changed(broken.scenario, field, value)
    found = None if changed is None else _numbers(changed)
    if changed is None or found is None or found.verdict not in STARTS:
        return None
    return Fix(field=field, value=value, scenario=changed, verdict=found.verdict)


class FixPair(Struct, frozen=True, kw_only=True):
    """Two settings that fix a plan together where neither does alone."""

    first: Change
    second: Fix

    @property
    def changes(self) -> tuple[Change, ...]:
        """Both settings with the values they need."""
        return (self.first, (self.second.field, self.second.value))


def fix_pairs(broken: Plan, most: int = MAX_PAIRS) -> tuple[FixPair, ...]:
    """The smallest pairs of changes that fix `broken`, the cheapest first setting first, at most `most`.

    The first setting is changed as far as is advised, the second as little as is then needed. A second setting is
    shown with the first that makes it do, another card with each number of cards. Meant for plans that `fixes` finds
    nothing for.
    """
    pairs: list[FixPair] = []
    seen: set[object] = set()
    for field, value in _far_changes(broken):
        changed = _changed(broken.scenario, field, value)
        half = None if changed is None else _numbers(changed)
        if changed is None or half is None or _is_good(half, broken):
            continue
        for fix in fixes(plan(changed), takes_tight=False):
            answer = (
                fix.value if field == "tensor_parallel_size" and fix.field == "accelerator" else fix.field
            )
            is_likely = fix.plan.tight_by is not Tightness.AFTER_POOL
            if fix.field != field and answer not in seen and is_likely:
                pairs.append(FixPair(first=(field, value), second=fix))
                seen.add(answer)
    return tuple(pairs[:most])


def fewer_gpus(broken: Plan, found: Sequence[Fix]) -> tuple[FixPair, ...]:
    """Two changes by which fewer of the present GPUs serve the target than by any single one of `found`.

    Empty where the plan does not fall short, or where a single change needs no further GPU.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "openai/gpt-oss-120b", "accelerator": "H100-80GB", "tensor_parallel_size": 2,
        ...          "max_model_len": 131000, "wanted": 40}
        >>> short = plan(scenario_from_request(asked))
        >>> [one.changes for one in fewer_gpus(short, fixes(short))][0]
        (('tensor_parallel_size', 4), ('kv_cache_dtype', 'fp8'))
    """
    if not falls_short(broken):
        return ()
    least = min((fix.scenario.parallel.ranks for fix in found if fix.field != "accelerator"), default=0)
    for size in _larger_sizes(broken):
        larger = _changed(broken.scenario, "tensor_parallel_size", size)
        if larger is None or larger.parallel.ranks >= least:
            continue
        try:
            half = plan(larger)
        except KvPlannerError:
            continue
        each = (_first(larger, field, _SERVING[field](half), broken) for field in _WITH_MORE_GPUS)
        if pairs := tuple(FixPair(first=("tensor_parallel_size", size), second=fix) for fix in each if fix):
            return pairs
    return ()


def surer(fix: Fix) -> FixPair | None:
    """A change with which it starts tight, and the utilization below the present one with which it surely does.

    None where the last steps of the start are not what makes it tight, or no utilization mends that.
    """
    if fix.plan.tight_by is not Tightness.AFTER_POOL:
        return None
    lower = starts_lower(fix.plan)
    return None if lower is None else FixPair(first=(fix.field, fix.value), second=lower)


def _far_changes(broken: Plan) -> Iterator[Change]:
    """Settings changed as far as is advised, cheapest in side effects first."""
    yield from (("kv_cache_dtype", value) for value in _narrower_caches(broken))
    if broken.resolved.gpu_memory_utilization < HIGHEST_ADVISED_UTILIZATION:
        yield "gpu_memory_utilization", HIGHEST_ADVISED_UTILIZATION
    yield from (("quantization", value) for value in _narrower_weights(broken))
    yield from (("tensor_parallel_size", size) for size in list(_larger_sizes(broken))[:3])
    if broken.architecture.moe is not None and not broken.scenario.parallel.enable_expert_parallel:
        yield "enable_expert_parallel", True


def refusal_fixes(scenario: Scenario, refused: EngineRefusalError) -> tuple[Fix, ...]:
    """Every single change that lets the deployment start, that of the refused field first; empty when none does.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-235B-A22B-FP8", "accelerator": "H200-141GB", "engine_version": "0.11.0",
        ...          "tensor_parallel_size": 8, "max_model_len": 4096}
        >>> scenario = scenario_from_request(asked)
        >>> try:
        ...     _ = plan(scenario)
        ... except EngineRefusalError as refused:
        ...     [(one.field, one.value) for one in refusal_fixes(scenario, refused)]
        [('tensor_parallel_size', 4), ('enable_expert_parallel', True), ('engine_version', '0.29.0')]
    """
    found = (_first(scenario, field, values) for field, values in _accepted_values(scenario))
    accepted = [fix for fix in found if fix is not None]
    return tuple(sorted(accepted, key=lambda one: one.field != refused.field))


def _accepted_values(scenario: Scenario) -> Iterator[tuple[str, Iterable[Value]]]:
    """The settings that can make the engine take it, with their values in the order in which they are tried."""
    yield "max_model_len", _own_length(scenario)
    now = scenario.parallel.tensor_parallel_size
    sizes = sorted(SIZES, key=lambda size: (max(size, now) / min(size, now), size > now))
    yield "tensor_parallel_size", [size for size in sizes if size != now]
    yield "enable_expert_parallel", () if scenario.parallel.enable_expert_parallel else (True,)
    yield "data_parallel_size", () if scenario.parallel.data_parallel_size == 1 else (1,)
    room = scenario.shm_gib
    yield (
        "shm_gib",
        () if room is None else (1 << power for power in range(MOST_SHM_POWER) if 1 << power > room),
    )
    keeps = scenario.kv_offloading_size is not None and not scenario.disable_hybrid_kv_cache_manager
    yield "disable_hybrid_kv_cache_manager", (True,) if keeps else ()
    yield "engine_version", _nearest_releases(scenario)
    for field, default in _DEFAULTS.items():
        now = getattr(scenario, field)
        others = engine_of(scenario).facts.weight_precisions if field == "quantization" else ()
        yield field, [value for value in (default, *others) if value != now]
    card = scenario.accelerator
    if card is not None:
        cards = _cards_like(card, AS_MUCH * card.memory_gib)
        yield "accelerator", [other.id for other in cards if other.id != card.id]


def _own_length(scenario: Scenario) -> tuple[int, ...]:
    """The model's own context, where a longer one is asked for."""
    asked = scenario.max_model_len
    if asked is None or asked < 1:
        return ()
    try:
        own = plan(replace(scenario, max_model_len=None)).resolved.derived_max_model_len
    except KvPlannerError:
        return ()
    return (own,) if own < asked else ()


_DEFAULTS: Final[Mapping[str, Value]] = {
    "kv_cache_dtype": AUTO,
    "quantization": None,
    "block_size": None,
    "max_num_batched_tokens": None,
    "dtype": AUTO,
    "mamba_cache_mode": None,
    "mamba_block_size": None,
    "mamba_ssm_cache_dtype": AUTO,
}
"""The values of flags that are left out."""


def _nearest_releases(scenario: Scenario) -> Iterator[str]:
    """The nearest release first, later ones before earlier ones; none for a plug-in, which runs on few."""
    engine = engine_of(scenario)
    if engine.facts.releases or scenario.engine_version is None:
        return
    now = engine.release(scenario.engine_version).version
    known = [release for release, _ in engine.releases()]
    yield from (str(each) for each in known if each > now)
    yield from (str(each) for each in reversed(known) if each < now)


def _first(
    scenario: Scenario,
    field: str,
    values: Tried | Iterable[Value],
    broken: Plan | None = None,
    change: Callable[[Scenario, str, Value], Scenario | None] | None = None,
    *,
    takes_tight: bool = True,
) -> Fix | None:
    """The first of `values` with which the plan is good enough; `change` makes the scenario with one of them."""

    @cache
    def tried(value: Value) -> Fix | None:
        changed = (change or _changed)(scenario, field, value)
        found = None if changed is None else _numbers(changed)
        if changed is None or found is None or not _is_good(found, broken, field, takes_tight=takes_tight):
            return None
        return Fix(field=field, value=value, scenario=changed, verdict=found.verdict)

    if isinstance(values, Tried):
        inner = values.values
        if not inner or tried(inner[-1]) is None:
            return None
        if values.is_sorted:
            first = bisect_left(inner, True, hi=len(inner) - 1, key=lambda value: tried(value) is not None)
            return tried(inner[first])
        values = inner
    return next(filter(None, map(tried, values)), None)


def _changed(scenario: Scenario, field: str, value: Value) -> Scenario | None:
    """`scenario` with one setting changed; None where its measured parts cannot be carried over, which it refuses."""
    try:
        return carried_over(scenario, _replaced(scenario, field, value))
    except KvPlannerError:
        return None


def _replaced(scenario: Scenario, field: str, value: Value) -> Scenario:
    """`scenario` with one setting changed, and measured parts as they are."""
    if field in _OF_PARALLEL:
        return replace(scenario, parallel=replace(scenario.parallel, **{field: value}))
    if field == "model":
        return with_checkpoint(scenario, str(value))
    if field == "accelerator":
        return replace(scenario, accelerator=catalogue.find_accelerator(str(value)))
    return replace(scenario, **{field: value})


def _numbers(scenario: Scenario) -> Numbers | None:
    """None where the engine refuses it."""
    try:
        return numbers(scenario)
    except KvPlannerError:
        return None


def _is_good(planned: Numbers, broken: Plan | None, field: str = "", *, takes_tight: bool = True) -> bool:
    """Whether that fixes it: it fits, or by the figures it does. A tight plan is fixed by one that fits alone; what the
    engine refused, by any that it takes and that has a cache. Weights that do not fit are fixed by fewer bits even
    where what is taken after the KV cache may be too much, and what fails by the fewest GPUs with which it starts: the
    result is then called tight."""
    if broken is None:
        return planned.verdict is Verdict.FITS or planned.tight_by in (Tightness.SPARE, Tightness.AFTER_POOL)
    wanted = broken.scenario.wanted
    if wanted is not None and not served_by(planned, wanted).enough:
        return False
    likely = [Tightness.SPARE] if broken.verdict is not Verdict.TIGHT else []
    is_of_weights = broken.verdict is Verdict.WEIGHTS_DO_NOT_FIT and field in _FEWER_BITS
    if is_of_weights or (takes_tight and likely and field in _ADDING_GPUS):
        likely.append(Tightness.AFTER_POOL)
    return planned.verdict is Verdict.FITS or planned.tight_by in likely


def _lengths(broken: Plan) -> Tried | Iterable[Value]:
    longest = broken.cache.longest_request_tokens if broken.cache else 0
    if broken.scenario.max_model_len == -1 or longest < SMALLEST_USEFUL_LENGTH:
        return ()
    block_size = broken.resolved.block_size
    if broken.verdict is not Verdict.TIGHT:
        return dict.fromkeys((longest // block_size * block_size or longest, longest))
    # The longest, in whole blocks, that fits even where everything else takes as much as it may.
    most = (broken.resolved.max_model_len - 1) // block_size
    fewest = ceil_div(SMALLEST_USEFUL_LENGTH, block_size)
    return Tried(range(most * block_size, fewest * block_size - 1, -block_size))


def _shares(broken: Plan) -> Tried | Iterable[Value]:
    now, high = broken.resolved.gpu_memory_utilization, HIGHEST_ADVISED_UTILIZATION
    if broken.tight_by in (Tightness.AFTER_POOL, Tightness.START, Tightness.HOST):
        return (percent / 100 for percent in range(math.ceil(now * 100) - 1, LOWEST_TRIED_PERCENT - 1, -1))
    return Tried([percent / 100 for percent in range(round(now * 100) + 1, round(high * 100) + 1)])


def starts_lower(broken: Plan) -> Fix | None:
    """The highest utilization in hundredths, below the present one, with which `broken` fits; None where none does."""
    return _first(broken.scenario, "gpu_memory_utilization", _shares(broken), broken)


def _graph_sizes(broken: Plan) -> Tried:
    """The largest captured batch, halved until that is enough; a list of sizes is not touched."""
    resolved = broken.resolved
    now = max(resolved.cudagraph_capture_sizes, default=0)
    sizes = [size for size in CAPTURE_SIZES if resolved.num_speculative_tokens < size < now]
    if broken.scenario.cudagraph_capture_sizes is not None:
        return Tried(())
    return Tried(sizes, is_sorted=False)


def _larger_sizes(broken: Plan) -> Iterable[Value]:
    now = broken.scenario.parallel.tensor_parallel_size
    return (now * factor for factor in (2, 4, 8, 16) if now * factor <= LARGEST_SIZE)


def _more_replicas(broken: Plan) -> Iterable[Value]:
    """Replicas that share out the experts, as long as they do: each takes its own of everything else."""
    parallel = broken.scenario.parallel
    if broken.architecture.moe is None:
        return ()
    counts = (parallel.data_parallel_size * factor for factor in (2, 4, 8, 16))
    return (number for number in counts if number * parallel.ranks_per_replica <= LARGEST_SIZE)


def _as_many_replicas(broken: Plan) -> Tried:
    """The fewest replicas that serve the target: as many as now serve it apart, fewer where they share out experts."""
    target, now = served(broken), broken.scenario.parallel
    if target is None or target.replicas_needed is None:
        return Tried(())
    most = min(target.replicas_needed, LARGEST_SIZE // now.ranks_per_replica)
    return Tried(range(now.data_parallel_size + 1, most + 1))


def _more_sequences(broken: Plan) -> Iterable[Value]:
    """The target of one replica, where `max_num_seqs` stands in its way."""
    target, parallel = served(broken), broken.scenario.parallel
    needed = 0 if target is None else ceil_div(target.wanted, parallel.data_parallel_size)
    return (needed,) if needed > broken.resolved.max_num_seqs else ()


def _smaller_batches(broken: Plan) -> Tried:
    now = (broken.resolved.max_num_batched_tokens - 1) // BATCH_STEP * BATCH_STEP
    return Tried(range(now, 0, -BATCH_STEP)[:LARGEST_BATCHES])


def _narrower_caches(broken: Plan) -> tuple[str, ...]:
    return () if broken.resolved.kv_cache_dtype.startswith("fp8") else ("fp8",)


def _narrower_weights(broken: Plan) -> tuple[str, ...]:
    if broken.scenario.quantization is not None or broken.quantization.method != NOT_QUANTIZED:
        return ()
    return (*find_engine(broken.scenario.engine).facts.weight_precisions, "fp8", "bitsandbytes")


def _larger_cards(broken: Plan) -> Iterable[Value]:
    now = broken.accelerator
    least_gib = gib(broken.loaded_weights.value) / broken.resolved.gpu_memory_utilization
    alone = broken.scenario.parallel.ranks_per_replica == 1
    return (
        card.id
        for card in _cards_like(now, max(LARGER * now.memory_gib, least_gib))
        if card.memory_gib > max(LARGER * now.memory_gib, least_gib)
        and (alone or card.interconnect is not Interconnect.NONE)
    )


def _cards_like(now: Accelerator, least_gib: float) -> list[Accelerator]:
    """Whole cards of the same vendor with at least so much memory, the smallest and best known first."""
    cards = (card for card in catalogue.load_accelerators() if card.vendor is now.vendor and not card.is_part)
    found = (card for card in cards if not card.is_integrated and card.memory_gib >= least_gib)
    return sorted(found, key=lambda card: (card.memory_gib, card.memory_grade is not Grade.EXACT, card.id))


_VALUES: Final[Mapping[str, Callable[[Plan], Tried | Iterable[Value]]]] = {
    # A start that fails for its KV cache has compiled by then.
    "kernels_compiled": lambda broken: (
        (True,) if broken.memory is not None and restart_gain_bytes(broken.memory.activations) > 0 else ()
    ),
    "mamba_cache_mode": lambda broken: ("align",) if broken.resolved.mamba_cache_mode == "all" else (),
    "max_model_len": _lengths,
    "kv_cache_dtype": _narrower_caches,
    "gpu_memory_utilization": _shares,
    "enable_prefix_caching": lambda broken: (False,) if broken.resolved.mamba_cache_mode != "none" else (),
    "max_num_batched_tokens": _smaller_batches,
    "max_num_seqs": lambda broken: (size for size in SEQUENCES if size < broken.resolved.max_num_seqs),
    "max_cudagraph_capture_size": _graph_sizes,
    "enforce_eager": lambda broken: () if broken.resolved.enforce_eager else (True,),
    "tensor_parallel_size": _larger_sizes,
    "data_parallel_size": _more_replicas,
    "quantization": _narrower_weights,
    "accelerator": _larger_cards,
}
"""The settings that can fix a plan, each with its values in the order in which they are tried."""
_SERVING: Final[Mapping[str, Callable[[Plan], Tried | Iterable[Value]]]] = {
    "max_num_seqs": _more_sequences,
    **{
        field: _VALUES[field]
        for field in ("kv_cache_dtype", "gpu_memory_utilization", "tensor_parallel_size")
    },
    "data_parallel_size": _as_many_replicas,
    **{field: _VALUES[field] for field in ("quantization", "accelerator")},
}
"""The settings by which a plan that fits can serve its target."""
_WITH_MORE_GPUS: Final = ("kv_cache_dtype", "gpu_memory_utilization")
"""What is changed beside the tensor parallel size where that alone needs more GPUs."""
_FIXING_WEIGHTS: Final = (
    "gpu_memory_utilization", "tensor_parallel_size", "data_parallel_size", "quantization", "accelerator",
)  # fmt: skip
"""Those that can fix weights that do not fit."""
