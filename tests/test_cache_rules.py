"""planner.toml is read strictly and gives each version its own behaviour."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from packaging.version import Version

from kvcore.cache.rules import PLANNER, planner_rules
from kvcore.errors import CatalogueError


def raw_tables() -> dict[str, Any]:
    return deepcopy(dict(PLANNER.raw()))


def test_a_rule_holds_from_its_version_on() -> None:
    slack = [
        planner_rules(Version(v)).group_size_slack for v in ("0.11.2", "0.12.0", "0.17.1", "0.18.1", "0.33.0")
    ]
    assert slack == [1.0, 1.25, 1.25, 1.5, 1.5]


def test_the_null_block_counts_from_0_29() -> None:
    assert planner_rules(Version("0.28.0")).fit_check == "groups"
    assert planner_rules(Version("0.29.0")).fit_check == "groups-and-null-block"


def test_unknown_and_missing_rules_are_named() -> None:
    raw = raw_tables()
    with pytest.raises(CatalogueError, match="colour"):
        PLANNER.read(raw | {"rules": raw["rules"] | {"colour": {"source": "x", "0.0": 1}}})
    del raw["rules"]["fit_check"]
    with pytest.raises(CatalogueError, match="fit_check"):
        PLANNER.read(raw)


@pytest.mark.parametrize("missing", ["source", "0.0"])
def test_a_rule_needs_source_and_first_value(missing: str) -> None:
    raw = raw_tables()
    del raw["rules"]["fit_check"][missing]
    with pytest.raises(CatalogueError, match=rf"fit_check.*{missing}"):
        PLANNER.read(raw)
