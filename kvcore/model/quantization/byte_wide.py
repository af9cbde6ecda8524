"""Checkpoints with one byte a weight: fp8 of several makers, fbgemm, Quark, experts_int8, and fp8 made
while loading.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvcore.errors import ModelError
from kvcore.model.config import Section
from kvcore.model.quantization.automaton import Allowance
from kvcore.model.quantization.formats import (
    FLOAT32_BYTES,
    UNQUANTIZED,
    BlockScaled,
    ChannelScaled,
    Format,
    TensorScaled,
)
from kvcore.model.quantization.module_lists import NameList, PatternList
from kvcore.model.quantization.names import Kind, ModuleName, canonical, is_encoder, is_quantized_encoder
from kvcore.model.quantization.packed import Mxfp4, Mxfp8, Nvfp4
from kvcore.model.quantization.scheme import FormatOf, Quantization

ATTENTION_SCALE_BYTES: Final = 4 * 2
"""Query, key, value and probability scale in the model's 16 bits.

Source: vllm/.../quantization/kv_cache.py:BaseKVCacheMethod (0.32).
"""

ONLINE: Final[Mapping[str, Format]] = {
    "fp8": TensorScaled(),
    "fp8_per_tensor": TensorScaled(),
    "fp8_per_channel": ChannelScaled(),
    "fp8_per_block": BlockScaled(rows=128, columns=128, is_made_while_loading=True),
    "mxfp8": Mxfp8(),
    "mxfp4": Mxfp4(linears=True),
}
"""What `--quantization` makes of 16-bit linear layers. Source: vllm/config/quantization.py (0.32); fp8.py (0.19)."""

ONLINE_EXPERTS: Final[Mapping[str, Format]] = {
    "experts_int8": ChannelScaled(),
    "int8_per_channel_weight_only": ChannelScaled(),
}
"""What `--quantization` makes of experts alone."""


def read_fp8(section: Section) -> Quantization:
    """fp8 as DeepSeek, Qwen and Mistral publish it: blocks, or one scale a tensor.

    Source: vllm/model_executor/layers/quantization/fp8.py:Fp8Config.from_config (0.32).
    """
    block = read_block(section, "weight_block_size")
    is_static = section.string("activation_scheme", "dynamic") == "static"
    weights: Format = TensorScaled(static_input=is_static)
    if block is not None:
        weights = BlockScaled(rows=block[0], columns=block[1])
    ignored = section.strings("ignored_layers") or section.strings("modules_to_not_convert") or ()
    return Quantization(
        method="fp8",
        detail=f"{block[0]} × {block[1]} blocks" if block else "one scale per tensor",
        format_of=all_but_listed(weights, ignored),
        depends_on_layer=names_a_layer(ignored),
        attention_scale_bytes=ATTENTION_SCALE_BYTES,
    )


def read_block(section: Section, name: str) -> tuple[int, int] | None:
    """Rows and columns that share a scale, or None where the checkpoint names none."""
    block = section.integers(name, minimum=1)
    if block is None:
        return None
    if len(block) != 2:
        raise section.invalid(name, block, "expected two numbers")
    return block[0], block[1]


def read_deepseek_v4(section: Section, language: Section) -> Quantization:
    """DeepSeek-V4: fp8 blocks, and experts in MXFP4, NVFP4 or fp8 as `expert_dtype` and `moe_quant_algo` say.

    Source: vllm/models/deepseek_v4/quant_config.py:DeepseekV4FP8Config (0.32).
    """
    block = read_block(section, "weight_block_size") or (128, 128)
    is_fp4 = language.string("expert_dtype", "fp4") == "fp4"
    linears = BlockScaled(rows=block[0], columns=block[1], scale_bytes=1 if is_fp4 else FLOAT32_BYTES)
    experts: Format = linears
    if is_fp4:
        is_nvfp4 = section.string("moe_quant_algo", "").upper() == "NVFP4"
        experts = Nvfp4() if is_nvfp4 else Mxfp4()

    def format_of(module: ModuleName) -> Format:
        return {Kind.LINEAR: linears, Kind.EXPERTS: experts, Kind.VOCAB: UNQUANTIZED}[module.kind]

    return Quantization(
        method="deepseek_v4_fp8",
        detail="fp8 blocks, 4-bit experts" if is_fp4 else "fp8 blocks",
        format_of=format_of,
    )


def read_fbgemm(section: Section) -> Quantization:
    """fbgemm's fp8: one scale a row, an upper bound a layer; experts stay in the model's dtype.

    Source: vllm/model_executor/layers/quantization/fbgemm_fp8.py (0.32).
    """
    ignored = section.strings("modules_to_not_convert") or ()
    weights = ChannelScaled(input_bytes=FLOAT32_BYTES)
    return Quantization(
        method="fbgemm_fp8",
        detail="one scale per row",
        format_of=all_but_listed(weights, ignored, kinds=(Kind.LINEAR,)),
        depends_on_layer=names_a_layer(ignored),
    )


def read_quark(section: Section) -> Quantization:
    """AMD Quark: fp8 or int8 with a scale a tensor, row or block, or MXFP4, by one global config.

    Source: vllm/model_executor/layers/quantization/quark/quark.py:QuarkConfig (0.32).
    """
    weight = section.section("global_quant_config").section("weight")
    inputs = section.section("global_quant_config").optional_section("input_tensors")
    if section.raw.get("layer_quant_config") or section.raw.get("layer_type_quant_config"):
        raise unknown("quark", "per-layer configs")
    is_static = inputs is not None and not inputs.boolean("is_dynamic", False)
    ignored = section.strings("exclude") or ()
    kind = (weight.string("dtype"), weight.string("qscheme"))
    return Quantization(
        method="quark",
        detail=" ".join(kind),
        format_of=all_but_patterns(quark_format(kind, is_static), ignored),
        depends_on_layer=names_a_layer(ignored),
        attention_scale_bytes=ATTENTION_SCALE_BYTES,
    )


def quark_format(kind: tuple[str, str], is_static: bool) -> Format:
    """The format of Quark's weight dtype and scheme."""
    match kind:
        case ("fp8_e4m3" | "int8", "per_tensor"):
            return TensorScaled(static_input=is_static)
        case ("fp8_e4m3" | "int8", "per_channel"):
            return ChannelScaled(input_bytes_per_part=FLOAT32_BYTES if is_static else 0)
        case ("fp8_e4m3", "per_block"):
            return BlockScaled(rows=128, columns=128)
        case ("fp4", "per_group"):
            return Mxfp4(linears=True)
        case _:
            raise unknown("quark", " ".join(kind))


def online(requested: str) -> Quantization | None:
    """What `--quantization` makes of a 16-bit checkpoint while loading it; None for other methods.

    Source: vllm/model_executor/layers/quantization/online (0.32), fp8.py (0.19).
    """
    if requested in ONLINE:
        weights = ONLINE[requested]
        return Quantization(
            method=requested, detail="made while loading", format_of=all_but_listed(weights, ())
        )
    if requested in ONLINE_EXPERTS:
        weights = ONLINE_EXPERTS[requested]
        return Quantization(
            method=requested,
            detail="experts, made while loading",
            format_of=all_but_listed(weights, (), kinds=(Kind.EXPERTS,)),
        )
    return None


def all_but_listed(
    weights: Format, ignored: tuple[str, ...], kinds: tuple[Kind, ...] = (Kind.LINEAR, Kind.EXPERTS)
) -> FormatOf:
    """`weights` for modules of `kinds`, but for those that a plain list names, and most encoders.

    An encoder that the engine quantizes is left alone only where the list names each of its linear layers: naming the
    whole encoder does not count.

    Source: vllm/model_executor/layers/quantization/utils/quant_utils.py:is_layer_skipped, mode `exact` (0.32).
    """
    listed = NameList(map(canonical, ignored), Allowance())

    def format_of(module: ModuleName) -> Format:
        if module.kind not in kinds:
            return UNQUANTIZED
        if is_quantized_encoder(module):
            return UNQUANTIZED if listed.names.issuperset(module.shards) else weights
        return UNQUANTIZED if is_encoder(module) or listed.covers(module) else weights

    return format_of


def all_but_patterns(weights: Format, ignored: tuple[str, ...]) -> FormatOf:
    """`weights` for linear layers and experts, but for those that a list of names and `re:` patterns matches."""
    patterns = PatternList(map(canonical, ignored), Allowance())

    def format_of(module: ModuleName) -> Format:
        return UNQUANTIZED if module.kind is Kind.VOCAB or patterns.covers(module) else weights

    return format_of


def names_a_layer(names: tuple[str, ...]) -> bool:
    """Whether a list may treat two layers differently."""
    return any(character.isdigit() for name in names for character in name)


def unknown(method: str, reason: str) -> ModelError:
    """The error that a quantization is not one this project can count."""
    return ModelError(
        "unknown-quantization",
        field="config.quantization_config",
        method=f"{method} ({reason})",
    )
