"""Latent attention: its geometry, its projections, its sparse indexer."""

from __future__ import annotations

from dataclasses import dataclass

from kvcore.model.architecture import Layer, Linear, Mla, Module, Output, Parameter, Split
from kvcore.model.config import Section
from kvcore.model.parts.blocks import Heads, norm, replicated, row


@dataclass(frozen=True, kw_only=True, slots=True)
class Latent:
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
        """Of queries and keys, with their rotated part."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def cache(self) -> Mla:
        """What a layer keeps."""
        return Mla(kv_lora_rank=self.kv_lora_rank, qk_rope_head_dim=self.qk_rope_head_dim)


def read_latent(section: Section) -> Latent:
    """The latent geometry of a config."""
    return Latent(
        hidden_size=section.integer("hidden_size"),
        num_heads=section.integer("num_attention_heads"),
        q_lora_rank=section.optional_integer("q_lora_rank", minimum=1),
        kv_lora_rank=section.integer("kv_lora_rank"),
        qk_nope_head_dim=section.integer("qk_nope_head_dim"),
        qk_rope_head_dim=section.integer("qk_rope_head_dim"),
        v_head_dim=section.integer("v_head_dim"),
    )


def as_heads(latent: Latent) -> Heads:
    """What the engine's config says of heads: one KV head as wide as the latent vector."""
    return Heads(
        hidden_size=latent.hidden_size,
        num_heads=latent.num_heads,
        num_kv_heads=1,
        head_dim=latent.kv_lora_rank + latent.qk_rope_head_dim,
    )


def latent_attention(latent: Latent, prefix: str = "self_attn") -> tuple[Module, ...]:
    """Projections and norms of one latent attention. The way down is whole on every rank, the way up divided."""
    down = latent.kv_lora_rank + latent.qk_rope_head_dim
    up = latent.qk_nope_head_dim + latent.v_head_dim
    if latent.q_lora_rank is None:
        query: tuple[Module, ...] = (
            heads_column(f"{prefix}.q_proj", latent.hidden_size, latent.num_heads, latent.qk_head_dim),
            replicated(f"{prefix}.kv_a_proj_with_mqa", latent.hidden_size, down),
        )
    else:
        query = (
            Linear(
                name=f"{prefix}.fused_qkv_a_proj",
                in_features=latent.hidden_size,
                outputs=(Output(units=latent.q_lora_rank), Output(units=down)),
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


def latent_layer(latent: Latent, *more: Module) -> Layer:
    """A layer of latent attention, with what else it has."""
    return Layer(
        modules=(*latent_attention(latent), *more), caches=(latent.cache,), loading=(absorbed(latent),)
    )


def heads_column(name: str, in_features: int, heads: int, width: int) -> Linear:
    """A projection whose heads are divided."""
    return Linear(
        name=name, in_features=in_features, outputs=(Output(units=heads, width=width),), split=Split.COLUMN
    )


def absorbed(latent: Latent) -> Parameter:
    """The copies of kv_b_proj that decoding multiplies with, in the model's dtype.

    Source: vllm/model_executor/layers/attention/mla_attention.py:process_weights_after_loading (0.32).
    """
    width = latent.qk_nope_head_dim + latent.v_head_dim
    return Parameter(
        name="self_attn.absorbed", sharded=latent.num_heads, replicated=width * latent.kv_lora_rank
    )


def indexer(section: Section, latent: Latent) -> tuple[Module, ...]:
    """The sparse indexer, whole on every rank.

    Source: vllm/model_executor/models/deepseek_v2.py:Indexer (0.32).
    """
    heads, width = section.integer("index_n_heads"), section.integer("index_head_dim")
    if latent.q_lora_rank is None:
        raise section.missing("q_lora_rank")
    return (
        replicated("self_attn.indexer.wq_b", latent.q_lora_rank, heads * width),
        Linear(
            name="self_attn.indexer.wk_weights_proj",
            in_features=latent.hidden_size,
            outputs=(Output(units=width), Output(units=heads)),
            parts=("self_attn.indexer.wk", "self_attn.indexer.weights_proj"),
            quantizable=False,
        ),
        Parameter(name="self_attn.indexer.k_norm", replicated=2 * width, dtype="float32"),
    )
