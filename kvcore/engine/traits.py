"""Traits of a model that the defaults of flags depend on: kinds of layers, from the caches that they keep."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kvcore.base.kept import kept
from kvcore.engine.switches import AttentionKind
from kvcore.model.architecture import Architecture
from kvcore.model.caches import (
    BlockIndexer,
    ChunkedLocal,
    CompressedLatent,
    CrossAttention,
    FullAttention,
    LatentWindow,
    PooledKeys,
    RecurrentState,
    SlidingWindow,
    SparseIndexer,
    TokenRing,
)

PREFIX_FAMILIES: Final = ("gemma3", "gemma4")
"""Model types whose images attend to each other in both directions.

Source: vllm/config/model.py:is_mm_prefix_lm (0.32.0).
"""


class Traits(Struct, frozen=True, kw_only=True):
    """Traits of a model that flags' defaults depend on: kinds of layers, from the caches that they keep."""

    attention: AttentionKind
    recurrent: frozenset[str]
    exported_head_sizes: frozenset[int]
    """Head sizes of recurrent layers whose kernels export states inside a prefill; 0 for one that does not."""
    is_hybrid: bool
    is_attention_free: bool
    is_encoder_decoder: bool
    is_bidirectional: bool
    """Each token looks at all others, and nothing is kept of a request."""
    has_chunked_local: bool
    is_mixed: bool
    """Layers keep caches of more than one kind."""
    smallest_head: int
    """Elements of a key of the attention layer with the smallest heads; 0 without one."""

    @property
    def is_sparse(self) -> bool:
        """Whether an indexer chooses what a layer attends to."""
        return self.attention in (AttentionKind.SPARSE, AttentionKind.COMPRESSED)


@kept
def traits_of(architecture: Architecture) -> Traits:
    """The traits of `architecture`, from its layers' caches."""
    caches = {cache for layer in dict.fromkeys(architecture.layers) for cache in layer.caches}
    kinds = {type(cache) for cache in caches}
    recurrent = frozenset(cache.kind for cache in caches if isinstance(cache, RecurrentState))
    has_others = bool(kinds - {RecurrentState})
    heads = (cache.head_size for cache in caches if isinstance(cache, FullAttention | SlidingWindow))
    return Traits(
        attention=_attention_kind(architecture, kinds),
        recurrent=recurrent,
        exported_head_sizes=frozenset(
            cache.exported_head_size for cache in caches if isinstance(cache, RecurrentState)
        ),
        is_hybrid=bool(recurrent) and has_others,
        is_attention_free=bool(recurrent) and not has_others,
        is_encoder_decoder=CrossAttention in kinds,
        is_bidirectional=not caches,
        has_chunked_local=ChunkedLocal in kinds,
        is_mixed=len(kinds) > 1,
        smallest_head=min(heads, default=0),
    )


def _attention_kind(architecture: Architecture, kinds: set[type]) -> AttentionKind:
    """The kind of attention in the table of backends."""
    if kinds & {CompressedLatent, LatentWindow}:
        return AttentionKind.SHARED if TokenRing in kinds else AttentionKind.COMPRESSED
    if BlockIndexer in kinds:
        return AttentionKind.BLOCKS
    if SparseIndexer in kinds or (PooledKeys in kinds and architecture.is_mla):
        return AttentionKind.SPARSE
    if architecture.is_mla:
        return AttentionKind.MLA
    if architecture.is_multimodal and architecture.model_type.startswith(PREFIX_FAMILIES):
        return AttentionKind.PREFIX
    return AttentionKind.PLAIN
