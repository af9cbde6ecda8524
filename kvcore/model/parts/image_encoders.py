"""Encoders of images that several models have in front of their language part.

CLIP, SigLIP, Pixtral, MoonViT, Step's Perception Encoder, Qwen's and GLM's. An encoder of one model alone is in the
file of its family.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kvcore.model.architecture import RotaryTable, VisionEncoder
from kvcore.model.config import Section
from kvcore.model.parts import blocks
from kvcore.model.parts.encoder import (
    CLIP,
    MAX_PATCH,
    MOONVIT,
    PIXTRAL,
    TIMM,
    Encoder,
    Modules,
    Names,
    Sizes,
    attention,
    behind,
    block,
    changed,
    column,
    convolution,
    gated_block,
    images,
    merged,
    mlp,
    norm,
    norms,
    pair,
    patches_a_side,
    read_channels,
    read_merge,
    read_patches,
    read_sizes,
    repeated,
    row,
    share,
    tensor,
    when,
    whole,
    with_kv_heads,
)


def clip(own: Sizes, patch: int, side: int, channels: int = 3, *, last_norm: bool = True) -> Modules:
    """CLIP for images of `side` patches a side.

    Source: vllm/model_executor/models/clip.py (0.32).
    """
    return (
        tensor("embeddings.class_embedding", own.width),
        convolution("embeddings.patch_embedding", channels, own.width, patch, patch, bias=False),
        tensor("embeddings.position_embedding", side * side + 1, own.width),
        norm("pre_layrnorm", own.width),
        *repeated("encoder.layers", own.layers, block(own, CLIP)),
        *when(last_norm, norm("post_layernorm", own.width)),
    )


def siglip_block(own: Sizes) -> Modules:
    """MLPs whose sizes are no multiples of 64 are never quantized."""
    is_quantized = own.width % 64 == 0 and own.inner % 64 == 0
    layers = mlp(own, CLIP)
    return (
        *attention(own, CLIP),
        *(layers if is_quantized else changed(layers, quantizable=False)),
        *norms(own, CLIP),
    )


def siglip(own: Sizes, patch: int, positions: int, channels: int = 3, *, last_norm: bool = True) -> Modules:
    """SigLIP without its pooling head; SigLIP 2 for images of any shape has as many `positions` as it names.

    Source: vllm/model_executor/models/siglip.py:SiglipVisionTransformer,
    lfm2_siglip2.py:Siglip2VisionTransformer (0.32).
    """
    return (
        tensor("embeddings.patch_embedding", channels * patch**2 + 1, own.width),
        tensor("embeddings.position_embedding", positions, own.width),
        *repeated("encoder.layers", own.layers, siglip_block(own)),
        *when(last_norm, norm("post_layernorm", own.width)),
    )


class Seen(Struct, frozen=True, kw_only=True):
    """SigLIP as built for a model."""

    own: Sizes
    side: int
    """Patches along the side of an image; 0 where images have any shape."""
    modules: Modules


def read_siglip(section: Section, prefix: str, layers: int | None = None, *, last_norm: bool = True) -> Seen:
    """SigLIP with as many of its layers; the last norm is behind all of them only."""
    total = section.layers()
    own = read_sizes(section, layers=total if layers is None else layers, is_checked=False)
    patch, side = read_patches(section)
    has_norm = last_norm and own.layers == total
    modules = siglip(own, patch, side**2, read_channels(section), last_norm=has_norm)
    return Seen(own=own, side=side, modules=behind(prefix, modules))


def read_siglip2(section: Section, prefix: str, layers: int | None = None, *, last_norm: bool = True) -> Seen:
    """SigLIP 2 for images of any shape, whose patches come flat."""
    total, positions = section.layers(), section.integer("num_patches")
    own = read_sizes(section, layers=total if layers is None else layers, is_checked=False)
    patch, has_norm = section.integer("patch_size", maximum=MAX_PATCH), last_norm and own.layers == total
    modules = siglip(own, patch, positions, read_channels(section), last_norm=has_norm)
    return Seen(own=own, side=0, modules=behind(prefix, modules))


def siglip_head(own: Sizes) -> Modules:
    """A query that attends to all patches, and an MLP.

    Source: vllm/model_executor/models/siglip.py:SiglipMultiheadAttentionPoolingHead (0.32).
    """
    width = own.width
    return (
        tensor("probe", width),
        whole("attention.in_proj", width, 3 * width),
        whole("attention.out_proj", width, width),
        norm("layernorm", width),
        *mlp(own, CLIP),
    )


def pixtral(own: Sizes, patch: int, channels: int) -> Modules:
    """Pixtral in its Hugging Face layout.

    Source: vllm/model_executor/models/pixtral.py:PixtralHFVisionModel (0.32).
    """
    gates = ("feed_forward.gate_proj", "feed_forward.up_proj")
    return (
        convolution("patch_conv", channels, own.width, patch, patch, bias=False),
        norm("ln_pre", own.width, bias=False),
        *repeated("transformer.layers", own.layers, gated_block(own, PIXTRAL, gates, bias=False)),
    )


def moonvit(section: Section, text: int) -> Encoder:
    """MoonViT and its projector, in which a square of patches becomes one token.

    The profile run draws 1024 × 1024 pixels, 73 × 73 patches. The processor's in_token_limit of 4096
    (Kimi-VL-A3B-Instruct) makes them 897 × 897, padded to 33 × 33 tokens:
    kimi_vl.py:KimiVLProcessingInfo.get_num_image_tokens (0.28).

    Source: vllm/model_executor/models/moonvit.py, kimi_vl.py (0.32).

    Example:
        >>> section = Section({
        ...     "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 1,
        ...     "patch_size": 14, "init_pos_emb_height": 8, "init_pos_emb_width": 8})
        >>> moonvit(section, text=256).vision.max_tokens_per_item
        1089
    """
    own = read_sizes(section, is_checked=False)
    return Encoder(
        modules=moonvit_modules(section, own, text, "multi_modal_projector"), vision=images(own, 1089, 4)
    )


def moonvit3d(section: Section, text: int) -> Encoder:
    """MoonViT with space and time.

    An image has up to 16,384 patches, four frames of a video no more: kimi_k25.py:get_dummy_mm_items (0.28).

    Source: vllm/model_executor/models/kimi_k25_vit.py (0.32).
    """
    keys = ("vt_hidden_size", "vt_intermediate_size", "vt_num_attention_heads", "vt_num_hidden_layers")
    own = read_sizes(section, *keys, is_checked=False)
    return Encoder(modules=moonvit_modules(section, own, text, "mm_projector"), vision=images(own, 4096, 4))


def moonvit_modules(section: Section, own: Sizes, text: int, projector: str) -> Modules:
    """Patches, positions and blocks, whole on ranks that do not divide the heads, and the projector."""
    width, patch = own.width, section.integer("patch_size")
    height, breadth = section.integer("init_pos_emb_height"), section.integer("init_pos_emb_width")
    rows, columns = pair(section, "merge_kernel_size", 2)
    grouped = width * rows * columns
    layers = changed(block(own, MOONVIT), quantizable=False, whole_unless_divided=own.heads)
    return (
        convolution("vision_tower.patch_embed.proj", 3, width, patch, patch),
        tensor("vision_tower.patch_embed.pos_emb", height, breadth, width),
        norm("vision_tower.encoder.final_layernorm", width),
        norm(f"{projector}.pre_norm", width),
        whole(f"{projector}.linear_1", grouped, grouped),
        whole(f"{projector}.linear_2", grouped, text),
        *repeated("vision_tower.encoder.blocks", own.layers, layers),
    )


PERCEPTION: Final = Names(
    "attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2", ("ln_1", "ln_2"), parts=("in_proj",)
)


def step_vision(root: Section, text: int) -> Encoder:
    """Step's Perception Encoder, two convolutions that quarter its sides, and its projector.

    Defaults are those of PerceptionEncoderConfig. The largest image is one with a tile of its own for each of its
    parts.

    Source: vllm/model_executor/models/step3p7.py, step_vl.py:PerceptionEncoder,
    transformers_utils/configs/step5.py (0.33).
    """
    section = root.section("vision_config")
    width = section.integer("width", 1536)
    own = read_sizes(
        section,
        width,
        share(section, width),
        section.integer("heads", 16),
        section.integer("layers", 47, maximum=1024),
    )
    patch, image = section.integer("patch_size", 14, maximum=MAX_PATCH), section.integer("image_size", 728)
    side = patches_a_side(section, image, patch)
    is_scaled = section.get("ls_init_value") is not None
    has_class = section.boolean("use_cls_token", False)
    up, down = mlp(own, PERCEPTION)
    layer = (
        *attention(own, PERCEPTION),
        *changed((up,), parts=("mlp.c_fc",)),
        *changed((down,), parts=("mlp.c_proj",)),
        *when(is_scaled, tensor("ls_1.gamma", width), tensor("ls_2.gamma", width)),
        *norms(own, PERCEPTION),
    )
    encoder = (
        convolution("conv1", 3, width, patch, patch, bias=False),
        *when(section.boolean("use_ln_pre", True), norm("ln_pre", width)),
        *when(section.boolean("use_ln_post", False), norm("ln_post", width)),
        *repeated("transformer.resblocks", own.layers, layer),
        convolution("vit_downsampler1", width, 2 * width, 3, 3),
        convolution("vit_downsampler2", 2 * width, 4 * width, 3, 3),
        *when(has_class, tensor("class_embedding", width)),
        *when(
            section.boolean("use_abs_posemb", True),
            tensor("positional_embedding", side**2 + has_class, width),
        ),
    )
    is_biased = root.boolean("projector_bias", False)
    projector = column("vit_large_projector", 4 * width, text, bias=is_biased)
    return Encoder(
        modules=(*behind("vision_model", encoder), projector), vision=images(own, (side // 4) ** 2, 16)
    )


class Squares(Struct, frozen=True, kw_only=True):
    """A transformer over patches of images and frames, squares of which become one token."""

    own: Sizes
    channels: int
    time: int
    """Frames of a patch."""
    patch: int
    merge: int

    @property
    def merged(self) -> int:
        """Elements of a square of patches."""
        return self.own.width * self.merge**2

    def patch_embed(self, *, bias: bool) -> Modules:
        """The convolution that makes patches."""
        kernel = (self.time, self.patch, self.patch)
        return (convolution("patch_embed.proj", self.channels, self.own.width, *kernel, bias=bias),)

    def limits(self, *, levels: int = 0, is_resized: bool = True, draws_video: bool = False) -> VisionEncoder:
        """Figures for the profile run. The largest image is 12,845,056 pixels / 28².

        Source: preprocessor_config.json of Qwen2-VL-7B-Instruct.
        """
        return images(
            self.own,
            16384,
            self.merge**2,
            values_per_patch=self.channels * self.time * self.patch**2,
            unit=self.patch * self.merge if is_resized else 0,
            deepstack_levels=levels,
            draws_video=draws_video,
        )

    @property
    def tables(self) -> tuple[RotaryTable, ...]:
        """The rotary table of both sides."""
        return (RotaryTable(max_positions=8192, rotary_dim=self.own.head // 2, is_plain=True),)


def read_squares(
    section: Section, width: str = "hidden_size", inner: str | int = "intermediate_size"
) -> Squares:
    """The sizes that all image encoders of Qwen and GLM have."""
    return Squares(
        own=read_sizes(section, width, inner, "num_heads", "depth"),
        channels=read_channels(section, "in_channels"),
        time=read_merge(section, "temporal_patch_size", 2),
        patch=section.integer("patch_size", maximum=MAX_PATCH),
        merge=read_merge(section),
    )


def qwen_merger(vit: Squares, out: int, *, bias: bool = True) -> Modules:
    """A square of patches to one token."""
    return (
        norm("merger.ln_q", vit.own.width, bias=bias),
        column("merger.mlp.0", vit.merged, vit.merged),
        row("merger.mlp.2", vit.merged, out),
    )


def qwen2_vl(section: Section) -> Encoder:
    """Qwen2-VL's. `hidden_size` is the language model's.

    Source: vllm/model_executor/models/qwen2_vl.py:Qwen2VisionTransformer (0.32).
    """
    vit = read_squares(section, "embed_dim", share(section, section.integer("embed_dim")))
    modules = (
        *vit.patch_embed(bias=False),
        *repeated("blocks", vit.own.layers, block(vit.own, TIMM)),
        *qwen_merger(vit, section.integer("hidden_size")),
    )
    return Encoder(modules=modules, vision=vit.limits(draws_video=True), tables=vit.tables)


def qwen2_5_vl(section: Section) -> Encoder:
    """Qwen2.5-VL's, and EXAONE 4.5's, which has fewer KV heads.

    Source: vllm/model_executor/models/qwen2_5_vl.py:Qwen2_5_VisionTransformer, exaone4_5.py (0.32).
    """
    vit = read_squares(section)
    vit = replace(vit, own=with_kv_heads(section, vit.own))
    modules = (
        *vit.patch_embed(bias=False),
        *repeated("blocks", vit.own.layers, gated_block(vit.own)),
        *qwen_merger(vit, section.integer("out_hidden_size"), bias=False),
    )
    return Encoder(modules=modules, vision=vit.limits(draws_video=True), tables=vit.tables)


def qwen3_vl(section: Section) -> Encoder:
    """Qwen3-VL's, of which further mergers feed the first decoder layers.

    Source: vllm/model_executor/models/qwen3_vl.py:Qwen3_VisionTransformer (0.32).
    """
    vit = read_squares(section)
    out, levels = section.integer("out_hidden_size"), count_listed(section, "deepstack_visual_indexes")
    names = replace(TIMM, up="mlp.linear_fc1", down="mlp.linear_fc2")

    def merger(normed: int) -> Modules:
        layers = (column("linear_fc1", vit.merged, vit.merged), row("linear_fc2", vit.merged, out))
        return (norm("norm", normed), *layers)

    modules = (
        *vit.patch_embed(bias=True),
        tensor("pos_embed", section.integer("num_position_embeddings"), vit.own.width),
        *repeated("blocks", vit.own.layers, block(vit.own, names)),
        *behind("merger", merger(vit.own.width)),
        *repeated("deepstack_merger_list", levels, merger(vit.merged)),
    )
    return Encoder(modules=modules, vision=vit.limits(levels=levels), tables=vit.tables)


def glm_merger(vit: Squares, out: int, wide: int) -> Modules:
    """A convolution and a gated MLP that turn a square of patches into one token."""
    return (
        norm("post_layernorm", vit.own.width, bias=False),
        convolution("downsample", vit.own.width, out, vit.merge, vit.merge),
        column("merger.proj", out, out, bias=False),
        norm("merger.post_projection_norm", out),
        merged("merger.gate_up_proj", out, wide, ("merger.gate_proj", "merger.up_proj"), bias=False),
        row("merger.down_proj", wide, out, bias=False),
    )


def glm4v(section: Section) -> Encoder:
    """GLM-4.1V's and GLM-4.5V's: blocks as wide as `out_hidden_size`, a merger as wide as `intermediate_size`.

    Source: vllm/model_executor/models/glm4_1v.py:Glm4vVisionTransformer (0.32).
    """
    vit, out = read_squares(section, inner="out_hidden_size"), section.integer("out_hidden_size")
    side = patches_a_side(section, section.integer("image_size"), vit.patch)
    modules = (
        *vit.patch_embed(bias=True),
        tensor("embeddings.position_embedding", side**2, vit.own.width),
        norm("post_conv_layernorm", vit.own.width, bias=False),
        *glm_merger(vit, out, section.integer("intermediate_size")),
        *repeated("blocks", vit.own.layers, gated_block(vit.own, bias=False)),
    )
    return Encoder(modules=modules, vision=vit.limits(is_resized=False), tables=vit.tables)


def glm_ocr(section: Section, wide: int, *, bias: bool) -> Encoder:
    """GLM-OCR's, without a position table, with norms of queries and keys; its merger is `wide` inside.

    Source: vllm/model_executor/models/glm_ocr.py (0.32).
    """
    vit = read_squares(section)
    layer = (
        *gated_block(vit.own, bias=bias),
        *blocks.norms(vit.own.head, "attn.q_norm", "attn.k_norm"),
    )
    modules = (
        *vit.patch_embed(bias=True),
        *glm_merger(vit, section.integer("out_hidden_size"), wide),
        *repeated("blocks", vit.own.layers, layer),
    )
    return Encoder(modules=modules, vision=vit.limits(), tables=vit.tables)


def count_listed(section: Section, name: str) -> int:
    """How many layers a list names."""
    return len(section.integers(name, minimum=-1024) or ())


def q_former(section: Section) -> Modules:
    """Queries that attend to themselves and, in every so many blocks, to the encoder; whole on every rank.

    Source: vllm/model_executor/models/blip2.py:Blip2QFormerModel (0.32).
    """
    width, inner = section.integer("hidden_size"), section.integer("intermediate_size")
    encoder, period = section.integer("encoder_hidden_size"), section.integer("cross_attention_frequency")

    def attending(prefix: str, sources: int) -> Modules:
        modules = (
            whole("attention.query", width, width),
            whole("attention.key", sources, width),
            whole("attention.value", sources, width),
            whole("output.dense", width, width),
            norm("output.LayerNorm", width),
        )
        return behind(prefix, modules)

    body = (
        *attending("attention", width),
        whole("intermediate_query.dense", width, inner),
        whole("output_query.dense", inner, width),
        norm("output_query.LayerNorm", width),
    )
    across = (*body, *attending("crossattention", encoder))
    layers = (
        behind(f"encoder.layer.{index}", body if index % period else across)
        for index in range(section.layers())
    )
    return (norm("layernorm", width), *(module for layer in layers for module in layer))
