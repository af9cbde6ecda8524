"""What the engine's flags ask of a model: kinds of layers, from the caches that they keep."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.engine.vllm.backends import attention_kind
from kvcore.engine.vllm.switches import AttentionKind
from kvcore.kept import kept
from kvcore.model.architecture import Architecture
from kvcore.model.cache_state import ChunkedLocal, CrossAttention, RecurrentState


@dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    """What the flags' defaults ask of a model."""

    attention: AttentionKind
    recurrent: frozenset[str]
    is_hybrid: bool
    is_attention_free: bool
    is_encoder_decoder: bool
    is_bidirectional: bool
    """Each token looks at all others, and nothing is kept of a request."""
    has_chunked_local: bool


@kept
def traits_of(architecture: Architecture) -> Traits:
    """The traits of `architecture`, from its layers' caches."""
    caches = {cache for layer in dict.fromkeys(architecture.layers) for cache in layer.caches}
    recurrent = frozenset(cache.kind for cache in caches if isinstance(cache, RecurrentState))
    others = [cache for cache in caches if not isinstance(cache, RecurrentState)]
    return Traits(
        attention=attention_kind(architecture),
        recurrent=recurrent,
        is_hybrid=bool(recurrent and others),
        is_attention_free=bool(recurrent and not others),
        is_encoder_decoder=any(isinstance(cache, CrossAttention) for cache in caches),
        is_bidirectional=not caches,
        has_chunked_local=any(isinstance(cache, ChunkedLocal) for cache in caches),
    )
