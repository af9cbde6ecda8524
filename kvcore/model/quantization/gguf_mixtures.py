"""llama.cpp's mixtures: which block each tensor of a GGUF file has, by the file's type, its role and its layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kvcore.units import ceil_div


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockType:
    """A tensor type: `size` bytes store `weights` numbers of one row. `fallback`: what rows take that are no multiple.

    Source: ggml/src/ggml-common.h (block layouts), src/llama-quant.cpp:tensor_type_fallback of llama.cpp (007dbbf).
    """

    weights: int
    size: int
    fallback: str = "F16"

    def row_bytes(self, inputs: int) -> int:
        """Bytes of one row on a rank."""
        return ceil_div(inputs * self.size, self.weights)


TYPES: Final[Mapping[str, BlockType]] = {
    "F16": BlockType(weights=1, size=2),
    "BF16": BlockType(weights=1, size=2),
    "Q4_0": BlockType(weights=32, size=2 + 16),
    "Q4_1": BlockType(weights=32, size=4 + 16),
    "Q5_0": BlockType(weights=32, size=2 + 4 + 16),
    "Q5_1": BlockType(weights=32, size=4 + 4 + 16),
    "Q8_0": BlockType(weights=32, size=2 + 32),
    "IQ4_NL": BlockType(weights=32, size=2 + 16),
    "Q2_K": BlockType(weights=256, size=4 + 16 + 64, fallback="Q4_0"),
    "Q3_K": BlockType(weights=256, size=2 + 12 + 32 + 64, fallback="Q4_0"),
    "Q4_K": BlockType(weights=256, size=4 + 12 + 128, fallback="Q5_0"),
    "Q5_K": BlockType(weights=256, size=4 + 12 + 32 + 128, fallback="Q5_1"),
    "Q6_K": BlockType(weights=256, size=2 + 16 + 64 + 128, fallback="Q8_0"),
    "IQ4_XS": BlockType(weights=256, size=2 + 2 + 4 + 128, fallback="IQ4_NL"),
}

FILE_TYPES: Final[Mapping[str, str]] = {
    **{name: name for name in ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q6_K", "Q2_K")},
    **dict.fromkeys(("Q2_K_S",), "Q2_K"),
    **dict.fromkeys(("Q3_K", "Q3_K_S", "Q3_K_M", "Q3_K_L"), "Q3_K"),
    **dict.fromkeys(("Q4_K", "Q4_K_S", "Q4_K_M"), "Q4_K"),
    **dict.fromkeys(("Q5_K", "Q5_K_S", "Q5_K_M"), "Q5_K"),
    **{name: name for name in ("IQ4_NL", "IQ4_XS")},
}
"""The type that most tensors of a file have. Source: tools/quantize/quantize.cpp of llama.cpp (007dbbf)."""

ALIASES: Final[Mapping[str, str]] = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
UNIFORM: Final = frozenset({"F16", "BF16", "Q6_K", "Q8_0"})
PLAIN: Final = frozenset({"F16", "BF16"})


class Role(StrEnum):
    """What llama.cpp tells apart."""

    EMBEDDING = "embedding"
    OUTPUT = "output"
    VALUES = "values"
    KEYS = "keys"
    ATTENTION_OUTPUT = "attention output"
    DOWN = "down"
    OTHER = "other"


ROLES: Final[Mapping[str, Role]] = {
    **dict.fromkeys(("v_proj", "qkv_proj", "query_key_value", "W_pack", "c_attn", "kv_b_proj"), Role.VALUES),
    **dict.fromkeys(("k_proj",), Role.KEYS),
    **dict.fromkeys(("o_proj",), Role.ATTENTION_OUTPUT),
    **dict.fromkeys(("down_proj", "w2", "fc2", "dense_4h_to_h"), Role.DOWN),
}
"""By the last component of a checkpoint's name. Source: src/llama-quant.cpp:tensor_get_category (007dbbf)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a module stands: its layer, and which of the layers with values that is."""

    layer: int
    values: int
    inputs: int
    """Of the whole model; of experts the hidden size."""
    down_inputs: int = 0
    """Of experts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What llama.cpp looks at in addition to a tensor's own name."""

    num_layers: int
    num_values: int
    """Layers with values."""
    query_groups: int
    num_experts: int
    is_70b: bool
    """80 layers of Llama or Qwen2, whose few value heads get more bits. Source: src/llama-model.cpp (llama.cpp)."""


def role_of(name: str) -> Role:
    """The role of a tensor by its checkpoint name."""
    return ROLES.get(name.rpartition(".")[2], Role.OTHER)


def takes_more_bits(index: int, count: int) -> bool:
    """The first and last eighth, and every third between.

    Example:
        >>> sum(takes_more_bits(index, 32) for index in range(32))
        16
    """
    eighth = count // 8
    return index < eighth or index >= 7 * count // 8 or (index - eighth) % 3 == 2


def tensor_type(name: str, role: Role, place: Place, facts: Facts, inputs: int) -> str:
    """The type of one tensor in a file of type `name`.

    Source: src/llama-quant.cpp:llama_tensor_get_type_impl of llama.cpp (007dbbf), without an importance matrix.
    """
    usual = FILE_TYPES[name]
    if name in PLAIN:
        return usual
    match role:
        case Role.OUTPUT:
            return "Q8_0" if usual == "Q8_0" or inputs % TYPES[usual].weights else "Q6_K"
        case Role.VALUES:
            return values_type(name, place.values, facts)
        case Role.KEYS if facts.num_experts == 8:
            return "Q8_0"
        case Role.DOWN:
            return down_type(name, place.layer, facts.num_layers)
        case Role.ATTENTION_OUTPUT:
            return attention_output_type(name, facts.num_experts)
        case _:
            return usual


def values_type(name: str, index: int, facts: Facts) -> str:
    """The type of the `index`-th value projection."""
    if facts.num_experts == 8:
        return "Q8_0"
    is_grouped = facts.query_groups >= 4
    chosen = FILE_TYPES[name]
    match name:
        case "Q2_K":
            chosen = "Q4_K" if is_grouped else "Q3_K"
        case "Q2_K_S" if is_grouped:
            chosen = "Q4_K"
        case "Q3_K_M":
            chosen = "Q5_K" if index < 2 else "Q4_K"
        case "Q3_K_L":
            chosen = "Q5_K"
        case "IQ4_NL" | "IQ4_XS" if is_grouped:
            chosen = "Q5_K"
        case "Q4_K_M" | "Q5_K_M" if takes_more_bits(index, facts.num_values):
            chosen = "Q6_K"
        case "Q4_K_S" if index < 4:
            chosen = "Q5_K"
    return "Q5_K" if facts.is_70b and chosen in ("Q3_K", "Q4_K") else chosen


def down_type(name: str, index: int, count: int) -> str:
    """The type of the down projections of layer `index`."""
    is_early = index < count // 8
    match name:
        case "Q2_K":
            return "Q3_K"
        case "Q2_K_S" if is_early:
            return "Q4_K"
        case "Q3_K_M":
            return "Q5_K" if index < count // 16 else "Q4_K"
        case "Q3_K_L":
            return "Q5_K"
        case "Q4_K_M" | "Q5_K_M" if takes_more_bits(index, count):
            return "Q6_K"
        case "Q4_K_S" | "IQ4_NL" | "IQ4_XS" if is_early:
            return "Q5_K"
        case _:
            return FILE_TYPES[name]


def attention_output_type(name: str, num_experts: int) -> str:
    """The type of the output projections of attention."""
    if num_experts == 8:
        is_small = name in ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS")
        return "Q5_K" if is_small else FILE_TYPES[name]
    return {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}.get(name, FILE_TYPES[name])


def fitting(name: str, inputs: int) -> BlockType:
    """The type, or what rows of `inputs` take that are no multiple of its block.

    Example:
        >>> fitting("Q4_K", 896) == TYPES["Q5_0"]
        True
    """
    chosen = TYPES[name]
    if inputs % chosen.weights:
        chosen = TYPES[chosen.fallback]
    return TYPES["F16"] if inputs % chosen.weights else chosen
