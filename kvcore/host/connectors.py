"""The connector of a start: which tier it keeps in the host's memory, what it refuses and what it does not say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kvcore.base.errors import EngineRefusalError, Notice, invalid, notice, shorten
from kvcore.base.numbers import gib_text
from kvcore.cache.capacity import CachePlan
from kvcore.catalogue.accelerators import Accelerator
from kvcore.engine.protocol import Resolved
from kvcore.host.other_tiers import (
    LMCACHE,
    MOONCAKE_STORE,
    NIXL,
    P2P,
    P2P_DEFAULT_BUFFER,
    SIMPLE,
    lmcache_tier,
    mooncake_tier,
    nixl_buffers,
    p2p_pool,
    simple_tier,
)
from kvcore.host.rules import FlagRule, GivenIn, SharedCopies, tier_rules
from kvcore.host.tier import NATIVE, TIERING, Tier, native_tier, whole
from kvcore.scenario import Scenario

MULTI: Final = "MultiConnector"
FORMER: Final = frozenset({"SharedStorageConnector", "PyNcclConnector", "LMCacheConnector"})
"""Connectors of older releases. Source: vllm/distributed/kv_transfer/kv_connector/factory.py (0.8.5, 0.11.0)."""
SETTINGS: Final = "kv_transfer_config.kv_connector_extra_config"
OWN_SPECS: Final = (None, "CPUOffloadingSpec", TIERING)
"""Values of `spec_name` whose settings are known here."""
SIZES: Final = (
    "cpu_bytes_to_use",
    "cpu_bytes_to_use_per_rank",
    "num_cpu_blocks",
    "blocks_per_chunk",
    "block_size",
)
MOST: Final = 1 << 60
NOTABLE: Final = 1.02
"""A tier that takes more than that many times its size is worth a word."""


class Connector:
    """One connector with its settings."""

    def __init__(self, said: Mapping[str, Any], name: str | None = None) -> None:
        settings = said.get("kv_connector_extra_config")
        found = said.get("kv_connector") if name is None else name
        self.name = found if isinstance(found, str) else ""
        self.settings: Mapping[str, Any] = settings if isinstance(settings, dict) else {}
        self.buffer_device = said.get("kv_buffer_device")
        self.buffer_size = said.get("kv_buffer_size")
        self.is_elsewhere = bool(said.get("kv_connector_module_path"))
        """Whether a module of another package is named for it."""


def connectors_of(scenario: Scenario, resolved: Resolved) -> tuple[Connector, ...]:
    """The connectors of a start, those of a MultiConnector each.

    Before `lmcache_server` the backend `lmcache` runs in the engine's own processes.

    Source: vllm/distributed/kv_transfer/kv_connector/v1/multi_connector.py:MultiConnector (0.22.1, 0.33.0).
    """
    said = json.loads(scenario.kv_transfer_config) if scenario.kv_transfer_config is not None else {}
    said = said if isinstance(said, dict) else {}
    name = resolved.engine.transfer(scenario).connector
    if scenario.kv_offloading_size is not None and scenario.kv_offloading_backend == "lmcache":
        name = name if tier_rules(resolved.version).lmcache_server else LMCACHE
    own = Connector(said, name or "")
    if own.name != MULTI:
        return (own,) if own.name else ()
    listed = own.settings.get("connectors")
    return (
        tuple(Connector(one) for one in listed or () if isinstance(one, dict))
        if isinstance(listed, list)
        else ()
    )


def check_tier(scenario: Scenario, resolved: Resolved) -> None:
    """Raises EngineRefusalError `offloading-without-blocks` or `offloading-without-groups` where the release cannot
    start with `--kv-offloading-size` and its own connector, `offloading-without-size` where a connector is told no
    size, and ScenarioError `invalid-value` for a size that is no number of bytes.

    Source: `flag` of tier.toml; vllm/v1/kv_offload/cpu/spec.py:CPUOffloadingSpec.__init__ (0.17.1, 0.33.0).
    """
    rules, asked = tier_rules(resolved.version), scenario.kv_offloading_size
    connectors = connectors_of(scenario, resolved)
    for one in connectors:
        _check_sizes(one)
    if asked is None:
        for one in connectors:
            is_own = one.name == NATIVE and one.settings.get("spec_name") in OWN_SPECS
            key = "num_cpu_blocks" if rules.given_in is GivenIn.BLOCKS else "cpu_bytes_to_use"
            if is_own and not one.settings.get(key):
                raise EngineRefusalError("offloading-without-size", SETTINGS, key)
        return
    if resolved.engine.transfer(scenario).connector != NATIVE:
        return
    match rules.flag:
        case FlagRule.NO_BLOCKS:
            raise EngineRefusalError("offloading-without-blocks", "kv_offloading_size", asked)
        case FlagRule.AFTER_CHECK if not scenario.disable_hybrid_kv_cache_manager:
            raise EngineRefusalError("offloading-without-groups", "disable_hybrid_kv_cache_manager", NATIVE)


def _check_sizes(connector: Connector) -> None:
    """Raises ScenarioError `invalid-value` for a size that the engine cannot read as a number."""
    if connector.name not in (NATIVE, SIMPLE):
        return
    for key in SIZES:
        value = connector.settings.get(key)
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 18:
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 <= value < MOST):
            raise invalid(
                f"{SETTINGS}.{key}", shorten(value), "it must be a number of bytes or blocks, without a unit"
            )


def tiers_of(
    scenario: Scenario, resolved: Resolved, accelerator: Accelerator, cache: CachePlan
) -> tuple[Tier, ...]:
    """What the connectors keep in the host's memory; nothing of one whose size is not known here."""

    def tier(one: Connector) -> Tier | None:
        if one.name == NATIVE:
            return native_tier(scenario, one.settings, resolved, accelerator, cache)
        if one.name == SIMPLE:
            return simple_tier(scenario, one.settings, cache)
        if one.name == LMCACHE:
            return lmcache_tier(scenario, cache)
        if one.name == P2P:
            return p2p_pool(scenario, one.settings) if tier_rules(resolved.version).p2p_pool else None
        if one.name == MOONCAKE_STORE:
            return mooncake_tier(scenario)
        is_copied = one.name in NIXL and one.buffer_device == "cpu"
        return nixl_buffers(one.name, scenario, cache) if is_copied else None

    return tuple(found for one in connectors_of(scenario, resolved) if (found := tier(one)) is not None)


def tier_notices(scenario: Scenario, resolved: Resolved, tiers: tuple[Tier, ...]) -> Iterator[Notice]:
    """What people get wrong most: a size that nothing reads, one that each replica takes again, one that replaces a
    connector, one that is rounded up, one that holds no block, and copies of what all ranks store alike.

    Source: `lmcache_server` and `shared_copies` of tier.toml; vllm/v1/engine/core.py: an engine_id of each data
    parallel rank (0.27.0, 0.33.0).
    """
    size, replicas = scenario.kv_offloading_size, scenario.parallel.data_parallel_size
    rules = tier_rules(resolved.version)
    field = "kv_transfer_config" if size is None else "kv_offloading_size"
    if size is not None:
        if scenario.kv_offloading_backend == "lmcache" and rules.lmcache_server:
            yield notice("offloading-size-not-read", "kv_offloading_size", value=f"{size:g}")
        elif replicas > 1:
            said = {"value": f"{size:g}", "replicas": replicas, "total": f"{size * replicas:g}"}
            yield notice("offloading-size-per-engine", "kv_offloading_size", **said)
        if scenario.kv_transfer_config is not None:
            yield notice(
                "offloading-replaces-connector", "kv_transfer_config", connector=_named(scenario, resolved)
            )
    yield from _unknown_connectors(scenario, resolved)
    if any(tier.connector == P2P for tier in tiers):
        sizes = (one.buffer_size for one in connectors_of(scenario, resolved) if one.name == P2P)
        buffer = next(filter(None, map(whole, sizes)), P2P_DEFAULT_BUFFER)
        yield notice("caches-wait-on-card", "kv_transfer_config", size=gib_text(buffer))
    for tier in () if resolved.engine.asks_for_tier(scenario) else tiers:
        taken = tier.taken.value
        if tier.asked_bytes and taken > NOTABLE * tier.asked_bytes:
            said = {"asked": gib_text(tier.asked_bytes), "taken": gib_text(taken)}
            yield notice("tier-rounded-up", field, **said)
        if tier.asked_bytes is not None and tier.connector == NATIVE and not tier.blocks:
            yield notice("tier-holds-nothing", field, value=f"{tier.asked_bytes:,}")
        if tier.copies > 1 and rules.shared_copies is not SharedCopies.LATENT:
            yield notice("tier-keeps-copies", field, copies=tier.copies)


def _unknown_connectors(scenario: Scenario, resolved: Resolved) -> Iterator[Notice]:
    """`connector-unknown` for a name that no release of the engine has and no module is named for.

    Source: vllm/distributed/kv_transfer/kv_connector/factory.py:KVConnectorFactory.get_connector_class (0.33.0).
    """
    facts = resolved.engine.facts
    known = {
        name
        for row in (*facts.connectors_with_groups, *facts.connectors_without_groups)
        for name in row.names
    }
    # A plug-in's own list has none of the connectors that it shares with vLLM.
    for one in connectors_of(scenario, resolved) if NATIVE in known else ():
        if one.name not in known | FORMER and not one.is_elsewhere:
            yield notice("connector-unknown", "kv_transfer_config", connector=shorten(one.name))


def _named(scenario: Scenario, resolved: Resolved) -> str:
    return shorten(resolved.engine.transfer(scenario).connector or "")
