"""planner.toml is read strictly and gives each version its own behaviour."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any

import pytest
from packaging.version import Version

from kvcore.cache.rules import planner_rules, read_rule_tables
from kvcore.errors import CatalogueError


def raw_tables() -> dict[str, Any]:
    return tomllib.loads(resources.files("kvcore.cache").joinpath("planner.toml").read_text(encoding="utf-8"))


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
        read_rule_tables(raw | {"colour": {"source": "x", "0.0": 1}})
    del raw["fit_check"]
    with pytest.raises(CatalogueError, match="fit_check"):
        read_rule_tables(raw)


@pytest.mark.parametrize("missing", ["source", "0.0"])
def test_a_rule_needs_source_and_first_value(missing: str) -> None:
    raw = raw_tables()
    raw["fit_check"] = {key: value for key, value in raw["fit_check"].items() if key != missing}
    with pytest.raises(CatalogueError, match=r"source or 0\.0"):
        read_rule_tables(raw)
