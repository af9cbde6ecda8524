"""Checkpoints of packed integers: AWQ, GPTQ and AutoRound; and bitsandbytes, whose blocks are averages here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kvcore.model.config import MAX_NAMES, Section
from kvcore.model.quantization.formats import UNQUANTIZED, BlockScaled, Format
from kvcore.model.quantization.modules import (
    FragmentList,
    Kind,
    ModuleName,
    beginnings,
    canonical,
    is_encoder,
)
from kvcore.model.quantization.packed import BitsPerWeight, Mxfp4, Mxfp8, PackedInteger
from kvcore.model.quantization.patterns import Allowance, Patterns
from kvcore.model.quantization.scheme import Quantization, names_a_layer, unknown

NF4_BITS: Final = 4 + 32 / 64
NF4_DOUBLE_BITS: Final = 4 + 8 / 64 + 32 / (64 * 256)
"""bitsandbytes: a scale a block of 64 weights, float32, or one byte and a float32 a 256 of them."""
INT8_BITS: Final = 8


def read_awq(section: Section) -> Quantization:
    """AWQ: 4-bit, a zero point a group.

    Source: vllm/model_executor/layers/quantization/auto_awq.py:AutoAWQConfig (0.32).
    """
    bits = section.optional_integer("w_bit", minimum=1) or section.integer("bits", minimum=1)
    group = read_group_size(section, "q_group_size" if section.has("q_group_size") else "group_size")
    if bits != 4:
        raise unknown("awq", f"{bits} bits")
    weights = PackedInteger(
        bits=bits, group_size=group, zero_points=section.boolean("zero_point", True), keeps_groups=True
    )
    ignored = tuple(map(canonical, section.strings("modules_to_not_convert") or ()))
    ignore = FragmentList(ignored, Allowance())
    is_head_quantized = section.boolean("lm_head", False)

    def format_of(module: ModuleName) -> Format:
        is_left_alone = is_outside(module, is_head_quantized) or ignore.covers(module)
        return UNQUANTIZED if is_left_alone else weights

    return Quantization(
        method="awq",
        detail=f"{bits} bits, groups of {group}",
        format_of=format_of,
        depends_on_layer=names_a_layer(ignored),
    )


def is_outside(module: ModuleName, is_head_quantized: bool) -> bool:
    """Whether the module is of an encoder, or an embedding or lm_head that the checkpoint does not quantize."""
    return is_encoder(module) or (module.kind is Kind.VOCAB and not is_head_quantized)


def read_gptq(section: Section) -> Quantization:
    """GPTQ: 4 or 8 bits, with GPTQModel's `dynamic` rules and the list of quantized modules.

    Source: vllm/model_executor/layers/quantization/auto_gptq.py:AutoGPTQConfig, utils/gptq_utils.py (0.32).
    """
    bits = section.integer("bits", minimum=1)
    group = read_group_size(section, "group_size")
    dynamic = section.optional_section("dynamic")
    rules = tuple(
        (key, value) for key, value in (dynamic.raw if dynamic else {}).items() if isinstance(value, Mapping)
    )
    listed = tuple(map(canonical, flatten(section.sequence("modules_in_block_to_quantize", MAX_NAMES) or ())))
    allowance = Allowance()
    blocks = FragmentList(listed, allowance)
    patterns = Patterns([key.removeprefix("-:").removeprefix("+:") for key, _ in rules], allowance)
    is_head_quantized = section.boolean("lm_head", False)
    base = gptq_format(section, Section({}))

    def format_of(module: ModuleName) -> Format:
        if is_outside(module, is_head_quantized):
            return UNQUANTIZED
        if module.kind is not Kind.EXPERTS and listed and not blocks.covers(module):
            return UNQUANTIZED
        override = dynamic_override(module.name, rules, patterns)
        if override is None:
            return UNQUANTIZED
        return gptq_format(section, override) if override.raw else base

    return Quantization(
        method="gptq",
        detail=f"{bits} bits, groups of {group}" if group > 0 else f"{bits} bits, one scale per row",
        format_of=format_of,
        depends_on_layer=names_a_layer((*listed, *(key for key, _ in rules))),
    )


def gptq_format(section: Section, override: Section) -> PackedInteger:
    """The format of GPTQ weights, by the checkpoint's own values where a rule does not override them."""
    bits = override.integer("bits", section.integer("bits", minimum=1), minimum=1)
    group = read_group_size(override, "group_size", read_group_size(section, "group_size"))
    activation_order = override.boolean("desc_act", section.boolean("desc_act", False))
    if bits not in (2, 3, 4, 8):
        raise section.invalid("bits", bits, "expected 2, 3, 4 or 8")
    return PackedInteger(
        bits=bits,
        group_size=group,
        zero_points=not section.boolean("sym", True),
        expert_bias=True,
        activation_order=activation_order and group != -1,
    )


def dynamic_override(
    name: str, rules: tuple[tuple[str, Mapping[str, Any]], ...], patterns: Patterns
) -> Section | None:
    """The values that GPTQModel's `dynamic` overrides for a module; None to leave the module alone.

    Example:
        >>> patterns = Patterns([".*attn.*"], Allowance())
        >>> dynamic_override("model.layers.0.self_attn.qkv_proj", (("-:.*attn.*", {}),), patterns) is None
        True
    """
    first = patterns.first(name)
    key, values = ("", {}) if first is None else rules[first]
    return None if key.startswith("-:") else Section(values, "config.quantization_config.dynamic", "")


def read_auto_round(section: Section) -> Quantization:
    """AutoRound (Intel Neural Compressor): GPTQ or AWQ packing, MXFP, or block fp8, with per-module exceptions.

    Source: vllm/model_executor/layers/quantization/inc/inc.py, inc/config_parser.py (0.32).
    """
    bits = section.integer("bits", minimum=1)
    extra = section.optional_section("extra_config")
    exceptions = {canonical(name): values for name, values in (extra.raw if extra else {}).items()}
    blocks = section.get("block_name_to_quantize") or []
    if not isinstance(blocks, str | list | tuple):
        raise section.invalid("block_name_to_quantize", blocks, "expected a list")
    prefixes = frozenset(map(canonical, blocks.split(",") if isinstance(blocks, str) else flatten(blocks)))
    base = auto_round_format(section, bits)

    def format_of(module: ModuleName) -> Format:
        for name in (module.name, *module.shards, *(s for shards in module.expert_shards for s in shards)):
            values = exceptions.get(name)
            if isinstance(values, Mapping):
                own = Section(values, "config.quantization_config.extra_config", "").integer("bits", bits)
                return UNQUANTIZED if own >= 16 else auto_round_format(section, own)
        is_inside = not prefixes or not prefixes.isdisjoint(beginnings(module.name))
        return base if is_inside and not is_outside(module, False) else UNQUANTIZED

    return Quantization(
        method="auto-round",
        detail=f"{bits} bits",
        format_of=format_of,
        depends_on_layer=names_a_layer(exceptions),
    )


def auto_round_format(section: Section, bits: int) -> Format:
    """The format of AutoRound weights of `bits`."""
    data_type = section.string("data_type", "int")
    if "mx_fp" in data_type:
        return Mxfp8() if bits == 8 else Mxfp4(linears=True)
    if data_type.startswith("fp"):
        return BlockScaled(rows=128, columns=128)
    if bits not in (2, 4, 8):
        raise unknown("auto-round", f"{bits} bits")
    return PackedInteger(bits=bits, group_size=read_group_size(section, "group_size", 128), expert_bias=True)


def read_bitsandbytes(section: Section) -> Quantization:
    """bitsandbytes: 4-bit blocks with their scales, or 8-bit.

    Source: vllm/model_executor/layers/quantization/bitsandbytes.py:BitsAndBytesConfig (0.19).
    """
    if section.boolean("load_in_8bit", section.boolean("_load_in_8bit", False)):
        bits: float = INT8_BITS
    else:
        is_double = section.boolean("bnb_4bit_use_double_quant", False)
        bits = NF4_DOUBLE_BITS if is_double else NF4_BITS
    return bitsandbytes(bits, map(canonical, section.strings("llm_int8_skip_modules") or ()))


def bitsandbytes(bits: float = NF4_BITS, skipped: Iterable[str] = ()) -> Quantization:
    """bitsandbytes at `bits` a weight, `--quantization bitsandbytes` on a 16-bit checkpoint included."""
    weights = BitsPerWeight(bits=bits)
    names = frozenset(skipped)

    def is_skipped(name: str) -> bool:
        return not (names.isdisjoint(name.split(".")) and names.isdisjoint(beginnings(name)))

    def format_of(module: ModuleName) -> Format:
        is_left_alone = module.kind is Kind.VOCAB or any(map(is_skipped, module.shards))
        return UNQUANTIZED if is_left_alone else weights

    return Quantization(method="bitsandbytes", detail=f"{bits:.4g} bits", format_of=format_of)


def flatten(values: Sequence[object]) -> tuple[str, ...]:
    """The texts of a list, and of the lists in it.

    Example:
        >>> flatten(["a", ["b", "c"]])
        ('a', 'b', 'c')
    """
    lists = (value if isinstance(value, list | tuple) else (value,) for value in values)
    return tuple(text for texts in lists for text in texts if isinstance(text, str))


def read_group_size(section: Section, name: str, default: int | None = None) -> int:
    """Inputs a scale, -1 for one scale a row."""
    size = section.integer(name, default, minimum=-1)
    if size == 0:
        raise section.invalid(name, size, "expected -1 or a positive number")
    return size
