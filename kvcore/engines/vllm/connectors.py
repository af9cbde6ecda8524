"""`--kv-transfer-config`: which server of several this is, and what its connector does to the KV cache."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from packaging.version import Version

from kvcore.base.errors import Notice, notice, shorten
from kvcore.engine.protocol import Engine
from kvcore.engine.records import Role, Transfer
from kvcore.engine.switches import ConnectorGroups
from kvcore.engines.vllm.start import Start
from kvcore.scenario import Scenario


def transfer_of(scenario: Scenario) -> Transfer:
    """The connector and the role of the server that `scenario` starts.

    Source: vllm/config/kv_transfer.py:KVTransferConfig (0.10.2, 0.23.0): a connector has a role.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> said = {"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_consumer"}
        >>> transfer_of(scenario_from_request({"model": "Qwen/Qwen3-8B", "kv_transfer_config": said})).role.value
        'kv_consumer'
    """
    text = scenario.kv_transfer_config
    if text is None:
        return Transfer()
    said: dict[str, Any] = json.loads(text)
    return Transfer(connector=said.get("kv_connector"), role=Role(said.get("kv_role", Role.BOTH)))


def keeps_groups(engine: Engine, scenario: Scenario, version: Version, rule: ConnectorGroups) -> bool:
    """Whether layers keep groups of their own: with a connector the engine may join them, whatever they store.

    Source: `Switches.connector_groups`.
    """
    asked, said = scenario.disable_hybrid_kv_cache_manager, transfer_of(scenario)
    if asked or said.connector is None:
        return not asked
    if rule is ConnectorGroups.NEVER or asked is False:
        return rule is not ConnectorGroups.NEVER
    rows = engine.facts.connectors_with_groups
    is_known = any(said.connector in row.names for row in rows if row.covers(version))
    return rule is ConnectorGroups.BY_CONNECTOR and is_known


def connector_notices(start: Start) -> Iterator[Notice]:
    """`kv-connector-joins-groups` where layers of several kinds lose their own groups to a connector."""
    connector, traits = transfer_of(start.scenario).connector, start.traits
    if connector is None or start.scenario.disable_hybrid_kv_cache_manager or not traits.is_mixed:
        return
    if not keeps_groups(start.engine, start.scenario, start.version, start.switches.connector_groups):
        yield notice("kv-connector-joins-groups", "kv_transfer_config", connector=shorten(connector))
