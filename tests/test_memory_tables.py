"""The loader of fitted constants refuses what it does not know."""

from typing import Any

import pytest
from packaging.version import Version

from kvcore.base.errors import CatalogueError
from kvcore.engine.overheads import OverheadRow
from kvcore.memory.activations import ACTIVATIONS
from kvcore.memory.after_pool import AFTER_POOL
from kvcore.memory.framework import FRAMEWORK
from kvcore.memory.graphs import GRAPHS, UnknownDriver
from kvcore.tables import convert


def test_every_constant_names_its_source() -> None:
    activations, framework, graphs = ACTIVATIONS.load(), FRAMEWORK.load(), GRAPHS.load()
    after = AFTER_POOL.load()
    rows: list[Any] = [
        *activations.sampler, activations.body, activations.encoder, activations.multiprocessors,
        *framework.non_torch, *framework.collectives, *framework.context, *framework.communication,
        *framework.allreduce_fusion.era, *framework.allreduce_fusion.size,
        *graphs.rates, graphs.driver, *graphs.unknown_driver, graphs.attention_splits,
        *graphs.gemm_workspace, graphs.estimate,
        graphs.flashinfer, *graphs.shared_workspace, *after.warm_up, after.reserve, *after.tuning,
    ]  # fmt: skip
    assert all(len(row.source) > 10 for row in rows)


@pytest.mark.parametrize(
    "raw",
    [
        {"source": "x", "gib": 1.0},
        {"source": "x", "gib": 1.0, "spread_gib": 0.1, "colour": "red"},
        {"source": "x", "gib": "much", "spread_gib": 0.1},
        {"source": "x", "gib": True, "spread_gib": 0.1},
        {"source": 5, "gib": 1.0, "spread_gib": 0.1},
    ],
)
def test_unknown_missing_and_mistyped_keys_are_refused(raw: dict[str, object]) -> None:
    with pytest.raises(CatalogueError):
        convert(raw, OverheadRow, "framework.toml")


def test_versions_are_read_as_versions() -> None:
    row = convert(
        {"source": "x", "capability": "8.0", "factor": 1, "most": 2, "below": "0.15.0"},
        UnknownDriver,
        "graphs.toml",
    )
    assert row.below == Version("0.15.0")
