"""What engines on other platforms make of the flags: their block sizes, and what they refuse in their own words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kvcore.base.errors import EngineRefusalError, Notice, notice, shorten
from kvcore.engine.facts import ADDITIONAL as FIELD
from kvcore.engine.facts import Attention, Combination, RefusedCombination
from kvcore.engine.switches import AttentionKind
from kvcore.engines.vllm.additional import additional_of, is_on
from kvcore.engines.vllm.connectors import keeps_groups, transfer_of
from kvcore.engines.vllm.flashcomm import cuts_tokens
from kvcore.engines.vllm.start import Start
from kvcore.engines.vllm.versions import parse_version
from kvcore.model.quantization.modelslim import METHOD as MODELSLIM
from kvcore.scenario import AUTO, Scenario, value_of

SPECULATES_WITH_STATES: Final = "qwen3_next"
ENGINE_VARIABLE: Final = "VLLM_USE_V1"
BLOCKING_VARIABLE: Final = "ASCEND_LAUNCH_BLOCKING"
NO_GRAPHS: Final = "NONE"


def platform_block_size(start: Start, own: Attention, fixed: bool) -> int:
    """Tokens per block, before hybrid alignment: the platform's own where nothing is asked, or where it takes no other.

    Source: vllm_ascend/utils.py:refresh_block_size (0.13.0, 0.20.2rc1, 0.23.0), vllm_ascend/platform.py:NPUPlatform.
    check_and_update_config (0.9.1, 0.11.0).
    """
    asked, sizes = start.scenario.block_size, start.kept.compressed.sizes
    if asked is None:
        return own.block_size
    if start.traits.attention is AttentionKind.COMPRESSED and sizes:
        return asked if asked in sizes else sizes[0]
    takes_any = start.is_v0 or start.traits.is_hybrid
    return own.block_size if own.is_fixed and fixed and not takes_any else asked


def counts_in_flight(start: Start) -> bool:
    """Whether windows keep every batch in flight: in the release, not in its candidates."""
    asked = start.scenario.engine_version
    return start.kept.counts_in_flight and (asked is None or not parse_version(asked).is_prerelease)


def check_chip(start: Start) -> None:
    """Raises EngineRefusalError `npu-chip-unsupported` on a generation of chips that no release has a platform for."""
    if start.card.chip in start.engine.facts.refusals.unsupported_chips:
        facts = {"name": start.card.label}
        raise EngineRefusalError("npu-chip-unsupported", "accelerator", facts["name"], **facts)


def check_platform(start: Start, *, prefix_caching: bool, method: str) -> None:
    """Raises EngineRefusalError for what a platform's release does not take together.

    Source: `CacheRules.caches_states`, `drafts_for_states`, `pipelines_drafts`.
    """
    scenario, kept = start.scenario, start.kept
    found: Mapping[Combination, tuple[str, str | None, bool]] = {}
    for row in start.engine.facts.refusals.combinations:
        if row.covers(start.version) and (start.card.is_310p or not row.only_310p):
            if row.what is Combination.NODE_KEYS:
                _check_role(scenario, row)
                continue
            found = found or _combinations(start, prefix_caching=prefix_caching)
            field, value, is_refused = found[row.what]
            if is_refused:
                raise EngineRefusalError(f"npu-refuses-{row.what}", field, value)
    unread = additional_of(start.engine, scenario, start.version).unread
    if unread and start.version >= start.engine.facts.additional.refuses_unread_since:
        raise EngineRefusalError("npu-refuses-unknown-key", FIELD, unread[0])
    if start.traits.recurrent and prefix_caching and not kept.caches_states:
        raise EngineRefusalError("state-prefix-caching-unsupported", "enable_prefix_caching", True)
    is_named = start.architecture.model_type == SPECULATES_WITH_STATES
    if start.traits.recurrent and scenario.speculative_config and not (kept.drafts_for_states or is_named):
        raise EngineRefusalError("state-speculation-unsupported", "speculative_config", method)
    stages = scenario.parallel.pipeline_parallel_size
    if stages > 1 and "mtp" in method and not kept.pipelines_drafts:
        raise EngineRefusalError("pipelined-mtp-unsupported", "pipeline_parallel_size", stages)


def _check_role(scenario: Scenario, row: RefusedCombination) -> None:
    """Keys that are on, on a server of another role than those that take them."""
    role = transfer_of(scenario).role
    if role not in row.roles and is_on(value_of(scenario, f"{FIELD}.{row.key}")):
        wanted = ", ".join(row.roles)
        raise EngineRefusalError("npu-refuses-node-keys", FIELD, row.key, role=role, roles=wanted)


def _combinations(
    start: Start, *, prefix_caching: bool
) -> Mapping[Combination, tuple[str, str | None, bool]]:
    """Field and value that each would be refused by, and whether the start has it."""
    scenario = start.scenario
    own = start.engine.facts.attention
    block_size = scenario.block_size
    additional = additional_of(start.engine, scenario, start.version)
    replicas, stages = scenario.parallel.data_parallel_size, scenario.parallel.pipeline_parallel_size
    uneven = next((size for size in additional.ranks.asked if replicas % size), 0)
    return {
        Combination.FIRST_ENGINE: (f"env.{ENGINE_VARIABLE}", "0", scenario.env.get(ENGINE_VARIABLE) == "0"),
        Combination.CACHED_BLOCKS: (
            "block_size",
            str(block_size),
            prefix_caching and own is not None and block_size not in (None, own.block_size),
        ),
        Combination.SPARSE_ATTENTION: (
            "accelerator",
            None,
            start.traits.is_sparse,
        ),
        Combination.LATENT_ATTENTION: ("accelerator", None, start.architecture.is_mla),
        Combination.SPLIT_EXPERTS: ("enable_expert_parallel", "False", _splits_experts(start)),
        Combination.BLOCKING_LAUNCHES: (
            f"env.{BLOCKING_VARIABLE}",
            "1",
            scenario.env.get(BLOCKING_VARIABLE) == "1" and _captures(scenario),
        ),
        Combination.MODULE_RANKS: (FIELD, str(uneven), uneven > 0),
        Combination.CONTEXT_WITHOUT_FLASHCOMM: (
            FIELD,
            "enable_dsa_cp",
            additional.enable_dsa_cp
            and start.traits.is_sparse
            and not cuts_tokens(start.engine, scenario, start.version),
        ),
        Combination.XLITE_STAGES: ("pipeline_parallel_size", str(stages), additional.xlite and stages > 1),
        Combination.XLITE_DRAFTS: (
            "speculative_config",
            None,
            additional.xlite and scenario.speculative_config is not None,
        ),
        Combination.XLITE_BLOCKS: (
            "block_size",
            str(block_size),
            additional.xlite and own is not None and block_size not in (None, own.block_size),
        ),
    }


def _captures(scenario: Scenario) -> bool:
    return not scenario.enforce_eager and scenario.cudagraph_mode != NO_GRAPHS


def _splits_experts(start: Start) -> bool:
    is_mixture = start.architecture.moe is not None and not start.scenario.parallel.enable_expert_parallel
    return is_mixture and cuts_tokens(start.engine, start.scenario, start.version)


def platform_notices(start: Start, block_size: int) -> tuple[Notice, ...]:
    """`block-size-not-kept` where a platform takes another block size than the one asked for; `npu-needs-float16` on an
    Ascend 310P, whose kernels have no bfloat16; `memory-variable-not-read` where a release looks at the card itself;
    `modelslim-checkpoint-assumed` for weights that nothing says the storage of; `additional-config-not-read` and
    `additional-config-unsized` for what a release passes over, and for what no source sizes."""
    asked, found = start.scenario.block_size, []
    is_own = start.engine.facts.attention is not None
    if is_own and asked is not None and asked != block_size:
        found.append(notice("block-size-not-kept", "block_size", asked=asked, used=block_size))
    variables = start.engine.facts.memory_variables
    if variables is not None and start.version >= variables.below:
        found += [
            notice("memory-variable-not-read", f"env.{name}", variable=name)
            for name in variables.names
            if name in start.scenario.env
        ]
    config, method = start.scenario.config, start.quantization.method
    if method == MODELSLIM and start.scenario.quantization == MODELSLIM and config.hf_quant_config is None:
        model = shorten(start.scenario.model.rsplit("/", 1)[-1])
        found.append(notice("modelslim-checkpoint-assumed", "quantization", model=model))
    found += _additional_notices(start)
    found += _connector_notices(start)
    if start.card.is_310p and start.scenario.dtype == AUTO and start.architecture.dtype == "bfloat16":
        found.append(notice("npu-needs-float16", "dtype", name=start.card.label))
    return tuple(found)


def _connector_notices(start: Start) -> Iterator[Notice]:
    connector, traits = transfer_of(start.scenario).connector, start.traits
    if connector is None or start.scenario.disable_hybrid_kv_cache_manager or not traits.is_mixed:
        return
    if not keeps_groups(start.engine, start.scenario, start.version, start.switches.connector_groups):
        yield notice("kv-connector-joins-groups", "kv_transfer_config", connector=shorten(connector))


def _additional_notices(start: Start) -> Iterator[Notice]:
    engine, additional = start.engine, additional_of(start.engine, start.scenario, start.version)
    if additional.unread:
        release = f"{engine.name} {start.scenario.engine_version or start.version}"
        keys = ", ".join(additional.unread)
        yield notice("additional-config-not-read", FIELD, release=release, keys=keys)
    if additional.unsized:
        keys, gib = ", ".join(additional.unsized), f"{additional.unsized_gib:g}"
        yield notice("additional-config-unsized", FIELD, keys=keys, gib=gib)
