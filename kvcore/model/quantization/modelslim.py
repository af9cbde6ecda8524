"""ModelSlim's checkpoints for Ascend (`--quantization ascend`): the type that each module is stored in.

The side file is quant_model_description.json: names of tensors with their types, FLOAT for 16 bits.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Final

from msgspec import Meta
from msgspec.structs import replace

from kvcore.base.errors import EngineRefusalError
from kvcore.base.units import ceil_div
from kvcore.model.config import CACHE_KIND, FACTS, KIND, ModelConfig, is_modelslim
from kvcore.model.quantization.formats import UNQUANTIZED, ExpertsShape, Format, LinearShape
from kvcore.model.quantization.modules import Kind, ModuleName, canonical, is_encoder
from kvcore.model.quantization.scheme import Quantization, unknown
from kvcore.tables import Record, Reviewed, Share, Source, TableFile

METHOD: Final = "ascend"
FLOAT: Final = "FLOAT"
WEIGHT: Final = ".weight"
EXPERT_COUNTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Keys of config.json that a mixture of experts has."""
TypeName = Annotated[str, Meta(pattern=r"^[A-Z0-9_]{3,40}$")]
ModelType = Annotated[str, Meta(pattern=r"^[a-z0-9_]{2,40}$")]
Piece = Annotated[str, Meta(pattern=r"^[a-z0-9_.]{2,40}$")]
Bytes = Annotated[int, Meta(ge=0, le=64)]


class TypeRow(Record, frozen=True, kw_only=True):
    """Bits and bytes of one type; modelslim.toml says what each field counts."""

    source: Source
    bits: Annotated[int, Meta(ge=4, le=16)]
    row: Bytes = 0
    up_row: Bytes = 0
    down_row: Bytes = 0
    input: Bytes = 0
    layer: Bytes = 0
    group: Annotated[int, Meta(ge=0, le=4096)] = 0
    group_bytes: Bytes = 0
    expert_group_bytes: Bytes = 0


class Rule(Record, frozen=True, kw_only=True):
    """A type, and pieces of the names of modules that have it."""

    type: TypeName
    pieces: tuple[Piece, ...]


class Assumed(Record, frozen=True, kw_only=True):
    """Types of the modules of some models' checkpoints."""

    source: Source
    model_types: tuple[ModelType, ...]
    rules: tuple[Rule, ...]
    spread: Share = 0.03
    """Share that the weights may be off by, as no side file says which modules are in 16 bits."""


class Scheme(Record, frozen=True, kw_only=True):
    """A scheme that the name of a checkpoint says, and the type of what the usual rules store in 8 bits."""

    source: Source
    experts: TypeName
    """Type of experts."""
    others: TypeName | None = None
    """Type of other layers in a mixture; None: as the rules say. Without experts all layers have that of experts."""


class ModelSlimTables(Reviewed, frozen=True, kw_only=True):
    """modelslim.toml."""

    type: Mapping[TypeName, TypeRow]
    scheme: Mapping[Annotated[str, Meta(pattern=r"^w[0-9]{1,2}a[0-9]{1,2}$")], Scheme]
    assumed: tuple[Assumed, ...]
    other_models: Assumed
    """Rules for every other model."""


MODELSLIM: Final = TableFile("kvcore.model.quantization", "modelslim.toml", ModelSlimTables)


class ModelSlimFormat(Format, frozen=True, kw_only=True):
    """Integer weights with the scales and offsets that vllm-ascend keeps of each row, input and group.

    Source: vllm_ascend/quantization/methods (0.23.0).

    Example:
        >>> dynamic = ModelSlimFormat(type=MODELSLIM.load().type["W8A8_DYNAMIC"])
        >>> dynamic.linear_bytes(LinearShape(in_features=4096, outputs=(1024,), element_bytes=2)) - 4096 * 1024
        8192
    """

    type: TypeRow

    def matrix_bytes(self, rows: int, inputs: int, element_bytes: int) -> int:
        groups = ceil_div(inputs, self.type.group) if self.type.group else 0
        of_row = self.type.row + groups * self.type.group_bytes
        return rows * inputs * self.type.bits // 8 + rows * of_row + inputs * self.type.input

    def once_a_layer_bytes(self, shape: LinearShape) -> int:
        return self.type.layer

    def experts_bytes(self, shape: ExpertsShape) -> int:
        hidden, intermediate = shape.hidden_size, shape.intermediate_size
        sides = (
            (shape.shards * intermediate, hidden, self.type.up_row),
            (hidden, intermediate, self.type.down_row),
        )
        total = sum(
            rows * (inputs * self.type.bits // 8 + self._scales(inputs, row)) for rows, inputs, row in sides
        )
        return shape.num_experts * total + shape.bias_bytes

    def _scales(self, inputs: int, row: int) -> int:
        groups = ceil_div(inputs, self.type.group) if self.type.group else 1
        return row + groups * self.type.expert_group_bytes


SCHEME: Final = re.compile(r"(?<![a-z0-9])w\d{1,2}a\d{1,2}(?![0-9])", re.IGNORECASE)
FROM_4_BITS: Final = "w4a8"
"""The scheme of conversions of checkpoints that are published in 4 bits.

Source: vllm-ascend tests/e2e/nightly (2026-08-22): Eco-Tech/Kimi-K2.5-W4A8, Kimi-K2.6-w4a8, of models in INT4 that have
no conversion to more bits.
"""
QUANTIZE: Final = "quantize"
"""The key that ModelSlim writes into config.json: w8a8, w8a8_dynamic, w4a8_dynamic."""


def scheme_named(name: str) -> str:
    """The scheme in a checkpoint's name or in its config, "" where it says none that is counted.

    Example:
        >>> scheme_named("Eco-Tech/Qwen3.5-397B-A17B-W4A8-mtp"), scheme_named("w8a8_dynamic"), scheme_named("GLM-5")
        ('w4a8', 'w8a8', '')
    """
    found = SCHEME.search(name)
    said = found[0].lower() if found else ""
    return said if said in MODELSLIM.load().scheme else ""


def read_modelslim(config: ModelConfig, written: str, model: str = "") -> Quantization:
    """The types of a checkpoint's modules; `written`: the quant_method of its config.json, "" for none; `model`: the
    name that it is served by, whose scheme counts where there is no side file.

    Raises EngineRefusalError `quantization-mismatch` for a side file next to another method; ModelError
    `unknown-quantization` for types that are not counted.

    Source: vllm_ascend/quantization/modelslim_config.py:AscendModelSlimConfig (0.23.0).
    """
    description = config.hf_quant_config
    if description is None or not is_modelslim(description):
        own = config.root.get(QUANTIZE)
        said = scheme_named(model) or scheme_named(own[:80] if isinstance(own, str) else "")
        return _assumed(config, said or (FROM_4_BITS if _has_4_bits(config) else ""))
    if written not in ("", METHOD):
        raise EngineRefusalError(
            "quantization-mismatch", field="quantization", method=written, requested=METHOD
        )
    types = {
        canonical(name.removesuffix("_packed").removesuffix(WEIGHT)): value
        for name, value in description.items()
        if name not in FACTS and isinstance(value, str)
    }
    group = description.get("group_size")
    formats = {
        name: _format(name, group if isinstance(group, int) else None)
        for name in dict.fromkeys(types.values())
        if name != FLOAT
    }
    return Quantization(
        method=METHOD,
        detail=str(description[KIND])[:40],
        format_of=partial(_described, types, formats),
        depends_on_layer=True,
        quantizes_embeddings=True,
        kv_cache_dtype="int8" if description.get(CACHE_KIND) == "C8" else "",
    )


def _described(types: Mapping[str, str], formats: Mapping[str, Format], module: ModuleName) -> Format:
    """The format of a module, by its name in the file or that of its first part; 16 bits where neither is there."""
    asked = [module.name, *module.shards]
    if module.kind is Kind.EXPERTS:
        asked += [shard for shards in module.expert_shards for shard in shards]
    found = next((types[name] for name in asked if name in types), FLOAT)
    return UNQUANTIZED if found == FLOAT else formats[found]


def _format(name: str, group: int | None) -> Format:
    row = MODELSLIM.load().type.get(name)
    if row is None:
        raise unknown(METHOD, name[:40])
    if row.group and group is not None and 0 <= group <= 4096:
        row = replace(row, group=group)
    return ModelSlimFormat(type=row)


def _has_4_bits(config: ModelConfig) -> bool:
    """Whether the original checkpoint stores weights in 4 bits."""
    section = config.root.optional_section("quantization_config")
    section = section or config.language.optional_section("quantization_config")
    groups = () if section is None else (section.raw.get("config_groups") or {}).values()
    bits = [group.get("weights", {}).get("num_bits") for group in groups if isinstance(group, dict)]
    return section is not None and (section.raw.get("bits") == 4 or (bool(bits) and set(bits) == {4}))


def _assumed(config: ModelConfig, scheme: str) -> Quantization:
    table = MODELSLIM.load()
    kinds = (config.model_type, config.language.string("model_type", ""))
    row = next(
        (row for row in table.assumed if not set(kinds).isdisjoint(row.model_types)), table.other_models
    )
    said = table.scheme.get(scheme)
    is_mixture = any(config.language.get(key) for key in EXPERT_COUNTS)

    def format_of(module: ModuleName) -> Format:
        names = [f"{name}." for name in (module.name, *module.shards)]
        rules = (rule for rule in row.rules if any(piece in name for piece in rule.pieces for name in names))
        found = next(rules, None)
        is_left = found is None or found.type == FLOAT or module.kind is Kind.VOCAB or is_encoder(module)
        if is_left or found is None:
            return UNQUANTIZED
        if said is None:
            return ModelSlimFormat(type=table.type[found.type])
        is_expert = module.kind is Kind.EXPERTS or not is_mixture
        return ModelSlimFormat(type=table.type[said.experts if is_expert else said.others or found.type])

    detail = "as published, side file not given"
    return Quantization(
        method=METHOD,
        detail=f"{scheme.upper()}, {detail}" if scheme else detail,
        format_of=format_of,
        spread=row.spread,
    )
