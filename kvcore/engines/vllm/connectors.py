"""`--kv-transfer-config`: which server of several this is, and what its connector does to the KV cache."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from packaging.version import Version

from kvcore.base.errors import EngineRefusalError, Notice, notice, shorten
from kvcore.engine.facts import ConnectorNames
from kvcore.engine.protocol import Engine
from kvcore.engine.records import Role, Transfer
from kvcore.engine.switches import ConnectorGroups
from kvcore.engines.vllm.start import Start
from kvcore.scenario import Scenario

SIMPLE_OFFLOAD: Final = "VLLM_USE_SIMPLE_KV_OFFLOAD"
OFFLOADERS: Final = {
    "native": ("OffloadingConnector", "SimpleCPUOffloadConnector"),
    "lmcache": ("LMCacheMPConnector",) * 2,
}
"""Connectors of `--kv-offloading-backend`, the second with SIMPLE_OFFLOAD; before 0.22, when it was LMCacheConnectorV1,
every connector joined the groups.

Source: vllm/config/vllm.py:VllmConfig._post_init_kv_transfer_config (0.13.0, 0.20.0, 0.23.0, 0.33.0).
"""


def transfer_of(scenario: Scenario) -> Transfer:
    """The connector and the role of the server that `scenario` starts.

    Source: vllm/config/kv_transfer.py:KVTransferConfig (0.10.2, 0.23.0): a connector has a role.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> said = {"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_consumer"}
        >>> transfer_of(scenario_from_request({"model": "Qwen/Qwen3-8B", "kv_transfer_config": said})).role.value
        'kv_consumer'
    """
    text, offloads = scenario.kv_transfer_config, scenario.kv_offloading_size is not None
    if text is None and not offloads:
        return Transfer()
    said: dict[str, Any] = {} if text is None else json.loads(text)
    if offloads:
        is_simple = scenario.env.get(SIMPLE_OFFLOAD, "0") == "1"
        return Transfer(connector=OFFLOADERS[scenario.kv_offloading_backend][is_simple], role=Role.BOTH)
    return Transfer(
        connector=said.get("kv_connector"),
        role=Role(said.get("kv_role", Role.BOTH)),
        inner=_inner(said.get("kv_connector_extra_config")),
    )


def _inner(extra: object) -> tuple[str, ...]:
    """The connectors that a MultiConnector passes everything on to.

    Source: vllm/distributed/kv_transfer/kv_connector/v1/multi_connector.py:MultiConnector (0.22.1, 0.33.0).
    """
    listed = extra.get("connectors") if isinstance(extra, dict) else None
    given = (
        [one.get("kv_connector") for one in listed if isinstance(one, dict)]
        if isinstance(listed, list)
        else []
    )
    return tuple(name for name in given if isinstance(name, str))


def keeps_groups(engine: Engine, scenario: Scenario, version: Version, rule: ConnectorGroups) -> bool:
    """Whether layers keep groups of their own: with a connector the engine may join them, whatever they store.

    Before connectors are told apart, `--kv-offloading-size` is read after that.

    Source: `Switches.connector_groups`; vllm/config/vllm.py:VllmConfig.__post_init__ (0.20.0, 0.21.0, 0.23.0).
    """
    asked, said = scenario.disable_hybrid_kv_cache_manager, transfer_of(scenario)
    is_read_later = rule is not ConnectorGroups.BY_CONNECTOR and scenario.kv_offloading_size is not None
    if asked or said.connector is None or is_read_later:
        return not asked
    if rule is ConnectorGroups.NEVER or asked is False:
        return rule is not ConnectorGroups.NEVER
    return rule is ConnectorGroups.BY_CONNECTOR and all(
        _is_named(engine.facts.connectors_with_groups, name, version) for name in said.classes
    )


def _is_named(rows: tuple[ConnectorNames, ...], name: str, version: Version | None) -> bool:
    """Whether a row names a connector; of any release for None."""
    return any(name in row.names for row in rows if version is None or row.covers(version))


def check_connector(start: Start) -> None:
    """Raises EngineRefusalError `connector-without-groups` where a person asks for groups with a connector that does
    not know them. A connector of another package is not known.

    Source: vllm/distributed/kv_transfer/kv_connector/factory.py:KVConnectorFactory.create_connector (0.13.0, 0.33.0).
    """
    rule, facts = start.switches.connector_groups, start.engine.facts
    if rule is ConnectorGroups.NEVER or start.scenario.disable_hybrid_kv_cache_manager is not False:
        return
    with_groups, without = facts.connectors_with_groups, facts.connectors_without_groups
    for name in transfer_of(start.scenario).classes if without else ():
        knows = _is_named(with_groups, name, start.version)
        if not knows and _is_named((*with_groups, *without), name, None):
            raise EngineRefusalError("connector-without-groups", "disable_hybrid_kv_cache_manager", name)


def connector_notices(start: Start) -> Iterator[Notice]:
    """`kv-connector-joins-groups` where layers of several kinds lose their own groups to a connector."""
    connector, traits = transfer_of(start.scenario).connector, start.traits
    if connector is None or start.scenario.disable_hybrid_kv_cache_manager or not traits.is_mixed:
        return
    if not keeps_groups(start.engine, start.scenario, start.version, start.switches.connector_groups):
        yield notice("kv-connector-joins-groups", "kv_transfer_config", connector=shorten(connector))
