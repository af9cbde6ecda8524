"""Kimi Linear and K3: KDA, a delta net with a gate for each channel, with latent attention; experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.architecture import RecurrentState
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts import blocks
from kvcore.model.parts.experts import (
    BLOCK_SPARSE,
    CORRECTED_FIRST,
    ExpertTraits,
    expert_modules,
    optional_moe,
    read_moe,
    shared_experts,
)
from kvcore.model.parts.latent import Latent, as_heads, heads_column, latent_layer, read_latent
from kvcore.model.parts.mixers import kda_state, read_conv_kernel
from kvcore.model.parts.pattern import by_kind, sparse_by_frequency


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
    latent = read_latent(section)
    linear = section.section("linear_attn_config")
    moe = optional_moe(EXPERTS, section)
    sparse = sparse_by_frequency(section) if moe else (False,) * section.layers()
    kda = frozenset(linear.integers("kda_layers", minimum=1) or ())
    kinds = ((index + 1 in kda, has_experts) for index, has_experts in enumerate(sparse))
    layers = by_kind(
        kinds, lambda kind: linear_layer(section, latent, moe if kind[1] else None, is_kda=kind[0])
    )
    return blocks.decoder(
        config,
        heads=as_heads(latent),
        layers=layers,
        intermediate_size=section.integer("intermediate_size"),
        tied=section.boolean("tie_word_embeddings", False),
        rotary_tables=(),
        moe=moe,
        is_mla=True,
    )


EXPERTS: Final = ExpertTraits(
    top_k_key=("num_experts_per_token", "num_experts_per_tok"),
    shared_count_key="num_shared_experts",
    prefix=BLOCK_SPARSE,
    correction_bias=True,
    correction_dtype="",
    order=CORRECTED_FIRST,
)


def linear_layer(
    section: Section, latent: Latent, moe: arch.MixtureOfExperts | None, *, is_kda: bool
) -> arch.Layer:
    """One layer of Kimi Linear."""
    linear, hidden = section.section("linear_attn_config"), latent.hidden_size
    if moe is not None:
        body = expert_modules(EXPERTS, section, hidden, moe)
    else:
        body = blocks.gated_mlp(hidden, section.integer("intermediate_size"))
    around = (*body, *blocks.norms(hidden, *blocks.TWO_NORMS))
    if not is_kda:
        return latent_layer(latent, *around)
    return arch.Layer(modules=(*kda_modules(linear, hidden), *around), caches=(kda_cache(linear),))


def kda_modules(linear: Section, hidden: int) -> tuple[arch.Module, ...]:
    """Projections, three float32 convolutions, decay and output gates of low rank."""
    heads, width = linear.integer("num_heads"), linear.integer("head_dim")
    kernel, size = read_conv_kernel(linear, "short_conv_kernel_size"), heads * width
    return (
        *(heads_column(f"self_attn.{part}_proj", hidden, heads, width) for part in "qkv"),
        *(
            arch.Linear(
                name=f"self_attn.{part}_conv1d",
                in_features=kernel,
                outputs=(arch.Output(units=heads, width=width),),
                split=arch.Split.COLUMN,
                quantizable=False,
                dtype="float32",
            )
            for part in "qkv"
        ),
        blocks.replicated("self_attn.f_a_proj", hidden, width),
        heads_column("self_attn.f_b_proj", width, heads, width),
        blocks.column("self_attn.b_proj", hidden, heads),
        blocks.replicated("self_attn.g_a_proj", hidden, width),
        heads_column("self_attn.g_b_proj", width, heads, width),
        arch.Parameter(name="self_attn.dt_bias", sharded=size, dtype="float32"),
        arch.Parameter(name="self_attn.A_log", sharded=heads, dtype="float32"),
        blocks.norm("self_attn.o_norm", width),
        blocks.row("self_attn.o_proj", size, hidden),
    )


def kda_cache(linear: Section) -> RecurrentState:
    """What a KDA layer keeps."""
    kernel = read_conv_kernel(linear, "short_conv_kernel_size")
    return kda_state(linear.integer("num_heads"), linear.integer("head_dim"), kernel)


KDA_ROWS: Final = 16
"""Source: vllm/models/kimi_k3/nvidia/kda.py:KimiK3DeltaAttention (0.32), for weights in 16 bits."""

MAX_PATCHES: Final = 16_384
"""Of the largest image. Source: preprocessor_config.json of Kimi-K2.5, in_patch_limit."""


K3_EXPERTS: Final = replace(EXPERTS, correction_dtype="float32", shared_whole=True)


def read_k3(config: ModelConfig) -> arch.Architecture:
    """Kimi K3.

    Source: vllm/models/kimi_k3/nvidia/model.py (0.32).
    """
    section, vision = config.language, config.root.section("vision_config")
    hidden, latent = section.integer("hidden_size"), read_latent(section)
    linear = section.section("linear_attn_config")
    if not linear.boolean("use_full_rank_gate", False):
        raise linear.invalid("use_full_rank_gate", False, "expected true, as in Kimi K3")
    moe = read_moe(K3_EXPERTS, section)
    kda = frozenset(linear.integers("kda_layers", minimum=1) or ())
    kinds = ((index + 1 in kda, is_sparse) for index, is_sparse in enumerate(sparse_by_frequency(section)))
    layers = by_kind(
        kinds, lambda kind: k3_layer(section, linear, latent, moe, is_kda=kind[0], is_sparse=kind[1])
    )
    has_residuals = section.optional_integer("attn_res_block_size") is not None
    built = blocks.decoder(
        config,
        section=section,
        heads=as_heads(latent),
        layers=layers,
        intermediate_size=section.integer("intermediate_size"),
        last=(
            blocks.norm("model.norm", hidden),
            *(residual("model.output_attn_res", hidden) if has_residuals else ()),
            blocks.head(section),
        ),
        tied=False,
        rotary_tables=(),
        layer_prefix="language_model.model.layers",
        moe=moe,
        vision=arch.VisionEncoder(
            hidden_size=vision.integer("vt_hidden_size"),
            intermediate_size=vision.integer("vt_intermediate_size"),
            max_tokens_per_item=MAX_PATCHES // 4,
            patches_per_token=4,
        ),
        is_multimodal=True,
    )
    return replace(built, is_mla=True, every=encoder(vision, hidden))


def k3_layer(
    section: Section,
    linear: Section,
    latent: Latent,
    moe: arch.MixtureOfExperts,
    *,
    is_kda: bool,
    is_sparse: bool,
) -> arch.Layer:
    """One layer."""
    hidden = latent.hidden_size
    modules: list[arch.Module] = [*blocks.norms(hidden, *blocks.TWO_NORMS)]
    if section.optional_integer("attn_res_block_size") is not None:
        modules += (*residual("self_attention_res", hidden), *residual("mlp_res", hidden))
    if is_sparse:
        modules += k3_experts(section, hidden, moe)
    else:
        modules += blocks.gated_mlp(hidden, section.integer("intermediate_size"))
    if is_kda:
        mixer = full_rank_kda(linear, hidden)
        return arch.Layer(modules=(*mixer, *modules), caches=(kda_cache(linear),))
    gate: tuple[arch.Module, ...] = ()
    if section.boolean("mla_use_output_gate", False):
        gate = (heads_column("self_attn.g_proj", hidden, latent.num_heads, latent.v_head_dim),)
    return latent_layer(latent, *gate, *modules)


def residual(prefix: str, hidden: int) -> tuple[arch.Module, ...]:
    """What weighs the outputs of earlier blocks of layers: a norm and one vector."""
    return (
        blocks.norm(f"{prefix}_norm", hidden),
        blocks.replicated(f"{prefix}_proj", hidden, 1, quantizable=False),
    )


def full_rank_kda(linear: Section, hidden: int) -> tuple[arch.Module, ...]:
    """KDA whose projections of the input are one, with an output gate as wide as the values and a decay that each
    rank stores whole.

    Source: vllm/models/kimi_k3/nvidia/kda.py:KimiK3DeltaAttention (0.32).
    """
    heads, width = linear.integer("num_heads"), linear.integer("head_dim")
    names = ("q_proj", "k_proj", "v_proj", "g_proj", "f_a_proj", "b_proj")
    fused = arch.Linear(
        name="self_attn.in_proj_qkvgfab",
        in_features=hidden,
        outputs=(
            *(arch.Output(units=heads, width=width),) * 4,
            arch.Output(units=1, width=width, replicable=True),
            arch.Output(units=heads),
        ),
        split=arch.Split.COLUMN,
        parts=tuple(f"self_attn.{name}" for name in names),
        row_multiple=KDA_ROWS,
    )
    apart = {*fused.parts, "self_attn.g_a_proj", "self_attn.g_b_proj"}
    return (fused, *(module for module in kda_modules(linear, hidden) if module.name not in apart))


def k3_experts(section: Section, hidden: int, moe: arch.MixtureOfExperts) -> tuple[arch.Module, ...]:
    """Router, shared experts, and routed ones between a way down and a way up that every rank stores whole.

    Source: vllm/models/kimi_k3/nvidia/model.py:KimiMoE (0.32).
    """
    latent = section.optional_integer("routed_expert_hidden_size", minimum=1)
    routed = replace(moe, shared_intermediate_size=0)
    modules = [*expert_modules(K3_EXPERTS, section, hidden, routed, inner_size=latent)]
    if latent is not None:
        modules += (
            blocks.replicated(f"{BLOCK_SPARSE}.routed_expert_down_proj", hidden, latent, quantizable=False),
            blocks.replicated(f"{BLOCK_SPARSE}.routed_expert_up_proj", latent, hidden, quantizable=False),
        )
        if section.boolean("latent_moe_use_norm", False):
            modules.append(blocks.norm(f"{BLOCK_SPARSE}.routed_expert_norm", latent))
    if moe.shared_intermediate_size:
        modules += shared_experts(K3_EXPERTS, hidden, moe.shared_intermediate_size)
    return tuple(modules)


def encoder(vision: Section, text_hidden_size: int) -> tuple[arch.Module, ...]:
    """MoonViT with RMS norms and no biases, its heads together wider than the model, and a projector of two layers.

    Source: vllm/model_executor/models/kimi_k25_vit.py:MoonViT3dPretrainedModel, KimiK25MultiModalProjector (0.32).
    """
    kind = vision.string("mm_projector_type", "patchmergerv2")
    if kind != "patchmergerv2":
        raise vision.invalid("mm_projector_type", kind, "expected patchmergerv2")
    width, inner = vision.integer("vt_hidden_size"), vision.integer("vt_intermediate_size")
    patch, count = vision.integer("patch_size"), vision.integer("vt_num_attention_heads")
    attended = vision.integer("qkv_hidden_size", 1536)
    if attended % count:
        raise vision.contradicting("qkv_hidden_size", f"{attended} is not divisible by {count} heads")
    heads = blocks.Heads(hidden_size=width, num_heads=count, num_kv_heads=count, head_dim=attended // count)
    merge = vision.integers("merge_kernel_size", minimum=1) or (2, 2)
    if len(merge) != 2:
        raise vision.invalid("merge_kernel_size", merge, "expected two numbers")
    merged = width * merge[0] * merge[1]
    attention_bias, bias = vision.boolean("attn_bias", False), vision.boolean("linear_bias", False)
    has_layer_norm = vision.string("norm_type", "rmsnorm") == "layernorm"
    positions = vision.integer("init_pos_emb_height", 64) * vision.integer("init_pos_emb_width", 64)
    pixels = 3 * patch**2 + vision.boolean("patch_embed_proj_bias", False)
    modules: list[arch.Module] = [
        arch.Parameter(name="vision_tower.patch_embed.proj", replicated=pixels * width),
        arch.Parameter(name="vision_tower.patch_embed.pos_emb", replicated=positions * width),
        blocks.norm("vision_tower.encoder.final_layernorm", width, bias=has_layer_norm),
        blocks.replicated("mm_projector.linear_1", merged, merged),
        blocks.replicated("mm_projector.linear_2", merged, text_hidden_size),
        blocks.norm("mm_projector.post_norm", text_hidden_size),
    ]
    for index in range(vision.layers("vt_num_hidden_layers")):
        block = f"vision_tower.encoder.blocks.{index}"
        divided = blocks.whole_unless_divided(
            count,
            blocks.qkv(heads, f"{block}.wqkv", (), bias=attention_bias),
            blocks.row(f"{block}.wo", attended, width, bias=attention_bias),
            *blocks.plain_mlp(width, inner, f"{block}.mlp.fc0", f"{block}.mlp.fc1", bias=bias),
        )
        modules += (
            blocks.norm(f"{block}.norm0", width, bias=has_layer_norm),
            blocks.norm(f"{block}.norm1", width, bias=has_layer_norm),
            *divided,
        )
    return tuple(modules)


READERS: Final = blocks.named(
    (read_linear, "KimiLinearForCausalLM", "kimi_linear"),
    (read_k3, "KimiK3ForConditionalGeneration", "kimi_k3"),
)
