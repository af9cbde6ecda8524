"""Block size of hybrid models: attention pages are made at least as large as the recurrent state's."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any, Final

from kvcore.cache.rules import planner_rules
from kvcore.engine.resolved import Resolved
from kvcore.errors import CatalogueError
from kvcore.units import ceil_div

DEFAULT_KERNEL_BLOCK: Final = 16


def hybrid_block_size(*, state_bytes: int, token_bytes: int, is_mla: bool, resolved: Resolved) -> int:
    """Tokens per block of a hybrid model: a × ⌈state bytes / (a × bytes of one token)⌉, at least as asked.

    a is 16 at first, larger for MLA from 0.11.2, and from 0.20 the larger of the backend's smallest kernel
    block and the asked block size.

    Source: vllm/model_executor/models/config.py:HybridAttentionMambaModelConfig (0.10.0 to 0.19.0),
    vllm/platforms/interface.py:_align_hybrid_block_size (0.20.2 to 0.33.0).
    """
    if not state_bytes:
        return resolved.block_size
    rules = planner_rules(resolved.version)
    alignment = DEFAULT_KERNEL_BLOCK
    if rules.alignment_follows_backend:
        alignment = max(smallest_kernel_block(resolved.attention_backend), resolved.block_size)
        if is_mla:
            alignment = max(alignment, rules.mla_block_alignment)
    elif is_mla:
        alignment = rules.mla_block_alignment
        if resolved.attention_backend == "CUTLASS_MLA":
            alignment = smallest_kernel_block(resolved.attention_backend)
    return max(resolved.block_size, alignment * ceil_div(state_bytes, alignment * token_bytes))


def smallest_kernel_block(attention_backend: str) -> int:
    """Tokens of the smallest block that the backend's kernels read."""
    return _kernel_blocks().get(attention_backend, DEFAULT_KERNEL_BLOCK)


@lru_cache(maxsize=1)
def _kernel_blocks() -> dict[str, int]:
    text = resources.files("kvcore.cache").joinpath("backends.toml").read_text(encoding="utf-8")
    return read_kernel_blocks(tomllib.loads(text))


def read_kernel_blocks(raw: Mapping[str, Any]) -> dict[str, int]:
    """`backends.toml` as backend -> tokens; raises CatalogueError for any other shape."""
    blocks = raw.get("smallest_kernel_block")
    if (
        set(raw) != {"source", "smallest_kernel_block"}
        or not isinstance(blocks, dict)
        or not all(type(size) is int for size in blocks.values())
    ):
        raise CatalogueError(
            "invalid-catalogue-entry",
            field="backends.toml",
            reason="it holds source and smallest_kernel_block",
        )
    return blocks
