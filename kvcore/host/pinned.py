"""Memory of the host that torch pins for a card: each tensor rounded up, unless a variable bounds the rounding."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from packaging.version import Version

from kvcore.base.quantity import Grade, Quantity, Scope, Unit, explained, given
from kvcore.base.units import MIB
from kvcore.host.rules import tier_rules
from kvcore.scenario import Scenario

ALLOCATOR: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Variables of torch's allocators, the newer name first."""
THRESHOLD: Final = "pinned_max_round_threshold_mb"
"""Above so many MiB a tensor is not rounded. Source: c10/core/AllocatorConfig.h (torch 2.13);
github.com/pytorch/pytorch/pull/171662."""
_SAID: Final = re.compile(rf"(?:^|,)\s*{THRESHOLD}:(\d{{1,9}})\s*(?:,|$)")


def power_of_two(size_bytes: int) -> int:
    """Bytes that torch pins for a tensor: the next power of two.

    Source: torch ATen/core/CachingHostAllocator.h:CachingHostAllocatorImpl.allocate (2.9 to 2.13).

    Example:
        >>> power_of_two(2_236_817_408) == 4 * 2**30, power_of_two(4096)
        (True, 4096)
    """
    return 1 << (size_bytes - 1).bit_length() if size_bytes > 0 else 0


def pinned_size(size_bytes: int, threshold_bytes: int | None) -> int:
    """The same where larger tensors than `threshold_bytes` are not rounded.

    Example:
        >>> pinned_size(5 * MIB, None) // MIB, pinned_size(5 * MIB, 1 * MIB) // MIB
        (8, 5)
    """
    is_rounded = threshold_bytes is None or size_bytes <= threshold_bytes
    return power_of_two(size_bytes) if is_rounded else size_bytes


def rounding_threshold(scenario: Scenario, version: Version) -> int | None:
    """Bytes above which the start's torch rounds no tensor; None where it rounds all.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> said = {"PYTORCH_ALLOC_CONF": "expandable_segments:True,pinned_max_round_threshold_mb:1"}
        >>> scenario = scenario_from_request({"model": "Qwen/Qwen3-8B", "env": said})
        >>> rounding_threshold(scenario, Version("0.33.0")), rounding_threshold(scenario, Version("0.26.0"))
        (1048576, None)
    """
    text = next((scenario.env[name] for name in ALLOCATOR if name in scenario.env), "")
    found = _SAID.search(text)
    return None if found is None or not tier_rules(version).bounds_rounding else int(found[1]) * MIB


def pinned_bytes(ranks: int, tensors: Sequence[tuple[int, int]]) -> int:
    """Bytes of tensors of every rank, each as large as it is in the host's memory."""
    return ranks * sum(count * size for count, size in tensors)


def of_the_host(name: str, rule: Any, *arguments: Any, source: str, grade: Grade = Grade.EXACT) -> Quantity:
    """Bytes of the host's memory that all ranks of an engine take."""
    return explained(
        name, rule, *arguments, unit=Unit.BYTES, scope=Scope.PER_REPLICA, grade=grade, source=source
    )


def in_the_host(name: str, ranks: Quantity, sizes: Mapping[int, int], *, source: str) -> Quantity:
    """Bytes of every rank's tensors; `sizes`: how many there are of each size."""
    tensors = tuple(
        (given("tensors", count), given("tensor_bytes", size, Unit.BYTES)) for size, count in sizes.items()
    )
    return of_the_host(name, pinned_bytes, ranks, tensors, source=source)
