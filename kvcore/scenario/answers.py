"""Answers about a scenario, cached with its model for all visitors who ask the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from hashlib import blake2b
from typing import TypeVar

from msgspec import msgpack
from msgspec.structs import replace

from kvcore.base.kept import found_with
from kvcore.scenario import Scenario

T = TypeVar("T")


def kept_answer(function: Callable[[Scenario], T]) -> Callable[[Scenario], T]:
    """Caches what `function` returns with the scenario's config, by a digest of all other fields.

    So nothing that a visitor wrote outlives the visit, except in the answer itself: it must not refer to the scenario.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> @kept_answer
        ... def share(scenario: Scenario) -> list[float | None]:
        ...     return [scenario.gpu_memory_utilization]
        >>> asked = {"model": "Qwen/Qwen3-32B", "gpu_memory_utilization": 0.8}
        >>> one, other = (scenario_from_request(asked | {"engine_version": name}) for name in ("0.30.0", "0.31.0"))
        >>> share(one) is share(scenario_from_request(asked | {"engine_version": "0.30.0"})), share(one) is share(other)
        (True, False)
    """

    @wraps(function)
    def asked(scenario: Scenario) -> T:
        try:
            others = msgpack.encode(replace(scenario, config=None))
        except (OverflowError, TypeError, ValueError):
            # No digest, for example of an 80-bit number in a connector's settings: computed each time.
            return function(scenario)
        return found_with(scenario.config, (function, blake2b(others).digest()), lambda: function(scenario))

    return asked
