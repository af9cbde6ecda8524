"""compressed-tensors (LLM Compressor): config groups with targets, each with its own weights and activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvcore.model.config import Section
from kvcore.model.quantization.automaton import Allowance
from kvcore.model.quantization.byte_wide import names_a_layer, read_block, unknown
from kvcore.model.quantization.formats import (
    FLOAT32_BYTES,
    UNQUANTIZED,
    BlockScaled,
    ChannelScaled,
    Format,
    TensorScaled,
)
from kvcore.model.quantization.modelopt import scheme_dtype
from kvcore.model.quantization.module_lists import PatternList
from kvcore.model.quantization.names import Kind, ModuleName, canonical, is_encoder
from kvcore.model.quantization.packed import Mxfp4, Mxfp8, Nvfp4, PackQuantized
from kvcore.model.quantization.scheme import Quantization

METHOD: Final = "compressed-tensors"

ATTENTION_SCALE_BYTES: Final = 3 * (4 + 2)
"""Scales (float32) and zero points (16 bits) of queries, keys and values.

Source: vllm/.../compressed_tensors/compressed_tensors.py:CompressedTensorsKVCacheMethod (0.32).
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """One config group."""

    targets: tuple[str, ...]
    weights: Format

    @property
    def is_general(self) -> bool:
        """Whether it is meant for every linear layer."""
        return "Linear" in self.targets


def read_compressed_tensors(section: Section) -> Quantization:
    """The groups of a compressed-tensors checkpoint.

    A group for all of `Linear` is not applied to encoders, which its recipes leave alone, listed or not.

    Source: vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors.py:CompressedTensorsConfig
    (0.32).
    """
    allowance = Allowance()
    ignored = tuple(map(canonical, section.strings("ignore") or ()))
    ignore = PatternList(ignored, allowance)
    groups = read_groups(section, allowance)
    targets = [(PatternList(group.targets, allowance), group.weights) for group in groups]
    general = next((group.weights for group in groups if group.is_general), UNQUANTIZED)

    def format_of(module: ModuleName) -> Format:
        if ignore.covers(module):
            return UNQUANTIZED
        for target, weights in targets:
            if target.covers(module):
                return weights
        return UNQUANTIZED if module.kind is Kind.VOCAB or is_encoder(module) else general

    scheme = section.optional_section("kv_cache_scheme")
    names = (*ignored, *(target for group in groups for target in group.targets))
    return Quantization(
        method=METHOD,
        detail=section.string("format", ""),
        format_of=format_of,
        depends_on_layer=names_a_layer(names),
        kv_cache_dtype=scheme_dtype(scheme) if scheme else "",
        attention_scale_bytes=ATTENTION_SCALE_BYTES,
    )


def read_groups(section: Section, allowance: Allowance) -> tuple[Group, ...]:
    """The config groups, but for those of attention alone, which concern the KV cache.

    Raises ModelError `too-many-patterns`: a group costs no less than a pattern.
    """
    table = section.optional_section("config_groups")
    if table is None:
        return ()
    groups = []
    for name in table.raw:
        allowance.take_pattern(characters=0)
        written = table.section(name)
        targets = written.strings("targets") or ()
        if len(targets) == 1 and targets[0].endswith("Attention"):
            continue
        weights = group_format(written, written.string("format", "") or section.string("format", ""))
        groups.append(Group(targets=tuple(map(canonical, targets)), weights=weights))
    return tuple(groups)


def group_format(group: Section, packing: str) -> Format:
    """The format of one config group.

    Source: vllm/.../compressed_tensors/compressed_tensors.py:_get_scheme_from_parts (0.32).
    """
    weights = group.section("weights")
    inputs = group.optional_section("input_activations")
    bits = weights.integer("num_bits")
    kind = weights.string("type", "int")
    strategy = weights.string("strategy", "")
    size = weights.optional_integer("group_size", minimum=-1) or None
    is_static = inputs is not None and not inputs.get("dynamic")
    if kind == "float" and bits == 4:
        return (
            Mxfp4(linears=True)
            if size == 32
            else Nvfp4(
                group_size=size if size is not None and size > 0 else 16, input_scale=inputs is not None
            )
        )
    if kind == "float" and bits == 8 and strategy == "group" and size == 32:
        return Mxfp8()
    if kind == "int" and packing == "pack-quantized" and bits in (2, 3, 4, 8):
        is_grouped = strategy == "group" and size is not None
        return PackQuantized(
            bits=bits,
            group_size=size if is_grouped and size is not None else -1,
            symmetric=weights.boolean("symmetric", True),
        )
    if bits != 8:
        raise unknown(METHOD, f"{bits}-bit {kind} in {packing}")
    if strategy == "block":
        block = read_block(weights, "block_structure") or (128, 128)
        return BlockScaled(rows=block[0], columns=block[1])
    if kind == "float":
        if strategy == "tensor":
            return TensorScaled(static_input=is_static)
        return ChannelScaled(input_bytes_per_part=FLOAT32_BYTES if is_static else 0)
    is_symmetric_input = inputs is None or inputs.boolean("symmetric", True)
    input_bytes = (FLOAT32_BYTES + (0 if is_symmetric_input else 1)) if is_static else 0
    if strategy == "tensor":
        return TensorScaled(static_input=is_static)
    return ChannelScaled(input_bytes=input_bytes)
