"""A scenario with some of its fields taken from another."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from msgspec.structs import replace

from kvcore.engines.registry import find_engine, with_accelerator
from kvcore.scenario import PARALLEL, Scenario

_OF_MODEL: Final = ("model", "config", "checkpoint")
_FILES: Final = (*_OF_MODEL, "hf_quant_config", "headers")
"""Fields of a request that together say which model it is."""


def with_read(scenario: Scenario, read: Scenario, names: Collection[str]) -> Scenario:
    """`scenario` with the fields `names` of `read`.

    Another card brings its engine, another engine its newest release, unless they are named too; another length of
    graphs takes the place of a list.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> one = scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "L4-24GB", "max_num_seqs": 8})
        >>> other = scenario_from_request({"model": "Qwen/Qwen3-8B", "accelerator": "Ascend-910B3-64GB"})
        >>> found = with_read(one, other, ["accelerator"])
        >>> found.engine, found.max_num_seqs
        ('vllm-ascend', 8)
    """
    found = scenario
    if "accelerator" in names:
        card = read.accelerator
        found = replace(found, accelerator=None) if card is None else with_accelerator(found, card)
    if "engine" in names and read.engine != found.engine:
        found = replace(found, engine=read.engine)
        if not find_engine(read.engine).knows(found.engine_version):
            found = replace(found, engine_version=None)
    cut = {name: getattr(read.parallel, name) for name in PARALLEL if name in names}
    own = {
        name: getattr(read, name)
        for name in Scenario.__struct_fields__
        if name in names and name not in ("accelerator", "engine", *_OF_MODEL)
    }
    changes: dict[str, Any] = {**own, **({"parallel": replace(found.parallel, **cut)} if cut else {})}
    if set(names) & set(_FILES):
        changes |= {name: getattr(read, name) for name in _OF_MODEL}
    if "max_cudagraph_capture_size" in names and "cudagraph_capture_sizes" not in names:
        changes["cudagraph_capture_sizes"] = None
    return replace(found, **changes)
