"""Checkpoints of torchao: one config for all linear layers, or one for each module by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from kvcore.base.errors import EngineRefusalError
from kvcore.base.units import ceil_div, round_up
from kvcore.model.config import Section
from kvcore.model.quantization.formats import (
    FLOAT32_BYTES,
    UNQUANTIZED,
    ExpertsShape,
    Format,
)
from kvcore.model.quantization.modules import Kind, ModuleName, canonical, component_runs, is_encoder
from kvcore.model.quantization.patterns import Allowance, Patterns
from kvcore.model.quantization.scheme import Quantization, names_a_layer, unknown

METHOD: Final = "torchao"
PATH: Final = "config.quantization_config.quant_type"
BY_MODULE: Final = ("ModuleFqnToConfig", "FqnToConfig")
DEFAULT_KEY: Final = "_default"
CONFIGS: Final = (
    "Int4WeightOnlyConfig",
    "Int8WeightOnlyConfig",
    "Int8DynamicActivationInt8WeightConfig",
    "Float8WeightOnlyConfig",
    "Float8DynamicActivationFloat8WeightConfig",
    "Int8DynamicActivationIntxWeightConfig",
    "IntxWeightOnlyConfig",
)
"""Values of `_type`."""

TILE_INPUTS: Final = 1024
TILE_OUTPUTS: Final = 8
"""Multiples that the tiles of packed 4-bit weights pad to.

Source: torchao/quantization/quantize_/workflows/int4/int4_tile_packed_to_4d_tensor.py:from_hp (0.15.0).
"""

FLOAT8_MULTIPLE: Final = 16
"""Sides of a weight that a dynamic float8 config quantizes; others are left alone.

Source: torchao/quantization/quant_api.py:_fp8_mm_compat (0.15.0).
"""

DTYPE_BYTES: Final[Mapping[str, int]] = {"float32": 4, "bfloat16": 2, "float16": 2}


class Grouped(Format, frozen=True, kw_only=True):
    """Integers or floats of `bits`, with `overhead_bytes` of scale and zero point a group of inputs.

    `group_size` 0 is one group a row, and `per_tensor` one for the whole weight. A rank's weight whose inputs are no
    multiple of the group, or whose sides are none of `multiple`, stays in the model's dtype. `tiled`: padded to the
    tiles of the kernel. torchao leaves experts alone: the engine hands it linear layers only.

    Source: torchao/quantization/quant_api.py, quantize_/workflows (0.10.0, 0.15.0);
    vllm/model_executor/layers/quantization/torchao.py:torchao_quantize_param_data (0.8.5, 0.32.0).

    Example:
        >>> Grouped(bits=4, group_size=128, overhead_bytes=4).matrix_bytes(64, 256, 2)
        8704
    """

    bits: int
    overhead_bytes: int
    group_size: int = 0
    per_tensor: bool = False
    multiple: int = 1
    tiled: bool = False

    def matrix_bytes(self, rows: int, inputs: int, element_bytes: int) -> int:
        group = self.group_size or inputs
        if inputs % group or inputs % self.multiple or rows % self.multiple:
            return UNQUANTIZED.matrix_bytes(rows, inputs, element_bytes)
        if self.tiled:
            inputs, rows = round_up(inputs, TILE_INPUTS), round_up(rows, TILE_OUTPUTS)
        groups = 1 if self.per_tensor else rows * ceil_div(inputs, group)
        return rows * inputs * self.bits // 8 + groups * self.overhead_bytes

    def experts_bytes(self, shape: ExpertsShape) -> int:
        return UNQUANTIZED.experts_bytes(shape)


def read_torchao(section: Section) -> Quantization:
    """torchao's `quant_type`: the config under `default`, for all linear layers or by module.

    Embeddings and lm_head stay in the model's dtype even where the checkpoint quantized them, and experts too: the
    engine hands torchao linear layers only. Names are those of the engine's fused layers; a list names a module, or a
    run of whole components of its name.

    Raises EngineRefusalError `torchao-quant-type` for the older text form, ModelError `unknown-quantization` for a
    config whose tensors are not known.

    Source: vllm/model_executor/layers/quantization/torchao.py:TorchAOConfig.from_config, get_quant_method,
    should_skip (0.32.0).
    """
    quant_type = section.get("quant_type")
    if not isinstance(quant_type, Mapping) or quant_type.keys() != {"default"}:
        raise EngineRefusalError(
            "torchao-quant-type", field=f"{section.path}.quant_type", value=str(quant_type)[:80]
        )
    written = Section(quant_type, PATH, "").section("default")
    skipped = tuple(map(canonical, section.strings("modules_to_not_convert") or ()))
    rules = read_rules(written)
    skipped += tuple(name for name, weights in rules.items() if weights is None and name != DEFAULT_KEY)
    names = frozenset(skipped)
    matched = tuple(name for name in rules if name.startswith("re:"))
    patterns = Patterns([name[3:] for name in matched], Allowance(), whole=True)

    def format_of(module: ModuleName) -> Format:
        if module.kind is not Kind.LINEAR or is_encoder(module):
            return UNQUANTIZED
        if not names.isdisjoint(component_runs(module.name)):
            return UNQUANTIZED
        first = None if module.name in rules else patterns.first(module.name)
        name = module.name if first is None else matched[first]
        return rules.get(name, rules.get(DEFAULT_KEY)) or UNQUANTIZED

    return Quantization(
        method=METHOD,
        detail=detail_of(written),
        format_of=format_of,
        depends_on_layer=names_a_layer((*skipped, *rules)),
    )


def read_rules(written: Section) -> Mapping[str, Format | None]:
    """The format by module name, `re:` pattern or `_default`; None for a module that is left alone.

    An embedding's is not asked for, so that any will do.
    """
    if written.string("_type", "") not in BY_MODULE:
        return {DEFAULT_KEY: weight_format(written)}
    data = written.section("_data")
    table = data.optional_section("fqn_to_config") or data.optional_section("module_fqn_to_config")
    if table is None:
        raise unknown(METHOD, "no module named")
    rules: dict[str, Format | None] = {}
    for name, rule in table.raw.items():
        if rule is None:
            rules[canonical(name)] = None
        elif "embed" in name and not name.startswith("re:"):
            rules[canonical(name)] = UNQUANTIZED
        else:
            rules[canonical(name)] = weight_format(table.section(name))
    return rules


def detail_of(written: Section) -> str:
    """The config's name, and its group.

    Example:
        >>> detail_of(Section({"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 128}}))
        'Int4WeightOnlyConfig, groups of 128'
    """
    name = re.sub(r"\W", "", written.string("_type", ""))[:60]
    group = data_of(written).get("group_size")
    return f"{name}, groups of {group}" if isinstance(group, int) else name


def data_of(written: Section) -> Section:
    """The fields of a config; left out, all have their defaults."""
    return written.optional_section("_data") or Section({}, f"{written.path}._data", "")


def weight_format(written: Section) -> Format:
    """The format of one config, by its `_type` and `_version`.

    Raises ModelError `unknown-quantization` for one whose tensors are not known.
    """
    kind = written.string("_type", "")
    if kind not in CONFIGS:
        raise unknown(METHOD, kind[:80])
    data, version = data_of(written), written.integer("_version", 1)
    match kind:
        case "Int4WeightOnlyConfig":
            return int4(data, version)
        case "IntxWeightOnlyConfig":
            return intx(data, "", 0)
        case "Int8DynamicActivationIntxWeightConfig":
            return intx(data, "weight_", 32)
        case _:
            return byte_wide(kind, data, version)


def int4(data: Section, version: int) -> Format:
    """Half a byte a weight, scale and zero point of 16 bits a group; in tiles, or plain.

    Source: torchao/quantization/quant_api.py:_int4_weight_only_quantize_tensor (0.10.0, 0.15.0).
    """
    group = data.integer("group_size", 128, minimum=1)
    layout = named(data.get("layout")) or "TensorCoreTiledLayout"
    packing = named(data.get("int4_packing_format")).lower() or "plain"
    if version == 1 and layout == "TensorCoreTiledLayout":
        packing = "tile_packed_to_4d"
    elif version == 1 or packing not in ("plain", "preshuffled", "tile_packed_to_4d"):
        raise unknown(METHOD, f"Int4WeightOnlyConfig {layout if version == 1 else packing}")
    return Grouped(bits=4, group_size=group, overhead_bytes=2 + 2, tiled=packing == "tile_packed_to_4d")


def byte_wide(kind: str, data: Section, version: int) -> Format:
    """One byte a weight and a scale a row, or one for all: 16 bits of integers, float32 of floats.

    Version 1 of weights alone as integers has a scale and an int64 zero point a row or group.

    Source: torchao/quantization/quant_api.py:_int8_weight_only_quantize_tensor (0.10.0, 0.15.0),
    _int8_dynamic_activation_int8_weight_quantize_tensor, _float8_weight_only_quant_tensor,
    _float8_dynamic_activation_float8_weight_quantize_tensor (0.15.0).
    """
    match kind:
        case "Float8WeightOnlyConfig":
            return Grouped(bits=8, overhead_bytes=FLOAT32_BYTES)
        case "Float8DynamicActivationFloat8WeightConfig":
            per_tensor = is_per_tensor(data, default="PerTensor")
            return Grouped(
                bits=8, overhead_bytes=FLOAT32_BYTES, per_tensor=per_tensor, multiple=FLOAT8_MULTIPLE
            )
        case "Int8WeightOnlyConfig" if version == 1:
            group = data.optional_integer("group_size", minimum=1) or 0
            return Grouped(bits=8, group_size=group, overhead_bytes=2 + 8)
        case "Int8DynamicActivationInt8WeightConfig" if version <= 1:
            layout = named(data.get("layout"))
            if version == 1 and layout not in ("", "PlainLayout"):
                raise unknown(METHOD, f"{kind} {layout}")
            return Grouped(bits=8, overhead_bytes=2)
        case _:
            return Grouped(bits=8, overhead_bytes=2, per_tensor=is_per_tensor(data))


def intx(data: Section, prefix: str, group_size: int) -> Format:
    """Integers of any width as one byte a weight, a scale and a one-byte zero point a group or row.

    Source: torchao/quantization/quantize_/workflows/intx/intx_unpacked_to_int8_tensor.py:from_hp,
    quant_api.py:_intx_weight_only_quantize_tensor (0.15.0).
    """
    packing = named(data.get("intx_packing_format")).lower() or "unpacked_to_int8"
    layout = named(data.get("layout")) or "QDQLayout"
    if packing != "unpacked_to_int8" or layout not in ("QDQLayout", "PlainLayout"):
        raise unknown(METHOD, f"{layout} {packing}")
    scale = named(data.get(f"{prefix}scale_dtype"))
    if scale and scale not in DTYPE_BYTES:
        raise unknown(METHOD, f"scales of {scale}")
    return Grouped(
        bits=8,
        group_size=intx_group(data.optional_section(f"{prefix}granularity"), group_size),
        overhead_bytes=DTYPE_BYTES.get(scale, 2) + 1,
    )


def intx_group(granularity: Section | None, default: int) -> int:
    """Inputs a scale; 0 for one a row."""
    if granularity is None:
        return default
    kind = granularity.string("_type", "")
    if kind == "PerGroup":
        return data_of(granularity).integer("group_size", minimum=1)
    if kind in ("PerAxis", "PerRow"):
        return 0
    raise unknown(METHOD, kind[:80])


def is_per_tensor(data: Section, default: str = "PerRow") -> bool:
    """Whether one scale serves the whole weight: `granularity` of the weight, the second of two."""
    written = data.get("granularity")
    last = written[-1] if isinstance(written, list | tuple) and written else written
    kind = last.get("_type") if isinstance(last, Mapping) else None
    kind = kind if isinstance(kind, str) else default
    if kind not in ("PerRow", "PerTensor"):
        raise unknown(METHOD, kind[:80])
    return kind == "PerTensor"


def named(value: Any) -> str:
    """The name of an object of the config: an enum's or dtype's value, a layout's class.

    Example:
        >>> named({"_type": "Int4PackingFormat", "_data": "PLAIN"}), named({"_type": "QDQLayout", "_data": {}})
        ('PLAIN', 'QDQLayout')
    """
    if isinstance(value, Mapping):
        data, kind = value.get("_data"), value.get("_type")
        value = data if isinstance(data, str) else kind
    return value[:80] if isinstance(value, str) else ""
