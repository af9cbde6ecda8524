"""Pieces of image encoders: blocks as rows, patches and positions, projectors, and the limits of an input.

Every pipeline stage has the whole encoder. Its blocks are sharded over tensor parallel ranks like a decoder's; patch
and position tables are whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from kvcore.model.architecture import (
    Architecture,
    Linear,
    Module,
    Output,
    Parameter,
    RotaryTable,
    Split,
    VisionEncoder,
    VocabEmbedding,
)
from kvcore.model.config import MAX_LAYERS, Section
from kvcore.model.parts.blocks import Heads, column, norm, qkv, replicated, row

NO_VECTORS: Final[Mapping[str, int]] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoder:
    """An encoder with its projector, what the profile run must know of its images, and its rotary tables."""

    modules: tuple[Module, ...]
    vision: VisionEncoder | None = None
    tables: tuple[RotaryTable, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """How a class of encoders builds a block: attention with a fused projection and an MLP, each behind a norm."""

    qkv: str = "attn.qkv"
    out: str = "attn.proj"
    up: str = "mlp.fc1"
    down: str = "mlp.fc2"
    gate: tuple[str, ...] = ()
    """The checkpoint's names of the two parts of `up`; empty for an MLP without a gate."""
    parts: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    norms: tuple[str, str] = ("norm1", "norm2")
    has_layer_norms: bool = True
    """Norms have biases."""
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True


GATED: Final = Block(
    up="mlp.gate_up_proj",
    down="mlp.down_proj",
    gate=("mlp.gate_proj", "mlp.up_proj"),
    has_layer_norms=False,
)
"""Blocks like a decoder's: a gate, RMS norms."""


def blocks(
    kind: Block,
    prefix: str,
    count: int,
    heads: Heads,
    intermediate: int,
    *,
    vectors: Mapping[str, int] = NO_VECTORS,
    attended: int = 0,
) -> list[Module]:
    """`count` blocks under `prefix`, each with further `vectors` of those sizes.

    `attended`: elements that attention gives back, where they are not as many as the encoder is wide.
    """
    modules: list[Module] = []
    for index in range(count):
        modules += block(kind, f"{prefix}.{index}.", heads, intermediate, attended)
        modules += (norm(f"{prefix}.{index}.{name}", size) for name, size in vectors.items())
    return modules


def block(kind: Block, prefix: str, heads: Heads, intermediate: int, attended: int = 0) -> tuple[Module, ...]:
    """One block, whose names begin with `prefix`."""
    width, bias = heads.hidden_size, kind.mlp_bias
    up, parts = prefix + kind.up, tuple(prefix + part for part in kind.gate)
    return (
        qkv(heads, prefix + kind.qkv, kind.parts, bias=kind.qkv_bias),
        row(prefix + kind.out, attended or width, width, bias=kind.out_bias),
        merged(up, width, intermediate, parts, bias=bias)
        if parts
        else column(up, width, intermediate, bias=bias),
        row(prefix + kind.down, intermediate, width, bias=bias),
        *(norm(prefix + name, width, bias=kind.has_layer_norms) for name in kind.norms),
    )


def change_linears(modules: Iterable[Module], part: str = "", **changes: Any) -> list[Module]:
    """The modules, with the linear layers changed whose names contain `part`."""
    return [
        replace(module, **changes) if isinstance(module, Linear) and part in module.name else module
        for module in modules
    ]


def made_whole(modules: Iterable[Module], part: str = "") -> list[Module]:
    """The modules, of which every rank has the linear layers whole whose names contain `part`, unquantized."""
    return change_linears(modules, part, split=Split.REPLICATED, quantizable=False, parts=())


def merged(
    name: str, in_features: int, half: int, parts: tuple[str, ...] = (), *, bias: bool = False
) -> Linear:
    """Two sharded layers of `half` outputs each as one."""
    return Linear(
        name=name,
        in_features=in_features,
        outputs=(Output(units=half), Output(units=half)),
        split=Split.COLUMN,
        bias=bias,
        parts=parts,
    )


def whole(name: str, in_features: int, out_features: int, *, bias: bool = True) -> Linear:
    """A layer that no rank shards and no quantizer touches."""
    return replicated(name, in_features, out_features, bias=bias, quantizable=False)


def wholes(
    prefix: str, names: Iterable[str], in_features: int, out_features: int, *, bias: bool = True
) -> list[Module]:
    """Several such layers of one size."""
    return [whole(f"{prefix}.{name}", in_features, out_features, bias=bias) for name in names]


LINEARS: Final = ("linear_1", "linear_2")


def whole_pair(
    prefix: str,
    width: int,
    inner: int,
    out: int,
    names: tuple[str, str] = LINEARS,
    *,
    bias: bool = True,
    quantizable: bool = False,
) -> tuple[Linear, Linear]:
    """Two layers of a projector, whole on every rank."""
    first = replicated(f"{prefix}.{names[0]}", width, inner, bias=bias, quantizable=quantizable)
    return first, replicated(f"{prefix}.{names[1]}", inner, out, bias=bias, quantizable=quantizable)


def sharded_pair(
    prefix: str, width: int, inner: int, out: int, names: tuple[str, str] = LINEARS, *, bias: bool = True
) -> tuple[Linear, Linear]:
    """Two layers of a projector, sharded over the ranks."""
    return (
        column(f"{prefix}.{names[0]}", width, inner, bias=bias),
        row(f"{prefix}.{names[1]}", inner, out, bias=bias),
    )


def heads_of(width: int, count: int) -> Heads:
    """As many key and value heads as queries."""
    return Heads(hidden_size=width, num_heads=count, num_kv_heads=count, head_dim=width // count)


def square_heads(section: Section, hidden: int, key: str = "num_attention_heads") -> Heads:
    """The heads of an encoder whose width they must divide."""
    num_heads = section.integer(key)
    if hidden % num_heads:
        raise section.contradicting(
            "hidden_size", f"{hidden} is not divisible by {num_heads} attention heads"
        )
    return heads_of(hidden, num_heads)


def convolution(
    name: str, in_channels: int, out_channels: int, kernel: Iterable[int], *, bias: bool
) -> Parameter:
    """A convolution, replicated."""
    elements = in_channels * out_channels
    for size in kernel:
        elements *= size
    return Parameter(name=name, replicated=elements + (out_channels if bias else 0))


def table(name: str, rows: int, columns: int) -> Parameter:
    """A table of positions, or vectors that no rank shards."""
    return Parameter(name=name, replicated=rows * columns)


def sharded_table(name: str, rows: int, columns: int) -> VocabEmbedding:
    """A table that is sharded like the vocabulary."""
    return VocabEmbedding(name=name, num_embeddings=rows, embedding_dim=columns)


def embeddings(
    section: Section, prefix: str, width: int, channels: int = 3, *, bias: bool = True
) -> list[Module]:
    """A class token, the patch convolution, and a table of positions for a square image and that token."""
    patch = section.integer("patch_size", maximum=4096)
    side = patches_per_side(section, section.integer("image_size"), patch)
    return [
        Parameter(name=f"{prefix}.class_embedding", replicated=width),
        convolution(f"{prefix}.patch_embedding", channels, width, (patch, patch), bias=bias),
        table(f"{prefix}.position_embedding", side * side + 1, width),
    ]


def patches_per_side(section: Section, image_size: int, patch_size: int) -> int:
    """Patches along one side of the square input image."""
    if image_size < patch_size:
        raise section.contradicting("image_size", f"an image of {image_size} has no patch of {patch_size}")
    return image_size // patch_size


def input_limits(section: Section, max_tokens: int, patches_per_token: int = 1) -> VisionEncoder:
    """What the profile run must know of an encoder whose largest input is `max_tokens`."""
    return VisionEncoder(
        hidden_size=section.integer("hidden_size"),
        intermediate_size=section.integer("intermediate_size"),
        max_tokens_per_item=max_tokens,
        patches_per_token=patches_per_token,
    )


def with_images(
    built: Architecture, modules: Iterable[Module], limits: VisionEncoder | None, layer_prefix: str = ""
) -> Architecture:
    """The model with `modules` on every pipeline stage, and what its profile run must know of images."""
    return replace(
        built,
        every=tuple(modules),
        vision=limits,
        is_multimodal=True,
        layer_prefix=layer_prefix or built.layer_prefix,
    )


def square_limits(section: Section, merge: int = 1, tiles: int = 1) -> VisionEncoder:
    """The same for `tiles` square images, whose squares of `merge` × `merge` patches become one token each."""
    side = patches_per_side(section, section.integer("image_size"), section.integer("patch_size"))
    return input_limits(section, (side // merge) ** 2 * tiles, merge * merge)


def feature_layers(root: Section, vision: Section, default: int = -2) -> int:
    """How many blocks of the encoder are built: up to the deepest layer whose features are used.

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
        raise root.contradicting("vision_feature_layer", f"the encoder has {total} layers")
    return max(counts)


def downsampling(root: Section) -> float:
    """Patches along a side that a pixel shuffle makes one, from its ratio."""
    ratio = root.number("downsample_ratio", 0.5)
    if not 0 < ratio <= 1:
        raise root.invalid("downsample_ratio", ratio, "expected more than 0 and at most 1")
    return 1 / ratio


def patch_merger(name: str, width: int, merge: int) -> Linear:
    """A projection of a square of patches to one, whole on every rank."""
    return whole(name, width * merge * merge, width, bias=False)


PIXTRAL: Final = replace(
    GATED,
    qkv="attention.qkv_proj",
    out="attention.o_proj",
    up="feed_forward.gate_up_proj",
    down="feed_forward.down_proj",
    gate=("feed_forward.gate_proj", "feed_forward.up_proj"),
    norms=("attention_norm", "ffn_norm"),
    qkv_bias=False,
    out_bias=False,
    mlp_bias=False,
)


def pixtral(section: Section, layers: int, prefix: str = "vision_tower") -> tuple[Module, ...]:
    """Pixtral in its Hugging Face layout up to `layers` blocks.

    Source: vllm/model_executor/models/pixtral.py:PixtralHFVisionModel (0.32).
    """
    width, intermediate = section.integer("hidden_size"), section.integer("intermediate_size")
    heads = square_heads(section, width)
    patch = section.integer("patch_size", maximum=4096)
    channels = section.integer("num_channels", 3, maximum=64)
    return (
        convolution(f"{prefix}.patch_conv", channels, width, (patch, patch), bias=False),
        norm(f"{prefix}.ln_pre", width),
        *blocks(PIXTRAL, f"{prefix}.transformer.layers", layers, heads, intermediate),
    )


MOONVIT: Final = Block(qkv="wqkv.qkv_proj", out="wo", up="mlp.fc0", down="mlp.fc1", norms=("norm0", "norm1"))


def moonvit(
    vision: Section, text: int, keys: str = "vt_", projector: str = "mm_projector"
) -> tuple[Module, ...]:
    """MoonViT, in the later one with space and time, and its patch-merging projector.

    Source: vllm/model_executor/models/kimi_k25_vit.py, moonvit.py, kimi_vl.py (0.32).
    """
    width, patch = vision.integer(f"{keys}hidden_size"), vision.integer("patch_size")
    positions = vision.integer("init_pos_emb_height") * vision.integer("init_pos_emb_width")
    merge = vision.integers("merge_kernel_size", minimum=1) or (2, 2)
    if len(merge) != 2:
        raise vision.invalid("merge_kernel_size", merge, "expected two numbers")
    count, intermediate = (
        vision.integer(f"{keys}num_attention_heads"),
        vision.integer(f"{keys}intermediate_size"),
    )
    prefix, grouped = "vision_tower.encoder", width * merge[0] * merge[1]
    layers = vision.layers(f"{keys}num_hidden_layers")
    heads, encoder = heads_of(width, count), list[Module]()
    for index in range(layers):
        attention, out, up, down, *norms = block(MOONVIT, f"{prefix}.blocks.{index}.", heads, intermediate)
        encoder += (*norms, up, down, attention, out)
    return (
        convolution("vision_tower.patch_embed.proj", 3, width, (patch, patch), bias=True),
        table("vision_tower.patch_embed.pos_emb", positions, width),
        norm(f"{prefix}.final_layernorm", width, bias=True),
        norm(f"{projector}.pre_norm", width, bias=True),
        *whole_pair(projector, grouped, grouped, text),
        *change_linears(encoder, quantizable=False, whole_unless_divided=count),
    )


def gemma4_vision(vision: Section, text: int) -> tuple[Module, ...]:
    """Gemma 4's image encoder, whole on every rank, and its projection.

    Source: transformers 5.19, models/gemma4/modeling_gemma4.py:Gemma4VisionModel;
    vllm/model_executor/models/gemma4_mm.py (0.32).
    """
    width, intermediate = vision.integer("hidden_size"), vision.integer("intermediate_size")
    head = vision.integer("head_dim")
    queries = vision.integer("num_attention_heads") * head
    keys = vision.integer("num_key_value_heads", queries // head) * head
    layer = 2 * width * (queries + keys) + 3 * width * intermediate + 4 * width + 2 * head
    pixels = vision.integer("num_channels", 3) * vision.integer("patch_size") ** 2
    positions = 2 * vision.integer("position_embedding_size")
    prefix = "vision_tower.encoder.layers"
    return (
        table("vision_tower.patch_embedder", pixels + positions, width),
        *(Parameter(name=f"{prefix}.{index}", replicated=layer) for index in range(vision.layers())),
        replicated("embed_vision.embedding_projection", width, text),
    )


def q_former(section: Section, prefix: str) -> tuple[Module, ...]:
    """A Q-Former, whole on every rank: queries that attend to themselves and, in every so many blocks, to the encoder.

    Source: vllm/model_executor/models/blip2.py:Blip2QFormerModel (0.32).
    """
    width, intermediate = section.integer("hidden_size"), section.integer("intermediate_size")
    encoder, period = section.integer("encoder_hidden_size"), section.integer("cross_attention_frequency")
    modules: list[Module] = [norm(f"{prefix}.layernorm", width, bias=True)]
    for index in range(section.layers()):
        layer = f"{prefix}.encoder.layer.{index}"
        sources = {"attention": width} | ({"crossattention": encoder} if index % period == 0 else {})
        for name, source in sources.items():
            modules.append(whole(f"{layer}.{name}.attention.query", width, width))
            modules += wholes(f"{layer}.{name}.attention", ("key", "value"), source, width)
            modules.append(whole(f"{layer}.{name}.output.dense", width, width))
            modules.append(norm(f"{layer}.{name}.output.LayerNorm", width, bias=True))
        names = ("intermediate_query.dense", "output_query.dense")
        modules += whole_pair(layer, width, intermediate, width, names)
        modules.append(norm(f"{layer}.output_query.LayerNorm", width, bias=True))
    return tuple(modules)
