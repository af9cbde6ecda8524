"""The scenario after a change: one field, the card or the model, and the fields that follow it."""

from __future__ import annotations

import json
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore import catalogue
from kvcore.advice.checkpoints import with_checkpoint
from kvcore.base.parts import ACTIVATIONS, MEASURED_FIELDS
from kvcore.base.quantity import Grade
from kvcore.catalogue.accelerators import Accelerator
from kvcore.catalogue.models import Checkpoint
from kvcore.controls.additional import with_key
from kvcore.controls.offers import nearest_tensor_parallel_size
from kvcore.engine.facts import ADDITIONAL
from kvcore.engines.registry import find_engine, with_accelerator
from kvcore.evidence.carry import carried_over, carried_to_model
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.scenario import (
    PARALLEL,
    Origin,
    Runner,
    Scenario,
    value_of,
    without_state_flags,
)
from kvcore.wire.fields import read_object
from kvcore.wire.link import catalogue_card, with_memory
from kvcore.wire.request import read_fields, with_surroundings

_OBJECTS: Final = ("mm_processor_kwargs", "surroundings")
"""Objects whose fields have controls of their own."""
OWN: Final = "server_args"
"""The field of a request with arguments that the engine alone has."""
_MEASURED = frozenset(f"measured.{part}" for part in MEASURED_FIELDS)


class Adjusted(Struct, frozen=True, kw_only=True):
    """A scenario with another model, and the fields that were adjusted to it."""

    scenario: Scenario
    fields: tuple[str, ...] = ()


def with_field(scenario: Scenario, field: str, value: object) -> Scenario:
    """`scenario` with one field changed; None takes the default.

    Measured parts move with the estimate. Another accelerator takes back a memory that was given, and changes the
    engine to one that runs there. Raises a KvPlannerError for an unknown accelerator or engine.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> start = scenario_from_request({"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB"})
        >>> with_field(start, "tensor_parallel_size", 2).parallel.tensor_parallel_size
        2
    """
    return carried_over(scenario, _changed(scenario, field, value))


def with_card(scenario: Scenario, card: Accelerator) -> Scenario:
    """`scenario` on `card`, bundled or not; measured parts move with the estimate."""
    return carried_over(scenario, with_accelerator(scenario, card))


def _changed(scenario: Scenario, field: str, value: object) -> Scenario:
    if field == "accelerator":
        return with_accelerator(scenario, catalogue.find_accelerator(str(value)))
    if field == "model":
        return with_checkpoint(scenario, str(value))
    if field == "accelerator.memory_gib":
        return _with_memory(scenario, value)
    head, _, key = field.partition(".")
    if head in _OBJECTS and key:
        return _with_inner(scenario, head, key, value)
    if head == ADDITIONAL and key:
        return with_key(scenario, field, value)
    if head == OWN and key:
        said = json.loads(scenario.server_args) if scenario.server_args else {}
        said = {name: one for name, one in (said | {key: value}).items() if one is not None}
        return replace(scenario, server_args=read_object(said, OWN))
    changes: dict[str, Any] = {field: value}
    if field == "max_cudagraph_capture_size":
        # A list with another maximum stops the start: the later setting counts.
        changes["cudagraph_capture_sizes"] = None
    if field == "engine" and find_engine(str(value)) is not find_engine(scenario.engine):
        changes[OWN] = None
    if field == "engine" and not find_engine(str(value)).knows(scenario.engine_version):
        changes["engine_version"] = None
    if field in PARALLEL:
        return replace(scenario, parallel=replace(scenario.parallel, **changes))
    if field in _MEASURED:
        name = field.removeprefix("measured.")
        own = scenario.measured.with_origin((name,), Origin.MEASURED)
        if name == ACTIVATIONS.field:
            own = replace(own, batched_tokens=None)
        return replace(scenario, measured=replace(own, **{name: changes[field]}))
    return replace(scenario, **changes)


def _with_inner(scenario: Scenario, head: str, key: str, value: object) -> Scenario:
    """`scenario` with one field of an object changed; None takes it out."""
    if head == "surroundings":
        return with_surroundings(scenario, {key: value})
    read = read_fields({key: value}, head)
    others = {name: one for name, one in (value_of(scenario, head) or {}).items() if name != key}
    return replace(scenario, mm_processor_kwargs={**others, **read} or None)


def engine_followed(before: Scenario, after: Scenario) -> bool:
    """Whether the engine changed with the accelerator."""
    return before.accelerator != after.accelerator and before.engine != after.engine


def with_model(scenario: Scenario, model: str, config: ModelConfig, checkpoint: Checkpoint) -> Adjusted:
    """`scenario` with another model, and with a tensor parallel size and a length that it accepts.

    The runner and flags about recurrent states are left to the engine again. Measurements of the model are dropped,
    those of the machine stay.
    Raises ModelError where the config cannot be read exactly.
    """
    limit = read_architecture(config).max_model_len
    other = replace(
        without_state_flags(scenario), model=model, config=config, checkpoint=checkpoint, runner=Runner.AUTO
    )
    changed = carried_to_model(scenario, other)
    followed = []
    size = nearest_tensor_parallel_size(changed)
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
    """The memory per card, in GiB, that was given in place of the catalogue's; None for none."""
    card = scenario.accelerator
    if card is None or card.memory_grade is not Grade.MEASURED:
        return None
    known = catalogue_card(card)
    return card.memory_gib if known is None or known.memory_gib != card.memory_gib else None
