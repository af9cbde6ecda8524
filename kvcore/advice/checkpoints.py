"""Which checkpoint of a model is planned on a card that does not take the published one."""

from __future__ import annotations

from msgspec.structs import replace

from kvcore import catalogue
from kvcore.base.errors import KvPlannerError
from kvcore.engines.registry import engine_of, format_refusals
from kvcore.planning import check
from kvcore.scenario import Scenario, cached_answer


def as_served(scenario: Scenario) -> Scenario:
    """`scenario` with the checkpoint that its engine takes on its card: ModelSlim's where it takes no other.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-32B-FP8", "accelerator": "Ascend-910B3-64GB", "engine": "vllm-ascend"}
        >>> as_served(scenario_from_request(asked)).quantization
        'ascend'
    """
    served = _quantization_as_served(scenario)
    return scenario if served == scenario.quantization else replace(scenario, quantization=served)


def with_checkpoint(scenario: Scenario, model: str) -> Scenario:
    """`scenario` with a model of the catalogue, which is the same in another storage format.

    Raises CatalogueError for an unknown one.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-32B", "accelerator": "RTX-4090-24GB"}
        >>> changed = with_checkpoint(scenario_from_request(asked), "Qwen/Qwen3-32B-AWQ")
        >>> changed.config.raw["quantization_config"]["bits"]
        4
    """
    entry = catalogue.find_model(model)
    return replace(scenario, model=entry.id, config=entry.config, checkpoint=entry.checkpoint)


def is_as_published(scenario: Scenario) -> bool:
    """Whether the config is the catalogue's own, and nothing asks for another storage format."""
    own = catalogue.bundled_model(scenario.model)
    as_stored = scenario.quantization is None and scenario.hf_overrides is None
    return as_stored and own is not None and own.config == scenario.config


@cached_answer
def _quantization_as_served(scenario: Scenario) -> str | None:
    others = (scenario, *other_checkpoints(scenario))
    return next((one for one in others if _refusal_code(one) not in format_refusals()), scenario).quantization


def other_checkpoints(scenario: Scenario) -> list[Scenario]:
    """`scenario` with each format of weights that its engine alone has, where none is asked for."""
    own = engine_of(scenario).facts.weight_precisions if scenario.quantization is None else ()
    return [replace(scenario, quantization=precision) for precision in own]


def _refusal_code(scenario: Scenario) -> str:
    try:
        check(scenario)
    except KvPlannerError as error:
        return error.code
    return ""
