"""Step 3, with narrow queries and one KV head; 3.5 and 3.7 Flash, with sliding layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families import clip
from kvcore.model.parts import blocks, vision
from kvcore.model.parts.experts import CORRECTED_FIRST, ExpertTraits, expert_modules, read_moe
from kvcore.model.parts.pattern import by_kind
from kvcore.model.rope import read_ropes

SLIDING: Final = "sliding_attention"
FULL: Final = "full_attention"


def read_flash(config: ModelConfig) -> arch.Architecture:
    """Step 3.5 Flash and 3.7 Flash.

    Source: vllm/model_executor/models/step3p5.py, step3p7.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(
        section, "num_attention_groups" if section.has("num_attention_groups") else "num_key_value_heads"
    )
    count = section.layers()
    kinds = section.words("layer_types", (SLIDING, FULL)) or ()
    if kinds and len(kinds) < count:
        raise section.contradicting("layer_types", f"{len(kinds)} layer types for {count} layers")
    sliding = tuple(kind == SLIDING for kind in kinds[:count]) or tuple(i % 2 == 0 for i in range(count))
    moe = read_moe(EXPERTS, section)
    sparse = which_layers_are_sparse(section, count)
    layers = by_kind(
        zip(sliding, sparse, strict=True),
        lambda kind: flash_layer(section, heads, moe, is_sliding=kind[0], is_sparse=kind[1]),
    )
    built = blocks.decoder(
        config,
        heads=heads,
        layers=layers,
        intermediate_size=section.integer("intermediate_size"),
        tied=section.boolean("tie_word_embeddings", False),
        moe=moe,
        is_multimodal=config.root.optional_section("vision_config") is not None,
        uncounted=("vision tower",) if config.root.optional_section("vision_config") is not None else (),
    )
    drafts = section.integer("num_nextn_predict_layers", 0, minimum=0, maximum=64)
    return replace(
        built,
        draft_layers=tuple(
            draft_layer(
                section,
                heads,
                moe,
                is_sliding=kinds[index] == SLIDING if index < len(kinds) else index % 2 == 0,
            )
            for index in range(count, count + drafts)
        ),
        draft_steps=drafts,
    )


def draft_layer(
    section: Section, heads: blocks.Heads, moe: arch.MixtureOfExperts, *, is_sliding: bool
) -> arch.Layer:
    """A prediction layer: a dense layer behind a projection of two hidden states, with an lm_head of its own.

    Source: vllm/model_executor/models/step3p5_mtp.py (0.32).
    """
    hidden = heads.hidden_size
    body = flash_layer(section, heads, moe, is_sliding=is_sliding, is_sparse=False)
    return replace(
        body,
        modules=(
            blocks.replicated("eh_proj", 2 * hidden, hidden, quantizable=False),
            *blocks.norms(hidden, "enorm", "hnorm", "shared_head.norm"),
            blocks.head(section, "shared_head.head"),
            *body.modules,
        ),
    )


EXPERTS: Final = ExpertTraits(
    experts_key=("moe_num_experts", "num_experts"),
    top_k_key=("moe_top_k", "num_experts_per_tok"),
    shared_width_key="share_expert_dim",
    shared_count=1,
    prefix="moe",
    shared="share_expert",
)
FLASH_EXPERTS: Final = replace(
    EXPERTS, router_dtype="float32", correction_bias=True, correction="router_bias", order=CORRECTED_FIRST
)


def which_layers_are_sparse(section: Section, count: int) -> tuple[bool, ...]:
    """Which layers have experts: those that `moe_layers_enum` lists, or all after the dense ones."""
    listed = section.get("moe_layers_enum")
    if isinstance(listed, str):
        numbers = [part.strip() for part in listed.split(",")]
        if not all(part.isdigit() for part in numbers):
            raise section.invalid("moe_layers_enum", listed, "expected layer numbers with commas between")
        chosen = {int(part) for part in numbers}
        return tuple(index in chosen for index in range(count))
    dense = section.integer("first_k_dense_replace", 1, minimum=0)
    return tuple(index >= dense for index in range(count))


def flash_layer(
    section: Section, heads: blocks.Heads, moe: arch.MixtureOfExperts, *, is_sliding: bool, is_sparse: bool
) -> arch.Layer:
    """One layer; sliding layers may have heads of their own."""
    own = heads
    other = section.optional_section("attention_other_setting")
    if is_sliding and other is not None and other.string("attention_type", SLIDING) == SLIDING:
        own = replace(
            heads,
            num_heads=other.integer("num_attention_heads", heads.num_heads),
            num_kv_heads=other.integer("num_attention_groups", heads.num_kv_heads),
            head_dim=other.integer("head_dim", heads.head_dim),
        )
    hidden = own.hidden_size
    modules: list[arch.Module] = [
        *blocks.attention(own, qkv_bias=section.boolean("attention_bias", False)),
        *blocks.norms(own.head_dim, "self_attn.q_norm", "self_attn.k_norm"),
        *blocks.norms(hidden, *blocks.TWO_NORMS),
    ]
    if section.boolean("use_head_wise_attn_gate", False):
        modules.append(blocks.column("self_attn.g_proj", hidden, own.num_heads))
    if is_sparse:
        modules += expert_modules(FLASH_EXPERTS, section, hidden, moe)
    else:
        modules += blocks.gated_mlp(hidden, section.integer("intermediate_size"))
    window = section.integer("sliding_window") if is_sliding else None
    return arch.Layer(modules=tuple(modules), caches=(blocks.cache_of(own, window),))


MAX_PATCHES: Final = 6
"""Tiles of the largest image. Source: vllm/transformers_utils/processors/step3_vl.py:ImagePatcher (0.32)."""


def read_step3(config: ModelConfig) -> arch.Architecture:
    """Step 3, with its encoder where the config has one.

    Source: vllm/model_executor/models/step3_text.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section, "num_attention_groups")
    if heads.num_kv_heads != 1:
        raise section.invalid("num_attention_groups", heads.num_kv_heads, "expected 1")
    moe = read_moe(EXPERTS, section)
    layers = {is_sparse: step3_layer(section, heads, moe, is_sparse=is_sparse) for is_sparse in (False, True)}
    positions = section.optional_integer("max_position_embedding", minimum=1) or section.integer(
        "max_position_embeddings"
    )
    encoder = config.root.optional_section("vision_config", "step3_vision_encoder")
    built = blocks.decoder(
        config,
        heads=heads,
        layers=tuple(layers[each] for each in which_layers_are_sparse(section, section.layers())),
        intermediate_size=section.integer("intermediate_size"),
        last=(blocks.norm("model.norm", heads.hidden_size), replace(blocks.head(section), quantizable=False)),
        tied=False,
        rotary_tables=tuple(rope.table(heads.head_dim, positions) for rope in read_ropes(section)),
        moe=moe,
    )
    if encoder is None:
        return built
    return replace(
        built,
        every=(*eyes(encoder), *projector(config.root, encoder, heads.hidden_size)),
        vision=encoder_of(encoder),
        is_multimodal=True,
    )


def step3_layer(
    section: Section, heads: blocks.Heads, moe: arch.MixtureOfExperts, *, is_sparse: bool
) -> arch.Layer:
    """One layer; keys, values and the narrow queries are whole on every rank."""
    hidden, all_heads = heads.hidden_size, heads.num_heads * heads.head_dim
    narrow = section.integer("share_q_dim", heads.head_dim)
    modules: list[arch.Module] = [
        blocks.replicated("self_attn.qkv_proj", hidden, narrow + 2 * heads.head_dim),
        blocks.norm("self_attn.inter_norm", narrow),
        blocks.column("self_attn.wq", narrow, all_heads),
        blocks.row("self_attn.o_proj", all_heads, hidden),
        *blocks.norms(hidden, *blocks.TWO_NORMS),
    ]
    if is_sparse:
        routed = replace(moe, shared_intermediate_size=0)
        modules += expert_modules(EXPERTS, section, hidden, routed)
        modules += blocks.gated_mlp(hidden, moe.shared_intermediate_size, "share_expert")
    else:
        modules += blocks.gated_mlp(hidden, section.integer("intermediate_size"))
    return arch.Layer(modules=tuple(modules), caches=(blocks.cache_of(heads),))


def eyes(section: Section) -> tuple[arch.Module, ...]:
    """A ViT with a class token.

    Source: vllm/model_executor/models/step3_vl.py:Step3VisionTransformer (0.32).
    """
    width, prefix = section.integer("hidden_size"), "vision_model"
    heads = vision.square_heads(section, width)
    channels, inner = section.integer("num_channels", 3, maximum=64), section.integer("intermediate_size")
    return (
        *vision.embeddings(section, f"{prefix}.embeddings", width, channels),
        *vision.blocks(clip.BLOCK, f"{prefix}.transformer.layers", section.layers(), heads, inner),
    )


def projector(root: Section, section: Section, text: int) -> tuple[arch.Module, ...]:
    """Two convolutions that each take a square of patches to one, and a linear layer.

    Source: vllm/model_executor/models/step3_vl.py:Step3VLForConditionalGeneration (0.32).
    """
    width, out = section.integer("hidden_size"), section.integer("output_hidden_size")
    bias = root.boolean("projector_bias", True)
    return (
        vision.convolution("vit_downsampler", width, out, (2, 2), bias=True),
        vision.convolution("vit_downsampler2", out, 2 * out, (3, 3), bias=True),
        vision.whole("vit_large_projector", 2 * out, text, bias=bias),
    )


def encoder_of(section: Section) -> arch.VisionEncoder:
    """What the profile run sees: a whole image and its tiles, four times four patches a token."""
    side = section.integer("image_size") // section.integer("patch_size")
    return vision.input_limits(section, (-(-side // 4)) ** 2 * (MAX_PATCHES + 1), 16)


READERS: Final = blocks.named(
    (
        read_flash,
        "Step3p5ForCausalLM",
        "step3p5",
        "Step3p7ForConditionalGeneration",
        "Step3p7FlashForCausalLM",
        "step3p7",
    ),
    (read_step3, "Step3TextForCausalLM", "step3_text", "Step3VLForConditionalGeneration", "step3_vl"),
)
