"""The smallest change of one setting that fixes a plan, in the order an expert tries them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from kvcore import catalogue
from kvcore.catalogue.accelerators import Interconnect
from kvcore.errors import KvPlannerError
from kvcore.evidence.carry import carried_over
from kvcore.memory.activations import restart_gain_bytes
from kvcore.model.quantization import NOT_QUANTIZED
from kvcore.planning import Plan, Verdict, plan
from kvcore.scenario import Scenario
from kvcore.units import ceil_div, gib

HIGHEST_ADVISED_UTILIZATION: Final = 0.95
"""Above it a desktop, a second process or the warm-up is enough to break the start."""
FIXED: Final = (Verdict.FITS, Verdict.TIGHT)
SMALLEST_USEFUL_LENGTH: Final = 256
MAX_PAIRS: Final = 4
LARGEST_SIZE: Final = 64
"""Of tensor parallel groups that are tried."""
CAPTURE_SIZES: Final = (256, 128, 64, 32, 16, 8, 4, 2, 1)
LARGER: Final = 1.1
"""A card counts as larger from a tenth more memory on: less is another board of the same kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """One setting, the value it needs, and the plan that comes of it. `field` is a contract field."""

    field: str
    value: int | float | str | bool
    plan: Plan

    @property
    def verdict(self) -> Verdict:
        """What the start would come to with this change alone."""
        return self.plan.verdict


def fixes(broken: Plan) -> tuple[Fix, ...]:
    """Every single change that fixes `broken`, the cheapest in side effects first; empty when none does.

    Order: a second start, fewer recurrent states in the cache, a shorter context, an fp8 KV cache, more of the card, no
    prefix caching of recurrent states, fewer sequences in the profile run, fewer graphs, no graphs, the next tensor
    parallel size, fp8 weights, a larger card.
    """
    tried = _WEIGHT_CHANGES if broken.verdict is Verdict.WEIGHTS_DO_NOT_FIT else _CHANGES
    return tuple(fix for change in tried for fix in change(broken))


@dataclass(frozen=True, kw_only=True, slots=True)
class FixPair:
    """Two settings that fix a plan together where neither does alone."""

    first: tuple[str, int | float | str | bool]
    second: Fix

    @property
    def changes(self) -> tuple[tuple[str, int | float | str | bool], ...]:
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
    for field, value, half in _halves(broken):
        for fix in fixes(half):
            answer = (
                fix.value if field == "tensor_parallel_size" and fix.field == "accelerator" else fix.field
            )
            if fix.field != field and answer not in seen:
                pairs.append(FixPair(first=(field, value), second=fix))
                seen.add(answer)
    return tuple(pairs[:most])


def _halves(broken: Plan) -> Iterator[tuple[str, int | float | str | bool, Plan]]:
    """Plans with one setting changed that still do not start, cheapest in side effects first."""
    scenario, parallel = broken.scenario, broken.scenario.parallel
    turned: list[tuple[str, int | float | str | bool, Scenario]] = []
    if not broken.resolved.kv_cache_dtype.startswith("fp8"):
        turned.append(("kv_cache_dtype", "fp8", replace(scenario, kv_cache_dtype="fp8")))
    if broken.resolved.gpu_memory_utilization < HIGHEST_ADVISED_UTILIZATION:
        share = HIGHEST_ADVISED_UTILIZATION
        turned.append(("gpu_memory_utilization", share, replace(scenario, gpu_memory_utilization=share)))
    if broken.quantization.method == NOT_QUANTIZED and scenario.quantization is None:
        turned.append(("quantization", "fp8", replace(scenario, quantization="fp8")))
    for size in (parallel.tensor_parallel_size * factor for factor in (2, 4, 8)):
        if size <= LARGEST_SIZE:
            wider = replace(scenario, parallel=replace(parallel, tensor_parallel_size=size))
            turned.append(("tensor_parallel_size", size, wider))
    for field, value, changed in turned:
        try:
            half = plan(carried_over(scenario, changed))
        except KvPlannerError:
            continue
        if half.verdict not in FIXED:
            yield field, value, half


def _try(broken: Plan, **changes: object) -> Plan | None:
    """The plan with `changes`, or None where it is refused or no better: a tight plan is fixed by one that fits."""
    scenario = broken.scenario
    try:
        candidate = plan(carried_over(scenario, replace(scenario, **changes)))  # type: ignore[arg-type]
    except KvPlannerError:
        return None
    fixed = (Verdict.FITS,) if broken.verdict is Verdict.TIGHT else FIXED
    return candidate if candidate.verdict in fixed else None


def _first(field: str, candidates: Iterator[tuple[int | float | str | bool, Plan | None]]) -> Iterator[Fix]:
    for value, fixed in candidates:
        if fixed is not None:
            yield Fix(field=field, value=value, plan=fixed)
            return


def _fewer_states(broken: Plan) -> Iterator[Fix]:
    if broken.resolved.mamba_cache_mode == "all":
        yield from _first("mamba_cache_mode", iter([("align", _try(broken, mamba_cache_mode="align"))]))


def _second_start(broken: Plan) -> Iterator[Fix]:
    """A start that fails for its KV cache has compiled by then."""
    if broken.memory is not None and restart_gain_bytes(broken.memory.activations):
        yield from _first("kernels_compiled", iter([(True, _try(broken, kernels_compiled=True))]))


def _no_prefix_caching(broken: Plan) -> Iterator[Fix]:
    if broken.resolved.mamba_cache_mode != "none":
        fixed = _try(broken, enable_prefix_caching=False)
        yield from _first("enable_prefix_caching", iter([(False, fixed)]))


def _shorter_context(broken: Plan) -> Iterator[Fix]:
    longest = broken.cache.longest_request_tokens if broken.cache else 0
    if broken.scenario.max_model_len == -1 or longest < SMALLEST_USEFUL_LENGTH:
        return
    block_size = broken.resolved.block_size
    if broken.verdict is Verdict.TIGHT:
        yield from _surely_shorter_context(broken, block_size)
        return
    rounded = longest // block_size * block_size or longest
    for value in dict.fromkeys((rounded, longest)):
        fixed = _try(broken, max_model_len=value)
        if fixed is not None:
            yield Fix(field="max_model_len", value=value, plan=fixed)
            return


def _surely_shorter_context(broken: Plan, block_size: int) -> Iterator[Fix]:
    """The longest context, in whole blocks, that fits even where everything else takes as much as it may."""
    blocks = (broken.resolved.max_model_len - 1) // block_size
    fewest = ceil_div(SMALLEST_USEFUL_LENGTH, block_size)
    left_out = _smallest(
        0, blocks - fewest, lambda cut: _try(broken, max_model_len=(blocks - cut) * block_size)
    )
    if left_out is not None:
        cut, fixed = left_out
        yield Fix(field="max_model_len", value=(blocks - cut) * block_size, plan=fixed)


def _fp8_kv_cache(broken: Plan) -> Iterator[Fix]:
    if not broken.resolved.kv_cache_dtype.startswith("fp8"):
        yield from _first("kv_cache_dtype", iter([("fp8", _try(broken, kv_cache_dtype="fp8"))]))


def _more_utilization(broken: Plan) -> Iterator[Fix]:
    now = round(broken.resolved.gpu_memory_utilization * 100)
    high = round(HIGHEST_ADVISED_UTILIZATION * 100)
    best = _smallest(now + 1, high, lambda share: _try(broken, gpu_memory_utilization=share / 100))
    if best is not None:
        yield Fix(field="gpu_memory_utilization", value=best[0] / 100, plan=best[1])


def _smallest(low: int, high: int, attempt: Callable[[int], Plan | None]) -> tuple[int, Plan] | None:
    """The smallest value in `low..high` that is enough, given that every larger one is."""
    if low > high or (found := attempt(high)) is None:
        return None
    value = high
    while low < value:
        middle = (low + value) // 2
        fixed = attempt(middle)
        if fixed is None:
            low = middle + 1
        else:
            value, found = middle, fixed
    return value, found


def _fewer_sequences(broken: Plan) -> Iterator[Fix]:
    now = broken.resolved.max_num_seqs
    sizes = (n for n in (512, 256, 128, 64, 32, 16, 8) if n < now)
    yield from _first("max_num_seqs", ((n, _try(broken, max_num_seqs=n)) for n in sizes))


def _fewer_graphs(broken: Plan) -> Iterator[Fix]:
    """The largest captured batch, halved until that is enough; a list of sizes is not touched."""
    resolved = broken.resolved
    now = max(resolved.cudagraph_capture_sizes, default=0)
    sizes = [n for n in CAPTURE_SIZES if resolved.num_speculative_tokens < n < now]
    if broken.scenario.cudagraph_capture_sizes is not None or not sizes:
        return
    if _try(broken, max_cudagraph_capture_size=sizes[-1]) is not None:
        yield from _first(
            "max_cudagraph_capture_size",
            ((n, _try(broken, max_cudagraph_capture_size=n)) for n in sizes),
        )


def _no_graphs(broken: Plan) -> Iterator[Fix]:
    if not broken.resolved.enforce_eager:
        yield from _first("enforce_eager", iter([(True, _try(broken, enforce_eager=True))]))


def _more_tensor_parallel(broken: Plan) -> Iterator[Fix]:
    parallel = broken.scenario.parallel
    sizes = (parallel.tensor_parallel_size * factor for factor in (2, 4, 8, 16))
    yield from _first(
        "tensor_parallel_size",
        (
            (size, _try(broken, parallel=replace(parallel, tensor_parallel_size=size)))
            for size in sizes
            if size <= LARGEST_SIZE
        ),
    )


def _fp8_weights(broken: Plan) -> Iterator[Fix]:
    if broken.quantization.method == NOT_QUANTIZED and broken.scenario.quantization is None:
        yield from _first("quantization", iter([("fp8", _try(broken, quantization="fp8"))]))


def _larger_accelerator(broken: Plan) -> Iterator[Fix]:
    now = broken.accelerator
    least_gib = gib(broken.loaded_weights.value) / broken.resolved.gpu_memory_utilization
    larger = sorted(
        (
            card
            for card in catalogue.load_accelerators()
            if card.vendor is now.vendor
            and not card.is_integrated
            and card.memory_gib > max(LARGER * now.memory_gib, least_gib)
            and (
                broken.scenario.parallel.ranks_per_replica == 1 or card.interconnect is not Interconnect.NONE
            )
        ),
        key=lambda card: (card.memory_gib, card.id),
    )
    yield from _first("accelerator", ((card.id, _try(broken, accelerator=card)) for card in larger))


_CHANGES: Final = (
    _second_start,
    _fewer_states,
    _shorter_context,
    _fp8_kv_cache,
    _more_utilization,
    _no_prefix_caching,
    _fewer_sequences,
    _fewer_graphs,
    _no_graphs,
    _more_tensor_parallel,
    _fp8_weights,
    _larger_accelerator,
)
_WEIGHT_CHANGES: Final = (_more_utilization, _more_tensor_parallel, _fp8_weights, _larger_accelerator)
"""The settings that can fix weights that do not fit."""
