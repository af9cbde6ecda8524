"""Gemma 2, 3 and 4: windows with full attention, four norms a layer, layers that share another's cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts import blocks
from kvcore.model.parts.encoder import read_encoder
from kvcore.model.parts.experts import ExpertTraits, optional_moe, routed_experts
from kvcore.model.parts.pattern import by_kind
from kvcore.model.rope import read_ropes

SLIDING: Final = "sliding_attention"
FULL: Final = "full_attention"

FOUR_NORMS: Final = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)

GEMMA3_PATTERN: Final = 6
"""Every sixth layer is full. Source: transformers 5.19, Gemma3TextConfig."""
GEMMA4_PATTERN: Final = 6


def layer_kinds(section: Section, pattern: int) -> tuple[str, ...]:
    """sliding_attention or full_attention, layer by layer: `layer_types`, or every `sliding_window_pattern`th full."""
    count = section.layers()
    kinds = section.words("layer_types", (SLIDING, FULL), count)
    if kinds is None:
        every = section.optional_integer("sliding_window_pattern", minimum=1) or pattern
        return tuple(FULL if (index + 1) % every == 0 else SLIDING for index in range(count))
    return kinds


def sliding_layers(
    section: Section, heads: blocks.Heads, pattern: int, *, qk_norm: bool
) -> tuple[arch.Layer, ...]:
    """The layers of Gemma 2 and 3: all alike but for their window."""
    bias, window = section.boolean("attention_bias", False), section.integer("sliding_window")
    modules: tuple[arch.Module, ...] = (
        *blocks.attention(heads, qkv_bias=bias, out_bias=bias),
        *blocks.gated_mlp(heads.hidden_size, section.integer("intermediate_size")),
        *blocks.norms(heads.hidden_size, *FOUR_NORMS),
        *(blocks.norms(heads.head_dim, "self_attn.q_norm", "self_attn.k_norm") if qk_norm else ()),
    )
    return by_kind(
        layer_kinds(section, pattern),
        lambda kind: arch.Layer(
            modules=modules, caches=(blocks.cache_of(heads, window if kind == SLIDING else None),)
        ),
    )


def read_gemma2(config: ModelConfig) -> arch.Architecture:
    """Gemma 2: every other layer slides.

    Source: vllm/model_executor/models/gemma2.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    return blocks.decoder(
        config,
        heads=heads,
        layers=sliding_layers(section, heads, 2, qk_norm=False),
        intermediate_size=section.integer("intermediate_size"),
        tied=True,
    )


def read_gemma3(config: ModelConfig) -> arch.Architecture:
    """Gemma 3, with its SigLIP encoder where the checkpoint has one.

    Source: vllm/model_executor/models/gemma3.py, gemma3_mm.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    vision = config.root.optional_section("vision_config", "siglip_vision_model")
    built = blocks.decoder(
        config,
        heads=heads,
        layers=sliding_layers(section, heads, GEMMA3_PATTERN, qk_norm=True),
        intermediate_size=section.integer("intermediate_size"),
        tied=True,
        rotary_tables=gemma3_rotary(section, heads),
        layer_prefix="model.layers" if vision is None else "language_model.model.layers",
        is_multimodal=vision is not None,
        vision=None if vision is None else gemma3_encoder(config.root, vision),
    )
    return built if vision is None else replace(built, every=gemma3_vision(vision, heads.hidden_size))


def gemma3_rotary(section: Section, heads: blocks.Heads) -> tuple[arch.RotaryTable, ...]:
    """The table of full layers with its scaling, and the plain one of sliding layers.

    Source: vllm/model_executor/models/gemma3.py:Gemma3Attention (0.32).
    """
    positions = section.integer("max_position_embeddings")
    written = [rope.table(heads.head_dim, positions) for rope in read_ropes(section)]
    local = arch.RotaryTable(max_positions=positions, rotary_dim=heads.head_dim)
    return (*written, local) if len(written) == 1 else tuple(written)


def gemma3_vision(vision: Section, hidden_size: int) -> tuple[arch.Module, ...]:
    """SigLIP and the projector.

    Source: vllm/model_executor/models/gemma3_mm.py:Gemma3MultiModalProjector (0.32).
    """
    width = vision.integer("hidden_size")
    return (
        *read_encoder("siglip", vision, "vision_tower.vision_model").modules,
        arch.Parameter(
            name="multi_modal_projector.mm_input_projection_weight", replicated=width * hidden_size
        ),
        blocks.norm("multi_modal_projector.mm_soft_emb_norm", width),
    )


def gemma3_encoder(root: Section, vision: Section) -> arch.VisionEncoder:
    """What the profile run needs of SigLIP: one image is always `mm_tokens_per_image` tokens."""
    tokens = root.integer("mm_tokens_per_image", 256)
    patches = (vision.integer("image_size") // vision.integer("patch_size")) ** 2
    return arch.VisionEncoder(
        hidden_size=vision.integer("hidden_size"),
        intermediate_size=vision.integer("intermediate_size"),
        max_tokens_per_item=tokens,
        patches_per_token=max(1, patches // tokens),
    )


EXPERTS: Final = ExpertTraits(
    intermediate_key=("moe_intermediate_size", "expert_intermediate_size"),
    top_k_key="top_k_experts",
    prefix="",
)


def read_gemma4(config: ModelConfig, embedders: tuple[arch.Module, ...] = ()) -> arch.Architecture:
    """Gemma 4: wide heads on full layers, experts with the MLP, per-layer inputs, shared caches.

    `embedders` stand where other models have encoders.

    Source: vllm/model_executor/models/gemma4.py (0.32).
    """
    section = config.language
    kinds = layer_kinds(section, GEMMA4_PATTERN)
    shared_from = len(kinds) - section.integer("num_kv_shared_layers", 0, minimum=0)
    local = blocks.read_heads(section)
    full = gemma4_full_heads(section, local)
    layers = by_kind(
        ((kind, index >= shared_from) for index, kind in enumerate(kinds)),
        lambda kind: gemma4_layer(section, local if kind[0] == SLIDING else full, kind[0], is_shared=kind[1]),
    )
    inputs = section.integer("hidden_size_per_layer_input", 0, minimum=0)
    extra = per_layer_inputs(section, local.hidden_size, inputs, len(kinds)) if inputs else ()
    positions = section.integer("max_position_embeddings")
    vision, audio = (config.root.optional_section(f"{name}_config") for name in ("vision", "audio"))
    encoders = embedders
    if vision is not None and not embedders:
        encoders += read_encoder("gemma4_vision", vision, text=local.hidden_size).modules
    if audio is not None and not embedders:
        encoders += read_encoder("gemma4_audio", audio, text=local.hidden_size).modules
    return blocks.decoder(
        config,
        heads=local,
        layers=layers,
        intermediate_size=section.integer("intermediate_size"),
        first=(blocks.embedding(section), *extra),
        every=encoders,
        tied=True,
        rotary_tables=tuple(
            arch.RotaryTable(max_positions=positions, rotary_dim=heads.head_dim) for heads in (local, full)
        ),
        layer_prefix="model.language_model.layers",
        moe=optional_moe(EXPERTS, section),
        vision=None if embedders else gemma4_encoder(vision),
        is_multimodal=vision is not None,
    )


def gemma4_encoder(vision: Section | None) -> arch.VisionEncoder | None:
    """What the image encoder takes: square groups of patches become one token."""
    if vision is None:
        return None
    return arch.VisionEncoder(
        hidden_size=vision.integer("hidden_size"),
        intermediate_size=vision.integer("intermediate_size"),
        max_tokens_per_item=vision.integer("default_output_length", 280),
        patches_per_token=vision.integer("pooling_kernel_size", 3) ** 2,
    )


def gemma4_full_heads(section: Section, local: blocks.Heads) -> blocks.Heads:
    """The heads of full attention layers."""
    return replace(
        local,
        head_dim=section.optional_integer("global_head_dim", minimum=1)
        or listed_head_dim(section)
        or local.head_dim,
        num_kv_heads=section.optional_integer("num_global_key_value_heads", minimum=1) or local.num_kv_heads,
    )


def listed_head_dim(section: Section) -> int | None:
    """The head_dim that `per_layer_config` gives to single layers: the full ones."""
    listed = section.optional_section("per_layer_config")
    sizes = {listed.section(name).optional_integer("head_dim") for name in listed.raw} if listed else set()
    if len(sizes) > 1:
        raise section.contradicting("per_layer_config", "full layers differ in head_dim")
    return sizes.pop() if sizes else None


def gemma4_layer(section: Section, heads: blocks.Heads, kind: str, *, is_shared: bool) -> arch.Layer:
    """One layer; one that shares another's cache has a query projection alone, and may have a double MLP."""
    hidden = heads.hidden_size
    wide = 2 if is_shared and section.boolean("use_double_wide_mlp", False) else 1
    modules: list[arch.Module] = [
        *query_or_qkv(section, heads, is_shared=is_shared),
        *blocks.gated_mlp(hidden, section.integer("intermediate_size") * wide),
        *blocks.norms(hidden, *FOUR_NORMS),
    ]
    moe = optional_moe(EXPERTS, section)
    if moe is not None:
        modules += [
            arch.Parameter(name="router.scale", replicated=hidden + moe.num_experts),
            blocks.replicated("router.proj", hidden, moe.num_experts, quantizable=False),
            routed_experts(EXPERTS, hidden, moe),
            *blocks.norms(
                hidden,
                "post_feedforward_layernorm_1",
                "post_feedforward_layernorm_2",
                "pre_feedforward_layernorm_2",
            ),
        ]
    inputs = section.integer("hidden_size_per_layer_input", 0, minimum=0)
    if inputs:
        modules += [
            blocks.replicated("per_layer_input_gate", hidden, inputs),
            blocks.replicated("per_layer_projection", inputs, hidden),
            blocks.norm("post_per_layer_input_norm", hidden),
        ]
    window = section.integer("sliding_window") if kind == SLIDING else None
    return arch.Layer(modules=tuple(modules), caches=() if is_shared else (blocks.cache_of(heads, window),))


def query_or_qkv(section: Section, heads: blocks.Heads, *, is_shared: bool) -> tuple[arch.Module, ...]:
    """Projections and norms of an attention layer that may share another's keys and values."""
    bias = section.boolean("attention_bias", False)
    if not is_shared:
        return (
            *blocks.attention(heads, qkv_bias=bias, out_bias=bias),
            *blocks.norms(heads.head_dim, "self_attn.q_norm", "self_attn.k_norm"),
        )
    width = heads.num_heads * heads.head_dim
    return (
        blocks.column("self_attn.q_proj", heads.hidden_size, width, bias=bias),
        blocks.row("self_attn.o_proj", width, heads.hidden_size, bias=bias),
        blocks.norm("self_attn.q_norm", heads.head_dim),
    )


def per_layer_inputs(section: Section, hidden_size: int, width: int, layers: int) -> tuple[arch.Module, ...]:
    """The second embedding, a slice of it for each layer, and its projection."""
    return (
        arch.VocabEmbedding(
            name="model.embed_tokens_per_layer",
            num_embeddings=section.integer("vocab_size_per_layer_input", section.integer("vocab_size")),
            embedding_dim=width * layers,
        ),
        blocks.column("model.per_layer_model_projection", hidden_size, width * layers),
        blocks.norm("model.per_layer_projection_norm", width),
    )


READERS: Final = blocks.named(
    (read_gemma2, "Gemma2ForCausalLM", "gemma2"),
    (read_gemma3, "Gemma3ForCausalLM", "gemma3_text", "Gemma3ForConditionalGeneration", "gemma3"),
    (read_gemma4, "Gemma4ForConditionalGeneration", "Gemma4ForCausalLM", "gemma4", "gemma4_text"),
)
