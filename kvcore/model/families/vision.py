"""Vision towers and projectors, as the engine builds them: sharded over tensor parallel ranks like a decoder.

Every pipeline stage holds the whole tower. Patch and position tables are replicated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvcore.model.architecture import Linear, Module, Parameter, RotaryTable, VisionEncoder
from kvcore.model.config import MAX_LAYERS, Section
from kvcore.model.families.towers import read_siglip
from kvcore.model.parts.blocks import (
    Heads,
    column,
    gated_mlp,
    norm,
    plain_mlp,
    qkv,
    replicated,
    row,
    with_kv_heads,
)
from kvcore.model.rope import Rope

VISION_ROPE_POSITIONS = 8192
"""Source: vllm/model_executor/models/qwen2_vl.py:Qwen2VisionTransformer (0.32)."""

QWEN_MAX_TOKENS = 16_384
"""Tokens of the largest image: 12,845,056 pixels / 28². Source: preprocessor_config.json of Qwen2-VL-7B-Instruct."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tower:
    """A vision tower with its projector."""

    modules: tuple[Module, ...]
    encoder: VisionEncoder
    tables: tuple[RotaryTable, ...] = ()


def square_heads(section: Section, hidden: int, num_heads: int) -> Heads:
    """The heads of an encoder: as many KV heads as heads."""
    if hidden % num_heads:
        raise section.contradicting(
            "hidden_size", f"{hidden} is not divisible by {num_heads} attention heads"
        )
    return Heads(
        hidden_size=hidden, num_heads=num_heads, num_kv_heads=num_heads, head_dim=hidden // num_heads
    )


def encoder_attention(heads: Heads, prefix: str, *, fused: str, out: str, bias: bool) -> tuple[Linear, ...]:
    """Attention of one encoder block."""
    return (
        qkv(heads, f"{prefix}.{fused}", bias=bias),
        row(f"{prefix}.{out}", heads.hidden_size, heads.hidden_size, bias=bias),
    )


def convolution(
    name: str, in_channels: int, out_channels: int, kernel: Iterable[int], *, bias: bool
) -> Parameter:
    """A patch convolution, replicated."""
    elements = in_channels * out_channels
    for size in kernel:
        elements *= size
    return Parameter(name=name, replicated=elements + (out_channels if bias else 0))


def table(name: str, rows: int, columns: int) -> Parameter:
    """A position table, replicated."""
    return Parameter(name=name, replicated=rows * columns)


def patches_per_side(section: Section, image_size: int, patch_size: int) -> int:
    """Patches along one side of the square input image."""
    if image_size < patch_size:
        raise section.contradicting("image_size", f"an image of {image_size} has no patch of {patch_size}")
    return image_size // patch_size


def clip(
    section: Section,
    layers: int,
    prefix: str = "vision_tower.vision_model",
    *,
    blocks: str = "encoder",
    has_last_norm: bool = True,
) -> tuple[Module, ...]:
    """CLIP up to `layers` blocks; the norm behind all of them, where there is one.

    Source: vllm/model_executor/models/clip.py (0.32).
    """
    hidden, intermediate = section.integer("hidden_size"), section.integer("intermediate_size")
    heads = square_heads(section, hidden, section.integer("num_attention_heads"))
    patch = section.integer("patch_size", maximum=4096)
    side = patches_per_side(section, section.integer("image_size"), patch)
    channels = section.integer("num_channels", 3, maximum=64)
    modules: list[Module] = [
        Parameter(name=f"{prefix}.embeddings.class_embedding", replicated=hidden),
        convolution(f"{prefix}.embeddings.patch_embedding", channels, hidden, (patch, patch), bias=False),
        table(f"{prefix}.embeddings.position_embedding", side * side + 1, hidden),
        norm(f"{prefix}.pre_layrnorm", hidden, bias=True),
    ]
    for index in range(layers):
        modules += transformer_block(heads, intermediate, f"{prefix}.{blocks}.layers.{index}")
    if has_last_norm and layers == section.layers():
        modules.append(norm(f"{prefix}.post_layernorm", hidden, bias=True))
    return tuple(modules)


def siglip(section: Section, layers: int, prefix: str = "vision_tower.vision_model") -> tuple[Module, ...]:
    """SigLIP up to `layers` blocks, without its pooling head."""
    return read_siglip(section, f"{prefix}.", layers)


def transformer_block(heads: Heads, intermediate: int, prefix: str) -> tuple[Module, ...]:
    """A CLIP block."""
    return (
        *encoder_attention(heads, f"{prefix}.self_attn", fused="qkv_proj", out="out_proj", bias=True),
        *plain_mlp(heads.hidden_size, intermediate, f"{prefix}.mlp.fc1", f"{prefix}.mlp.fc2", bias=True),
        norm(f"{prefix}.layer_norm1", heads.hidden_size, bias=True),
        norm(f"{prefix}.layer_norm2", heads.hidden_size, bias=True),
    )


def pixtral(section: Section, layers: int, prefix: str = "vision_tower") -> tuple[Module, ...]:
    """Pixtral in its Hugging Face layout up to `layers` blocks.

    Source: vllm/model_executor/models/pixtral.py:PixtralHFVisionModel (0.32).
    """
    hidden, intermediate = section.integer("hidden_size"), section.integer("intermediate_size")
    heads = square_heads(section, hidden, section.integer("num_attention_heads"))
    patch = section.integer("patch_size", maximum=4096)
    channels = section.integer("num_channels", 3, maximum=64)
    modules: list[Module] = [
        convolution(f"{prefix}.patch_conv", channels, hidden, (patch, patch), bias=False),
        norm(f"{prefix}.ln_pre", hidden),
    ]
    for index in range(layers):
        block = f"{prefix}.transformer.layers.{index}"
        modules += encoder_attention(heads, f"{block}.attention", fused="qkv_proj", out="o_proj", bias=False)
        modules += gated_mlp(hidden, intermediate, f"{block}.feed_forward")
        modules += (norm(f"{block}.attention_norm", hidden), norm(f"{block}.ffn_norm", hidden))
    return tuple(modules)


def qwen2_tower(section: Section) -> Tower:
    """Qwen2-VL: plain MLPs, layer norms; `hidden_size` is the language model's.

    Source: vllm/model_executor/models/qwen2_vl.py:Qwen2VisionTransformer (0.32).
    """
    width, out = section.integer("embed_dim"), section.integer("hidden_size")
    intermediate = int(width * section.number("mlp_ratio"))
    heads = square_heads(section, width, section.integer("num_heads"))
    modules: list[Module] = [patch_embed(section, width, bias=False)]
    for index in range(section.layers("depth")):
        block = f"visual.blocks.{index}"
        modules += encoder_attention(heads, f"{block}.attn", fused="qkv", out="proj", bias=True)
        modules += plain_mlp(width, intermediate, f"{block}.mlp.fc1", f"{block}.mlp.fc2", bias=True)
        modules += (norm(f"{block}.norm1", width, bias=True), norm(f"{block}.norm2", width, bias=True))
    modules += merger(section, width, out, norm("visual.merger.ln_q", width, bias=True))
    return qwen_tower(section, modules, width, intermediate, heads)


def qwen2_5_tower(section: Section) -> Tower:
    """Qwen2.5-VL: gated MLPs with biases, RMS norms; EXAONE 4.5's has fewer KV heads.

    Source: vllm/model_executor/models/qwen2_5_vl.py:Qwen2_5_VisionTransformer, exaone4_5.py (0.32).
    """
    width, intermediate = section.integer("hidden_size"), section.integer("intermediate_size")
    heads = square_heads(section, width, section.integer("num_heads"))
    heads = with_kv_heads(section, heads, section.optional_integer("num_key_value_heads"))
    modules: list[Module] = [patch_embed(section, width, bias=False)]
    for index in range(section.layers("depth")):
        block = f"visual.blocks.{index}"
        modules += encoder_attention(heads, f"{block}.attn", fused="qkv", out="proj", bias=True)
        modules += gated_mlp(width, intermediate, f"{block}.mlp", bias=True)
        modules += (norm(f"{block}.norm1", width), norm(f"{block}.norm2", width))
    modules += merger(section, width, section.integer("out_hidden_size"), norm("visual.merger.ln_q", width))
    return qwen_tower(section, modules, width, intermediate, heads)


def qwen3_tower(section: Section) -> Tower:
    """Qwen3-VL: a position table, plain MLPs, and further mergers that feed the first decoder layers.

    Source: vllm/model_executor/models/qwen3_vl.py:Qwen3_VisionTransformer (0.32).
    """
    width, intermediate = section.integer("hidden_size"), section.integer("intermediate_size")
    out = section.integer("out_hidden_size")
    heads = square_heads(section, width, section.integer("num_heads"))
    merged = width * section.integer("spatial_merge_size", maximum=64) ** 2
    modules: list[Module] = [
        patch_embed(section, width, bias=True),
        table("visual.pos_embed", section.integer("num_position_embeddings"), width),
    ]
    for index in range(section.layers("depth")):
        block = f"visual.blocks.{index}"
        modules += encoder_attention(heads, f"{block}.attn", fused="qkv", out="proj", bias=True)
        modules += plain_mlp(
            width, intermediate, f"{block}.mlp.linear_fc1", f"{block}.mlp.linear_fc2", bias=True
        )
        modules += (norm(f"{block}.norm1", width, bias=True), norm(f"{block}.norm2", width, bias=True))
    names = ["visual.merger"]
    deep = section.integers("deepstack_visual_indexes") or ()
    names += [f"visual.deepstack_merger_list.{index}" for index in range(len(deep))]
    for name in names:
        modules.append(norm(f"{name}.norm", width if name == "visual.merger" else merged, bias=True))
        modules.append(column(f"{name}.linear_fc1", merged, merged, bias=True))
        modules.append(row(f"{name}.linear_fc2", merged, out, bias=True))
    tower = qwen_tower(section, modules, width, intermediate, heads)
    return replace(tower, encoder=replace(tower.encoder, deepstack_levels=len(deep)))


def glm4v_tower(section: Section) -> Tower:
    """GLM-4.1V: its blocks are as wide as `out_hidden_size`, its merger as `intermediate_size`.

    Source: vllm/model_executor/models/glm4_1v.py:Glm4vVisionTransformer (0.32).
    """
    width, out = section.integer("hidden_size"), section.integer("out_hidden_size")
    intermediate = section.integer("intermediate_size")
    heads = square_heads(section, width, section.integer("num_heads"))
    side = patches_per_side(section, section.integer("image_size"), section.integer("patch_size"))
    merge = section.integer("spatial_merge_size", maximum=64)
    modules: list[Module] = [
        patch_embed(section, width, bias=True),
        table("visual.embeddings.position_embedding", side * side, width),
        norm("visual.post_conv_layernorm", width),
        norm("visual.post_layernorm", width),
        convolution("visual.downsample", width, out, (merge, merge), bias=True),
        column("visual.merger.proj", out, out),
        norm("visual.merger.post_projection_norm", out, bias=True),
        *gated_mlp(out, intermediate, "visual.merger"),
    ]
    for index in range(section.layers("depth")):
        block = f"visual.blocks.{index}"
        modules += encoder_attention(heads, f"{block}.attn", fused="qkv", out="proj", bias=False)
        modules += gated_mlp(width, out, f"{block}.mlp")
        modules += (norm(f"{block}.norm1", width), norm(f"{block}.norm2", width))
    return qwen_tower(section, modules, width, out, heads)


def patch_embed(section: Section, width: int, *, bias: bool) -> Parameter:
    """The patch convolution over time and both sides."""
    patch = section.integer("patch_size", maximum=4096)
    kernel = (section.integer("temporal_patch_size", 2, maximum=64), patch, patch)
    channels = section.integer("in_channels", 3, maximum=64)
    return convolution("visual.patch_embed.proj", channels, width, kernel, bias=bias)


def merger(section: Section, width: int, out: int, first_norm: Parameter) -> tuple[Module, ...]:
    """What turns a square of patches into one token."""
    merged = width * section.integer("spatial_merge_size", maximum=64) ** 2
    return (
        first_norm,
        column("visual.merger.mlp.0", merged, merged, bias=True),
        row("visual.merger.mlp.2", merged, out, bias=True),
    )


def qwen_tower(section: Section, modules: list[Module], width: int, intermediate: int, heads: Heads) -> Tower:
    """A tower with the rotary table and the limits that all of Qwen's share."""
    merge = section.integer("spatial_merge_size", maximum=64)
    return Tower(
        modules=tuple(modules),
        encoder=VisionEncoder(
            hidden_size=width,
            intermediate_size=intermediate,
            max_tokens_per_item=QWEN_MAX_TOKENS,
            patches_per_token=merge * merge,
        ),
        tables=(Rope(partial_rotary_factor=0.5).table(heads.head_dim, VISION_ROPE_POSITIONS),),
    )


def llava_projector(prefix: str, vision: int, text: int, *, bias: bool) -> tuple[Module, ...]:
    """Two linear layers, divided over the ranks.

    Source: vllm/model_executor/models/llava.py:LlavaMultiModalProjector (0.32).
    """
    return (
        column(f"{prefix}.linear_1", vision, text, bias=bias),
        row(f"{prefix}.linear_2", text, text, bias=bias),
    )


def feature_layers(root: Section, vision: Section, default: int = -2) -> int:
    """How many blocks of the tower are built: up to the deepest layer whose features are used.

    Source: vllm/model_executor/models/llava.py:_get_num_hidden_layers (0.32).
    """
    total = vision.layers()
    wanted = root.get("vision_feature_layer")
    chosen = (default,) if wanted is None else wanted if isinstance(wanted, list | tuple) else (wanted,)
    counts = []
    for index in chosen:
        if isinstance(index, bool) or not isinstance(index, int) or not -MAX_LAYERS <= index <= MAX_LAYERS:
            raise root.invalid("vision_feature_layer", index, "expected an integer or a list of them")
        counts.append(total + index + 1 if index < 0 else index)
    if not counts or not 0 < max(counts) <= total:
        raise root.contradicting("vision_feature_layer", f"the tower has {total} layers")
    return max(counts)


def patch_merger_linear(name: str, width: int, merge: int) -> Linear:
    """A replicated projection of a square of patches to one."""
    return replicated(name, width * merge * merge, width, quantizable=False)


def q_former(section: Section, prefix: str) -> tuple[Module, ...]:
    """A Q-Former, whole on every rank: queries that attend to themselves and, every so many blocks, to the encoder.

    Source: vllm/model_executor/models/blip2.py:Blip2QFormerModel (0.32).
    """
    width, intermediate = section.integer("hidden_size"), section.integer("intermediate_size")
    encoder, period = section.integer("encoder_hidden_size"), section.integer("cross_attention_frequency")
    modules: list[Module] = [norm(f"{prefix}.layernorm", width, bias=True)]
    for index in range(section.layers()):
        block = f"{prefix}.encoder.layer.{index}"
        sources = {"attention": width} | ({"crossattention": encoder} if index % period == 0 else {})
        for name, source in sources.items():
            modules += (
                replicated(f"{block}.{name}.attention.query", width, width, bias=True, quantizable=False),
                replicated(f"{block}.{name}.attention.key", source, width, bias=True, quantizable=False),
                replicated(f"{block}.{name}.attention.value", source, width, bias=True, quantizable=False),
                replicated(f"{block}.{name}.output.dense", width, width, bias=True, quantizable=False),
                norm(f"{block}.{name}.output.LayerNorm", width, bias=True),
            )
        modules += (
            replicated(
                f"{block}.intermediate_query.dense", width, intermediate, bias=True, quantizable=False
            ),
            replicated(f"{block}.output_query.dense", intermediate, width, bias=True, quantizable=False),
            norm(f"{block}.output_query.LayerNorm", width, bias=True),
        )
    return tuple(modules)
