"""config.json -> Quantization: which reader, and whether `--quantization` agrees with the checkpoint.

Checkpoints of one format for all modules are read here: fp8 of several makers, fbgemm, Quark, MXFP4 and MXFP8; and
formats that `--quantization` makes of 16-bit weights while loading them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from kvcore.base.errors import EngineRefusalError, ModelError
from kvcore.base.kept import kept
from kvcore.model.config import ModelConfig, Section, is_modelslim
from kvcore.model.quantization import formats
from kvcore.model.quantization.compressed import read_compressed_tensors, read_modelopt
from kvcore.model.quantization.humming import METHOD as HUMMING
from kvcore.model.quantization.humming import humming
from kvcore.model.quantization.integers import (
    bitsandbytes,
    read_auto_round,
    read_awq,
    read_bitsandbytes,
    read_gptq,
)
from kvcore.model.quantization.modelslim import METHOD as MODELSLIM_METHOD
from kvcore.model.quantization.modelslim import read_modelslim
from kvcore.model.quantization.modules import (
    Kind,
    ModuleName,
    NameList,
    PatternList,
    canonical,
    is_encoder,
    is_quantized_encoder,
)
from kvcore.model.quantization.packed import Mxfp4, Mxfp8, Nvfp4
from kvcore.model.quantization.patterns import Allowance
from kvcore.model.quantization.scheme import (
    ATTENTION_SCALE_BYTES,
    Quantization,
    names_a_layer,
    read_block,
    unknown,
)
from kvcore.model.quantization.torchao import read_torchao

SYNONYMS: Final[tuple[frozenset[str], ...]] = (
    frozenset({"awq", "awq_marlin", "auto_awq", "marlin"}),
    frozenset({"gptq", "gptq_marlin", "auto_gptq", "marlin"}),
    frozenset({"mxfp4", "gpt_oss_mxfp4"}),
    frozenset({"auto-round", "inc"}),
    frozenset({"modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed"}),
    frozenset({"fp8", "deepseek_v4_fp8"}),
)
"""Names of `--quantization` that mean the same checkpoint. Source: vllm/config/model.py:_verify_quantization (0.32)."""

MODULE_LISTS: Final = ("exclude_modules", "ignore", "config_groups", "quantized_layers")
"""Keys under which a ModelOpt section lists its modules."""

GPT_OSS_TILES: Final = (256, 128)
"""Multiples of the hidden and intermediate size that Marlin and TRT-LLM pad MXFP4 experts to.

Source: vllm/.../fused_moe/oracle/mxfp4.py:mxfp4_round_up_hidden_size_and_intermediate_size (0.32).
"""

LAYERS_AND_EXPERTS: Final = (Kind.LINEAR, Kind.EXPERTS)
EXPERTS_ALONE: Final = (Kind.EXPERTS,)

ONLINE: Final[Mapping[str, tuple[formats.Format, tuple[Kind, ...]]]] = {
    "fp8": (formats.TensorScaled(), LAYERS_AND_EXPERTS),
    "fp8_per_tensor": (formats.TensorScaled(), LAYERS_AND_EXPERTS),
    "fp8_per_channel": (formats.ChannelScaled(), LAYERS_AND_EXPERTS),
    "fp8_per_block": (
        formats.BlockScaled(rows=128, columns=128, is_made_while_loading=True),
        LAYERS_AND_EXPERTS,
    ),
    "mxfp8": (Mxfp8(), LAYERS_AND_EXPERTS),
    "mxfp4": (Mxfp4(linears=True), LAYERS_AND_EXPERTS),
    "experts_int8": (formats.ChannelScaled(), EXPERTS_ALONE),
    "int8_per_channel_weight_only": (formats.ChannelScaled(), EXPERTS_ALONE),
}
"""Formats that `--quantization` makes of 16-bit weights while loading them, and of which.

Source: vllm/config/quantization.py, vllm/model_executor/layers/quantization/online (0.32); fp8.py (0.19).
"""


@kept
def read_quantization(config: ModelConfig, requested: str | None, said: str = "") -> Quantization:
    """The storage format of a checkpoint, or the one that `--quantization` asks for; `said` is what a flag needs in
    addition: the scheme in the name of ModelSlim's checkpoint, the variable that says what Humming makes.

    A `quantization_config` without `quant_method` (an MLX conversion) counts as none, as in the engine.

    Raises ModelError `unknown-quantization`; EngineRefusalError `quantization-mismatch`.

    Example:
        >>> read_quantization(ModelConfig.from_mapping({"model_type": "llama"}), None).method
        'unquantized'
        >>> config = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}
        >>> read_quantization(ModelConfig.from_mapping(config), "gptq_marlin").detail
        '4 bits, groups of 128'
    """
    if requested == MODELSLIM_METHOD or (requested is None and is_modelslim(config.hf_quant_config)):
        return read_modelslim(config, written_method(config), said)
    if is_modelslim(config.hf_quant_config):
        raise EngineRefusalError(
            "quantization-mismatch", field="quantization", method=MODELSLIM_METHOD, requested=requested
        )
    written = read_checkpoint(config)
    if written is None:
        return humming(said) if requested == HUMMING else requested_online(requested)
    if requested == HUMMING and config.model_type != "gpt_oss":
        return (
            written  # its kernels read what the checkpoint stores; of gpt-oss it wants --moe-backend humming
        )
    if requested is not None and not agree(requested, written.method):
        raise EngineRefusalError(
            "quantization-mismatch", field="quantization", method=written.method, requested=requested
        )
    return written


def written_section(config: ModelConfig) -> Section | None:
    """The quantization in config.json."""
    return (
        config.root.optional_section("quantization_config")
        or config.language.optional_section("quantization_config")
        or config.root.optional_section("compression_config")
    )


def written_method(config: ModelConfig) -> str:
    """The method that config.json names, "" for none."""
    section = written_section(config)
    return section.string("quant_method", "").lower() if section else ""


@kept
def read_checkpoint(config: ModelConfig) -> Quantization | None:
    """The quantization in config.json, or else in the side file; None for a 16-bit checkpoint."""
    section = written_section(config)
    side_file = config.hf_quant_config
    if section is None and side_file is not None:
        section = Section(side_file, "hf_quant_config", "")
        if section.optional_section("quantization") is not None:
            return read_modelopt(section, side_file)
    method = section.string("quant_method", "").lower() if section else ""
    if section is None or not method:
        return None
    if method == MODELSLIM_METHOD:
        return read_modelslim(config, method)
    if method.startswith("modelopt"):
        return read_modelopt(with_lists(section, side_file), side_file)
    if method == "fp8" and config.model_type in ("deepseek_v4", "deepseek_v41"):
        return read_deepseek_v4(section, config.language)
    if method == "mxfp4":
        return read_mxfp4(config)
    if method not in READERS:
        raise ModelError("unknown-quantization", field=f"{section.path}.quant_method", method=method)
    return READERS[method](section)


def with_lists(section: Section, side_file: Mapping[str, Any] | None) -> Section:
    """ModelOpt's section of config.json; the side file where the section names no module at all.

    ModelOpt writes into both which modules it left alone (lm_head at least), so a section without is cut short.
    """
    names_modules = any(section.get(key) is not None for key in MODULE_LISTS)
    if side_file is None or names_modules or section.optional_section("quantization") is not None:
        return section
    whole = Section(side_file, "hf_quant_config", "")
    return whole if whole.optional_section("quantization") is not None else section


def requested_online(requested: str | None) -> Quantization:
    """The quantization that `--quantization` makes of a 16-bit checkpoint."""
    if requested is None:
        return Quantization()
    if requested == "bitsandbytes":
        return bitsandbytes()
    if requested not in ONLINE:
        raise ModelError("unknown-quantization", field="quantization", method=requested)
    weights, kinds = ONLINE[requested]
    detail = "experts, made while loading" if kinds == EXPERTS_ALONE else "made while loading"
    return all_but_listed(requested, detail, weights, kinds=kinds)


def agree(requested: str, method: str) -> bool:
    """Whether `--quantization` names the method of the checkpoint."""
    return requested == method or any(requested in names and method in names for names in SYNONYMS)


def all_but_listed(
    method: str,
    detail: str,
    weights: formats.Format,
    ignored: tuple[str, ...] = (),
    *,
    kinds: tuple[Kind, ...] = LAYERS_AND_EXPERTS,
    attention_scale_bytes: int = 0,
) -> Quantization:
    """`weights` for modules of `kinds`, but for those that a plain list names, and most encoders.

    An encoder that the engine quantizes is left alone only where the list names each of its linear layers: naming the
    whole encoder does not count.

    Source: vllm/model_executor/layers/quantization/utils/quant_utils.py:is_layer_skipped, mode `exact` (0.32).
    """
    listed = NameList(map(canonical, ignored), Allowance())

    def format_of(module: ModuleName) -> formats.Format:
        if module.kind not in kinds:
            return formats.UNQUANTIZED
        if is_quantized_encoder(module):
            return formats.UNQUANTIZED if listed.names.issuperset(module.shards) else weights
        return formats.UNQUANTIZED if is_encoder(module) or listed.covers(module) else weights

    return Quantization(
        method=method,
        detail=detail,
        format_of=format_of,
        depends_on_layer=names_a_layer(ignored),
        attention_scale_bytes=attention_scale_bytes,
    )


def read_fp8(section: Section) -> Quantization:
    """fp8 as DeepSeek, Qwen and Mistral publish it: blocks, or one scale a tensor; MiMo V2.6 with experts in MXFP4.

    Source: vllm/model_executor/layers/quantization/fp8.py:Fp8Config.from_config, get_quant_method (0.29, 0.32).
    """
    block = read_block(section, "weight_block_size")
    is_static = section.string("activation_scheme", "dynamic") == "static"
    weights: formats.Format = formats.TensorScaled(static_input=is_static)
    detail = "one scale per tensor"
    if block is not None:
        weights, detail = (
            formats.BlockScaled(rows=block[0], columns=block[1]),
            f"{block[0]} × {block[1]} blocks",
        )
    ignored = section.strings("ignored_layers") or section.strings("modules_to_not_convert") or ()
    read = all_but_listed("fp8", detail, weights, ignored, attention_scale_bytes=ATTENTION_SCALE_BYTES)
    if section.string("store_dtype", "") != "mxfp4":
        return read

    def format_of(module: ModuleName) -> formats.Format:
        own = read.format_of(module)
        return Mxfp4() if module.kind is Kind.EXPERTS and own is weights else own

    return replace(read, detail=f"{detail}, experts in MXFP4", format_of=format_of)


def read_fbgemm(section: Section) -> Quantization:
    """fbgemm's fp8: one scale a row, an upper bound a layer; experts stay in the model's dtype.

    Source: vllm/model_executor/layers/quantization/fbgemm_fp8.py (0.32).
    """
    ignored = section.strings("modules_to_not_convert") or ()
    weights = formats.ChannelScaled(input_bytes=formats.FLOAT32_BYTES)
    return all_but_listed("fbgemm_fp8", "one scale per row", weights, ignored, kinds=(Kind.LINEAR,))


def read_mxfp8(section: Section) -> Quantization:
    """MXFP8 as MiniMax publishes it: ModelOpt's, of all modules but those that `ignored_layers` lists.

    Source: vllm/model_executor/layers/quantization/modelopt.py:ModelOptMxFp8Config.from_config (0.25, 0.33).
    """
    excluded = list(section.strings("ignored_layers") or ())
    written = Section({"quant_algo": "MXFP8", "exclude_modules": excluded}, section.path)
    return replace(read_modelopt(written, None), method="mxfp8", detail="groups of 32")


def read_mxfp4(config: ModelConfig) -> Quantization:
    """MXFP4 experts; those of gpt-oss are padded to the kernel's tiles."""
    weights, detail = Mxfp4(), "experts, groups of 32"
    if config.model_type == "gpt_oss":
        weights = Mxfp4(expert_tiles=GPT_OSS_TILES)
        detail += ", padded"
    return all_but_listed("mxfp4", detail, weights, kinds=EXPERTS_ALONE)


MX_BLOCK: Final = (32, 32)
"""Blocks of a checkpoint whose linear layers run in MXFP8 (DeepSeek-V4.1)."""


def read_deepseek_v4(section: Section, language: Section) -> Quantization:
    """DeepSeek-V4: fp8 blocks, and experts in MXFP4, NVFP4 or fp8 as `expert_dtype` and `moe_quant_algo` say.

    Source: vllm/models/deepseek_v4/quant_config.py (0.32), deepseek_v41/quant_config.py:DeepseekV4FP8Config (0.33.0).
    """
    block = read_block(section, "weight_block_size") or (128, 128)
    written = language if language.has("expert_dtype") else section
    is_fp4 = written.string("expert_dtype", "fp4") == "fp4"
    linears: formats.Format = formats.BlockScaled(
        rows=block[0], columns=block[1], scale_bytes=1 if is_fp4 else formats.FLOAT32_BYTES
    )
    if is_fp4 and block == MX_BLOCK:
        linears = Mxfp8()
    experts: formats.Format = linears
    if is_fp4:
        is_nvfp4 = section.string("moe_quant_algo", "").upper() == "NVFP4"
        experts = Nvfp4() if is_nvfp4 else Mxfp4()
    by_kind = {Kind.LINEAR: linears, Kind.EXPERTS: experts, Kind.VOCAB: formats.UNQUANTIZED}
    return Quantization(
        method="deepseek_v4_fp8",
        detail="fp8 blocks, 4-bit experts" if is_fp4 else "fp8 blocks",
        format_of=lambda module: by_kind[module.kind],
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
    weights = quark_format(kind, is_static)
    patterns = PatternList(map(canonical, ignored), Allowance())

    def format_of(module: ModuleName) -> formats.Format:
        return formats.UNQUANTIZED if module.kind is Kind.VOCAB or patterns.covers(module) else weights

    return Quantization(
        method="quark",
        detail=" ".join(kind),
        format_of=format_of,
        depends_on_layer=names_a_layer(ignored),
        attention_scale_bytes=ATTENTION_SCALE_BYTES,
    )


def quark_format(kind: tuple[str, str], is_static: bool) -> formats.Format:
    """The format of Quark's weight dtype and scheme."""
    match kind:
        case ("fp8_e4m3" | "int8", "per_tensor"):
            return formats.TensorScaled(static_input=is_static)
        case ("fp8_e4m3" | "int8", "per_channel"):
            return formats.ChannelScaled(static_input=is_static)
        case ("fp8_e4m3", "per_block"):
            return formats.BlockScaled(rows=128, columns=128)
        case ("fp4", "per_group"):
            return Mxfp4(linears=True)
        case _:
            raise unknown("quark", " ".join(kind))


READERS: Final[Mapping[str, Callable[[Section], Quantization]]] = {
    "fp8": read_fp8,
    "fbgemm_fp8": read_fbgemm,
    "quark": read_quark,
    "mxfp8": read_mxfp8,
    "awq": read_awq,
    "gptq": read_gptq,
    "auto-round": read_auto_round,
    "intel/auto-round": read_auto_round,
    "inc": read_auto_round,
    "bitsandbytes": read_bitsandbytes,
    "compressed-tensors": read_compressed_tensors,
    "torchao": read_torchao,
}
"""By `quant_method`."""
