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
from kvcore.model.parts import encoder as enc


def clip(own: enc.Sizes, patch: int, side: int, channels: int = 3, *, last_norm: bool = True) -> enc.Modules:
    """CLIP for images of `side` patches a side.

    Source: vllm/model_executor/models/clip.py (0.32).
    """
    return (
        enc.tensor("embeddings.class_embedding", own.width),
        enc.convolution("embeddings.patch_embedding", channels, own.width, patch, patch, bias=False),
        enc.tensor("embeddings.position_embedding", side * side + 1, own.width),
        enc.norm("pre_layrnorm", own.width),
        *enc.repeated("encoder.layers", own.layers, enc.block(own, enc.CLIP)),
        *enc.when(last_norm, enc.norm("post_layernorm", own.width)),
    )


def siglip_block(own: enc.Sizes) -> enc.Modules:
    """MLPs whose sizes are no multiples of 64 are never quantized."""
    is_quantized = own.width % 64 == 0 and own.inner % 64 == 0
    layers = enc.mlp(own, enc.CLIP)
    return (
        *enc.attention(own, enc.CLIP),
        *(layers if is_quantized else enc.changed(layers, quantizable=False)),
        *enc.norms(own, enc.CLIP),
    )


def siglip(
    own: enc.Sizes, patch: int, positions: int, channels: int = 3, *, last_norm: bool = True
) -> enc.Modules:
    """SigLIP without its pooling head; SigLIP 2 for images of any shape has as many `positions` as it names.

    Source: vllm/model_executor/models/siglip.py:SiglipVisionTransformer,
    lfm2_siglip2.py:Siglip2VisionTransformer (0.32).
    """
    return (
        enc.tensor("embeddings.patch_embedding", channels * patch**2 + 1, own.width),
        enc.tensor("embeddings.position_embedding", positions, own.width),
        *enc.repeated("encoder.layers", own.layers, siglip_block(own)),
        *enc.when(last_norm, enc.norm("post_layernorm", own.width)),
    )


class Seen(Struct, frozen=True, kw_only=True):
    """SigLIP as built for a model."""

    own: enc.Sizes
    side: int
    """Patches along the side of an image; 0 where images have any shape."""
    modules: enc.Modules


def read_siglip(section: Section, prefix: str, layers: int | None = None, *, last_norm: bool = True) -> Seen:
    """SigLIP with as many of its layers; the last norm is behind all of them only."""
    total = section.layers()
    own = enc.read_sizes(section, layers=total if layers is None else layers, is_checked=False)
    patch, side = enc.read_patches(section)
    has_norm = last_norm and own.layers == total
    modules = siglip(own, patch, side**2, enc.read_channels(section), last_norm=has_norm)
    return Seen(own=own, side=side, modules=enc.behind(prefix, modules))


def read_siglip2(section: Section, prefix: str, layers: int | None = None, *, last_norm: bool = True) -> Seen:
    """SigLIP 2 for images of any shape, whose patches come flat."""
    total, positions = section.layers(), section.integer("num_patches")
    own = enc.read_sizes(section, layers=total if layers is None else layers, is_checked=False)
    patch, has_norm = section.integer("patch_size", maximum=enc.MAX_PATCH), last_norm and own.layers == total
    modules = siglip(own, patch, positions, enc.read_channels(section), last_norm=has_norm)
    return Seen(own=own, side=0, modules=enc.behind(prefix, modules))


def siglip_head(own: enc.Sizes) -> enc.Modules:
    """A query that attends to all patches, and an MLP.

    Source: vllm/model_executor/models/siglip.py:SiglipMultiheadAttentionPoolingHead (0.32).
    """
    width = own.width
    return (
        enc.tensor("probe", width),
        enc.whole("attention.in_proj", width, 3 * width),
        enc.whole("attention.out_proj", width, width),
        enc.norm("layernorm", width),
        *enc.mlp(own, enc.CLIP),
    )


def pixtral(own: enc.Sizes, patch: int, channels: int) -> enc.Modules:
    """Pixtral in its Hugging Face layout.

    Source: vllm/model_executor/models/pixtral.py:PixtralHFVisionModel (0.32).
    """
    gates = ("feed_forward.gate_proj", "feed_forward.up_proj")
    return (
        enc.convolution("patch_conv", channels, own.width, patch, patch, bias=False),
        enc.norm("ln_pre", own.width, bias=False),
        *enc.repeated("transformer.layers", own.layers, enc.gated_block(own, enc.PIXTRAL, gates, bias=False)),
    )


def moonvit(section: Section, text: int) -> enc.Encoder:
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
    own = enc.read_sizes(section, is_checked=False)
    return enc.seeing(moonvit_modules(section, own, text, "multi_modal_projector"), own, 1089, 4)


def moonvit3d(section: Section, text: int) -> enc.Encoder:
    """MoonViT with space and time.

    An image has up to 16,384 patches, four frames of a video no more: kimi_k25.py:get_dummy_mm_items (0.28).

    Source: vllm/model_executor/models/kimi_k25_vit.py (0.32).
    """
    keys = ("vt_hidden_size", "vt_intermediate_size", "vt_num_attention_heads", "vt_num_hidden_layers")
    own = enc.read_sizes(section, *keys, is_checked=False)
    return enc.seeing(moonvit_modules(section, own, text, "mm_projector"), own, 4096, 4)


def moonvit_modules(section: Section, own: enc.Sizes, text: int, projector: str) -> enc.Modules:
    """Patches, positions and blocks, whole on ranks that do not divide the heads, and the projector."""
    width, patch = own.width, section.integer("patch_size")
    height, breadth = section.integer("init_pos_emb_height"), section.integer("init_pos_emb_width")
    rows, columns = enc.pair(section, "merge_kernel_size", 2)
    grouped = width * rows * columns
    block = (*enc.norms(own, enc.MOONVIT), *enc.mlp(own, enc.MOONVIT), *enc.attention(own, enc.MOONVIT))
    layers = enc.changed(block, quantizable=False, whole_unless_divided=own.heads)
    return (
        enc.convolution("vision_tower.patch_embed.proj", 3, width, patch, patch),
        enc.tensor("vision_tower.patch_embed.pos_emb", height, breadth, width),
        enc.norm("vision_tower.encoder.final_layernorm", width),
        enc.norm(f"{projector}.pre_norm", width),
        enc.whole(f"{projector}.linear_1", grouped, grouped),
        enc.whole(f"{projector}.linear_2", grouped, text),
        *enc.repeated("vision_tower.encoder.blocks", own.layers, layers),
    )


PERCEPTION: Final = enc.Names(
    "attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2", ("ln_1", "ln_2"), parts=("in_proj",)
)


def step_vision(root: Section, text: int) -> enc.Encoder:
    """Step's Perception Encoder, two convolutions that quarter its sides, and its projector.

    Defaults are those of PerceptionEncoderConfig. The largest image is one with a tile of its own for each of its
    parts.

    Source: vllm/model_executor/models/step3p7.py, step_vl.py:PerceptionEncoder,
    transformers_utils/configs/step5.py (0.33).
    """
    section = root.section("vision_config")
    width = section.integer("width", 1536)
    own = enc.read_sizes(
        section,
        width,
        enc.share(section, width),
        section.integer("heads", 16),
        section.integer("layers", 47, maximum=1024),
    )
    patch = section.integer("patch_size", 14, maximum=enc.MAX_PATCH)
    image = section.integer("image_size", 728)
    side = enc.patches_a_side(section, image, patch)
    is_scaled = section.get("ls_init_value") is not None
    has_class = section.boolean("use_cls_token", False)
    up, down = enc.mlp(own, PERCEPTION)
    layer = (
        *enc.attention(own, PERCEPTION),
        *enc.changed((up,), parts=("mlp.c_fc",)),
        *enc.changed((down,), parts=("mlp.c_proj",)),
        *enc.when(is_scaled, enc.tensor("ls_1.gamma", width), enc.tensor("ls_2.gamma", width)),
        *enc.norms(own, PERCEPTION),
    )
    encoder = (
        enc.convolution("conv1", 3, width, patch, patch, bias=False),
        *enc.when(section.boolean("use_ln_pre", True), enc.norm("ln_pre", width)),
        *enc.when(section.boolean("use_ln_post", False), enc.norm("ln_post", width)),
        *enc.repeated("transformer.resblocks", own.layers, layer),
        enc.convolution("vit_downsampler1", width, 2 * width, 3, 3),
        enc.convolution("vit_downsampler2", 2 * width, 4 * width, 3, 3),
        *enc.when(has_class, enc.tensor("class_embedding", width)),
        *enc.when(
            section.boolean("use_abs_posemb", True),
            enc.tensor("positional_embedding", side**2 + has_class, width),
        ),
    )
    is_biased = root.boolean("projector_bias", False)
    projector = enc.column("vit_large_projector", 4 * width, text, bias=is_biased)
    return enc.seeing((*enc.behind("vision_model", encoder), projector), own, (side // 4) ** 2, 16)


class Squares(Struct, frozen=True, kw_only=True):
    """A transformer over patches of images and frames, squares of which become one token."""

    own: enc.Sizes
    channels: int
    time: int
    """Frames of a patch."""
    patch: int
    merge: int

    @property
    def merged(self) -> int:
        """Elements of a square of patches."""
        return self.own.width * self.merge**2

    def patch_embed(self, *, bias: bool) -> enc.Modules:
        """The convolution that makes patches."""
        kernel = (self.time, self.patch, self.patch)
        return (enc.convolution("patch_embed.proj", self.channels, self.own.width, *kernel, bias=bias),)

    def limits(self, *, levels: int = 0, is_resized: bool = True, draws_video: bool = False) -> VisionEncoder:
        """Figures for the profile run. The largest image is 12,845,056 pixels / 28².

        Source: preprocessor_config.json of Qwen2-VL-7B-Instruct.
        """
        return enc.images(
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
        own=enc.read_sizes(section, width, inner, "num_heads", "depth"),
        channels=enc.read_channels(section, "in_channels"),
        time=enc.read_merge(section, "temporal_patch_size", 2),
        patch=section.integer("patch_size", maximum=enc.MAX_PATCH),
        merge=enc.read_merge(section),
    )


def qwen_merger(vit: Squares, out: int, *, bias: bool = True) -> enc.Modules:
    """A square of patches to one token."""
    return (
        enc.norm("merger.ln_q", vit.own.width, bias=bias),
        enc.column("merger.mlp.0", vit.merged, vit.merged),
        enc.row("merger.mlp.2", vit.merged, out),
    )


def qwen2_vl(section: Section) -> enc.Encoder:
    """Qwen2-VL's. `hidden_size` is the language model's.

    Source: vllm/model_executor/models/qwen2_vl.py:Qwen2VisionTransformer (0.32).
    """
    vit = read_squares(section, "embed_dim", enc.share(section, section.integer("embed_dim")))
    modules = (
        *vit.patch_embed(bias=False),
        *enc.repeated("blocks", vit.own.layers, enc.block(vit.own, enc.TIMM)),
        *qwen_merger(vit, section.integer("hidden_size")),
    )
    return enc.Encoder(modules=modules, vision=vit.limits(draws_video=True), tables=vit.tables)


def qwen2_5_vl(section: Section) -> enc.Encoder:
    """Qwen2.5-VL's, and EXAONE 4.5's, which has fewer KV heads.

    Source: vllm/model_executor/models/qwen2_5_vl.py:Qwen2_5_VisionTransformer, exaone4_5.py (0.32).
    """
    vit = read_squares(section)
    vit = replace(vit, own=enc.with_kv_heads(section, vit.own))
    modules = (
        *vit.patch_embed(bias=False),
        *enc.repeated("blocks", vit.own.layers, enc.gated_block(vit.own)),
        *qwen_merger(vit, section.integer("out_hidden_size"), bias=False),
    )
    return enc.Encoder(modules=modules, vision=vit.limits(draws_video=True), tables=vit.tables)


def qwen3_vl(section: Section) -> enc.Encoder:
    """Qwen3-VL's, of which further mergers feed the first decoder layers.

    Source: vllm/model_executor/models/qwen3_vl.py:Qwen3_VisionTransformer (0.32).
    """
    vit = read_squares(section)
    out, levels = section.integer("out_hidden_size"), count_listed(section, "deepstack_visual_indexes")
    names = replace(enc.TIMM, up="mlp.linear_fc1", down="mlp.linear_fc2")

    def merger(normed: int) -> enc.Modules:
        layers = (enc.column("linear_fc1", vit.merged, vit.merged), enc.row("linear_fc2", vit.merged, out))
        return (enc.norm("norm", normed), *layers)

    modules = (
        *vit.patch_embed(bias=True),
        enc.tensor("pos_embed", section.integer("num_position_embeddings"), vit.own.width),
        *enc.repeated("blocks", vit.own.layers, enc.block(vit.own, names)),
        *enc.behind("merger", merger(vit.own.width)),
        *enc.repeated("deepstack_merger_list", levels, merger(vit.merged)),
    )
    return enc.Encoder(modules=modules, vision=vit.limits(levels=levels), tables=vit.tables)


def glm_merger(vit: Squares, out: int, wide: int) -> enc.Modules:
    """A convolution and a gated MLP that turn a square of patches into one token."""
    return (
        enc.norm("post_layernorm", vit.own.width, bias=False),
        enc.convolution("downsample", vit.own.width, out, vit.merge, vit.merge),
        enc.column("merger.proj", out, out, bias=False),
        enc.norm("merger.post_projection_norm", out),
        enc.merged("merger.gate_up_proj", out, wide, ("merger.gate_proj", "merger.up_proj"), bias=False),
        enc.row("merger.down_proj", wide, out, bias=False),
    )


def glm4v(section: Section) -> enc.Encoder:
    """GLM-4.1V's and GLM-4.5V's: blocks as wide as `out_hidden_size`, a merger as wide as `intermediate_size`.

    Source: vllm/model_executor/models/glm4_1v.py:Glm4vVisionTransformer (0.32).
    """
    vit, out = read_squares(section, inner="out_hidden_size"), section.integer("out_hidden_size")
    side = enc.patches_a_side(section, section.integer("image_size"), vit.patch)
    modules = (
        *vit.patch_embed(bias=True),
        enc.tensor("embeddings.position_embedding", side**2, vit.own.width),
        enc.norm("post_conv_layernorm", vit.own.width, bias=False),
        *glm_merger(vit, out, section.integer("intermediate_size")),
        *enc.repeated("blocks", vit.own.layers, enc.gated_block(vit.own, bias=False)),
    )
    return enc.Encoder(modules=modules, vision=vit.limits(is_resized=False), tables=vit.tables)


def glm_ocr(section: Section, wide: int, *, bias: bool) -> enc.Encoder:
    """GLM-OCR's, without a position table, with norms of queries and keys; its merger is `wide` inside.

    Source: vllm/model_executor/models/glm_ocr.py (0.32).
    """
    vit = read_squares(section)
    layer = (
        *enc.gated_block(vit.own, bias=bias),
        *blocks.norms(vit.own.head, "attn.q_norm", "attn.k_norm"),
    )
    modules = (
        *vit.patch_embed(bias=True),
        *glm_merger(vit, section.integer("out_hidden_size"), wide),
        *enc.repeated("blocks", vit.own.layers, layer),
    )
    return enc.Encoder(modules=modules, vision=vit.limits(), tables=vit.tables)


def count_listed(section: Section, name: str) -> int:
    """How many layers a list names."""
    return len(section.integers(name, minimum=-1024) or ())


def q_former(section: Section) -> enc.Modules:
    """Queries that attend to themselves and, in every so many blocks, to the encoder; whole on every rank.

    Source: vllm/model_executor/models/blip2.py:Blip2QFormerModel (0.32).
    """
    width, inner = section.integer("hidden_size"), section.integer("intermediate_size")
    encoder, period = section.integer("encoder_hidden_size"), section.integer("cross_attention_frequency")

    def attending(prefix: str, sources: int) -> enc.Modules:
        modules = (
            enc.whole("attention.query", width, width),
            enc.whole("attention.key", sources, width),
            enc.whole("attention.value", sources, width),
            enc.whole("output.dense", width, width),
            enc.norm("output.LayerNorm", width),
        )
        return enc.behind(prefix, modules)

    body = (
        *attending("attention", width),
        enc.whole("intermediate_query.dense", width, inner),
        enc.whole("output_query.dense", inner, width),
        enc.norm("output_query.LayerNorm", width),
    )
    across = (*body, *attending("crossattention", encoder))
    layers = (
        enc.behind(f"encoder.layer.{index}", body if index % period else across)
        for index in range(section.layers())
    )
    return (enc.norm("layernorm", width), *(module for layer in layers for module in layer))
