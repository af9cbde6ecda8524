"""DeepSeek V2 to V3.2 and those with latent attention like it: Kimi K2, GLM-5, openPangu Ultra, A.X K1, Sarvam."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model.architecture import (
    Architecture,
    CacheState,
    Layer,
    MixtureOfExperts,
    Module,
    RotaryTable,
    SparseIndexer,
)
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts.blocks import TWO_NORMS, decoder, gated_mlp, is_tied, named, norms, replicated
from kvcore.model.parts.experts import ExpertTraits, expert_modules, optional_moe, read_moe
from kvcore.model.parts.latent import (
    Latent,
    absorbed,
    as_heads,
    indexer,
    latent_attention,
    latent_layer,
    read_latent,
)
from kvcore.model.parts.pattern import by_kind, sparse_by_frequency, with_modules
from kvcore.model.parts.vision import moonvit
from kvcore.model.rope import read_ropes


def read(config: ModelConfig) -> Architecture:
    """DeepSeek V2, V3 and V3.2 and the models that the engine runs with the same layers.

    Source: vllm/model_executor/models/deepseek_v2.py (0.32).
    """
    section = config.language
    latent = read_latent(section)
    moe = optional_moe(EXPERTS, section)
    count = section.layers()
    sparse = sparse_by_frequency(section) if moe else (False,) * count
    indexed = which_layers_index(section, count)
    layers = by_kind(
        zip(sparse, indexed, strict=True),
        lambda kind: indexed_layer(section, latent, moe if kind[0] else None, is_indexed=kind[1]),
    )
    drafts = section.integer("num_nextn_predict_layers", 0, minimum=0, maximum=64)
    draft = draft_layer(section, latent, moe) if drafts and moe else None
    vision = config.root.optional_section("vision_config")
    built = decoder(
        config,
        heads=as_heads(latent),
        layers=layers,
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
        draft_steps=drafts if draft else 0,
        every=moonvit(vision, latent.hidden_size, *MOONVIT[config.model_type])
        if vision and config.model_type in MOONVIT
        else (),
    )


DIVIDES_SHARED_EXPERTS: Final = ("glm4_moe_lite",)
"""Models whose shared experts the ranks always divide. Source: vllm/model_executor/models/glm4_moe_lite.py (0.32)."""

CORRECTED: Final = ("AXK1", "axk1")
"""Models whose routing has a bias unless set otherwise. Source: vllm/model_executor/models/AXK1.py (0.32)."""

MOONVIT: Final = {"kimi_k25": ("vt_", "mm_projector"), "kimi_vl": ("", "multi_modal_projector")}
"""Models whose vision encoder is MoonViT: what its keys begin with, and what its projector is called."""


def rotary_tables(section: Section, latent: Latent, *, with_indexer: bool) -> tuple[RotaryTable, ...]:
    """The table of the rotated part; a sparse indexer has its own, in another style."""
    positions = section.integer("max_position_embeddings")
    table = read_ropes(section)[0].table(latent.qk_rope_head_dim, positions)
    is_other_style = with_indexer and not section.boolean("indexer_rope_interleave", False)
    return (table, table) if is_other_style else (table,)


EXPERTS: Final = ExpertTraits(
    experts_key="n_routed_experts",
    top_k_key=("num_experts_per_tok", "moe_topk"),
    shared_count_key="n_shared_experts",
    shared_whole=True,
)


def experts_of(section: Section) -> ExpertTraits:
    """What is its own of a config's experts: whether the routing has a bias, whether ranks divide the shared ones."""
    usual = "noaux_tc" if section.model_type in CORRECTED else ""
    return replace(
        EXPERTS,
        correction_bias=section.string("topk_method", usual) == "noaux_tc",
        shared_whole=section.model_type not in DIVIDES_SHARED_EXPERTS,
    )


def which_layers_index(section: Section, count: int) -> tuple[bool, ...]:
    """Which layers choose their own tokens; the others use the choice of the last one that did.

    By `indexer_types`, a pattern, or a frequency.

    Source: vllm/model_executor/models/deepseek_v2.py:DeepseekV2MLAAttention (0.32).
    """
    if section.optional_integer("index_topk") is None:
        return (False,) * count
    types = section.words("indexer_types", ("full", "shared"), count)
    if types is not None:
        return tuple(kind == "full" for kind in types)
    pattern = section.get("index_topk_pattern")
    if pattern is not None:
        return tuple(not (index < len(pattern) and pattern[index] == "S") for index in range(count))
    every = section.integer("index_topk_freq", 1)
    offset = section.integer("index_skip_topk_offset", 2, minimum=0)
    return tuple(max(index - offset + 1, 0) % every == 0 for index in range(count))


def indexed_layer(
    section: Section, latent: Latent, moe: MixtureOfExperts | None, *, is_indexed: bool
) -> Layer:
    """One layer."""
    hidden = latent.hidden_size
    modules: list[Module] = [*latent_attention(latent), *norms(hidden, *TWO_NORMS)]
    caches: list[CacheState] = [latent.cache]
    if is_indexed:
        modules += indexer(section, latent)
        caches.insert(0, SparseIndexer(index_head_dim=section.integer("index_head_dim")))
    if moe is not None:
        modules += expert_modules(experts_of(section), section, hidden, moe)
    else:
        modules += gated_mlp(hidden, section.integer("intermediate_size"))
    return Layer(modules=tuple(modules), caches=tuple(caches), loading=(absorbed(latent),))


def draft_layer(section: Section, latent: Latent, moe: MixtureOfExperts) -> Layer:
    """A multi-token-prediction layer; it shares embedding and lm_head with the model.

    Source: vllm/model_executor/models/deepseek_mtp.py (0.32).
    """
    is_indexed = section.optional_integer("index_topk") is not None
    body = indexed_layer(section, latent, moe, is_indexed=is_indexed)
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
    return with_norms(built, "pre_mlp_layernorm", "post_mlp_layernorm")


def read_axk1(config: ModelConfig) -> Architecture:
    """A.X K1: DeepSeek's layers, with a norm behind the MLP.

    Source: vllm/model_executor/models/AXK1.py (0.32).
    """
    return with_norms(read(config), "post_mlp_layernorm")


def with_norms(built: Architecture, *names: str) -> Architecture:
    """The same architecture with more norms in each layer."""
    more = norms(built.hidden_size, *names)
    distinct = {id(layer): layer for layer in (*built.layers, *built.draft_layers)}
    widened = {key: replace(layer, modules=(*layer.modules, *more)) for key, layer in distinct.items()}
    return replace(
        built,
        layers=tuple(widened[id(layer)] for layer in built.layers),
        draft_layers=tuple(widened[id(layer)] for layer in built.draft_layers),
    )


SARVAM_EXPERTS: Final = ExpertTraits(
    shared_count_key="num_shared_experts",
    shared_count=1,
    correction_bias=("moe_router_enable_expert_bias", True),
)


def read_sarvam(config: ModelConfig) -> Architecture:
    """Sarvam with latent attention.

    Source: vllm/model_executor/models/sarvam.py (0.32).
    """
    section = config.language
    latent = read_latent(section)
    hidden = latent.hidden_size
    moe = read_moe(SARVAM_EXPERTS, section)
    intermediate = section.integer("intermediate_size", 16_384)
    bodies = {
        True: expert_modules(SARVAM_EXPERTS, section, hidden, moe),
        False: gated_mlp(hidden, intermediate),
    }
    attending = latent_layer(latent, *norms(hidden, *TWO_NORMS))
    dense = section.integer("first_k_dense_replace", 1, minimum=0)
    every = section.integer("moe_layer_freq", 1)
    sparse = (index >= dense and (index - dense) % every == 0 for index in range(section.layers()))
    return decoder(
        config,
        heads=as_heads(latent),
        layers=by_kind(sparse, lambda is_sparse: with_modules(attending, *bodies[is_sparse])),
        intermediate_size=intermediate,
        tied=is_tied(config, section, False),
        rotary_tables=rotary_tables(section, latent, with_indexer=False),
        moe=moe,
        is_mla=True,
    )


READERS: Final = named(
    (
        read,
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "GlmMoeDsaForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "MistralLarge3ForCausalLM",
        "KimiK25ForConditionalGeneration",
        "KimiVLForConditionalGeneration",
        "kimi_vl",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "kimi_k2",
        "kimi_k25",
        "glm_moe_dsa",
        "glm4_moe_lite",
    ),
    (read_axk1, "AXK1ForCausalLM", "AXK1", "axk1"),
    (read_pangu, "PanguUltraMoEForCausalLM", "pangu_ultra_moe"),
    (read_sarvam, "SarvamMLAForCausalLM", "sarvam_mla"),
)
