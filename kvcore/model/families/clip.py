"""CLIP, SigLIP and SigLIP 2: as encoders of other models, and as models of their own that embed texts and images.

As models, a transformer for texts stands next to one for images. CLIP's texts are read forwards, so their keys and
values are kept; SigLIP's are not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model.architecture import Architecture, Layer, Module, Parameter
from kvcore.model.config import ModelConfig, Section
from kvcore.model.parts import vision
from kvcore.model.parts.blocks import cache_of, decoder, named, norm, plain_mlp, read_heads

BLOCK: Final = vision.Block(
    qkv="self_attn.qkv_proj", out="self_attn.out_proj", norms=("layer_norm1", "layer_norm2")
)

VISION_MODEL: Final = "vision_tower.vision_model"


def clip(
    section: Section,
    layers: int,
    prefix: str = VISION_MODEL,
    *,
    blocks: str = "encoder",
    has_last_norm: bool = True,
) -> tuple[Module, ...]:
    """CLIP up to `layers` blocks; the norm behind all of them, where there is one.

    Source: vllm/model_executor/models/clip.py (0.32).
    """
    width, intermediate = section.integer("hidden_size"), section.integer("intermediate_size")
    heads = vision.square_heads(section, width)
    channels = section.integer("num_channels", 3, maximum=64)
    modules = vision.embeddings(section, f"{prefix}.embeddings", width, channels, bias=False)
    modules.append(norm(f"{prefix}.pre_layrnorm", width, bias=True))
    modules += vision.blocks(BLOCK, f"{prefix}.{blocks}.layers", layers, heads, intermediate)
    if has_last_norm and layers == section.layers():
        modules.append(norm(f"{prefix}.post_layernorm", width, bias=True))
    return tuple(modules)


def siglip(section: Section, layers: int | None = None, prefix: str = VISION_MODEL) -> tuple[Module, ...]:
    """SigLIP up to `layers` blocks, without its pooling head; the norm behind all of them.

    Source: vllm/model_executor/models/siglip.py:SiglipVisionTransformer (0.32).
    """
    patch = section.integer("patch_size")
    positions = (section.integer("image_size") // patch) ** 2
    pixels = section.integer("num_channels", 3) * patch**2
    return embedded(section, layers, prefix, pixels, positions)


def siglip2(section: Section, layers: int, prefix: str = VISION_MODEL) -> tuple[Module, ...]:
    """SigLIP 2 for images of any shape: patches come flat, and its table has `num_patches` positions.

    Source: vllm/model_executor/models/lfm2_siglip2.py:Siglip2VisionTransformer (0.32).
    """
    pixels = section.integer("num_channels", 3, maximum=64) * section.integer("patch_size", maximum=4096) ** 2
    return embedded(section, layers, prefix, pixels, section.integer("num_patches"))


def embedded(
    section: Section, layers: int | None, prefix: str, pixels: int, positions: int
) -> tuple[Module, ...]:
    """Embeddings of patches and positions, the blocks, and the last norm behind all of them."""
    width = section.integer("hidden_size")
    count = section.layers() if layers is None else layers
    return (
        vision.table(f"{prefix}.embeddings.patch_embedding", pixels + 1, width),
        vision.table(f"{prefix}.embeddings.position_embedding", positions, width),
        *siglip_blocks(section, count, f"{prefix}.encoder.layers"),
        *((norm(f"{prefix}.post_layernorm", width, bias=True),) if count == section.layers() else ()),
    )


def siglip_blocks(section: Section, count: int, prefix: str) -> list[Module]:
    """SigLIP's blocks. MLPs whose sizes are no multiples of 64 are never quantized."""
    width, intermediate = section.integer("hidden_size"), section.integer("intermediate_size")
    heads = vision.heads_of(width, section.integer("num_attention_heads"))
    modules = vision.blocks(BLOCK, prefix, count, heads, intermediate)
    if width % 64 == 0 and intermediate % 64 == 0:
        return modules
    return vision.change_linears(modules, ".mlp.", quantizable=False)


def read_clip(config: ModelConfig) -> Architecture:
    """CLIP.

    Source: vllm/model_executor/models/clip.py:CLIPEmbeddingModel (0.32).
    """
    root, section = config.root, config.root.section("vision_config", "clip_vision_model")
    width, out = section.integer("hidden_size"), root.integer("projection_dim", 512)
    text = config.language.integer("hidden_size")
    modules = (
        *clip(section, section.layers(), "vision_model"),
        vision.whole("visual_projection", width, out, bias=False),
        vision.whole("text_projection", text, out, bias=False),
    )
    return build(config, section, modules, is_kept=True)


def read_siglip(config: ModelConfig) -> Architecture:
    """SigLIP, with its pooling head.

    Source: vllm/model_executor/models/siglip.py:SiglipEmbeddingModel (0.32).
    """
    section = config.root.section("vision_config", "siglip_vision_model")
    text = config.language.integer("hidden_size")
    out = config.language.integer("projection_size", text)
    modules = (
        *siglip(section, prefix="vision_model"),
        *(pooling_head(section) if section.boolean("vision_use_head", True) else ()),
        vision.whole("text_model.head", text, out),
    )
    return build(config, section, modules, is_kept=False)


def pooling_head(section: Section) -> tuple[Module, ...]:
    """A query that attends to all patches, and an MLP.

    Source: vllm/model_executor/models/siglip.py:SiglipMultiheadAttentionPoolingHead (0.32).
    """
    width, prefix = section.integer("hidden_size"), "vision_model.head"
    up, down = f"{prefix}.mlp.fc1", f"{prefix}.mlp.fc2"
    return (
        Parameter(name=f"{prefix}.probe", replicated=width),
        vision.whole(f"{prefix}.attention.in_proj", width, 3 * width),
        vision.whole(f"{prefix}.attention.out_proj", width, width),
        norm(f"{prefix}.layernorm", width, bias=True),
        *plain_mlp(width, section.integer("intermediate_size"), up, down, bias=True),
    )


def build(
    config: ModelConfig, section: Section, modules: tuple[Module, ...], *, is_kept: bool
) -> Architecture:
    """The text transformer's layers, next to `modules`."""
    text = config.language
    heads = read_heads(text, "", reads_head_dim=False)
    width, inner = heads.hidden_size, text.integer("intermediate_size")
    prefix, positions = "text_model.embeddings", text.integer("max_position_embeddings")
    layer = Layer(modules=vision.block(BLOCK, "", heads, inner), caches=(cache_of(heads),) if is_kept else ())
    built = decoder(
        config,
        section=text,
        heads=heads,
        layers=(layer,) * text.layers(),
        intermediate_size=inner,
        first=(
            vision.sharded_table(f"{prefix}.token_embedding", text.integer("vocab_size"), width),
            vision.sharded_table(f"{prefix}.position_embedding", positions, width),
        ),
        every=modules,
        last=(norm("text_model.final_layer_norm", width, bias=True),),
        tied=True,
        rotary_tables=(),
        layer_prefix="text_model.encoder.layers",
        is_multimodal=True,
    )
    return replace(built, vision=vision.square_limits(section))


READERS: Final = named(
    (read_clip, "CLIPModel", "clip"),
    (read_siglip, "SiglipModel", "siglip"),
)
