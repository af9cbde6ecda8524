"""Kimi Linear and K3: KDA, a delta net with a gate for each channel, with latent attention; experts."""

from __future__ import annotations

import dataclasses
from typing import Final

from msgspec.structs import replace

from kvcore.model import architecture as arch
from kvcore.model.config import ModelConfig, Section
from kvcore.model.families.decoder import DECODERS, by_row, read_decoder
from kvcore.model.families.qwen import FULL, LINEAR, gated_attention
from kvcore.model.parts import blocks
from kvcore.model.parts import encoder as enc
from kvcore.model.parts.experts import ExpertTraits, optional_moe, read_moe
from kvcore.model.parts.latent import as_heads, heads_column, latent_experts, latent_layer, read_latent
from kvcore.model.parts.mixers import kda
from kvcore.model.parts.pattern import by_kind, crossed, sparse_by_frequency, with_modules

EXPERTS: Final = DECODERS["kimi_linear"].experts or ExpertTraits()
K3_EXPERTS: Final = DECODERS["kimi_k3"].experts or ExpertTraits()


def read_linear(config: ModelConfig) -> arch.Architecture:
    """Kimi Linear.

    Source: vllm/model_executor/models/kimi_linear.py, layers/kda.py (0.19).
    """
    section = config.language
    if section.has("routed_expert_hidden_size") or section.has("attn_res_block_size"):
        raise section.invalid(
            "model_type",
            "kimi_linear",
            "these are Kimi K3's layers: the whole config is read as kimi_k3",
        )
    latent, hidden = read_latent(section), section.integer("hidden_size")
    linear = section.section("linear_attn_config")
    moe = optional_moe(EXPERTS, section)
    mixers = {True: kda(linear, hidden), False: latent_layer(latent)}
    sparse = sparse_by_frequency(section) if moe else (False,) * section.layers()
    row = DECODERS["kimi_linear"] if moe else replace(DECODERS["kimi_linear"], experts=None)
    built = read_decoder(
        row,
        config,
        heads=as_heads(latent),
        mixers=tuple(mixers[is_kda] for is_kda in which_layers(linear, len(sparse))),
        sparse=sparse,
        width=section.integer("intermediate_size"),
    )
    return dataclasses.replace(built, is_mla=True)


def which_layers(linear: Section, count: int) -> tuple[bool, ...]:
    """Whether each layer, counted from 1, is one of the `kda_layers`."""
    listed = frozenset(linear.integers("kda_layers", minimum=1) or ())
    return tuple(index in listed for index in range(1, count + 1))


MAX_PATCHES: Final = 16_384
"""Patches of the largest image. Source: preprocessor_config.json of Kimi-K2.5, in_patch_limit."""


def read_k3(config: ModelConfig) -> arch.Architecture:
    """Kimi K3.

    Source: vllm/models/kimi_k3/nvidia/model.py (0.32).
    """
    section, encoder = config.language, config.root.section("vision_config")
    hidden, latent = section.integer("hidden_size"), read_latent(section)
    linear = section.section("linear_attn_config")
    if not linear.boolean("use_full_rank_gate", False):
        raise linear.invalid("use_full_rank_gate", False, "expected true, as in Kimi K3")
    moe = read_moe(K3_EXPERTS, section)
    intermediate = section.integer("intermediate_size")
    has_residuals = section.optional_integer("attn_res_block_size") is not None
    around: list[arch.Module] = [*blocks.norms(hidden, *blocks.TWO_NORMS)]
    last: list[arch.Module] = [blocks.norm("model.norm", hidden)]
    if has_residuals:
        around += (*residual("self_attention_res", hidden), *residual("mlp_res", hidden))
        last += residual("model.output_attn_res", hidden)
    gate: tuple[arch.Module, ...] = ()
    if section.boolean("mla_use_output_gate", False):
        gate = (heads_column("self_attn.g_proj", hidden, latent.num_heads, latent.v_head_dim),)
    mixers = {True: kda(linear, hidden, is_fused=True), False: latent_layer(latent, *gate)}
    sparse = sparse_by_frequency(section)
    kinds = zip(which_layers(linear, len(sparse)), sparse, strict=True)
    bodies = {True: k3_experts(section, hidden, moe), False: blocks.gated_mlp(hidden, intermediate)}
    return blocks.decoder(
        config,
        section=section,
        heads=as_heads(latent),
        layers=crossed(kinds, mixers, bodies, tuple(around)),
        intermediate_size=intermediate,
        every=image_encoder(encoder, hidden),
        last=(*last, blocks.head(section)),
        tied=False,
        rotary_tables=(),
        layer_prefix="language_model.model.layers",
        moe=moe,
        vision=arch.VisionEncoder(
            hidden_size=encoder.integer("vt_hidden_size"),
            intermediate_size=encoder.integer("vt_intermediate_size"),
            max_tokens_per_item=MAX_PATCHES // 4,
            patches_per_token=4,
        ),
        is_multimodal=True,
        is_mla=True,
    )


def residual(prefix: str, hidden: int) -> tuple[arch.Module, ...]:
    """Weights of the outputs of earlier blocks of layers: a norm and one vector."""
    return (
        blocks.norm(f"{prefix}_norm", hidden),
        blocks.replicated(f"{prefix}_proj", hidden, 1, quantizable=False),
    )


def k3_experts(section: Section, hidden: int, moe: arch.MixtureOfExperts) -> tuple[arch.Module, ...]:
    """Router, shared experts, and routed ones between a way down and a way up that every rank stores whole.

    Source: vllm/models/kimi_k3/nvidia/model.py:KimiMoE (0.32).
    """
    inner = section.optional_integer("routed_expert_hidden_size", minimum=1)
    ways: list[arch.Module] = []
    if inner is not None:
        prefix = f"{K3_EXPERTS.prefix}.routed_expert"
        ways.append(blocks.replicated(f"{prefix}_down_proj", hidden, inner, quantizable=False))
        ways.append(blocks.replicated(f"{prefix}_up_proj", inner, hidden, quantizable=False))
        if section.boolean("latent_moe_use_norm", False):
            ways.append(blocks.norm(f"{prefix}_norm", inner))
    return latent_experts(K3_EXPERTS, section, hidden, moe, inner, *ways)


def image_encoder(section: Section, text_hidden_size: int) -> tuple[arch.Module, ...]:
    """MoonViT with RMS norms and no biases, its heads together wider than the model, and a projector of two layers.

    Source: vllm/model_executor/models/kimi_k25_vit.py:MoonViT3dPretrainedModel, KimiK25MultiModalProjector (0.32).
    """
    kind = section.string("mm_projector_type", "patchmergerv2")
    if kind != "patchmergerv2":
        raise section.invalid("mm_projector_type", kind, "expected patchmergerv2")
    attended, count = section.integer("qkv_hidden_size", 1536), section.integer("vt_num_attention_heads")
    if attended % count:
        raise section.contradicting("qkv_hidden_size", f"{attended} is not divisible by {count} heads")
    keys = ("vt_hidden_size", "vt_intermediate_size", "vt_num_attention_heads", "vt_num_hidden_layers")
    own = enc.read_sizes(section, *keys, head=attended // count)
    rows, columns = enc.pair(section, "merge_kernel_size", 2)
    width, grouped = own.width, own.width * rows * columns
    bias = section.boolean("linear_bias", False)
    is_layer_norm = section.string("norm_type", "rmsnorm") == "layernorm"
    qkv_bias = section.boolean("attn_bias", False)
    names = replace(enc.MOONVIT, qkv="wqkv", parts=())
    layers = (
        *enc.norms(own, names, bias=is_layer_norm),
        *enc.attention(own, names, bias=qkv_bias, out_bias=qkv_bias),
        *enc.mlp(own, names, bias=bias),
    )
    height, breadth = (section.integer(f"init_pos_emb_{side}", 64) for side in ("height", "width"))
    patch = 3 * section.integer("patch_size") ** 2 + section.boolean("patch_embed_proj_bias", False)
    return (
        enc.tensor("vision_tower.patch_embed.proj", patch, width),
        enc.tensor("vision_tower.patch_embed.pos_emb", height, breadth, width),
        blocks.norm("vision_tower.encoder.final_layernorm", width, bias=is_layer_norm),
        blocks.replicated("mm_projector.linear_1", grouped, grouped),
        blocks.replicated("mm_projector.linear_2", grouped, text_hidden_size),
        enc.tensor("mm_projector.post_norm", text_hidden_size),
        *enc.repeated(
            "vision_tower.encoder.blocks", own.layers, enc.changed(layers, whole_unless_divided=own.heads)
        ),
    )


def read_alice(config: ModelConfig) -> arch.Architecture:
    """Alice AI: KDA and gated attention, experts in every layer, weights of the outputs of earlier blocks.

    Source: vllm/model_executor/models/alice_ai.py,
    vllm/model_executor/layers/mamba/gdn/kimi_gdn_linear_attn.py:KimiGatedDeltaNetAttention (0.33).
    """
    section = config.language
    heads, hidden = blocks.read_heads(section), section.integer("hidden_size")
    sizes = {
        "num_heads": section.integer("linear_num_key_heads"),
        "head_dim": section.integer("linear_key_head_dim"),
        "short_conv_kernel_size": section.integer("linear_conv_kernel_dim"),
    }
    for key, same in (("linear_num_value_heads", "num_heads"), ("linear_value_head_dim", "head_dim")):
        if section.integer(key, sizes[same]) != sizes[same]:
            raise section.contradicting(key, "keys and values differ, which the engine refuses")
    plain = {
        LINEAR: kda(Section(sizes, section.path), hidden),
        FULL: arch.Layer(modules=gated_attention(section, heads), caches=(blocks.cache_of(heads),)),
    }
    kinds = section.words("layer_types", (LINEAR, FULL), section.layers())
    if kinds is None:
        raise section.missing("layer_types")
    first, others = residual("mlp_res", hidden), residual("attn_res", hidden)
    mixers = by_kind(
        ((kind, index == 0) for index, kind in enumerate(kinds)),
        lambda kind: with_modules(plain[kind[0]], *first, *(() if kind[1] else others)),
    )
    row = DECODERS["alice_ai"]
    width = section.optional_integer("intermediate_size", minimum=1)
    built = read_decoder(row, config, heads=heads, mixers=mixers, width=width)
    last = (*built.last, *residual("model.attnres_final.res", hidden))
    return dataclasses.replace(built, last=last)


READERS: Final = by_row({"kimi_linear": read_linear, "kimi_k3": read_k3, "alice_ai": read_alice})
