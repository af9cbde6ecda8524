"""Humming's format of weights (`--quantization humming`): any number of bits, made while loading.

What is made is said by VLLM_HUMMING_ONLINE_QUANT_CONFIG, as JSON: `{"dtype": "int6", "group_size": 128}`.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from msgspec import Meta

from kvcore.base.errors import ScenarioError
from kvcore.base.units import ceil_div, round_up
from kvcore.base.untrusted import parse_json_object
from kvcore.model.quantization.formats import FLOAT32_BYTES, UNQUANTIZED, Format, LinearShape
from kvcore.model.quantization.modules import Kind, ModuleName, is_encoder, is_quantized_encoder
from kvcore.model.quantization.scheme import Quantization, names_a_layer, unknown

METHOD: Final = "humming"
VARIABLE: Final = "VLLM_HUMMING_ONLINE_QUANT_CONFIG"
PADDING: Final = (256, 128)
"""Multiples of the rows and inputs of a linear layer that loading pads it to.

Source: vllm/model_executor/layers/quantization/humming.py:HummingLinearMethod.process_weights_after_loading (0.33.0).
"""
NARROW_SCALES: Final = ("float8", "fp8", "e8m0")
"""Beginnings of the names of scales of one byte."""
_DTYPE: Final = re.compile(r"u?int([1-8])|(?:float|fp)([3-8])(?:_?e\d+_?m\d+(?:fn)?)?")
_MOST_CHARACTERS: Final = 4096
_IGNORED: Final = ("ignored_layers", "ignore", "modules_to_not_convert")


class HummingFormat(Format, frozen=True, kw_only=True):
    """Weights of `bits` with a scale for each row, or for each group of `group` inputs of `group_rows` rows.

    Source: humming/schema/humming.py:HummingWeightSchema.get_tensors_attrs (humming-kernels 0.1.19).

    Example:
        >>> shape = LinearShape(in_features=1024, outputs=(512,), element_bytes=2)
        >>> HummingFormat(bits=6).linear_bytes(shape) - 1024 * 512 * 6 // 8
        1024
    """

    bits: Annotated[int, Meta(ge=1, le=8)]
    group: int = 0
    group_rows: int = 1
    has_zero_points: bool = False
    has_narrow_scales: bool = False

    def matrix_bytes(self, rows: int, inputs: int, element_bytes: int) -> int:
        groups = ceil_div(inputs, self.group) if self.group else 1
        scale = FLOAT32_BYTES if self.group_rows > 1 else 1 if self.has_narrow_scales else element_bytes
        zero_points = rows * groups * self.bits // 8 if self.has_zero_points else 0
        return rows * inputs * self.bits // 8 + ceil_div(rows, self.group_rows) * groups * scale + zero_points

    def linear_bytes(self, shape: LinearShape) -> int:
        rows, inputs = round_up(shape.out_features, PADDING[0]), round_up(shape.in_features, PADDING[1])
        return self.matrix_bytes(rows, inputs, shape.element_bytes)


def read_humming(said: str) -> tuple[HummingFormat, tuple[str, ...]]:
    """The format that the variable asks for, and the pieces of names of modules that stay as they are.

    Raises ModelError `unknown-quantization` where it says no type of weights: the engine has none of its own.

    Example:
        >>> read_humming('{"dtype": "int6", "hadamard_block_size": -1}')[0].bits
        6
    """
    try:
        given: dict[str, Any] = dict(parse_json_object(said, max_bytes=_MOST_CHARACTERS)) if said else {}
    except ScenarioError:
        given = {}
    name = next((given[key] for key in ("dtype", "weight_dtype", "b_dtype") if key in given), None)
    found = _DTYPE.match(name) if isinstance(name, str) else None
    if found is None:
        raise unknown(METHOD, f"{VARIABLE} names no dtype")
    scale = next(
        (given[key] for key in ("bs_dtype", "weight_scale_dtype", "scale_dtype") if key in given), ""
    )
    ignored: Any = next((given[key] for key in _IGNORED if given.get(key)), [])
    return HummingFormat(
        bits=int(found[1] or found[2]),
        group=_size(given, "group_size", "weight_scale_group_size"),
        group_rows=max(1, _size(given, "group_size_n", "weight_scale_group_size_n")),
        has_zero_points=given.get("has_zero_point") is True,
        has_narrow_scales=isinstance(scale, str) and scale.startswith(NARROW_SCALES),
    ), tuple(one for one in ignored if isinstance(one, str)) if isinstance(ignored, list) else ()


def _size(given: dict[str, Any], *keys: str) -> int:
    """A size that one of `keys` gives; 0 for none."""
    value = next((given[key] for key in keys if key in given), 0)
    return value if type(value) is int and 0 < value <= 1 << 20 else 0


def humming(said: str) -> Quantization:
    """What `--quantization humming` makes of a 16-bit checkpoint; raises as `read_humming`.

    Source: vllm/model_executor/layers/quantization/humming.py:HummingConfig.is_layer_skipped (0.33.0).
    """
    weights, ignored = read_humming(said)

    def format_of(module: ModuleName) -> Format:
        is_left = module.kind is Kind.VOCAB or (is_encoder(module) and not is_quantized_encoder(module))
        return UNQUANTIZED if is_left or any(piece in module.name for piece in ignored) else weights

    scales = f"groups of {weights.group}" if weights.group else "one scale per row"
    detail = f"{weights.bits} bits, {scales}"
    return Quantization(
        method=METHOD,
        detail=f"{detail}, made while loading",
        format_of=format_of,
        depends_on_layer=names_a_layer(ignored),
    )


def said_by(env: Mapping[str, str]) -> str:
    """The variable's text."""
    return env.get(VARIABLE, "")
