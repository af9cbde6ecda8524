"""The checkpoint's own size beside the counted one."""

from __future__ import annotations

from typing import Any

import pytest

from kvcore import catalogue
from kvcore.planning import plan
from kvcore.scenario.request import scenario_from_request
from kvcore.units import GIB


def codes(request: dict[str, Any]) -> set[str]:
    return {notice.code for notice in plan(scenario_from_request(request)).notices}


LLAMA = {"model": "meta-llama/Llama-3.1-8B-Instruct", "accelerator": "H100-80GB"}


def test_a_checkpoint_of_the_counted_size_says_nothing() -> None:
    assert "checkpoint-size-differs" not in codes({**LLAMA, "checkpoint": {"total_size": 16_060_522_496}})


def test_twice_the_size_is_named() -> None:
    assert "checkpoint-size-differs" in codes({**LLAMA, "checkpoint": {"total_size": 2 * 16_060_522_496}})


def test_a_flag_that_explains_the_difference_is_enough() -> None:
    assert "checkpoint-size-differs" not in codes(
        {**LLAMA, "quantization": "fp8", "checkpoint": {"total_size": 2 * 16_060_522_496}}
    )


def uncounted_model() -> str:
    from kvcore.model.families import read_architecture

    return next(entry.id for entry in catalogue.load_models() if read_architecture(entry.config).uncounted)


def test_a_part_that_is_not_counted_is_named_and_taken_from_the_size() -> None:
    entry = catalogue.find_model(uncounted_model())
    request = {"model": entry.id, "config": dict(entry.config.raw), "accelerator": "B300-288GB"}
    without = plan(scenario_from_request(request))
    assert "part-not-counted" in {notice.code for notice in without.notices}
    size = without.parameter_bytes_per_rank + 3 * GIB
    taken = plan(scenario_from_request({**request, "checkpoint": {"total_size": size}}))
    assert "part-from-checkpoint" in {notice.code for notice in taken.notices}
    assert taken.weights.total - without.weights.total == pytest.approx(3 * GIB)
    halved = plan(scenario_from_request({**request, "checkpoint": {"total_size": size // 2}}))
    assert halved.weights.total == without.weights.total
