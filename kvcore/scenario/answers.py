"""What is found of a scenario and kept with its model, for all visitors who ask the same."""

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
    """Keeps what `function` finds of a scenario as long as its config lives, by a digest of everything else.

    Of what a visitor wrote nothing stays but what is in the answer itself, which must not refer to the scenario.

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
            # A number of 80 bits in a connector's settings, for one: found anew each time.
            return function(scenario)
        return found_with(scenario.config, (function, blake2b(others).digest()), lambda: function(scenario))

    return asked
