"""What encoders of images and audio are made of next to decoders: whole layers, convolutions, tables.

Every pipeline stage has the whole encoder. Its blocks are sharded over tensor parallel ranks like a decoder's; patch
and position tables are whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from msgspec import Struct

from kvcore.model.architecture import (
    Architecture,
    AudioEncoder,
    Linear,
    Module,
    Output,
    Parameter,
    RotaryTable,
    Split,
    VisionEncoder,
    VocabEmbedding,
)
from kvcore.model.parts.blocks import replicated


class Encoder(Struct, frozen=True, kw_only=True):
    """An encoder with its projector, what the profile run must know of images and audio, and its rotary tables."""

    modules: tuple[Module, ...]
    vision: VisionEncoder | None = None
    audio: AudioEncoder | None = None
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


def with_images(
    built: Architecture,
    modules: Iterable[Module],
    limits: VisionEncoder | None,
    layer_prefix: str = "",
    audio: AudioEncoder | None = None,
) -> Architecture:
    """The model with `modules` on every pipeline stage, and what its profile run must know of images and audio."""
    return replace(
        built,
        every=tuple(modules),
        vision=limits,
        audio=audio,
        is_multimodal=True,
        layer_prefix=layer_prefix or built.layer_prefix,
    )
