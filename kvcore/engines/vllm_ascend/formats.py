"""Whether vllm-ascend has methods for a storage format that it lists: by release, generation of chip, checkpoint."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta

from kvcore.base.errors import EngineRefusalError
from kvcore.engine.cards import Chip
from kvcore.engines.vllm.start import Start
from kvcore.engines.vllm.storage import PlatformFormats
from kvcore.model.config import ModelConfig, Section
from kvcore.model.quantization import Quantization
from kvcore.model.quantization.compressed import COMPRESSED_TENSORS, config_groups
from kvcore.model.quantization.read import written_section
from kvcore.model.quantization.scheme import read_block
from kvcore.tables import ReleaseRange, Source

ACTIVATION_FORMATS: Final = ("naive-quantized", "int-quantized", "float-quantized")
"""Formats that quantize activations.

Source: vllm/.../compressed_tensors/utils.py:is_activation_quantization_format (0.23.0).
"""

ModelType = Annotated[str, Meta(pattern="^[a-z0-9_]+$")]


class Ask(StrEnum):
    """Requirements of the methods of a format; the code of the refusal ends so."""

    CHIP = "chip"
    """Kernels that only some chips have."""
    ATTRIBUTES = "attributes"
    """Fields that only the configs of some models have."""
    BLOCKS = "blocks"
    """One scale for each block of a matrix, and activations quantized as they come."""


class AskedRow(ReleaseRange, frozen=True, kw_only=True):
    """Releases of vLLM on which a plug-in's methods of these formats ask for something."""

    source: Source
    methods: tuple[Annotated[str, Meta(pattern="^[a-z0-9_-]+$")], ...]
    ask: Ask
    chips: tuple[Chip, ...] = ()
    """Those that do."""
    model_types: tuple[ModelType, ...] = ()
    """Those that do."""
    attribute: Annotated[str, Meta(pattern="^[a-z_]*$")] = ""
    """The first one that is missing."""


Scheme: TypeAlias = Literal[
    "W8A8",
    "W8A8_DYNAMIC",
    "W8A8FP8_DYNAMIC",
    "W4A8_DYNAMIC",
    "W4A16",
    "W4A8_MXFP",
    "W8A8_MXFP8",
    "W4A4_MXFP4",
]


class SchemeRow(ReleaseRange, frozen=True, kw_only=True):
    """Releases of vLLM on which a plug-in knows a scheme of compressed-tensors."""

    source: Source
    scheme: Scheme
    chips: tuple[Chip, ...] = ()
    """Those whose kernels compute it; empty: all."""
    of_experts_alone: bool = False
    """There is no method for linear layers."""


class AscendFormats(PlatformFormats, frozen=True, kw_only=True):
    """The storage formats of weights that it takes."""

    asks: tuple[AskedRow, ...]
    """Requirements of its own methods of these formats."""
    schemes: tuple[SchemeRow, ...]
    """Its methods for config groups of compressed-tensors."""


UNPACKED: Final = Quantization(method="fp8", detail="kept in 16 bits once loaded")
"""FP8 blocks that loading resolves."""


def check_asked(start: Start, rows: tuple[AskedRow, ...]) -> None:
    """Raises EngineRefusalError `npu-format-chip`, `npu-format-attributes` or `npu-format-blocks`."""
    method = start.quantization.method
    for row in rows:
        if method in row.methods and row.covers(start.version):
            facts = {"method": method, "name": start.card.label}
            if row.ask is Ask.CHIP and start.card.chip not in row.chips:
                raise EngineRefusalError(
                    "npu-format-chip", "quantization", method, **facts, chips=_words(row.chips)
                )
            if row.ask is Ask.ATTRIBUTES and start.scenario.config.model_type not in row.model_types:
                facts["attribute"] = row.attribute
                raise EngineRefusalError("npu-format-attributes", "quantization", method, **facts)
            if row.ask is Ask.BLOCKS and not has_blocks(start.scenario.config):
                raise EngineRefusalError("npu-format-blocks", "quantization", method, **facts)


def _words(chips: tuple[Chip, ...]) -> str:
    """Generations of chips as people name them."""
    return ", ".join("A5 (Ascend 950)" if chip is Chip.A5 else chip for chip in chips if chip)


def has_blocks(config: ModelConfig) -> bool:
    """Whether an fp8 checkpoint has a scale for each block, and activations that are quantized as they come.

    Source: vllm_ascend/quantization/configs/fp8_config.py:AscendFp8Config._verify_block_quantization (0.27.1rc1).
    """
    section = written_section(config)
    if section is None or read_block(section, "weight_block_size") is None:
        return False
    return section.string("activation_scheme", "dynamic") == "dynamic"


def check_schemes(start: Start, rows: tuple[SchemeRow, ...]) -> None:
    """Raises EngineRefusalError `npu-no-scheme` or `npu-format-chip` for config groups without a method.

    Source: vllm_ascend/quantization/compressed_tensors_config.py:AscendCompressedTensorsConfig._detect_quant_type,
    _create_scheme_for_layer_type (0.14.0rc1, 0.23.0), configs/compressed_tensors_config.py (0.27.1rc1, 0.30.0rc2).
    """
    section = written_section(start.scenario.config)
    if not rows or section is None:
        return
    for group in config_groups(section):
        targets = group.strings("targets") or ()
        if group.optional_section("weights") is None or all(name.endswith("Attention") for name in targets):
            continue
        names = tuple(_schemes_of(group, section.string("format", "")))
        known = next((row for row in rows if row.scheme in names and row.covers(start.version)), None)
        is_for_linears = start.architecture.moe is None
        if known is None or (known.of_experts_alone and is_for_linears):
            raise EngineRefusalError("npu-no-scheme", "quantization", COMPRESSED_TENSORS)
        if known.chips and start.card.chip not in known.chips:
            facts = {"method": known.scheme, "name": start.card.label, "chips": _words(known.chips)}
            raise EngineRefusalError("npu-format-chip", "quantization", COMPRESSED_TENSORS, **facts)


def _schemes_of(group: Section, written_format: str) -> Iterator[Scheme]:
    """Schemes that a config group may be read as, the first that the release knows."""
    weights, inputs = group.section("weights"), group.optional_section("input_activations")
    packing = group.string("format", "") or written_format
    bits, strategy = weights.integer("num_bits"), weights.string("strategy", "")
    kind = weights.string("type", "int")
    if packing == "mxfp8-quantized" and inputs is not None:
        yield "W8A8_MXFP8"
    if packing == "mxfp4-pack-quantized":
        yield "W4A8_MXFP" if inputs is None else "W4A4_MXFP4"
    if packing in ACTIVATION_FORMATS and inputs is not None and inputs.integer("num_bits") == 8:
        is_symmetric = weights.boolean("symmetric", True) and inputs.boolean("symmetric", True)
        is_dynamic, of_inputs = bool(inputs.get("dynamic")), inputs.string("strategy", "")
        if bits == 8 and is_symmetric and strategy == "channel":
            if of_inputs == "tensor" and not is_dynamic:
                yield "W8A8"
            if of_inputs == "token" and is_dynamic:
                yield "W8A8FP8_DYNAMIC" if kind == "float" else "W8A8_DYNAMIC"
        if bits == 4 and strategy in ("channel", "group") and of_inputs == "token" and is_dynamic:
            yield "W4A8_DYNAMIC"
    if bits == 4 and kind == "int" and inputs is None and strategy == "group":
        yield "W4A16"
