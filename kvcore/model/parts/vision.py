"""Pieces of image encoders: blocks as rows, patches and positions, projectors, and the limits of an input.

Every pipeline stage has the whole encoder. Its blocks are sharded over tensor parallel ranks like a decoder's; patch
and position tables are whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

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
from kvcore.model.parts.blocks import Heads, replicated


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoder:
    """An encoder with its projector, what the profile run must know of its images, and its rotary tables."""

    modules: tuple[Module, ...]
    vision: VisionEncoder | None = None
    tables: tuple[RotaryTable, ...] = ()


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


LINEARS: Final = ("linear_1", "linear_2")


def whole_pair(
    prefix: str, width: int, inner: int, out: int, names: tuple[str, str] = LINEARS, *, bias: bool = True
) -> tuple[Linear, Linear]:
    """Two layers of a projector, whole on every rank."""
    first = whole(f"{prefix}.{names[0]}", width, inner, bias=bias)
    return first, whole(f"{prefix}.{names[1]}", inner, out, bias=bias)


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


def square_limits(section: Section) -> VisionEncoder:
    """The same for a square image, each patch of which becomes a token."""
    side = patches_per_side(section, section.integer("image_size"), section.integer("patch_size"))
    return input_limits(section, side**2)


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
