"""One control changes one field: a new scenario from an old one, by the field names of the link."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvcore import catalogue
from kvcore.catalogue.accelerators import Accelerator
from kvcore.catalogue.models import Checkpoint
from kvcore.engine.rooms import find_engine, with_accelerator
from kvcore.engine.vllm.versions import knows_release
from kvcore.evidence.carry import carried_over, carried_to_model
from kvcore.model.config import ModelConfig
from kvcore.quantity import Grade
from kvcore.scenario import (
    MEASURED_PARTS,
    PARALLEL,
    Origin,
    Runner,
    Scenario,
    without_state_flags,
)
from kvcore.scenario.choices import nearest_tensor_parallel_size
from kvcore.scenario.link import catalogue_card, with_memory

_MEASURED = frozenset(f"measured.{part}" for part in MEASURED_PARTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Adjusted:
    """A scenario with another model, and the fields that had to follow it."""

    scenario: Scenario
    fields: tuple[str, ...] = ()


def with_field(scenario: Scenario, field: str, value: object) -> Scenario:
    """`scenario` with one field changed; None takes the default.

    Measured parts follow the change as the estimate does. Another accelerator drops the exact memory, and brings the
    engine that runs there. Raises a KvPlannerError for an unknown accelerator or engine.

    Example:
        >>> from kvcore.scenario.request import scenario_from_request
        >>> start = scenario_from_request({"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB"})
        >>> with_field(start, "tensor_parallel_size", 2).parallel.tensor_parallel_size
        2
    """
    return carried_over(scenario, _changed(scenario, field, value))


def with_card(scenario: Scenario, card: Accelerator) -> Scenario:
    """`scenario` on `card`, which the catalogue need not have; measured parts follow as for any other change."""
    return carried_over(scenario, with_accelerator(scenario, card))


def _changed(scenario: Scenario, field: str, value: object) -> Scenario:
    if field == "accelerator":
        return with_accelerator(scenario, catalogue.find_accelerator(str(value)))
    if field == "accelerator.memory_gib":
        return _with_memory(scenario, value)
    changes: dict[str, Any] = {field: value}
    if field == "max_cudagraph_capture_size":
        # A list and another maximum stop the start; what the person sets last stands.
        changes["cudagraph_capture_sizes"] = None
    if field == "engine" and not knows_release(find_engine(str(value)).name, scenario.engine_version):
        changes["engine_version"] = None
    if field in PARALLEL:
        return replace(scenario, parallel=replace(scenario.parallel, **changes))
    if field in _MEASURED:
        name = field.removeprefix("measured.")
        own = scenario.measured.with_origin((name,), Origin.MEASURED)
        if name == "peak_activation_gib":
            own = replace(own, batched_tokens=None)
        return replace(scenario, measured=replace(own, **{name: changes[field]}))
    return replace(scenario, **changes)


def engine_followed(before: Scenario, after: Scenario) -> bool:
    """Whether the engine changed with the accelerator."""
    return before.accelerator != after.accelerator and before.engine != after.engine


def with_model(scenario: Scenario, model: str, config: ModelConfig, checkpoint: Checkpoint) -> Adjusted:
    """`scenario` with another model; a tensor parallel size or a length that it does not take follows it.

    The runner and flags about recurrent states are left to the engine again. What was measured of the model goes, what
    was measured of the machine stays.
    Raises ModelError where the config cannot be read exactly.
    """
    from kvcore.model.families import read_architecture

    limit = read_architecture(config).max_model_len
    other = replace(
        without_state_flags(scenario), model=model, config=config, checkpoint=checkpoint, runner=Runner.AUTO
    )
    changed = carried_to_model(scenario, other)
    followed = []
    size = nearest_tensor_parallel_size(changed).value
    if size != changed.parallel.tensor_parallel_size:
        changed = with_field(changed, "tensor_parallel_size", size)
        followed.append("tensor_parallel_size")
    if changed.max_model_len is not None and changed.max_model_len > limit:
        changed = replace(changed, max_model_len=limit)
        followed.append("max_model_len")
    return Adjusted(scenario=changed, fields=tuple(followed))


def _with_memory(scenario: Scenario, memory_gib: object) -> Scenario:
    if memory_gib is not None:
        return with_memory(scenario, memory_gib)
    card = scenario.accelerator
    known = catalogue_card(card) if card is not None else None
    return scenario if known is None else replace(scenario, accelerator=known)


def memory_override_gib(scenario: Scenario) -> float | None:
    """The memory per card that the person gave in place of the catalogue's, in GiB."""
    card = scenario.accelerator
    if card is None or card.memory_grade is not Grade.MEASURED:
        return None
    known = catalogue_card(card)
    return card.memory_gib if known is None or known.memory_gib != card.memory_gib else None
