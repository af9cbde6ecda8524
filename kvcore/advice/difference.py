"""Two plans held against each other: what was asked, what the engine made of it, what each part of memory is then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.parts import KV_CACHE, PARTS, UNUSED
from kvcore.base.quantity import Quantity, Unit
from kvcore.base.units import MIB, rounded, rounded_gib
from kvcore.engines.registry import find_engine
from kvcore.planning import Plan, plan
from kvcore.scenario import PARALLEL, Scenario

LEAST_BYTES: Final = 5 * MIB
"""Smallest change of a part that is named."""
MOST_CAUSES: Final = 6
COMPARED: Final = ("total", "budget", *(part.name for part in PARTS if part is not UNUSED))
"""Parts of a rank's memory, and the budget that the engine takes for itself."""
FIGURES: Final = ("tokens", "max_concurrency", "longest_request_tokens")
"""Figures of the cache."""
SETTINGS: Final = (
    "gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "dtype",
    "kv_cache_dtype", "max_cudagraph_capture_size", "cudagraph_mode", "mamba_cache_mode", "async_scheduling",
    "use_v2_model_runner", "enable_prefix_caching", "enable_chunked_prefill",
)  # fmt: skip
"""Flags as the engine resolves them, and switches of a release that cost memory."""
_SHOWN_APART: Final = ("config", "checkpoint", "parallel", "measured", "surroundings")


class Changed(Struct, frozen=True, kw_only=True):
    """One thing that is another in the second plan; None where one of them does not have it."""

    name: str
    before: Any
    after: Any
    unit: Unit = Unit.NONE
    why: tuple[Changed, ...] = ()
    """What it is worked out from, as far as that differs, the largest first."""

    @property
    def more(self) -> float:
        """How much more it is in the second plan; 0 for what is no number."""
        numbers = [value for value in (self.before, self.after) if isinstance(value, int | float)]
        return numbers[1] - numbers[0] if len(numbers) == 2 else 0.0


class Difference(Struct, frozen=True, kw_only=True):
    """Everything in which two plans differ."""

    before: Plan
    after: Plan

    @property
    def asked(self) -> tuple[Changed, ...]:
        """Fields of the request."""
        return tuple(_fields(self.before.scenario, self.after.scenario))

    @property
    def settings(self) -> tuple[Changed, ...]:
        """Flags that nobody changed, and that the engine resolves to another value: defaults that moved."""
        asked = {one.name for one in self.asked}
        one, other = self.before.resolved, self.after.resolved
        return tuple(
            Changed(name=name, before=_plain(getattr(one, name)), after=_plain(getattr(other, name)))
            for name in SETTINGS
            if name in one.__struct_fields__
            and name not in asked
            and getattr(one, name) != getattr(other, name)
        )

    @property
    def parts(self) -> tuple[Changed, ...]:
        """Parts of the worst rank's memory in bytes, each with what changed in its formula."""
        one, other = self.before.memory, self.after.memory
        if one is None or other is None:
            return ()
        found = (_part(name, getattr(one, name), getattr(other, name)) for name in COMPARED)
        return tuple(part for part in found if abs(part.more) >= LEAST_BYTES)

    @property
    def figures(self) -> tuple[Changed, ...]:
        """Tokens of the KV cache, requests of full length at once, the longest request."""
        one, other = self.before.cache, self.after.cache
        pairs = ((name, getattr(one, name, None), getattr(other, name, None)) for name in FIGURES)
        return tuple(Changed(name=name, before=was, after=now) for name, was, now in pairs if was != now)


def difference(before: Plan, after: Plan) -> Difference:
    """Two plans against each other.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "tensor_parallel_size": 2}
        >>> one, other = (plan(scenario_from_request(asked | more)) for more in ({}, {"kv_cache_dtype": "fp8"}))
        >>> found = difference(one, other)
        >>> [(change.name, change.before, change.after) for change in found.asked]
        [('kv_cache_dtype', 'auto', 'fp8')]
        >>> found.figures[0].more > 100_000
        True
    """
    return Difference(before=before, after=after)


def release_difference(scenario: Scenario, before: str, after: str) -> Difference:
    """One deployment on two releases of its engine.

    Raises KvPlannerError for a release that is not known, and where either refuses the deployment.
    """
    for release in (before, after):
        find_engine(scenario.engine).release(release)
    return difference(*(plan(replace(scenario, engine_version=release)) for release in (before, after)))


def difference_result(found: Difference) -> dict[str, Any]:
    """A difference as JSON: sizes in GiB, all else as it is."""
    return {
        "status": "ok",
        "verdict": {"before": found.before.verdict.value, "after": found.after.verdict.value},
        "asked": [_row(one) for one in found.asked],
        "resolved": [_row(one) for one in found.settings],
        "per_rank_gib": [_row(one) for one in found.parts],
        "kv": [_row(one) for one in found.figures],
        "warnings": {
            "gone": sorted({one.code for one in found.before.notices} - {one.code for one in found.after.notices}),
            "new": sorted({one.code for one in found.after.notices} - {one.code for one in found.before.notices}),
        },
    }  # fmt: skip


def _row(one: Changed) -> dict[str, Any]:
    values = {"before": _number(one.before, one.unit), "after": _number(one.after, one.unit)}
    why = {"why": [{**_row(cause), "unit": _unit(cause.unit)} for cause in one.why]} if one.why else {}
    return {"name": one.name, **values, **why}


def _unit(unit: Unit) -> str:
    return "GiB" if unit is Unit.BYTES else unit.value


def _number(value: Any, unit: Unit) -> Any:
    if unit is Unit.BYTES and isinstance(value, int | float):
        return rounded_gib(value)
    return rounded(value) if isinstance(value, float) else value


def _fields(one: Scenario, other: Scenario) -> Iterator[Changed]:
    """Fields that were asked for differently; a card by its id, objects as a whole."""
    for name in Scenario.__struct_fields__:
        was, now = getattr(one, name), getattr(other, name)
        if was == now:
            continue
        if name == "parallel":
            yield from (
                Changed(name=size, before=getattr(was, size), after=getattr(now, size))
                for size in PARALLEL
                if getattr(was, size) != getattr(now, size)
            )
        elif name == "accelerator":
            ids = (None if card is None else card.id for card in (was, now))
            yield Changed(name=name, before=next(ids), after=next(ids))
        elif name == "config" and one.model != other.model:
            continue  # said by the model
        elif name in _SHOWN_APART:
            if name != "checkpoint" or one.model == other.model:
                yield Changed(name=name, before="", after="changed")
        else:
            yield Changed(name=name, before=_plain(was), after=_plain(now))


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__ if name != "config"}
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _part(name: str, one: Quantity, other: Quantity) -> Changed:
    return Changed(
        name=name, before=one.value, after=other.value, unit=Unit.BYTES, why=_causes(name, one, other)
    )


def _causes(name: str, one: Quantity, other: Quantity) -> tuple[Changed, ...]:
    """The inputs of a part that differ, without the other parts, which stand beside it.

    Of the KV cache, all that is taken off the budget is named: that is why its size is what it is.
    """
    if name == KV_CACHE.name:
        one, other = _named(one, "available_kv"), _named(other, "available_kv")
        was, now = _first(one), _first(other)
    else:
        was, now = _leaves(one), _leaves(other)
    both = (
        Changed(
            name=cause,
            before=None if (left := was.get(cause)) is None else left.value,
            after=None if (right := now.get(cause)) is None else right.value,
            unit=(left or right or one).unit,
        )
        for cause in dict.fromkeys((*was, *now))
    )
    differing = [
        cause
        for cause in both
        if cause.before != cause.after and (cause.before or cause.after) and cause.name != name
    ]
    weights = sorted(differing, key=lambda cause: -abs(_size(cause)))
    return tuple(cause for cause in weights if cause.unit is not Unit.BYTES or abs(_size(cause)) >= LEAST_BYTES)[
        :MOST_CAUSES
    ]  # fmt: skip


def _size(cause: Changed) -> float:
    """What orders causes: bytes first, by how much they are; then other numbers."""
    if cause.unit is not Unit.BYTES:
        return 0.0
    return float((cause.after or 0) - (cause.before or 0))


def _named(quantity: Quantity, name: str) -> Quantity:
    return next((one for one in quantity.walk() if one.name == name), quantity)


def _first(quantity: Quantity) -> dict[str, Quantity]:
    return {one.name: one for one in quantity.inputs}


def _leaves(quantity: Quantity) -> dict[str, Quantity]:
    """What a quantity starts from, by name; itself where it has no rule."""
    return {one.name: one for one in quantity.walk() if one.rule is None}
