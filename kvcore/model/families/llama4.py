"""Llama 4: chunked attention on most layers, full on the others, experts on every n-th."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model import architecture as arch
from kvcore.model.architecture import CacheState, ChunkedLocal
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts import blocks
from kvcore.model.parts import vision as image
from kvcore.model.parts.experts import ExpertTraits, expert_modules, read_moe
from kvcore.model.parts.pattern import by_kind

LLAMA4_EXPERTS: Final = ExpertTraits(
    experts_key="num_local_experts",
    intermediate_key="intermediate_size",
    shared_count=1,
    shared_width_key="intermediate_size",
    prefix="feed_forward",
    router="router",
    shared="shared_expert",
    shared_whole=True,
)


def read_llama4(config: ModelConfig) -> arch.Architecture:
    """Llama 4: chunked attention on layers with rotary positions, full on the others; experts every n-th layer.

    Source: vllm/model_executor/models/llama4.py, mllama4.py (0.32).
    """
    section = config.language
    heads = blocks.read_heads(section)
    hidden = heads.hidden_size
    moe = read_moe(LLAMA4_EXPERTS, section)
    count = section.layers()
    step = section.integer("interleave_moe_layer_step", 1, minimum=0)
    written = section.integers("no_rope_layers") or ()
    interval = section.integer("no_rope_layer_interval", 4)
    rotary = written[:count] or tuple(int((index + 1) % interval != 0) for index in range(count))
    if len(rotary) < count:
        raise section.contradicting("no_rope_layers", f"{len(rotary)} entries for {count} layers")
    kinds = ((bool(rotary[index]), step > 0 and (index + 1) % step == 0) for index in range(count))
    layers = by_kind(
        kinds, lambda kind: llama4_layer(section, heads, moe, is_local=kind[0], is_sparse=kind[1])
    )
    vision = config.root.optional_section("vision_config", "llama4_vision_model")
    tied = section.boolean("tie_word_embeddings", False)
    built = blocks.decoder(
        config,
        heads=heads,
        layers=layers,
        intermediate_size=section.integer("intermediate_size_mlp"),
        tied=tied,
        layer_prefix="model.layers" if vision is None else "language_model.model.layers",
        moe=moe,
        is_multimodal=vision is not None,
    )
    return built if vision is None else replace(built, every=llama4_vision(vision, hidden))


def llama4_layer(
    section: Section, heads: blocks.Heads, moe: arch.MixtureOfExperts, *, is_local: bool, is_sparse: bool
) -> arch.Layer:
    """One layer of Llama 4."""
    hidden = heads.hidden_size
    if is_sparse:
        body = expert_modules(LLAMA4_EXPERTS, section, hidden, moe)
    else:
        body = blocks.gated_mlp(hidden, section.integer("intermediate_size_mlp"), "feed_forward")
    chunk = section.optional_integer("attention_chunk_size")
    cache: CacheState = blocks.cache_of(heads)
    if is_local and chunk:
        cache = ChunkedLocal(
            num_kv_heads=heads.num_kv_heads,
            head_size=heads.head_dim,
            head_size_v=heads.head_dim,
            attention_chunk_size=chunk,
        )
    return arch.Layer(
        modules=(*blocks.attention(heads), *body, *blocks.norms(hidden, *blocks.TWO_NORMS)), caches=(cache,)
    )


LLAMA4: Final = image.Block(
    qkv="self_attn.qkv_proj", out="self_attn.o_proj", norms=("input_layernorm", "post_attention_layernorm")
)


def llama4_vision(vision: Section, text: int) -> tuple[arch.Module, ...]:
    """Llama 4's vision model and projector.

    Source: vllm/model_executor/models/mllama4.py (0.32).
    """
    width, intermediate = vision.integer("hidden_size"), vision.integer("intermediate_size")
    patch, prefix = vision.integer("patch_size"), "vision_model"
    positions = (vision.integer("image_size") // patch) ** 2 + 1
    pixels = vision.integer("num_channels", 3) * patch**2
    inner, outer = vision.integer("projector_input_dim"), vision.integer("projector_output_dim")
    bias = vision.boolean("multi_modal_projector_bias", False)
    heads = image.heads_of(width, vision.integer("num_attention_heads"))
    return (
        blocks.column(f"{prefix}.patch_embedding.linear", pixels, width),
        arch.Parameter(name=f"{prefix}.class_embedding", replicated=width),
        image.table(f"{prefix}.positional_embedding_vlm", positions, width),
        blocks.norm(f"{prefix}.layernorm_pre", width, bias=True),
        blocks.norm(f"{prefix}.layernorm_post", width, bias=True),
        *image.sharded_pair(
            f"{prefix}.vision_adapter.mlp", intermediate, inner, outer, ("fc1", "fc2"), bias=bias
        ),
        blocks.column("multi_modal_projector.linear_1", vision.integer("vision_output_dim"), text),
        *image.blocks(LLAMA4, f"{prefix}.model.layers", vision.layers(), heads, intermediate),
    )


READERS: Final = blocks.named(
    (read_llama4, "Llama4ForCausalLM", "Llama4ForConditionalGeneration", "llama4", "llama4_text"),
)
