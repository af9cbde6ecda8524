"""Combinations that vllm-ascend refuses, in its own order; the code of a refusal is `npu-refuses-` and the name
here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from kvcore.base.errors import EngineRefusalError
from kvcore.engine.facts import ADDITIONAL
from kvcore.engine.records import Role
from kvcore.engines.vllm.connectors import transfer_of
from kvcore.engines.vllm.start import Start
from kvcore.engines.vllm.versions import vllm_release
from kvcore.engines.vllm_ascend.additional import Additional, is_on
from kvcore.scenario import Scenario, value_of

ENGINE_VARIABLE: Final = "VLLM_USE_V1"
BLOCKING_VARIABLE: Final = "ASCEND_LAUNCH_BLOCKING"
NO_GRAPHS: Final = "NONE"
SPECULATES_WITH_STATES: Final = "qwen3_next"


class Asked(NamedTuple):
    """A start, and what of it the combinations are about."""

    start: Start
    additional: Additional
    cuts_tokens: bool
    prefix_caching: bool
    block_size: int
    """The platform's own."""

    @property
    def scenario(self) -> Scenario:
        """The scenario of the start."""
        return self.start.scenario

    @property
    def has_other_blocks(self) -> bool:
        """Whether a block size is asked for that is not the platform's."""
        return self.scenario.block_size not in (None, self.block_size)


Found: TypeAlias = "tuple[str, str | None] | None"
"""Field and value that a start is refused for; None where it has nothing of the kind."""


def _first_engine(asked: Asked) -> Found:
    """vLLM has one engine from 0.11 on.

    Source: vllm_ascend/platform.py:NPUPlatform.check_and_update_config (0.10.0rc1, 0.11.0).
    """
    is_asked = asked.scenario.env.get(ENGINE_VARIABLE) == "0"
    return (f"env.{ENGINE_VARIABLE}", "0") if is_asked else None


def _split_experts(asked: Asked) -> Found:
    """Tokens cut over tensor parallel ranks (FlashComm), in a mixture whose experts are cut as well.

    Source: vllm_ascend/utils.py:enable_sp (0.12.0rc1, 0.14.0rc1), platform.py:NPUPlatform.check_and_update_config
    (0.15.0rc1, 0.23.0, 0.25.1rc1); not in 0.11.0.
    """
    is_whole = asked.start.architecture.moe is None or asked.scenario.parallel.enable_expert_parallel
    return ("enable_expert_parallel", "False") if asked.cuts_tokens and not is_whole else None


def _blocking_launches(asked: Asked) -> Found:
    """Graphs where a variable makes every launch wait.

    Source: vllm_ascend/platform.py:NPUPlatform.check_and_update_config (0.11.0rc1, 0.23.0, 0.25.1rc1; not in 0.11.0rc0,
    0.10.2rc1).
    """
    scenario = asked.scenario
    captures = not scenario.enforce_eager and scenario.cudagraph_mode != NO_GRAPHS
    is_blocking = captures and scenario.env.get(BLOCKING_VARIABLE) == "1"
    return (f"env.{BLOCKING_VARIABLE}", "1") if is_blocking else None


def _module_ranks(asked: Asked) -> Found:
    """Single modules cut over groups that the data parallel ranks do not make.

    Source: vllm_ascend/ascend_config.py:FinegrainedTPConfig (0.12.0rc1, 0.23.0, 0.25.1rc1).
    """
    replicas = asked.scenario.parallel.data_parallel_size
    uneven = next((size for size in asked.additional.ranks.asked if replicas % size), 0)
    return (ADDITIONAL, str(uneven)) if uneven else None


def _context_without_flashcomm(asked: Asked) -> Found:
    """Sparse attention of a part of the tokens on each rank, whose tokens are not cut.

    Source: vllm_ascend/utils.py:enable_dsa_cp (0.20.2rc1, 0.23.0, 0.25.1rc1, 0.26.0rc1; main at 92616f3a64 of
    2026-08-21, which the candidates for vLLM 0.27 are cut after, without).
    """
    is_cut = asked.additional.enable_dsa_cp and asked.start.traits.is_sparse
    return (ADDITIONAL, "enable_dsa_cp") if is_cut and not asked.cuts_tokens else None


def _xlite_stages(asked: Asked) -> Found:
    """Source: vllm_ascend/ascend_config.py:XliteGraphConfig (0.12.0rc1, 0.23.0, 0.25.1rc1)."""
    stages = asked.scenario.parallel.pipeline_parallel_size
    return ("pipeline_parallel_size", str(stages)) if asked.additional.xlite and stages > 1 else None


def _xlite_drafts(asked: Asked) -> Found:
    """Source: vllm_ascend/ascend_config.py:XliteGraphConfig (0.12.0rc1, 0.22.1rc1; 0.23.0 takes one token)."""
    drafts = asked.scenario.speculative_config is not None
    return ("speculative_config", None) if asked.additional.xlite and drafts else None


def _xlite_blocks(asked: Asked) -> Found:
    """Source: vllm_ascend/ascend_config.py:XliteGraphConfig (0.12.0rc1, 0.18.0; 0.20.2rc1 warns)."""
    is_other = asked.additional.xlite and asked.has_other_blocks
    return ("block_size", str(asked.scenario.block_size)) if is_other else None


def _cached_blocks(asked: Asked) -> Found:
    """Prefix caching with blocks of another size than the platform's.

    Source: vllm_ascend/platform.py:NPUPlatform.check_and_update_config (0.7.3, 0.7.3.post1; not in 0.8.4rc1, and
    0.9.0rc1 warns and takes 128).
    """
    is_other = asked.prefix_caching and asked.has_other_blocks
    return ("block_size", str(asked.scenario.block_size)) if is_other else None


def _sparse_attention(asked: Asked) -> Found:
    """Source: vllm_ascend/_310p/model_runner_310p.py:NPUModelRunner310.initialize_kv_cache_tensors (0.15.0rc1, 0.18.0,
    0.25.1rc1; not in 0.14.0rc1)."""
    return ("accelerator", None) if asked.start.card.is_310p and asked.start.traits.is_sparse else None


def _latent_attention(asked: Asked) -> Found:
    """Source: that of sparse attention."""
    return ("accelerator", None) if asked.start.card.is_310p and asked.start.architecture.is_mla else None


class Combination(NamedTuple):
    """Something that vLLM releases from `since` on and below `below` do not take."""

    name: str
    found: Callable[[Asked], Found]
    since: str = ""
    below: str = ""


BEFORE_KEYS: Final = (
    Combination("first-engine", _first_engine, since="0.10.0"),
    Combination("split-experts", _split_experts, since="0.12.0"),
    Combination("blocking-launches", _blocking_launches, since="0.11.0"),
    Combination("module-ranks", _module_ranks, since="0.12.0"),
)
AFTER_KEYS: Final = (
    Combination("context-without-flashcomm", _context_without_flashcomm, since="0.20.1", below="0.27.0"),
    Combination("xlite-stages", _xlite_stages, since="0.12.0"),
    Combination("xlite-drafts", _xlite_drafts, since="0.12.0", below="0.23.0"),
    Combination("xlite-blocks", _xlite_blocks, since="0.12.0", below="0.20.1"),
    Combination("cached-blocks", _cached_blocks, below="0.8.0"),
    Combination("sparse-attention", _sparse_attention, since="0.15.0"),
    Combination("latent-attention", _latent_attention, since="0.15.0"),
)


class NodeKey(NamedTuple):
    """A key of `--additional-config` that only servers of some roles take, where prompts are computed apart."""

    key: str
    roles: tuple[Role, ...]
    since: str
    below: str = ""


ASKING: Final = (Role.CONSUMER, Role.BOTH)
NODE_KEYS: Final = (
    # vllm_ascend/platform.py:NPUPlatform._validate_layer_sharding_config (0.19.1rc1, 0.20.2rc1, 0.23.0; not in 0.18.0)
    NodeKey("layer_sharding", (Role.PRODUCER,), "0.19.0", "0.24.0"),
    # platform.py:NPUPlatform.check_and_update_config (0.18.0: PD-disaggregated mode; 0.23.0, 0.30.0rc2: D nodes, passed
    # over on P nodes; not in 0.17.0rc1)
    NodeKey("recompute_scheduler_enable", (Role.PRODUCER, Role.CONSUMER), "0.18.0"),
    # platform.py:NPUPlatform.check_and_update_config (0.20.2rc1, 0.23.0, 0.25.1rc1; not in 0.19.1rc1)
    NodeKey("enable_balance_scheduling", (Role.NONE, Role.BOTH), "0.20.1"),
    # ascend_config.py:AscendConfig (0.13.0, 0.23.0, 0.25.1rc1)
    NodeKey("enable_kv_nz", ASKING, "0.13.0"),
    # ascend_config.py:AscendConfig (0.23.0; not in 0.22.1rc1, 0.24.0rc1)
    NodeKey("enable_reduce_sample", (Role.NONE, *ASKING), "0.23.0", "0.24.0"),
    # ascend_config.py:AscendConfig (0.11.0)
    NodeKey("oproj_tensor_parallel_size", ASKING, "0.11.0", "0.12.0"),
    # ascend_config.py:FinegrainedTPConfig (0.12.0rc1, 0.23.0, 0.25.1rc1)
    NodeKey("finegrained_tp_config.oproj_tensor_parallel_size", ASKING, "0.12.0"),
    # ascend_config.py:FinegrainedTPConfig (0.20.2rc1, 0.23.0, 0.25.1rc1)
    NodeKey("finegrained_tp_config.olora_tensor_parallel_size", ASKING, "0.20.1"),
)


def _applies(asked: Asked, row: Combination | NodeKey) -> bool:
    """Whether the row is one of the start's release."""
    version = asked.start.version
    is_begun = not row.since or version >= vllm_release(row.since)
    return is_begun and (not row.below or version < vllm_release(row.below))


def check_combinations(asked: Asked) -> None:
    """Raises EngineRefusalError `npu-refuses-...` for the first combination that the start's release does not take."""
    _check(asked, BEFORE_KEYS)
    role = transfer_of(asked.scenario).role
    for row in NODE_KEYS if asked.scenario.additional_config is not None else ():
        is_elsewhere = role not in row.roles and _applies(asked, row)
        if is_elsewhere and is_on(value_of(asked.scenario, f"{ADDITIONAL}.{row.key}")):
            wanted = ", ".join(row.roles)
            raise EngineRefusalError("npu-refuses-node-keys", ADDITIONAL, row.key, role=role, roles=wanted)
    _check(asked, AFTER_KEYS)


def _check(asked: Asked, rows: tuple[Combination, ...]) -> None:
    for row in rows:
        found = row.found(asked)
        if found is not None and _applies(asked, row):
            raise EngineRefusalError(f"npu-refuses-{row.name}", *found)


def check_states(start: Start, *, prefix_caching: bool, method: str) -> None:
    """Raises EngineRefusalError for prefix caching or drafts of models with recurrent states, and for a model's own
    drafts (MTP) with pipeline stages, in releases without them.

    Source: vllm_ascend/worker/model_runner_v1.py:NPUModelRunner.get_kv_cache_spec (0.11.0 to 0.16.0rc1: Prefix
    caching is not supported for Mamba yet; 0.17.0rc1 without; 0.11.0, 0.13.0: Mamba with speculative decoding is not
    supported yet, but for Qwen3-Next; 0.14.0rc1 without), platform.py:NPUPlatform._validate_pd_pp_mtp_config
    (0.20.2rc1 without, 0.22.1rc1, 0.23.0 with).
    """
    scenario, version, recurrent = start.scenario, start.version, start.traits.recurrent
    if recurrent and prefix_caching and version < vllm_release("0.17.0"):
        raise EngineRefusalError("state-prefix-caching-unsupported", "enable_prefix_caching", True)
    is_named = start.architecture.model_type == SPECULATES_WITH_STATES
    if recurrent and scenario.speculative_config and not is_named and version < vllm_release("0.14.0"):
        raise EngineRefusalError("state-speculation-unsupported", "speculative_config", method)
    stages = scenario.parallel.pipeline_parallel_size
    if stages > 1 and "mtp" in method and version >= vllm_release("0.22.1"):
        raise EngineRefusalError("pipelined-mtp-unsupported", "pipeline_parallel_size", stages)
