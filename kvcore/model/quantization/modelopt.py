"""NVIDIA ModelOpt: FP8, NVFP4, MXFP8, and checkpoints that mix them by layer, with or without the side file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kvcore.model.config import Section
from kvcore.model.quantization.automaton import Allowance
from kvcore.model.quantization.byte_wide import ATTENTION_SCALE_BYTES, names_a_layer, unknown
from kvcore.model.quantization.formats import UNQUANTIZED, BlockScaled, ChannelScaled, Format, TensorScaled
from kvcore.model.quantization.module_lists import PrefixIndex, WildcardList
from kvcore.model.quantization.names import Kind, ModuleName, canonical
from kvcore.model.quantization.packed import Mxfp8, Nvfp4
from kvcore.model.quantization.scheme import Quantization

METHODS: Final[Mapping[str, str]] = {
    "FP8": "modelopt",
    "FP8_PER_CHANNEL_PER_TOKEN": "modelopt",
    "FP8_PB_WO": "modelopt",
    "NVFP4": "modelopt_fp4",
    "W4A16_NVFP4": "modelopt_fp4",
    "MXFP8": "modelopt_mxfp8",
    "MIXED_PRECISION": "modelopt_mixed",
}
"""The engine's name by algorithm. Source: vllm/model_executor/layers/quantization/modelopt.py (0.32)."""

VISION: Final = ("vision_tower", "vision_model", "vit_large_projector")
"""Never quantized, whatever the list says."""

KV_CACHE_DTYPES: Final[Mapping[str, str]] = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}
"""Source: vllm/utils/torch_utils.py:MODELOPT_TO_VLLM_KV_CACHE_DTYPE_MAP (0.32)."""


def read_modelopt(section: Section, side_file: Mapping[str, Any] | None) -> Quantization:
    """ModelOpt's two layouts: `quantization_config` of config.json, or `quantization` of hf_quant_config.json.

    Source: vllm/model_executor/layers/quantization/modelopt.py:ModelOptQuantConfigBase.from_config (0.32).
    """
    inner = section.optional_section("quantization") or section
    algorithm = inner.string("quant_algo", "").upper() or groups_algorithm(inner)
    if algorithm not in METHODS:
        raise unknown("modelopt", algorithm or "no quant_algo")
    excluded = inner.strings("exclude_modules") or inner.strings("ignore") or ()
    patterns = tuple(map(canonical, excluded))
    excludes = WildcardList(patterns, Allowance())
    layers = quantized_layers(inner, side_file) if algorithm == "MIXED_PRECISION" else {}
    index = PrefixIndex(layers)
    group = inner.integer("group_size", 16)
    is_weight_only = algorithm == "NVFP4" and not has_input_activations(inner)

    def format_of(module: ModuleName) -> Format:
        if excludes.covers(module) or any(part in module.name for part in VISION):
            return UNQUANTIZED
        if not layers:
            return algorithm_format("W4A16_NVFP4" if is_weight_only else algorithm, group)
        own = mixed_algorithm(module, layers, index)
        return algorithm_format(own, group) if own else UNQUANTIZED

    kv_cache_dtype = declared_kv_cache_dtype(inner, section)
    return Quantization(
        method=METHODS[algorithm],
        detail=algorithm,
        format_of=format_of,
        depends_on_layer=names_a_layer(patterns) or bool(layers),
        kv_cache_dtype=kv_cache_dtype,
        attention_scale_bytes=0 if layers and not kv_cache_dtype else ATTENTION_SCALE_BYTES,
        mla_scale_bytes=0 if layers else ATTENTION_SCALE_BYTES,
    )


def algorithm_format(algorithm: str, group: int) -> Format:
    """The format of one ModelOpt algorithm."""
    match algorithm:
        case "FP8":
            return TensorScaled(static_input=True)
        case "FP8_PER_CHANNEL_PER_TOKEN":
            return ChannelScaled()
        case "FP8_PB_WO" | "FP8_BLOCK_SCALES":
            return BlockScaled(rows=128, columns=128)
        case "NVFP4" | "W4A16_NVFP4":
            return Nvfp4(group_size=group, is_weight_only=algorithm == "W4A16_NVFP4")
        case "MXFP8":
            return Mxfp8()
        case _:
            raise unknown("modelopt", algorithm)


def groups_algorithm(section: Section) -> str:
    """The algorithm that `config_groups` describe where `quant_algo` is missing, or ""."""
    groups = section.optional_section("config_groups")
    if groups is None:
        return ""
    bits = {
        weights.integer("num_bits")
        for group in groups.raw
        if (weights := groups.section(group).optional_section("weights")) is not None
    }
    return {frozenset({4}): "NVFP4", frozenset({8}): "FP8"}.get(frozenset(bits), "")


def has_input_activations(section: Section) -> bool:
    """Whether some config group quantizes activations; True where there are no groups."""
    groups = section.optional_section("config_groups")
    if groups is None or not groups.raw:
        return True
    return any(groups.section(group).get("input_activations") is not None for group in groups.raw)


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

    By its own name, the names of its parts, or what lies below it.

    Source: vllm/model_executor/layers/quantization/modelopt.py:ModelOptMixedPrecisionConfig._resolve_quant_algo (0.32).
    """
    for name in (module.name, *module.shards):
        if name in layers:
            return layers[name]
    if module.kind is Kind.EXPERTS:
        for shards in module.expert_shards:
            for shard in shards:
                if shard in layers:
                    return layers[shard]
        parent = module.name.removesuffix("experts")
        for below in (module.name + ".", parent):
            for name in index.beginning_with(below):
                if "shared_expert" not in name:
                    return layers[name]
    return ""
