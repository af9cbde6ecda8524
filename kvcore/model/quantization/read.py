"""config.json -> Quantization: which reader, and whether `--quantization` agrees with the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from kvcore.errors import EngineRefusalError, ModelError
from kvcore.kept import kept
from kvcore.model.config import ModelConfig, Section
from kvcore.model.quantization.byte_wide import online, read_deepseek_v4, read_fbgemm, read_fp8, read_quark
from kvcore.model.quantization.compressed_tensors import read_compressed_tensors
from kvcore.model.quantization.integers import (
    bitsandbytes,
    only_experts,
    read_auto_round,
    read_awq,
    read_bitsandbytes,
    read_gptq,
)
from kvcore.model.quantization.modelopt import read_modelopt
from kvcore.model.quantization.packed import Mxfp4, Mxfp8
from kvcore.model.quantization.scheme import Quantization
from kvcore.model.quantization.torchao import read_torchao

READERS: Final[Mapping[str, Callable[[Section], Quantization]]] = {
    "fp8": read_fp8,
    "fbgemm_fp8": read_fbgemm,
    "quark": read_quark,
    "awq": read_awq,
    "gptq": read_gptq,
    "auto-round": read_auto_round,
    "intel/auto-round": read_auto_round,
    "inc": read_auto_round,
    "bitsandbytes": read_bitsandbytes,
    "compressed-tensors": read_compressed_tensors,
    "torchao": read_torchao,
}

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
"""Keys by which a ModelOpt section says which modules it means."""

GPT_OSS_TILES: Final = (256, 128)
"""Multiples of the hidden and intermediate size that Marlin and TRT-LLM pad MXFP4 experts to.

Source: vllm/.../fused_moe/oracle/mxfp4.py:mxfp4_round_up_hidden_size_and_intermediate_size (0.32).
"""


@kept
def read_quantization(config: ModelConfig, requested: str | None) -> Quantization:
    """The storage format of a checkpoint, or the one that `--quantization` asks for.

    A `quantization_config` without `quant_method` (an MLX conversion) counts as none, as in the engine.

    Raises ModelError `unknown-quantization`; EngineRefusalError `quantization-mismatch`.

    Example:
        >>> read_quantization(ModelConfig.from_mapping({"model_type": "llama"}), None).method
        'unquantized'
        >>> config = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}
        >>> read_quantization(ModelConfig.from_mapping(config), "gptq_marlin").detail
        '4 bits, groups of 128'
    """
    written = read_checkpoint(config)
    if written is None:
        return requested_online(requested)
    if requested is not None and not agree(requested, written.method):
        raise EngineRefusalError(
            "quantization-mismatch", field="quantization", method=written.method, requested=requested
        )
    return written


@kept
def read_checkpoint(config: ModelConfig) -> Quantization | None:
    """What config.json, or else the side file, says of the weights; None for a 16-bit checkpoint."""
    section = (
        config.root.optional_section("quantization_config")
        or config.language.optional_section("quantization_config")
        or config.root.optional_section("compression_config")
    )
    side_file = config.hf_quant_config
    if section is None and side_file is not None:
        section = Section(side_file, "hf_quant_config", "")
        if section.optional_section("quantization") is not None:
            return read_modelopt(section, side_file)
    method = section.string("quant_method", "").lower() if section else ""
    if section is None or not method:
        return None
    if method.startswith("modelopt"):
        return read_modelopt(with_lists(section, side_file), side_file)
    if method == "fp8" and config.model_type == "deepseek_v4":
        return read_deepseek_v4(section, config.language)
    if method == "mxfp4":
        return read_mxfp4(config)
    if method == "mxfp8":
        return only_experts(Mxfp8(), "mxfp8", "groups of 32")
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


def read_mxfp4(config: ModelConfig) -> Quantization:
    """MXFP4 experts; those of gpt-oss are padded to the kernel's tiles."""
    if config.model_type != "gpt_oss":
        return only_experts(Mxfp4(), "mxfp4", "experts, groups of 32")
    hidden, intermediate = GPT_OSS_TILES
    weights = Mxfp4(hidden_multiple=hidden, intermediate_multiple=intermediate)
    return only_experts(weights, "mxfp4", "experts, groups of 32, padded")


def requested_online(requested: str | None) -> Quantization:
    """What `--quantization` makes of a 16-bit checkpoint."""
    if requested is None:
        return Quantization()
    made = bitsandbytes() if requested == "bitsandbytes" else online(requested)
    if made is None:
        raise ModelError("unknown-quantization", field="quantization", method=requested)
    return made


def agree(requested: str, method: str) -> bool:
    """Whether `--quantization` names the method of the checkpoint."""
    return requested == method or any(requested in names and method in names for names in SYNONYMS)
