"""Block size of hybrid models: attention pages are made at least as large as the recurrent state's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from kvcore.cache.rules import planner_rules
from kvcore.engine.resolved import Resolved
from kvcore.engine.rooms import find_engine
from kvcore.engine.vllm.switches import AttentionBackend
from kvcore.units import ceil_div
from kvcore.versioned import Bounds, OneOf, Reviewed, Source, TableFile

DEFAULT_KERNEL_BLOCK: Final = 16
Backend = Annotated[str, OneOf(("ASCEND", *AttentionBackend))]
"""vLLM's own, and that of a platform."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelBlocks(Reviewed):
    """backends.toml."""

    source: Source
    smallest_kernel_block: Mapping[Backend, Annotated[int, Bounds(1, 1024)]]


KERNEL_BLOCKS: Final = TableFile("kvcore.cache", "backends.toml", KernelBlocks)


@dataclass(frozen=True, kw_only=True, slots=True)
class HybridPages:
    """Blocks of a hybrid model: attention and recurrent layers take pages of one size."""

    block_size: int
    """Tokens per block."""
    page_size_bytes: int
    """What a page of any layer is padded to."""


def contiguous_pages(*, tensor_bytes: tuple[int, ...], token_bytes: int, resolved: Resolved) -> HybridPages:
    """Blocks whose keys are as large as a state's largest tensor; a page has the other tensors behind the values.

    block = a × ⌈largest tensor / (a × bytes of one token's keys)⌉, page = block × bytes of one token + the rest.

    Source: vllm_ascend/patch/platform/patch_mamba_config.py:verify_and_update_config,
    vllm_ascend/worker/model_runner_v1.py:get_kv_cache_spec (0.16.0rc1 to 0.23.0).

    Example: Qwen3.5-35B-A3B on two ranks, "the block_size is adjusted to 2048" (vllm-ascend pull request 7103).
    """
    alignment = smallest_kernel_block(resolved.attention_backend)
    largest = max(tensor_bytes)
    aligned = alignment * ceil_div(largest, alignment * (token_bytes // 2))
    block_size = max(resolved.block_size, aligned)
    return HybridPages(
        block_size=block_size, page_size_bytes=block_size * token_bytes + sum(tensor_bytes) - largest
    )


def hybrid_block_size(
    *, state_bytes: int, token_bytes: int, is_mla: bool, resolved: Resolved, chunk_size: int = 1
) -> int:
    """Tokens per block of a hybrid model: a × ⌈state bytes / (a × bytes of one token)⌉, at least as asked.

    a is 16 at first, larger for MLA from 0.11.2, and from 0.20 the larger of the backend's smallest kernel
    block and the asked block size; on Ascend always 128. Where every state is cached (mamba_cache_mode all),
    it is the least common multiple of that and of the kernel's chunk, for which mamba_block_size may stand.

    Source: vllm/model_executor/models/config.py:HybridAttentionMambaModelConfig (0.10.0 to 0.19.0),
    vllm/platforms/interface.py:_align_hybrid_block_size (0.20.2 to 0.33.0),
    vllm_ascend/patch/platform/patch_mamba_config.py:verify_and_update_config (0.11.0 to 0.15.0rc1).
    """
    if not state_bytes:
        return resolved.block_size
    rules = planner_rules(resolved.version)
    alignment = DEFAULT_KERNEL_BLOCK
    if find_engine(resolved.engine).cache.aligns_to_kernel_block:
        alignment = smallest_kernel_block(resolved.attention_backend)
    elif rules.alignment_follows_backend:
        alignment = max(smallest_kernel_block(resolved.attention_backend), resolved.block_size)
        if is_mla:
            alignment = max(alignment, rules.mla_block_alignment)
    elif is_mla:
        alignment = rules.mla_block_alignment
        if resolved.attention_backend == AttentionBackend.CUTLASS_MLA:
            alignment = smallest_kernel_block(resolved.attention_backend)
    if resolved.mamba_cache_mode == "all":
        alignment = math.lcm(alignment, chunk_size)
    return max(resolved.block_size, alignment * ceil_div(state_bytes, alignment * token_bytes))


def smallest_kernel_block(attention_backend: str) -> int:
    """Tokens of the smallest block that the backend's kernels read."""
    return KERNEL_BLOCKS.load().smallest_kernel_block.get(attention_backend, DEFAULT_KERNEL_BLOCK)
