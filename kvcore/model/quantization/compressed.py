"""Checkpoints of LLM Compressor (compressed-tensors) and of NVIDIA ModelOpt: config groups, each with its targets,
weights and activations; and one algorithm for all, or one for each layer, with or without the side file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

from msgspec.structs import replace

from kvcore.model.config import Section
from kvcore.model.quantization import formats
from kvcore.model.quantization.modules import (
    Kind,
    ModuleName,
    PatternList,
    PrefixIndex,
    WildcardList,
    canonical,
    is_encoder,
)
from kvcore.model.quantization.packed import Mxfp4, Mxfp8, Nvfp4, PackQuantized
from kvcore.model.quantization.patterns import Allowance
from kvcore.model.quantization.scheme import (
    ATTENTION_SCALE_BYTES,
    Quantization,
    names_a_layer,
    read_block,
    unknown,
)

COMPRESSED_TENSORS: Final = "compressed-tensors"
SCALE_AND_ZERO_POINT_BYTES: Final = 3 * (4 + 2)
"""Scales (float32) and zero points (16 bits) of queries, keys and values.

Source: vllm/.../compressed_tensors/compressed_tensors.py:CompressedTensorsKVCacheMethod (0.32).
"""

ALGORITHMS: Final[Mapping[str, tuple[str, formats.Format]]] = {
    "FP8": ("modelopt", formats.TensorScaled(static_input=True)),
    "FP8_PER_CHANNEL_PER_TOKEN": ("modelopt", formats.ChannelScaled()),
    "FP8_PB_WO": ("modelopt", formats.BlockScaled(rows=128, columns=128)),
    "FP8_BLOCK_SCALES": ("", formats.BlockScaled(rows=128, columns=128)),
    "NVFP4": ("modelopt_fp4", Nvfp4()),
    "W4A16_NVFP4": ("modelopt_fp4", Nvfp4(is_weight_only=True)),
    "MXFP8": ("modelopt_mxfp8", Mxfp8()),
}
"""ModelOpt's algorithms: the engine's name, "" for one that only a mixed checkpoint has, and the format.

Source: vllm/model_executor/layers/quantization/modelopt.py (0.32).
"""
MIXED: Final = "MIXED_PRECISION"
"""The algorithm of each layer is its own."""

VISION: Final = ("vision_tower", "vision_model", "vit_large_projector")
"""Modules that ModelOpt's checkpoints never quantize, whatever the list has."""

KV_CACHE_DTYPES: Final[Mapping[str, str]] = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}
"""Source: vllm/utils/torch_utils.py:MODELOPT_TO_VLLM_KV_CACHE_DTYPE_MAP (0.32)."""


def read_compressed_tensors(section: Section) -> Quantization:
    """The groups of a compressed-tensors checkpoint.

    A group for all of `Linear` is not applied to encoders, which its recipes leave alone, listed or not. Groups of
    attention alone concern the KV cache. Raises ModelError `too-many-patterns`: a group costs no less than a pattern.

    Source: vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors.py:CompressedTensorsConfig
    (0.32).
    """
    allowance = Allowance()
    ignored = tuple(map(canonical, section.strings("ignore") or ()))
    ignore = PatternList(ignored, allowance)
    groups: list[tuple[tuple[str, ...], formats.Format]] = []
    for written in config_groups(section):
        allowance.take_pattern(characters=0)
        targets = written.strings("targets") or ()
        if len(targets) != 1 or not targets[0].endswith("Attention"):
            packing = written.string("format", "") or section.string("format", "")
            weights = group_format(written, packing)
            groups.append((tuple(map(canonical, targets)), weights))
    lists = [(PatternList(targets, allowance), weights) for targets, weights in groups]
    general = next((weights for targets, weights in groups if "Linear" in targets), formats.UNQUANTIZED)

    def format_of(module: ModuleName) -> formats.Format:
        if ignore.covers(module):
            return formats.UNQUANTIZED
        for listed, weights in lists:
            if listed.covers(module):
                return weights
        return formats.UNQUANTIZED if module.kind is Kind.VOCAB or is_encoder(module) else general

    scheme = section.optional_section("kv_cache_scheme")
    return Quantization(
        method=COMPRESSED_TENSORS,
        detail=section.string("format", ""),
        format_of=format_of,
        depends_on_layer=names_a_layer((*ignored, *(name for targets, _ in groups for name in targets))),
        kv_cache_dtype=scheme_dtype(scheme) if scheme else "",
        attention_scale_bytes=SCALE_AND_ZERO_POINT_BYTES,
    )


def config_groups(section: Section) -> Iterator[Section]:
    """The config groups, in the order in which they are written."""
    table = section.optional_section("config_groups")
    return map(table.section, table.raw) if table is not None else iter(())


def group_format(group: Section, packing: str) -> formats.Format:
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
        if size == 32:
            return Mxfp4(linears=True)
        group_size = size if size is not None and size > 0 else 16
        return Nvfp4(group_size=group_size, input_scale=inputs is not None)
    if kind == "float" and bits == 8 and strategy == "group" and size == 32:
        return Mxfp8()
    if kind == "int" and packing == "pack-quantized" and bits in (2, 3, 4, 8):
        group_size = size if strategy == "group" and size is not None else -1
        return PackQuantized(bits=bits, group_size=group_size, symmetric=weights.boolean("symmetric", True))
    if bits != 8:
        raise unknown(COMPRESSED_TENSORS, f"{bits}-bit {kind} in {packing}")
    if strategy == "block":
        block = read_block(weights, "block_structure") or (128, 128)
        return formats.BlockScaled(rows=block[0], columns=block[1])
    input_bytes = 0
    if kind != "float":
        is_symmetric = inputs is None or inputs.boolean("symmetric", True)
        input_bytes = (formats.FLOAT32_BYTES + (0 if is_symmetric else 1)) if is_static else 0
    if strategy == "tensor":
        return formats.TensorScaled(static_input=is_static)
    return formats.ChannelScaled(static_input=is_static and kind == "float", input_bytes=input_bytes)


def read_modelopt(section: Section, side_file: Mapping[str, Any] | None) -> Quantization:
    """ModelOpt's two layouts: `quantization_config` of config.json, or `quantization` of hf_quant_config.json.

    Source: vllm/model_executor/layers/quantization/modelopt.py:ModelOptQuantConfigBase.from_config (0.32).
    """
    inner = section.optional_section("quantization") or section
    algorithm = inner.string("quant_algo", "").upper() or groups_algorithm(inner)
    method = "modelopt_mixed" if algorithm == MIXED else ALGORITHMS.get(algorithm, ("",))[0]
    if not method:
        raise unknown("modelopt", algorithm or "no quant_algo")
    excluded = inner.strings("exclude_modules") or inner.strings("ignore") or ()
    patterns = tuple(map(canonical, excluded))
    excludes = WildcardList(patterns, Allowance())
    layers = quantized_layers(inner, side_file) if algorithm == MIXED else {}
    index = PrefixIndex(layers)
    group = inner.integer("group_size", 16)
    is_weight_only = algorithm == "NVFP4" and not has_input_activations(inner)

    def format_of(module: ModuleName) -> formats.Format:
        if excludes.covers(module) or any(part in module.name for part in VISION):
            return formats.UNQUANTIZED
        if not layers:
            return algorithm_format("W4A16_NVFP4" if is_weight_only else algorithm, group)
        own = mixed_algorithm(module, layers, index)
        return algorithm_format(own, group) if own else formats.UNQUANTIZED

    kv_cache_dtype = declared_kv_cache_dtype(inner, section)
    return Quantization(
        method=method,
        detail=algorithm,
        format_of=format_of,
        depends_on_layer=names_a_layer(patterns) or bool(layers),
        kv_cache_dtype=kv_cache_dtype,
        attention_scale_bytes=0 if layers and not kv_cache_dtype else ATTENTION_SCALE_BYTES,
        mla_scale_bytes=0 if layers else ATTENTION_SCALE_BYTES,
    )


def algorithm_format(algorithm: str, group: int) -> formats.Format:
    """The format of one ModelOpt algorithm."""
    if algorithm not in ALGORITHMS:
        raise unknown("modelopt", algorithm)
    weights = ALGORITHMS[algorithm][1]
    return replace(weights, group_size=group) if isinstance(weights, Nvfp4) else weights


def groups_algorithm(section: Section) -> str:
    """The algorithm that `config_groups` describe where `quant_algo` is missing, or ""."""
    weights = (group.optional_section("weights") for group in config_groups(section))
    bits = frozenset(written.integer("num_bits") for written in weights if written is not None)
    return {frozenset({4}): "NVFP4", frozenset({8}): "FP8"}.get(bits, "")


def has_input_activations(section: Section) -> bool:
    """Whether some config group quantizes activations; True where there are no groups."""
    inputs = (group.get("input_activations") for group in config_groups(section))
    return any(written is not None for written in inputs) or not section.get("config_groups")


def declared_kv_cache_dtype(inner: Section, outer: Section) -> str:
    """The KV cache dtype that the checkpoint declares, or "".

    Source: vllm/utils/torch_utils.py:get_kv_cache_quant_algo_string (0.32).
    """
    for section in (inner, outer):
        scheme = section.get("kv_cache_scheme")
        if isinstance(scheme, Mapping):
            return scheme_dtype(section.section("kv_cache_scheme"))
    for section in (inner, outer):
        algorithm = section.string("kv_cache_quant_algo", "")
        if algorithm:
            return KV_CACHE_DTYPES.get(algorithm.lower(), "")
    return ""


def scheme_dtype(scheme: Section) -> str:
    """The KV cache dtype of a `kv_cache_scheme` object, or ""."""
    if scheme.string("type", "") != "float":
        return ""
    bits = scheme.optional_integer("num_bits")
    if bits == 8 and not scheme.boolean("dynamic", False):
        return "fp8_e4m3"
    return "nvfp4" if bits == 4 else ""


def quantized_layers(section: Section, side_file: Mapping[str, Any] | None) -> dict[str, str]:
    """The algorithm of each named module of a mixed checkpoint."""
    table = section.optional_section("quantized_layers")
    if table is None and side_file is not None:
        side = Section(side_file, "hf_quant_config", "").optional_section("quantization")
        table = side.optional_section("quantized_layers") if side else None
    if table is None or not table.raw:
        raise section.missing("quantized_layers")
    return {canonical(name): table.section(name).string("quant_algo").upper() for name in table.raw}


def mixed_algorithm(module: ModuleName, layers: Mapping[str, str], index: PrefixIndex) -> str:
    """The algorithm of a module in a mixed checkpoint, "" when it stays in the model's dtype.

    Found by its own name, the names of its parts, or a module below it.

    Source: vllm/model_executor/layers/quantization/modelopt.py:ModelOptMixedPrecisionConfig._resolve_quant_algo (0.32).
    """
    names = [module.name, *module.shards]
    below: Iterable[str] = ()
    if module.kind is Kind.EXPERTS:
        names += chain.from_iterable(module.expert_shards)
        beginnings = (module.name + ".", module.name.removesuffix("experts"))
        inside = chain.from_iterable(map(index.beginning_with, beginnings))
        below = (name for name in inside if "shared_expert" not in name)
    return next((layers[name] for name in chain(names, below) if name in layers), "")
