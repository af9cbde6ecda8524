"""Latent attention: its geometry, its projections, its sparse indexer, its compressors; experts in a latent space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.model import architecture as arch
from kvcore.model.caches import CompressedLatent, LatentWindow, Mla, SparseIndexer
from kvcore.model.config import Section
from kvcore.model.parts.blocks import Heads, norm, replicated, row
from kvcore.model.parts.experts import ExpertTraits, expert_modules, shared_experts


class Latent(Struct, frozen=True, kw_only=True):
    """The geometry of latent attention."""

    hidden_size: int
    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def qk_head_dim(self) -> int:
        """Width of queries and keys, with their rotated part."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def cache(self) -> Mla:
        """The cache of a layer."""
        return Mla(kv_lora_rank=self.kv_lora_rank, qk_rope_head_dim=self.qk_rope_head_dim)


NO_ROTATION: Final = "qk_rope_head_dim"
"""The part of a latent vector that a model without positions has none of (GLM-5.3-Flash)."""


def read_latent(section: Section, **defaults: int) -> Latent:
    """The latent geometry of a config, with the `defaults` of an engine's class for keys that it leaves out."""
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return Latent(
        hidden_size=section.integer("hidden_size"),
        num_heads=section.integer("num_attention_heads"),
        q_lora_rank=section.optional_integer("q_lora_rank", minimum=1),
        **{
            name: section.integer(name, defaults.get(name), minimum=int(name != NO_ROTATION))
            for name in names
        },
    )


def as_heads(latent: Latent) -> Heads:
    """Heads as the engine's config counts them: one KV head as wide as the latent vector."""
    width = latent.kv_lora_rank + latent.qk_rope_head_dim
    return Heads(hidden_size=latent.hidden_size, num_heads=latent.num_heads, num_kv_heads=1, head_dim=width)


def latent_attention(latent: Latent, prefix: str = "self_attn") -> tuple[arch.Module, ...]:
    """Projections and norms of one latent attention. The way down is whole on every rank, the way up divided."""
    down = latent.kv_lora_rank + latent.qk_rope_head_dim
    up = latent.qk_nope_head_dim + latent.v_head_dim
    if latent.q_lora_rank is None:
        query: tuple[arch.Module, ...] = (
            heads_column(f"{prefix}.q_proj", latent.hidden_size, latent.num_heads, latent.qk_head_dim),
            replicated(f"{prefix}.kv_a_proj_with_mqa", latent.hidden_size, down),
        )
    else:
        query = (
            arch.Linear(
                name=f"{prefix}.fused_qkv_a_proj",
                in_features=latent.hidden_size,
                outputs=(arch.Output(units=latent.q_lora_rank), arch.Output(units=down)),
                parts=(f"{prefix}.q_a_proj", f"{prefix}.kv_a_proj_with_mqa"),
            ),
            norm(f"{prefix}.q_a_layernorm", latent.q_lora_rank),
            heads_column(f"{prefix}.q_b_proj", latent.q_lora_rank, latent.num_heads, latent.qk_head_dim),
        )
    return (
        *query,
        norm(f"{prefix}.kv_a_layernorm", latent.kv_lora_rank),
        heads_column(f"{prefix}.kv_b_proj", latent.kv_lora_rank, latent.num_heads, up),
        row(f"{prefix}.o_proj", latent.num_heads * latent.v_head_dim, latent.hidden_size),
    )


def latent_layer(latent: Latent, *more: arch.Module, indexed: Section | None = None) -> arch.Layer:
    """A layer of latent attention with `more` modules; `indexed` has the width of its indexer's keys."""
    keys = () if indexed is None else (SparseIndexer(index_head_dim=indexed.integer("index_head_dim")),)
    modules = (*latent_attention(latent), *more)
    return arch.Layer(modules=modules, caches=(*keys, latent.cache), loading=(absorbed(latent),))


def heads_column(name: str, in_features: int, heads: int, width: int) -> arch.Linear:
    """A projection whose heads are divided."""
    outputs = (arch.Output(units=heads, width=width),)
    return arch.Linear(name=name, in_features=in_features, outputs=outputs, split=arch.Split.COLUMN)


def absorbed(latent: Latent) -> arch.Parameter:
    """The copies of kv_b_proj that decoding multiplies with, in the model's dtype.

    Source: vllm/model_executor/layers/attention/mla_attention.py:process_weights_after_loading (0.32).
    """
    width = latent.qk_nope_head_dim + latent.v_head_dim
    return arch.Parameter(
        name="self_attn.absorbed", sharded=latent.num_heads, replicated=width * latent.kv_lora_rank
    )


def indexer(section: Section, latent: Latent) -> tuple[arch.Module, ...]:
    """The sparse indexer, whole on every rank.

    Source: vllm/model_executor/models/deepseek_v2.py:Indexer (0.32).
    """
    heads, width = section.integer("index_n_heads"), section.integer("index_head_dim")
    if latent.q_lora_rank is None:
        raise section.missing("q_lora_rank")
    return (
        replicated("self_attn.indexer.wq_b", latent.q_lora_rank, heads * width),
        arch.Linear(
            name="self_attn.indexer.wk_weights_proj",
            in_features=latent.hidden_size,
            outputs=(arch.Output(units=width), arch.Output(units=heads)),
            parts=("self_attn.indexer.wk", "self_attn.indexer.weights_proj"),
            quantizable=False,
        ),
        arch.Parameter(name="self_attn.indexer.k_norm", replicated=2 * width, dtype="float32"),
    )


PAGE_ALIGNMENT: Final = 576
"""Bytes that pages of packed latents, and of states that wait to become one, are aligned to."""
COMPRESSOR_BLOCKS: Final[Mapping[int, int]] = {4: 4, 128: 8}
"""Block size of a compressor's states by its ratio. Source: vllm/models/deepseek_v4/compressor.py (0.32)."""
OVERLAPPING_RATIO: Final = 4
"""Compressors of this ratio look at two windows, and their layers have an indexer."""
FLOAT32_BYTES: Final = 4


def compressor(
    prefix: str, hidden: int, width: int, ratio: int, state_bytes: int, *, is_index: bool = False
) -> arch.Layer:
    """Modules that make one packed vector of `state_bytes` from `ratio` tokens: projections to states and scores,
    positions and a norm. It keeps the vectors, and the float32 states and scores that wait to be compressed.

    Source: vllm/models/deepseek_v4/compressor.py:DeepseekCompressor (0.32).
    """
    windows = 2 if ratio == OVERLAPPING_RATIO else 1
    waiting = LatentWindow(
        sliding_window=windows * ratio,
        state_bytes=2 * windows * width * FLOAT32_BYTES,
        page_alignment=PAGE_ALIGNMENT,
        block_size=COMPRESSOR_BLOCKS[ratio],
        overlaps=windows > 1,
    )
    return arch.Layer(
        modules=(
            arch.Parameter(name=f"{prefix}.ape", replicated=ratio * windows * width, dtype="float32"),
            replicated(f"{prefix}.fused_wkv_wgate", hidden, 2 * windows * width, quantizable=False),
            norm(f"{prefix}.norm", width),
        ),
        caches=(
            CompressedLatent(
                tokens_per_state=ratio,
                state_bytes=state_bytes,
                page_alignment=PAGE_ALIGNMENT,
                width=width,
                is_index=is_index,
            ),
            waiting,
        ),
    )


def latent_experts(
    traits: ExpertTraits,
    section: Section,
    hidden: int,
    moe: arch.MixtureOfExperts,
    inner: int | None,
    *ways: arch.Module,
) -> tuple[arch.Module, ...]:
    """Router, routed experts in a space of `inner` with the `ways` down and up, shared ones as wide as the model."""
    routed = replace(moe, shared_intermediate_size=0)
    shared = moe.shared_intermediate_size
    return (
        *expert_modules(traits, section, hidden, routed, inner_size=inner),
        *ways,
        *(shared_experts(traits, hidden, shared) if shared else ()),
    )
