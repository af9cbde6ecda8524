"""Latent attention (MLA): DeepSeek V2 to V3.2, Kimi K2, GLM-5, openPangu, LongCat; with experts and sparse indexers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kvcore.model.architecture import (
    Architecture,
    Experts,
    Layer,
    Linear,
    MixtureOfExperts,
    Module,
    Output,
    Parameter,
    RotaryTable,
    Split,
)
from kvcore.model.cache_state import CacheState, FullAttention, Mla, SparseIndexer
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.blocks import (
    Heads,
    decoder,
    gated_mlp,
    norm,
    norms,
    replicated,
    row,
)
from kvcore.model.families.towers import read_moonvit
from kvcore.model.rope import read_ropes

MOST_EXPERTS: Final = 65_536
TWO_NORMS: Final = ("input_layernorm", "post_attention_layernorm")


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


def read(config: ModelConfig) -> Architecture:
    """DeepSeek V2, V3 and V3.2 and the models that the engine runs with the same layers.

    Source: vllm/model_executor/models/deepseek_v2.py (0.32).
    """
    section = config.language
    latent = read_latent(section)
    moe = read_moe(section)
    count = section.layers()
    sparse = which_layers_are_sparse(section, count, moe)
    indexed = which_layers_index(section, count)
    variants: dict[tuple[bool, bool], Layer] = {}
    for key in zip(sparse, indexed, strict=True):
        if key not in variants:
            variants[key] = latent_layer(section, latent, moe, is_sparse=key[0], is_indexed=key[1])
    drafts = section.integer("num_nextn_predict_layers", 0, minimum=0, maximum=64)
    draft = draft_layer(section, latent, moe) if drafts and moe else None
    vision = config.root.optional_section("vision_config")
    built = decoder(
        config,
        section,
        family="mla",
        heads=as_heads(latent),
        layers=tuple(variants[key] for key in zip(sparse, indexed, strict=True)),
        intermediate_size=section.integer("intermediate_size"),
        tied=section.boolean("tie_word_embeddings", False),
        rotary_tables=rotary_tables(section, latent, with_indexer=any(indexed)),
        layer_prefix="model.layers" if vision is None else "language_model.model.layers",
        moe=moe,
        is_multimodal=vision is not None,
        uncounted=("vision tower",) if vision is not None and config.model_type not in MOONVIT else (),
    )
    return replace(
        built,
        is_mla=True,
        draft_layers=(draft,) * drafts if draft else (),
        every=read_moonvit(vision, latent.hidden_size) if vision and config.model_type in MOONVIT else (),
    )


MOONVIT: Final = ("kimi_k25",)
"""Models whose vision tower is the three-dimensional MoonViT."""


def as_heads(latent: Latent) -> Heads:
    """What the engine's config says of heads: one KV head as wide as the latent vector."""
    return Heads(
        hidden_size=latent.hidden_size,
        num_heads=latent.num_heads,
        num_kv_heads=1,
        head_dim=latent.kv_lora_rank + latent.qk_rope_head_dim,
    )


def rotary_tables(section: Section, latent: Latent, *, with_indexer: bool) -> tuple[RotaryTable, ...]:
    """The table of the rotated part; a sparse indexer has its own, in another style."""
    positions = section.integer("max_position_embeddings")
    table = read_ropes(section)[0].table(latent.qk_rope_head_dim, positions)
    is_other_style = with_indexer and not section.boolean("indexer_rope_interleave", False)
    return (table, table) if is_other_style else (table,)


def read_moe(section: Section) -> MixtureOfExperts | None:
    """The experts; None in a model without them."""
    count = section.optional_integer("n_routed_experts", minimum=1, maximum=MOST_EXPERTS)
    if count is None:
        return None
    width = section.integer("moe_intermediate_size")
    shared = section.integer("n_shared_experts", 0, minimum=0, maximum=MOST_EXPERTS)
    return MixtureOfExperts(
        num_experts=count,
        top_k=section.integer("num_experts_per_tok", section.optional_integer("moe_topk", minimum=1)),
        moe_intermediate_size=width,
        shared_intermediate_size=width * shared,
    )


def which_layers_are_sparse(section: Section, count: int, moe: MixtureOfExperts | None) -> tuple[bool, ...]:
    """Which layers have experts: from the first after the dense ones, every `moe_layer_freq`th."""
    if moe is None:
        return (False,) * count
    dense = section.integer("first_k_dense_replace", 0, minimum=0)
    every = section.integer("moe_layer_freq", 1)
    return tuple(index >= dense and index % every == 0 for index in range(count))


def which_layers_index(section: Section, count: int) -> tuple[bool, ...]:
    """Which layers choose their own tokens; the others use the choice of the last one that did.

    By `indexer_types`, a pattern, or a frequency.

    Source: vllm/model_executor/models/deepseek_v2.py:DeepseekV2MLAAttention (0.32).
    """
    if section.optional_integer("index_topk") is None:
        return (False,) * count
    types = section.strings("indexer_types")
    if types is not None:
        if len(types) < count:
            raise section.contradicting("indexer_types", f"{len(types)} indexer types for {count} layers")
        return tuple(kind == "full" for kind in types[:count])
    pattern = section.get("index_topk_pattern")
    if pattern is not None:
        return tuple(not (index < len(pattern) and pattern[index] == "S") for index in range(count))
    every = section.integer("index_topk_freq", 1)
    offset = section.integer("index_skip_topk_offset", 2, minimum=0)
    return tuple(max(index - offset + 1, 0) % every == 0 for index in range(count))


def latent_layer(
    section: Section, latent: Latent, moe: MixtureOfExperts | None, *, is_sparse: bool, is_indexed: bool
) -> Layer:
    """One layer."""
    hidden = latent.hidden_size
    modules: list[Module] = [*latent_attention(latent), *norms(hidden, *TWO_NORMS)]
    caches: list[CacheState] = [latent.cache]
    if is_indexed:
        modules += indexer(section, latent)
        caches.insert(0, SparseIndexer(index_head_dim=section.integer("index_head_dim")))
    if is_sparse and moe is not None:
        modules += expert_modules(section, hidden, moe)
    else:
        modules += gated_mlp(hidden, section.integer("intermediate_size"))
    return Layer(modules=tuple(modules), caches=tuple(caches), loading=(absorbed(latent),))


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


def expert_modules(
    section: Section, hidden_size: int, moe: MixtureOfExperts, prefix: str = "mlp"
) -> tuple[Module, ...]:
    """Router, routed and shared experts."""
    modules: list[Module] = [
        replicated(f"{prefix}.gate", hidden_size, moe.num_experts, quantizable=False),
        Experts(
            name=f"{prefix}.experts",
            num_experts=moe.num_experts,
            hidden_size=hidden_size,
            intermediate_size=moe.moe_intermediate_size,
            top_k=moe.top_k,
        ),
    ]
    if section.string("topk_method", "") == "noaux_tc":
        name = f"{prefix}.gate.e_score_correction_bias"
        modules.append(Parameter(name=name, replicated=moe.num_experts, dtype="float32"))
    if moe.shared_intermediate_size:
        modules += gated_mlp(hidden_size, moe.shared_intermediate_size, f"{prefix}.shared_experts")
    return tuple(modules)


def draft_layer(section: Section, latent: Latent, moe: MixtureOfExperts) -> Layer:
    """A multi-token-prediction layer; it shares embedding and lm_head with the model.

    Source: vllm/model_executor/models/deepseek_mtp.py (0.32).
    """
    is_indexed = section.optional_integer("index_topk") is not None
    body = latent_layer(section, latent, moe, is_sparse=True, is_indexed=is_indexed)
    hidden = latent.hidden_size
    return replace(
        body,
        modules=(
            *norms(hidden, "enorm", "hnorm", "shared_head.norm"),
            replicated("eh_proj", 2 * hidden, hidden, quantizable=False),
            *body.modules,
        ),
    )


def read_pangu(config: ModelConfig) -> Architecture:
    """openPangu Ultra: DeepSeek's layers, with four norms.

    Source: vllm/model_executor/models/openpangu.py (0.32).
    """
    built = read(config)
    if not config.language.boolean("sandwich_norm", False):
        return built
    more = norms(built.hidden_size, "pre_mlp_layernorm", "post_mlp_layernorm")
    widened = {id(layer): replace(layer, modules=(*layer.modules, *more)) for layer in built.layers}
    return replace(built, layers=tuple(widened[id(layer)] for layer in built.layers))


def read_longcat(config: ModelConfig) -> Architecture:
    """LongCat-Flash: two attentions and two MLPs a layer, and experts of which some do nothing.

    Source: vllm/model_executor/models/longcat_flash.py (0.32).
    """
    section = config.language
    latent = read_latent(section)
    hidden = latent.hidden_size
    intermediate = section.integer(
        "intermediate_size", section.optional_integer("ffn_hidden_size", minimum=1)
    )
    moe = MixtureOfExperts(
        num_experts=section.integer("n_routed_experts", maximum=MOST_EXPERTS),
        top_k=section.integer("moe_topk", section.optional_integer("num_experts_per_tok", minimum=1)),
        moe_intermediate_size=section.integer(
            "moe_intermediate_size", section.optional_integer("expert_ffn_hidden_size", minimum=1)
        ),
    )
    routed = moe.num_experts + section.integer("zero_expert_num", 0, minimum=0, maximum=MOST_EXPERTS)
    modules: list[Module] = [
        replicated("mlp.router.classifier", hidden, routed, quantizable=False, dtype="float32"),
        Parameter(name="mlp.router.e_score_correction_bias", replicated=routed, dtype="float32"),
        Experts(
            name="mlp.experts",
            num_experts=moe.num_experts,
            hidden_size=hidden,
            intermediate_size=moe.moe_intermediate_size,
            top_k=moe.top_k,
        ),
    ]
    for half in (0, 1):
        modules += latent_attention(latent, f"self_attn.{half}")
        modules += gated_mlp(hidden, intermediate, f"mlps.{half}")
        modules += norms(hidden, *(f"{name}.{half}" for name in TWO_NORMS))
    layer = Layer(modules=tuple(modules), caches=(latent.cache,) * 2, loading=(absorbed(latent),) * 2)
    built = decoder(
        config,
        section,
        family="mla",
        heads=as_heads(latent),
        layers=(layer,) * section.layers("num_layers" if section.has("num_layers") else "num_hidden_layers"),
        intermediate_size=intermediate,
        tied=section.boolean("tie_word_embeddings", False),
        rotary_tables=rotary_tables(section, latent, with_indexer=False),
        moe=moe,
    )
    return replace(built, is_mla=True)


def read_minicpm3(config: ModelConfig) -> Architecture:
    """MiniCPM3: latent projections, but an ordinary cache of every head's keys and values, values padded.

    Source: vllm/model_executor/models/minicpm3.py (0.32).
    """
    section = config.language
    latent = read_latent_of_minicpm3(section)
    intermediate = section.integer("intermediate_size")
    heads = Heads(
        hidden_size=latent.hidden_size,
        num_heads=latent.num_heads,
        num_kv_heads=latent.num_heads,
        head_dim=latent.qk_head_dim,
    )
    layer = Layer(
        modules=(
            *minicpm3_attention(latent),
            *gated_mlp(latent.hidden_size, intermediate),
            *norms(latent.hidden_size, *TWO_NORMS),
        ),
        caches=(
            FullAttention(
                num_kv_heads=heads.num_kv_heads, head_size=heads.head_dim, head_size_v=heads.head_dim
            ),
        ),
    )
    positions = section.integer("max_position_embeddings")
    return decoder(
        config,
        section,
        family="mla",
        heads=heads,
        layers=(layer,) * section.layers(),
        intermediate_size=intermediate,
        tied=section.boolean("tie_word_embeddings", True),
        rotary_tables=tuple(rope.table(latent.qk_rope_head_dim, positions) for rope in read_ropes(section)),
    )


def read_latent_of_minicpm3(section: Section) -> Latent:
    """MiniCPM3's geometry: values as wide as a head of the hidden size."""
    hidden, heads = section.integer("hidden_size"), section.integer("num_attention_heads")
    return Latent(
        hidden_size=hidden,
        num_heads=heads,
        q_lora_rank=section.integer("q_lora_rank"),
        kv_lora_rank=section.integer("kv_lora_rank"),
        qk_nope_head_dim=section.integer("qk_nope_head_dim"),
        qk_rope_head_dim=section.integer("qk_rope_head_dim"),
        v_head_dim=hidden // heads,
    )


def minicpm3_attention(latent: Latent) -> tuple[Module, ...]:
    """The projections, the two ways down not fused."""
    rank = latent.q_lora_rank or 0
    up = latent.qk_nope_head_dim + latent.v_head_dim
    return (
        replicated("self_attn.q_a_proj", latent.hidden_size, rank),
        norm("self_attn.q_a_layernorm", rank),
        heads_column("self_attn.q_b_proj", rank, latent.num_heads, latent.qk_head_dim),
        replicated(
            "self_attn.kv_a_proj_with_mqa",
            latent.hidden_size,
            latent.kv_lora_rank + latent.qk_rope_head_dim,
        ),
        norm("self_attn.kv_a_layernorm", latent.kv_lora_rank),
        heads_column("self_attn.kv_b_proj", latent.kv_lora_rank, latent.num_heads, up),
        row("self_attn.o_proj", latent.num_heads * latent.v_head_dim, latent.hidden_size),
    )


READERS: Final[Mapping[str, object]] = {
    "DeepseekV2ForCausalLM": read,
    "DeepseekV3ForCausalLM": read,
    "DeepseekV32ForCausalLM": read,
    "GlmMoeDsaForCausalLM": read,
    "Glm4MoeLiteForCausalLM": read,
    "KimiK25ForConditionalGeneration": read,
    "deepseek_v2": read,
    "deepseek_v3": read,
    "deepseek_v32": read,
    "kimi_k2": read,
    "kimi_k25": read,
    "glm_moe_dsa": read,
    "glm4_moe_lite": read,
    "PanguUltraMoEForCausalLM": read_pangu,
    "pangu_ultra_moe": read_pangu,
    "LongcatFlashForCausalLM": read_longcat,
    "longcat_flash": read_longcat,
    "MiniCPM3ForCausalLM": read_minicpm3,
    "minicpm3": read_minicpm3,
}
