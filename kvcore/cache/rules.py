"""Rules of the engine's cache planner by version, `planner.toml`, and the blocks that it aligns.

In a hybrid model attention pages are made at least as large as the recurrent state's; they are a multiple of the
blocks in `backends.toml`.
"""

import math
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace
from packaging.version import Version

from kvcore.base.errors import EngineRefusalError
from kvcore.base.units import ceil_div
from kvcore.cache.kv_formats import kv_format, state_tensor_bytes
from kvcore.engine import units_per_rank
from kvcore.engine.protocol import Engine, Resolved
from kvcore.engine.switches import AttentionBackend
from kvcore.model.architecture import Architecture, caches_of
from kvcore.model.caches import Mla, PooledKeys, RecurrentState
from kvcore.scenario import Parallel
from kvcore.tables import ByRelease, Record, Reviewed, Source, TableFile, one_of


class PageUnification(StrEnum):
    """The way pages of different sizes become one."""

    NONE = "none"
    BLOCKS = "blocks"
    """By larger blocks only."""
    BLOCKS_MAMBA = "blocks-mamba"
    """By padded states too."""
    BLOCKS_MAMBA_ATTENTION = "blocks-mamba-attention"


class PackedGroups(StrEnum):
    """The grouping of DeepSeek-V4's windows of latent vectors."""

    NONE = "none"
    PADDED_TUPLES = "padded-tuples"
    TUPLES_AND_DRAFTS = "tuples-and-drafts"
    """The same, and what the draft's layers store is not overlaid (vllm-ascend)."""
    PADDED_SLOTS = "padded-slots"
    LAYER_TUPLES = "layer-tuples"
    PATTERN_REPEATS = "pattern-repeats"


class FitRule(StrEnum):
    """The need of one request in the start-up check."""

    LAYERS = "layers"
    """Each worker's layers one by one, before they are grouped."""
    FIRST_GROUP = "first-group"
    """Only the first group of the whole model counts, against the smallest memory."""
    FIRST_GROUP_PROJECTED = "first-group-projected"
    """The same on each worker."""
    GROUPS = "groups"
    """Every group of each worker."""
    GROUPS_AND_NULL_BLOCK = "groups-and-null-block"
    """The same, and one block is kept back."""


class ReportedTokens(StrEnum):
    """The count behind "KV cache size"."""

    BLOCKS = "blocks"
    BLOCKS_PER_GROUP = "blocks-per-group"
    CONCURRENCY = "concurrency"


class ReportedConcurrency(StrEnum):
    """The unit in which requests at once are counted."""

    TOKENS = "tokens"
    BYTES = "bytes"
    BLOCKS = "blocks"


class EncoderTokens(StrEnum):
    """The tokens that cross-attention is sized for."""

    ENCODER = "encoder"
    BATCH = "batch"


class MambaBlocks(StrEnum):
    """Blocks of recurrent states of one request."""

    ONE = "one"
    LENGTH = "length"
    MODE = "mode"
    MODE_AND_SPECULATIVE = "mode-and-speculative"
    MODE_WITHOUT_ALL = "mode-without-all"


class PlannerRules(Record, frozen=True, kw_only=True):
    """One version's behaviour; each field is a table of planner.toml, which names its source."""

    hybrid_manager: bool
    """Layers of different kinds may keep block tables of their own."""
    global_groups: bool
    """Groups are made over all pipeline stages, every n-th layer; before, per worker and contiguous."""
    uniform_type_groups: bool
    """Layers of one kind with different page sizes share one group."""
    page_unification: PageUnification
    full_allocation_fallback: bool
    """Windows with MLA are allocated in full where pages cannot be unified."""
    group_size_slack: Annotated[float, Meta(ge=1.0, le=8.0)]
    """The largest bucket sets the group size when it is less than this times the smallest."""
    promotion_aligns_blocks: bool
    """A window promoted to full attention takes the full layers' block size."""
    packed_groups: PackedGroups
    fit_check: FitRule
    override_counts_in_check: bool
    """num_gpu_blocks_override also replaces the memory that the check looks at."""
    reported_tokens: ReportedTokens
    reported_concurrency: ReportedConcurrency
    single_group_reports_default_block: bool
    """One group: tokens are printed in the flag's block size, not the group's."""
    in_flight_batches: bool
    context_parallel_divides: bool
    prefill_context_divides: bool
    """Ranks of prefill context parallelism share the tokens in the cache; else each keeps them all."""
    encoder_tokens: EncoderTokens
    mamba_blocks: MambaBlocks
    mamba2_checkpoint_blocks: Annotated[int, Meta(ge=0, le=16)]
    value_dimension: bool
    mla_block_alignment: Annotated[int, Meta(ge=0, le=1024)]
    """Tokens that blocks of a hybrid MLA model are a multiple of; 0 follows the backend alone."""
    alignment_follows_backend: bool
    """Blocks of a hybrid model are a multiple of the backend's kernel block and of the asked block size."""
    state_blocks_check: bool
    """Full CUDA graphs need a block of recurrent state for each of max_num_seqs."""


class PlannerTables(Reviewed, frozen=True, kw_only=True):
    """planner.toml."""

    rules: ByRelease[PlannerRules]


PLANNER: Final = TableFile("kvcore.cache", "planner.toml", PlannerTables)


@lru_cache(maxsize=256)
def planner_rules(version: Version) -> PlannerRules:
    """The rules that apply in `version`.

    Example:
        >>> planner_rules(Version("0.18.1")).group_size_slack
        1.5
    """
    return PLANNER.load().rules.at(version)


@lru_cache(maxsize=256)
def rules_in_force(engine: Engine, version: Version) -> PlannerRules:
    """The rules of an engine that runs on vLLM `version`, whose own planner may pack blocks differently.

    Source: vllm_ascend/patch/platform/patch_kv_cache_utils.py:_get_kv_cache_config_deepseek_v4 (0.20.2rc1, 0.23.0).

    Example:
        >>> from kvcore.engines.registry import engines
        >>> [rules_in_force(engine, Version("0.23.0")).packed_groups.value for engine in engines()[:2]]
        ['padded-slots', 'tuples-and-drafts']
    """
    rules = planner_rules(version)
    if engine.compressed_blocks(version) is not None:
        rules = replace(rules, packed_groups=PackedGroups.TUPLES_AND_DRAFTS)
    return rules


DEFAULT_KERNEL_BLOCK: Final = 16
Backend = Annotated[str, one_of(("ASCEND", *AttentionBackend))]
"""vLLM's own, and that of a platform."""


class KernelBlocks(Reviewed, frozen=True, kw_only=True):
    """backends.toml."""

    source: Source
    smallest_kernel_block: Mapping[Backend, Annotated[int, Meta(ge=1, le=1024)]]


KERNEL_BLOCKS: Final = TableFile("kvcore.cache", "backends.toml", KernelBlocks)


class HybridPages(Struct, frozen=True, kw_only=True):
    """Blocks of a hybrid model: attention and recurrent layers take pages of one size."""

    block_size: int
    """Tokens per block."""
    page_size_bytes: int
    """Bytes that the page of any layer is padded to."""


def contiguous_pages(
    *, tensor_bytes: tuple[int, ...], key_bytes: int, token_bytes: int, resolved: Resolved
) -> HybridPages:
    """Blocks whose keys are as large as a state's largest tensor; a page has the smallest behind the values.

    block = a × ⌈largest tensor / (a × bytes of one token's keys)⌉, page = block × bytes of one token + smallest, which
    is 0 where there is one tensor.

    Raises EngineRefusalError `states-not-alignable` where no block of keys is as large as the largest tensor.

    Source: vllm_ascend/patch/platform/patch_mamba_config.py:verify_and_update_config,
    vllm_ascend/worker/model_runner_v1.py:get_kv_cache_spec (0.16.0rc1 to 0.23.0).

    Example: Qwen3.5-35B-A3B on two ranks, "the block_size is adjusted to 2048" (vllm-ascend pull request 7103).
    """
    alignment = smallest_kernel_block(resolved.attention_backend)
    largest = max(tensor_bytes)
    aligned = alignment * ceil_div(largest, alignment * key_bytes)
    if aligned * key_bytes != largest:
        facts = {"state": largest, "keys": key_bytes, "tokens": alignment}
        raise EngineRefusalError("states-not-alignable", "tensor_parallel_size", None, **facts)
    block_size = max(resolved.block_size, aligned)
    smallest = min(tensor_bytes) if len(tensor_bytes) > 1 else 0
    return HybridPages(block_size=block_size, page_size_bytes=block_size * token_bytes + smallest)


def hybrid_block_size(
    *,
    state_bytes: int,
    token_bytes: int,
    is_mla: bool,
    resolved: Resolved,
    chunk_size: int = 1,
    key_tokens: int = 1,
) -> int:
    """Tokens per block of a hybrid model: a × ⌈state bytes / (a × bytes of one token)⌉, at least as asked.

    a is 16 at first, larger for MLA from 0.11.2, and from 0.20 the larger of the backend's smallest kernel
    block and the asked block size, from 0.33 a multiple of what states are exported by; on Ascend always 128. A page
    of an indexer's pooled keys is of `key_tokens`.
    Where every state is cached (mamba_cache_mode all), it is the least common multiple of that and of the kernel's
    chunk, for which mamba_block_size may stand.

    Source: vllm/model_executor/models/config.py:HybridAttentionMambaModelConfig (0.10.0 to 0.19.0),
    vllm/platforms/interface.py:_align_hybrid_block_size (0.20.2 to 0.33.0),
    vllm_ascend/patch/platform/patch_mamba_config.py:verify_and_update_config (0.11.0 to 0.15.0rc1).
    """
    if not state_bytes:
        return resolved.block_size
    rules = planner_rules(resolved.version)
    alignment = DEFAULT_KERNEL_BLOCK
    if resolved.engine.aligns_to_kernel_block:
        alignment = smallest_kernel_block(resolved.attention_backend)
    elif rules.alignment_follows_backend:
        alignment = max(smallest_kernel_block(resolved.attention_backend), resolved.block_size)
        if is_mla:
            alignment = max(alignment, rules.mla_block_alignment)
    elif is_mla:
        alignment = rules.mla_block_alignment
        if resolved.attention_backend == AttentionBackend.CUTLASS_MLA:
            alignment = smallest_kernel_block(resolved.attention_backend)
    alignment = math.lcm(alignment, resolved.state_export_tokens or 1, key_tokens)
    if resolved.mamba_cache_mode == "all":
        alignment = math.lcm(alignment, chunk_size)
    return max(resolved.block_size, alignment * ceil_div(state_bytes, alignment * token_bytes))


def recurrent_states(architecture: Architecture) -> list[RecurrentState]:
    """The recurrent states that the layers keep."""
    return [state for state in caches_of(architecture) if isinstance(state, RecurrentState)]


def hybrid_pages(architecture: Architecture, parallel: Parallel, resolved: Resolved) -> HybridPages:
    """The block size, and what pages are padded to in a hybrid model."""
    states = recurrent_states(architecture)
    if not states or not architecture.is_hybrid:
        return HybridPages(block_size=resolved.block_size, page_size_bytes=0)
    ranks, drafts = parallel.tensor_parallel_size, resolved.num_speculative_tokens
    dtype, ssm_dtype = resolved.mamba_cache_dtype or resolved.dtype, resolved.mamba_ssm_cache_dtype
    sizes = [state_tensor_bytes(state, ranks, dtype, drafts, ssm_dtype) for state in states]
    largest = max(sizes, key=sum)
    token_bytes = _attention_token_bytes(architecture, parallel, resolved)
    if resolved.engine.has_contiguous_states(resolved) and any(largest):
        ranks_of = [state.kv_lora_rank for state in caches_of(architecture) if isinstance(state, Mla)]
        storage = kv_format(resolved.kv_cache_dtype)
        key_bytes = storage.latent_vector_bytes(ranks_of[0]) if ranks_of else token_bytes // 2
        return contiguous_pages(
            tensor_bytes=largest, key_bytes=key_bytes, token_bytes=token_bytes, resolved=resolved
        )
    pooled = [state for state in caches_of(architecture) if isinstance(state, PooledKeys)]
    block_size = hybrid_block_size(
        state_bytes=sum(largest),
        token_bytes=token_bytes,
        is_mla=architecture.is_mla,
        resolved=resolved,
        chunk_size=resolved.mamba_block_size or max(state.chunk_size for state in states),
        key_tokens=math.lcm(*(keys.page_keys * keys.tokens_per_state for keys in pooled)),
    )
    return HybridPages(block_size=block_size, page_size_bytes=block_size * token_bytes)


def _attention_token_bytes(architecture: Architecture, parallel: Parallel, resolved: Resolved) -> int:
    """Bytes of one token in one attention layer on a rank, from the model's own head count and size."""
    storage = kv_format(resolved.kv_cache_dtype)
    for state in caches_of(architecture):
        if isinstance(state, Mla):
            return storage.latent_vector_bytes(state.kv_lora_rank + state.qk_rope_head_dim)
    heads = units_per_rank(architecture.num_kv_heads, parallel.tensor_parallel_size, replicable=True)
    return heads * storage.head_bytes(architecture.head_dim, architecture.head_dim)


def smallest_kernel_block(attention_backend: str) -> int:
    """Tokens of the smallest block that the backend's kernels read."""
    return KERNEL_BLOCKS.load().smallest_kernel_block.get(attention_backend, DEFAULT_KERNEL_BLOCK)
