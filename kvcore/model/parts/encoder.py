"""The pieces that encoders of images and audio share: sizes, blocks, tables, and the model around them.

Every pipeline stage has the whole encoder. Its blocks are sharded over tensor parallel ranks like a decoder's; patch
and position tables are whole on every rank. Layers have a bias, and norms are layer norms, unless said otherwise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import ModelError
from kvcore.base.words import NONE_NAMED
from kvcore.model import architecture as arch
from kvcore.model.config import MAX_LAYERS, Section
from kvcore.model.parts import blocks

Modules: TypeAlias = tuple[arch.Module, ...]

MAX_PATCH: Final = 4096
"""Pixels along the side of a patch."""
MAX_MERGE: Final = 64
"""Patches along the side of a square that becomes one token, channels of an image, frames of a patch."""
THREE: Final = ("q_proj", "k_proj", "v_proj")


class Encoder(Struct, frozen=True, kw_only=True):
    """An encoder with its projector, its figures for the profile run, and its rotary tables."""

    modules: Modules
    vision: arch.VisionEncoder | None = None
    audio: arch.AudioEncoder | None = None
    tables: tuple[arch.RotaryTable, ...] = ()


class Sizes(Struct, frozen=True, kw_only=True):
    """Sizes of a transformer."""

    width: int
    inner: int
    heads: int
    head: int
    kv_heads: int
    attended: int
    """Elements that attention gives back."""
    layers: int


def read_sizes(
    section: Section,
    width: str | int = "hidden_size",
    inner: str | int = "intermediate_size",
    heads: str | int = "num_attention_heads",
    layers: str | int = "num_hidden_layers",
    *,
    head: int | None = None,
    is_checked: bool = True,
) -> Sizes:
    """Sizes as numbers, or under keys of the config.

    Raises ModelError where the heads do not divide the width, unless `is_checked` is false or `head` gives their size.

    Example:
        >>> section = Section({"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4})
        >>> read_sizes(section, layers=2).head
        16
    """
    wide = section.integer(width) if isinstance(width, str) else width
    count = section.integer(heads) if isinstance(heads, str) else heads
    if head is None and is_checked and wide % count:
        raise section.contradicting("hidden_size", f"{wide} is not divisible by {count} attention heads")
    size = wide // count if head is None else head
    return Sizes(
        width=wide,
        inner=section.integer(inner) if isinstance(inner, str) else inner,
        heads=count,
        head=size,
        kv_heads=count,
        attended=count * size if is_checked else wide,
        layers=section.layers(layers) if isinstance(layers, str) else layers,
    )


def as_heads(own: Sizes) -> blocks.Heads:
    """The attention of a transformer, as decoders have it."""
    return blocks.Heads(
        hidden_size=own.width, num_heads=own.heads, num_kv_heads=own.kv_heads, head_dim=own.head
    )


def with_kv_heads(section: Section, own: Sizes) -> Sizes:
    """The sizes with the KV heads that the config names; as many as queries unless it does."""
    found = section.optional_integer("num_key_value_heads")
    return replace(own, kv_heads=blocks.with_kv_heads(section, as_heads(own), found).num_kv_heads)


def share(section: Section, width: int, default: float | None = None) -> int:
    """The width of an MLP that the config gives as a multiple of the model's, `mlp_ratio`."""
    return int(width * section.number("mlp_ratio", default))


def pair(section: Section, name: str, default: int | None = None) -> tuple[int, int]:
    """Two integers."""
    found = section.integers(name, minimum=1) or (() if default is None else (default, default))
    if len(found) != 2:
        raise section.invalid(name, found, "expected two numbers")
    return found[0], found[1]


def square(section: Section, name: str, default: int | None = None) -> int:
    """An integer, or a list of it for both sides."""
    if not isinstance(section.get(name), list):
        return section.integer(name, default)
    sides = set(section.integers(name, minimum=1) or ())
    if len(sides) != 1:
        raise section.contradicting(name, f"{name} is no square")
    return sides.pop()


def patches_a_side(section: Section, image: int, patch: int) -> int:
    """Patches along one side of a square image."""
    if image < patch:
        raise section.contradicting("image_size", f"an image of {image} has no patch of {patch}")
    return image // patch


def read_patches(section: Section) -> tuple[int, int]:
    """Pixels along the side of a patch, and patches along the side of the square input image."""
    image, patch = section.integer("image_size"), section.integer("patch_size", maximum=MAX_PATCH)
    return patch, patches_a_side(section, image, patch)


def read_channels(section: Section, name: str = "num_channels") -> int:
    """Channels of an image."""
    return section.integer(name, 3, maximum=MAX_MERGE)


def read_merge(section: Section, name: str = "spatial_merge_size", default: int | None = None) -> int:
    """Patches along the side of a square that becomes one token."""
    return section.integer(name, default, maximum=MAX_MERGE)


def read_feature_layers(root: Section, total: int, last: int) -> int:
    """Blocks that are built: up to the deepest layer whose features are used, `last` unless the config names any.

    Source: vllm/model_executor/models/llava.py:_get_num_hidden_layers (0.32).
    """
    wanted = root.get("vision_feature_layer")
    chosen = (last,) if wanted is None else wanted if isinstance(wanted, list | tuple) else (wanted,)
    counts = []
    for index in chosen:
        if isinstance(index, bool) or not isinstance(index, int) or not -MAX_LAYERS <= index <= MAX_LAYERS:
            raise root.invalid("vision_feature_layer", index, "expected an integer or a list of them")
        counts.append(total + index + 1 if index < 0 else index)
    if not counts or not 0 < max(counts) <= total:
        raise root.contradicting("vision_feature_layer", f"the encoder has {total} layers")
    return max(counts)


def images(own: Sizes, tokens: int, patches: int = 1, **more: Any) -> arch.VisionEncoder:
    """Figures for the profile run: `tokens` of the largest image, each of so many `patches`."""
    return arch.VisionEncoder(
        hidden_size=own.width,
        intermediate_size=own.inner,
        max_tokens_per_item=tokens,
        patches_per_token=patches,
        **more,
    )


def sound(own: Sizes, tokens: int, positions: int, values: int, **more: Any) -> arch.AudioEncoder:
    """Figures for the profile run: `tokens`, positions of the encoder and values that go in, of each chunk."""
    return arch.AudioEncoder(
        hidden_size=own.width,
        intermediate_size=own.inner,
        tokens_per_chunk=tokens,
        positions_per_chunk=positions,
        values_per_chunk=values,
        **more,
    )


def seeing(modules: Modules, *sizes: Any, **more: Any) -> Encoder:
    """An encoder of images with its figures for the profile run: `sizes` are those of `images`."""
    return Encoder(modules=modules, vision=images(*sizes, **more))


def hearing(modules: Modules, *sizes: Any, **more: Any) -> Encoder:
    """An encoder of audio with its figures for the profile run: `sizes` are those of `sound`."""
    return Encoder(modules=modules, audio=sound(*sizes, **more))


def tensor(name: str, *sizes: int, dtype: str = "") -> arch.Parameter:
    """A tensor that every rank has whole: a table of positions, a vector."""
    return arch.Parameter(name=name, replicated=math.prod(sizes), dtype=dtype)


def convolution(
    name: str, in_channels: int, out_channels: int, *kernel: int, bias: bool = True
) -> arch.Parameter:
    """A convolution, replicated."""
    elements = in_channels * out_channels * math.prod(kernel)
    return arch.Parameter(name=name, replicated=elements + (out_channels if bias else 0))


def norm(name: str, size: int, *, bias: bool = True) -> arch.Parameter:
    """A layer norm, or without a bias an RMS norm."""
    return blocks.norm(name, size, bias=bias)


def column(name: str, in_features: int, out_features: int, *, bias: bool = True) -> arch.Linear:
    """A layer whose output features are divided."""
    return blocks.column(name, in_features, out_features, bias=bias)


def row(name: str, in_features: int, out_features: int, *, bias: bool = True) -> arch.Linear:
    """A layer whose input features are divided."""
    return blocks.row(name, in_features, out_features, bias=bias)


def whole(name: str, in_features: int, out_features: int, *, bias: bool = True) -> arch.Linear:
    """A layer that no rank shards and no quantizer touches."""
    return blocks.replicated(name, in_features, out_features, bias=bias, quantizable=False)


def merged(
    name: str, in_features: int, half: int, parts: tuple[str, ...] = (), *, bias: bool = True
) -> arch.Linear:
    """Two sharded layers of `half` outputs each as one."""
    outputs = (arch.Output(units=half), arch.Output(units=half))
    return arch.Linear(
        name=name, in_features=in_features, outputs=outputs, split=arch.Split.COLUMN, bias=bias, parts=parts
    )


def sharded_table(name: str, rows: int, columns: int) -> arch.VocabEmbedding:
    """A table that is sharded like the vocabulary."""
    return arch.VocabEmbedding(name=name, num_embeddings=rows, embedding_dim=columns)


def changed(modules: Iterable[arch.Module], **fields: Any) -> Modules:
    """The modules with other values of their linear layers."""
    return tuple(replace(each, **fields) if isinstance(each, arch.Linear) else each for each in modules)


def never_sharded(modules: Iterable[arch.Module]) -> Modules:
    """The modules with linear layers that every rank has whole and unquantized, whatever their class."""
    return changed(modules, split=arch.Split.REPLICATED, quantizable=False, parts=())


def behind(prefix: str, modules: Iterable[arch.Module]) -> Modules:
    """The modules with their names, and those of their parts, behind a prefix.

    Example:
        >>> behind("tower", (norm("ln", 8), norm("", 8)))[0].name
        'tower.ln'
    """
    found: list[arch.Module] = []
    for module in modules:
        name = f"{prefix}.{module.name}".rstrip(".")
        if isinstance(module, arch.Linear) and module.parts:
            module = replace(module, parts=tuple(f"{prefix}.{part}" for part in module.parts))
        found.append(replace(module, name=name))
    return tuple(found)


def under(prefix: str, seen: Encoder) -> Encoder:
    """The encoder with its modules behind a prefix."""
    return replace(seen, modules=behind(prefix, seen.modules))


def repeated(name: str, count: int, modules: Iterable[arch.Module]) -> Modules:
    """The modules `count` times, behind the number of each."""
    block = tuple(modules)
    return tuple(module for index in range(count) for module in behind(f"{name}.{index}", block))


def when(is_there: bool, *modules: arch.Module) -> Modules:
    """The modules of a model that has them."""
    return modules if is_there else ()


class Names(Struct, frozen=True):
    """The names of a block: the fused attention, the output, both layers of the MLP, both norms."""

    qkv: str
    out: str
    up: str
    down: str
    norms: tuple[str, str]
    parts: tuple[str, ...] = THREE
    """The checkpoint's names of the layers in `qkv`."""


TIMM: Final = Names("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2", ("norm1", "norm2"))
TIMM_GATED: Final = replace(TIMM, up="mlp.gate_up_proj", down="mlp.down_proj")
CLIP: Final = Names(
    "self_attn.qkv_proj", "self_attn.out_proj", "mlp.fc1", "mlp.fc2", ("layer_norm1", "layer_norm2")
)
LLAMA: Final = replace(CLIP, out="self_attn.o_proj", norms=blocks.TWO_NORMS)
WHISPER: Final = replace(CLIP, up="fc1", down="fc2", norms=("self_attn_layer_norm", "final_layer_norm"))
PIXTRAL: Final = Names(
    "attention.qkv_proj",
    "attention.o_proj",
    "feed_forward.gate_up_proj",
    "feed_forward.down_proj",
    ("attention_norm", "ffn_norm"),
)
MOONVIT: Final = Names("wqkv.qkv_proj", "wo", "mlp.fc0", "mlp.fc1", ("norm0", "norm1"))


def attention(own: Sizes, names: Names, *, bias: bool = True, out_bias: bool = True) -> Modules:
    """The layers around the attention of a block."""
    return (
        blocks.qkv(as_heads(own), names.qkv, names.parts, bias=bias),
        row(names.out, own.attended, own.width, bias=out_bias),
    )


def mlp(own: Sizes, names: Names, *, gates: tuple[str, ...] = (), bias: bool = True) -> Modules:
    """The MLP of a block; with a gate where the names of the two fused layers are given."""
    up = (
        merged(names.up, own.width, own.inner, gates, bias=bias)
        if gates
        else column(names.up, own.width, own.inner, bias=bias)
    )
    return up, row(names.down, own.inner, own.width, bias=bias)


def norms(own: Sizes, names: Names, *, bias: bool = True) -> Modules:
    """Both norms of a block."""
    return blocks.norms(own.width, *names.norms, bias=bias)


def block(
    own: Sizes, names: Names, *, bias: bool = True, qkv_bias: bool | None = None, norm_bias: bool = True
) -> Modules:
    """Attention, an MLP of two layers and two norms."""
    return (
        *attention(own, names, bias=bias if qkv_bias is None else qkv_bias, out_bias=bias),
        *mlp(own, names, bias=bias),
        *norms(own, names, bias=norm_bias),
    )


GATES: Final = ("mlp.gate_proj", "mlp.up_proj")


def gated_block(
    own: Sizes, names: Names = TIMM_GATED, gates: tuple[str, ...] = GATES, *, bias: bool = True
) -> Modules:
    """A block like a decoder's: a gate, RMS norms."""
    return (
        *attention(own, names, bias=bias, out_bias=bias),
        *mlp(own, names, gates=gates, bias=bias),
        *norms(own, names, bias=False),
    )


def with_encoders(built: arch.Architecture, seen: Encoder, layer_prefix: str = "") -> arch.Architecture:
    """The model with an encoder on every pipeline stage, with its figures for the profile run and rotary tables."""
    return dataclasses.replace(
        built,
        every=seen.modules,
        vision=seen.vision,
        audio=seen.audio,
        is_multimodal=True,
        layer_prefix=layer_prefix or built.layer_prefix,
        rotary_tables=(*built.rotary_tables, *seen.tables),
    )


def not_read(section: Section, named: str, *, reason: str, key: str = "model_type") -> ModelError:
    """The error that a section names something unknown."""
    return ModelError(
        "unknown-architecture",
        field=f"{section.path}.{key}",
        architecture=named or NONE_NAMED,
        reason=reason,
    )
