"""The interval of the KV memory: what its parts leave unsure is added up, each side by its factor."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace
from packaging.version import Version

from kvcore.base.units import GIB, gib
from kvcore.catalogue.accelerators import Vendor
from kvcore.engine.rank_memory import reaches
from kvcore.memory.intervals import INTERVALS, Cell, Reach, factor_of, interval_of, storage_share
from kvcore.tables import OLDEST
from tests import present_plans

PRINTED_GIB = 0.005


def interval_gib(**fields: Any) -> tuple[float, float]:
    """How far the KV memory of Qwen3-8B on an H100 may lie below and above its prediction, in GiB."""
    memory = present_plans.request(**{"model": "Qwen/Qwen3-8B", **fields}).memory
    assert memory is not None
    below, above = reaches(memory.available_kv)
    return gib(below), gib(above)


def test_estimates_are_added_and_scaled_on_each_side_with_what_publications_differ_by() -> None:
    planned = present_plans.request(model="Qwen/Qwen3-8B", kernels_compiled=True)
    memory = planned.memory
    assert memory is not None
    parts = (memory.activations, memory.framework, memory.counted_graphs)
    unsure = sum(min(reaches(part)) for part in parts)
    assert unsure * 2 == pytest.approx(sum(map(sum, map(reaches, parts))))  # no other case of what is unknown
    row = factor_of(Cell(Vendor.NVIDIA, "one", False, planned.resolved.version))
    between = INTERVALS.load().between_gib * GIB
    assert reaches(memory.available_kv) == pytest.approx(
        (math.hypot(row.less * unsure, between), math.hypot(row.more * unsure, between))
    )


def test_what_publications_differ_by_counts_in_squares_on_both_sides_but_not_of_other_cases() -> None:
    row = replace(INTERVALS.load().factor[-1], less=1.0, more=2.0)
    # 3 and 4 make 5, 6 and 4 with the 2 of another case sqrt(52) + 2.
    reach = Reach(estimates=3.0, below=0.0, above=2.0, given=0.0, between=4.0)
    assert interval_of(0.0, reach, row) == (-5.0, math.sqrt(52.0) + 2.0)


def test_what_is_given_is_as_sure_as_a_log_prints() -> None:
    measured = {"weights_gib": 15.3, "peak_activation_gib": 2.0, "non_torch_gib": 0.3, "cuda_graph_gib": 0.5}
    few = [name for name in measured if name != "cuda_graph_gib"]
    widths = interval_gib(measured=measured)
    counted = 4 if widths[0] > math.sqrt(3.5) * PRINTED_GIB else len(few)
    assert widths == pytest.approx((math.sqrt(counted) * PRINTED_GIB,) * 2, rel=1e-3)


def test_each_part_that_is_given_narrows_it() -> None:
    wide = interval_gib()
    for field, value in (("peak_activation_gib", 2.0), ("non_torch_gib", 0.3)):
        narrow = interval_gib(measured={field: value})
        assert all(less < more for less, more in zip(narrow, wide, strict=True)), field


def test_sides_are_kept_apart() -> None:
    row = replace(INTERVALS.load().factor[-1], less=3.0, more=1.0)
    # 3 × 4 and the 5 that is given, in a sum of squares: 13; above, 1 × 4 and the 8 of another case, and 5.
    assert interval_of(0.0, Reach(estimates=4.0, below=0.0, above=8.0, given=5.0), row) == (-13.0, 13.0)


def test_a_factor_below_one_brings_no_other_case_nearer() -> None:
    row = replace(INTERVALS.load().factor[-1], less=0.5, more=0.5)
    # The case below lies 3 + 6 away, as its part says; where there is none, half of the 4 that parts are unsure of.
    reach = Reach(estimates=4.0, below=6.0, above=0.0, given=0.0, to_below=3.0)
    assert interval_of(0.0, reach, row) == (-(0.5 * 1.0 + 3.0 + 6.0), 2.0)


@pytest.mark.parametrize(
    ("storage", "share"),
    [
        ("unquantized ", 0.0),
        ("awq 4 bits, groups of 128", 0.005),
        ("fp8 128 × 128 blocks", 0.005),
        ("modelopt_fp4 nvfp4", 0.03),
        ("mxfp4 experts, groups of 32, padded", 0.03),
        ("deepseek_v4_fp8 fp8 blocks, 4-bit experts", 0.03),
    ],
)
def test_weights_that_kernels_repack_are_less_sure(storage: str, share: float) -> None:
    assert storage_share(storage) == share


def test_every_cell_has_a_factor_and_an_unknown_vendor_is_no_surer_than_a_known_one() -> None:
    rows = INTERVALS.load().factor
    for vendor in Vendor:
        for version in (OLDEST, Version("0.11.0"), Version("0.19.1"), Version("0.33.0")):
            for kind in (False, True):
                for ranks in ("one", "several"):
                    row = factor_of(Cell(vendor, ranks, kind, version))  # type: ignore[arg-type]
                    assert row.less > 0
                    assert row.more > 0
                    assert row in rows
    assert {row.vendor for row in rows[-2:]} == {None}
