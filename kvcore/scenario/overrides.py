"""What a person's own figures change: each override laid on the engine's estimate in turn, with its effect."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kvcore.errors import KvPlannerError
from kvcore.flags.registry import FLAGS, fields_of
from kvcore.planning import Plan, plan
from kvcore.scenario import Measured, value_of
from kvcore.scenario.edit import memory_override_gib, with_field
from kvcore.scenario.link import catalogue_card

MEMORY: Final = FLAGS["accelerator.memory_gib"]
_PARTS: Final = (
    (MEMORY, "total"),
    *((flag, flag.part) for flag in fields_of("measured").values() if flag.part),
)
"""Figures that a person may give, and the part of a rank's memory whose place they take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OverrideStep:
    """One figure given by the person, the engine's own in its place, and the pool before and after."""

    label: str
    field: str
    predicted_bytes: float
    given_bytes: float
    tokens_before: int
    tokens_after: int


def override_steps(planned: Plan) -> tuple[OverrideStep, ...]:
    """The way from the engine's own estimate to `planned`, one override at a time; empty without overrides."""
    scenario = planned.scenario
    given = {field: value for field, value in _given(planned).items() if value is not None}
    if not given or planned.memory is None:
        return ()
    bare = with_field(replace(scenario, measured=Measured()), "accelerator.memory_gib", None)
    steps = []
    try:
        before = plan(bare)
        for flag, name in _PARTS:
            field, label = flag.name, flag.label
            if field not in given:
                continue
            bare = with_field(bare, field, given[field])
            after = plan(bare)
            if before.memory is None or after.memory is None:
                return ()
            steps.append(
                OverrideStep(
                    label=label,
                    field=field,
                    predicted_bytes=getattr(before.memory, name).value,
                    given_bytes=getattr(after.memory, name).value,
                    tokens_before=before.cache.tokens if before.cache else 0,
                    tokens_after=after.cache.tokens if after.cache else 0,
                )
            )
            before = after
    except KvPlannerError:
        return ()
    return tuple(steps)


def _given(planned: Plan) -> dict[str, float | None]:
    card = planned.scenario.accelerator
    is_bundled = card is not None and catalogue_card(card) is not None
    memory_gib = memory_override_gib(planned.scenario) if is_bundled else None
    return {MEMORY.name: memory_gib} | {
        flag.name: value_of(planned.scenario, flag.name) for flag, _ in _PARTS if flag is not MEMORY
    }
